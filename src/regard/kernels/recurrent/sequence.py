"""CPU kernel of a recurrent layer over whole sequences, without gradients, and its launcher.

A task is a block of sequences. Of `threads.Sizes`, `queries` is the number of sequences, `keys` their
length, `width` that of a state and `tile` the number of sequences of a task. All numbers are float32.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.kernels.cpu import simd, threads
from regard.kernels.cpu.products import LANES, PANEL, ROWS, product, whole
from regard.kernels.cpu.threads import floats
from regard.kernels.recurrent import cells

WEIGHTS, INPUTS, OUTPUTS = range(3)
"""The packed matrix of the state, the input part of the gates (B, T, G), and the outputs (B, T, D)."""

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
            _, sequences, length, width = threads.read_sizes(arguments)
            tile, stride = arguments[threads.TILE], whole(gates * width)
            shape = (1, tile * (stride + 2 * width))
            workspace = threads.thread_workspace(arguments, shape, real(0))
            state = simd.pointer_at(workspace, 0)
            memory = simd.pointer_at(state, tile * width)
            products = simd.pointer_at(memory, tile * width)
            weights = floats(arguments, WEIGHTS, 0)
            while True:
                first = threads.fetch_add(arguments, threads.NEXT_TASK) * tile
                count = min(tile, sequences - first)
                if count <= 0:
                    return
                rows = (count + ROWS - 1) // ROWS * ROWS
                for d in range(2 * tile * width):
                    state[d] = np.float32(0)
                for t in range(length):
                    product(state, width, rows, weights, width, stride // PANEL, products, stride)
                    for row in range(count):
                        step = (first + row) * length + t
                        _step(
                            floats(arguments, INPUTS, step * gates * width),
                            simd.pointer_at(products, row * stride),
                            simd.pointer_at(state, row * width),
                            simd.pointer_at(memory, row * width),
                            floats(arguments, OUTPUTS, step * width),
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


def run(cell: str, gates: Tensor, packed: Tensor, width: int) -> Tensor:
    """Return the outputs (B, T, D), given the input part of the gates (B, T, G) and the packed matrix."""
    count, length, _ = gates.shape
    outputs = gates.new_empty(count, length, width)
    tasks = torch.get_num_threads() * max(1, -(-count // (_MAX_BLOCK * torch.get_num_threads())))
    tile = max(1, -(-count // (tasks * ROWS))) * ROWS
    sizes = threads.Sizes(heads=1, queries=count, keys=length, width=width, tile=tile)
    workspace = (1, tile * (whole(GATES[cell] * width) + 2 * width))
    work = count * length * width * gates.shape[-1]
    tensors = [packed, gates.contiguous(), outputs]
    threads.run_kernel(_KERNELS[cell], -(-count // tile), sizes, tensors, work, workspace)
    return outputs
