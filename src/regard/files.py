"""Files written whole or not at all, and text files read line by line whatever their dress."""

import contextlib
import gzip
import io
import os
import tempfile
import zlib
from collections.abc import Generator
from pathlib import Path

from regard.errors import ConfigError, DataError


@contextlib.contextmanager
def written_whole(path: str | Path) -> Generator[Path]:
    """Give a temporary path beside `path`; rename it to `path` when the block ends without error.

    A link is followed; a device or a pipe is written to as it is.

    Folders on the way are made. The temporary file keeps the suffix of `path`, which some writers
    look at.

    Raises:
        DataError: the place cannot be written.
    """
    path = Path(path)
    if path.exists() and not path.is_file() and not path.is_dir():
        # a device or a pipe, such as /dev/stdout, takes what it is given and must not be replaced
        yield path
        return
    path = path.resolve()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=path.suffix)
        os.close(handle)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}; choose another place") from None
    temporary = Path(name)
    try:
        yield temporary
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BrokenPipeError:  # of another stream that the block writes to
        raise
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}; choose another place") from None
    finally:
        temporary.unlink(missing_ok=True)


def claim_folder(path: Path) -> Path:
    """A folder to write into: one that does not exist yet, or is empty.

    Raises:
        ConfigError: it holds something, or is a file.
    """
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{path} is a file; give a folder as --out")
    if path.exists() and any(path.iterdir()):
        raise ConfigError(f"{path} exists and is not empty; choose another --out")
    return path


def write_text(path: str | Path, text: str) -> None:
    """Write `text` as UTF-8 with LF line ends, whole or not at all."""
    with written_whole(path) as temporary:
        temporary.write_bytes(text.encode("utf-8"))


def read_lines(path: str | Path) -> list[str]:
    """The lines of a UTF-8 text file, gzipped or not, without their ends.

    Lines end at LF only (other Unicode separators are text); a CR before it and a byte order mark
    at the start are dropped.

    Raises:
        DataError: the file is missing, is not gzip though named .gz, or is not UTF-8.
    """
    try:
        with _open_bytes(Path(path)) as stream:
            content = stream.read()
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(f"cannot read {path}: {reason}") from None
    return decode_lines(content, str(path))


def decode_lines(content: bytes, name: str) -> list[str]:
    """The lines of UTF-8 `content`; `name` stands in the error for the file it came from."""
    lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if not lines[-1]:
        lines.pop()
    decoded: list[str] = []
    for number, line in enumerate(lines, start=1):
        try:
            decoded.append(line.removesuffix(b"\r").decode("utf-8"))
        except UnicodeDecodeError as error:
            raise DataError(
                f"{name}, line {number}: not UTF-8 (byte {error.start + 1} of the line); "
                "convert the file to UTF-8 first"
            ) from None
    return decoded


def _open_bytes(path: Path) -> io.BufferedIOBase:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
