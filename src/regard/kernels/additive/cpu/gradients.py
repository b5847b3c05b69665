"""CPU kernels for the gradients of additive scores.

dL/da_td = v_d sum_i g_ti (1 - tanh^2),  dL/db_id = v_d sum_t g_ti (1 - tanh^2),
dL/dv_d = sum_ti g_ti tanh,              tanh = tanh(a_td + b_id), g_ti = dL/de_ti
"""

import math
from collections.abc import Callable
from typing import Any

from regard.kernels.additive.cpu import layout
from regard.kernels.additive.cpu.exponentials import exp_2x_row, larger_or_nan
from regard.kernels.additive.cpu.layout import LARGEST_VECTOR, RANGES
from regard.kernels.cpu import simd, tasks, threads
from regard.kernels.cpu.processor import BYTES

_by_keys_shape: Any = simd.inlined(layout.by_keys_shape)
_by_features_shape: Any = simd.inlined(layout.by_features_shape)

KEY_TILE = 256
"""Number of keys of which a vector of features stays in the L1 cache during a loop over queries."""


@simd.inlined
def _arrays(arguments: Any, items: Any, one: Any) -> Any:
    """Return a, b, v and the gradient of the scores, then the gradients of a, b and v."""
    _, queries, keys, width = tasks.read_sizes(arguments)
    return (
        *tasks.read_arrays(arguments, items, one),
        tasks.array(arguments, 4, (items, queries, width), one),
        tasks.array(arguments, 5, (items, keys, width), one),
        tasks.array(arguments, 6, (items, width), one),
    )


def by_keys(real: Any) -> Callable[[Any], None]:
    """Return the kernel for few queries; a task is one item, whose keys are processed in order."""
    real_bytes, limit, largest = RANGES[real]
    size = BYTES // real_bytes

    def kernel(arguments: Any) -> None:
        one, items = real(1), arguments[threads.TASKS]
        heads, n_queries, n_keys, width = tasks.read_sizes(arguments)
        queries, keys, vectors, g, grad_a, grad_b, grad_v = _arrays(arguments, items, one)
        padded = (width + size - 1) // size * size
        workspace = tasks.thread_workspace(arguments, _by_keys_shape(n_queries, padded), one)
        workspace[:, :] = real(0)
        v, dv, b, db = workspace[0], workspace[1], workspace[2], workspace[3]
        a, da = workspace[4 : 4 + n_queries], workspace[4 + n_queries :]
        ones, two, zeros = simd.splat(one), simd.splat(real(2)), simd.splat(real(0))
        ceiling = simd.splat(real(largest))
        while True:
            item = tasks.fetch_add(arguments, threads.NEXT_TASK)
            if item >= items:
                return
            max_a, max_b = zeros, zeros
            simd.copy(vectors[item % heads], v, width)
            max_v = simd.sum_and_max_abs(v, zeros)[1]
            dv[:], da[:, :], a[:, :] = real(0), real(0), real(0)
            for row in range(n_queries):
                simd.copy(queries[item, row], a[row], width)
                for d in range(0, padded, size):
                    x = simd.load(a[row], d)
                    max_a = simd.max_abs(max_a, x)
                    simd.store(a[row], d, simd.exp_2x(x))
            for key in range(n_keys):
                b_of_key, db_of_key = keys[item, key], grad_b[item, key]
                if width < padded:
                    simd.copy(b_of_key, b, width)
                    b_of_key, db_of_key = b, db
                for d in range(0, padded, size):
                    x, q_of_key, gt_of_key = simd.load(b_of_key, d), zeros, zeros
                    max_b = simd.max_abs(max_b, x)
                    e = simd.exp_2x(x)
                    for row in range(n_queries):
                        p = simd.splat(g[item, row, key])
                        y = simd.minimum(ones + simd.load(a[row], d) * e, ceiling)
                        t = ones - two * simd.reciprocal(y)
                        q = ones - t * t
                        simd.store(da[row], d, simd.fma(p, q, simd.load(da[row], d)))
                        q_of_key = simd.fma(p, q, q_of_key)
                        gt_of_key = simd.fma(p, t, gt_of_key)
                    simd.store(db_of_key, d, simd.load(v, d) * q_of_key)
                    simd.store(dv, d, simd.load(dv, d) + gt_of_key)
                if width < padded:
                    simd.copy(db, grad_b[item, key], width)
            for row in range(n_queries):
                for d in range(width):
                    grad_a[item, row, d] = v[d] * da[row, d]
            simd.copy(dv, grad_v[item], width)
            max_ab = larger_or_nan(simd.reduce_max_abs(max_a), simd.reduce_max_abs(max_b))
            if not (max_ab <= limit and max_v <= LARGEST_VECTOR):
                tasks.fetch_add(arguments, threads.OUT_OF_RANGE)

    return kernel


@simd.inlined
def _load_columns(rows: Any, low: Any, filled: Any, size: Any, columns: Any) -> None:
    """Copy a vector of features of every row, padded with zeros."""
    for row in range(len(rows)):
        if filled == size:
            simd.store(columns, row * size, simd.load(rows[row], low))
        else:
            for d in range(size):
                columns[row * size + d] = rows[row, low + d] if d < filled else 0


@simd.inlined
def _tanh_of_two(a0: Any, a1: Any, b: Any, half: Any, ceiling: Any, clamp: Any) -> Any:
    """Return tanh for two queries and a key, with one reciprocal; a0 and a1 are e^{2a} / 2."""
    x, y = half + a0 * b, half + a1 * b
    if clamp:
        x, y = simd.minimum(x, ceiling), simd.minimum(y, ceiling)
    r = simd.reciprocal(x * y)
    return half + half - y * r, half + half - x * r


@simd.inlined
def _four_rows(
    a: Any, b: Any, g: Any, da: Any, db: Any, keys: Any, stride: Any, half: Any, ceiling: Any,
    clamp: Any,
) -> Any:  # fmt: skip
    """Add sums of g (1 - t^2) to da and db for four queries and a range of keys; return the sum of g t.

    `keys` contains the first key and the end; `stride` is the distance between rows of g.
    """
    one, zeros, size = half + half, half - half, simd.lane_count(half)
    a0, a1 = simd.load(a, 0), simd.load(a, size)
    a2, a3 = simd.load(a, 2 * size), simd.load(a, 3 * size)
    a0, a1, a2, a3 = half * a0, half * a1, half * a2, half * a3
    q0, q1, q2, q3, s, t = zeros, zeros, zeros, zeros, zeros, zeros
    for key in range(keys[0], keys[1]):
        b_of_key, db_of_key = simd.load(b, key * size), simd.load(db, key * size)
        t0, t1 = _tanh_of_two(a0, a1, b_of_key, half, ceiling, clamp)
        t2, t3 = _tanh_of_two(a2, a3, b_of_key, half, ceiling, clamp)
        g0, g1 = simd.load_splat(g, key), simd.load_splat(g, stride + key)
        g2, g3 = simd.load_splat(g, 2 * stride + key), simd.load_splat(g, 3 * stride + key)
        s, t = simd.fma(g1, t1, simd.fma(g0, t0, s)), simd.fma(g3, t3, simd.fma(g2, t2, t))
        t0, t1, t2, t3 = one - t0 * t0, one - t1 * t1, one - t2 * t2, one - t3 * t3
        db_of_key = simd.fma(g1, t1, simd.fma(g0, t0, db_of_key))
        simd.store(db, key * size, simd.fma(g3, t3, simd.fma(g2, t2, db_of_key)))
        q0, q1 = simd.fma(g0, t0, q0), simd.fma(g1, t1, q1)
        q2, q3 = simd.fma(g2, t2, q2), simd.fma(g3, t3, q3)
    simd.store(da, 0, simd.load(da, 0) + q0)
    simd.store(da, size, simd.load(da, size) + q1)
    simd.store(da, 2 * size, simd.load(da, 2 * size) + q2)
    simd.store(da, 3 * size, simd.load(da, 3 * size) + q3)
    return s + t


@simd.inlined
def _one_row(a: Any, b: Any, g: Any, da: Any, db: Any, keys: Any, half: Any, ceiling: Any) -> Any:
    """Do the same for one query."""
    one, q, s, size = half + half, half - half, half - half, simd.lane_count(half)
    e = half * simd.load(a, 0)
    for key in range(keys[0], keys[1]):
        t = one - simd.reciprocal(simd.minimum(half + e * simd.load(b, key * size), ceiling))
        p, u = simd.load_splat(g, key), one - t * t
        simd.store(db, key * size, simd.fma(p, u, simd.load(db, key * size)))
        q, s = simd.fma(p, u, q), simd.fma(p, t, s)
    simd.store(da, 0, simd.load(da, 0) + q)
    return s


@simd.inlined
def _prefetch_rows(rows: Any, grad_rows: Any, first: Any, low: Any, size: Any) -> None:
    """Prefetch the next features of four rows, and the gradients of the current ones.

    Rows are far apart in memory: without this, every pass over the features would wait for them.
    """
    for row in range(first, min(first + 4, len(rows))):
        simd.prefetch(rows[row], low + size)
        simd.prefetch(grad_rows[row], low)


@simd.inlined
def _store_scaled(columns: Any, v: Any, rows: Any, low: Any, filled: Any, size: Any) -> None:
    """Multiply columns by v and write them to rows, as `store_columns` does."""
    for row in range(len(rows)):
        simd.store(columns, row * size, simd.load(v, 0) * simd.load(columns, row * size))
    simd.store_columns(columns, rows, low, filled, size)


def by_features(real: Any) -> Callable[[Any], None]:
    """Return the kernel for many queries; a task is some vectors of features of one item."""
    real_bytes, limit, largest = RANGES[real]
    size, near = BYTES // real_bytes, math.log(largest)

    def kernel(arguments: Any) -> None:
        one, step = real(1), arguments[threads.TILE] * size
        heads, n_queries, n_keys, width = tasks.read_sizes(arguments)
        tiles = (width + step - 1) // step
        items = arguments[threads.TASKS] // tiles
        queries, keys, vectors, g, grad_a, grad_b, grad_v = _arrays(arguments, items, one)
        shape = _by_features_shape(n_queries, n_keys, size)
        workspace = tasks.thread_workspace(arguments, shape, one)[0]
        end = n_queries // 4 * 4
        a, rest = workspace[: n_queries * size], workspace[n_queries * size :]
        da, rest = rest[: n_queries * size], rest[n_queries * size :]
        b, db, v = rest[: n_keys * size], rest[n_keys * size : -size], rest[-size:]
        half, zeros = simd.splat(real(0.5)), simd.splat(real(0))
        ceiling = simd.splat(real(largest**2))
        while True:
            task = tasks.fetch_add(arguments, threads.NEXT_TASK)
            if task >= arguments[threads.TASKS]:
                return
            item, first = task // tiles, task % tiles * step
            max_ab = real(0)
            for low in range(first, min(width, first + step), size):
                filled = min(size, width - low)
                _load_columns(queries[item], low, filled, size, da)
                _load_columns(keys[item], low, filled, size, db)
                max_a, max_b = exp_2x_row(da, a, v), exp_2x_row(db, b, v)
                max_ab = larger_or_nan(max_ab, larger_or_nan(max_a, max_b))
                _load_columns(vectors[item % heads : item % heads + 1], low, filled, size, v)
                max_v = simd.reduce_max_abs(simd.load(v, 0))
                if not max_v <= LARGEST_VECTOR:
                    max_ab = max_v
                da[:], db[:], dv = real(0), real(0), zeros
                for start in range(0, n_keys, KEY_TILE):
                    tile = start, min(n_keys, start + KEY_TILE)
                    for row in range(0, end, 4):
                        if start == 0:
                            _prefetch_rows(queries[item], grad_a[item], row, low, size)
                            _prefetch_rows(keys[item], grad_b[item], row, low, size)
                        x, dx = simd.pointer_at(a, row * size), simd.pointer_at(da, row * size)
                        de = simd.pointer_at(g, (item * n_queries + row) * n_keys)
                        if max_a + max_b <= near:
                            dv += _four_rows(x, b, de, dx, db, tile, n_keys, half, ceiling, False)
                        else:
                            dv += _four_rows(x, b, de, dx, db, tile, n_keys, half, ceiling, True)
                    for row in range(end, n_queries):
                        x, dx = simd.pointer_at(a, row * size), simd.pointer_at(da, row * size)
                        de = simd.pointer_at(g, (item * n_queries + row) * n_keys)
                        dv += _one_row(x, b, de, dx, db, tile, half, ceiling)
                _store_scaled(da, v, grad_a[item], low, filled, size)
                _store_scaled(db, v, grad_b[item], low, filled, size)
                simd.store(v, 0, dv)
                simd.store_columns(v, grad_v[item : item + 1], low, filled, size)
            if not max_ab <= limit:
                tasks.fetch_add(arguments, threads.OUT_OF_RANGE)

    return kernel
