"""The loop of additive scores, compiled by numba for the CPU.

    e_ti = sum_d v_d tanh(a_td + b_id) = sum_d v_d - 2 sum_d v_d / (1 + e^{2 a_td} e^{2 b_id})

Four vectors of features share a reciprocal: their fractions are added up first.
"""

import math
from collections.abc import Callable
from typing import Any

from numba.np.numpy_support import carray

from regard.kernels.additive.cpu.common import (
    FIRST,
    HEADS,
    KEYS,
    LARGEST_VECTOR,
    PLACES,
    POWERS,
    RANGES,
    ROWS,
    TOGETHER,
    UNITS,
    WIDTH,
    exp_2x_row,
    give_columns,
    inlined,
    larger_or_nan,
    measured,
)
from regard.kernels.additive.cpu.simd import (
    BYTES,
    count,
    fma,
    least,
    load,
    place,
    reciprocal,
    splat,
    total,
)
from regard.kernels.additive.cpu.threads import NEXT, REFUSALS, SCRATCH, SEATS, at, take

NUMBERS_AT_ONCE = 1 << 13
"""Numbers of the queries that stay in the nearest cache while they look at all keys."""


@inlined
def _fraction(a: Any, b: Any, v: Any, d: Any, ones: Any, top: Any, cut: Any) -> Any:
    """The fraction v / (1 + ab) of a vector of features: numerator and denominator."""
    x = ones + load(a, d) * load(b, d)
    return load(v, d), least(x, top) if cut else x


@inlined
def _sum_of_fractions(x: Any, y: Any) -> Any:
    # it is said which product is rounded: the same in every copy of this
    return fma(x[0], y[1], x[1] * y[0]), x[1] * y[1]


@inlined
def _divided(x: Any) -> Any:
    return x[0] * reciprocal(x[1])


@inlined
def _two(a: Any, b: Any, v: Any, d: Any, ones: Any, top: Any, cut: Any) -> Any:
    """The same of two vectors of features, added up."""
    size = count(ones)
    x = _fraction(a, b, v, d, ones, top, cut)
    return _sum_of_fractions(x, _fraction(a, b, v, d + size, ones, top, cut))


@inlined
def _four(a: Any, b: Any, v: Any, d: Any, ones: Any, top: Any, cut: Any) -> Any:
    """The same of four, with one reciprocal."""
    size = count(ones)
    x = _two(a, b, v, d, ones, top, cut)
    return _divided(_sum_of_fractions(x, _two(a, b, v, d + 2 * size, ones, top, cut)))


@inlined
def _sum_of_one(a: Any, b: Any, v: Any, padded: Any, ones: Any, top: Any) -> Any:
    """The sum of v / (1 + ab) for one query."""
    s, step = ones - ones, 4 * count(ones)
    fours = padded // step * step
    for d in range(0, fours, step):
        s += _four(a, b, v, d, ones, top, True)
    if fours < padded:
        s += _divided(_two(a, b, v, fours, ones, top, True))
    return total(s)


@inlined
def _sums_of_four(a: Any, b: Any, v: Any, padded: Any, ones: Any, top: Any, cut: Any) -> Any:
    """The same for four rows of queries, at one look at the key."""
    s, t, u, w = ones - ones, ones - ones, ones - ones, ones - ones
    step = 4 * count(ones)
    fours = padded // step * step
    a1, a2, a3 = place(a, padded), place(a, 2 * padded), place(a, 3 * padded)
    for d in range(0, fours, step):
        s += _four(a, b, v, d, ones, top, cut)
        t += _four(a1, b, v, d, ones, top, cut)
        u += _four(a2, b, v, d, ones, top, cut)
        w += _four(a3, b, v, d, ones, top, cut)
    if fours < padded:
        s += _divided(_two(a, b, v, fours, ones, top, cut))
        t += _divided(_two(a1, b, v, fours, ones, top, cut))
        u += _divided(_two(a2, b, v, fours, ones, top, cut))
        w += _divided(_two(a3, b, v, fours, ones, top, cut))
    return total(s), total(t), total(u), total(w)


@inlined
def padded_width(width: Any, size: Any) -> Any:
    """Numbers of a row of whole pairs of vectors."""
    return (width + 2 * size - 1) // (2 * size) * 2 * size


@inlined
def room(padded: Any, together: Any, size: Any) -> Any:
    """Numbers that a thread has to itself.

    Rows of queries, one key, and v, whose zeros leave out what is too much; a vector of scores for
    every query, for their rows are far apart; a spare one.
    """
    return (together + 2) * padded + (together + 1) * size


def scores(real: Any) -> Callable[[Any], None]:
    """A unit is some queries of one item: their scores with all keys, one key after the other.

    The keys are given, or their exponentials. 1 + e^{2(a+b)} is cut off before the product of four is
    not finite, unless it is known to be far from that.
    """
    real_bytes, reach, ceiling = RANGES[real]
    # less than the ceiling by more than all rounding: where nothing is cut, a cut would change no bit
    size, near = BYTES // real_bytes, math.log(ceiling) / 2 - 0.01

    def kernel(job: Any) -> None:
        h, one = carray(job, (PLACES,)), real(1)
        heads, rows, keys, width = h[HEADS], h[ROWS], h[KEYS], h[WIDTH]
        together = h[TOGETHER]
        blocks = (rows + together - 1) // together
        items = h[UNITS] // blocks
        queries = carray(at(h[FIRST], one), (items, rows, width))
        sources = carray(at(h[FIRST + 1], one), (items, keys, width))
        vectors = carray(at(h[FIRST + 2], one), (heads, width))
        out = carray(at(h[FIRST + 3], one), (items, rows, keys))
        far = carray(at(h[FIRST + 4], one), (1,))[0]
        padded = padded_width(width, size)
        own_room = room(padded, together, size)
        mine = carray(at(h[SCRATCH] + take(job, SEATS) * own_room * real_bytes, one), (own_room,))
        mine[:] = real(0)
        powers, rest = mine[: together * padded], mine[together * padded :]
        own, v, block = rest[:padded], rest[padded : 2 * padded], rest[2 * padded : -size]
        spare = rest[-size:]
        given_raised = h[POWERS] != 0
        ones, top, two = splat(one), splat(real(ceiling)), real(2)
        zeros = splat(real(0))
        while True:
            unit = take(job, NEXT)
            if unit >= h[UNITS]:
                return
            item, start = unit // blocks, unit % blocks * together
            some = min(together, rows - start)
            v[:width] = vectors[item % heads]
            of_v, far_v = measured(v, zeros)
            of_a, of_b = real(0), far
            for row in range(some):
                into = powers[row * padded : (row + 1) * padded]
                of_a = larger_or_nan(of_a, exp_2x_row(queries[item, start + row], into, spare))
            farthest, several = of_a, some // 4 * 4
            for low in range(0, keys, size):
                filled = min(size, keys - low)
                for key in range(low, low + filled):
                    b = place(own, 0)
                    if not given_raised:
                        of_b = exp_2x_row(sources[item, key], own, spare)
                        farthest = larger_or_nan(farthest, of_b)
                    elif width < padded:
                        own[:width] = sources[item, key]
                    else:
                        b = place(sources, (item * keys + key) * width)
                    # four queries to a look at the key
                    for row in range(0, several, 4):
                        a, e = place(powers, row * padded), row * size + key - low
                        if of_a + of_b <= near:
                            s, t, u, w = _sums_of_four(a, b, v, padded, ones, top, False)
                        else:
                            s, t, u, w = _sums_of_four(a, b, v, padded, ones, top, True)
                        block[e], block[e + size] = of_v - two * s, of_v - two * t
                        block[e + 2 * size], block[e + 3 * size] = of_v - two * u, of_v - two * w
                    for row in range(several, some):
                        s = _sum_of_one(place(powers, row * padded), b, v, padded, ones, top)
                        block[row * size + key - low] = of_v - two * s
                give_columns(block, out[item, start : start + some], low, filled, size)
            if not (farthest <= reach and far_v <= LARGEST_VECTOR):
                take(job, REFUSALS)

    return kernel
