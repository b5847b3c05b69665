"""Synthetic training pairs for small training sets, recombined from parts of real pairs.

Two pairs with a common token pair, such as *c* and *t͡s*, are cut after it, and the beginning of one is
joined to the end of the other. The pairs are cut where an alignment of their tokens permits it.
"""

import itertools
import random
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from regard.batching import Example
from regard.text import UNK

_ROUNDS = 10
"""Rounds of expectation maximisation; the likelihood changes little afterwards."""
_SMOOTHING = 1e-3
"""Added to the expected number of occurrences of every operation."""
_LONGEST = 64
"""Number of tokens above which a source or a target is not cut."""
_MOST = 5000
"""Number of examples that are cut; larger sets have little use for synthetic examples."""
_MARGIN = 0.3
"""Nats per token by which pairs in the same order are more probable than with reversed targets."""
_ATTEMPTS = 20
"""Maximum number of attempts per synthetic pair; few pairs have few combinations."""

Cut = tuple[int, int, int]
"""Index of an example, and the numbers of source and target tokens before the cut."""


def recombine(
    examples: Sequence[Example],
    count: int,
    seed: int,
    vocabulary: int,
    first_feature: int | None = None,
) -> list[Example]:
    """Return at most `count` new examples; fewer if the examples have fewer combinations.

    Args:
        examples: the examples to combine, each with EOS at the end of the source.
        count: number of examples to make.
        seed: seed of the random choices.
        vocabulary: size of the target vocabulary; ids from there on are those of copied tokens.
        first_feature: the id from which on source tokens are features, which both examples must have in
            common; None if there are none.
    """
    cuts = cut_points(examples, first_feature)
    by_tokens = defaultdict[tuple[Any, ...], list[Cut]](list)
    for cut in cuts:
        by_tokens[_tokens_before(examples, cut, first_feature)].append(cut)
    combinations = sum(len(group) ** 2 for group in by_tokens.values())
    rng = random.Random(seed)
    known = {_key(example) for example in examples}
    tried = set[tuple[Cut, Cut]]()
    found = list[Example]()
    for _ in range(_ATTEMPTS * count):
        if len(found) == count or len(tried) == combinations:
            break
        first = rng.choice(cuts)
        second = rng.choice(by_tokens[_tokens_before(examples, first, first_feature)])
        if (first, second) in tried:
            continue
        tried.add((first, second))
        example = _joined(examples, first, second, vocabulary)
        if _key(example) not in known:
            known.add(_key(example))
            found.append(example)
    return found


def cut_points(examples: Sequence[Example], first_feature: int | None = None) -> list[Cut]:
    """Return the places where the examples can be cut: between tokens of the text, not before or after features.

    Source and target are aligned by insertions, deletions and substitutions, whose probabilities are
    learned from the examples (Ristad and Yianilos 1998, "Learning String-Edit Distance"). A place is
    a cut point if the posterior probability that the alignment passes through it is above 0.5.
    """
    # sizes include EOS; a single token cannot be cut
    short = [
        index
        for index, example in enumerate(examples)
        if min(example.size) > 2 and max(example.size) <= _LONGEST + 1
    ][:_MOST]
    if not short:
        return []
    # 0 is no token here: the empty side of an operation, or padding
    sources = _padded([[id + 1 for id in examples[index].source[:-1]] for index in short])
    targets = _padded([[id + 1 for id in examples[index].target] for index in short])
    passing, _, _ = expectations(sources, targets, *_operations(sources, targets))
    inside = np.zeros(passing.shape, bool)
    is_text = sources > 0
    if first_feature is not None:
        is_text &= sources <= first_feature
    inside[:, 1:-1, 1:-1] = is_text[:, 1:, None] & (targets[:, None, 1:] > 0)
    rows, before, after = np.nonzero(inside & (passing > 0.5))
    return [
        (short[row], i, j)
        for row, i, j in zip(rows.tolist(), before.tolist(), after.tolist(), strict=True)
    ]


def in_same_order(sources: Sequence[Sequence[str]], targets: Sequence[Sequence[str]]) -> bool:
    """Return whether the tokens of source and target are in the same order, as spellings and phones are.

    They are if the pairs are clearly more probable, under the learned edit operations, than the same pairs
    with every target reversed.
    """
    kept = [
        pair
        for pair in zip(sources, targets, strict=True)
        if min(map(len, pair)) > 0 and max(map(len, pair)) <= _LONGEST
    ][:_MOST]
    if not kept:
        return False
    before, *both = (
        _numbered(texts) for texts in zip(*((s, t, t[::-1]) for s, t in kept), strict=True)
    )
    forward, backward = (
        expectations(before, after, *_operations(before, after))[2].sum() for after in both
    )
    return bool(forward - backward > _MARGIN * sum(len(text) for pair in kept for text in pair))


def _numbered(texts: Sequence[Sequence[str]]) -> Int[np.ndarray, "B T"]:
    ids = {token: id for id, token in enumerate(dict.fromkeys(itertools.chain(*texts)), start=1)}
    return _padded([[ids[token] for token in text] for text in texts])


def _operations(
    sources: Int[np.ndarray, "B T"], targets: Int[np.ndarray, "B L"]
) -> tuple[Int[np.ndarray, "B T1 L1"], Float[np.ndarray, "N"]]:
    """Return the operations between tokens, and their probabilities by expectation maximisation."""
    operations = _numbers(sources, targets)
    possible = int((sources.max() + 1) * (targets.max() + 1)) - 1
    probabilities = np.full(operations.max() + 1, 1 / possible)
    probabilities[0] = 0
    for _ in range(_ROUNDS):
        _, counts, _ = expectations(sources, targets, operations, probabilities)
        probabilities = (counts + _SMOOTHING) / (counts.sum() + _SMOOTHING * possible)
        probabilities[0] = 0
    return operations, probabilities


def _numbers(
    sources: Int[np.ndarray, "B T"], targets: Int[np.ndarray, "B L"]
) -> Int[np.ndarray, "B T1 L1"]:
    """Return the number of the operation that leads to a place by a substitution.

    At the edges, it is the deletion of the source token or the insertion of the target token; operation 0
    replaces nothing by nothing. Only the operations that occur have numbers: there can be many tokens.
    """
    before, after = (np.pad(ids, [(0, 0), (1, 0)]) for ids in (sources, targets))
    codes = before[:, :, None] * (targets.max() + 1) + after[:, None]
    return np.unique(codes, return_inverse=True)[1].reshape(codes.shape)


def expectations(
    sources: Int[np.ndarray, "B T"],
    targets: Int[np.ndarray, "B L"],
    operations: Int[np.ndarray, "B T1 L1"],
    probabilities: Float[np.ndarray, "N"],
) -> tuple[Float[np.ndarray, "B T1 L1"], Float[np.ndarray, "N"], Float[np.ndarray, "B"]]:
    """Return what follows from the probabilities of the operations.

    These are the probability that an alignment passes through a place, the expected operations, and the
    log-probability of each pair.
    """
    with np.errstate(divide="ignore"):  # the probability of nothing for nothing is 0
        log = np.log(probabilities)
    both, alone = operations[:, 1:, 1:], (operations[:, 1:, 0], operations[:, 0, 1:])
    changed, deleted, inserted = log[both], log[alone[0]], log[alone[1]]
    changed[(sources == 0)[:, :, None] | (targets == 0)[:, None]] = -np.inf
    lengths = (sources > 0).sum(1), (targets > 0).sum(1)
    forward = _forward(changed, deleted, inserted)
    backward = _backward(changed, deleted, inserted, lengths)
    total = backward[:, 0, 0]
    counts = np.zeros_like(probabilities)

    def expected(before: np.ndarray, operation: np.ndarray, after: np.ndarray) -> np.ndarray:
        return np.exp(before + operation + after - total[:, None, None])

    np.add.at(counts, both, expected(forward[:, :-1, :-1], changed, backward[:, 1:, 1:]))
    deletions = expected(forward[:, :-1], deleted[:, :, None], backward[:, 1:])
    np.add.at(counts, alone[0], deletions.sum(2))
    insertions = expected(forward[:, :, :-1], inserted[:, None], backward[:, :, 1:])
    np.add.at(counts, alone[1], insertions.sum(1))
    return np.exp(forward + backward - total[:, None, None]), counts, total


def _forward(changed: np.ndarray, deleted: np.ndarray, inserted: np.ndarray) -> np.ndarray:
    """Return the log-probability of all alignments from the beginning to each place."""
    rows, n, m = changed.shape
    sums = np.full((rows, n + 1, m + 1), -np.inf)
    sums[:, 0, 0] = 0
    for i, j in itertools.product(range(n + 1), range(m + 1)):
        if i:
            _add(sums[:, i, j], sums[:, i - 1, j] + deleted[:, i - 1])
        if j:
            _add(sums[:, i, j], sums[:, i, j - 1] + inserted[:, j - 1])
        if i and j:
            _add(sums[:, i, j], sums[:, i - 1, j - 1] + changed[:, i - 1, j - 1])
    return sums


def _backward(
    changed: np.ndarray,
    deleted: np.ndarray,
    inserted: np.ndarray,
    lengths: tuple[np.ndarray, np.ndarray],
) -> np.ndarray:
    """Return the log-probability of all alignments from each place to the end."""
    rows, n, m = changed.shape
    sums = np.full((rows, n + 1, m + 1), -np.inf)
    sums[np.arange(rows), *lengths] = 0
    for i, j in itertools.product(range(n, -1, -1), range(m, -1, -1)):
        if i < n:
            _add(sums[:, i, j], sums[:, i + 1, j] + deleted[:, i])
        if j < m:
            _add(sums[:, i, j], sums[:, i, j + 1] + inserted[:, j])
        if i < n and j < m:
            _add(sums[:, i, j], sums[:, i + 1, j + 1] + changed[:, i, j])
    return sums


def _add(sums: np.ndarray, terms: np.ndarray) -> None:
    np.logaddexp(sums, terms, out=sums)


def _padded(lists: list[list[int]]) -> Int[np.ndarray, "B T"]:
    array = np.zeros((len(lists), max(map(len, lists))), np.int64)
    for row, ids in enumerate(lists):
        array[row, : len(ids)] = ids
    return array


def _tokens_before(
    examples: Sequence[Example], cut: Cut, first_feature: int | None
) -> tuple[Any, ...]:
    """Return the tokens before a cut, and the features of the example."""
    index, i, j = cut
    source, target = examples[index].source, examples[index].target
    features = [] if first_feature is None else [id for id in source if id >= first_feature]
    return source[i - 1], target[j - 1], *features


def _joined(examples: Sequence[Example], first: Cut, second: Cut, vocabulary: int) -> Example:
    """Return the beginning of one example and the end of another one.

    Their unknown tokens, which have ids from `vocabulary` on in either, are numbered anew. In the target,
    UNK replaces those that were copied from a part that is cut off.
    """
    (index, i, j), (other, k, m) = first, second
    a, b = examples[index], examples[other]
    copies = [*((0, id) for id in a.copies[:i]), *((1, id) for id in b.copies[k:])]
    target = [*((0, id) for id in a.target[:j]), *((1, id) for id in b.target[m:])]
    unknown = dict.fromkeys(token for token in copies if token[1] >= vocabulary)
    new = {token: vocabulary + number for number, token in enumerate(unknown)}
    return Example(
        [*a.source[:i], *b.source[k:]],
        [new.get(token, UNK) if token[1] >= vocabulary else token[1] for token in target],
        [new.get(token, token[1]) for token in copies],
    )


def _key(example: Example) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(example.source), tuple(example.target)
