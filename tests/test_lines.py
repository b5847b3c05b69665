import bz2
import gzip
import io
import itertools
import lzma
import os
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.cli.main import main
from regard.errors import DataError
from regard.lines import arriving_lines, chunks_of, decode_lines, read_lines

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


def test_a_workbook_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "pairs.xlsx"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("xl/workbook.xml", "<workbook/>")
    with pytest.raises(
        DataError, match=r"pairs\.xlsx is a ZIP archive.*; extract it, or save the sheet"
    ):
        read_lines(path)


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress, bz2.compress])
def test_a_compressed_file_without_its_suffix_is_not_called_utf16(
    tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / "f.tsv"
    path.write_bytes(compress(b"a\tx\n"))
    with pytest.raises(DataError, match=r"f\.tsv is compressed; decompress it, or give a gzip"):
        read_lines(path)


@given(st.lists(st.sampled_from([0, 1, 3000, 5000, 8000, 9000]), max_size=20), st.integers(1, 5))
def test_parts_have_few_items_and_fewer_if_these_are_long(lengths: list[int], most: int) -> None:
    parts = [list(part) for part in chunks_of(lengths, most, int)]
    assert [length for part in parts for length in part] == lengths
    for part, following in itertools.pairwise([*parts, []]):
        squares = [length**2 for length in (*part, *following[:1])]
        assert 1 <= len(part) <= most
        assert len(part) == 1 or sum(squares[: len(part)]) <= 2**25
        # a part ends where it is full
        assert not following or len(part) == most or sum(squares) > 2**25
