"""Execution of CPU kernels: compiled C functions that share tasks, on PyTorch's own threads.

A kernel takes one argument, a pointer to counters, sizes and addresses of tensors (int64). It takes
tasks from a counter until none are left, so any number of threads can run it at once. Each number
is computed entirely by one thread, so results are bitwise equal for any number of threads.
"""

import contextlib
import ctypes
import functools
import hashlib
import os
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, cast

import filelock
import numba
import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core.caching import FunctionCache
from numba.extending import intrinsic
from numba.np.numpy_support import carray
from torch import Tensor

from regard import signals
from regard.kernels.compilation import compiling
from regard.kernels.cpu.simd import inlined, memory_access, pointer_at

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

COMPILATION_TIMEOUT = 120.0
"""Seconds after which a process no longer waits for another one that compiles the same kernel."""

FLAGS = {"contract"}
"""A product and a sum may be fused; the compiler may neither reorder sums nor assume that there are
no NaN and infinities."""

if numba.config.DISABLE_JIT:  # pyright: ignore
    raise ImportError("NUMBA_DISABLE_JIT disables the compiler that the kernels need")

_PROCESS = os.getpid()

KernelFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
KernelFactory = Callable[[Any], Callable[[Any], None]]
"""A function that returns the kernel for a floating-point type."""


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


@memory_access(lambda integer: integer)
def fetch_add(builder: Any, counter: Any, kind: Any) -> Any:
    """Increment a counter atomically and return its previous value."""
    return builder.atomic_rmw("add", counter, ir.Constant(ir.IntType(64), 1), "monotonic")


def _as_pointer(typing: Any, address: Any, one: Any) -> Any:
    """Return an address as a pointer to numbers of the type of `one`."""
    pointer = types.CPointer(one)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(pointer))

    return pointer(types.int64, one), codegen


as_pointer: Any = intrinsic(_as_pointer)


@inlined
def floats(arguments: Any, index: Any, offset: Any) -> Any:
    """Return a pointer to an element of a float32 tensor."""
    return pointer_at(as_pointer(arguments[POINTERS + index], np.float32(0)), offset)


@inlined
def halves(arguments: Any, index: Any, offset: Any) -> Any:
    """Return a pointer to an element of a bfloat16 tensor, as 16-bit integers."""
    return pointer_at(as_pointer(arguments[POINTERS + index], np.int16(0)), offset)


@inlined
def integers(arguments: Any, index: Any, offset: Any) -> Any:
    """Return a pointer to an element of an int64 tensor."""
    return pointer_at(as_pointer(arguments[POINTERS + index], np.int64(0)), offset)


@inlined
def doubles(arguments: Any, index: Any, offset: Any) -> Any:
    """Return a pointer to an element of a float64 tensor."""
    return pointer_at(as_pointer(arguments[POINTERS + index], np.float64(0)), offset)


@inlined
def booleans(arguments: Any, index: Any, offset: Any) -> Any:
    """Return a pointer to an element of a bool tensor; False is 0."""
    return pointer_at(as_pointer(arguments[POINTERS + index], np.uint8(0)), offset)


@inlined
def array(arguments: Any, index: Any, shape: Any, one: Any) -> Any:
    """Return a tensor of the type of `one` as an array."""
    return carray(as_pointer(arguments[POINTERS + index], one), shape)


@inlined
def thread_workspace(arguments: Any, shape: Any, one: Any) -> Any:
    """Return a workspace that no other thread uses, as a two-dimensional array."""
    offset = fetch_add(arguments, NEXT_WORKSPACE) * shape[0] * shape[1]
    return carray(pointer_at(as_pointer(arguments[WORKSPACE], one), offset), shape)


@inlined
def read_sizes(arguments: Any) -> Any:
    """Return the heads, queries, keys and width of `Sizes`."""
    return arguments[HEADS], arguments[QUERIES], arguments[KEYS], arguments[WIDTH]


@inlined
def read_arrays(arguments: Any, items: Any, one: Any) -> Any:
    """Return queries, keys, vectors, and the scores or their gradient."""
    heads, queries, keys, width = read_sizes(arguments)
    return (
        array(arguments, 0, (items, queries, width), one),
        array(arguments, 1, (items, keys, width), one),
        array(arguments, 2, (heads, width), one),
        array(arguments, 3, (items, queries, keys), one),
    )


def run_kernel(
    factory: KernelFactory,
    tasks: int,
    sizes: Sizes,
    tensors: Sequence[Tensor],
    work: int,
    workspace: tuple[int, int] = (0, 0),
) -> bool:
    """Run all tasks of a kernel, on as many threads as PyTorch would use.

    Return False if the input of a task is out of range; the output is then undefined.

    Args:
        factory: returns the kernel.
        tasks: number of tasks.
        sizes: sizes that the kernel reads.
        tensors: contiguous tensors; the first one has the dtype for which the kernel is compiled.
        work: iterations of the innermost loop, over all tasks.
        workspace: shape of the workspace of each thread.
    """
    if tasks == 0:
        return True
    kernel = compiled(factory, tensors[0].dtype)
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


@contextlib.contextmanager
def _only_here(kernel: Callable[[Any], None]) -> Generator[None]:
    """Wait until no other process compiles the kernel, which is then in numba's cache."""
    with contextlib.ExitStack() as stack:
        # without a folder (RuntimeError) or a lock, several processes compile it
        with contextlib.suppress(OSError, NotImplementedError, RuntimeError):
            folder = Path(FunctionCache(kernel).cache_path)
            lock = filelock.FileLock(folder / f"{kernel.__module__}.lock")
            stack.enter_context(lock.acquire(timeout=COMPILATION_TIMEOUT, poll_interval=0.01))
        yield


@functools.cache
def compiled(factory: KernelFactory, dtype: torch.dtype) -> Callable[[int], None]:
    """Return the kernel as a C function, from numba's cache on disk if one is writable."""
    kernel = factory(np.float64 if dtype == torch.float64 else np.float32)
    # numba detects changes only in the kernel's own file; the name is part of its cache key
    folder = Path(__file__).parents[1]
    sources = b"".join(file.read_bytes() for file in sorted(folder.rglob("*.py")))
    kernel.__qualname__ += f".{hashlib.sha256(sources).hexdigest()[:12]}"
    signature = types.void(types.CPointer(types.int64))
    options: dict[str, Any] = {"error_model": "numpy", "fastmath": FLAGS}
    # an exception from a handler is lost, or ends the process, while LLVM calls back into Python
    with compiling(), _only_here(kernel), signals.handled_afterwards():
        try:
            function = numba.cfunc(signature, cache=True, **options)(kernel)
        except Exception:  # the cache is damaged, cannot be written, or has no folder
            function = numba.cfunc(signature, **options)(kernel)
    pointer: Any = KernelFunction(cast("Any", function.address))
    pointer.owner = function  # the machine code exists as long as this object
    return pointer
