"""Atomic writes, and reading text files as lines, with or without BOM, CRLF and gzip."""

import contextlib
import errno
import gzip
import io
import json
import os
import re
import secrets
import select
import shutil
import sys
import tempfile
import zlib
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

import filelock

from regard.errors import ConfigError, DataError

_READ_BYTES = 1 << 20
"""Bytes read at once, which is also the maximum length of a line."""

_EXPANDED_BYTES, _EXPANSION = 1 << 26, 100
"""A gzip file that expands to more than both this many bytes and this many times its size is refused."""

_COMPRESSED = (b"\x1f\x8b", b"PK\x03\x04", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"BZh91AY&SY")
"""The first bytes of gzip, zip, xz, zstd and bzip2 files."""

_TEMPORARY_STEM = re.compile(r"\.[0-9a-f]{16}")
"""Names of temporary files, before the suffix."""

_DESCRIPTOR = re.compile(r"/dev/(stdin|stdout|stderr)|(?:/dev|/proc/self)/fd/(\d+)")
"""Paths of descriptors."""

_CR_ONLY = "{}: its lines end at CR; convert them to end at LF first"

_MOMENT = 0.01
"""Seconds to wait for the next part of a stream that is written without a pause."""


@contextlib.contextmanager
def atomic_write(path: str | Path) -> Generator[Path]:
    """Yield a temporary path that replaces `path` when the block ends without an error.

    The content reaches the disk before it replaces `path`, so that a crash leaves either the old file
    or the new one, which has the permissions of the old one. Missing parent folders are created. A
    symbolic link is followed. A device or a pipe is written to directly; if `path` is the file that
    standard output is redirected to, or names a descriptor, such as /dev/stderr, the content is
    appended. The temporary file has the suffix of `path`, on which some writers depend.

    Raises:
        DataError: `path` cannot be written.
    """
    path = Path(path)
    # os.path.exists instead of Path.exists, which raises an error for a name that is too long
    if os.path.exists(path) and not path.is_file() and not path.is_dir():
        # a device or a pipe, such as /dev/stdout, must not be replaced
        yield path
        return
    if _is_standard_output(path):  # the file to which other output is redirected
        with tempfile.TemporaryDirectory() as folder:
            temporary = Path(folder) / path.name
            yield temporary
            sys.stdout.flush()
            with temporary.open("rb") as content:
                shutil.copyfileobj(content, sys.stdout.buffer)
        return
    if is_descriptor(path):
        with tempfile.TemporaryDirectory() as folder:
            temporary = Path(folder) / path.name
            yield temporary
            _append(temporary, path)
        return
    path = Path(os.path.realpath(path))  # not resolve, which fails at a loop before Python 3.13
    if os.path.isdir(path):
        raise DataError(f"cannot write {path}: it is a folder; choose another path")
    temporary = path.parent / f".{secrets.token_hex(8)}{path.suffix}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch(exist_ok=False)
        if path.exists():
            if not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            with contextlib.suppress(OSError):  # some file systems have no permissions
                _copy_owner(path, temporary)
                shutil.copymode(path, temporary)
        yield temporary
        _synchronize(temporary)
        os.replace(temporary, path)
        _synchronize(path.parent)
    except BrokenPipeError:  # raised by another stream inside the block
        raise DataError(
            f"{path} was not written, because the reader of standard output has closed it"
        ) from None
    except OSError as error:
        full = error.errno == errno.ENOSPC
        remedy = "free space on its disk, or choose another path" if full else "choose another path"
        failed = path if _output_works() else "standard output"  # also written inside the block
        raise DataError(f"cannot write {failed}: {error.strerror}; {remedy}") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _copy_owner(path: Path, other: Path) -> None:
    """Give another file the owner and the group of `path`, as far as the user may."""
    if os.name != "posix":
        return
    status = path.stat()
    for owner in ((status.st_uid, -1), (-1, status.st_gid)):
        with contextlib.suppress(OSError):
            os.chown(other, *owner)


def _output_works() -> bool:
    """Return whether standard output accepts what is still to be written to it."""
    try:
        sys.stdout.flush()
    except OSError:
        return False
    except (ValueError, AttributeError):  # it is closed
        pass
    return True


def _is_standard_output(path: Path) -> bool:
    """Return whether the path names the file that standard output is redirected to."""
    try:
        return os.path.samestat(path.stat(), os.fstat(sys.stdout.fileno()))
    except (OSError, ValueError, AttributeError):  # no such file, or no descriptor
        return False


def is_descriptor(path: str | Path) -> bool:
    """Return whether the path names a descriptor of this process, such as /dev/stdin or /dev/fd/3."""
    return _DESCRIPTOR.fullmatch(str(path)) is not None


def _append(content: Path, path: Path) -> None:
    """Write the content of a file to the descriptor that a path names."""
    match = _DESCRIPTOR.fullmatch(str(path))
    assert match is not None
    number = int(match[2] or ("stdin", "stdout", "stderr").index(match[1]))
    try:
        # the path would have an offset of its own, at which later output would overwrite the content
        with content.open("rb") as source, os.fdopen(os.dup(number), "wb") as file:
            shutil.copyfileobj(source, file)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}; choose another path") from None


@contextlib.contextmanager
def write_errors_reported(folder: Path) -> Generator[None]:
    """Raise a ConfigError for a failure to write in an output folder."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"cannot write {folder}: {error.strerror}; choose another folder (out)"
        ) from None


@contextlib.contextmanager
def exclusive(folder: Path, path: Path) -> Generator[None]:
    """Hold an exclusive lock on a file, which is created if it is missing, for training in `folder`.

    Raises:
        ConfigError: another process holds the lock, or the file cannot be written.
    """
    lock = filelock.FileLock(path)
    with write_errors_reported(folder):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            raise ConfigError(
                f"another process is training {folder}; wait for it to end, or choose another folder (out)"
            ) from None
    try:
        yield
    finally:
        lock.release()


def remove_temporary_files(folder: Path) -> None:
    """Remove temporary files of `atomic_write` that a killed process has left in a folder."""
    for path in folder.iterdir():
        if is_temporary(path):
            path.unlink()


def is_temporary(path: Path) -> bool:
    """Return whether a path is named like the temporary files of `atomic_write`."""
    return _TEMPORARY_STEM.fullmatch(path.stem) is not None


def replace_links(paths: Iterable[Path]) -> None:
    """Replace symbolic links to files by copies, which can be written safely, and remove those to nothing."""
    for path in paths:
        if not path.is_symlink():
            continue
        if path.is_file():
            temporary = path.parent / f".{secrets.token_hex(8)}{path.suffix}"
            shutil.copyfile(path, temporary)
            _synchronize(temporary)
            os.replace(temporary, path)
        elif not path.exists():
            path.unlink()


def _synchronize(path: Path) -> None:
    """Wait until a file or a folder is on the disk."""
    if os.name == "nt" and path.is_dir():  # folders cannot be opened there
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_parent(path: str | Path) -> None:
    """Raise a ConfigError if `path` cannot be created: what should contain it is a file or cannot be written."""
    if os.path.exists(path):
        return
    parent = Path(os.path.realpath(path)).parent
    while not os.path.exists(parent):
        parent = parent.parent
    if not os.path.isdir(parent):
        raise ConfigError(f"cannot write {path}: {parent} is not a folder; choose another path")
    if not os.access(parent, os.W_OK):
        raise ConfigError(f"cannot write {path}: {parent} cannot be written; choose another path")


def require_empty_folder(path: Path, remedy: str = "choose another folder (out)") -> Path:
    """Return `path` if it does not exist or is an empty folder.

    Raises:
        ConfigError: `path` is a file or cannot be used, or the folder is not empty, in which case the
            message ends with `remedy`.
    """
    try:
        check_parent(path)
        exists = path.exists()
        if exists and not path.is_dir():
            raise ConfigError(f"{path} is a file; give a folder (out)")
        if exists and any(path.iterdir()):
            raise ConfigError(f"{path} exists and is not empty; {remedy}")
    except OSError as error:
        raise ConfigError(
            f"cannot use {path}: {error.strerror}; choose another folder (out)"
        ) from None
    return path


def write_text(path: str | Path, text: str) -> None:
    """Write `text` as UTF-8 with LF line endings, atomically; compress it if `path` is named .gz."""
    content = text.encode("utf-8")
    if Path(path).suffix.lower() == ".gz":
        content = gzip.compress(content)
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)


def write_json(path: str | Path, document: Any) -> None:
    """Write `document` as indented JSON, atomically."""
    write_text(path, json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def parse_json(text: str) -> Any:
    r"""Return the content of a JSON document.

    Raises:
        ValueError: it is malformed, or contains a lone surrogate (`\ud800`), which no output can contain.
    """
    document = json.loads(text)
    if "\\u" in text:
        json.dumps(document, ensure_ascii=False).encode()  # UnicodeEncodeError is a ValueError
    return document


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
