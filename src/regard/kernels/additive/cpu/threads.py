"""Execution of CPU kernels: compiled C functions that share tasks, on PyTorch's own threads.

A kernel takes tasks from a counter in its argument array (`job.py`) until none is left, so any number
of threads can run it at once. One thread computes every number completely: results are equal to the
bit for any number of threads.
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
from numba import types
from torch import Tensor

from regard.kernels.additive.cpu.job import OUT_OF_RANGE, WORKSPACE, Sizes

WORK_PER_THREAD = 1 << 15
"""Iterations of the innermost loop below which another thread does not pay."""

FLAGS = {"contract"}
"""A product and a sum may be fused; no reordering, and no check for NaN or infinity."""

KernelFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
KernelFactory = Callable[[Any], Callable[[Any], None]]
"""A function that returns the kernel for a floating type."""


def run_kernel(
    factory: KernelFactory,
    tasks: int,
    sizes: Sizes,
    tensors: Sequence[Tensor],
    work: int,
    workspace: tuple[int, int] = (0, 0),
) -> bool:
    """Run all tasks of a kernel, on as many threads as PyTorch would use.

    Return False where the input of a task is out of range; the output is undefined then.

    Args:
        factory: returns the kernel.
        tasks: number of tasks.
        sizes: sizes that the kernel reads.
        tensors: contiguous, of one dtype.
        work: iterations of the innermost loop, over all tasks.
        workspace: shape of the workspace of a thread.
    """
    if tasks == 0:
        return True
    kernel = compiled(factory, tensors[0].dtype)
    threads = min(torch.get_num_threads(), tasks, 1 + work // WORK_PER_THREAD)
    workspaces = tensors[0].new_empty(threads, *workspace)
    addresses = [tensor.data_ptr() for tensor in tensors]
    counters = [0] * WORKSPACE
    job = np.array([*counters, workspaces.data_ptr(), tasks, *sizes, *addresses], dtype=np.int64)
    thread_pool.run(kernel, job.ctypes.data, threads)
    return bool(job[OUT_OF_RANGE] == 0)


class ThreadPool:
    """PyTorch's OpenMP threads where available, else threads of Python.

    PyTorch's OpenMP threads spin for some milliseconds after its operators and would slow down any
    others. `GOMP_parallel`, the entry point of GNU's and LLVM's OpenMP, runs a C function on them.
    """

    def __init__(self) -> None:
        self.forked = False
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        # the threads exist in the parent process only
        self.forked = True

    def run(self, kernel: Callable[[int], None], job: int, threads: int) -> None:
        """Call a kernel with the address of its arguments, on every thread."""
        if threads == 1 or self.forked:
            kernel(job)
        elif (openmp := self.openmp()) is not None:
            openmp(kernel, job, threads, 0)
        else:
            executor = self.executor(threads - 1)
            futures = [executor.submit(kernel, job) for _ in range(threads - 1)]
            kernel(job)
            for future in futures:
                future.result()

    @functools.cache  # noqa: B019
    def openmp(self) -> Callable[..., Any] | None:
        """Return GOMP_parallel(function, data, threads, 0), or None where it is not available."""
        try:
            parallel = ctypes.CDLL(None).GOMP_parallel
        except (AttributeError, OSError, TypeError):
            return None
        parallel.argtypes = [KernelFunction, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        parallel.restype = None
        return parallel

    @functools.cache  # noqa: B019
    def executor(self, size: int) -> ThreadPoolExecutor:
        """Return the executor with `size` threads."""
        return ThreadPoolExecutor(size, thread_name_prefix="regard")


thread_pool = ThreadPool()


@functools.cache
def compiled(factory: KernelFactory, dtype: torch.dtype) -> Callable[[int], None]:
    """Return the kernel as a C function, from numba's cache on disk where one is writable."""
    kernel = factory(np.float64 if dtype == torch.float64 else np.float32)
    # numba detects changes in the kernel's own file only, and this name is part of its cache key
    kernel.__qualname__ += f".{_source_hash()}"
    signature = types.void(types.CPointer(types.int64))
    options: dict[str, Any] = {"error_model": "numpy", "fastmath": FLAGS}
    try:
        function = numba.cfunc(signature, cache=True, **options)(kernel)
    except RuntimeError:
        function = numba.cfunc(signature, **options)(kernel)
    pointer: Any = KernelFunction(cast("Any", function.address))
    pointer.owner = function  # the machine code lives as long as this object
    return pointer


@functools.cache
def _source_hash() -> str:
    """Return a hash of all modules of this folder."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]
