"""Links between the words of pairs, by hidden Markov models that are trained on these pairs."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float

from regard.alignment import Alignment, word_weights
from regard.hidden_markov import ROUNDS, HiddenMarkovAligner
from regard.lines import chunks_of
from regard.pairs import ParsedPairs
from regard.progress import Progress
from regard.text import Tokenizer

_CHUNK = 20_000
"""Maximum number of pairs of a chunk; those of equal lengths are computed together."""
_LIKELY = 0.15
"""Minimum weight of a link; chosen on 100 sentences of Tatoeba."""


def hidden_markov_links(
    parsed: ParsedPairs, source: Tokenizer, target: Tokenizer, max_length: int
) -> Iterator[list[Alignment | None]]:
    """Train hidden Markov models on the tokens of pairs, and yield the links between their words in chunks.

    Args:
        parsed: the pairs.
        source: tokenizer of the sources.
        target: tokenizer of the targets.
        max_length: maximum number of tokens of a source or target; a longer pair has None instead of links.
    """
    ids: list[list[Sequence[int]]] = []
    words: list[list[list[int | None]]] = []
    texts = [pair.key for pair in parsed.pairs], [pair.target for pair in parsed.pairs]
    for tokenizer, side in zip((source, target), texts, strict=True):
        encodings = tokenizer.encode_batch(side)
        ids.append([each.ids if len(each.ids) <= max_length else () for each in encodings])
        words.append([tokenizer.words_of(each) for each in encodings])
    with Progress("hidden Markov models", sum(ROUNDS), "rounds") as progress:
        aligner = HiddenMarkovAligner(ids[0], ids[1], progress.advance)
    lengths = [math.sqrt(len(source) * len(target)) for source, target in zip(*ids, strict=True)]
    with Progress("links", len(lengths), "pairs") as progress:
        for indices in chunks_of(range(len(lengths)), _CHUNK, lengths.__getitem__):
            part = slice(indices[0], indices[-1] + 1)
            weights = aligner.weights(ids[0][part], ids[1][part])
            found = zip(weights, words[0][part], words[1][part], strict=True)
            yield [_likely_links(*each) if each[0].size else None for each in found]
            progress.advance(len(indices))


def _likely_links(
    weights: Float[np.ndarray, "L T"],
    source_words: Sequence[int | None],
    target_words: Sequence[int | None],
) -> Alignment:
    by_word = word_weights(weights, source_words, target_words)[:, :-1]
    targets, sources = np.nonzero(by_word >= _LIKELY)
    return Alignment(zip(sources.tolist(), targets.tolist(), strict=True))
