"""Matrices of a kernel, packed one after the other, and the products with them."""

from collections.abc import Sequence
from typing import Any

import torch
from numba.extending import register_jitable
from torch import Tensor

from regard.kernels.cpu import threads
from regard.kernels.cpu.products import PANEL, ROWS, pack, panels_of, product
from regard.kernels.decoding.layout import WEIGHTS
from regard.kernels.decoding.op import Matrix


def pack_matrices(matrices: Sequence[Matrix | None]) -> tuple[Tensor, list[int]]:
    """Return the matrices for `multiply`, and its three numbers for each of them, 0 for None."""
    packed, entries, offset = list[Tensor](), list[int](), 0
    for matrix in matrices:
        if matrix is None:
            entries += [0, 0, 0]
            continue
        packed.append(pack(*matrix))
        entries += [offset, matrix[0].shape[1], panels_of(len(matrix[0]))]
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
    product(x, stride, rows, packed, inputs, panels, y, panels * PANEL)
    return panels * PANEL
