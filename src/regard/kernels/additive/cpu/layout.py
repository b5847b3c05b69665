"""What the launchers and the kernels of the additive scores agree on: ranges, sizes of tasks, and workspaces."""

from typing import Any

import numpy as np

RANGES = {np.float32: (4, 43.0, 1e9), np.float64: (8, 353.0, 1e75)}
"""For each type: the bytes of a number; the largest |x| at which half of e^{2x} is a normal number
and no product of two e^{2x} is 0 x infinity; and a bound on 1 + e^{2x}, at which tanh is 1 and the
product of four is still finite."""

LARGEST_VECTOR = 1e10
"""Largest |v| at which a sum of four products of v with three such bounds is finite."""

ELEMENTS_PER_TASK = 1 << 14
"""Elements in a task of the exponentials."""

TILE_ELEMENTS = 1 << 13
"""Elements in a tile of queries, which stays in the L1 cache during the loop over all keys."""


def padded_width(width: Any, size: Any) -> Any:
    """Return the width rounded up to whole pairs of vectors."""
    return (width + 2 * size - 1) // (2 * size) * 2 * size


def scores_shape(padded: Any, tile: Any, size: Any) -> Any:
    """Return the shape of a thread's workspace for scores.

    It contains a tile of queries, one key, v (zero in the padding), a vector of scores for every
    query (because rows of scores are far apart in memory), and a buffer for one vector.
    """
    return 1, (tile + 2) * padded + (tile + 1) * size


def by_keys_shape(queries: Any, padded: Any) -> Any:
    """Return the shape of a workspace for gradients by keys: a, v and one key, and their gradients."""
    return 2 * queries + 4, padded


def by_features_shape(queries: Any, keys: Any, size: Any) -> Any:
    """Return the shape of one for gradients by features: a vector of features of a, b, v, and gradients."""
    return 1, (2 * (queries + keys) + 1) * size
