"""Alignment of tokens that are in the same order, by insertions, deletions and substitutions.

Ristad and Yianilos 1998, "Learning String-Edit Distance": the probabilities of the operations are learned
from the pairs by expectation maximisation.
"""

import itertools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

_ROUNDS = 10
"""Rounds of expectation maximisation; the likelihood changes little afterwards."""
_SMOOTHING = 1e-3
"""Added to the expected number of occurrences of every operation."""
LONGEST = 64
"""Number of tokens above which a source or a target should be left out: time and memory grow with its square."""
MOST = 5000
"""Number of pairs that suffice."""
_MARGIN = 0.3
"""Nats per token by which pairs in the same order are more probable than with reversed targets."""


def passing_probabilities(
    sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]
) -> Float[np.ndarray, "B T1 L1"]:
    """Return the posterior probability that the alignment of a pair passes through each place.

    A place is a number of source tokens and a number of target tokens; it is 0 outside a pair.
    """
    # 0 is no token here: the empty side of an operation, or padding
    before, after = (
        _padded([[id + 1 for id in ids] for ids in side]) for side in (sources, targets)
    )
    return expectations(before, after, *_operations(before, after))[0]


def in_same_order(sources: Sequence[Sequence[str]], targets: Sequence[Sequence[str]]) -> bool:
    """Return whether the tokens of source and target are in the same order, as spellings and phones are.

    They are if the pairs are clearly more probable, under the learned edit operations, than the same pairs
    with every target reversed.
    """
    kept = [
        pair
        for pair in zip(sources, targets, strict=True)
        if min(map(len, pair)) > 0 and max(map(len, pair)) <= LONGEST
    ][:MOST]
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
