"""Unicode normalisation and lower-casing, applied before text is split into tokens."""

import unicodedata

from regard.config import NormalForm
from regard.errors import DataError


def normalize(text: str, form: NormalForm, lowercase: bool = False) -> str:
    """Return the text in a Unicode normal form, then lower-cased if requested.

    Raises:
        DataError: the text holds half a surrogate pair.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"text cannot be UTF-8: half a surrogate pair at character {error.start + 1}; "
            "read the text with its right encoding"
        ) from None
    if form != "none":
        text = unicodedata.normalize(form, text)
    return text.lower() if lowercase else text
