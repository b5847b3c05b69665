"""Symmetrisation: one alignment from two models, which translate in opposite directions.

A model links every target word to at most one source word. The links of the model that translates from
target to source have the opposite restriction, and most errors of one model are not made by the other.
"""

from collections.abc import Iterable
from typing import get_args

import numpy as np
from jaxtyping import Float

from regard.alignment import Alignment, Link, best_links
from regard.config import Symmetrization
from regard.errors import ConfigError, DataError, not_one_of, quantity, shortened
from regard.translation import Translation

_NEIGHBOURS = tuple((i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if i or j)


def symmetrize(
    forward: Translation,
    reverse: Translation,
    method: Symmetrization = "soft",
    threshold: float = 0.0,
) -> Alignment:
    """Return one alignment of a pair that two models have aligned.

        forward = translator.align("te quiero", "I love you")
        reverse = other.align("I love you", "te quiero")
        print(regard.symmetrize(forward, reverse))

    Args:
        forward: the pair, aligned by a model that translates from source to target.
        reverse: the same pair, aligned by a model that translates from target to source.
        method: `soft` links each target word to the source word that agrees best with it by the
            `mean_weights`, relative to those of the source word (`best_links`); the other methods
            combine the links of both directions (`combine_links`).
        threshold: minimum weight of a link, from 0 to 1: of its mean weight for `soft`, otherwise of
            its weight in either direction.

    Raises:
        ConfigError: there is no such method, the threshold is not from 0 to 1, or a model has no
            attention.
        DataError: the models split the texts into different words.
    """
    check_method(method)
    _require_same_words(forward, reverse)
    if method == "soft":
        means = mean_weights(forward.word_weights(), reverse.word_weights())
        return best_links(means, threshold, forward.several_links and reverse.several_links)
    backward = ((source, target) for target, source in reverse.alignment(threshold))
    return combine_links(forward.alignment(threshold), backward, method)


def check_method(method: str) -> None:
    """Raise a ConfigError unless there is such a method."""
    if method not in (known := get_args(Symmetrization)):
        raise not_one_of("the symmetrisation", method, known)


def mean_weights(
    forward: Float[np.ndarray, "targets sources_and_rest"],
    reverse: Float[np.ndarray, "sources2 targets2_and_rest"],
) -> Float[np.ndarray, "targets3 sources3_and_rest"]:
    """Return the geometric mean of the weights of both directions.

    It is sqrt(forward[w, u] * reverse[u, w]) for target word `w` and source word `u`, and 0 in the last
    column, which belongs to no word: a word that both models have read is linked even if its weight is on
    EOS. Negative weights, as of the normaliser `none`, count as 0. Words that only one of the models has
    read are left out.

    Args:
        forward: the `word_weights` from source to target.
        reverse: the `word_weights` from target to source.
    """
    there, back = forward[:, :-1].clip(min=0), reverse[:, :-1].T.clip(min=0)
    targets, sources = np.minimum(there.shape, back.shape)
    means = np.sqrt(there[:targets, :sources] * back[:targets, :sources])
    return np.pad(means, ((0, 0), (0, 1)))


def combine_links(
    forward: Iterable[Link], reverse: Iterable[Link], method: Symmetrization = "grow-diag-final-and"
) -> Alignment:
    """Return the intersection or the union of two sets of links, or a set between them.

    `grow-diag-final-and` (Koehn et al. 2005, "Edinburgh System Description for the 2005 IWSLT Speech
    Translation Evaluation", after Och and Ney 2003) starts with the intersection. While there is a link
    of the union that is adjacent to a present one, diagonally too, and has a word without links, it adds
    that link. Finally it adds the links of the union with two words without links, those of `forward`
    first.

    Args:
        forward: (source, target) links of one direction.
        reverse: (source, target) links of the other direction.
        method: the method; not `soft`, which needs weights.

    Raises:
        ConfigError: there is no such method, or it is `soft`.
    """
    check_method(method)
    if method == "soft":
        raise ConfigError(
            "the symmetrisation soft needs weights instead of links; choose another one"
        )
    there, back = set(forward), set(reverse)
    if method == "intersection":
        return Alignment(there & back)
    if method == "union":
        return Alignment(there | back)
    growing = _Growing(there & back)
    growing.grow(there | back)
    for links in (there, back):
        for link in sorted(links):
            if growing.unlinked(link) == 2:
                growing.add(link)
    return Alignment(growing.links)


class _Growing:
    """A set of links, and the words that have links."""

    def __init__(self, links: Iterable[Link]) -> None:
        self.links = set[Link]()
        self._words = set[int](), set[int]()
        for link in links:
            self.add(link)

    def add(self, link: Link) -> None:
        self.links.add(link)
        for words, word in zip(self._words, link, strict=True):
            words.add(word)

    def unlinked(self, link: Link) -> int:
        """Return how many words of a link have no links."""
        return sum(word not in words for words, word in zip(self._words, link, strict=True))

    def grow(self, union: set[Link]) -> None:
        """Add the links of the union that are adjacent to a link and have a word without links."""
        before = -1
        while len(self.links) > before:
            before = len(self.links)
            for source, target in sorted(union):
                if (source, target) not in self.links:
                    continue
                for i, j in _NEIGHBOURS:
                    link = source + i, target + j
                    if link in union and self.unlinked(link):
                        self.add(link)


def _require_same_words(forward: Translation, reverse: Translation) -> None:
    """Raise a DataError if the models split a text into different numbers of words."""
    sides = (
        ("source", forward, forward.source_words, reverse.target_words),
        ("target", reverse, reverse.source_words, forward.target_words),
    )
    for side, reader, read, written in sides:
        counts = [_count(words) for words in (read, written)]
        if counts[0] != counts[1] and not reader.left_out:
            raise DataError(
                f"the models split the {side} {shortened(reader.source)!r} into "
                f"{quantity(counts[0], 'word')} and {counts[1]:,}; train both with the same units, or "
                "separate the words by spaces"
            )


def _count(words: Iterable[int | None]) -> int:
    return 1 + max((word for word in words if word is not None), default=-1)
