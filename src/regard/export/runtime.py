"""ONNX Runtime for browsers: the files of the npm package onnxruntime-web that a static page needs."""

import base64
import gzip
import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

from regard.errors import ConfigError, ExtraError, shortened

VERSION = "1.27.0"
_INTEGRITY = "sha512-ogDLsqIozHZwifPuN37OproAo0byX6t43/bP8GzeZWBWD6MOGExswFAx3up4NS/vvWBOg2u2PXomDt3rMmdQSg=="
"""The digest that npm publishes for this version."""

_MODULE = "dist/ort.wasm.bundle.min.mjs"
_BINARY = "dist/ort-wasm-simd-threaded.wasm"
_OFFLINE = (
    f"unpack onnxruntime-web {VERSION} from npm and give its folder with --onnxruntime-web DIR"
)


def runtime_files(package: str | Path | None = None) -> dict[str, bytes]:
    """Return the files of ONNX Runtime by name: a module, its binary compressed with gzip, the licence.

    Args:
        package: the unpacked package; None means that npm downloads it, once, to the user's cache.

    Raises:
        ConfigError: the folder is not this version of the package, or the download failed or was altered.
        ExtraError: npm is needed but not installed.
    """
    if package is None:
        with tarfile.open(_archive()) as archive:
            return _selected(lambda name: _member(archive, name))
    folder = Path(package)
    try:
        version = json.loads((folder / "package.json").read_bytes())["version"]
        if version == VERSION:
            return _selected(lambda name: (folder / name).read_bytes())
        found = f"version {version}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        found = type(error).__name__
    raise ConfigError(
        f"expected the unpacked npm package onnxruntime-web {VERSION} in {shortened(str(folder))}, "
        f"found {found}; run npm pack onnxruntime-web@{VERSION} and unpack its archive"
    )


def archive_path() -> Path:
    """Return the path of the package's archive in the user's cache, where it may not be yet."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if cache.startswith("~"):  # neither HOME nor the list of users names the home folder
        raise ConfigError(
            f"the folder of the user's cache is unknown; set XDG_CACHE_HOME, or {_OFFLINE}"
        )
    return Path(cache) / "regard" / f"onnxruntime-web-{VERSION}.tgz"


def _selected(read: Callable[[str], bytes]) -> dict[str, bytes]:
    license_text = Path(__file__).with_name("runtime_license.txt").read_bytes()
    # with the ending .mjs, some web servers do not send the type of a module
    return {
        "ort.js": read(_MODULE),
        "ort.wasm.gz": gzip.compress(read(_BINARY), mtime=0),
        "LICENSE": license_text,
    }


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(f"package/{name}")
    assert file is not None
    return file.read()


def _archive() -> Path:
    """Return the path of the package's archive, downloaded first if it is not there."""
    path = archive_path()
    try:
        if _is_intact(path):
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            downloaded = _download(Path(folder))
            if not _is_intact(downloaded):
                raise ConfigError(
                    f"the download of onnxruntime-web {VERSION} differs from the published package; "
                    f"check npm's registry, or {_OFFLINE}"
                )
            downloaded.replace(path)
    except OSError as error:
        raise ConfigError(
            f"cannot use the cache {path.parent}: {error.strerror}; set XDG_CACHE_HOME to another "
            f"folder, or {_OFFLINE}"
        ) from None
    return path


def _is_intact(archive: Path) -> bool:
    if not archive.is_file():
        return False
    digest = hashlib.sha512(archive.read_bytes()).digest()
    return f"sha512-{base64.b64encode(digest).decode()}" == _INTEGRITY


def _download(folder: Path) -> Path:
    npm = shutil.which("npm")
    if npm is None:
        raise ExtraError(
            f"a static page needs onnxruntime-web {VERSION}, which npm downloads, but npm is not "
            f"installed; install Node.js, or {_OFFLINE}"
        )
    command = [npm, "pack", f"onnxruntime-web@{VERSION}", "--loglevel=error", "--fetch-retries=0"]
    try:
        result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ExtraError(
            f"npm cannot be run: {error.strerror}; install Node.js, or {_OFFLINE}"
        ) from None
    if result.returncode:
        lines = [line for line in result.stderr.splitlines() if "npm error code" not in line]
        reason = next(filter(str.strip, lines), f"status {result.returncode}")
        raise ConfigError(
            f"npm could not download onnxruntime-web {VERSION} ({shortened(reason, 200)}); connect "
            f"to the internet, or {_OFFLINE}"
        )
    return folder / f"onnxruntime-web-{VERSION}.tgz"
