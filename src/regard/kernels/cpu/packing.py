"""Copies of matrices in the order in which kernels read them.

A panel holds the weights of `PANEL` outputs, one input after another: numbers of float32, or pairs of inputs in
bfloat16, whose products are summed in float32. `products.py` multiplies rows with them.
"""

from typing import Any

import torch
from torch import Tensor

from regard.kernels import linear
from regard.kernels.cpu.processor import HAS_BFLOAT16, LANES

PANEL = 2 * LANES
"""Outputs of a panel."""

ROWS = 4
"""Rows that are computed together."""

SCRATCH = 1 << 14
"""Pairs of inputs that are rounded to bfloat16 at a time, on the stack of a thread."""

_EXCLUDED = -1e30
"""The outputs of the last panel beyond the matrix."""


def panels_of(outputs: int) -> int:
    """Return the number of panels of a matrix."""
    return -(-outputs // PANEL)


def whole(width: Any) -> Any:
    """Return the width in whole panels."""
    return (width + PANEL - 1) // PANEL * PANEL


def is_packed_in_bfloat16(inputs: int) -> bool:
    """Return whether `pack` rounds the weights of matrices with this number of inputs to bfloat16."""
    fits = inputs % LANES == 0 and inputs * ROWS <= 2 * SCRATCH
    return fits and HAS_BFLOAT16 and linear.rounds_to_bfloat16()


def pack(weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return W (E, D) and its bias (E,) in the layout that kernels read: first the biases, then the panels."""
    outputs, inputs = weight.shape
    panels = panels_of(outputs)
    padded = weight.new_zeros(panels * PANEL, inputs)
    padded[:outputs] = weight
    biases = weight.new_full((panels * PANEL,), _EXCLUDED)
    biases[:outputs] = 0 if bias is None else bias
    if is_packed_in_bfloat16(inputs):
        padded = padded.bfloat16().view(torch.float32)  # pairs
    by_panel = padded.unflatten(0, (panels, PANEL)).transpose(1, 2)
    return torch.cat([biases, by_panel.flatten()])
