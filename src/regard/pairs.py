"""Reading pairs of a source and a target: files and lists in memory."""

import os
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from regard import table_files
from regard.config import DataConfig
from regard.errors import ConfigError, DataError, is_utf8, quantity
from regard.files import is_descriptor
from regard.lines import read_lines
from regard.text import format_source, remove_line_ending, split_features
from regard.text.normalization import MOST_MARKS, excess_mark

MAX_LISTED = 20
"""Number of bad lines that an error lists."""

_MOST_BYTES = 1 << 30
"""Size of the files above which they are not read again."""


class Pair(NamedTuple):
    """One source, its target, and the features of the source."""

    source: str
    target: str
    features: str | None = None
    """Features of the source, such as `V;PST`; None if it has none."""

    @property
    def key(self) -> tuple[str, str | None]:
        """The source and its features; the targets of pairs with the same key are its references."""
        return self.source, self.features

    @property
    def length(self) -> int:
        """Number of characters of the longer text."""
        return max(len(self.source), len(self.target))

    @property
    def folded_key(self) -> str:
        """The key of all sources that a tokenizer may read alike: in any case, Unicode form and spacing."""
        lowered = unicodedata.normalize("NFKC", self.source).lower()
        folded = "".join(unicodedata.normalize("NFKC", lowered).split())
        return format_source(
            (folded, " ".join(split_features(self.features or "", "NFKC")) or None)
        )


PairLike = tuple[str, str] | tuple[str, str, str | None]
"""(source, target) or (source, target, features), for example a `Pair`."""


class BadLine(NamedTuple):
    """A line that cannot be used."""

    number: int
    reason: str


class ParsedPairs(NamedTuple):
    """Pairs from a file or a list, and the lines that cannot be used as pairs."""

    name: str
    """Path of the file, or name of the list."""
    pairs: list[Pair]
    numbers: list[int]
    """Line number of each pair, from 1."""
    bad: list[BadLine]
    extra_columns: int = 0
    """Number of lines with further columns, which are ignored."""
    unit: str = "line"
    """What the numbers count: `line`, `row` of a table, or `pair` of a list."""
    file: str | None = None
    """The path that `read_pairs` has read; None if the pairs are not all those of a file."""

    def texts(self, name: Literal["source", "target"]) -> list[str]:
        """Return the sources or the targets."""
        return [getattr(pair, name) for pair in self.pairs]

    def select(self, indices: Sequence[int]) -> "ParsedPairs":
        """Return the pairs with these indices, and their line numbers."""
        return self._replace(
            pairs=[self.pairs[index] for index in indices],
            numbers=[self.numbers[index] for index in indices],
            file=None,
        )

    def require_valid(self, remedy: str | None) -> None:
        """Raise a DataError if there is no pair or, unless `remedy` is None, if there is a bad line."""
        require_valid(self.name, self.unit, self.bad, len(self.bad), len(self.pairs), remedy)


def require_valid(
    name: str, unit: str, listed: Sequence[BadLine], bad: int, valid: int, remedy: str | None
) -> None:
    """Raise a DataError if there is no pair or, unless `remedy` is None, if there is a bad line.

    Args:
        name: name of the file or list.
        unit: what the line numbers count.
        listed: the bad lines, or the first `MAX_LISTED` of them.
        bad: number of bad lines.
        valid: number of pairs.
        remedy: the end of the message about bad lines.
    """
    if bad and remedy is not None:
        more = bad - MAX_LISTED
        raise DataError(
            f"{name}: {bad:,} of {quantity(bad + valid, unit)} cannot be used: "
            f"{_by_reason(unit, listed[:MAX_LISTED])}{f'; and {more:,} more' if more > 0 else ''}; {remedy}"
        )
    if not valid:
        expected = {
            "line": "lines of source TAB target", "row": "rows of source and target",
            "pair": "pairs (source, target)",
        }[unit]  # fmt: skip
        reason = f" ({unit} {listed[0].number} {listed[0].reason})" if listed else ""
        raise DataError(f"{name} contains no pair{reason}; expected {expected}")


def _by_reason(unit: str, listed: Sequence[BadLine]) -> str:
    """Return a list of bad lines in which each reason occurs once."""
    numbers: dict[str, list[int]] = {}
    for number, reason in listed:
        numbers.setdefault(reason, []).append(number)
    parts: list[str] = []
    for reason, (first, *others) in numbers.items():
        same = f" (likewise {', '.join(map(str, others))})" if others else ""
        parts.append(f"{unit} {first} {reason}{same}")
    return "; ".join(parts)


def read_pairs(path: str | Path, data: DataConfig | None = None) -> ParsedPairs:
    """Read a TSV file (source TAB target), two parallel files `F.src,F.tgt`, or a table.

    TSV and parallel files may be compressed (`.gz`); they are UTF-8 with or without byte order mark,
    with LF or CRLF. A table is a Parquet, JSONL or CSV file. Lines whose source or target is missing or
    blank are listed in `bad`.

    Args:
        path: the file, or two files separated by a comma.
        data: names of the columns in a table, and the column with features of the source. For a TSV
            file, that column is a number, from 1; of the other columns, the first is the source and
            the second the target.

    Raises:
        DataError: a file cannot be read, or parallel files differ in length.
    """
    return _read(str(path), data or DataConfig())._replace(file=str(path))


def _read(path: str, data: DataConfig) -> ParsedPairs:
    if table_files.is_table(path):
        return _read_table(path, data)
    features_column = data.features_column
    if isinstance(features_column, str):
        raise DataError(
            f"{path}: columns are identified by number here, got data.features_column "
            f"{features_column}; give the number of the column, from 1, or a Parquet, JSONL or CSV file"
        )
    files = files_of(path)
    if len(files) > 2:
        raise DataError(
            f"{path} names {len(files)} files; expected one file, or two parallel files as F.src,F.tgt"
        )
    if len(files) == 2:
        if not all(files):
            raise DataError(
                f"{path}: a file name is missing; give two parallel files as F.src,F.tgt"
            )
        if features_column is not None:
            raise DataError(
                f"{path}: parallel files have no columns, so features_column {features_column} does "
                "not exist; give a TSV file"
            )
        return _read_parallel(path, *files)
    if path == "-" and not os.path.exists(path):
        raise DataError("- is no file of pairs; for standard input, give /dev/stdin")
    lines = read_lines(path)
    extra_columns = sum(line.count("\t") > 1 + (features_column is not None) for line in lines)
    columns = (split_line(line, features_column) for line in lines)
    return _parse(path, columns, features_column, extra_columns)


def files_of(path: str) -> list[str]:
    """Return the files that `read_pairs` reads: one, two parallel ones, or those that match a pattern."""
    if table_files.is_table(path):
        return table_files.matching_files(path)
    if os.path.exists(path):  # False for names that are too long
        return [path]
    return [name if os.path.exists(name) else name.strip() for name in path.split(",")]


def can_be_read_again(path: str) -> bool:
    """Return whether `read_pairs` can read the path a second time: files of at most 1 GiB."""
    files = [Path(name) for name in files_of(path)]
    return (
        bool(files)
        and all(file.is_file() and not is_descriptor(file) for file in files)
        and sum(file.stat().st_size for file in files) <= _MOST_BYTES
    )


def file_checksum(path: str) -> str | None:
    """Return a SHA-256 of the files that `read_pairs` reads; None if they cannot be read again."""
    try:
        return table_files.checksum_of(files_of(path)) if can_be_read_again(path) else None
    except OSError:
        return None


def refuse_pipes(*paths: str | None) -> None:
    """Raise a ConfigError for a pipe, which several models cannot read one after the other."""
    for path in filter(None, paths):
        if any(Path(file).is_fifo() for file in files_of(path)):
            raise ConfigError(
                f"{path} is a pipe, which can be read only once, but every model reads it; give a file"
            )


def require_named_columns(data: DataConfig, *paths: str | None) -> None:
    """Raise a ConfigError if the settings name columns, and none of the files has columns with names."""
    files = [path for path in paths if path]
    if not files or any(map(table_files.is_table, files)):
        return
    for name in ("source_column", "target_column"):
        if getattr(data, name) != getattr(DataConfig(), name):
            raise ConfigError(
                f"data.{name} names a column of a Parquet, JSONL or CSV file, and {files[0]} is read as "
                "lines of source TAB target: leave it out, or give such a file"
            )


def split_line(line: str, features_column: int | None) -> tuple[str, str | None, str | None]:
    """Return source, target and features of a line of a TSV file; None for columns that it lacks.

    `features_column` is the number of the column with the features, from 1.
    """
    fields, features = line.split("\t"), None
    if features_column is not None and len(fields) >= features_column:
        features = fields.pop(features_column - 1)
    return fields[0] if fields else "", fields[1] if len(fields) > 1 else None, features


def held_out_sources(count: int) -> int:
    """Return how many of `count` distinct sources are held out for validation if there are no dev pairs."""
    return min(1000, max(1, count // 20))


def group_by_source(
    pairs: Iterable[Pair],
) -> tuple[list[tuple[str, str | None]], list[list[str]]]:
    """Return the distinct sources with their features, and the distinct targets of each.

    Both keep the order of first occurrence.
    """
    targets: dict[tuple[str, str | None], dict[str, None]] = {}
    for pair in pairs:
        targets.setdefault(pair.key, {})[pair.target] = None
    return list(targets), [list(distinct) for distinct in targets.values()]


def to_pairs(items: Iterable[PairLike]) -> list[Pair]:
    """Return tuples of two or three fields as pairs, without line endings.

    Raises:
        DataError: an item has another number of fields, or a field that is not a string.
    """
    if not isinstance(items, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DataError(f"expected a list of pairs, got {items!r}")
    return [_to_pair(item, number) for number, item in enumerate(items, start=1)]


def _to_pair(item: Any, number: int) -> Pair:
    fields = None if isinstance(item, str | Mapping) or not isinstance(item, Iterable) else [*item]
    if fields is None or len(fields) not in (2, 3):
        raise DataError(
            f"expected (source, target) or (source, target, features) as pair {number:,}, got "
            f"{item!r}; for a DataFrame, pass zip(frame['source'], frame['target'])"
        )
    for name, field in zip(Pair._fields, fields, strict=False):
        if not isinstance(field, str) and (name != "features" or field is not None):
            raise DataError(f"expected a string as {name} of pair {number:,}, got {field!r}")
    # subclasses of str, as in NumPy's arrays, would be represented differently in fingerprints
    plain: list[Any] = [
        field if field is None else remove_line_ending(str.__str__(field)) for field in fields
    ]
    return Pair(*plain)


def pairs_from(
    items: Iterable[PairLike], name: str = "pairs", features_column: int | str | None = None
) -> ParsedPairs:
    """Check pairs in memory as `read_pairs` does; line numbers are positions in the list, from 1.

    Args:
        items: tuples of two or three fields.
        name: name of the list in error messages.
        features_column: the column with features, if there is one; every pair must then have features.
    """
    return _parse(name, to_pairs(items), features_column)._replace(unit="pair")


def concatenated(first: ParsedPairs, second: ParsedPairs) -> ParsedPairs:
    """Return the pairs of two files, whose lines are numbered as if the second one followed the first."""
    lines = len(first.pairs) + len(first.bad)
    return first._replace(
        name=f"{first.name} and {second.name}",
        pairs=[*first.pairs, *second.pairs],
        numbers=[*first.numbers, *(lines + number for number in second.numbers)],
        bad=[*first.bad, *(BadLine(lines + number, reason) for number, reason in second.bad)],
    )


def _read_parallel(path: str, source: str, target: str) -> ParsedPairs:
    sources, targets = read_lines(source), read_lines(target)
    if len(sources) != len(targets):
        raise DataError(
            f"{source} has {quantity(len(sources), 'line')} and {target} {len(targets):,}; parallel "
            "files must have the same number of lines"
        )
    return _parse(path, [Pair(*lines) for lines in zip(sources, targets, strict=True)])


def _read_table(path: str, data: DataConfig) -> ParsedPairs:
    parsed = ParsedPairs(path, [], [], [], unit="row")
    for row in table_files.iterate(path, data):
        _add(parsed, Pair(row.source, row.target, row.features), reason_of(row))
    listed = parsed.bad[:MAX_LISTED]
    places = table_files.places(path, data, [line.number for line in listed])
    parsed.bad[:MAX_LISTED] = [
        BadLine(line.number, line.reason + place)
        for line, place in zip(listed, places, strict=True)
    ]
    return parsed


def reason_of(row: table_files.Row) -> str | None:
    """Return why a row of a table cannot be used; None for a valid row."""
    return row.fault or fault_of(row.source, row.target, row.features, None)


def _parse(
    name: str,
    rows: Iterable[tuple[str, str | None, str | None]],
    features_column: int | str | None = None,
    extra_columns: int = 0,
) -> ParsedPairs:
    parsed = ParsedPairs(name, [], [], [], extra_columns)
    for source, target, features in rows:
        reason = fault_of(source, target, features, features_column)
        _add(parsed, Pair(source, target or "", features), reason)
    return parsed


def _add(parsed: ParsedPairs, pair: Pair, reason: str | None) -> None:
    """Add the next line to the pairs, or to the bad lines if there is a reason."""
    number = len(parsed.pairs) + len(parsed.bad) + 1
    if reason is None:
        parsed.pairs.append(pair)
        parsed.numbers.append(number)
    else:
        parsed.bad.append(BadLine(number, reason))


def fault_of(
    source: str, target: str | None, features: str | None, features_column: int | str | None
) -> str | None:
    """Return why a line cannot be used; None for a valid line."""
    if not source.strip():
        if features is not None and features.strip():
            return "has features but no source"
        return "has an empty source" if target is not None and target.strip() else "is empty"
    if features_column is not None and features is None:
        return f"has no column {features_column} with features"
    if target is None and features is not None:
        return f"has no column with a target, besides column {features_column} with features"
    if target is None:
        return "has no second column (TAB)"
    if features is not None and "\t" in source:
        return "has a TAB in its source, where a TAB separates features from the text"
    for name, text in (("source", source), ("target", target), ("features", features or "")):
        if not is_utf8(text):
            return f"has a lone surrogate in its {name}"
        if excess_mark(text):
            return f"has more than {MOST_MARKS:,} combining characters in a row in its {name}"
    return None if target.strip() else "has an empty target"
