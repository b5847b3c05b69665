"""Tokens as labels, and weights that fit them."""

import unicodedata
from collections.abc import Sequence

import numpy as np

from regard.charts.base import shown
from regard.errors import DataError, ShapeError


def check(
    weights: np.ndarray, source_tokens: Sequence[str], target_tokens: Sequence[str]
) -> np.ndarray:
    """The weights as an array.

    Raises:
        ShapeError: they are not one row per output and one column per source symbol.
        DataError: there is no row or no column, or a weight is not a finite number.
    """
    weights = np.asarray(weights)
    expected = (len(target_tokens), len(source_tokens))
    if weights.shape != expected:
        raise ShapeError(
            f"weights must be {expected}, one row for each of {expected[0]} target tokens and one "
            f"column for each of {expected[1]} source tokens, got {weights.shape}"
        )
    if not weights.size:
        raise DataError(
            f"nothing to draw: {expected[0]} target tokens and {expected[1]} source tokens; "
            "a chart needs at least one of each"
        )
    if not np.isfinite(weights).all():
        row, column = np.argwhere(~np.isfinite(weights))[0]
        raise DataError(
            f"weights must be finite numbers, got {weights[row, column]} in row {row}, column "
            f"{column} (both from 0)"
        )
    return weights


def spelled(tokens: Sequence[str]) -> list[str]:
    """The tokens as they can be shown."""
    return [_label(token) for token in tokens]


def _label(token: str) -> str:
    """`token` as it can be shown: only spaces as ␣, control characters as their escapes."""
    if all(unicodedata.category(character) == "Zs" for character in token):
        return "␣" * max(1, len(token))
    return shown(token)
