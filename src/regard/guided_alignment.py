"""Guided alignment: attention that is trained to agree with links between words.

Garg et al. 2019, "Jointly Learning to Align and Translate with Transformer Models" (arXiv:1909.02074),
section 4. Where they guide one head, the average over the heads of a layer is guided here, which is what
`Translation.alignment` reads.
"""

import itertools
import operator
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from regard.alignment import GoldAlignment, Link, check_pair_links, read_gold
from regard.batching import TokenLink
from regard.errors import DataError, quantity, shortened
from regard.kernels.weighted_sum import to_compute_dtype
from regard.pairs import Pair, ParsedPairs
from regard.text import Tokenizer
from regard.word_links import hidden_markov_links

DEFAULT_WEIGHT = 0.05
"""Weight of the loss: lambda in Garg et al."""


class Guide(NamedTuple):
    """Links of training pairs, one item per line of the pairs."""

    name: str
    """Path of the file, or the origin of the links."""
    lines: Sequence[GoldAlignment]

    @classmethod
    def of(cls, links: Iterable[Iterable[Link]] | str, parsed: ParsedPairs) -> "Guide":
        """Return the links of the lines of `parsed`, from a list or a file.

        Raises:
            DataError: the file cannot be read, or there is not one line of links per line of pairs.
        """
        if isinstance(links, str):
            guide = cls(links, read_gold(links))
        else:
            guide = cls("links", [_checked(line, n) for n, line in enumerate(links, start=1)])
        lines = len(parsed.pairs) + len(parsed.bad)
        if len(guide.lines) != lines:
            raise DataError(
                f"{guide.name} has {quantity(len(guide.lines), 'line')} for the "
                f"{quantity(lines, 'line')} of {parsed.name}; give one line of links per line of pairs"
            )
        return guide

    @classmethod
    def computed(
        cls, parsed: ParsedPairs, source: Tokenizer, target: Tokenizer, max_length: int
    ) -> "Guide":
        """Return the links of hidden Markov models that are trained on these pairs."""
        lines = [GoldAlignment(frozenset())] * max(parsed.numbers)
        chunks = hidden_markov_links(parsed, source, target, max_length)
        found = itertools.chain.from_iterable(chunks)
        for number, links in zip(parsed.numbers, found, strict=True):
            lines[number - 1] = GoldAlignment(frozenset(links or ()))
        return cls("links of hidden Markov models", lines)

    @property
    def several(self) -> bool:
        """Whether a target word is linked to several source words."""
        return any(
            len({target for _, target in pair.possible}) < len(pair.possible) for pair in self.lines
        )

    def token_links(
        self,
        number: int,
        pair: Pair,
        source_words: Sequence[int | None],
        target_words: Sequence[int | None],
    ) -> list[TokenLink]:
        """Return links between all tokens of linked words.

        The source words of a target word have equal shares, as do the tokens of a source word, so that
        `word_weights` of these shares are equal for all linked words.

        Args:
            number: line number of the pair, from 1.
            pair: the texts.
            source_words: for each source token, the index of its word.
            target_words: the same for each target token.

        Raises:
            DataError: a link is outside the texts.
        """
        links = self.lines[number - 1]
        size = count_words(source_words, pair.source), count_words(target_words, pair.target)
        check_pair_links(links, size, f"{self.name}, line {number:,}")
        found: list[TokenLink] = []
        for target, word in enumerate(target_words):
            linked = [
                [token for token, other in enumerate(source_words) if other == source]
                for source, linked_word in sorted(links.possible)
                if linked_word == word
            ]
            linked = [tokens for tokens in linked if tokens]  # a word may have been left out
            found += [
                TokenLink(token, target, 1 / len(linked) / len(tokens))
                for tokens in linked
                for token in tokens
            ]
        return found


def _checked(line: Iterable[Link], number: int) -> GoldAlignment:
    """Return the links of a pair; raise a DataError if they are no pairs of whole numbers."""
    try:
        found = frozenset(
            (operator.index(source), operator.index(target)) for source, target in line
        )
    except (TypeError, ValueError):
        raise DataError(
            f"links, item {number:,}: links are pairs of a source word and a target word, such as "
            f"[(0, 1), (2, 0)], got {shortened(repr(line))}"
        ) from None
    return GoldAlignment(found)


def guided_layer(layers: int) -> int:
    """Return the layer that is guided: the last but one, as in section 4.2 of Garg et al."""
    return max(layers - 2, 0)


def guided_alignment_losses(
    weights: Float[Tensor, "B L layers H T"], links: Float[Tensor, "B L T"]
) -> Float[Tensor, "B L"]:
    """Return the cross-entropy, in nats, between links and attention weights at every target token.

        loss_m = - sum_n G_mn log A_mn

    Eq. 5 of Garg et al., where A is the average over the heads of the guided layer, and G has the shares
    of the source tokens linked to target token m; the loss of a token without links is 0.
    """
    guided = to_compute_dtype(weights[:, :, guided_layer(weights.shape[2])]).mean(2)
    # sparse weights can be 0
    return -(links * guided.clamp(min=torch.finfo(guided.dtype).tiny).log()).sum(-1)


def count_words(words: Sequence[int | None], text: str) -> int:
    """Return the number of words: the model's or, as it may leave out punctuation, those of the text."""
    read = 1 + max((word for word in words if word is not None), default=-1)
    return max(read, len(text.split()))
