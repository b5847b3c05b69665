"""Rows of cells as lines of text."""

from collections.abc import Collection, Sequence

from rich.cells import cell_len


def text_table(rows: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> str:
    """Return a heading and rows in columns, with a line below the heading.

    Args:
        rows: the heading, then the other rows.
        left: indices of the columns to align on the left; the others contain numbers, aligned right.
    """
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            _padded(cell, width, index in left)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join([lines[0], "-" * cell_len(lines[0]), *lines[1:]])


def _padded(cell: str, width: int, left: bool) -> str:
    """Return a cell as wide as its column in a terminal, where some characters take two places."""
    padding = " " * (width - cell_len(cell))
    return cell + padding if left else padding + cell
