"""Atomic writes, locks and checks of output paths, and JSON."""

import contextlib
import errno
import gzip
import json
import os
import re
import secrets
import shutil
import sys
import tempfile
import zlib
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any, TextIO

import filelock

from regard.errors import ConfigError, DataError, RegardError

_TEMPORARY_STEM = re.compile(r"\.[0-9a-f]{16}")
"""Names of temporary files, before the suffix: 8 random digits, and a hash of the name of the file."""

_DESCRIPTOR = re.compile(r"/dev/(stdin|stdout|stderr)|(?:/dev|/proc/self)/fd/(\d+)")
"""Paths of descriptors."""


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
        with _device_errors_reported(path):
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
    temporary = _temporary(path)
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
        with contextlib.suppress(OSError):  # the file is written; some folders cannot be opened
            _synchronize(path.parent)
    except BrokenPipeError:  # raised by another stream inside the block
        raise DataError(
            f"{path} was not written, because the reader of standard output has closed it"
        ) from None
    except OSError as error:
        remedy = _remedy(error, "choose another path")
        failed = path if _output_works() else "standard output"  # also written inside the block
        raise DataError(f"cannot write {failed}: {error.strerror}; {remedy}") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


@contextlib.contextmanager
def _device_errors_reported(path: Path) -> Generator[None]:
    """Raise a DataError for a failure to write to a device, except if the reader of a pipe has closed it."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}; choose another path") from None


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


def reason_of(error: OSError) -> str:
    """Return why a file cannot be read or written; of several files that are copied, the first."""
    copied = error.args[0] if isinstance(error, shutil.Error) and error.args else None
    if isinstance(copied, list) and copied:
        number = re.match(r"\[Errno (\d+)\]", str(copied[0][-1]))
        return os.strerror(int(number[1])) if number else str(copied[0][-1])
    return error.strerror or str(error)


def _remedy(error: OSError, other: str) -> str:
    """Return what to do about a failure to write: `other`, or to free space if the disk is full."""
    return f"free space on its disk, or {other}" if error.errno == errno.ENOSPC else other


@contextlib.contextmanager
def write_errors_reported(folder: Path) -> Generator[None]:
    """Raise a ConfigError for a failure to write in an output folder."""
    try:
        yield
    except OSError as error:
        remedy = _remedy(error, "choose another folder (out)")
        raise ConfigError(f"cannot write {folder}: {reason_of(error)}; {remedy}") from None


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


def _temporary(path: Path) -> Path:
    """Return a path for a temporary file, with the same suffix and a name that is short enough."""
    return path.parent / f".{secrets.token_hex(4)}{_name_hash(path.name)}{path.suffix}"


def _name_hash(name: str) -> str:
    return f"{zlib.crc32(os.fsencode(name)):08x}"


def remove_temporary_files(folder: Path, names: Iterable[str] | None = None) -> None:
    """Remove temporary files of `atomic_write` that a killed process has left in a folder.

    Args:
        folder: the folder.
        names: the files that the process was writing; None for all. Another process may be writing others.
    """
    hashes = None if names is None else {_name_hash(name) for name in names}
    for path in folder.iterdir():
        if is_temporary(path) and (hashes is None or path.stem[-8:] in hashes):
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
            temporary = _temporary(path)
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


def check_chart_suffix(path: str | Path) -> None:
    """Raise a ConfigError if a chart cannot be saved in the format that the suffix of `path` stands for."""
    if Path(path).suffix.lower() not in (".html", ".png", ".svg", ".pdf", ".json"):
        raise ConfigError(
            f"a chart is saved as .html, .png, .svg, .pdf or .json, got {str(path)!r}; "
            "give the file one of these suffixes"
        )


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


@contextlib.contextmanager
def atomic_folder(out: str | Path) -> Generator[Path]:
    """Yield a new folder that takes the path `out` when the block ends without an error.

    Raises:
        ConfigError: `out` is not empty, or cannot be written.
        RegardError: any error in the block, whose message then names `out` instead of the new folder.
    """
    out = Path(os.path.realpath(require_empty_folder(Path(out))))
    place = out if out.exists() else out.parent  # which may be write-protected around a mount point
    with write_errors_reported(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".", dir=place) as temporary:
            folder = Path(temporary) / out.name
            folder.mkdir()
            try:
                yield folder
            except RegardError as error:
                message = str(error)
                if str(folder) not in message:
                    raise
                raise type(error)(message.replace(str(folder), str(out))) from error
            _move_folder(folder, out)


def _move_folder(folder: Path, out: Path) -> None:
    """Give a folder the path of another one, which was empty or did not exist.

    Raises:
        ConfigError: another process has written `out` in the meantime.
    """
    if not out.exists():
        folder.rename(out)
        return
    parts = [*folder.iterdir()]
    if any((out / part.name).exists() for part in parts):
        raise ConfigError(f"another process has written {out}; choose another folder (out)")
    for part in parts:  # `out` may be a mount point, which cannot be replaced
        shutil.move(part, out)


def write_text(path: str | Path, text: str) -> None:
    """Write `text` as UTF-8 with LF line endings, atomically; compress it if `path` is named .gz."""
    content = text.encode("utf-8")
    if Path(path).suffix.lower() == ".gz":
        content = gzip.compress(content)
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)


@contextlib.contextmanager
def open_output(path: str | None) -> Generator[TextIO | None]:
    """Open a file that replaces `path` when the block ends, compressed if it is named .gz.

    Yield None if there is no path.
    """
    if path is None:
        yield None
        return
    open_text: Any = gzip.open if path.lower().endswith(".gz") else open
    with (
        atomic_write(path) as temporary,
        open_text(temporary, "wt", encoding="utf-8", newline="\n") as file,
    ):
        yield file


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
