"""Features of a source, such as `V;PST`: a field beside its text, or behind a TAB on one line."""

import re

from regard.config import NormalForm
from regard.text.normalization import normalize

SourceLike = str | tuple[str, str | None]
"""A text, or a text and its features."""

_SEPARATORS = re.compile("[;|,]")


def split_source(source: SourceLike) -> tuple[str, str | None]:
    """Return the text and its features; None without features."""
    return (source, None) if isinstance(source, str) else source


def format_source(source: SourceLike) -> str:
    """Return one line: the text, and behind a TAB its features, if there are any."""
    text, features = split_source(source)
    return text if features is None else f"{text}\t{features}"


def split_features(features: str, form: NormalForm) -> list[str]:
    """Return the features, split at `;`, `|`, `,` and whitespace."""
    return _SEPARATORS.sub(" ", normalize(features, form)).split()
