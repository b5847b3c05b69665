"""Products of rows with a packed matrix (`packing.py`) inside of CPU kernels."""

from typing import Any

from regard.kernels.cpu import packing, simd
from regard.kernels.cpu.packing import PANEL, ROWS, SCRATCH
from regard.kernels.cpu.processor import LANES

whole: Any = simd.inlined(packing.whole)


@simd.inlined
def whole_vectors(width: Any) -> Any:
    """Return the width in whole vectors."""
    return (width + LANES - 1) // LANES * LANES


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
    pairs, rounded = inputs // 2, simd.stack_floats(SCRATCH)
    count = SCRATCH // pairs // ROWS * ROWS
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
