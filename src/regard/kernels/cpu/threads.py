"""Execution of CPU kernels: compiled C functions that share tasks, on PyTorch's own threads.

A kernel takes one argument, a pointer to counters, sizes and addresses of tensors (int64), which `tasks.py` reads.
It takes tasks from a counter until none are left, so any number of threads can run it at once. Each number
is computed entirely by one thread, so results are bitwise equal for any number of threads.
"""

import ctypes
import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from regard.kernels.cpu.machine_code import KernelFunction

NEXT_TASK, NEXT_WORKSPACE, OUT_OF_RANGE = 0, 1, 2
"""Indices of the counters: the next task, the next workspace of a thread, and the number of tasks
whose input is out of the range in which the kernel is exact."""

WORKSPACE = 16
"""Index of the address of the workspaces. The entries from here on are read-only, and share no cache
line with the counters, to which all threads write."""

TASKS, HEADS, QUERIES, KEYS, WIDTH, TILE, PREPARED, POINTERS = range(17, 25)
"""Indices of the number of tasks, of the fields of `Sizes`, and of the first address of a tensor."""

WORK_PER_THREAD = 1 << 15
"""Iterations of the innermost loop below which another thread does not pay off."""

_PROCESS = os.getpid()


class Sizes(NamedTuple):
    """Sizes that a kernel reads."""

    heads: int
    queries: int
    keys: int
    width: int
    tile: int = 0
    """Size of a task: queries (scores), vectors of features (gradients) or rows (cells)."""
    prepared: int = 0
    """1 if the keys are already exponentials."""


def run_kernel(
    kernel: Callable[[int], None] | None,
    tasks: int,
    sizes: Sizes,
    tensors: Sequence[Tensor],
    work: int,
    workspace: tuple[int, int] = (0, 0),
) -> bool:
    """Run all tasks of a kernel, on as many threads as PyTorch would use.

    Return False if the input of a task is out of range, or if there is no kernel; the output is then undefined.

    Args:
        kernel: the kernel, from `machine_code.load`.
        tasks: number of tasks.
        sizes: sizes that the kernel reads.
        tensors: contiguous tensors; the workspaces have the dtype of the first one.
        work: iterations of the innermost loop, over all tasks.
        workspace: shape of the workspace of each thread.
    """
    if kernel is None or tasks == 0:
        return kernel is not None
    threads = min(torch.get_num_threads(), tasks, 1 + work // WORK_PER_THREAD)
    workspaces = tensors[0].new_empty(threads, *workspace)
    addresses = [tensor.data_ptr() for tensor in tensors]
    counters = [0] * WORKSPACE
    job = np.array([*counters, workspaces.data_ptr(), tasks, *sizes, *addresses], dtype=np.int64)
    run_on_threads(kernel, job.ctypes.data, threads)
    return bool(job[OUT_OF_RANGE] == 0)


def run_on_threads(kernel: Callable[[int], None], job: int, threads: int) -> None:
    """Call a kernel with the address of its arguments, on every thread.

    PyTorch's OpenMP threads spin for some milliseconds after an operator and would slow down other
    threads. A forked process has none of its parent's threads.
    """
    if threads == 1 or os.getpid() != _PROCESS:
        kernel(job)
    elif (parallel := openmp()) is not None:
        parallel(kernel, job, threads, 0)
    else:
        futures = [_executor(threads - 1).submit(kernel, job) for _ in range(threads - 1)]
        kernel(job)
        for future in futures:
            future.result()


@functools.cache
def openmp() -> Callable[..., Any] | None:
    """Return GOMP_parallel(function, data, threads, 0), or None if it is not available.

    It is the entry point of GNU's and LLVM's OpenMP.
    """
    try:
        parallel = ctypes.CDLL(None).GOMP_parallel
    except (AttributeError, OSError, TypeError):
        return None
    parallel.argtypes = [KernelFunction, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    parallel.restype = None
    return parallel


@functools.cache
def _executor(size: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(size, thread_name_prefix="regard")
