"""CPU kernel of a recurrent layer over whole sequences, without gradients, and its launcher.

A task is a block of sequences in one direction. Of `threads.Sizes`, `heads` is the number of directions,
`queries` the number of sequences, `keys` their length, `width` that of a state of one direction, `tile` the
number of sequences of a task, and `prepared` is 1 if the matrices are packed in bfloat16. Other numbers are float32, and
indices int64.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.kernels.cpu import simd, threads
from regard.kernels.cpu.products import LANES, PANEL, ROWS, product, product_bfloat16, whole
from regard.kernels.cpu.threads import floats, integers
from regard.kernels.recurrent import cells

WEIGHTS, INPUTS, INPUT_ROWS, ORDER, OUTPUTS = range(5)
"""The packed matrix of the state in every direction, and the arguments and the result of `run`."""

GATES = {"lstm": 4, "gru": 3}
"""Number of gates, each as wide as a state."""

_MAX_BLOCK = 64
"""Sequences of a task, which share the weights in the cache."""


@simd.inlined
def _step(
    x: Any, products: Any, state: Any, memory: Any, output: Any, gates: Any, width: Any
) -> None:
    """Compute the next state of one sequence in place, and copy it to the output."""
    if gates == 4:
        cells.lstm(x, x, False, products, memory, state, memory, width)
    else:
        cells.gru(x, x, False, products, state, state, width)
    for d in range(0, width, LANES):
        simd.store(output, d, simd.load(state, d))


def _kernel_of(gates: int) -> threads.KernelFactory:
    """Return the factory of the kernel for cells with this number of gates."""

    def factory(real: Any) -> Callable[[Any], None]:
        def kernel(arguments: Any) -> None:
            directions, sequences, length, width = threads.read_sizes(arguments)
            tile, stride = arguments[threads.TILE], whole(gates * width)
            blocks, half = arguments[threads.TASKS] // directions, arguments[threads.PREPARED] != 0
            words = ((width // 2 if half else width) + 1) * stride
            shape = (1, tile * (stride + 2 * width))
            workspace = threads.thread_workspace(arguments, shape, real(0))
            state = simd.pointer_at(workspace, 0)
            memory = simd.pointer_at(state, tile * width)
            products = simd.pointer_at(memory, tile * width)
            while True:
                task = threads.fetch_add(arguments, threads.NEXT_TASK)
                if task >= arguments[threads.TASKS]:
                    return
                direction, first = task // blocks, task % blocks * tile
                weights = floats(arguments, WEIGHTS, direction * words)
                count = min(tile, sequences - first)
                rows = (count + ROWS - 1) // ROWS * ROWS
                for d in range(2 * tile * width):
                    state[d] = np.float32(0)
                for t in range(length):
                    panels = stride // PANEL
                    if half:
                        product_bfloat16(
                            state, width, rows, weights, width, panels, products, stride
                        )
                    else:
                        product(state, width, rows, weights, width, panels, products, stride)
                    for row in range(count):
                        start = (first + row) * length
                        order = integers(arguments, ORDER, direction * sequences * length + start)
                        position = start + order[t]
                        x = integers(arguments, INPUT_ROWS, position)[0] * directions + direction
                        _step(
                            floats(arguments, INPUTS, x * gates * width),
                            simd.pointer_at(products, row * stride),
                            simd.pointer_at(state, row * width),
                            simd.pointer_at(memory, row * width),
                            floats(arguments, OUTPUTS, (position * directions + direction) * width),
                            gates,
                            width,
                        )

        kernel.__qualname__ += f".{gates}"
        return kernel

    return factory


_KERNELS = {cell: _kernel_of(gates) for cell, gates in GATES.items()}


def supports(cell: str, width: int) -> bool:
    """Return whether the kernel computes these cells: states of whole vectors."""
    return cell in _KERNELS and width % LANES == 0


def run(
    cell: str,
    inputs: Float[Tensor, "*n G"],
    rows: Int[Tensor, "B T"],
    order: Int[Tensor, "directions B T"],
    packed: Float[Tensor, "directions weights"],
    width: int,
) -> Float[Tensor, "B T D"]:
    """Return the outputs of all directions, side by side.

    Args:
        cell: a name in `GATES`.
        inputs: the input part of the gates, those of all directions side by side.
        rows: the row of `inputs` at every position.
        order: the positions in the order in which a direction reads them.
        packed: the packed matrix of the state in every direction.
        width: that of a state.
    """
    directions, count, length = order.shape
    outputs = inputs.new_empty(count, length, directions * width)
    shares = -(-torch.get_num_threads() // directions)
    blocks = shares * max(1, -(-count // (_MAX_BLOCK * shares)))
    tile = max(1, -(-count // (blocks * ROWS))) * ROWS
    half = packed.shape[1] < whole(GATES[cell] * width) * (width + 1)
    sizes = threads.Sizes(directions, count, length, width, tile, int(half))
    workspace = (1, tile * (whole(GATES[cell] * width) + 2 * width))
    work = outputs.numel() * GATES[cell] * width
    tensors = [packed, inputs.contiguous(), rows.contiguous(), order.contiguous(), outputs]
    tasks = directions * -(-count // tile)
    threads.run_kernel(_KERNELS[cell], tasks, sizes, tensors, work, workspace)
    return outputs
