"""Copying: source tokens as target-side ids.

A source token that is in the target vocabulary has its id in that vocabulary. The others have the
ids V, V + 1, …, in the order in which they occur in each source, where V is the size of the
vocabulary (the extended vocabulary of See et al. 2017). Features of a source cannot be copied: they have
the id of padding, which no output has.
"""

import random
from typing import NamedTuple

from regard.batching import Example
from regard.text import EOS, PAD, SPECIAL_TOKENS, UNK, Encoding, Tokenizer

HIDDEN_SHARE = 0.05
"""Share of a pair's distinct tokens that are hidden in training, so that the model learns to copy
unknown tokens: a vocabulary learned from the training pairs contains all of their tokens."""


class Copies(NamedTuple):
    """Target-side ids of one source."""

    ids: list[int]
    """Target-side id of every source token, EOS included."""
    extra_tokens: list[str]
    """The tokens with the ids V, V + 1, …"""


def make_example(source: Encoding, target: Encoding, target_side: Tokenizer, copy: bool) -> Example:
    """Return a pair as an example; with `copy`, its target may contain ids of the extended vocabulary."""
    example = Example([*source.ids, EOS], target.ids)
    if not copy:
        return example
    copies = copies_of(source, target_side)
    return example._replace(
        target=extended_ids(target, copies, len(target_side)), copies=copies.ids
    )


def copies_of(source: Encoding, target: Tokenizer) -> Copies:
    """Return the target-side ids of the source's tokens."""
    extra: dict[str, int] = {}
    ids: list[int] = []
    tokens = source.tokens[: len(source.tokens) - source.num_features]
    for token, id in zip(tokens, target.tokens_to_ids(tokens), strict=True):
        if id == UNK:
            id = extra.setdefault(token, len(target) + len(extra))
        ids.append(id)
    return Copies([*ids, *[PAD] * source.num_features, EOS], list(extra))


def extended_ids(target: Encoding, copies: Copies, vocabulary: int) -> list[int]:
    """Return the ids of a target; copied tokens outside the vocabulary have their extended ids."""
    extra = {token: id for id, token in enumerate(copies.extra_tokens, start=vocabulary)}
    return [
        extra.get(token, UNK) if id == UNK else id
        for id, token in zip(target.ids, target.tokens, strict=True)
    ]


def hide_tokens(example: Example, vocabulary: int, rng: random.Random) -> Example:
    """Return the example with a share of its tokens made unknown on both sides, to be copied."""
    next_id = max(vocabulary, *(id + 1 for id in example.copies))
    new: dict[int, int] = {}
    for id in sorted(set(example.copies)):
        if len(SPECIAL_TOKENS) <= id < vocabulary and rng.random() < HIDDEN_SHARE:
            new[id] = next_id + len(new)
    pairs = zip(example.source, example.copies, strict=True)
    return example._replace(
        source=[UNK if copy in new else id for id, copy in pairs],
        target=[new.get(id, id) for id in example.target],
        copies=[new.get(id, id) for id in example.copies],
    )
