"""Synthetic training pairs, recombined from parts of real pairs.

Two pairs are cut after a word and its translation, or a letter and its sound, that they have in common, and
the beginning of one is joined to the end of the other. Links between words, or an alignment of letters and
sounds by edit operations, show where a pair can be cut.
"""

import itertools
import math
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from regard.batching import Example, TokenLink
from regard.edit_alignment import LONGEST, MOST, passing_probabilities
from regard.text import UNK

_MOST_LINKED = 100_000
"""Number of examples above which a sample of them is cut between linked tokens."""
_ATTEMPTS = 20
"""Maximum number of attempts per synthetic pair; few pairs have few combinations."""


class Cut(NamedTuple):
    """A place where an example can be cut."""

    example: int
    """Index of the example."""
    source: int
    """Number of source tokens before the cut."""
    target: int
    """Number of target tokens before the cut."""
    common: tuple[Any, ...]
    """What examples that are joined must have in common: tokens at the cut that correspond, and features."""


def recombine(
    examples: Sequence[Example],
    count: int,
    seed: int,
    vocabulary: int,
    first_feature: int | None = None,
    by_links: bool = False,
) -> list[Example]:
    """Return at most `count` new examples; fewer if the examples have fewer combinations.

    Args:
        examples: the examples to combine, each with EOS at the end of the source.
        count: number of examples to make.
        seed: seed of the random choices.
        vocabulary: size of the target vocabulary; ids from there on are those of copied tokens.
        first_feature: the id from which on source tokens are features, which both examples must have in
            common; None if there are none.
        by_links: cut pairs between linked tokens; otherwise, where an alignment by edit operations permits it.
    """
    cuts = cut_points(examples, first_feature, by_links)
    groups = defaultdict[tuple[Any, ...], list[Cut]](list)
    for cut in cuts:
        groups[cut.common].append(cut)
    combinations = sum(len(group) ** 2 for group in groups.values())
    rng = random.Random(seed)
    known = {_key(example) for example in examples}
    tried = set[tuple[Cut, Cut]]()
    found = list[Example]()
    for _ in range(_ATTEMPTS * count):
        if len(found) == count or len(tried) == combinations:
            break
        first = rng.choice(cuts)
        second = rng.choice(groups[first.common])
        if (first, second) in tried:
            continue
        tried.add((first, second))
        example = _joined(examples, first, second, vocabulary, first_feature)
        if _key(example) not in known:
            known.add(_key(example))
            found.append(example)
    return found


def cut_points(
    examples: Sequence[Example], first_feature: int | None = None, by_links: bool = False
) -> list[Cut]:
    """Return the places where the examples can be cut: inside the texts, not before or after features."""
    if not by_links:
        return _between_edits(examples, first_feature)
    step = math.ceil(len(examples) / _MOST_LINKED) or 1
    return [
        cut
        for index in range(0, len(examples), step)
        for cut in _between_links(index, examples[index], first_feature)
    ]


def _between_links(index: int, example: Example, first_feature: int | None) -> Iterator[Cut]:
    """Yield the places after linked tokens, if no link joins a token before the cut with one after it.

    No place is inside a linked word, because links join all of its tokens. Links to features do not count.
    """
    size, steps = _text_length(example, first_feature), len(example.target)
    links = sorted((s, t) for s, t, _ in example.links or () if s < size)
    sources: list[list[int]] = [[] for _ in range(steps)]
    targets: list[list[int]] = [[] for _ in range(size)]
    for source, target in links:
        sources[target].append(source)
        targets[source].append(target)
    last_source, last_target = (
        [*itertools.accumulate((max(found, default=-1) for found in side), max)]
        for side in (sources, targets)
    )
    for source, target in links:
        is_last = last_target[source] == target and last_source[target] == source
        if is_last and source + 1 < size and target + 1 < steps:
            common = (
                tuple(example.source[each] for each in sources[target]),
                tuple(example.target[each] for each in targets[source]),
                *_features(example, first_feature),
            )
            yield Cut(index, source + 1, target + 1, common)


def _between_edits(examples: Sequence[Example], first_feature: int | None) -> list[Cut]:
    """Return the places that the alignment by edit operations passes with a posterior probability above 0.5."""
    # sizes include EOS; a single token cannot be cut
    short = [
        index
        for index, example in enumerate(examples)
        if min(example.size) > 2 and max(example.size) <= LONGEST + 1
    ][:MOST]
    if not short:
        return []
    chosen = [examples[index] for index in short]
    passing = passing_probabilities([e.source[:-1] for e in chosen], [e.target for e in chosen])
    inside = np.zeros(passing.shape, bool)
    for row, example in zip(inside, chosen, strict=True):
        row[1 : _text_length(example, first_feature), 1 : len(example.target)] = True
    found: list[Cut] = []
    for row, i, j in zip(
        *(each.tolist() for each in np.nonzero(inside & (passing > 0.5))), strict=True
    ):
        example = chosen[row]
        common = (example.source[i - 1], example.target[j - 1], *_features(example, first_feature))
        found.append(Cut(short[row], i, j, common))
    return found


def _text_length(example: Example, first_feature: int | None) -> int:
    """Return the number of source tokens without features and EOS."""
    return len(example.source) - 1 - len(_features(example, first_feature))


def _features(example: Example, first_feature: int | None) -> list[int]:
    return [] if first_feature is None else [id for id in example.source if id >= first_feature]


def _joined(
    examples: Sequence[Example],
    first: Cut,
    second: Cut,
    vocabulary: int,
    first_feature: int | None,
) -> Example:
    """Return the beginning of one example and the end of another one.

    Their unknown tokens, which have ids from `vocabulary` on in either, are numbered anew. In the target,
    UNK replaces those that were copied from a part that is cut off.
    """
    (index, i, j, _), (other, k, m, _) = first, second
    a, b = examples[index], examples[other]
    copies = [*((0, id) for id in a.copies[:i]), *((1, id) for id in b.copies[k:])]
    target = [*((0, id) for id in a.target[:j]), *((1, id) for id in b.target[m:])]
    unknown = dict.fromkeys(token for token in copies if token[1] >= vocabulary)
    new = {token: vocabulary + number for number, token in enumerate(unknown)}
    return Example(
        [*a.source[:i], *b.source[k:]],
        [new.get(token, UNK) if token[1] >= vocabulary else token[1] for token in target],
        [new.get(token, token[1]) for token in copies],
        _joined_links(a, b, first, second, first_feature),
    )


def _joined_links(
    a: Example, b: Example, first: Cut, second: Cut, first_feature: int | None
) -> list[TokenLink] | None:
    """Return the links of both parts, without those to tokens that are cut off; the shares still sum to 1."""
    if a.links is None or b.links is None:
        return None
    # features of `a` have their counterparts at the end of `b`
    features = _text_length(a, first_feature)
    moved = first.source + len(b.source) - second.source - len(a.source)
    kept = [
        (source if source < first.source else source + moved, target, share)
        for source, target, share in a.links
        if target < first.target and (source < first.source or source >= features)
    ]
    kept += [
        (source - second.source + first.source, target - second.target + first.target, share)
        for source, target, share in b.links
        if target >= second.target and source >= second.source
    ]
    totals = defaultdict[int, float](float)
    for _, target, share in kept:
        totals[target] += share
    return [TokenLink(source, target, share / totals[target]) for source, target, share in kept]


def _key(example: Example) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(example.source), tuple(example.target)
