"""What a copying decoder may copy: source symbols as ids of the target side.

A source symbol that the target vocabulary holds has its id there; the others follow after the
vocabulary of size V as V, V + 1, …, in the order in which each source has them.
"""

import random
from typing import NamedTuple

from regard.data import Example
from regard.text import EOS, SPECIAL_TOKENS, UNK, Encoding, Tokenizer

HIDDEN = 0.05
"""Share of a pair's distinct symbols that are hidden in training, so that copying unknown ones is
learned: a vocabulary made from the training pairs knows them all."""


class Copies(NamedTuple):
    """What can be copied from one source."""

    ids: list[int]
    """Of every source symbol, the end symbol included, its id on the target side."""
    symbols: list[str]
    """What V, V + 1, … stand for."""


def copies_of(source: Encoding, target: Tokenizer) -> Copies:
    """The source's symbols on the target side."""
    extra: dict[str, int] = {}
    ids: list[int] = []
    for token, id in zip(source.tokens, target.tokens_to_ids(source.tokens), strict=True):
        if id == UNK:
            id = extra.setdefault(token, len(target) + len(extra))
        ids.append(id)
    return Copies([*ids, EOS], list(extra))


def widened(target: Encoding, copies: Copies, vocabulary: int) -> list[int]:
    """The ids of a target, with those of copied symbols where the vocabulary has none."""
    extra = {symbol: id for id, symbol in enumerate(copies.symbols, start=vocabulary)}
    return [
        extra.get(token, UNK) if id == UNK else id
        for id, token in zip(target.ids, target.tokens, strict=True)
    ]


def hide(example: Example, vocabulary: int, rng: random.Random) -> Example:
    """The example with a share of its symbols unknown on both sides, to be copied."""
    next_id = max(vocabulary, *(id + 1 for id in example.copies))
    new: dict[int, int] = {}
    for id in sorted(set(example.copies)):
        if len(SPECIAL_TOKENS) <= id < vocabulary and rng.random() < HIDDEN:
            new[id] = next_id + len(new)
    if not new:
        return example
    pairs = zip(example.source, example.copies, strict=True)
    return Example(
        [UNK if copy in new else id for id, copy in pairs],
        [new.get(id, id) for id in example.target],
        [new.get(id, id) for id in example.copies],
    )
