"""The additive scores and their gradients on the CPU, compiled by numba.

    e_ti = v . tanh(a_t + b_i),    tanh(a + b) = 1 - 2 r,    r = 1 / (1 + e^{2a} e^{2b})

The exponentials are taken once per row; what is left for every pair and feature is a
multiplication, an addition and a reciprocal, and the gradient needs the same r:
1 - tanh^2 = 4 r (1 - r). Results do not depend on the number of threads, see `workers.py`.

Where an exponential would be NaN, or so far out that the result would not be exact, the functions
here give None.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numba import types
from numba.extending import overload
from numba.np.numpy_support import carray
from torch import Tensor

from regard.kernels import workers
from regard.kernels.workers import NEXT, SCRATCH, SEATS, as_float, at, take

# places in the list that every kernel gets; the addresses follow the sizes
UNITS, HEADS, ROWS, KEYS, WIDTH, POWERS, FIRST = range(workers.FIRST, workers.FIRST + 7)
PLACES = FIRST + 9

REACH = 43.5
"""|x| up to which e^{2x} is a normal float32, and the product of two of them not 0 x infinity."""

REACH_OF_DOUBLES = 354.0
"""The same for float64."""

LARGEST_VECTOR = 1e18
"""|v| up to which sums over pairs of features stay finite on their way."""

QUERIES_PER_UNIT = 8
"""Queries that share a look at every key while it is in the nearest cache."""

FEATURES_PER_UNIT = 16
"""Features of a unit of the wide gradient: a line of the cache."""

ROWS_PER_UNIT = 64
"""Rows of a unit of exponentials."""

MANY_ITEMS = 8
"""Batch items enough to keep the threads busy with one each."""

LANES = 32
"""Keys from which on the wide gradient has its vector lanes full."""


def exponentials(rows: Tensor) -> Tensor | None:
    """e^{2x} of rows (..., D)."""
    rows = rows.contiguous()
    out = torch.empty_like(rows)
    width = rows.shape[-1]
    count = rows.numel() // max(1, width)
    units = -(-count // ROWS_PER_UNIT)
    outside = torch.zeros(units, dtype=rows.dtype)
    sizes = 1, 1, count, width, 0
    workers.run(_make_exponentials, units, sizes, [rows, out, outside], 8 * rows.numel())
    return None if outside.numpy().any() else out


def scores(
    queries: Tensor, sources: Tensor, vectors: Tensor, powers: Tensor | None = None
) -> Tensor | None:
    """The scores of a (N, L, D), b (N, T, D) and v (H, D), item n with row n mod H of v.

    `powers` are the exponentials of b, where they are at hand.
    """
    items, rows, width = queries.shape
    units = items * -(-rows // QUERIES_PER_UNIT)
    if not _near(vectors):
        return None
    if powers is None and rows > QUERIES_PER_UNIT:
        powers = exponentials(sources)
        if powers is None:
            return None
    keys = sources.shape[1]
    sources = sources if powers is None else powers
    given = [each.contiguous() for each in (queries, sources, vectors)]
    out, outside = queries.new_empty(items, rows, keys), queries.new_zeros(units)
    sizes = vectors.shape[0], rows, keys, width, int(powers is not None)
    scratch = (QUERIES_PER_UNIT + 1) * width
    workers.run(_make_scores, units, sizes, [*given, out, outside], out.numel() * width, scratch)
    return None if outside.numpy().any() else out


def gradients(
    gradient: Tensor, queries: Tensor, sources: Tensor, vectors: Tensor
) -> tuple[Tensor, Tensor, Tensor] | None:
    """The gradients of a (N, L, D), b (N, T, D) and v (H, D), given that of the scores (N, L, T)."""
    if not _near(vectors):
        return None
    given = [each.contiguous() for each in (queries, sources, vectors, gradient)]
    items, rows, width = queries.shape
    keys = sources.shape[1]
    of_queries, of_sources = (queries.new_empty(each.shape) for each in (queries, sources))
    of_vectors = queries.new_empty(items, width)
    make, units, scratch = _make_narrow, items, (rows + 1) * width
    if items < MANY_ITEMS and keys >= LANES and rows >= QUERIES_PER_UNIT:
        make, units = _make_wide, items * -(-width // FEATURES_PER_UNIT)
        scratch = 3 * FEATURES_PER_UNIT * max(rows, keys)
    outside, sums = queries.new_zeros(units), given[3].sum(-1)
    sizes = vectors.shape[0], rows, keys, width, 0
    tensors = [*given, of_queries, of_sources, of_vectors, outside, sums]
    workers.run(make, units, sizes, tensors, gradient.numel() * width, scratch)
    if outside.numpy().any():
        return None
    # numpy adds the items in their order, on one thread
    by_head = of_vectors.view(-1, *vectors.shape).numpy()
    return of_queries, of_sources, torch.from_numpy(by_head.sum(axis=0))


def _near(vectors: Tensor) -> bool:
    # NaN compares false
    return bool((abs(vectors.numpy()) <= LARGEST_VECTOR).all())


def _raise(x: Any, y: Any) -> int:
    """Write e^{2x} to y; how many x are too far out, or NaN."""
    raise NotImplementedError("compiled by numba alone")


@overload(_raise, jit_options={"fastmath": {"contract"}, "error_model": "numpy"})
def _overload_raise(x: Any, y: Any) -> Any:
    return _raise_doubles if x.dtype == types.float64 else _raise_floats


def _raise_doubles(x: Any, y: Any) -> int:
    beyond = 0
    for i in range(len(x)):
        beyond += 0 if abs(x[i]) <= REACH_OF_DOUBLES else 1
        y[i] = math.exp(x[i] + x[i])
    return beyond


def _raise_floats(x: Any, y: Any) -> int:
    """To a unit of rounding, on the vector lanes.

    2x = n ln 2 + f with |f| <= ln 2 / 2: a polynomial in f times 2^n, which is put together from
    its bits. The coefficients are those of expf in the Cephes library.
    """
    real = np.float32
    per_log, high, low = real(1.44269504088896341), real(0.693359375), real(-2.12194440e-4)
    c0, c1, c2 = real(1.9875691500e-4), real(1.3981999507e-3), real(8.3334519073e-3)
    c3, c4, c5 = real(4.1665795894e-2), real(1.6666665459e-1), real(5.0000001201e-1)
    one, half, reach, beyond = real(1), real(0.5), real(REACH), 0
    for i in range(len(x)):
        # NaN compares false
        beyond += 0 if abs(x[i]) <= reach else 1
        z = x[i] + x[i]
        n = np.floor(z * per_log + half)
        f = z - n * high
        f = f - n * low
        p = ((((c0 * f + c1) * f + c2) * f + c3) * f + c4) * f + c5
        y[i] = (p * f * f + f + one) * as_float(np.int32((np.int32(n) + 127) << 23))
    return beyond


def _make_exponentials(real: Any) -> Callable[[Any], None]:
    """A unit is some rows."""

    def exponentials(job: Any) -> None:
        h, one = carray(job, (PLACES,)), real(1)
        count, width = h[KEYS], h[WIDTH]
        rows, out = (
            carray(at(h[FIRST], one), (count, width)),
            carray(at(h[FIRST + 1], one), (count, width)),
        )
        outside = carray(at(h[FIRST + 2], one), (h[UNITS],))
        while True:
            unit = take(job, NEXT)
            if unit >= h[UNITS]:
                return
            for row in range(unit * ROWS_PER_UNIT, min(count, (unit + 1) * ROWS_PER_UNIT)):
                outside[unit] += _raise(rows[row], out[row])

    return exponentials


def _make_scores(real: Any) -> Callable[[Any], None]:
    """A unit is a few queries of one item: their scores with all keys, two features at a time.

    1 + e^{2(a+b)} is cut off so that the product of two stays finite; tanh is 1 long before.
    """
    real_bytes, ceiling = (4, 1e18) if real is np.float32 else (8, 1e150)

    def scores(job: Any) -> None:
        h, one = carray(job, (PLACES,)), real(1)
        heads, rows, keys, width = h[HEADS], h[ROWS], h[KEYS], h[WIDTH]
        blocks = (rows + QUERIES_PER_UNIT - 1) // QUERIES_PER_UNIT
        items = h[UNITS] // blocks
        queries = carray(at(h[FIRST], one), (items, rows, width))
        sources = carray(at(h[FIRST + 1], one), (items, keys, width))
        vectors = carray(at(h[FIRST + 2], one), (heads, width))
        out = carray(at(h[FIRST + 3], one), (items, rows, keys))
        outside = carray(at(h[FIRST + 4], one), (h[UNITS],))
        two, top, half = real(2), real(ceiling), width // 2
        size = (QUERIES_PER_UNIT + 1) * width * real_bytes
        mine = at(h[SCRATCH] + take(job, SEATS) * size, one)
        powers = carray(mine, (QUERIES_PER_UNIT + 1, width))
        while True:
            unit = take(job, NEXT)
            if unit >= h[UNITS]:
                return
            item, start = unit // blocks, unit % blocks * QUERIES_PER_UNIT
            count = min(QUERIES_PER_UNIT, rows - start)
            v = vectors[item % heads]
            v0, v1 = v[:half], v[half : 2 * half]
            total, beyond = real(0), 0
            for d in range(width):
                total += v[d]
            for row in range(count):
                beyond += _raise(queries[item, start + row], powers[row])
            for key in range(keys):
                b = sources[item, key]
                if h[POWERS] == 0:
                    beyond += _raise(b, powers[QUERIES_PER_UNIT])
                    b = powers[QUERIES_PER_UNIT]
                b0, b1 = b[:half], b[half : 2 * half]
                for row in range(count):
                    a = powers[row]
                    a0, a1 = a[:half], a[half : 2 * half]
                    s = real(0)
                    for d in range(half):
                        x = one + a0[d] * b0[d]
                        y = one + a1[d] * b1[d]
                        x = top if x > top else x
                        y = top if y > top else y
                        s += (v0[d] * y + v1[d] * x) / (x * y)
                    if width % 2 == 1:
                        s += v[width - 1] / (one + a[width - 1] * b[width - 1])
                    out[item, start + row, key] = total - two * s
            outside[unit] = beyond

    return scores


def _make_wide(real: Any) -> Callable[[Any], None]:
    """Gradients with the keys on the vector lanes: a unit is a few features of one item.

    Its columns are turned into rows in a scratch of the thread's own, and back.
    """
    real_bytes = 4 if real is np.float32 else 8

    def wide(job: Any) -> None:
        h, one = carray(job, (PLACES,)), real(1)
        heads, rows, keys, width = h[HEADS], h[ROWS], h[KEYS], h[WIDTH]
        blocks = (width + FEATURES_PER_UNIT - 1) // FEATURES_PER_UNIT
        items = h[UNITS] // blocks
        queries = carray(at(h[FIRST], one), (items, rows, width))
        sources = carray(at(h[FIRST + 1], one), (items, keys, width))
        vectors = carray(at(h[FIRST + 2], one), (heads, width))
        gradient = carray(at(h[FIRST + 3], one), (items, rows, keys))
        of_queries = carray(at(h[FIRST + 4], one), (items, rows, width))
        of_sources = carray(at(h[FIRST + 5], one), (items, keys, width))
        of_vectors = carray(at(h[FIRST + 6], one), (items, width))
        outside = carray(at(h[FIRST + 7], one), (h[UNITS],))
        row_sums = carray(at(h[FIRST + 8], one), (items, rows))
        half = real(0.5)
        longest = max(rows, keys)
        size = 3 * FEATURES_PER_UNIT * longest * real_bytes
        mine = at(h[SCRATCH] + take(job, SEATS) * size, one)
        turned = carray(mine, (3, FEATURES_PER_UNIT, longest))
        while True:
            unit = take(job, NEXT)
            if unit >= h[UNITS]:
                return
            item, low = unit // blocks, unit % blocks * FEATURES_PER_UNIT
            size = min(FEATURES_PER_UNIT, width - low)
            for row in range(rows):
                for d in range(size):
                    turned[0, d, row] = queries[item, row, low + d]
            for key in range(keys):
                for d in range(size):
                    turned[1, d, key] = sources[item, key, low + d]
            for d in range(size):
                a, b, db = turned[0, d, :rows], turned[1, d, :keys], turned[2, d, :keys]
                outside[unit] += _raise(a, a) + _raise(b, b)
                scale = real(4) * vectors[item % heads, low + d]
                for key in range(keys):
                    db[key] = real(0)
                all_r = real(0)
                for row in range(rows):
                    e, g = a[row], gradient[item, row]
                    da, row_r = real(0), real(0)
                    for key in range(keys):
                        r = one / (one + e * b[key])
                        gr = g[key] * r
                        q = gr - gr * r
                        db[key] += q
                        da += q
                        row_r += gr
                    a[row] = scale * da
                    all_r += row_r - half * row_sums[item, row]
                for key in range(keys):
                    db[key] *= scale
                of_vectors[item, low + d] = -real(2) * all_r
            for row in range(rows):
                for d in range(size):
                    of_queries[item, row, low + d] = turned[0, d, row]
            for key in range(keys):
                for d in range(size):
                    of_sources[item, key, low + d] = turned[2, d, key]

    return wide


def _make_narrow(real: Any) -> Callable[[Any], None]:
    """Gradients with the features on the vector lanes: a unit is one item."""
    real_bytes = 4 if real is np.float32 else 8

    def narrow(job: Any) -> None:
        h, one = carray(job, (PLACES,)), real(1)
        heads, rows, keys, width, items = h[HEADS], h[ROWS], h[KEYS], h[WIDTH], h[UNITS]
        queries = carray(at(h[FIRST], one), (items, rows, width))
        sources = carray(at(h[FIRST + 1], one), (items, keys, width))
        vectors = carray(at(h[FIRST + 2], one), (heads, width))
        gradient = carray(at(h[FIRST + 3], one), (items, rows, keys))
        of_queries = carray(at(h[FIRST + 4], one), (items, rows, width))
        of_sources = carray(at(h[FIRST + 5], one), (items, keys, width))
        of_vectors = carray(at(h[FIRST + 6], one), (items, width))
        outside = carray(at(h[FIRST + 7], one), (items,))
        row_sums = carray(at(h[FIRST + 8], one), (items, rows))
        half = real(0.5)
        mine = at(h[SCRATCH] + take(job, SEATS) * (rows + 1) * width * real_bytes, one)
        powers = carray(mine, (rows + 1, width))
        b = powers[rows]
        while True:
            item = take(job, NEXT)
            if item >= items:
                return
            v, all_r, beyond = vectors[item % heads], of_vectors[item], 0
            total = real(0)
            for row in range(rows):
                total += row_sums[item, row]
            all_r[:] = -half * total
            of_queries[item, :, :] = real(0)
            for row in range(rows):
                beyond += _raise(queries[item, row], powers[row])
            for key in range(keys):
                beyond += _raise(sources[item, key], b)
                db = of_sources[item, key]
                db[:] = real(0)
                for row in range(rows):
                    a, da, g = powers[row], of_queries[item, row], gradient[item, row, key]
                    for d in range(width):
                        r = one / (one + a[d] * b[d])
                        gr = g * r
                        q = gr - gr * r
                        db[d] += q
                        da[d] += q
                        all_r[d] += gr
                for d in range(width):
                    db[d] *= real(4) * v[d]
            for row in range(rows):
                da = of_queries[item, row]
                for d in range(width):
                    da[d] *= real(4) * v[d]
            for d in range(width):
                all_r[d] *= -real(2)
            outside[item] = beyond

    return narrow
