"""Features of a source, such as `V;PST`: a separate field, or the part of a line after a TAB."""

import re

from regard.config import NormalForm
from regard.text.normalization import normalize

SourceLike = str | tuple[str, str | None]
"""A text, or a text and its features."""

_SEPARATORS = re.compile("[;|,]")


def split_source(source: SourceLike) -> tuple[str, str | None]:
    """Return the text and its features, which are None if there are none."""
    return (source, None) if isinstance(source, str) else source


def format_source(source: SourceLike) -> str:
    """Return one line: the text, followed by a TAB and its features if there are any."""
    text, features = split_source(source)
    return text if features is None else f"{text}\t{features}"


def split_features(features: str, form: NormalForm) -> list[str]:
    """Return the features, split at `;`, `|`, `,` and whitespace."""
    return _SEPARATORS.sub(" ", normalize(features, form)).split()
