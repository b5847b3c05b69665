"""Launcher of the CPU kernel of a recurrent layer over whole sequences, without gradients."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.kernels.cpu.machine_code import Kernel, load
from regard.kernels.cpu.packing import ROWS, whole
from regard.kernels.cpu.processor import LANES
from regard.kernels.cpu.threads import Sizes, run_kernel

WEIGHTS, INPUTS, INPUT_ROWS, ORDER, OUTPUTS = range(5)
"""The packed matrix of the state in every direction, and the arguments and the result of `run`."""

GATES = {"lstm": 4, "gru": 3}
"""Number of gates, each as wide as a state."""

_KERNELS = {cell: Kernel("recurrent.sequence_kernel", cell) for cell in GATES}

_MAX_BLOCK = 64
"""Sequences of a task, which share the weights in the cache."""


def supports(cell: str, width: int) -> bool:
    """Return whether there is a kernel for these cells: states of whole vectors."""
    return cell in _KERNELS and width % LANES == 0 and load(_KERNELS[cell]) is not None


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
    sizes = Sizes(directions, count, length, width, tile, int(half))
    workspace = (1, tile * (whole(GATES[cell] * width) + 2 * width))
    work = outputs.numel() * GATES[cell] * width
    tensors = [packed, inputs.contiguous(), rows.contiguous(), order.contiguous(), outputs]
    tasks = directions * -(-count // tile)
    run_kernel(load(_KERNELS[cell]), tasks, sizes, tensors, work, workspace)
    return outputs
