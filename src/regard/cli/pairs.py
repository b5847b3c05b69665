"""Reading of pairs, and of outputs for them, for commands that do not accept bad lines."""

import sys
from collections.abc import Sequence

from regard.config import DataConfig
from regard.errors import DataError, quantity, shortened
from regard.files import read_lines
from regard.pairs import Pair, read_pairs


def read_valid_pairs(path: str, data: DataConfig) -> list[Pair]:
    """Return all pairs of a file; print a note about columns that are ignored.

    Args:
        path: the file, or two parallel files.
        data: the columns, as in the settings of the model.

    Raises:
        DataError: a line cannot be used, or there are no lines.
    """
    parsed = read_pairs(path, data)
    parsed.require_valid("correct or remove them")
    if parsed.extra_columns:
        print(
            f"regard: further columns ignored on "
            f"{quantity(parsed.extra_columns, 'line')} of {path}",
            file=sys.stderr,
        )
    return parsed.pairs


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
    first: dict[tuple[str, str | None], int] = {}
    for index, (pair, line) in enumerate(zip(pairs, lines, strict=True)):
        earlier = first.setdefault(pair.key, index)
        if lines[earlier] != line:
            raise DataError(
                f"{path}, line {index + 1}: {shortened(line)!r} differs from line {earlier + 1}, but "
                f"both are outputs for the source {shortened(pair.source)!r}; give one output per source"
            )
    return [lines[index] for index in first.values()]
