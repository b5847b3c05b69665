"""The loops of the gradients of additive scores, compiled by numba for the CPU.

dL/da_td = v_d sum_i g_ti (1 - tanh^2),  dL/db_id = v_d sum_t g_ti (1 - tanh^2),
dL/dv_d = sum_ti g_ti tanh,              tanh = tanh(a_td + b_id), g_ti = dL/de_ti

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
    RANGES,
    ROWS,
    TOGETHER,
    UNITS,
    WIDTH,
    exp_2x,
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
    load_one,
    max_abs,
    place,
    prefetch,
    reciprocal,
    reduce_max_abs,
    splat,
    store,
)
from regard.kernels.additive.cpu.threads import NEXT, REFUSALS, SCRATCH, SEATS, at, take

KEYS_AT_ONCE = 256
"""Keys of a vector of features each that stay in the nearest cache while all queries look at them."""


@inlined
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


@inlined
def room_by_keys(rows: Any, padded: Any) -> Any:
    """Numbers that a thread has to itself: a, v and one key, and their gradients."""
    return (2 * rows + 4) * padded


def by_keys(real: Any) -> Callable[[Any], None]:
    """Gradients for a few queries: a unit is one item, whose keys come one after the other."""
    real_bytes, reach, ceiling = RANGES[real]
    size = BYTES // real_bytes

    def kernel(job: Any) -> None:
        h, one = carray(job, (PLACES,)), real(1)
        heads, rows, keys, width, items = h[HEADS], h[ROWS], h[KEYS], h[WIDTH], h[UNITS]
        queries, sources, vectors, gradient, of_queries, of_sources, of_vectors = _of_gradients(
            h, one, items
        )
        padded = (width + size - 1) // size * size
        own = take(job, SEATS) * room_by_keys(rows, padded) * real_bytes
        scratch = carray(at(h[SCRATCH] + own, one), (room_by_keys(rows, 1), padded))
        scratch[:, :] = real(0)
        v, dv, b, db = scratch[0], scratch[1], scratch[2], scratch[3]
        a, da = scratch[4 : 4 + rows], scratch[4 + rows :]
        ones, two, zeros = splat(one), splat(real(2)), splat(real(0))
        top = splat(real(ceiling))
        while True:
            item = take(job, NEXT)
            if item >= items:
                return
            far_a, far_b = zeros, zeros
            v[:width] = vectors[item % heads]
            far_v = measured(v, zeros)[1]
            dv[:], da[:, :], a[:, :] = real(0), real(0), real(0)
            for row in range(rows):
                a[row, :width] = queries[item, row]
                for d in range(0, padded, size):
                    x = load(a[row], d)
                    far_a = max_abs(far_a, x)
                    store(a[row], d, exp_2x(x))
            for key in range(keys):
                source, of_source = sources[item, key], of_sources[item, key]
                if width < padded:
                    b[:width] = source
                    source, of_source = b, db
                for d in range(0, padded, size):
                    x, q_of_key, gt_of_key = load(source, d), zeros, zeros
                    far_b = max_abs(far_b, x)
                    e = exp_2x(x)
                    for row in range(rows):
                        g = splat(gradient[item, row, key])
                        t = ones - two * reciprocal(least(ones + load(a[row], d) * e, top))
                        q = ones - t * t
                        store(da[row], d, fma(g, q, load(da[row], d)))
                        q_of_key = fma(g, q, q_of_key)
                        gt_of_key = fma(g, t, gt_of_key)
                    store(of_source, d, load(v, d) * q_of_key)
                    store(dv, d, load(dv, d) + gt_of_key)
                if width < padded:
                    of_sources[item, key] = db[:width]
            for row in range(rows):
                for d in range(width):
                    of_queries[item, row, d] = v[d] * da[row, d]
            of_vectors[item] = dv[:width]
            far = larger_or_nan(reduce_max_abs(far_a), reduce_max_abs(far_b))
            if not (far <= reach and far_v <= LARGEST_VECTOR):
                take(job, REFUSALS)

    return kernel


@inlined
def _take_columns(rows: Any, low: Any, filled: Any, size: Any, columns: Any) -> None:
    """A vector of features of every row; zeros where there are fewer."""
    for row in range(len(rows)):
        if filled == size:
            store(columns, row * size, load(rows[row], low))
        else:
            for d in range(size):
                columns[row * size + d] = rows[row, low + d] if d < filled else 0


@inlined
def _tanh_of_two(e: Any, f: Any, b: Any, half: Any, top: Any, cut: Any) -> Any:
    """The tanh of two queries at a key with one reciprocal, given halves of e^{2a}."""
    x, y = half + e * b, half + f * b
    if cut:
        x, y = least(x, top), least(y, top)
    r = reciprocal(x * y)
    return half + half - y * r, half + half - x * r


@inlined
def _four_rows(
    a: Any, b: Any, g: Any, da: Any, db: Any, some: Any, stride: Any, half: Any, top: Any, cut: Any
) -> Any:
    """Add sums of g (1 - t^2) to da and db, for four queries and some keys; give that of g t.

    `some` are the first of the keys and the end; the rows of g are a stride from each other.
    """
    one, zeros, size = half + half, half - half, count(half)
    a0, a1, a2, a3 = load(a, 0), load(a, size), load(a, 2 * size), load(a, 3 * size)
    a0, a1, a2, a3 = half * a0, half * a1, half * a2, half * a3
    q0, q1, q2, q3, s, t = zeros, zeros, zeros, zeros, zeros, zeros
    for key in range(some[0], some[1]):
        at_key, of_key = load(b, key * size), load(db, key * size)
        t0, t1 = _tanh_of_two(a0, a1, at_key, half, top, cut)
        t2, t3 = _tanh_of_two(a2, a3, at_key, half, top, cut)
        g0, g1 = load_one(g, key), load_one(g, stride + key)
        g2, g3 = load_one(g, 2 * stride + key), load_one(g, 3 * stride + key)
        s, t = fma(g1, t1, fma(g0, t0, s)), fma(g3, t3, fma(g2, t2, t))
        t0, t1, t2, t3 = one - t0 * t0, one - t1 * t1, one - t2 * t2, one - t3 * t3
        store(db, key * size, fma(g3, t3, fma(g2, t2, fma(g1, t1, fma(g0, t0, of_key)))))
        q0, q1, q2, q3 = fma(g0, t0, q0), fma(g1, t1, q1), fma(g2, t2, q2), fma(g3, t3, q3)
    store(da, 0, load(da, 0) + q0)
    store(da, size, load(da, size) + q1)
    store(da, 2 * size, load(da, 2 * size) + q2)
    store(da, 3 * size, load(da, 3 * size) + q3)
    return s + t


@inlined
def _one_row(a: Any, b: Any, g: Any, da: Any, db: Any, some: Any, half: Any, top: Any) -> Any:
    """The same for one query."""
    one, q, s, size = half + half, half - half, half - half, count(half)
    e = half * load(a, 0)
    for key in range(some[0], some[1]):
        t = one - reciprocal(least(half + e * load(b, key * size), top))
        p, u = load_one(g, key), one - t * t
        store(db, key * size, fma(p, u, load(db, key * size)))
        q, s = fma(p, u, q), fma(p, t, s)
    store(da, 0, load(da, 0) + q)
    return s


@inlined
def _ask(rows: Any, of_rows: Any, first: Any, low: Any, size: Any) -> None:
    """Ask for the next features of four rows, and for the place of the gradients of these.

    Rows are far apart: without, every pass over the features would wait for its first and last.
    """
    for row in range(first, min(first + 4, len(rows))):
        prefetch(rows[row], low + size)
        prefetch(of_rows[row], low)


@inlined
def room_by_features(rows: Any, keys: Any, size: Any) -> Any:
    """Numbers that a thread has to itself: a vector of features of a, b and v, and of gradients."""
    return (2 * (rows + keys) + 1) * size


def by_features(real: Any) -> Callable[[Any], None]:
    """Gradients: a unit is some vectors of features of one item, each over all queries and keys."""
    real_bytes, reach, ceiling = RANGES[real]
    size, near = BYTES // real_bytes, math.log(ceiling)

    def kernel(job: Any) -> None:
        h, one = carray(job, (PLACES,)), real(1)
        heads, rows, keys, width = h[HEADS], h[ROWS], h[KEYS], h[WIDTH]
        step = h[TOGETHER] * size
        blocks = (width + step - 1) // step
        items = h[UNITS] // blocks
        queries, sources, vectors, g, of_queries, of_sources, of_vectors = _of_gradients(
            h, one, items
        )
        room = room_by_features(rows, keys, size)
        scratch = carray(at(h[SCRATCH] + take(job, SEATS) * room * real_bytes, one), (room,))
        several = rows // 4 * 4
        a, da = scratch[: rows * size], scratch[rows * size : 2 * rows * size]
        b, db = scratch[2 * rows * size :][: keys * size], scratch[(2 * rows + keys) * size : -size]
        v = scratch[-size:]
        half, top, zeros = splat(real(0.5)), splat(real(ceiling**2)), splat(real(0))
        while True:
            unit = take(job, NEXT)
            if unit >= h[UNITS]:
                return
            item, first = unit // blocks, unit % blocks * step
            farthest = real(0)
            for low in range(first, min(width, first + step), size):
                filled = min(size, width - low)
                _take_columns(queries[item], low, filled, size, da)
                _take_columns(sources[item], low, filled, size, db)
                far_a, far_b = exp_2x_row(da, a, v), exp_2x_row(db, b, v)
                farthest = larger_or_nan(farthest, larger_or_nan(far_a, far_b))
                _take_columns(vectors[item % heads : item % heads + 1], low, filled, size, v)
                far_v = reduce_max_abs(load(v, 0))
                if not far_v <= LARGEST_VECTOR:
                    farthest = far_v
                da[:], db[:], dv = real(0), real(0), zeros
                for start in range(0, keys, KEYS_AT_ONCE):
                    some = start, min(keys, start + KEYS_AT_ONCE)
                    for row in range(0, several, 4):
                        if start == 0:
                            _ask(queries[item], of_queries[item], row, low, size)
                            _ask(sources[item], of_sources[item], row, low, size)
                        x, dx = place(a, row * size), place(da, row * size)
                        de = place(g, (item * rows + row) * keys)
                        if far_a + far_b <= near:
                            dv += _four_rows(x, b, de, dx, db, some, keys, half, top, False)
                        else:
                            dv += _four_rows(x, b, de, dx, db, some, keys, half, top, True)
                    for row in range(several, rows):
                        x, dx = place(a, row * size), place(da, row * size)
                        de = place(g, (item * rows + row) * keys)
                        dv += _one_row(x, b, de, dx, db, some, half, top)
                for row in range(rows):
                    store(da, row * size, load(v, 0) * load(da, row * size))
                for key in range(keys):
                    store(db, key * size, load(v, 0) * load(db, key * size))
                store(v, 0, dv)
                give_columns(da, of_queries[item], low, filled, size)
                give_columns(db, of_sources[item], low, filled, size)
                give_columns(v, of_vectors[item : item + 1], low, filled, size)
            if not farthest <= reach:
                take(job, REFUSALS)

    return kernel
