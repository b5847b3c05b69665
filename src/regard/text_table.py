"""Rows of cells as lines of text."""

from collections.abc import Collection, Sequence


def text_table(rows: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> str:
    """Return a heading and rows in columns, with a line below the heading.

    Args:
        rows: the heading, then the other rows.
        left: indices of the columns to align on the left; the others contain numbers, aligned right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if index in left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])
