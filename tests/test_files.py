import bz2
import errno
import gzip
import io
import lzma
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.cli.main import main
from regard.errors import ConfigError, DataError
from regard.files import (
    arriving_lines,
    atomic_write,
    check_parent,
    decode_lines,
    read_lines,
    require_empty_folder,
    write_text,
)

BOM = b"\xef\xbb\xbf"
text_lines = st.text().filter(lambda line: "\n" not in line and not line.endswith("\r"))


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@given(lines=st.lists(text_lines.filter(lambda line: not line.startswith("\ufeff"))))
def test_lines_end_at_line_feeds(end: str, lines: list[str]) -> None:
    assert decode_lines("".join(line + end for line in lines).encode(), "f") == lines


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x0b", "\x0c", "\x85", "\x1c", "\r"])
def test_only_a_line_feed_ends_a_line(tmp_path: Path, separator: str) -> None:
    path = tmp_path / "f.txt"
    path.write_bytes(f"a{separator}b\nc".encode())
    assert read_lines(path) == [f"a{separator}b", "c"]


@pytest.mark.parametrize("prefix", [b"", BOM])
@pytest.mark.parametrize(
    "content", [b"\xc3\xa9\n\nb\n", b"\xc3\xa9\n\nb", b"\xc3\xa9\r\n\r\nb\r\n"]
)
@pytest.mark.parametrize("zipped", [False, True])
def test_bom_line_endings_and_gzip_do_not_change_the_lines(
    tmp_path: Path, prefix: bytes, content: bytes, zipped: bool
) -> None:
    path = tmp_path / ("f.txt.gz" if zipped else "f.txt")
    path.write_bytes(gzip.compress(prefix + content) if zipped else prefix + content)
    assert read_lines(path) == ["é", "", "b"]


def test_text_is_compressed_in_a_file_named_gz(tmp_path: Path) -> None:
    for name in ("f.json.gz", "f.GZ"):
        write_text(tmp_path / name, "é\n")
        assert gzip.decompress((tmp_path / name).read_bytes()) == "é\n".encode()
        assert read_lines(tmp_path / name) == ["é"]


@pytest.mark.parametrize("content", [b"", BOM])
def test_an_empty_file_has_no_lines(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "f").write_bytes(content)
    assert read_lines(tmp_path / "f") == []


def test_bytes_that_are_not_utf8_are_reported_with_file_line_and_position(tmp_path: Path) -> None:
    path = tmp_path / "latin.tsv"
    path.write_bytes(b"a\tb\nni\xf1o\tboy\n")
    with pytest.raises(DataError, match=r"latin\.tsv, line 2: not UTF-8 \(byte 3 of the line\)"):
        read_lines(path)


GZIPPED = gzip.compress(bytes(range(256)) * 8)


@pytest.mark.parametrize(
    "content",
    [b"plain text\n", GZIPPED[:40], GZIPPED[:20] + b"\xff" * 20 + GZIPPED[40:]],
    ids=["not gzip", "truncated", "damaged"],
)
def test_a_file_named_gz_must_be_valid_gzip(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "f.gz").write_bytes(content)
    with pytest.raises(DataError, match=r"cannot read .*f\.gz"):
        read_lines(tmp_path / "f.gz")


def test_a_missing_file_and_a_folder_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read .*nothing\.txt: No such file"):
        read_lines(tmp_path / "nothing.txt")
    with pytest.raises(DataError, match="cannot read"):
        read_lines(tmp_path)


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


class Arriving(io.BytesIO):
    """A stream of parts, of which one read returns one."""

    def __init__(self, *parts: bytes) -> None:
        super().__init__()
        self.parts = list(parts)

    def read1(self, size: int | None = -1, /) -> bytes:
        return self.parts.pop(0) if self.parts else b""


def test_lines_are_yielded_as_they_arrive() -> None:
    stream = Arriving(b"\xef\xbb\xbfa\r\nb\n\xc3", b"\xa9", b"\n\n\xef\xbb\xbf", b"x\ny\nz\nlast")
    chunks = list(arriving_lines(stream, "standard input", 2))
    assert chunks == [["a", "b"], ["é", ""], ["\ufeffx", "y"], ["z"], ["last"]]
    assert list(arriving_lines(Arriving(), "standard input", 2)) == []


def test_a_stream_that_does_not_block_is_read_to_its_end() -> None:
    read, write = os.pipe()
    os.set_blocking(read, False)
    with os.fdopen(read, "rb") as stream:
        chunks = arriving_lines(stream, "standard input", 9)
        writer = threading.Timer(0.2, lambda: (os.write(write, b"a\n"), os.close(write)))
        writer.start()
        assert list(chunks) == [["a"]]


def test_a_line_that_is_not_utf8_is_counted_from_the_start() -> None:
    lines = arriving_lines(Arriving(b"a\nb\n", b"c\nd\xff\n"), "standard input", 9)
    assert next(lines) == ["a", "b"]
    with pytest.raises(DataError, match="standard input, line 4: not UTF-8 \\(byte 2 of the line"):
        next(lines)


LONGEST = 1 << 20


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_line_of_a_megabyte_is_read_and_a_longer_one_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"lines{suffix}"
    write = gzip.compress if suffix else bytes
    lines = ["a" * LONGEST, "é" * (LONGEST // 2), "b"]
    path.write_bytes(write("\n".join(lines).encode()))
    assert read_lines(path) == lines
    for tail in (b"", b"\nd\n"):
        path.write_bytes(write(b"a\nb\n" + b"c" * (LONGEST + 1) + tail))
        with pytest.raises(DataError, match=r"lines.*, line 3: longer than 1,048,576 bytes; split"):
            read_lines(path)


def test_a_stream_without_line_ends_is_refused() -> None:
    endless = Arriving(b"a\n", *[b"b" * LONGEST] * 3)
    lines = arriving_lines(endless, "standard input", 9)
    with pytest.raises(DataError, match="standard input, line 2: longer than 1,048,576 bytes"):
        list(lines)
    assert len(endless.parts) == 1


@pytest.mark.parametrize("command", ["translate", "train"])
def test_a_gzip_bomb_is_refused_before_it_fills_the_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, folders: list[Path]
) -> None:
    bomb, line = tmp_path / "bomb.gz", b"a\tb" + b" " * 4000 + b"\n"
    bomb.write_bytes(gzip.compress(line * 4000) * 16)  # 256 MB
    assert bomb.stat().st_size < 1 << 19
    calls = {
        "translate": ["translate", str(folders[0]), str(bomb)],
        "train": ["train", "--data.train", str(bomb), "--out", str(tmp_path / "out")],
    }
    assert main(calls[command]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "bomb.gz expands to more than 100 times its size" in error


def test_files_with_nul_bytes_or_carriage_returns_only_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "f.tsv"
    path.write_bytes("a\tx\nb\ty\n".encode("utf-16-le"))
    with pytest.raises(DataError, match=r"line 1: contains a NUL byte, as UTF-16 does; convert"):
        read_lines(path)
    path.write_bytes(b"a\tx\nb\0\ty\n")
    with pytest.raises(DataError, match=r"line 2: contains a NUL byte"):
        read_lines(path)
    with pytest.raises(DataError, match="standard input: its lines end at CR; convert"):
        list(arriving_lines(Arriving(b"a\r", b"b\r"), "standard input", 9))
    for count in (3, 1 << 19):
        path.write_bytes(b"a\tx\r" * count)
        with pytest.raises(DataError, match=r"f\.tsv: its lines end at CR; convert"):
            read_lines(path)


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress, bz2.compress])
def test_a_compressed_file_without_its_suffix_is_not_called_utf16(
    tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "f.tsv"
    path.write_bytes(compress(b"a\tx\n"))
    with pytest.raises(DataError, match=r"f\.tsv is compressed; decompress it, or give a gzip"):
        read_lines(path)


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
