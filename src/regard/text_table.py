"""Text for terminals: rows of cells as lines, without control characters and in the order of the cells."""

import unicodedata
from collections.abc import Collection, Sequence

from rich.cells import cell_len

_REORDERING = ("R", "AL", "RLE", "RLO", "RLI", "LRE", "LRO", "LRI", "FSI", "PDF", "PDI")
"""Directions of characters that change the order of others: right-to-left letters and bidi controls."""


def text_table(rows: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> str:
    """Return a heading and rows in columns, with a line below the heading.

    Args:
        rows: the heading, then the other rows.
        left: indices of the columns to align on the left; the others contain numbers, aligned right.
    """
    rows = [[left_to_right(escape_controls(cell)) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            _padded(cell, width, index in left)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join([lines[0], "-" * cell_len(lines[0]), *lines[1:]])


def escape_controls(text: str) -> str:
    """Return `text` with control characters and non-characters, which XML does not allow, escaped."""
    return "".join(
        repr(c)[1:-1] if unicodedata.category(c) in ("Cc", "Cs") or ord(c) & 0xFFFE == 0xFFFE else c
        for c in text
    )


def isolated(text: str) -> str:
    """Return text whose writing direction has no effect on the text around it."""
    return f"\u2068{text}\u2069"


def left_to_right(text: str) -> str:
    """Return a cell that leaves the order of the cells around it as it is.

    Terminals reverse neighbouring words of a script that is written from right to left.
    """
    changes_order = any(unicodedata.bidirectional(c) in _REORDERING for c in text)
    return f"{isolated(text)}\u200e" if changes_order else text


def _padded(cell: str, width: int, left: bool) -> str:
    """Return a cell as wide as its column in a terminal, where some characters take two places."""
    padding = " " * (width - cell_len(cell))
    return cell + padding if left else padding + cell
