"""The argument of a CPU kernel: a pointer to counters, sizes and addresses of tensors (int64)."""

from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numba.np.numpy_support import carray

from regard.kernels.additive.cpu.simd import inlined, pointer_at

NEXT_TASK, NEXT_WORKSPACE, OUT_OF_RANGE = 0, 1, 2
"""Indices of the counters: the next task, the next workspace of a thread, and tasks whose input is
out of the range in which the kernel is exact."""

WORKSPACE = 16
"""Index of the address of the workspaces. What follows is read only, and shares no cache line with
the counters, which all threads write."""

TASKS, HEADS, QUERIES, KEYS, WIDTH, TILE, PREPARED, POINTERS = range(17, 25)
"""Indices of the number of tasks, of the fields of `Sizes`, and of the first address of a tensor."""


class Sizes(NamedTuple):
    """Sizes that a kernel reads."""

    heads: int
    queries: int
    keys: int
    width: int
    tile: int = 0
    """Queries of a task of scores, vectors of features of a task of gradients."""
    prepared: int = 0
    """1 where the keys are exponentials already."""


def _fetch_add(typing: Any, arguments: Any, index: Any) -> Any:
    """Increment a counter atomically and return its previous value."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        one = ir.Constant(ir.IntType(64), 1)
        counter = builder.gep(arguments[0], [arguments[1]])
        return builder.atomic_rmw("add", counter, one, "monotonic")

    return types.int64(types.CPointer(types.int64), types.int64), codegen


def _as_pointer(typing: Any, address: Any, one: Any) -> Any:
    """Return an address as a pointer to numbers of the type of `one`."""
    pointer = types.CPointer(one)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(pointer))

    return pointer(types.int64, one), codegen


fetch_add: Any = intrinsic(_fetch_add)
as_pointer: Any = intrinsic(_as_pointer)


@inlined
def array(arguments: Any, index: Any, shape: Any, one: Any) -> Any:
    """Return a tensor of the type of `one` as an array."""
    return carray(as_pointer(arguments[POINTERS + index], one), shape)


@inlined
def thread_workspace(arguments: Any, shape: Any, one: Any) -> Any:
    """Return a workspace that no other thread uses, an array of 2 dimensions."""
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
