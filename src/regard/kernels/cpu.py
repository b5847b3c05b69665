"""The additive scores and their gradients on the CPU, compiled by numba.

    e_ti = v . tanh(a_t + b_i),    tanh(a + b) = 1 - 2 r,    r = 1 / (1 + e^{2a} e^{2b})

The exponentials are taken once per row; what is left for every pair and feature is a
multiplication, an addition and a reciprocal, and the gradient needs the same r:
1 - tanh^2 = 4 r (1 - r). Results do not depend on the number of threads, see `workers.py`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numba import carray
from torch import Tensor

from regard.kernels import workers
from regard.kernels.workers import COUNTER_LINE, as_float, at, take

# places in the list that every kernel gets; addresses follow the sizes
UNITS, HEADS, ROWS, KEYS, WIDTH, BLOCK, FIRST = range(COUNTER_LINE, COUNTER_LINE + 7)
PLACES = FIRST + 8

REACH = 43.5
"""|x| up to which e^{2x} is a normal float32, and the product of two of them not 0 x infinity."""

LARGEST_VECTOR = 1e18
"""|v| up to which sums over pairs of features stay finite on their way."""

QUERIES_PER_UNIT = 8
"""Queries that share a look at every key while it is in the nearest cache."""

FEATURES_PER_UNIT = 16
"""Features of a unit of the wide gradient: a line of the cache."""

NUMBERS_PER_UNIT = 1 << 14
"""Numbers of a unit of exponentials."""

MANY_ITEMS = 8
"""Batch items enough to keep the threads busy with one each."""

LANES = 32
"""Keys from which on the wide gradient has its vector lanes full."""


def exponentials(rows: Tensor) -> Tensor | None:
    """e^{2x}; None where a number is NaN, or so far out that the kernels would not be exact."""
    rows = rows.contiguous()
    if rows.dtype == torch.float64:
        near = (rows.abs() <= 8 * REACH).all()
        return (2 * rows).exp_() if near else None
    out = torch.empty_like(rows)
    units = -(-rows.numel() // NUMBERS_PER_UNIT)
    outside = torch.empty(units)
    sizes = 0, 0, rows.numel(), 0, NUMBERS_PER_UNIT
    work, flags = 8 * rows.numel(), frozenset({"contract"})
    workers.run(_make_exponentials, units, sizes, [rows, out, outside], work, flags)
    return None if outside.numpy().any() else out


def near(vectors: Tensor) -> bool:
    """Whether the kernels are exact with these v."""
    # NaN compares false
    return bool((abs(vectors.detach().numpy()) <= LARGEST_VECTOR).all())


def scores(queries: Tensor, sources: Tensor, vectors: Tensor) -> Tensor:
    """The scores from e^{2a} (N, L, D), e^{2b} (N, T, D) and v (H, D), item n with row n mod H."""
    queries, sources, vectors = (each.contiguous() for each in (queries, sources, vectors))
    items, rows, width = queries.shape
    keys = sources.shape[1]
    out = queries.new_empty(items, rows, keys)
    units = items * -(-rows // QUERIES_PER_UNIT)
    sizes = vectors.shape[0], rows, keys, width, QUERIES_PER_UNIT
    workers.run(_make_scores, units, sizes, [queries, sources, vectors, out], out.numel() * width)
    return out


def gradients(
    gradient: Tensor, queries: Tensor, sources: Tensor, vectors: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of a (N, L, D), b (N, T, D) and v (H, D), given that of the scores (N, L, T)."""
    queries, sources, vectors = (each.contiguous() for each in (queries, sources, vectors))
    gradient = gradient.contiguous()
    items, rows, width = queries.shape
    keys = sources.shape[1]
    of_queries, of_sources = torch.empty_like(queries), torch.empty_like(sources)
    of_vectors = queries.new_empty(items, width)
    tensors = [queries, sources, vectors, gradient, of_queries, of_sources, of_vectors]
    make, units = _make_narrow, items
    if items < MANY_ITEMS and keys >= LANES and rows >= QUERIES_PER_UNIT:
        make, units = _make_wide, items * -(-width // FEATURES_PER_UNIT)
        tensors.append(gradient.sum(-1))
    sizes = vectors.shape[0], rows, keys, width, FEATURES_PER_UNIT
    workers.run(make, units, sizes, tensors, gradient.numel() * width)
    # numpy adds the items in their order, on one thread
    by_head = of_vectors.view(-1, *vectors.shape).numpy()
    return of_queries, of_sources, torch.from_numpy(by_head.sum(axis=0))


def _make_scores(real: Any) -> Callable[[Any], None]:
    """A unit is a few queries of one item: their scores with all keys, two features at a time.

    1 + e^{2(a+b)} is cut off so that the product of two stays finite; tanh is 1 long before.
    """
    ceiling = 1e18 if real is np.float32 else 1e150

    def scores(job: Any) -> None:
        h, one = carray(job, (PLACES,)), real(1)
        heads, rows, keys, width = h[HEADS], h[ROWS], h[KEYS], h[WIDTH]
        blocks = (rows + h[BLOCK] - 1) // h[BLOCK]
        items = h[UNITS] // blocks
        queries = carray(at(h[FIRST], one), (items, rows, width))
        sources = carray(at(h[FIRST + 1], one), (items, keys, width))
        vectors = carray(at(h[FIRST + 2], one), (heads, width))
        out = carray(at(h[FIRST + 3], one), (items, rows, keys))
        two, top, half = real(2), real(ceiling), width // 2
        while True:
            unit = take(job)
            if unit >= h[UNITS]:
                return
            item, start = unit // blocks, unit % blocks * h[BLOCK]
            v = vectors[item % heads]
            v0, v1 = v[:half], v[half : 2 * half]
            total = real(0)
            for d in range(width):
                total += v[d]
            for key in range(keys):
                b = sources[item, key]
                b0, b1 = b[:half], b[half : 2 * half]
                for row in range(start, min(start + h[BLOCK], rows)):
                    a = queries[item, row]
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
                    out[item, row, key] = total - two * s

    return scores


def _make_wide(real: Any) -> Callable[[Any], None]:
    """Gradients with the keys on the vector lanes: a unit is a few features of one item.

    Its columns are turned into rows in a scratch of the thread's own, and back.
    """

    def wide(job: Any) -> None:
        h, one = carray(job, (PLACES,)), real(1)
        heads, rows, keys, width, block = h[HEADS], h[ROWS], h[KEYS], h[WIDTH], h[BLOCK]
        blocks = (width + block - 1) // block
        items = h[UNITS] // blocks
        queries = carray(at(h[FIRST], one), (items, rows, width))
        sources = carray(at(h[FIRST + 1], one), (items, keys, width))
        vectors = carray(at(h[FIRST + 2], one), (heads, width))
        gradient = carray(at(h[FIRST + 3], one), (items, rows, keys))
        of_queries = carray(at(h[FIRST + 4], one), (items, rows, width))
        of_sources = carray(at(h[FIRST + 5], one), (items, keys, width))
        of_vectors = carray(at(h[FIRST + 6], one), (items, width))
        row_sums = carray(at(h[FIRST + 7], one), (items, rows))
        half = real(0.5)
        turned = np.empty((3, block, max(rows, keys)), dtype=real)
        while True:
            unit = take(job)
            if unit >= h[UNITS]:
                return
            item, low = unit // blocks, unit % blocks * block
            size = min(block, width - low)
            for row in range(rows):
                for d in range(size):
                    turned[0, d, row] = queries[item, row, low + d]
            for key in range(keys):
                for d in range(size):
                    turned[1, d, key] = sources[item, key, low + d]
            for d in range(size):
                a, b, db = turned[0, d], turned[1, d], turned[2, d]
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
        half = real(0.5)
        while True:
            item = take(job)
            if item >= items:
                return
            v, all_r = vectors[item % heads], of_vectors[item]
            all_r[:] = real(0)
            of_queries[item, :, :] = real(0)
            for key in range(keys):
                b, db = sources[item, key], of_sources[item, key]
                db[:] = real(0)
                for row in range(rows):
                    a, da, g = queries[item, row], of_queries[item, row], gradient[item, row, key]
                    for d in range(width):
                        r = one / (one + a[d] * b[d])
                        gr = g * r
                        q = gr - gr * r
                        db[d] += q
                        da[d] += q
                        all_r[d] += gr - half * g
                for d in range(width):
                    db[d] *= real(4) * v[d]
            for row in range(rows):
                da = of_queries[item, row]
                for d in range(width):
                    da[d] *= real(4) * v[d]
            for d in range(width):
                all_r[d] *= -real(2)

    return narrow


def _make_exponentials(real: Any) -> Callable[[Any], None]:
    """e^{2x} in float32 to a unit of rounding, for a unit of numbers, and how many are too far out.

    2x = n ln 2 + f with |f| <= ln 2 / 2: a polynomial in f times 2^n, which is put together from
    its bits. The coefficients are those of the Cephes library's expf.
    """

    def exponentials(job: Any) -> None:
        h, one = carray(job, (PLACES,)), real(1)
        size, block = h[KEYS], h[BLOCK]
        rows, out = carray(at(h[FIRST], one), (size,)), carray(at(h[FIRST + 1], one), (size,))
        outside = carray(at(h[FIRST + 2], one), (h[UNITS],))
        per_log, high, low = real(1.44269504088896341), real(0.693359375), real(-2.12194440e-4)
        c0, c1, c2 = real(1.9875691500e-4), real(1.3981999507e-3), real(8.3334519073e-3)
        c3, c4, c5 = real(4.1665795894e-2), real(1.6666665459e-1), real(5.0000001201e-1)
        farthest, half = real(REACH), real(0.5)
        while True:
            unit = take(job)
            if unit >= h[UNITS]:
                return
            start = unit * block
            x, y = rows[start : start + block], out[start : start + block]
            beyond = 0
            for i in range(len(x)):
                # NaN compares false
                beyond += 0 if abs(x[i]) <= farthest else 1
                z = x[i] + x[i]
                n = np.floor(z * per_log + half)
                f = z - n * high
                f = f - n * low
                p = ((((c0 * f + c1) * f + c2) * f + c3) * f + c4) * f + c5
                y[i] = (p * f * f + f + one) * as_float(np.int32((np.int32(n) + 127) << 23))
            outside[unit] = beyond

    return exponentials
