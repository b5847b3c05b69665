"""Reading of pairs, and of outputs for them, for commands that do not accept bad lines."""

import contextlib
import sys
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING

from regard.alignment import GoldAlignment, read_gold
from regard.config import DataConfig
from regard.errors import ConfigError, DataError, quantity, shortened
from regard.examples import note_skipped
from regard.lines import read_lines
from regard.pairs import Pair, ParsedPairs, read_pairs, refuse_pipes
from regard.table_files import is_table
from regard.text.normalization import MOST_MARKS, excess_mark, may_be_too_long

if TYPE_CHECKING:
    from regard.dictionary import Dictionary
    from regard.translator import Translator

_MOST_LISTED = 10
_REMEDY = "correct or remove them"


def read_valid_pairs(path: str, data: DataConfig, skip: bool = False) -> ParsedPairs:
    """Return all pairs of a file; print a note about columns that are ignored, and about bad lines.

    Args:
        path: the file, or two parallel files.
        data: the columns, as in the settings of the model.
        skip: whether lines that cannot be used are skipped, as `data.bad_lines skip` does in training.

    Raises:
        DataError: a line cannot be used and is not skipped, or there are no lines.
    """
    parsed = read_pairs(path, data)
    parsed.require_valid(None if skip else _REMEDY)
    notes: list[str] = []
    note_skipped(parsed.bad, len(parsed.bad), parsed.name, parsed.unit, notes)
    if parsed.extra_columns:
        lines = quantity(parsed.extra_columns, "line")
        notes.append(f"further columns ignored on {lines} of {path}")
    for note in notes:
        print(f"regard: {note}", file=sys.stderr)
    return parsed


@contextlib.contextmanager
def naming_lines(parsed: ParsedPairs, check: Callable[[Pair], object]) -> Generator[None]:
    """Add the file and the line of a pair to an error that it causes in the block.

    Args:
        parsed: the pairs of the file.
        check: called with one pair after another if there is an error, which it raises again.
    """
    try:
        yield
    except DataError:
        for number, pair in zip(parsed.numbers, parsed.pairs, strict=True):
            try:
                check(pair)
            except DataError as error:
                where = f"{parsed.name}, {parsed.unit} {number:,}"
                raise DataError(f"{where}: {error}") from None
        raise


def check_long_texts(parsed: ParsedPairs, check: Callable[[Pair], object]) -> None:
    """Call `check` with the pairs that may be too long for a model, before any of the pairs is processed.

    Raises:
        DataError: a pair does; the message has the file and the line.
    """
    for index, pair in enumerate(parsed.pairs):
        if may_be_too_long(*pair.key) or may_be_too_long(pair.target):
            with naming_lines(parsed.select([index]), check):
                check(pair)


def read_dictionary(path: str, translator: "Translator") -> "Dictionary":
    """Return a dictionary of sources and targets; print which of its lines have no effect."""
    from regard.dictionary import Dictionary

    repeated: list[int] = []
    dictionary = Dictionary.read(path, translator, repeated.append)
    if repeated:
        listed = ", ".join(map(str, repeated[:_MOST_LISTED]))
        more = ", …" if len(repeated) > _MOST_LISTED else ""
        print(
            f"regard: {path}: {quantity(len(repeated), 'line')} without effect, because an earlier line is "
            f"the same: {listed}{more}",
            file=sys.stderr,
        )
    return dictionary


def read_gold_links(path: str, parsed: ParsedPairs) -> list[GoldAlignment]:
    """Return the gold links of the pairs, from a file with one line per line of pairs.

    Raises:
        DataError: the file cannot be read, or the number of lines differs.
    """
    gold, lines = read_gold(path), len(parsed.pairs) + len(parsed.bad)
    if len(gold) != lines:
        raise DataError(
            f"{path} has {quantity(len(gold), 'line')} for the {quantity(lines, parsed.unit)} of "
            f"{parsed.name}; it needs one line of links for each"
        )
    return [gold[number - 1] for number in parsed.numbers]


def pairs_for_model(
    path: str, pairs: list[Pair], data: DataConfig, other: DataConfig
) -> list[Pair]:
    """Return the pairs of a file as another model reads them: with the features that it was trained on.

    Args:
        path: the file, which is read again only if the columns differ.
        pairs: all pairs of the file.
        data: the columns that they were read from.
        other: the columns of the other model.

    Raises:
        ConfigError: these columns contain other sources or targets.
    """
    names = [data.features_column, other.features_column]
    if is_table(path):
        names = [_columns(data), _columns(other)]
    if names[0] == names[1]:
        return pairs
    refuse_pipes(path)
    parsed = read_pairs(path, other)
    parsed.require_valid(_REMEDY)
    own = parsed.pairs
    if [pair[:2] for pair in own] != [pair[:2] for pair in pairs]:
        raise ConfigError(
            f"the two models read other sources or targets from {path}: one was trained on the columns "
            f"{_describe(data)}, the other on {_describe(other)}; use models of the same columns"
        )
    return own


def _columns(data: DataConfig) -> tuple[str, str, int | str | None]:
    return data.source_column, data.target_column, data.features_column


def _describe(data: DataConfig) -> str:
    source, target, features = _columns(data)
    return f"{source}, {target}" + (f" and {features} (features)" if features else "")


def read_outputs(path: str, pairs: Sequence[Pair], pairs_path: str) -> list[str]:
    """Return the outputs of another system, one per distinct source, in the order of the pairs.

    Args:
        path: a file with one output per pair, in the same order.
        pairs: all pairs of a file.
        pairs_path: the path of that file, for messages.

    Raises:
        DataError: the number of lines differs, or pairs with the same source have different outputs.
    """
    lines = read_lines(path)
    if len(lines) != len(pairs):
        raise DataError(
            f"{path} has {quantity(len(lines), 'line')}, but {pairs_path} has "
            f"{quantity(len(pairs), 'pair')}; give one output per pair, in the same order"
        )
    for number, line in enumerate(lines, start=1):
        if excess_mark(line):
            raise DataError(
                f"{path}, line {number:,} has more than {MOST_MARKS:,} combining characters in a row; correct it"
            )
    if not any("\t" in pair.target for pair in pairs):
        for number, line in enumerate(lines, start=1):
            if "\t" in line:
                raise DataError(
                    f"{path}, line {number:,} has a TAB, which no target has; give the outputs only, one per line"
                )
    first: dict[tuple[str, str | None], int] = {}
    for index, (pair, line) in enumerate(zip(pairs, lines, strict=True)):
        earlier = first.setdefault(pair.key, index)
        if lines[earlier].split() != line.split():
            raise DataError(
                f"{path}, line {index + 1}: {shortened(line)!r} differs from line {earlier + 1}, but "
                f"both are outputs for the source {shortened(pair.source)!r}; give one output per source"
            )
    return [lines[index] for index in first.values()]
