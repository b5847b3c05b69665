"""Reading pairs for commands that accept no bad line."""

import sys

from regard.pairs import Pair, read_pairs


def read_valid_pairs(path: str, features_column: int | None = None) -> list[Pair]:
    """Return all pairs of a file; print a note about columns that are ignored.

    Args:
        path: the file, or two parallel files.
        features_column: `data.features_column` of the model.

    Raises:
        DataError: a line cannot be used, or there is none.
    """
    parsed = read_pairs(path, features_column)
    parsed.require_valid("correct or remove them")
    if parsed.extra_columns:
        print(
            f"regard: further columns ignored on {parsed.extra_columns:,} lines of {path}",
            file=sys.stderr,
        )
    return parsed.pairs
