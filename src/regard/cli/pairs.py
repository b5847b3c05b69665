"""Reading of pairs for commands that do not accept bad lines."""

import sys

from regard.config import DataConfig
from regard.errors import quantity
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
