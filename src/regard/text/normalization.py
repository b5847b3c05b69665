"""Unicode normalisation and lower-casing, applied before text is split into tokens."""

import functools
import unicodedata

from regard.config import NormalForm
from regard.errors import DataError
from regard.setting_checks import MAX_LENGTH

MOST_MARKS = 1000
"""Maximum combining characters in a row; normalising them takes quadratic time."""
_MOST_CHARACTERS = 18
"""Number of characters that Unicode's normal forms may make of one."""


def may_be_too_long(*parts: str | None) -> bool:
    """Return whether a text in parts may have more than `MAX_LENGTH` tokens, or `MOST_MARKS` combining characters in a row."""
    return sum(len(part or "") for part in parts) > MAX_LENGTH // _MOST_CHARACTERS


def normalize(text: str, form: NormalForm, lowercase: bool = False) -> str:
    """Return the text in a Unicode normal form, then lower-cased if requested.

    Raises:
        DataError: the text contains a lone surrogate, or more than 1,000 combining characters in
            a row.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"text cannot be encoded in UTF-8: lone surrogate at character {error.start + 1}; "
            "read the text with its correct encoding"
        ) from None
    if form == "none":
        return text.lower() if lowercase else text
    if position := excess_mark(text):
        raise DataError(
            f"more than {MOST_MARKS:,} combining characters in a row, up to character {position}; correct the text"
        )
    text = unicodedata.normalize(form, text)
    # a capital letter may have no composed form, unlike its lower case
    return unicodedata.normalize(form, text.lower()) if lowercase else text


def excess_mark(text: str) -> int:
    """Return the position, from 1, of the first combining character after `MOST_MARKS` in a row; 0 if there is none."""
    if len(text) <= MOST_MARKS or text.isascii():
        return 0
    marks = 0
    for position, character in enumerate(text, start=1):
        marks = marks + 1 if _is_mark(character) else 0
        if marks > MOST_MARKS:
            return position
    return 0


@functools.lru_cache(maxsize=4096)
def _is_mark(character: str) -> bool:
    """Return whether the decomposition of a character begins with a combining character."""
    return unicodedata.combining(unicodedata.normalize("NFKD", character)[0]) > 0


def remove_line_ending(text: str) -> str:
    """Return a text without the LF or CR LF at its end, as the lines of an open file have."""
    return text[:-1].removesuffix("\r") if text.endswith("\n") else text
