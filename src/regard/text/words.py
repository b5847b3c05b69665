"""Splitting into grapheme clusters, and into words and punctuation marks.

A `‿` in a word token marks the side on which a punctuation mark touches its neighbour.
"""

import functools
import unicodedata
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import Split

JOINER = "‿"

# Whitespace as str.split defines it, so that word_ids() and text().split() agree.
WHITESPACE = r"\s\x1c-\x1f"
_LETTERS = rf"[^{WHITESPACE}\p{{P}}\p{{S}}]+"
WORD = rf"{_LETTERS}(?:['’\-‐‑·]{_LETTERS})*"
_WORDS_AND_PUNCTUATION = rf"{JOINER}|{WORD}|\X"


@functools.cache
def regex_splitter(pattern: str) -> "Split":
    """Return a pre-tokenizer that isolates every match of a regular expression."""
    from tokenizers import Regex, pre_tokenizers

    return pre_tokenizers.Split(Regex(pattern), "isolated")


def _split(pattern: str, text: str) -> list[str]:
    return [piece for piece, _ in regex_splitter(pattern).pre_tokenize_str(text)]


def split_graphemes(text: str) -> list[str]:
    """Split text into grapheme clusters (Unicode Standard Annex 29)."""
    return _split(r"\X", text)


def split_words(text: str) -> list[str]:
    """Split text into words, with inner apostrophes, hyphens and middle dots, and punctuation marks."""
    tokens: list[str] = []
    for chunk in text.split():
        tokens += [chunk] if chunk.isalpha() else _mark_joins(_split(_WORDS_AND_PUNCTUATION, chunk))
    return tokens


def join_words(tokens: Sequence[str]) -> list[str]:
    """Return the tokens without joiners, each with the space before it if there is one."""
    pieces: list[str] = []
    joined = True
    for token in tokens:
        left = len(token) > 1 and token.startswith(JOINER)
        piece = token[1:] if left else token
        right = len(piece) > 1 and piece.endswith(JOINER)
        piece = piece[:-1] if right else piece
        pieces.append(piece if joined or left else " " + piece)
        joined = right
    return pieces


def display_token(token: str) -> str:
    """Return a word token without its joiners."""
    bare = token[1:] if len(token) > 1 and token.startswith(JOINER) else token
    return bare[:-1] if len(bare) > 1 and bare.endswith(JOINER) else bare


def _mark_joins(pieces: Sequence[str]) -> list[str]:
    tokens = list(pieces)
    for left, right in pairwise(range(len(pieces))):
        if _is_punctuation(pieces[left]) and not _is_punctuation(pieces[right]):
            tokens[left] += JOINER
        else:
            tokens[right] = JOINER + tokens[right]
    return tokens


def _is_punctuation(piece: str) -> bool:
    # The joiner counts as a word: with a joiner on its right, "‿‿" would be ambiguous.
    return piece != JOINER and unicodedata.category(piece[0])[0] in "PS"
