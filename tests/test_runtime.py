"""ONNX Runtime for browsers from npm, and the files of a static page; without a network."""

import gzip
import io
import json
import re
import stat
import tarfile
from pathlib import Path

import pytest

from regard.errors import ConfigError, ExtraError
from regard.export import runtime
from regard.export.runtime import VERSION, archive_path, runtime_files
from regard.export.site import MODEL_FILES, write_site


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def _package(folder: Path, version: str = VERSION) -> Path:
    (folder / "dist").mkdir(parents=True)
    (folder / "package.json").write_text(json.dumps({"version": version}))
    (folder / "dist" / "ort.wasm.bundle.min.mjs").write_text("export {};")
    (folder / "dist" / "ort-wasm-simd-threaded.wasm").write_bytes(b"\0asm" * 100)
    return folder


def _npm(folder: Path, script: str) -> str:
    """Create a program `npm` and return the PATH with it alone."""
    folder.mkdir()
    npm = folder / "npm"
    npm.write_text(f"#!/bin/sh\n{script}\n")
    npm.chmod(npm.stat().st_mode | stat.S_IXUSR)
    return str(folder)


def test_an_unpacked_package_needs_no_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    files = runtime_files(_package(tmp_path / "package"))
    assert files["ort.js"] == b"export {};"
    assert gzip.decompress(files["ort.wasm.gz"]) == b"\0asm" * 100
    assert b"MIT License" in files["LICENSE"]


@pytest.mark.parametrize(
    ("version", "found"), [("1.0.0", "found version 1.0.0"), (None, "found FileNotFoundError")]
)
def test_another_folder_is_refused(tmp_path: Path, version: str | None, found: str) -> None:
    folder = tmp_path / "package"
    if version is not None:
        _package(folder, version)
    with pytest.raises(ConfigError, match=f"onnxruntime-web {VERSION} in .*{found}; run npm pack"):
        runtime_files(folder)


def test_an_incomplete_package_is_refused(tmp_path: Path) -> None:
    folder = _package(tmp_path / "package")
    (folder / "dist" / "ort-wasm-simd-threaded.wasm").unlink()
    with pytest.raises(ConfigError, match="found FileNotFoundError"):
        runtime_files(folder)


def test_missing_npm_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(
        ExtraError, match=r"npm is not installed; install Node\.js, or unpack .* DIR"
    ):
        runtime_files()


def test_an_unknown_home_folder_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("os.path.expanduser", str)
    with pytest.raises(ConfigError, match="cache is unknown; set XDG_CACHE_HOME, or unpack"):
        runtime_files()


def test_a_cache_that_cannot_be_written_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("a file")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(
        ConfigError, match=r"cannot use the cache .*Not a directory; set XDG_CACHE_HOME"
    ):
        runtime_files()


def test_a_failing_download_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", _npm(tmp_path / "bin", "echo 'no network' >&2; exit 1"))
    with pytest.raises(ConfigError, match=r"could not download .* \(no network\); connect"):
        runtime_files()


def test_an_altered_download_is_refused_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f"echo altered > onnxruntime-web-{VERSION}.tgz"
    monkeypatch.setenv("PATH", _npm(tmp_path / "bin", script))
    with pytest.raises(ConfigError, match="differs from the published package"):
        runtime_files()
    assert list(archive_path().parent.iterdir()) == []


def test_an_intact_download_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package, packed = _package(tmp_path / "package"), io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.add(package, "package")
    archive_path().parent.mkdir(parents=True)
    archive_path().write_bytes(packed.getvalue())
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ExtraError):  # its digest is not the published one
        runtime_files()
    monkeypatch.setattr(runtime, "_is_intact", Path.is_file)
    assert runtime_files() == runtime_files(package)


def test_the_page_has_relative_addresses_and_all_its_files(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    for name in MODEL_FILES:
        (model / name).write_text("{}")
    site = tmp_path / "site"
    write_site(model, {"name": "</script>"}, runtime_files(_package(tmp_path / "package")), site)
    index = (site / "index.html").read_text(encoding="utf-8")
    content = re.search(r'id="content">(.*?)</script>', index, re.DOTALL)
    assert content is not None
    settings = json.loads(content[1])
    addresses = re.findall(r'(?:src|href)="([^"]+)"', index)
    addresses += [settings["runtime"], settings["wasm"], f"page/{settings['engine']}"]
    addresses += [folder + name for folder in settings["folders"] for name in MODEL_FILES]
    assert all((site / address).is_file() for address in addresses)
    loaded = [site / "runtime/ort.wasm.gz", *(site / "model").iterdir()]
    assert settings["bytes"] == sum(path.stat().st_size for path in loaded)
    for path in (site / "page").rglob("*.js"):
        imports = re.findall(r'(?:from|import\()\s*"([^"]+)"', path.read_text(encoding="utf-8"))
        assert all((path.parent / name).is_file() for name in imports), path
