"""Subwords: byte-pair encoding and unigram language models, with Hugging Face's tokenizers.

A `▁` at the start of a token stands for the space before it; the first word has one too. A `▁` in
the text itself is written `▁▁`.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from regard.text.special_tokens import SPECIAL_TOKENS, UNK
from regard.text.words import WHITESPACE, WORD, regex_splitter

if TYPE_CHECKING:
    import tokenizers

_SPACE = "▁"
# A piece contains a space only at its start; a `▁` in the text is a piece by itself.
_PIECES = rf"{_SPACE}| ?(?:{WORD}|(?![{WHITESPACE}{_SPACE}])\X)|[{WHITESPACE}]"

_LONG_WORD = re.compile(r"(\S{1000})(?=\S)")
"""The start of a long word, which is split before training: the trainers take at least quadratic time."""


def mark_space(piece: str) -> str:
    """Return a vocabulary entry as a token: `▁` for a space at its start."""
    if piece == _SPACE:
        return 2 * _SPACE
    return _SPACE + piece[1:] if piece.startswith(" ") else piece


def join_subwords(tokens: Sequence[str]) -> list[str]:
    """Return the tokens with each `▁` replaced with a space, or removed before the first word."""
    pieces = [
        token[1:] if token == 2 * _SPACE else " " + token[1:] if token.startswith(_SPACE) else token
        for token in tokens
    ]
    return [pieces[0].removeprefix(" "), *pieces[1:]] if pieces else []


def most_frequent(counts: Counter[str], size: int, min_frequency: int) -> list[str]:
    """Return at most `size` tokens that occur at least `min_frequency` times, most frequent first."""
    frequent = [token for token, count in counts.items() if count >= min_frequency]
    return sorted(frequent, key=lambda token: (-counts[token], token))[:size]


def train(unit: str, texts: Iterable[str], size: int, min_frequency: int) -> dict[str, Any]:
    """Return the fields of a `Tokenizer` that a subword model determines; `texts` is read twice."""
    counts = Counter(chain.from_iterable(texts))
    del counts[" "]
    rare = counts.keys() - set(most_frequent(counts, size - 1, min_frequency))
    without_rare = str.maketrans(dict.fromkeys(rare, " "))
    marked = (" " + _LONG_WORD.sub(r"\1 ", text.translate(without_rare)) for text in texts)
    if unit == "bpe":
        return _train_bpe(marked, size, min_frequency)
    return _train_unigram(marked, size)


def load(
    unit: str,
    vocabulary: Sequence[str],
    merges: Sequence[tuple[str, str]],
    log_probs: Sequence[float],
) -> "tokenizers.Tokenizer":
    """Return a trained subword model; its ids follow those of the special tokens."""
    from tokenizers import models

    # No piece can spell a special token, because "<" is split from what follows.
    entries = [*SPECIAL_TOKENS, *vocabulary]
    if unit == "bpe":
        ids = {entry: id for id, entry in enumerate(entries)}
        return _tokenizer(models.BPE(ids, list(merges), unk_token=SPECIAL_TOKENS[UNK]))
    all_log_probs = [0.0] * len(SPECIAL_TOKENS) + list(log_probs)
    return _tokenizer(models.Unigram(list(zip(entries, all_log_probs, strict=True)), unk_id=UNK))


def _train_bpe(texts: Iterator[str], size: int, min_frequency: int) -> dict[str, Any]:
    from tokenizers import models, trainers

    # Merges that occur once would make every rare word a token.
    frequency = max(2, min_frequency)
    trainer = trainers.BpeTrainer(vocab_size=size, min_frequency=frequency, show_progress=False)
    model = _trained(models.BPE(), trainer, texts)
    vocabulary = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return {"vocabulary": tuple(vocabulary), "merges": tuple((a, b) for a, b in model["merges"])}


def _train_unigram(texts: Iterator[str], size: int) -> dict[str, Any]:
    from tokenizers import models, trainers

    # One more, because the trainer adds an entry of its own and does not terminate without room for it.
    trainer = trainers.UnigramTrainer(vocab_size=size + 1, show_progress=False)
    entries: list[tuple[str, float]] = _trained(models.Unigram(), trainer, texts)["vocab"]
    # The trainer adds the characters it pruned at its lowest log-probability, 0.0001 apart, in an
    # order that changes between runs: give them all the same value, so that training is deterministic.
    lowest = min((log_prob for _, log_prob in entries), default=0.0)
    added = lowest + 1e-4 * sum(len(token) == 1 for token, _ in entries)
    log_probs = {
        token: round(lowest if log_prob < added else log_prob, 4) for token, log_prob in entries
    }
    # The trainer exceeds the size slightly: drop the least likely multi-character tokens.
    vocabulary = sorted(log_probs, key=lambda token: (len(token) > 1, -log_probs[token], token))
    vocabulary = vocabulary[:size]
    return {
        "vocabulary": tuple(vocabulary),
        "log_probs": tuple(log_probs[token] for token in vocabulary),
    }


def _trained(model: Any, trainer: Any, texts: Iterator[str]) -> dict[str, Any]:
    tokenizer = _tokenizer(model)
    tokenizer.train_from_iterator(texts, trainer)
    return json.loads(tokenizer.to_str())["model"]


def _tokenizer(model: Any) -> "tokenizers.Tokenizer":
    import tokenizers

    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = regex_splitter(_PIECES)
    return tokenizer
