"""Products of rows with one of several packed matrices, inside the kernel."""

from typing import Any

from numba.extending import register_jitable

from regard.kernels.cpu import tasks
from regard.kernels.cpu.packing import PANEL, ROWS
from regard.kernels.cpu.products import product, product_bfloat16
from regard.kernels.decoding.layout import WEIGHTS


@register_jitable
def multiply(arguments: Any, table: Any, entry: Any, x: Any, stride: Any, rows: Any, y: Any) -> Any:
    """Write the products of rows with the matrix of an entry of the table to y; return the stride of its rows.

    The numbers of rows of x and y are multiples of `ROWS`.
    """
    offset, inputs, panels = table[entry], table[entry + 1], table[entry + 2]
    packed = tasks.floats(arguments, WEIGHTS, offset)
    rows = (rows + ROWS - 1) // ROWS * ROWS
    if table[entry + 3] != 0:
        product_bfloat16(x, stride, rows, packed, inputs, panels, y, panels * PANEL)
    else:
        product(x, stride, rows, packed, inputs, panels, y, panels * PANEL)
    return panels * PANEL
