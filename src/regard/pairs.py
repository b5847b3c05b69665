"""Reading pairs of a source and a target: TSV files, parallel files, lists in memory."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from regard.errors import DataError
from regard.files import read_lines

_MAX_LISTED = 20


class Pair(NamedTuple):
    """One source, its target, and the features of the source."""

    source: str
    target: str
    features: str | None = None
    """Features of the source, such as `V;PST`; None without."""

    @property
    def key(self) -> tuple[str, str | None]:
        """The source and its features; pairs with one key have several references."""
        return self.source, self.features


PairLike = tuple[str, str] | tuple[str, str, str | None]
"""(source, target) or (source, target, features); a `Pair` is one."""


class BadLine(NamedTuple):
    """A line that cannot be used."""

    number: int
    reason: str


class ParsedPairs(NamedTuple):
    """Pairs of a file or a list, and the lines that are not usable as pairs."""

    name: str
    """Path of the file; `pairs` for a list."""
    pairs: list[Pair]
    numbers: list[int]
    """Line number of each pair, from 1."""
    bad: list[BadLine]
    extra_columns: int = 0
    """Number of lines with further columns, which are ignored."""

    def select(self, indices: Sequence[int]) -> "ParsedPairs":
        """Return the pairs with these indices, and their line numbers."""
        return self._replace(
            pairs=[self.pairs[index] for index in indices],
            numbers=[self.numbers[index] for index in indices],
        )

    def require_valid(self, remedy: str | None) -> None:
        """Raise a DataError if there is no pair or, unless `remedy` is None, if there is a bad line."""
        if self.bad and remedy is not None:
            lines = [f"line {number} {reason}" for number, reason in self.bad[:_MAX_LISTED]]
            more = len(self.bad) - _MAX_LISTED
            total = len(self.bad) + len(self.pairs)
            raise DataError(
                f"{self.name}: {len(self.bad):,} of {total:,} lines cannot be used: "
                f"{'; '.join(lines)}{f'; and {more:,} more' if more > 0 else ''}; {remedy}"
            )
        if not self.pairs:
            raise DataError(f"{self.name} holds no pair; expected lines of source TAB target")


def read_pairs(path: str, features_column: int | None = None) -> ParsedPairs:
    """Read a TSV file (source TAB target), or two parallel files named `F.src,F.tgt`.

    Files may be compressed (`.gz`); they are UTF-8 with or without byte order mark, with LF or CRLF.
    Lines whose source or target is missing or blank are listed in `bad`.

    Args:
        path: the file, or two files separated by a comma.
        features_column: column, from 1, with features of the source. The first of the other
            columns is the source and the second the target.

    Raises:
        DataError: a file cannot be read, or parallel files differ in length.
    """
    files = path.split(",")
    if len(files) == 2 and not Path(path).exists():
        if features_column is not None:
            raise DataError(
                f"{path}: parallel files have no columns, so features_column {features_column} does "
                "not exist; give a TSV file"
            )
        return _read_parallel(path, *files)
    rows = [line.split("\t") for line in read_lines(path)]
    extra_columns = sum(len(row) > 2 + (features_column is not None) for row in rows)
    columns: list[tuple[str, str | None, str | None]] = []
    for row in rows:
        features = None
        if features_column is not None and len(row) >= features_column:
            features = row.pop(features_column - 1)
        columns.append((row[0] if row else "", row[1] if len(row) > 1 else None, features))
    return _parse(path, columns, features_column, extra_columns)


def to_pairs(items: Iterable[PairLike]) -> list[Pair]:
    """Return tuples of two or three fields as pairs.

    Raises:
        DataError: an item has another number of fields.
    """
    pairs: list[Pair] = []
    for number, item in enumerate(items, start=1):
        if isinstance(item, str) or len(item) not in (2, 3):
            raise DataError(
                f"expected (source, target) or (source, target, features) as pair {number:,}, got "
                f"{item!r}; of a DataFrame, pass zip(frame['source'], frame['target'])"
            )
        pairs.append(Pair(item[0], item[1], item[2] if len(item) == 3 else None))
    return pairs


def pairs_from(items: Sequence[PairLike], name: str = "pairs") -> ParsedPairs:
    """Check pairs in memory as `read_pairs` does; line numbers are positions in the list, from 1."""
    return _parse(name, to_pairs(items))


def _read_parallel(path: str, source: str, target: str) -> ParsedPairs:
    sources, targets = read_lines(source), read_lines(target)
    if len(sources) != len(targets):
        raise DataError(
            f"{source} has {len(sources):,} lines and {target} {len(targets):,}; parallel files "
            "need one line each per pair"
        )
    return _parse(path, [Pair(*lines) for lines in zip(sources, targets, strict=True)])


def _parse(
    name: str,
    rows: Iterable[tuple[str, str | None, str | None]],
    features_column: int | None = None,
    extra_columns: int = 0,
) -> ParsedPairs:
    parsed = ParsedPairs(name, [], [], [], extra_columns)
    for number, (source, target, features) in enumerate(rows, start=1):
        reason = _reason(source, target, features, features_column)
        if reason is None and target is not None:
            parsed.pairs.append(Pair(source, target, features))
            parsed.numbers.append(number)
        else:
            parsed.bad.append(BadLine(number, str(reason)))
    return parsed


def _reason(
    source: str, target: str | None, features: str | None, features_column: int | None
) -> str | None:
    """Return why a line cannot be used; None for a valid one."""
    if not source.strip():
        if features is not None and features.strip():
            return "has features and no source"
        return "has an empty source" if target is not None and target.strip() else "is empty"
    if features_column is not None and features is None:
        return f"has no column {features_column} with features"
    if target is None:
        return "has no second column (TAB)"
    return None if target.strip() else "has an empty target"
