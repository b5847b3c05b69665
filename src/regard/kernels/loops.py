"""The loops of additive scores and their gradients, compiled by numba for the CPU.

    e_ti = v . tanh(a_t + b_i),    tanh(a + b) = 1 - 2 r,    r = 1 / (1 + e^{2a} e^{2b})

The exponentials are taken once per row; what is left for every pair and feature is a
multiplication, an addition and a reciprocal, in the gradient too. Results do not depend on the
number of threads, see `workers.py`. Every function that has no underscore gives a kernel for a type
of floats.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload, register_jitable
from numba.np.numpy_support import carray

from regard.kernels import workers
from regard.kernels.lanes import (
    BYTES,
    exp,
    further,
    furthest,
    least,
    load,
    power,
    reciprocal,
    spread,
    store,
    total,
    whole,
)
from regard.kernels.workers import NEXT, SCRATCH, SEATS, at, take

# places in the list that every kernel gets; the addresses follow the sizes
UNITS, HEADS, ROWS, KEYS, WIDTH, POWERS, FIRST = range(workers.FIRST, workers.FIRST + 7)
TOGETHER = POWERS  # in the gradients: vectors of features in a unit
PLACES = FIRST + 8

REACH = 43.5
"""|x| up to which e^{2x} is a normal float32, and the product of two of them not 0 x infinity."""

REACH_OF_DOUBLES = 354.0
"""The same for float64."""

TOP = 1e18
"""1 + e^{2x} from which on tanh is 1, and the product of two of them still a float32."""

TOP_OF_DOUBLES = 1e150
"""The same for float64."""

QUERIES_PER_UNIT = 8
"""Queries that share a look at every key while it is in the nearest cache."""

KEYS_AT_ONCE = 256
"""Keys of a vector of features each that stay in the nearest cache while all queries look at them."""

NUMBERS_PER_UNIT = 1 << 14
"""Numbers of a unit of exponentials."""


def _raised(x: Any) -> Any:
    """e^{2x} of a vector."""
    raise NotImplementedError("compiled by numba alone")


@overload(_raised)
def _overload_raised(x: Any) -> Any:
    return _raised_doubles if x.real == types.float64 else _raised_floats


def _raised_doubles(x: Any) -> Any:
    return exp(x + x)


def _raised_floats(x: Any) -> Any:
    """To a unit of rounding.

    2x = n ln 2 + f with |f| <= ln 2 / 2: a polynomial in f times 2^n. The coefficients are those of
    expf in the Cephes library.
    """
    real = np.float32
    z = x + x
    n = whole(z * spread(real(1.44269504088896341)) + spread(real(0.5)))
    f = z - n * spread(real(0.693359375))
    f = f - n * spread(real(-2.12194440e-4))
    p = spread(real(1.9875691500e-4)) * f + spread(real(1.3981999507e-3))
    p = p * f + spread(real(8.3334519073e-3))
    p = p * f + spread(real(4.1665795894e-2))
    p = p * f + spread(real(1.6666665459e-1))
    p = p * f + spread(real(5.0000001201e-1))
    return (p * f * f + f + spread(real(1))) * power(n)


@register_jitable
def _raise(x: Any, y: Any, spare: Any) -> Any:
    """Write e^{2x} of a row to y; the largest |x|, or NaN. `spare` is room for a vector."""
    size = len(spare)
    end = len(x) // size * size
    spare[:] = 0
    far = load(spare, 0)
    for i in range(0, end, size):
        part = load(x, i)
        far = further(far, part)
        store(y, i, _raised(part))
    if end < len(x):
        for i in range(end, len(x)):
            spare[i - end] = x[i]
        part = load(spare, 0)
        far = further(far, part)
        store(spare, 0, _raised(part))
        for i in range(end, len(x)):
            y[i] = spare[i - end]
    return furthest(far)


@register_jitable
def _farther(one: Any, other: Any) -> Any:
    """The larger of two sizes, or NaN."""
    return one if one > other or one != one else other


def exponentials(real: Any) -> Callable[[Any], None]:
    """A unit is some numbers."""
    real_bytes = 4 if real is np.float32 else 8
    size = BYTES // real_bytes

    def kernel(job: Any) -> None:
        h, one = carray(job, (PLACES,)), real(1)
        count = h[KEYS]
        numbers = carray(at(h[FIRST], one), (count,))
        out = carray(at(h[FIRST + 1], one), (count,))
        farthest = carray(at(h[FIRST + 2], one), (h[UNITS],))
        spare = carray(at(h[SCRATCH] + take(job, SEATS) * size * real_bytes, one), (size,))
        while True:
            unit = take(job, NEXT)
            if unit >= h[UNITS]:
                return
            start = unit * NUMBERS_PER_UNIT
            stop = min(count, start + NUMBERS_PER_UNIT)
            farthest[unit] = _raise(numbers[start:stop], out[start:stop], spare)

    return kernel


@register_jitable
def _take_columns(rows: Any, low: Any, filled: Any, size: Any, columns: Any) -> None:
    """A vector of features of every row; zeros where there are fewer."""
    for row in range(len(rows)):
        if filled == size:
            store(columns, row * size, load(rows[row], low))
        else:
            for d in range(size):
                columns[row * size + d] = rows[row, low + d] if d < filled else 0


@register_jitable
def _give_columns(columns: Any, rows: Any, low: Any, filled: Any, size: Any) -> None:
    """The way back."""
    for row in range(len(rows)):
        if filled == size:
            store(rows[row], low, load(columns, row * size))
        else:
            for d in range(filled):
                rows[row, low + d] = columns[row * size + d]


@register_jitable
def _shares(a: Any, b: Any, v: Any, ones: Any, top: Any, cut: Any) -> Any:
    """What two vectors of features add to sum v / (1 + ab), with one reciprocal for both."""
    x, y = ones + a[0] * b[0], ones + a[1] * b[1]
    if cut:
        x, y = least(x, top), least(y, top)
    return (v[0] * y + v[1] * x) * reciprocal(x * y)


@register_jitable
def _two(row: Any, d: Any, size: Any) -> Any:
    """Two vectors of a row."""
    return load(row, d), load(row, d + size)


def scores(real: Any) -> Callable[[Any], None]:
    """A unit is a few queries of one item: their scores with all keys, two vectors of features at a time.

    Where 1 + e^{2(a+b)} may be so large that the product of two is not finite, it is cut off.
    """
    real_bytes, ceiling = (4, TOP) if real is np.float32 else (8, TOP_OF_DOUBLES)
    size, near = BYTES // real_bytes, math.log(ceiling) / 2

    def kernel(job: Any) -> None:
        h, one = carray(job, (PLACES,)), real(1)
        heads, rows, keys, width = h[HEADS], h[ROWS], h[KEYS], h[WIDTH]
        blocks = (rows + QUERIES_PER_UNIT - 1) // QUERIES_PER_UNIT
        items = h[UNITS] // blocks
        queries = carray(at(h[FIRST], one), (items, rows, width))
        sources = carray(at(h[FIRST + 1], one), (items, keys, width))
        vectors = carray(at(h[FIRST + 2], one), (heads, width))
        out = carray(at(h[FIRST + 3], one), (items, rows, keys))
        farthest = carray(at(h[FIRST + 4], one), (h[UNITS],))
        far = carray(at(h[FIRST + 5], one), (1,))[0]
        # rows of whole vectors: queries, one key, and v, whose zeros leave out what is too much
        padded = (width + 2 * size - 1) // (2 * size) * 2 * size
        room = (QUERIES_PER_UNIT + 2) * padded + size
        mine = carray(at(h[SCRATCH] + take(job, SEATS) * room * real_bytes, one), (room,))
        mine[:] = real(0)
        powers = mine[: QUERIES_PER_UNIT * padded].reshape(QUERIES_PER_UNIT, padded)
        own, v, spare = (
            mine[-2 * padded - size :][:padded],
            mine[-padded - size : -size],
            mine[-size:],
        )
        raised = h[POWERS] != 0
        ones, top, zeros, two = spread(one), spread(real(ceiling)), spread(real(0)), real(2)
        while True:
            unit = take(job, NEXT)
            if unit >= h[UNITS]:
                return
            item, start = unit // blocks, unit % blocks * QUERIES_PER_UNIT
            count = min(QUERIES_PER_UNIT, rows - start)
            v[:width] = vectors[item % heads]
            s, of_a, of_b = zeros, real(0), far
            for d in range(0, padded, size):
                s += load(v, d)
            of_v = total(s)
            for row in range(count):
                of_a = _farther(of_a, _raise(queries[item, start + row], powers[row], spare))
            farthest[unit] = of_a
            for key in range(keys):
                b = sources[item, key]
                if not raised:
                    of_b = _raise(b, own, spare)
                    farthest[unit] = _farther(farthest[unit], of_b)
                    b = own
                elif width < padded:
                    own[:width] = b
                    b = own
                cut = not of_a + of_b <= near
                # four queries to a look at the key
                several = 0 if cut else count // 4 * 4
                for row in range(0, several, 4):
                    s, t, u, w = zeros, zeros, zeros, zeros
                    for d in range(0, padded, 2 * size):
                        bs, vs = _two(b, d, size), _two(v, d, size)
                        s += _shares(_two(powers[row], d, size), bs, vs, ones, top, False)
                        t += _shares(_two(powers[row + 1], d, size), bs, vs, ones, top, False)
                        u += _shares(_two(powers[row + 2], d, size), bs, vs, ones, top, False)
                        w += _shares(_two(powers[row + 3], d, size), bs, vs, ones, top, False)
                    e = out[item, start + row : start + row + 4]
                    e[0, key], e[1, key] = of_v - two * total(s), of_v - two * total(t)
                    e[2, key], e[3, key] = of_v - two * total(u), of_v - two * total(w)
                for row in range(several, count):
                    s = zeros
                    for d in range(0, padded, 2 * size):
                        bs, vs = _two(b, d, size), _two(v, d, size)
                        s += _shares(_two(powers[row], d, size), bs, vs, ones, top, cut)
                    out[item, start + row, key] = of_v - two * total(s)

    return kernel


@register_jitable
def _of_gradients(h: Any, one: Any, items: Any) -> Any:
    """What is given and what is wanted: a, b, v and g, and the gradients of a, b and v."""
    heads, rows, keys, width = h[HEADS], h[ROWS], h[KEYS], h[WIDTH]
    return (
        carray(at(h[FIRST], one), (items, rows, width)),
        carray(at(h[FIRST + 1], one), (items, keys, width)),
        carray(at(h[FIRST + 2], one), (heads, width)),
        carray(at(h[FIRST + 3], one), (items, rows, keys)),
        carray(at(h[FIRST + 4], one), (items, rows, width)),
        carray(at(h[FIRST + 5], one), (items, keys, width)),
        carray(at(h[FIRST + 6], one), (items, width)),
    )


def by_keys(real: Any) -> Callable[[Any], None]:
    """Gradients for a few queries: a unit is one item, whose keys come one after the other."""
    real_bytes, ceiling = (4, TOP**2) if real is np.float32 else (8, TOP_OF_DOUBLES**2)
    size = BYTES // real_bytes

    def kernel(job: Any) -> None:
        h, one = carray(job, (PLACES,)), real(1)
        heads, rows, keys, width, items = h[HEADS], h[ROWS], h[KEYS], h[WIDTH], h[UNITS]
        queries, sources, vectors, gradient, of_queries, of_sources, of_vectors = _of_gradients(
            h, one, items
        )
        farthest = carray(at(h[FIRST + 7], one), (items,))
        padded = (width + size - 1) // size * size
        place = take(job, SEATS) * (2 * rows + 4) * padded * real_bytes
        scratch = carray(at(h[SCRATCH] + place, one), (2 * rows + 4, padded))
        scratch[:, :] = real(0)
        v, dv, b, db = scratch[0], scratch[1], scratch[2], scratch[3]
        a, da = scratch[4 : 4 + rows], scratch[4 + rows :]
        ones, two, zeros = spread(one), spread(real(2)), spread(real(0))
        top = spread(real(ceiling))
        while True:
            item = take(job, NEXT)
            if item >= items:
                return
            far_a, far_b = zeros, zeros
            v[:width] = vectors[item % heads]
            dv[:], da[:, :], a[:, :] = real(0), real(0), real(0)
            for row in range(rows):
                a[row, :width] = queries[item, row]
                for d in range(0, padded, size):
                    x = load(a[row], d)
                    far_a = further(far_a, x)
                    store(a[row], d, _raised(x))
            for key in range(keys):
                source, of_source = sources[item, key], of_sources[item, key]
                if width < padded:
                    b[:width] = source
                    source, of_source = b, db
                for d in range(0, padded, size):
                    x, q_of_key, gt_of_key = load(source, d), zeros, zeros
                    far_b = further(far_b, x)
                    e = _raised(x)
                    for row in range(rows):
                        g = spread(gradient[item, row, key])
                        t = ones - two * reciprocal(least(ones + load(a[row], d) * e, top))
                        gt = g * t
                        q = g - gt * t
                        store(da[row], d, load(da[row], d) + q)
                        q_of_key += q
                        gt_of_key += gt
                    store(of_source, d, load(v, d) * q_of_key)
                    store(dv, d, load(dv, d) + gt_of_key)
                if width < padded:
                    of_sources[item, key] = db[:width]
            for row in range(rows):
                for d in range(width):
                    of_queries[item, row, d] = v[d] * da[row, d]
            of_vectors[item] = dv[:width]
            farthest[item] = _farther(furthest(far_a), furthest(far_b))

    return kernel


def by_features(real: Any) -> Callable[[Any], None]:
    """Gradients: a unit is some vectors of features of one item, each over all queries and keys."""
    real_bytes, ceiling = (4, TOP**2) if real is np.float32 else (8, TOP_OF_DOUBLES**2)
    size, near = BYTES // real_bytes, math.log(ceiling) / 2

    def kernel(job: Any) -> None:
        h, one = carray(job, (PLACES,)), real(1)
        heads, rows, keys, width = h[HEADS], h[ROWS], h[KEYS], h[WIDTH]
        step = h[TOGETHER] * size
        blocks = (width + step - 1) // step
        items = h[UNITS] // blocks
        queries, sources, vectors, gradient, of_queries, of_sources, of_vectors = _of_gradients(
            h, one, items
        )
        farthest = carray(at(h[FIRST + 7], one), (h[UNITS],))
        count = (2 * (rows + keys) + 1) * size
        scratch = carray(at(h[SCRATCH] + take(job, SEATS) * count * real_bytes, one), (count,))
        a, da = scratch[: rows * size], scratch[rows * size : 2 * rows * size]
        b, db = scratch[2 * rows * size :][: keys * size], scratch[(2 * rows + keys) * size : -size]
        v = scratch[-size:]
        ones, two, zeros = spread(one), spread(real(2)), spread(real(0))
        top = spread(real(ceiling))
        while True:
            unit = take(job, NEXT)
            if unit >= h[UNITS]:
                return
            item, first = unit // blocks, unit % blocks * step
            farthest[unit] = real(0)
            for low in range(first, min(width, first + step), size):
                filled = min(size, width - low)
                _take_columns(queries[item], low, filled, size, da)
                _take_columns(sources[item], low, filled, size, db)
                far_a, far_b = _raise(da, a, v), _raise(db, b, v)
                farthest[unit] = _farther(farthest[unit], _farther(far_a, far_b))
                cut = not far_a + far_b <= near
                _take_columns(vectors[item % heads : item % heads + 1], low, filled, size, v)
                da[:], db[:], dv = real(0), real(0), zeros
                for start in range(0, keys, KEYS_AT_ONCE):
                    stop = min(keys, start + KEYS_AT_ONCE)
                    for row in range(rows):
                        e, gradients = load(a, row * size), gradient[item, row]
                        q_of_row, gt_of_row = zeros, zeros
                        for key in range(start, stop):
                            x = ones + e * load(b, key * size)
                            if cut:
                                x = least(x, top)
                            g, t = spread(gradients[key]), ones - two * reciprocal(x)
                            gt = g * t
                            q = g - gt * t
                            store(db, key * size, load(db, key * size) + q)
                            q_of_row += q
                            gt_of_row += gt
                        store(da, row * size, load(da, row * size) + load(v, 0) * q_of_row)
                        dv += gt_of_row
                for key in range(keys):
                    store(db, key * size, load(v, 0) * load(db, key * size))
                store(v, 0, dv)
                _give_columns(da, of_queries[item], low, filled, size)
                _give_columns(db, of_sources[item], low, filled, size)
                _give_columns(v, of_vectors[item : item + 1], low, filled, size)

    return kernel
