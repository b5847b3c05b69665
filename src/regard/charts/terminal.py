"""Attention weights as a block of text, for terminals."""

from collections.abc import Sequence

import numpy as np
import rich
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from regard.charts.labels import check, spelled

_SHADES = " ░▒▓█"
_SHADE_LIMITS = (0.05, 0.25, 0.5, 0.75)
_KEY = "weight  ░ 0.05  ▒ 0.25  ▓ 0.5  █ 0.75 and more"


def terminal_heatmap(
    weights: np.ndarray,
    source_tokens: Sequence[str],
    target_tokens: Sequence[str],
    *,
    width: int | None = None,
) -> Text:
    """Draw attention weights as a block of text, source across, output down.

    Shades stand for weights, so it reads without colour and on light and dark ground alike. A source
    too long for the width goes on below, with the output repeated.

    Args:
        weights: (L, T), one row per output symbol.
        source_tokens: the T symbols the model read.
        target_tokens: the L symbols it wrote.
        width: columns of the terminal; None: as many as it has.

    Raises:
        ShapeError: the weights are not one row per output and one column per source symbol.
        DataError: there is no row or no column, or a weight is not a finite number.
    """
    weights = check(weights, source_tokens, target_tokens)
    source, target = spelled(source_tokens), spelled(target_tokens)
    width = width or rich.get_console().width
    margin = min(max(map(cell_len, target)), max(1, width // 4))
    size = _column_size(source, width - margin)
    columns = max(1, (width - margin) // (size + 1))
    levels = np.digitize(weights, _SHADE_LIMITS)
    text = Text(no_wrap=True, overflow="crop")
    for start in range(0, len(source), columns):
        part = slice(start, start + columns)
        text.append(" " * margin)
        for label in source[part]:
            text.append(" " + _fitted(label, size), style="bold")
        for label, row in zip(target, levels[:, part], strict=True):
            text.append("\n" + _fitted(label, margin, right=True), style="bold")
            text.append("".join(f" {_SHADES[level] * size}" for level in row), style="blue")
        text.append("\n\n")
    return text.append(_KEY, style="dim")


def _column_size(labels: Sequence[str], room: int) -> int:
    """Terminal cells for each column: the longest label if all fit side by side, else fewer."""
    longest = min(12, max(2, *map(cell_len, labels)))
    return max(1, min(longest, room - 1, max(4, room // len(labels) - 1)))


def _fitted(label: str, size: int, right: bool = False) -> str:
    """`label` in exactly `size` terminal cells, cut with an ellipsis or filled with spaces."""
    if cell_len(label) > size:
        return set_cell_size(set_cell_size(label, size - 1).rstrip() + "…", size)
    filling = " " * (size - cell_len(label))
    return filling + label if right else label + filling
