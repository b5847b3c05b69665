"""Products of rows with a matrix inside of CPU kernels, from a copy of it in the order of reading.

A panel holds the weights of `PANEL` outputs, one input after another.
"""

from typing import Any

import torch
from torch import Tensor

from regard.kernels.cpu import simd

LANES = simd.BYTES // 4
"""Numbers in a vector; float32 only."""

PANEL = 2 * LANES
"""Outputs of a panel."""

ROWS = 4
"""Rows that are computed together."""

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


def pack(weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return W (E, D) and its bias (E,) in the layout that `product` reads: first the biases, then the panels."""
    outputs, inputs = weight.shape
    panels = panels_of(outputs)
    padded = weight.new_zeros(panels * PANEL, inputs)
    padded[:outputs] = weight
    biases = weight.new_full((panels * PANEL,), _EXCLUDED)
    biases[:outputs] = 0 if bias is None else bias
    by_panel = padded.view(panels, PANEL, inputs).transpose(1, 2)
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
            _four_rows(source, x_stride, weights, inputs, bias, target, y_stride)


@simd.inlined
def _four_rows(
    x: Any, x_stride: Any, weights: Any, inputs: Any, bias: Any, y: Any, y_stride: Any
) -> None:
    low, high = simd.load(bias, 0), simd.load(bias, LANES)
    a, b, c, d, e, f, g, h = low, high, low, high, low, high, low, high
    x1, x2 = simd.pointer_at(x, x_stride), simd.pointer_at(x, 2 * x_stride)
    x3 = simd.pointer_at(x, 3 * x_stride)
    for k in range(inputs):
        low, high = simd.load(weights, k * PANEL), simd.load(weights, k * PANEL + LANES)
        first, second = simd.load_splat(x, k), simd.load_splat(x1, k)
        third, fourth = simd.load_splat(x2, k), simd.load_splat(x3, k)
        a, b = simd.fma(first, low, a), simd.fma(first, high, b)
        c, d = simd.fma(second, low, c), simd.fma(second, high, d)
        e, f = simd.fma(third, low, e), simd.fma(third, high, f)
        g, h = simd.fma(fourth, low, g), simd.fma(fourth, high, h)
    _store_pair(y, a, b)
    _store_pair(simd.pointer_at(y, y_stride), c, d)
    _store_pair(simd.pointer_at(y, 2 * y_stride), e, f)
    _store_pair(simd.pointer_at(y, 3 * y_stride), g, h)


@simd.inlined
def _store_pair(y: Any, low: Any, high: Any) -> None:
    simd.store(y, 0, low)
    simd.store(y, LANES, high)
