"""The additive scores and their gradients on the CPU, compiled by numba, on PyTorch's own threads.

    e_ti = v . tanh(a_t + b_i),    tanh(a + b) = 1 - 2 r,    r = 1 / (1 + e^{2a} e^{2b})

The exponentials are taken once per row, outside; what is left for every pair and feature is a
multiplication, an addition and a reciprocal, and the gradient needs the same r:
1 - tanh^2 = 4 r (1 - r).

Every kernel is a C function of one pointer to a list of sizes and addresses. It takes units of work
from a counter in that list until none is left, so any number of threads can run it at once; a
number is always computed whole by one of them, which makes results equal to the bit for any number
of threads. The flags of the compiler allow contraction and reordering of sums, and nothing that
drops the checks for NaN and infinity.
"""

import ctypes
import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np
import torch
from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic
from torch import Tensor

# places in the list of sizes and addresses; the counter that every thread writes, place 0, lies on
# a cache line of its own
UNITS, HEADS, ROWS, KEYS, WIDTH, BLOCK, FIRST = range(16, 23)
PLACES = FIRST + 8

QUERIES_PER_UNIT = 8
"""Queries that share a look at every key while it is in the nearest cache."""

FEATURES_PER_UNIT = 16
"""Features of one unit of the gradients."""

MANY_ITEMS = 16
"""Batch items enough to keep the threads busy without cutting features into blocks."""

LANES = 32
"""Keys from which on the gradient has them on its vector lanes."""

WORK_PER_THREAD = 1 << 15
"""Pairs times features below which another thread is not worth waking."""

FLAGS = {"contract", "reassoc"}

CEILING = {torch.float32: 1e18, torch.float64: 1e150}
"""1 + e^{2(a+b)} is cut here, so that the product of two stays finite; tanh is 1 long before."""


@intrinsic
def _take(typing: Any, job: Any) -> Any:
    """The next unit of work: read and raise the counter, atomically."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        one = ir.Constant(ir.IntType(64), 1)
        return builder.atomic_rmw("add", arguments[0], one, "monotonic")

    return types.int64(types.CPointer(types.int64)), code


@intrinsic
def _at(typing: Any, address: Any, one: Any) -> Any:
    """An address as a pointer to numbers of the type of `one`."""
    pointer = types.CPointer(one)

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(pointer))

    return pointer(types.int64, one), code


def _make_scores(real: Any, ceiling: Any) -> Callable[..., None]:
    """A unit is a few queries of one item: their scores with all keys, two features at a time."""

    def scores(job: Any) -> None:
        h, one = carray(job, (PLACES,)), real(1)
        heads, rows, keys, width = h[HEADS], h[ROWS], h[KEYS], h[WIDTH]
        blocks = (rows + h[BLOCK] - 1) // h[BLOCK]
        items = h[UNITS] // blocks
        queries = carray(_at(h[FIRST], one), (items, rows, width))
        sources = carray(_at(h[FIRST + 1], one), (items, keys, width))
        vectors = carray(_at(h[FIRST + 2], one), (heads, width))
        out = carray(_at(h[FIRST + 3], one), (items, rows, keys))
        two, top, half = real(2), real(ceiling), width // 2
        while True:
            unit = _take(job)
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


def _make_wide(real: Any, ceiling: Any) -> Callable[..., None]:
    """Gradients with the keys on the vector lanes: a unit is one feature of one item.

    Rows come and go with the feature first: (items, width, rows) and (items, width, keys).
    """

    def wide(job: Any) -> None:
        h, one = carray(job, (PLACES,)), real(1)
        heads, rows, keys, width = h[HEADS], h[ROWS], h[KEYS], h[WIDTH]
        blocks = (width + h[BLOCK] - 1) // h[BLOCK]
        items = h[UNITS] // blocks
        queries = carray(_at(h[FIRST], one), (items, width, rows))
        sources = carray(_at(h[FIRST + 1], one), (items, width, keys))
        vectors = carray(_at(h[FIRST + 2], one), (heads, width))
        gradient = carray(_at(h[FIRST + 3], one), (items, rows, keys))
        of_queries = carray(_at(h[FIRST + 4], one), (items, width, rows))
        of_sources = carray(_at(h[FIRST + 5], one), (items, width, keys))
        of_vectors = carray(_at(h[FIRST + 6], one), (items, width))
        row_sums = carray(_at(h[FIRST + 7], one), (items, rows))
        half = real(0.5)
        while True:
            unit = _take(job)
            if unit >= h[UNITS]:
                return
            item, low = unit // blocks, unit % blocks * h[BLOCK]
            for d in range(low, min(low + h[BLOCK], width)):
                b, db = sources[item, d], of_sources[item, d]
                scale = real(4) * vectors[item % heads, d]
                for key in range(keys):
                    db[key] = real(0)
                all_r = real(0)
                for row in range(rows):
                    a, g = queries[item, d, row], gradient[item, row]
                    da, row_r = real(0), real(0)
                    for key in range(keys):
                        r = one / (one + a * b[key])
                        gr = g[key] * r
                        q = gr - gr * r
                        db[key] += q
                        da += q
                        row_r += gr
                    of_queries[item, d, row] = scale * da
                    all_r += row_r - half * row_sums[item, row]
                for key in range(keys):
                    db[key] *= scale
                of_vectors[item, d] = -real(2) * all_r

    return wide


def _make_narrow(real: Any, ceiling: Any) -> Callable[..., None]:
    """Gradients with the features on the vector lanes: a unit is a block of them of one item."""

    def narrow(job: Any) -> None:
        h, one = carray(job, (PLACES,)), real(1)
        heads, rows, keys, width, block = h[HEADS], h[ROWS], h[KEYS], h[WIDTH], h[BLOCK]
        blocks = (width + block - 1) // block
        items = h[UNITS] // blocks
        queries = carray(_at(h[FIRST], one), (items, rows, width))
        sources = carray(_at(h[FIRST + 1], one), (items, keys, width))
        vectors = carray(_at(h[FIRST + 2], one), (heads, width))
        gradient = carray(_at(h[FIRST + 3], one), (items, rows, keys))
        of_queries = carray(_at(h[FIRST + 4], one), (items, rows, width))
        of_sources = carray(_at(h[FIRST + 5], one), (items, keys, width))
        of_vectors = carray(_at(h[FIRST + 6], one), (items, width))
        half = real(0.5)
        while True:
            unit = _take(job)
            if unit >= h[UNITS]:
                return
            item, low = unit // blocks, unit % blocks * block
            high = min(low + block, width)
            v, all_r = vectors[item % heads, low:high], of_vectors[item, low:high]
            all_r[:] = real(0)
            for row in range(rows):
                of_queries[item, row, low:high] = real(0)
            for key in range(keys):
                b, db = sources[item, key, low:high], of_sources[item, key, low:high]
                db[:] = real(0)
                for row in range(rows):
                    a, da = queries[item, row, low:high], of_queries[item, row, low:high]
                    g = gradient[item, row, key]
                    for d in range(high - low):
                        r = one / (one + a[d] * b[d])
                        gr = g * r
                        q = gr - gr * r
                        db[d] += q
                        da[d] += q
                        all_r[d] += gr - half * g
                for d in range(high - low):
                    db[d] *= real(4) * v[d]
            for row in range(rows):
                da = of_queries[item, row, low:high]
                for d in range(high - low):
                    da[d] *= real(4) * v[d]
            for d in range(high - low):
                all_r[d] *= -real(2)

    return narrow


def scores(queries: Tensor, sources: Tensor, vectors: Tensor) -> Tensor:
    """The scores from e^{2a} (N, L, D), e^{2b} (N, T, D) and v (H, D), item n with row n mod H."""
    queries, sources, vectors = (each.contiguous() for each in (queries, sources, vectors))
    items, rows, _ = queries.shape
    out = queries.new_empty(items, rows, sources.shape[1])
    units = items * -(-rows // QUERIES_PER_UNIT)
    _run(_make_scores, units, QUERIES_PER_UNIT, queries, sources, vectors, out)
    return out


def gradients(
    gradient: Tensor, queries: Tensor, sources: Tensor, vectors: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of a (N, L, D), b (N, T, D) and v (H, D), given that of the scores (N, L, T)."""
    queries, sources, vectors = (each.contiguous() for each in (queries, sources, vectors))
    gradient = gradient.contiguous()
    items, rows, width = queries.shape
    of_vectors = queries.new_empty(items, width)
    if sources.shape[1] >= LANES and rows >= QUERIES_PER_UNIT:
        turned = [each.transpose(1, 2).contiguous() for each in (queries, sources)]
        results = [torch.empty_like(each) for each in turned]
        results += [of_vectors, gradient.sum(-1)]
        block = FEATURES_PER_UNIT
        _run(_make_wide, items * -(-width // block), block, *turned, vectors, gradient, *results)
        of_queries, of_sources = (each.transpose(1, 2).contiguous() for each in results[:2])
    else:
        of_queries, of_sources = torch.empty_like(queries), torch.empty_like(sources)
        block = width if items >= MANY_ITEMS else min(width, FEATURES_PER_UNIT)
        units = items * -(-width // max(1, block))
        results = (of_queries, of_sources, of_vectors)
        _run(_make_narrow, units, block, queries, sources, vectors, gradient, *results)
    # numpy adds the items in their order, on one thread
    by_head = of_vectors.view(-1, *vectors.shape).numpy()
    return of_queries, of_sources, torch.from_numpy(by_head.sum(axis=0))


def _run(make: Callable[..., Any], units: int, block: int, *tensors: Tensor) -> None:
    """Let as many threads as PyTorch would use work through the units of one kernel.

    The first four tensors are the queries, keys, vectors and scores (or their gradient).
    """
    vectors, pairs = tensors[2:4]
    if units == 0 or pairs.numel() == 0:
        for result in tensors[4:]:
            result.zero_()
        return
    sizes = (units, vectors.shape[0], pairs.shape[1], pairs.shape[2], vectors.shape[1], block)
    job = np.zeros(PLACES, dtype=np.int64)
    job[UNITS:FIRST] = sizes
    job[FIRST : FIRST + len(tensors)] = [tensor.data_ptr() for tensor in tensors]
    kernel = _compiled(make, pairs.dtype)
    work = pairs.numel() * vectors.shape[1]
    threads = min(torch.get_num_threads(), units, 1 + work // WORK_PER_THREAD)
    if threads == 1 or _threads.forked:
        kernel(job.ctypes.data)
    elif (team := _threads.team()) is not None:
        team(kernel, job.ctypes.data, threads, 0)
    else:
        pool = _threads.pool(threads - 1)
        others = [pool.submit(kernel, job.ctypes.data) for _ in range(threads - 1)]
        kernel(job.ctypes.data)
        for other in others:
            other.result()


Kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Threads:
    """Threads to run a kernel on: PyTorch's own where they can be had, else a pool.

    PyTorch's OpenMP threads go on spinning for some milliseconds after its operators, in the way of
    any others. `GOMP_parallel`, the entry of GNU's and LLVM's OpenMP, runs a C function on them.
    """

    def __init__(self) -> None:
        self.forked = False
        os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        # the threads stayed with the parent
        self.forked = True

    @functools.cache  # noqa: B019
    def team(self) -> Callable[..., Any] | None:
        """Run (function, data, threads, 0) on PyTorch's own threads; None where it cannot be."""
        try:
            team = ctypes.CDLL(None).GOMP_parallel
        except (AttributeError, OSError, TypeError):
            return None
        team.argtypes = [Kernel, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        team.restype = None
        return team

    @functools.cache  # noqa: B019
    def pool(self, size: int) -> ThreadPoolExecutor:
        """A pool of our own."""
        return ThreadPoolExecutor(size, thread_name_prefix="regard")


_threads = _Threads()


@functools.cache
def _compiled(make: Callable[..., Any], dtype: torch.dtype) -> Callable[[int], None]:
    """The kernel as a C function, from numba's cache on disk where it has a place to write."""
    kernel = make(np.float64 if dtype == torch.float64 else np.float32, CEILING[dtype])
    signature = types.void(types.CPointer(types.int64))
    options: dict[str, Any] = {"error_model": "numpy", "fastmath": FLAGS}
    try:
        compiled = numba.cfunc(signature, cache=True, **options)(kernel)
    except RuntimeError:
        compiled = numba.cfunc(signature, **options)(kernel)
    _kept.append(compiled)
    return Kernel(compiled.address)


_kept: list[Any] = []
"""The compiled functions, whose code lives as long as they do."""
