"""Pairs for a verb that measures: every line must be usable."""

import sys

from regard.data import Pair, read_pairs
from regard.errors import DataError


def good_pairs(path: str, features_column: int | None = None) -> list[Pair]:
    """The pairs of a file, all of its lines; what is ignored is said.

    Args:
        path: the file.
        features_column: as the model was trained with.

    Raises:
        DataError: a line cannot be used, or there is none.
    """
    found = read_pairs(path, features_column)
    found.require_good("mend or remove them")
    if not found.pairs:
        raise DataError(f"{path} holds no pair; expected lines of source TAB target")
    if found.extra_columns:
        print(
            f"regard: further columns ignored on {found.extra_columns:,} lines of {path}",
            file=sys.stderr,
        )
    return found.pairs
