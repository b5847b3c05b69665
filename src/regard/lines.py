"""Reading text files and streams as lines, with or without BOM, CRLF and gzip."""

import gzip
import io
import os
import select
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from regard.errors import DataError

_READ_BYTES = 1 << 20
"""Bytes read at once, which is also the maximum length of a line."""

_EXPANDED_BYTES, _EXPANSION = 1 << 26, 100
"""A gzip file that expands to more than both this many bytes and this many times its size is refused."""

_COMPRESSED = (b"\x1f\x8b", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"BZh91AY&SY")
"""The first bytes of gzip, xz, zstd and bzip2 files."""
_ZIP = b"PK\x03\x04"
"""The first bytes of a ZIP archive."""

_CR_ONLY = "{}: its lines end at CR; convert them to end at LF first"

_T = TypeVar("_T")

_MOST_SQUARES = 1 << 25
"""Sum of the squared lengths of a part of the items: 1,000 lines of 183 characters."""

_MOMENT = 0.01
"""Seconds to wait for the next part of a stream that is written without a pause."""


def read_lines(path: str | Path) -> list[str]:
    """Return the lines of a UTF-8 text file, plain or gzip, without their line endings.

    Lines end at LF only; other Unicode separators are text. A CR before the LF and a byte order mark
    at the start are removed. A file of one line that contains a CR is refused, because its lines probably
    end at CR, and so is a file with NUL bytes, which UTF-16 contains. A line may have at most 1 MB, and a
    gzip file that expands to more than 64 MB may expand to at most 100 times its own size, so that no
    small file exhausts the memory.

    Raises:
        DataError: the file is missing, has the suffix .gz but is not gzip, is not UTF-8, exceeds a
            limit, or does not fit in memory.
    """
    try:
        lines = list(iterate_lines(path))
    except MemoryError:
        raise DataError(f"cannot read {path}: there is not enough memory for its lines") from None
    if len(lines) == 1 and "\r" in lines[0]:
        raise DataError(_CR_ONLY.format(path))
    return lines


def iterate_lines(path: str | Path) -> Iterator[str]:
    """Yield the lines of a text file, as `read_lines` defines them, without holding it in memory.

    Raises:
        DataError: as for `read_lines`, except that a line that ends at LF may contain CR.
    """
    try:
        for part in _decoded(_parts(Path(path)), str(path)):
            yield from part
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(f"cannot read {path}: {reason}") from None


def arriving_lines(stream: io.BufferedIOBase, name: str, most: int) -> Iterator[list[str]]:
    """Yield the lines of a stream as they arrive: all available lines, at most `most` at once.

    Lines are defined as in `read_lines`.

    Raises:
        DataError: as for `iterate_lines`.
    """

    def read() -> bytes:
        _has_more(
            stream, None
        )  # without waiting, a stream in non-blocking mode seems to have ended
        return stream.read1(_READ_BYTES)

    waiting: list[str] = []
    for lines in _decoded(iter(read, b""), name):
        waiting += lines
        while len(waiting) >= most:
            yield waiting[:most]
            del waiting[:most]
        if waiting and not _has_more(stream):
            yield waiting
            waiting = []
    if waiting:
        yield waiting


def chunks_of(
    items: Sequence[_T], most: int, length: Callable[[Any], float] = len
) -> Iterator[Sequence[_T]]:
    """Yield consecutive parts of at most `most` items, and of fewer if these are long.

    Attention weights take memory in proportion to the square of the length.
    """
    start, size = 0, 0
    for index, item in enumerate(items):
        square = length(item) ** 2
        if index > start and (index - start == most or size + square > _MOST_SQUARES):
            yield items[start:index]
            start, size = index, 0
        size += square
    if len(items) > start:
        yield items[start:]


def _parts(path: Path) -> Iterator[bytes]:
    """Yield the content of a file, plain or gzip, in parts."""
    with path.open("rb") as file:
        if path.suffix.lower() != ".gz":
            yield from iter(lambda: file.read(_READ_BYTES), b"")
            return
        total, most = 0, max(_EXPANDED_BYTES, _EXPANSION * os.fstat(file.fileno()).st_size)
        with gzip.GzipFile(fileobj=file) as expanded:
            while part := expanded.read(_READ_BYTES):
                total += len(part)
                if total > most:
                    raise DataError(
                        f"{path} expands to more than {_EXPANSION} times its size, unlike any text; "
                        "if it is text, decompress it first"
                    )
                yield part


def _decoded(parts: Iterator[bytes], name: str) -> Iterator[list[str]]:
    """Yield the lines of a text that arrives in parts of at most `_READ_BYTES` each."""
    rest, number = b"", 1
    for part in parts:
        content = rest + part
        if number == 1 and content.startswith(_ZIP):
            raise DataError(
                f"{name} is a ZIP archive, as an Excel workbook is; extract it, or save the sheet as text "
                "with TABs"
            )
        if number == 1 and content.startswith(_COMPRESSED):
            raise DataError(
                f"{name} is compressed; decompress it, or give a gzip file a name that ends in .gz"
            )
        # a part cannot contain a longer line: only the first line here can be longer
        if len(content) > _READ_BYTES and content.find(b"\n", 0, _READ_BYTES + 1) < 0:
            if number == 1 and b"\r" in content:
                raise DataError(_CR_ONLY.format(name))
            raise DataError(
                f"{name}, line {number}: longer than {_READ_BYTES:,} bytes; split it into shorter lines"
            )
        if (position := content.find(b"\0")) >= 0:
            line = number + content.count(b"\n", 0, position)
            raise DataError(
                f"{name}, line {line}: contains a NUL byte, as UTF-16 does; convert the file to UTF-8 first"
            )
        complete, newline, rest = content.rpartition(b"\n")
        lines = decode_lines(complete + newline, name, number)
        number += len(lines)
        yield lines
    if number == 1 and b"\r" in rest.removesuffix(b"\r"):
        raise DataError(_CR_ONLY.format(name))
    yield decode_lines(rest, name, number)


def _has_more(stream: io.BufferedIOBase, seconds: float | None = _MOMENT) -> bool:
    """Return whether more bytes, or the end, arrive within this time; None: wait without a limit."""
    try:
        return bool(select.select([stream], [], [], seconds)[0])
    except (OSError, ValueError):  # not a stream that can be waited for
        return False


def decode_lines(content: bytes, name: str, number: int = 1) -> list[str]:
    """Return the lines of UTF-8 `content`, the first of which is line `number` of `name`."""
    if number == 1:
        content = content.removeprefix(b"\xef\xbb\xbf")
    try:
        lines = content.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        preceding = content[: error.start].split(b"\n")
        raise DataError(
            f"{name}, line {number + len(preceding) - 1}: not UTF-8 (byte {len(preceding[-1]) + 1} of the line); "
            "convert the file to UTF-8 first"
        ) from None
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines]
