"""Width of text in pixels, truncation, and titles on several lines."""

import re
from bisect import bisect_right

from rich.cells import cell_len

from regard.charts.fonts import CJK

_TITLE_LINES = 3
"""Maximum lines of the source, and of the translation, in a title."""
_ARROW = " → "
_MARK = "\u200e"
"""Left-to-right mark."""
_RIGHT_TO_LEFT = re.compile(
    "[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\U00010800-\U00010fff\U0001e800-\U0001efff]"
)
_WORDS = re.compile(rf"\s*(?:[{CJK}]|[^\s{CJK}]+)|\s+")


def text_width(content: str, size: float, bold: bool = False) -> float:
    """Return the approximate width of text in a sans-serif font, in pixels."""
    narrow = sum(character in "fijlrtI.,:;'|!/()[] " for character in content)
    wide = sum(character in "mwMW@%" for character in content)
    capitals = sum(map(str.isupper, content))
    ems = 0.56 * cell_len(content) - 0.26 * narrow + 0.3 * wide + 0.13 * capitals
    fallback = any(character > "\u2e7f" for character in content)  # CJK, emoji: wider fonts
    return size * ems * (1.06 if bold else 1.0) * (1.2 if fallback else 1.0)


def truncate(content: str, size: float, limit: float) -> str:
    """Return text truncated to `limit` pixels, with an ellipsis."""
    if text_width(content, size) <= limit:
        return content
    return content[: _fitting(content, size, limit - size)].rstrip() + "…"


def title_lines(title: str, size: float, limit: float) -> list[str]:
    """Split a bold title into lines of at most `limit` pixels.

    A title "source → translation" that needs several lines is broken before the arrow. Source and
    translation have at most three lines each; a longer text is shortened in the middle.
    """
    source, arrow, translation = title.rpartition(_ARROW)
    if text_width(title, size, bold=True) <= limit:
        # between two texts that are written from right to left, the arrow would point to the source
        reversed_ = _RIGHT_TO_LEFT.search(source) and _RIGHT_TO_LEFT.search(translation)
        return [f"{source}{_MARK}{arrow}{_MARK}{translation}" if reversed_ else title]
    lines: list[str] = []
    for part in (source, arrow.lstrip() + translation) if arrow else (title,):
        wrapped = _wrap(part, size, limit / 1.06)
        if len(wrapped) > _TITLE_LINES:
            *first, middle = wrapped[: _TITLE_LINES - 1]
            wrapped = [*first, f"{middle} …", wrapped[-1]]
        lines += wrapped
    return lines


def _wrap(content: str, size: float, limit: float) -> list[str]:
    """Break text between words, around CJK characters, and inside words wider than a line."""
    lines = [""]
    for word in _WORDS.findall(content):
        if lines[-1] and text_width(lines[-1] + word, size) > limit:
            lines.append("")
            word = word.lstrip()
        while text_width(lines[-1] + word, size) > limit and len(word) > 1:
            end = max(1, _fitting(word, size, limit))
            lines[-1:] = [word[:end], ""]
            word = word[end:]
        lines[-1] += word
    return lines


def _fitting(content: str, size: float, limit: float) -> int:
    """Return how many characters fit in `limit` pixels."""
    lengths = range(1, len(content) + 1)
    return bisect_right(lengths, limit, key=lambda end: text_width(content[:end], size))
