"""CPU kernel for the additive scores.

    e_ti = sum_d v_d tanh(a_td + b_id) = sum_d v_d - 2 sum_d v_d / (1 + e^{2 a_td} e^{2 b_id})

The fractions of four vectors of features are added first, so that they share a reciprocal.
"""

import math
from collections.abc import Callable
from typing import Any

from regard.kernels.additive.cpu import layout
from regard.kernels.additive.cpu.exponentials import exp_2x_row, larger_or_nan
from regard.kernels.additive.cpu.layout import LARGEST_VECTOR, RANGES
from regard.kernels.cpu import simd, tasks, threads
from regard.kernels.cpu.processor import BYTES

_padded_width: Any = simd.inlined(layout.padded_width)
_workspace_shape: Any = simd.inlined(layout.scores_shape)


@simd.inlined
def _fraction(a: Any, b: Any, v: Any, d: Any, ones: Any, ceiling: Any, clamp: Any) -> Any:
    """Return v / (1 + ab) for a vector of features, as numerator and denominator."""
    x = ones + simd.load(a, d) * simd.load(b, d)
    return simd.load(v, d), simd.minimum(x, ceiling) if clamp else x


@simd.inlined
def _add_fractions(x: Any, y: Any) -> Any:
    # fma fixes which product is rounded: the same in every inlined copy
    return simd.fma(x[0], y[1], x[1] * y[0]), x[1] * y[1]


@simd.inlined
def _divide(x: Any) -> Any:
    return x[0] * simd.reciprocal(x[1])


@simd.inlined
def _fraction_of_two(a: Any, b: Any, v: Any, d: Any, ones: Any, ceiling: Any, clamp: Any) -> Any:
    """Return the sum of the fractions of two vectors of features, as a fraction."""
    size = simd.lane_count(ones)
    x = _fraction(a, b, v, d, ones, ceiling, clamp)
    return _add_fractions(x, _fraction(a, b, v, d + size, ones, ceiling, clamp))


@simd.inlined
def _sum_of_four(a: Any, b: Any, v: Any, d: Any, ones: Any, ceiling: Any, clamp: Any) -> Any:
    """Return the sum of the fractions of four vectors of features, with one reciprocal."""
    size = simd.lane_count(ones)
    x = _fraction_of_two(a, b, v, d, ones, ceiling, clamp)
    y = _fraction_of_two(a, b, v, d + 2 * size, ones, ceiling, clamp)
    return _divide(_add_fractions(x, y))


@simd.inlined
def sum_of_row(a: Any, b: Any, v: Any, padded: Any, ones: Any, ceiling: Any) -> Any:
    """Return the sum of v / (1 + ab) over all features for one query."""
    s, step = ones - ones, 4 * simd.lane_count(ones)
    end = padded // step * step
    for d in range(0, end, step):
        s += _sum_of_four(a, b, v, d, ones, ceiling, True)
    if end < padded:
        s += _divide(_fraction_of_two(a, b, v, end, ones, ceiling, True))
    return simd.reduce_sum(s)


@simd.inlined
def _sums_of_four_rows(
    a: Any, b: Any, v: Any, padded: Any, ones: Any, ceiling: Any, clamp: Any
) -> Any:
    """Return the same for four queries, with one pass over the key."""
    s, t, u, w = ones - ones, ones - ones, ones - ones, ones - ones
    step = 4 * simd.lane_count(ones)
    end = padded // step * step
    a1, a2 = simd.pointer_at(a, padded), simd.pointer_at(a, 2 * padded)
    a3 = simd.pointer_at(a, 3 * padded)
    for d in range(0, end, step):
        s += _sum_of_four(a, b, v, d, ones, ceiling, clamp)
        t += _sum_of_four(a1, b, v, d, ones, ceiling, clamp)
        u += _sum_of_four(a2, b, v, d, ones, ceiling, clamp)
        w += _sum_of_four(a3, b, v, d, ones, ceiling, clamp)
    if end < padded:
        s += _divide(_fraction_of_two(a, b, v, end, ones, ceiling, clamp))
        t += _divide(_fraction_of_two(a1, b, v, end, ones, ceiling, clamp))
        u += _divide(_fraction_of_two(a2, b, v, end, ones, ceiling, clamp))
        w += _divide(_fraction_of_two(a3, b, v, end, ones, ceiling, clamp))
    return simd.reduce_sum(s), simd.reduce_sum(t), simd.reduce_sum(u), simd.reduce_sum(w)


@simd.inlined
def _read_workspace(arguments: Any, padded: Any, tile: Any, size: Any, one: Any) -> Any:
    """Return the parts of the thread's workspace, filled with zeros."""
    workspace = tasks.thread_workspace(arguments, _workspace_shape(padded, tile, size), one)[0]
    workspace[:] = 0
    exp_a, rest = workspace[: tile * padded], workspace[tile * padded :]
    exp_b, v, block = rest[:padded], rest[padded : 2 * padded], rest[2 * padded : -size]
    return exp_a, exp_b, v, block, rest[-size:]


@simd.inlined
def _set_four(column: Any, size: Any, sum_v: Any, sums: Any) -> None:
    """Write the scores of four queries and one key to a column of the block."""
    for i in range(4):
        column[i * size] = sum_v - (sums[i] + sums[i])


def scores(real: Any) -> Callable[[Any], None]:
    """Return the kernel of the scores; a task is a tile of queries of one item, with all keys.

    The keys are given as they are, or as their exponentials. 1 + e^{2(a+b)} is clamped, so that the
    product of four stays finite, unless it is known to be below the bound.
    """
    real_bytes, limit, largest = RANGES[real]
    # below the ceiling by more than any rounding error: without the clamp, the bits are the same
    size, near = BYTES // real_bytes, math.log(largest) / 2 - 0.01

    def kernel(arguments: Any) -> None:
        one = real(1)
        heads, n_queries, n_keys, width = tasks.read_sizes(arguments)
        tile, prepared = arguments[threads.TILE], arguments[threads.PREPARED] != 0
        tiles = (n_queries + tile - 1) // tile
        items, padded = arguments[threads.TASKS] // tiles, _padded_width(width, size)
        queries, keys, vectors, out = tasks.read_arrays(arguments, items, one)
        max_b = tasks.array(arguments, 4, (1,), one)[0]
        exp_a, exp_b, v, block, buffer = _read_workspace(arguments, padded, tile, size, one)
        ones, ceiling, zeros = simd.splat(one), simd.splat(real(largest)), simd.splat(real(0))
        while True:
            task = tasks.fetch_add(arguments, threads.NEXT_TASK)
            if task >= arguments[threads.TASKS]:
                return
            item, start = task // tiles, task % tiles * tile
            count = min(tile, n_queries - start)
            simd.copy(vectors[item % heads], v, width)
            sum_v, max_v = simd.sum_and_max_abs(v, zeros)
            max_a, end = real(0), count // 4 * 4
            for row in range(count):
                y = exp_a[row * padded : (row + 1) * padded]
                max_a = larger_or_nan(max_a, exp_2x_row(queries[item, start + row], y, buffer))
            max_ab = max_a
            for low in range(0, n_keys, size):
                filled = min(size, n_keys - low)
                for key in range(low, low + filled):
                    b = simd.pointer_at(exp_b, 0)
                    if not prepared:
                        max_b = exp_2x_row(keys[item, key], exp_b, buffer)
                        max_ab = larger_or_nan(max_ab, max_b)
                    elif width < padded:
                        simd.copy(keys[item, key], exp_b, width)
                    else:
                        b = simd.pointer_at(keys, (item * n_keys + key) * width)
                    for row in range(0, end, 4):
                        a = simd.pointer_at(exp_a, row * padded)
                        if max_a + max_b <= near:
                            sums = _sums_of_four_rows(a, b, v, padded, ones, ceiling, False)
                        else:
                            sums = _sums_of_four_rows(a, b, v, padded, ones, ceiling, True)
                        _set_four(block[row * size + key - low :], size, sum_v, sums)
                    for row in range(end, count):
                        a = simd.pointer_at(exp_a, row * padded)
                        s = sum_of_row(a, b, v, padded, ones, ceiling)
                        block[row * size + key - low] = sum_v - (s + s)
                simd.store_columns(block, out[item, start : start + count], low, filled, size)
            if not (max_ab <= limit and max_v <= LARGEST_VECTOR):
                tasks.fetch_add(arguments, threads.OUT_OF_RANGE)

    return kernel
