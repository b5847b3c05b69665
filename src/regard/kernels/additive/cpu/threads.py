"""Compiled kernels at work: C functions that share units of work, on PyTorch's own threads.

A kernel is a function of one pointer to a list of sizes and addresses. It takes units of work from
a counter in that list until none is left, so any number of threads can run it at once, and a number
is always computed whole by one of them: results are equal to the bit for any number of threads.
"""

import ctypes
import functools
import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numba
import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from torch import Tensor

NEXT, SEATS, REFUSALS = 0, 1, 2
"""Places of counters: the next unit of work, the next scratch for a thread of its own, and units
whose result would not be exact."""

SCRATCH, FIRST = 16, 17
"""Places of the address of the scratch and of the first size; the counters, which all threads write,
share no line of the cache with them."""

WORK_PER_THREAD = 1 << 15
"""Steps of the innermost loop below which another thread is not worth waking."""

FLAGS = {"contract"}
"""A product and a sum may become one operation; no order changes, and no check for NaN or infinity."""

Kernel = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def _take(typing: Any, job: Any, place: Any) -> Any:
    """Read and raise a counter, atomically."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        one = ir.Constant(ir.IntType(64), 1)
        counter = builder.gep(arguments[0], [arguments[1]])
        return builder.atomic_rmw("add", counter, one, "monotonic")

    return types.int64(types.CPointer(types.int64), types.int64), code


def _at(typing: Any, address: Any, one: Any) -> Any:
    """An address as a pointer to numbers of the type of `one`."""
    pointer = types.CPointer(one)

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(pointer))

    return pointer(types.int64, one), code


take: Any = intrinsic(_take)
at: Any = intrinsic(_at)


def run(
    make: Callable[[Any], Callable[[Any], None]],
    units: int,
    sizes: Sequence[int],
    tensors: Sequence[Tensor],
    work: int,
    scratch: int = 0,
) -> bool:
    """Let as many threads as PyTorch would use work through the units of one kernel.

    False where a unit of it refused: what was written is of no use then.

    Args:
        make: gives the kernel for a type of floats.
        units: how many there are; the first of the sizes that the kernel sees.
        sizes: the others.
        tensors: contiguous, of one dtype.
        work: steps of the innermost loop, altogether.
        scratch: numbers that every thread has to itself.
    """
    if units == 0:
        return True
    kernel = compiled(make, tensors[0].dtype)
    threads = min(torch.get_num_threads(), units, 1 + work // WORK_PER_THREAD)
    own = tensors[0].new_empty(threads * scratch)
    addresses = [tensor.data_ptr() for tensor in (own, *tensors)]
    counters = [0] * SCRATCH
    job = np.array([*counters, addresses[0], units, *sizes, *addresses[1:]], dtype=np.int64)
    if threads == 1 or threads_of.forked:
        kernel(job.ctypes.data)
    elif (team := threads_of.pytorch()) is not None:
        team(kernel, job.ctypes.data, threads, 0)
    else:
        pool = threads_of.our_own(threads - 1)
        others = [pool.submit(kernel, job.ctypes.data) for _ in range(threads - 1)]
        kernel(job.ctypes.data)
        for other in others:
            other.result()
    return bool(job[REFUSALS] == 0)


class Threads:
    """Threads to run a kernel on: PyTorch's own where they can be had, else a pool.

    PyTorch's OpenMP threads go on spinning for some milliseconds after its operators, in the way of
    any others. `GOMP_parallel`, the entry of GNU's and LLVM's OpenMP, runs a C function on them.
    """

    def __init__(self) -> None:
        self.forked = False
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        # the threads stayed with the parent
        self.forked = True

    @functools.cache  # noqa: B019
    def pytorch(self) -> Callable[..., Any] | None:
        """Run (function, data, threads, 0) on PyTorch's threads; None where it cannot be."""
        try:
            team = ctypes.CDLL(None).GOMP_parallel
        except (AttributeError, OSError, TypeError):
            return None
        team.argtypes = [Kernel, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        team.restype = None
        return team

    @functools.cache  # noqa: B019
    def our_own(self, size: int) -> ThreadPoolExecutor:
        """A pool of so many."""
        return ThreadPoolExecutor(size, thread_name_prefix="regard")


threads_of = Threads()


@functools.cache
def compiled(
    make: Callable[[Any], Callable[[Any], None]], dtype: torch.dtype
) -> Callable[[int], None]:
    """The kernel as a C function, from numba's cache on disk where it has a place to write."""
    kernel = make(np.float64 if dtype == torch.float64 else np.float32)
    # numba looks for changes in the kernel's own file alone, and files what it keeps under this name
    kernel.__qualname__ += f".{_sources()}"
    signature = types.void(types.CPointer(types.int64))
    options: dict[str, Any] = {"error_model": "numpy", "fastmath": FLAGS}
    try:
        function = numba.cfunc(signature, cache=True, **options)(kernel)
    except RuntimeError:
        function = numba.cfunc(signature, **options)(kernel)
    _kept.append(function)
    return Kernel(cast("Any", function.address))


@functools.cache
def _sources() -> str:
    """A short name for what all modules of the kernels say."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


_kept: list[Any] = []
"""The compiled functions, whose code lives as long as they do."""
