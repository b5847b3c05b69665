"""Units of text: how each splits text into tokens, and which one suits a dataset."""

import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import NamedTuple, Protocol, runtime_checkable

from regard.config import Unit
from regard.text.subwords import join_subwords
from regard.text.words import join_words, split_graphemes, split_words

_SAMPLE_SIZE = 5000


@runtime_checkable
class SizedIterable(Protocol):
    """Texts that can be counted, and read several times."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[str]: ...


class UnitDefinition(NamedTuple):
    """How one unit splits text into tokens and joins tokens to text."""

    split: Callable[[str], list[str]] | None
    """Split a text into tokens; None for a trained subword model, which splits it."""
    join: Callable[[Sequence[str]], Sequence[str]]
    """Convert tokens to strings whose concatenation is the text."""
    has_words: bool
    """Whether tokens are words, punctuation or parts of words, which alignments merge into words."""


def _join_whitespace(tokens: Sequence[str]) -> list[str]:
    return [" " + token if index else token for index, token in enumerate(tokens)]


UNITS: dict[Unit, UnitDefinition] = {
    "char": UnitDefinition(list, list, has_words=False),
    "grapheme": UnitDefinition(split_graphemes, list, has_words=False),
    "word": UnitDefinition(split_words, join_words, has_words=True),
    "whitespace": UnitDefinition(str.split, _join_whitespace, has_words=False),
    "bpe": UnitDefinition(None, join_subwords, has_words=True),
    "unigram": UnitDefinition(None, join_subwords, has_words=True),
}


def sample(texts: SizedIterable) -> list[str]:
    """Return about 5,000 of the texts, evenly spaced, or all of them if there are fewer."""
    return list(islice(texts, 0, None, math.ceil(len(texts) / _SAMPLE_SIZE) or 1))


def choose_unit(texts: SizedIterable) -> Unit:
    """Return the unit that suits one side of the pairs, based on a sample of about 5,000 texts.

    - whitespace: short pieces between spaces, at most 200 different ones (phones: `AA N K AO R`);
    - word: sentences with at most 2,000 different words, which occur at least ten times on average;
    - bpe: other sentences;
    - char: texts without spaces (spellings, Chinese) and texts in which at least a fifth of the
      characters are digits (dates); or grapheme if some letter takes several code points.
    """
    chosen = [unicodedata.normalize("NFC", text) for text in sample(texts) if text.strip()]
    spaced = [text for text in chosen if len(text.split()) > 1]
    if len(spaced) > len(chosen) / 2:
        if _are_phones(Counter(chain.from_iterable(map(str.split, chosen)))):
            return "whitespace"
        if not _are_mostly_digits(chosen):
            words = Counter(chain.from_iterable(map(split_words, chosen)))
            return "word" if len(words) <= 2000 and words.total() >= 10 * len(words) else "bpe"
    joined = "\n".join(chosen)
    return "char" if len(split_graphemes(joined)) == len(joined) else "grapheme"


def _are_phones(counts: Counter[str]) -> bool:
    numbers = any(len(piece) > 1 and piece.isdigit() for piece in counts)
    dates = numbers and any(piece.isalpha() for piece in counts)
    punctuation = any(len(piece) > 1 and piece[-1] in ".,!?" for piece in counts)
    mean_length = sum(len(piece) * count for piece, count in counts.items()) / counts.total()
    return len(counts) <= 200 and mean_length <= 3 and not dates and not punctuation


def _are_mostly_digits(texts: Sequence[str]) -> bool:
    characters = "".join(chain.from_iterable(map(str.split, texts)))
    return sum(map(str.isdigit, characters)) >= len(characters) / 5
