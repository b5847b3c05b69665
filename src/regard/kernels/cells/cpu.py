"""CPU kernels for one step of a recurrent cell, given the products with its matrices.

The input part of an item's gates is a row of a table (of the projected embeddings, or of the
projected outputs of another layer), plus the projected context if there is one; the recurrent part
is a product with the state. Exponents are clamped where sigmoid is 1 or below 2e-35, and tanh is 1
or -1.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.kernels.cpu import simd, threads
from regard.kernels.cpu.threads import Sizes, run_kernel

_BOUND = 40.0
"""Largest |x| at which e^{2x} is computed."""
_ROWS_PER_TASK = 8


def step(
    name: str, inputs: Tensor, rows: Tensor, extra: Tensor | None, recurrent: Tensor, state: Tensor
) -> tuple[Tensor, ...] | None:
    """Return the new state tensors (N, D), the output first; None for input that the kernels do not support.

    Args:
        name: name of the cell; there are kernels for `lstm` and `gru`.
        inputs: (M, G), the input part of the gates.
        rows: (N,), int64: the row of `inputs` for each item, in [0, M).
        extra: (N, S) with S >= G: added to the inputs; columns from G on are ignored.
        recurrent: (N, G), the recurrent part of the gates.
        state: (N, D), the last state tensor: the memory of an LSTM, the state of a GRU.
    """
    count, width = state.shape
    added = recurrent if extra is None else extra
    if name not in _KERNELS or width % (simd.BYTES // 4) or not len(inputs):
        return None
    gates = _GATES[name] * width
    # the kernels do not check bounds
    if not (
        all(tensor.dtype == torch.float32 for tensor in (inputs, recurrent, state, added))
        and rows.dtype == torch.int64
        and rows.shape == (count,)
        and inputs.shape[1] == gates
        and recurrent.shape == (count, gates)
        and (len(added) == count and added.shape[1] >= gates)
    ):
        return None
    tensors = [tensor.contiguous() for tensor in (inputs, recurrent, state, added, rows)]
    new = [torch.empty_like(tensors[2]) for _ in range(_STATE_TENSORS[name])]
    stride = 0 if extra is None else extra.shape[1]
    sizes = Sizes(len(inputs), count, stride, width, _ROWS_PER_TASK)
    tasks = -(-count // _ROWS_PER_TASK)
    run_kernel(_KERNELS[name], tasks, sizes, [*tensors, *new], 16 * state.numel())
    return tuple(new)


@simd.inlined
def _exp_2x(x: Any, bound: Any) -> Any:
    zeros = bound - bound
    return simd.exp_2x(zeros - simd.minimum(zeros - simd.minimum(x, bound), bound))


@simd.inlined
def _sigmoid(x: Any, ones: Any, minus_half: Any, bound: Any) -> Any:
    return simd.reciprocal(ones + _exp_2x(minus_half * x, bound))


@simd.inlined
def _tanh(x: Any, ones: Any, bound: Any) -> Any:
    quotient = simd.reciprocal(ones + _exp_2x(x, bound))
    return ones - (quotient + quotient)


@simd.inlined
def _input(x: Any, extra: Any, stride: Any, d: Any) -> Any:
    """Return a vector of the input part of the gates."""
    total = simd.load(x, d)
    if stride > 0:
        total += simd.load(extra, d)
    return total


@simd.inlined
def _read(arguments: Any, gates: Any, one: Any) -> Any:
    """Return arrays of the inputs, extra, recurrent part, state and rows, and the stride of extra."""
    entries, count, stride, width = threads.read_sizes(arguments)
    return (
        threads.array(arguments, 0, (entries * gates * width,), one),
        threads.array(arguments, 3, (count * max(1, stride),), one),
        threads.array(arguments, 1, (count * gates * width,), one),
        threads.array(arguments, 2, (count * width,), one),
        threads.array(arguments, 4, (count,), np.int64(1)),
        stride,
    )


@simd.inlined
def _entry(rows: Any, row: Any, arguments: Any) -> Any:
    """Return the index of an item's row in the inputs, clamped to their number."""
    return min(max(rows[row], 0), arguments[threads.HEADS] - 1)


@simd.inlined
def _next_rows(arguments: Any) -> Any:
    """Return the range of rows of the next task; empty if no task is left."""
    tile = arguments[threads.TILE]
    start = threads.fetch_add(arguments, threads.NEXT_TASK) * tile
    return start, min(start + tile, arguments[threads.QUERIES])


def lstm(real: Any) -> Callable[[Any], None]:
    """Return the kernel for an LSTM, with the gates of `regard.cells.lstm_step`."""
    size = simd.BYTES // np.dtype(real).itemsize

    def kernel(arguments: Any) -> None:
        one = real(1)
        ones, minus_half, bound = simd.splat(one), simd.splat(real(-0.5)), simd.splat(real(_BOUND))
        width = arguments[threads.WIDTH]
        inputs, extra, recurrent, memory, rows, stride = _read(arguments, 4, one)
        new_output = threads.array(arguments, 5, (len(memory),), one)
        new_memory = threads.array(arguments, 6, (len(memory),), one)
        while True:
            start, stop = _next_rows(arguments)
            if start >= stop:
                return
            for row in range(start, stop):
                x = simd.pointer_at(inputs, _entry(rows, row, arguments) * 4 * width)
                e = simd.pointer_at(extra, row * stride)
                r = simd.pointer_at(recurrent, row * 4 * width)
                for d in range(0, width, size):
                    f, g, o = d + width, d + 2 * width, d + 3 * width
                    enter = _sigmoid(
                        _input(x, e, stride, d) + simd.load(r, d), ones, minus_half, bound
                    )
                    forget = _sigmoid(
                        _input(x, e, stride, f) + simd.load(r, f), ones, minus_half, bound
                    )
                    new = _tanh(_input(x, e, stride, g) + simd.load(r, g), ones, bound)
                    out = _sigmoid(
                        _input(x, e, stride, o) + simd.load(r, o), ones, minus_half, bound
                    )
                    kept = forget * simd.load(memory, row * width + d) + enter * new
                    simd.store(new_memory, row * width + d, kept)
                    simd.store(new_output, row * width + d, out * _tanh(kept, ones, bound))

    return kernel


def gru(real: Any) -> Callable[[Any], None]:
    """Return the kernel for a GRU, with the gates of `regard.cells.gru_step`."""
    size = simd.BYTES // np.dtype(real).itemsize

    def kernel(arguments: Any) -> None:
        one = real(1)
        ones, minus_half, bound = simd.splat(one), simd.splat(real(-0.5)), simd.splat(real(_BOUND))
        width = arguments[threads.WIDTH]
        inputs, extra, recurrent, state, rows, stride = _read(arguments, 3, one)
        new_state = threads.array(arguments, 5, (len(state),), one)
        while True:
            start, stop = _next_rows(arguments)
            if start >= stop:
                return
            for row in range(start, stop):
                x = simd.pointer_at(inputs, _entry(rows, row, arguments) * 3 * width)
                e = simd.pointer_at(extra, row * stride)
                r = simd.pointer_at(recurrent, row * 3 * width)
                for d in range(0, width, size):
                    u, n = d + width, d + 2 * width
                    reset = _sigmoid(
                        _input(x, e, stride, d) + simd.load(r, d), ones, minus_half, bound
                    )
                    update = _sigmoid(
                        _input(x, e, stride, u) + simd.load(r, u), ones, minus_half, bound
                    )
                    new = _tanh(_input(x, e, stride, n) + reset * simd.load(r, n), ones, bound)
                    before = simd.load(state, row * width + d)
                    simd.store(new_state, row * width + d, new + update * (before - new))

    return kernel


_KERNELS = {"lstm": lstm, "gru": gru}
_STATE_TENSORS = {"lstm": 2, "gru": 1}
_GATES = {"lstm": 4, "gru": 3}
