"""Rows of Parquet, JSONL and CSV files, read with Hugging Face's `datasets` and memory-mapped."""

import contextlib
import csv
import errno
import glob
import hashlib
import json
import os
import re
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from regard.config import DataConfig
from regard.errors import DataError, ExtraError, is_utf8, quantity
from regard.files import write_text
from regard.version import __version__

if TYPE_CHECKING:
    from datasets import Dataset, Features

_JSONL = "text"
"""The name of the only column of a JSONL file as it is read: one document per line."""

ROWS_AT_ONCE = 10_000
"""Number of rows of a table that are read at once."""

_MOST_CHARACTERS = 1 << 26
"""Maximum number of characters in a CSV field, which extends to the end of the file without a closing
quotation mark."""
_field_limit = threading.Lock()
"""Held while the limit of the module `csv`, which is global, is another one."""
_NUL = "contains a NUL character"
_KINDS = {str: "text", bool: "true or false", int: "a number", float: "a number"}


class Row(NamedTuple):
    """The fields of one row, empty where the file has none."""

    source: str = ""
    target: str = ""
    features: str | None = None
    """None if no column of features is specified."""
    fault: str | None = None
    """Why the row cannot be read."""


def is_table(path: str) -> bool:
    """Return whether the path has the suffix of a Parquet, JSONL or CSV file."""
    return _format(path) in (".parquet", ".jsonl", ".csv")


def matching_files(path: str) -> list[str]:
    """Return the file with this path, or the files that match it as a pattern, in alphabetical order."""
    return [path] if Path(path).exists() else sorted(glob.glob(path))


def load(path: str, data: DataConfig) -> "Dataset":
    """Return the rows of a file, memory-mapped from the cache of `datasets`.

    The file is converted on first use, and again when its contents have changed. Nothing is downloaded or
    executed.

    Args:
        path: the file, or a pattern that matches several files, which are read in alphabetical order.
        data: names of the columns.

    Raises:
        ExtraError: `datasets` is not installed.
        DataError: the file cannot be read, or a column is missing or does not contain text.
    """
    try:
        from datasets import Dataset, config
    except ImportError:
        raise ExtraError(f"{path} needs the package datasets: pip install 'regard[data]'") from None
    if path.lower().endswith(".gz"):
        raise DataError(f"{path}: decompress it first, because a table is memory-mapped")
    names = column_names(path, data)
    files = matching_files(path)
    with reading(path):
        if not files:
            raise FileNotFoundError(2, "No such file or directory")
        kind = _format(path)
        for file in files if kind != ".csv" else []:
            _check_file(file, names, kind)
        # the cache distinguishes files only by name and time
        folder = Path(config.HF_DATASETS_CACHE) / "regard" / checksum_of(files)[:32]
    # `datasets` accepts patterns and addresses such as zip://… too
    escaped: list[Any] = [glob.escape(os.path.abspath(file)) for file in files]
    options: dict[str, Any] = {"cache_dir": str(folder)}
    with reading(path, folder):
        if kind == ".jsonl":
            rows = Dataset.from_text(
                escaped, features=_texts([_JSONL]), encoding="utf-8-sig", **options
            )
            _require_features(rows, path, data)
        elif kind == ".parquet":
            rows = Dataset.from_parquet(escaped, columns=names, features=_texts(names), **options)
        else:
            columns = [data.source_column, data.target_column, data.features_column]
            key = json.dumps([__version__, columns])
            rows = Dataset.from_generator(
                lambda: (row._asdict() for file in files for row in _csv_rows(file, columns)),
                features=_texts(Row._fields),
                fingerprint=hashlib.sha256(key.encode()).hexdigest()[:32],
                **options,
            )
        verify(rows)
        return rows


def cache_folder(dataset: "Dataset") -> Path | None:
    """Return the cache folder that contains a dataset; None for a dataset in memory."""
    files = dataset.cache_files
    return Path(files[0]["filename"]).parent if files else None


def verify(dataset: "Dataset") -> None:
    """Compare the cached files with their checksums, which are written on first use.

    Raises:
        ValueError: a file differs from its checksum.
    """
    for entry in dataset.cache_files:
        checksum = Path(entry["filename"] + ".sha256")
        found = checksum_of([entry["filename"]])
        if not checksum.exists():
            write_text(checksum, found)
        elif checksum.read_bytes() != found.encode():
            raise ValueError("a checksum differs")


def column_names(path: str, data: DataConfig) -> list[str]:
    """Return the names of the columns that are read, each once.

    Raises:
        DataError: the column of features is specified by its number.
    """
    if isinstance(data.features_column, int):
        raise DataError(
            f"{path}: columns are identified by name, got data.features_column {data.features_column}; "
            "give the name of the column, or a TSV file"
        )
    names = (data.source_column, data.target_column, data.features_column)
    return list(dict.fromkeys(name for name in names if name is not None))


def iterate(path: str, data: DataConfig) -> Iterator[Row]:
    """Yield the rows of a file, as `load` reads it.

    Raises:
        DataError: as for `load`, or a row cannot be read.
    """
    table = load(path, data)
    with reading(path, cache_folder(table)):
        for start in range(0, len(table), ROWS_AT_ONCE):
            yield from rows(table[start : start + ROWS_AT_ONCE], path, data)


def places(path: str, data: DataConfig, numbers: Sequence[int]) -> list[str]:
    """Return the file and the row in it for every row number, in order; nothing if only one file matches."""
    files = matching_files(path)
    if len(files) == 1 or not numbers:
        return ["" for _ in numbers]
    found: list[str] = []
    before, end = 0, 0
    for file in files:
        before, end = end, end + _count_rows(file, data)
        while len(found) < len(numbers) and numbers[len(found)] <= end:
            found.append(f" ({file}, row {numbers[len(found)] - before:,})")
        if len(found) == len(numbers):
            break
    return found


def _count_rows(file: str, data: DataConfig) -> int:
    kind = _format(file)
    if kind == ".parquet":
        from pyarrow import parquet

        return parquet.read_metadata(os.path.abspath(file)).num_rows
    if kind == ".csv":
        return sum(1 for _ in _csv_rows(file, column_names(file, data)))
    with open(file, encoding="utf-8-sig") as lines:
        return sum(1 for _ in lines)


def rows(batch: Mapping[str, Sequence[Any]], path: str, data: DataConfig) -> list[Row]:
    """Return the rows in a batch of the dataset that `load` returns."""
    if _format(path) == ".jsonl":
        return [_parse_line(line, data) for line in batch[_JSONL]]
    if _format(path) == ".csv":
        return [Row(*row) for row in zip(*(batch[name] for name in Row._fields), strict=True)]
    sources, targets = batch[data.source_column], batch[data.target_column]
    if data.features_column is None:
        return [_row(s, t) for s, t in zip(sources, targets, strict=True)]
    features = batch[str(data.features_column)]
    return [_row(s, t, f or "") for s, t, f in zip(sources, targets, features, strict=True)]


def _row(source: str | None, target: str | None, features: str | None = None) -> Row:
    """Return the row with these fields."""
    if any("\0" in (field or "") for field in (source, target, features)):
        return Row(fault=_NUL)
    return Row(source or "", target or "", features)


@contextlib.contextmanager
def reading(path: str, cache: Path | None = None) -> Generator[None]:
    """Silence `datasets`, and raise its errors as a DataError.

    Args:
        path: the file, which is stated in the message.
        cache: the folder to delete, according to the message, if the rows in it cannot be read.
    """
    from datasets.exceptions import DatasetGenerationError
    from datasets.utils import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
        logging,
    )

    verbosity, silent = logging.get_verbosity(), are_progress_bars_disabled()
    logging.set_verbosity(logging.CRITICAL)
    disable_progress_bars()
    try:
        yield
    except DataError:
        raise
    except Exception as error:  # the readers of the formats raise many kinds
        if "corresponds to no data" in str(error):
            raise DataError(
                f"{path} contains no pair; expected rows of source and target"
            ) from None
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        if isinstance(cause, DataError):
            raise cause from None
        if isinstance(cause, UnicodeDecodeError):
            place = _place_of_other_bytes(path)
            raise DataError(f"{place}: not UTF-8; convert the file to UTF-8 first") from None
        reason = getattr(cause, "strerror", None) or str(cause).strip() or type(cause).__name__
        unreadable = isinstance(cause, ValueError) or (
            isinstance(cause, OSError) and cause.errno in (None, errno.ENOENT)
        )
        if (isinstance(cause, OSError) and cause.errno == errno.ENOSPC) or "disk space" in reason:
            from datasets import config

            raise DataError(
                f"cannot write the cache of {path} in {config.HF_DATASETS_CACHE}: No space left on "
                "device; free space there, or set HF_DATASETS_CACHE to a folder on another disk"
            ) from None
        if cache is not None and unreadable and not isinstance(error, DatasetGenerationError):
            raise DataError(
                f"the cache of {path} is damaged ({reason.splitlines()[0]}); delete {cache}"
            ) from None
        file = getattr(cause, "filename", None)  # a file in the cache
        where = f" ({file})" if file and file != path else ""
        raise DataError(f"cannot read {path}: {reason.splitlines()[0]}{where}") from None
    finally:
        logging.set_verbosity(verbosity)
        if not silent:
            enable_progress_bars()


def _format(path: str) -> str:
    return Path(path.lower().removesuffix(".gz")).suffix


def checksum_of(files: Sequence[str]) -> str:
    """Return a SHA-256 of the contents of the files."""
    digest = hashlib.sha256()
    for name in files:
        with open(name, "rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _texts(names: Iterable[str]) -> "Features":
    """Return columns of text with these names."""
    import datasets

    return datasets.Features({name: datasets.Value("string") for name in names})


def _check_file(file: str, names: Sequence[str], kind: str) -> None:
    """Raise a DataError if a file cannot contain pairs, or if `datasets` would not find it."""
    path = os.path.abspath(file)
    variable = path != os.path.expandvars(path)
    if variable or "::" in path:
        part = "a variable, such as $HOME" if variable else "::"
        raise DataError(f"{file}: its path contains {part}, which is not supported; rename it")
    if kind == ".parquet":
        _check_parquet(file, names)
    if not Path(file).stat().st_size:
        raise DataError(f"{file} contains no pair; expected rows of source and target")


def _check_parquet(file: str, names: Sequence[str]) -> None:
    """Raise a DataError if a column is missing or contains no text, or if there is no row."""
    import pyarrow as pa
    from pyarrow import parquet

    path = os.path.abspath(file)  # or it could be read as an address
    schema = parquet.read_schema(path)
    _require_columns(file, schema.names, names)
    for name in names:
        kind = schema.field(name).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
        if not any(is_text(kind) for is_text in texts):
            raise DataError(
                f"{file}: column {name} contains {kind} values, not text; convert it to strings first"
            )
    if not parquet.read_metadata(path).num_rows:
        raise DataError(f"{file} contains no pair; expected rows of source and target")


def _require_features(rows: "Dataset", path: str, data: DataConfig) -> None:
    """Raise a DataError if the column of features is a field of no JSON object; in some, it may be missing."""
    name, has_objects = data.features_column, False
    for start in range(0, 0 if name is None else len(rows), ROWS_AT_ONCE):
        for line in rows[start : start + ROWS_AT_ONCE][_JSONL]:
            try:
                document = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(document, dict) and document:
                if name in document:
                    return
                has_objects = True
    if has_objects:
        raise DataError(
            f"{path}: no row has the field {name} (data.features_column); correct its name, or leave it out"
        )


def _require_columns(file: str, columns: Sequence[str], names: Iterable[str]) -> None:
    """Raise a DataError unless every name is the name of exactly one column."""
    for name in names:
        if name not in columns:
            raise DataError(
                f"{file} has no column {name}: its columns are {', '.join(columns)}; rename them, or "
                "train with --data.source_column, --data.target_column and --data.features_column"
            )
        if columns.count(name) > 1:
            raise DataError(f"{file} has {columns.count(name)} columns {name}; rename all but one")


def _csv_rows(file: str, columns: Sequence[str | int | None]) -> Iterator[Row]:
    """Yield the rows of a CSV file; rows that do not have one field per column have a fault.

    Raises:
        DataError: a column is missing, or a row of several lines is not valid CSV, so that the start
            of the next row is unknown.
    """
    with open(file, encoding="utf-8-sig", newline="") as lines:
        reader = csv.reader(lines, strict=True)
        header: list[str] | None = []
        while header == []:  # blank lines
            header = _next_row(reader, file)
        if header is None:
            raise DataError(f"{file} is empty; expected a line with the column names")
        names = [str(name) for name in columns if name is not None]
        if len(header) == 1 < len(names) and (separator := re.search("[;\t]", header[0])):
            found = "TABs" if separator[0] == "\t" else "semicolons"
            raise DataError(
                f"{file}: its columns are separated by {found}; separate them by commas"
            )
        _require_columns(file, header, names)
        indices = [None if name is None else header.index(str(name)) for name in columns]
        empty = True
        while True:
            line = reader.line_num + 1
            try:
                fields = _next_row(reader, file)
            except csv.Error as error:
                if reader.line_num > line:
                    raise DataError(
                        f"{file}: the row on lines {line:,} to {reader.line_num:,} is not valid CSV "
                        f"({error}); correct its quotation marks"
                    ) from None
                empty = False
                yield Row(fault=f"is not valid CSV ({error})")
                continue
            if fields is None:
                if empty:
                    raise DataError(f"{file} contains no pair; expected rows of source and target")
                return
            empty = empty and not fields
            yield _csv_row(fields, len(header), indices)


def _csv_row(fields: list[str], count: int, indices: Sequence[int | None]) -> Row:
    """Return the row with these fields, of which there should be `count`; a blank line has none."""
    if not fields:
        return Row()
    if len(fields) != count:
        return Row(fault=f"has {quantity(len(fields), 'field')}, expected {count}")
    return _row(*(None if i is None else fields[i] for i in indices))


def _next_row(reader: Any, file: str) -> list[str] | None:
    """Return the next row of a CSV file; None after the last one.

    Raises:
        DataError: a field is longer than `_MOST_CHARACTERS`, so that the start of the next row is unknown.
        csv.Error: the row is not valid CSV.
    """
    line = reader.line_num + 1
    try:
        with _field_limit:
            limit = csv.field_size_limit(_MOST_CHARACTERS)
            try:
                return next(reader, None)
            finally:
                csv.field_size_limit(limit)
    except csv.Error as error:
        if "field larger than" not in str(error):
            raise
        raise DataError(
            f"{file}: the row on line {line:,} has a field of more than {_MOST_CHARACTERS:,} "
            "characters; correct its quotation marks, or remove it"
        ) from None


def _unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object as a dict; raise a DataError if it has a field twice."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise DataError(f"has {names.count(repeated)} fields {repeated}")
    return fields


def _place_of_other_bytes(path: str) -> str:
    """Return `FILE, line N`, the first line that is not UTF-8; only the path if it is not in a file of text."""
    for name in matching_files(path):
        if Path(name).suffix.lower() not in (".csv", ".json", ".jsonl"):
            continue
        with contextlib.suppress(OSError), open(name, "rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    line.decode("utf-8")
                except UnicodeDecodeError:
                    return f"{name}, line {number:,}"
    return path


def _parse_line(line: str, data: DataConfig) -> Row:
    """Return the row of one JSON document."""
    if not line.strip():
        return Row()
    try:
        document = json.loads(line, object_pairs_hook=_unique_fields)
    except DataError as error:
        return Row(fault=str(error))
    except (ValueError, RecursionError):
        return Row(fault="is not valid JSON")
    if not isinstance(document, dict):
        return Row(fault="is not a JSON object")
    fields: list[str] = []
    for column in ("source_column", "target_column", "features_column"):
        name: str | None = getattr(data, column)
        if document and name not in document and column != "features_column":
            return Row(fault=f"has no field {name} (data.{column})")
        value = "" if name is None else document.get(name)
        value = "" if value is None else value
        if not isinstance(value, str):
            kind = _KINDS.get(type(value), "a list or an object")
            return Row(fault=f"has {kind} as {name}, expected text")
        if not is_utf8(value):
            return Row(fault=f"has a lone surrogate in {name}")
        if "\0" in value:
            return Row(fault=_NUL)
        fields.append(value)
    return Row(fields[0], fields[1], None if data.features_column is None else fields[2])
