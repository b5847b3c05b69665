"""Arguments of a CPU kernel inside of it: its tasks, sizes, tensors and workspace, in the order of `threads.py`."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numba.np.numpy_support import carray

from regard.kernels.cpu.simd import inlined, memory_access, pointer_at
from regard.kernels.cpu.threads import (
    HEADS,
    KEYS,
    NEXT_WORKSPACE,
    POINTERS,
    QUERIES,
    WIDTH,
    WORKSPACE,
)


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
