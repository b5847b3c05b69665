"""Matching of word tokens that are not in a vocabulary to tokens that are."""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from regard.text.special_tokens import UNK
from regard.text.words import JOINER, display_token

# Thai and Lao, Myanmar, Khmer, kana, Han
_SCRIPTS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
_UNSPACED = re.compile(f"[{_SCRIPTS}]")
_UNITS = re.compile(f"[{_SCRIPTS}]|[^{_SCRIPTS}]+")
"""What a cut never divides: a character of such a script, or a run of others, such as a number."""
_UNKNOWN_COST = 1000


class MatchedTokens(NamedTuple):
    """Tokens and their vocabulary ids, and the tokens that were left out."""

    ids: list[int]
    tokens: list[str]
    left_out: tuple[str, ...]


def match_tokens(
    tokens: Sequence[str], vocabulary: Mapping[str, int], longest: int
) -> MatchedTokens:
    """Match the tokens that are not in the vocabulary, whose longest one has `longest` characters, to those that are.

    - Punctuation matches the same mark with different spacing: `‿?` matches `?`.
    - A word in a script without spaces is split into as few vocabulary words as possible:
      `我爱机器学习` into `我`, `‿爱`, `‿机器`, `‿学习`, with the ids of `我`, `爱`, `机器` and `学习`.
      Words of other scripts, and numbers, inside it stay whole.
    - Other unknown punctuation is removed from both ends of a word and from the end of the text,
      unless nothing of the text would remain. This does not change the index of any word: a token that
      was joined to it is written without the mark of joining.

    Other tokens keep the id UNK. The tokens keep the spelling and the spacing of the text.
    """
    ids: list[int] = []
    matched: list[str] = []
    for token in tokens:
        pieces = [token]
        if token not in vocabulary and _UNSPACED.search(token) and not _is_punctuation(token):
            pieces = _split_word(token, vocabulary, longest)
        matched += pieces
        ids += [_find(piece, vocabulary) for piece in pieces]
    kept = _kept(ids, matched)
    if not kept:
        return MatchedTokens(ids, matched, ())
    dropped = sorted(set(range(len(ids))) - set(kept))
    left_out = tuple(matched[index] for index in dropped)
    for index in dropped:  # without it, its neighbours would be joined to other words
        if index + 1 < len(ids) and matched[index + 1] != JOINER:
            matched[index + 1] = matched[index + 1].removeprefix(JOINER)
        if index and matched[index - 1] not in (JOINER, 2 * JOINER):  # which end with the character
            matched[index - 1] = matched[index - 1].removesuffix(JOINER)
    return MatchedTokens([ids[i] for i in kept], [matched[i] for i in kept], left_out)


def segmented_word_ids(tokens: Sequence[str]) -> list[int] | None:
    """Return the word index of each token in a text without spaces that was split into words.

    Punctuation has the index of the word before it or, at the start, of the first word. The result
    is None for text with spaces, and for text that was not split.
    """
    joined = all(
        token.startswith(JOINER) or previous.endswith(JOINER)
        for previous, token in pairwise(tokens)
    )
    is_word = [not _is_punctuation(token) for token in tokens]
    if not (joined and any(is_word[1:]) and any(map(_UNSPACED.search, tokens))):
        return None
    return [max(0, words - 1) for words in accumulate(is_word)]


def _find(token: str, vocabulary: Mapping[str, int]) -> int:
    bare = display_token(token)
    spellings = [token, bare]
    if _is_punctuation(token):
        spellings += [JOINER + bare, bare + JOINER, JOINER + bare + JOINER]
    return next((vocabulary[s] for s in spellings if s in vocabulary), UNK)


def _split_word(token: str, vocabulary: Mapping[str, int], longest: int) -> list[str]:
    """Split a token into the fewest vocabulary words; each part without any stays one piece.

    `longest` is the length of the longest word in the vocabulary.
    """
    units = _UNITS.findall(display_token(token))

    def word(start: int, end: int) -> str:
        return "".join(units[start:end])

    # for every end position: the cost, and the start of the last piece
    best: list[tuple[int, int]] = [(0, 0)]
    for end in range(1, len(units) + 1):
        best.append(
            min(
                (best[start][0] + (1 if is_known else _UNKNOWN_COST), start)
                for start in range(max(0, end - max(1, longest)), end)
                if (is_known := word(start, end) in vocabulary) or start == end - 1
            )
        )
    pieces: list[str] = []
    end, known = len(units), True
    while end:
        start = best[end][1]
        piece = word(start, end)
        is_known = piece in vocabulary
        if pieces and not known and not is_known:
            pieces[-1] = piece + pieces[-1]
        else:
            pieces.append(piece)
        end, known = start, is_known
    first, *rest = reversed(pieces)
    left = JOINER if token.startswith(JOINER) else ""
    *most, last = [left + first, *(JOINER + piece for piece in rest)]
    return [*most, last + JOINER if token.endswith(JOINER) else last]


def _kept(ids: Sequence[int], tokens: Sequence[str]) -> list[int]:
    """Return the positions of the tokens that are not left out."""
    kept: list[list[int]] = []
    for chunk in reversed(_chunks(tokens)):
        unknown = {i for i in chunk if ids[i] == UNK and _is_punctuation(tokens[i])}
        inner = list(chunk)
        while inner and inner[0] in unknown:
            inner.pop(0)
        while inner and inner[-1] in unknown:
            inner.pop()
        if inner or kept:  # otherwise only unknown punctuation follows
            kept.append(inner or chunk)
    return [index for chunk in reversed(kept) for index in chunk]


def _chunks(tokens: Sequence[str]) -> list[list[int]]:
    """Return the positions of the tokens in each string between whitespace."""
    chunks: list[list[int]] = []
    for index, token in enumerate(tokens):
        joined = index > 0 and (
            (len(token) > 1 and token.startswith(JOINER))
            or (len(tokens[index - 1]) > 1 and tokens[index - 1].endswith(JOINER))
        )
        if joined:
            chunks[-1].append(index)
        else:
            chunks.append([index])
    return chunks


def _is_punctuation(token: str) -> bool:
    bare = display_token(token)
    first, *rest = map(unicodedata.category, bare)
    # a variation selector or a joiner of emoji may follow
    return (
        bare != JOINER
        and first[0] in "PS"
        and all(category[0] in "PSM" or category == "Cf" for category in rest)
    )
