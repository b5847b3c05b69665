"""Tokens as labels, and validation of attention weights."""

import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np

from regard.arrays import to_array
from regard.errors import DataError, ShapeError
from regard.text_table import escape_controls


def check_weights(
    weights: Any, source_tokens: Sequence[str], target_tokens: Sequence[str]
) -> np.ndarray:
    """Return the weights as an array, validated against the tokens.

    Raises:
        ShapeError: the weights are not (L, T).
        DataError: L or T is 0, or a weight is not finite.
    """
    weights = to_array(weights, "weights")
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


def token_labels(tokens: Sequence[str]) -> list[str]:
    """Return the tokens with spaces as ␣ if they are blank, and control characters escaped."""
    return [
        "␣" * max(1, len(token))
        if set(map(unicodedata.category, token)) <= {"Zs"}
        else escape_controls(token)
        for token in tokens
    ]
