"""Heatmap of attention weights as text, for terminals."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import rich
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from regard.charts.labels import check_weights, token_labels
from regard.text_table import left_to_right

_SHADES = " ░▒▓█"
_SHADE_LIMITS = (0.05, 0.25, 0.5, 0.75)
_KEY = "weight  ░ 0.05  ▒ 0.25  ▓ 0.5  █ 0.75 and more"


def terminal_heatmap(
    weights: Any,
    source_tokens: Sequence[str],
    target_tokens: Sequence[str],
    *,
    width: int | None = None,
) -> Text:
    """Draw attention weights as text, with one column per source token and one row per target token.

    Shades represent weights, so that the heatmap is readable without colour and on any background. A
    source wider than the terminal continues in further blocks of rows. `width` is the width of the
    terminal; None: its current width. The other arguments and the errors are those of `heatmap`.
    """
    weights = check_weights(weights, source_tokens, target_tokens)
    source, target = token_labels(source_tokens), token_labels(target_tokens)
    width = width or rich.get_console().width
    margin = min(max(map(cell_len, target)), max(1, width // 4))
    available = width - margin
    # the length of the longest label if all columns fit, else fewer terminal cells per column
    longest = min(12, max(2, *map(cell_len, source)))
    size = max(1, min(longest, available - 1, max(4, available // len(source) - 1)))
    columns = max(1, available // (size + 1))
    levels = np.digitize(weights, _SHADE_LIMITS)
    text = Text(no_wrap=True, overflow="crop")
    for start in range(0, len(source), columns):
        block = slice(start, start + columns)
        text.append(" " * margin)
        for label in source[block]:
            text.append(" " + _fitted(label, size), style="bold")
        for label, row in zip(target, levels[:, block], strict=True):
            text.append("\n" + _fitted(label, margin, right=True), style="bold")
            text.append("".join(f" {_SHADES[level] * size}" for level in row), style="blue")
        text.append("\n\n")
    return text.append(_KEY, style="dim")


def _fitted(label: str, size: int, right: bool = False) -> str:
    """Return `label` truncated with an ellipsis or padded to exactly `size` terminal cells."""
    if cell_len(label) > size:
        label = set_cell_size(label, size - 1).rstrip() + "…"
    padding = " " * (size - cell_len(label))
    label = left_to_right(label)
    return padding + label if right else label + padding
