"""Matrices of a kernel, packed one after the other, and the products with them."""

from collections.abc import Sequence
from typing import Any

import torch
from numba.extending import register_jitable
from torch import Tensor

from regard.kernels.cpu import threads
from regard.kernels.cpu.products import (
    PANEL,
    ROWS,
    is_packed_in_bfloat16,
    pack,
    panels_of,
    product,
    product_bfloat16,
)
from regard.kernels.decoding.layout import WEIGHTS
from regard.kernels.decoding.op import Matrix

ENTRY = 4
"""Numbers of a matrix in the table of a kernel."""


def pack_matrices(matrices: Sequence[Matrix | None]) -> tuple[Tensor, list[int]]:
    """Return the matrices for `multiply`, and its `ENTRY` numbers for each of them, 0 for None."""
    packed, entries, offset = list[Tensor](), list[int](), 0
    for matrix in matrices:
        if matrix is None:
            entries += [0] * ENTRY
            continue
        packed.append(pack(*matrix))
        outputs, inputs = matrix[0].shape
        entries += [offset, inputs, panels_of(outputs), int(is_packed_in_bfloat16(inputs))]
        offset += packed[-1].numel()
    return torch.cat(packed).detach(), entries


@register_jitable
def multiply(arguments: Any, table: Any, entry: Any, x: Any, stride: Any, rows: Any, y: Any) -> Any:
    """Write the products of rows with the matrix of an entry of the table to y; return the stride of its rows.

    The numbers of rows of x and y are multiples of `ROWS`.
    """
    offset, inputs, panels = table[entry], table[entry + 1], table[entry + 2]
    packed = threads.floats(arguments, WEIGHTS, offset)
    rows = (rows + ROWS - 1) // ROWS * ROWS
    if table[entry + 3] != 0:
        product_bfloat16(x, stride, rows, packed, inputs, panels, y, panels * PANEL)
    else:
        product(x, stride, rows, packed, inputs, panels, y, panels * PANEL)
    return panels * PANEL
