"""Attention inside of the kernel of a decoder's steps: scores, weights and context of one row."""

import math
from typing import Any

import numpy as np
from numba.extending import register_jitable

from regard.kernels.additive.cpu.layout import RANGES
from regard.kernels.additive.cpu.scores import sum_of_row
from regard.kernels.cpu import simd, tasks, threads
from regard.kernels.cpu.processor import LANES
from regard.kernels.cpu.tasks import floats
from regard.kernels.decoding.layout import PADDING
from regard.kernels.recurrent.layout import (
    ADDITIVE,
    KEYS,
    SCORE_DIM,
    VALUE_DIM,
    VALUES,
    VECTOR,
)

_, _LIMIT, _LARGEST = RANGES[np.float32]
_ZERO, _ONE = np.float32(0), np.float32(1)


@simd.inlined
def _dot(x: Any, y: Any, width: Any) -> Any:
    s = simd.splat(_ZERO)
    for d in range(0, width, LANES):
        s = simd.fma(simd.load(x, d), simd.load(y, d), s)
    return simd.reduce_sum(s)


@simd.inlined
def _exponentials(row: Any, width: Any) -> Any:
    """Replace x with e^{2x}; return the largest |x|, or NaN."""
    largest = simd.splat(_ZERO)
    for d in range(0, width, LANES):
        x = simd.load(row, d)
        largest = simd.max_abs(largest, x)
        simd.store(row, d, simd.exp_2x(x))
    return simd.reduce_max_abs(largest)


@simd.inlined
def _write_scores(
    arguments: Any, table: Any, item: Any, query: Any, padding: Any, scores: Any
) -> Any:
    """Write the scores of one query with the keys of its source; return the largest."""
    count, width, largest = arguments[threads.KEYS], table[SCORE_DIM], _ZERO - np.float32(np.inf)
    v = floats(arguments, VECTOR, 0)
    keys = floats(arguments, KEYS, item * count * width)
    ones, ceiling, sum_v = simd.splat(_ONE), simd.splat(np.float32(_LARGEST)), _ZERO
    if table[ADDITIVE] != 0:
        sum_v = v[width]
        if not _exponentials(query, width) <= _LIMIT:
            tasks.fetch_add(arguments, threads.OUT_OF_RANGE)
    for i in range(count):
        if padding[i] == 0:
            key = simd.pointer_at(keys, i * width)
            if table[ADDITIVE] != 0:
                s = sum_of_row(query, key, v, width, ones, ceiling)
                scores[i] = sum_v - (s + s)
            else:
                scores[i] = _dot(query, key, width)
            largest = max(largest, scores[i])
    return largest


@register_jitable
def attend(arguments: Any, table: Any, item: Any, query: Any, weights: Any, context: Any) -> None:
    """Write the attention weights of one query to a source, and the context."""
    count, width = arguments[threads.KEYS], table[VALUE_DIM]
    padding = tasks.booleans(arguments, PADDING, item * count)
    values = floats(arguments, VALUES, item * count * width)
    largest = _write_scores(arguments, table, item, query, padding, weights)
    total = _ZERO
    for i in range(count):
        weights[i] = _ZERO if padding[i] != 0 else np.float32(math.exp(weights[i] - largest))
        total += weights[i]
    for i in range(count):
        if padding[i] == 0:
            weights[i] = weights[i] / total
    for d in range(0, width, LANES):
        s = simd.splat(_ZERO)
        for i in range(count):
            s = simd.fma(simd.load_splat(weights, i), simd.load(values, i * width + d), s)
        simd.store(context, d, s)
