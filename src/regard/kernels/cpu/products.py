"""Products of rows with a matrix inside of CPU kernels, from a copy of it in the order of reading.

A panel holds the weights of `PANEL` outputs, one input after another: numbers of float32, or pairs of inputs in
bfloat16, whose products are summed in float32.
"""

from typing import Any

import torch
from torch import Tensor

from regard.kernels import linear
from regard.kernels.cpu import simd

LANES = simd.BYTES // 4
"""Numbers in a vector; float32 only."""

PANEL = 2 * LANES
"""Outputs of a panel."""

ROWS = 4
"""Rows that are computed together."""

_SCRATCH = 1 << 14
"""Pairs of inputs that are rounded to bfloat16 at a time, on the stack of a thread."""

_EXCLUDED = -1e30
"""The outputs of the last panel beyond the matrix."""


def panels_of(outputs: int) -> int:
    """Return the number of panels of a matrix."""
    return -(-outputs // PANEL)


@simd.inlined
def whole(width: Any) -> Any:
    """Return the width in whole panels."""
    return (width + PANEL - 1) // PANEL * PANEL


@simd.inlined
def whole_vectors(width: Any) -> Any:
    """Return the width in whole vectors."""
    return (width + LANES - 1) // LANES * LANES


def is_packed_in_bfloat16(inputs: int) -> bool:
    """Return whether `pack` rounds the weights of matrices with this number of inputs to bfloat16."""
    fits = inputs % LANES == 0 and inputs * ROWS <= 2 * _SCRATCH
    return fits and simd.HAS_BFLOAT16 and linear.rounds_to_bfloat16()


def pack(weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return W (E, D) and its bias (E,) in the layout that `product` reads: first the biases, then the panels."""
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


@simd.inlined
def product(
    x: Any, x_stride: Any, rows: Any, packed: Any, inputs: Any, panels: Any, y: Any, y_stride: Any
) -> None:
    """Write x W^T + b to y; `rows` is a multiple of `ROWS`, and y has whole panels of columns."""
    for panel in range(panels):
        bias = simd.pointer_at(packed, panel * PANEL)
        weights = simd.pointer_at(packed, (panels + panel * inputs) * PANEL)
        for row in range(0, rows, ROWS):
            source = simd.pointer_at(x, row * x_stride)
            target = simd.pointer_at(y, row * y_stride + panel * PANEL)
            _four_rows(simd.fma, source, x_stride, weights, inputs, bias, target, y_stride)


@simd.inlined
def product_bfloat16(
    x: Any, x_stride: Any, rows: Any, packed: Any, inputs: Any, panels: Any, y: Any, y_stride: Any
) -> None:
    """Write x W^T + b to y as `product` does, for a matrix packed in bfloat16; x is rounded."""
    pairs, rounded = inputs // 2, simd.stack_floats(_SCRATCH)
    count = _SCRATCH // pairs // ROWS * ROWS
    for first in range(0, rows, count):
        last = min(first + count, rows)
        for row in range(first, last):
            source = simd.pointer_at(x, row * x_stride)
            halves = simd.as_halves(simd.pointer_at(rounded, (row - first) * pairs))
            for d in range(0, inputs, LANES):
                simd.store_bfloat16(halves, d, simd.load(source, d))
        for panel in range(panels):
            bias = simd.pointer_at(packed, panel * PANEL)
            weights = simd.pointer_at(packed, (panels + panel * pairs) * PANEL)
            for row in range(first, last, ROWS):
                source = simd.pointer_at(rounded, (row - first) * pairs)
                target = simd.pointer_at(y, row * y_stride + panel * PANEL)
                _four_rows(simd.dot_bfloat16, source, pairs, weights, pairs, bias, target, y_stride)


@simd.inlined
def _four_rows(
    fma: Any, x: Any, x_stride: Any, weights: Any, inputs: Any, bias: Any, y: Any, y_stride: Any
) -> None:
    low, high = simd.load(bias, 0), simd.load(bias, LANES)
    a, b, c, d, e, f, g, h = low, high, low, high, low, high, low, high
    x1, x2 = simd.pointer_at(x, x_stride), simd.pointer_at(x, 2 * x_stride)
    x3 = simd.pointer_at(x, 3 * x_stride)
    for k in range(inputs):
        low, high = simd.load(weights, k * PANEL), simd.load(weights, k * PANEL + LANES)
        first, second = simd.load_splat(x, k), simd.load_splat(x1, k)
        third, fourth = simd.load_splat(x2, k), simd.load_splat(x3, k)
        a, b = fma(first, low, a), fma(first, high, b)
        c, d = fma(second, low, c), fma(second, high, d)
        e, f = fma(third, low, e), fma(third, high, f)
        g, h = fma(fourth, low, g), fma(fourth, high, h)
    _store_pair(y, a, b)
    _store_pair(simd.pointer_at(y, y_stride), c, d)
    _store_pair(simd.pointer_at(y, 2 * y_stride), e, f)
    _store_pair(simd.pointer_at(y, 3 * y_stride), g, h)


@simd.inlined
def _store_pair(y: Any, low: Any, high: Any) -> None:
    simd.store(y, 0, low)
    simd.store(y, LANES, high)
