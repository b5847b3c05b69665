import errno
import gzip
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from regard import files
from regard.errors import ConfigError, DataError
from regard.files import (
    atomic_write,
    check_parent,
    remove_temporary_files,
    require_empty_folder,
    write_text,
)
from regard.lines import read_lines


def test_text_is_compressed_in_a_file_named_gz(tmp_path: Path) -> None:
    for name in ("f.json.gz", "f.GZ"):
        write_text(tmp_path / name, "é\n")
        assert gzip.decompress((tmp_path / name).read_bytes()) == "é\n".encode()
        assert read_lines(tmp_path / name) == ["é"]


def test_missing_parent_folders_are_created(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "f.txt"
    write_text(path, "é\nz\n")
    assert path.read_bytes() == b"\xc3\xa9\nz\n"
    assert os.listdir(path.parent) == ["f.txt"]


def test_an_error_inside_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "f.txt"
    write_text(path, "old")

    def fail(temporary: Path) -> None:
        assert temporary.suffix == ".txt"
        temporary.write_text("half of the ne")
        raise RuntimeError

    with pytest.raises(RuntimeError), atomic_write(path) as temporary:
        fail(temporary)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["f.txt"]


def test_only_unfinished_files_with_the_given_names_are_removed(tmp_path: Path) -> None:
    long = "n" * 250
    with (
        atomic_write(tmp_path / "README.md") as own,
        atomic_write(tmp_path / "other.md") as other,
        atomic_write(tmp_path / long) as third,
    ):
        remove_temporary_files(tmp_path, ["README.md"])
        assert [path.exists() for path in (own, other, third)] == [False, True, True]
        remove_temporary_files(tmp_path, [long])
        assert [path.exists() for path in (other, third)] == [True, False]
        for path in (own, other, third):
            path.write_text("x")
    assert sorted(os.listdir(tmp_path)) == ["README.md", long, "other.md"]


def test_text_that_utf8_cannot_hold_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "f.txt"
    write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "half of a pair: \ud800")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["f.txt"]


def test_a_full_disk_and_a_broken_pipe_are_reported(tmp_path: Path) -> None:
    full = pytest.raises(DataError, match=r"cannot write .*: No space left")
    with full, atomic_write(tmp_path / "f"):
        raise OSError(errno.ENOSPC, "No space left on device")
    gone = pytest.raises(DataError, match="f was not written, because the reader of standard out")
    with gone, atomic_write(tmp_path / "f"):
        raise BrokenPipeError
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has it")
def test_a_full_device_is_reported() -> None:
    with pytest.raises(DataError, match="cannot write /dev/full: No space left"):
        write_text("/dev/full", "x")


def test_a_folder_that_cannot_be_synchronized_holds_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synchronize = files._synchronize

    def refuse_folders(path: Path) -> None:
        if path.is_dir():
            raise PermissionError(errno.EACCES, "Permission denied")
        synchronize(path)

    monkeypatch.setattr(files, "_synchronize", refuse_folders)
    write_text(tmp_path / "f", "x")
    assert (tmp_path / "f").read_text() == "x"


def test_a_path_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"cannot write .*file/f\.txt: .*; choose another path"):
        write_text(tmp_path / "file" / "f.txt", "")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no umask")
@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_a_written_file_has_the_permissions_of_the_umask(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        write_text(tmp_path / "f", "")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o666 & ~mask


def test_only_a_missing_or_empty_folder_is_accepted(tmp_path: Path) -> None:
    assert require_empty_folder(tmp_path / "new") == tmp_path / "new"
    assert require_empty_folder(tmp_path) == tmp_path
    (tmp_path / "f").write_text("")
    with pytest.raises(
        ConfigError, match=r"exists and is not empty; choose another folder \(out\)"
    ):
        require_empty_folder(tmp_path)
    with pytest.raises(ConfigError, match=r"is a file; give a folder \(out\)"):
        require_empty_folder(tmp_path / "f")


@pytest.mark.parametrize("exists", [False, True])
def test_a_folder_is_written_whole_or_not_at_all(tmp_path: Path, exists: bool) -> None:
    out = tmp_path / "parent" / "out"
    if exists:
        out.mkdir(parents=True)

    def interrupted() -> None:
        with files.atomic_folder(out) as folder:
            files.write_text(folder / "first", "1")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [*(tmp_path / "parent").rglob("*")] == [out] * exists
    with files.atomic_folder(out) as folder:
        files.write_text(folder / "first", "1")
        assert not (out / "first").exists()
    assert [*(tmp_path / "parent").rglob("*")] == [out, out / "first"]


def test_errors_inside_a_new_folder_name_its_final_path(tmp_path: Path) -> None:
    def write() -> None:
        with files.atomic_folder(tmp_path / "out") as folder:
            files.write_text(folder / "part", "a file")
            files.write_text(folder / "part" / "first", "1")

    with pytest.raises(DataError, match=f"^cannot write {tmp_path}/out/part/first: ") as raised:
        write()
    assert isinstance(raised.value.__cause__, DataError)
    with pytest.raises(DataError, match="elsewhere"), files.atomic_folder(tmp_path / "out"):
        raise DataError("elsewhere")


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_text(pipe, "through")
        assert os.read(reader, 100) == b"through"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target.txt", tmp_path / "link.txt"
    target.write_text("old")
    link.symlink_to(target)
    write_text(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_what_is_written_to_the_file_of_standard_output_is_appended(tmp_path: Path) -> None:
    program = (
        "import sys; from regard.files import write_text; print('before')\n"
        "write_text('/dev/stdout', 'inside\\n'); print('after')"
    )
    with (tmp_path / "f").open("ab") as file:
        file.write(b"first\n")
        file.flush()
        subprocess.run([sys.executable, "-c", program], stdout=file, check=True)
    assert (tmp_path / "f").read_text() == "first\nbefore\ninside\nafter\n"


def test_permissions_are_kept_and_respected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    path.write_text("old")
    path.chmod(0o600)
    write_text(path, "new")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new", 0o600)
    owners: list[tuple[int, int]] = []

    def chown(path: Path, user: int, group: int) -> None:
        owners.append((user, group))
        raise PermissionError

    monkeypatch.setattr("os.chown", chown)
    write_text(path, "new")
    assert path.read_text() == "new"
    assert owners == [(path.stat().st_uid, -1), (-1, path.stat().st_gid)]
    monkeypatch.setattr("os.access", lambda *_: False)  # as for other users than root
    with pytest.raises(DataError, match="f: Permission denied; choose another path"):
        write_text(path, "newer")
    assert path.read_text() == "new"
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("mode", ["ab", "wb"])
def test_what_is_written_to_a_descriptor_is_appended(tmp_path: Path, mode: str) -> None:
    program = (
        "import os; from regard.files import write_text; os.write(2, b'before\\n')\n"
        "write_text('/dev/stderr', 'inside\\n'); write_text('/dev/fd/2', 'too\\n'); os.write(2, b'after\\n')"
    )
    with (tmp_path / "f").open(mode) as file:
        file.write(b"first\n")
        file.flush()
        subprocess.run([sys.executable, "-c", program], stderr=file, check=True)
    assert (tmp_path / "f").read_text() == "first\nbefore\ninside\ntoo\nafter\n"


def test_a_descriptor_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot write /dev/fd/987: Bad file descriptor"):
        write_text("/dev/fd/987", "text")
    (tmp_path / "f").write_text("kept")
    with (tmp_path / "f").open("rb") as file:
        path = f"/dev/fd/{file.fileno()}"
        with pytest.raises(DataError, match=f"cannot write {path}: Bad file descriptor"):
            write_text(path, "text")
    assert (tmp_path / "f").read_text() == "kept"


def test_a_folder_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    with (
        pytest.raises(DataError, match="it is a folder; choose another path"),
        atomic_write(tmp_path),
    ):
        pytest.fail("the work begins before the path is checked")


def test_a_file_that_cannot_be_created_is_reported_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "f").touch()
    for path in (
        tmp_path,
        tmp_path / "f",
        tmp_path / "new" / "x",
        Path("new"),
        Path("/dev/stdout"),
    ):
        check_parent(path)
    with pytest.raises(
        ConfigError, match=r"cannot write .*f/new/x: .*f is not a folder; choose an"
    ):
        check_parent(tmp_path / "f" / "new" / "x")
    with pytest.raises(ConfigError, match="f is not a folder; choose another path"):
        require_empty_folder(tmp_path / "f" / "x")
    assert os.listdir(tmp_path) == ["f"]


def test_a_folder_that_cannot_be_written_is_reported_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    with pytest.raises(
        ConfigError, match=r"cannot write .*/x: .* cannot be written; choose another"
    ):
        check_parent(tmp_path / "x")


def test_a_name_that_is_too_long_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot write .*x\.svg: File name too long"):
        write_text(tmp_path / ("x" * 260 + ".svg"), "text")
    assert not [*tmp_path.iterdir()]


def test_a_loop_of_links_is_replaced_or_reported(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    with pytest.raises(DataError, match=r"cannot write .*loop/x: "):
        write_text(loop / "x", "text")
    write_text(loop, "text")
    assert loop.read_text() == "text"


def test_the_reason_of_a_failed_copy_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name in ("b", "c"):
        (tmp_path / "a" / name).touch()

    def full(source: str, target: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), source)

    with (
        pytest.raises(ConfigError, match=r"cannot write .*: No space left on device; choose"),
        files.write_errors_reported(tmp_path / "out"),
    ):
        shutil.copytree(tmp_path / "a", tmp_path / "out", copy_function=full)
    message = "Destination path already exists"
    assert files.reason_of(shutil.Error(message)) == message
    assert files.reason_of(shutil.Error([("a", "b", "no number")])) == "no number"
