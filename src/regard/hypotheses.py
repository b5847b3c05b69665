"""Hypotheses of a beam search: the best continuations, finished hypotheses and backtracking.

The arrays have one row for each of A active sources, in ascending order of their indices; K is the
number of beams.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, overload

import numpy as np
import torch
from torch import Tensor

from regard.kernels.decoding.op import FinishedTensors
from regard.text import EOS

_STEPS_AHEAD = 64
"""Steps for which divisors are computed at once."""


class Hypothesis(NamedTuple):
    """One output of a search."""

    ids: list[int]
    """Ids of the tokens, without EOS."""
    score: float
    """Sum of the log-probabilities, EOS included, divided by the length penalty."""
    weights: np.ndarray | None
    """(len(ids), layers, heads, T): the attention weights; None without attention."""
    complete: bool
    """False if EOS was forced at the length limit."""
    log_prob: float
    """Sum of the log-probabilities, EOS included."""
    tree: "list[SearchNode] | None" = None
    """All hypotheses that the search kept, open or finished; None unless requested."""
    top: "list[list[TokenLogProb]] | None" = None
    """The most probable tokens at each of the len(ids) + 1 steps, best first; None unless requested."""


class TokenLogProb(NamedTuple):
    """A token that could come next."""

    id: int
    log_prob: float
    """Log-probability of the token in nats, given the tokens before it."""


class SearchNode(NamedTuple):
    """A node of a search tree: a hypothesis that the search kept, open or finished."""

    parent: int
    """Index of the node that this one continues; -1 at the start."""
    id: int
    """Id of the last token."""
    log_prob: float
    """Sum of the log-probabilities so far."""


@overload
def length_normalization(length: int, length_penalty: float) -> float: ...


@overload
def length_normalization(length: np.ndarray, length_penalty: float) -> np.ndarray: ...


def length_normalization(length: Any, length_penalty: float) -> Any:
    """Return the divisor ((5 + length) / 6) ** length_penalty; the length includes EOS.

    Wu et al. 2016, arXiv:1609.08144, eq. 14.
    """
    return ((5 + length) / 6) ** float(length_penalty)


class Continuations(NamedTuple):
    """Continuations of the hypotheses of A sources."""

    log_probs: np.ndarray
    """(A, C): the sum of the log-probabilities; -inf where there is no continuation."""
    parents: np.ndarray
    """(A, C): the beam that each continuation extends."""
    tokens: np.ndarray
    """(A, C): the token that each continuation adds."""


def best_continuations(totals: Tensor, beams: int) -> tuple[Continuations, Continuations]:
    """Return the best continuations that stay open, and those that end, given totals (A, K, V)."""
    # with twice as many candidates as beams, enough stay open even if every beam ends
    count = min(2 * beams if beams > 1 else 1, totals[0].numel())
    best, flat = (tensor.cpu().numpy() for tensor in totals.flatten(1).topk(count))
    parents, tokens = np.divmod(flat, totals.shape[2])
    is_end = tokens == EOS
    if not is_end.any():
        opened = Continuations(*(column[:, :beams] for column in (best, parents, tokens)))
        return opened, Continuations(*(column[:, :0] for column in (best, parents, tokens)))
    ended = Continuations(np.where(is_end, best, -np.inf), parents, tokens)
    order = is_end.argsort(axis=1, kind="stable")[:, :beams]
    rows = np.arange(len(order))[:, None]
    opened = Continuations(np.where(is_end, -np.inf, best), parents, tokens)
    return Continuations(*(column[rows, order] for column in opened)), ended


class BeamStep(NamedTuple):
    """One step of beam search, for tracing hypotheses back."""

    items: np.ndarray
    """(A,): the indices of the active sources."""
    previous: int
    """K', the number of previous beams."""
    parents: np.ndarray
    """(A, K): the previous beam that each new beam continues."""
    tokens: np.ndarray
    """(A, K): the token that each new beam adds."""
    weights: np.ndarray | None
    """(A x K', layers, heads, T): the attention weights of the previous beams."""
    top: tuple[np.ndarray, np.ndarray] | None = None
    """(A x K', N) each: the log-probabilities and ids of the most probable next tokens of the previous
    beams; None unless requested."""


class SearchTrees:
    """The search trees of B sources."""

    def __init__(self, sources: int) -> None:
        self.nodes: list[list[SearchNode]] = [[] for _ in range(sources)]
        self._beams = [[-1] for _ in range(sources)]

    def add(self, items: np.ndarray, beam: Continuations, ended: Continuations) -> None:
        """Add one step for the active sources."""
        columns = [np.concatenate(pair, axis=1).tolist() for pair in zip(beam, ended, strict=True)]
        for item, *candidates in zip(items.tolist(), *columns, strict=True):
            nodes, previous, indices = self.nodes[item], self._beams[item], list[int]()
            for log_prob, parent, token in zip(*candidates, strict=True):
                indices.append(len(nodes))
                if log_prob > -np.inf:
                    nodes.append(SearchNode(previous[parent], token, log_prob))
            self._beams[item] = indices


class FinishedHypotheses:
    """The `n_best` finished hypotheses of every source so far."""

    def __init__(self, limits: Tensor, n_best: int, length_penalty: float) -> None:
        self.limits, self.length_penalty = limits.long().cpu().numpy(), float(length_penalty)
        self.scores = np.full((len(limits), n_best), -np.inf, np.float32)
        self.beams = np.zeros(self.scores.shape, np.int64)
        self.lengths = np.zeros(self.scores.shape, np.int64)
        self.max_divisors = length_normalization(self.limits + 1, self.length_penalty)

    def add(self, items: np.ndarray, ended: Continuations, length: int) -> None:
        """Add the hypotheses that ended after `length` tokens."""
        if not ended.tokens.size:
            return
        some = ended.log_probs.max(1) > -np.inf
        items, ended = items[some], Continuations(*(column[some] for column in ended))
        scores = ended.log_probs / length_normalization(length + 1, self.length_penalty)
        scores = np.concatenate([self.scores[items], scores], axis=1)
        order = np.argsort(-scores, axis=1, kind="stable")[:, : self.scores.shape[1]]
        rows = np.arange(len(items))[:, None]
        self.scores[items] = scores[rows, order]
        lengths = np.full_like(ended.parents, length)
        for column, new in ((self.lengths, lengths), (self.beams, ended.parents)):
            column[items] = np.concatenate([column[items], new], axis=1)[rows, order]

    def active(self, items: np.ndarray, best_open: np.ndarray, length: int) -> np.ndarray:
        """Return, for each of these sources, whether the search continues after `length` tokens.

        It continues within the limit, as long as an open hypothesis may become one of the `n_best`.
        """
        bounds = best_open / self.max_divisors[items]
        return (self.scores[items, -1] < bounds) & (self.limits[items] > length)

    def tensors(self, items: np.ndarray, length: int) -> FinishedTensors:
        """Return the finished hypotheses of these sources, with what decides when their search ends.

        Open hypotheses have `length` tokens.
        """
        limits, max_divisors = self.limits[items], self.max_divisors[items]
        steps = np.arange(min(int(limits.max()) + 1 - length, _STEPS_AHEAD))
        divisors = length_normalization(length + 1 + steps, self.length_penalty)
        arrays = limits, max_divisors, divisors, *(array[items] for array in self._arrays)
        return FinishedTensors(*(torch.from_numpy(array) for array in arrays))

    def replace(self, items: np.ndarray, finished: FinishedTensors) -> None:
        """Replace the finished hypotheses of these sources."""
        for array, tensor in zip(self._arrays, finished[3:], strict=True):
            array[items] = tensor.numpy()

    @property
    def _arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.scores, self.beams, self.lengths

    def trace(
        self, steps: list[BeamStep], trees: list[list[SearchNode]] | None, attention_delay: int = 0
    ) -> list[list[Hypothesis]]:
        """Trace the finished hypotheses back through the steps; [] for a source that has none.

        The weights for a token are those of the step that predicts it or, with an `attention_delay` of
        1, of the next one, which reads it.
        """
        items, ranks = np.nonzero(np.isfinite(self.scores))
        lengths = self.lengths[items, ranks]
        ids, rows = _trace(steps, items, lengths, self.beams[items, ranks])
        by_step = [step.weights for step in steps]
        weights = _gather(by_step, rows, attention_delay)
        tops = [step.top for step in steps if step.top is not None]
        outputs: list[list[Hypothesis]] = [[] for _ in self.scores]
        scores = self.scores[items, ranks]
        log_probs = scores * length_normalization(lengths + 1, self.length_penalty)
        columns = (array.tolist() for array in (items, scores, lengths, log_probs))
        for index, (item, score, length, log_prob) in enumerate(zip(*columns, strict=True)):
            outputs[item].append(
                Hypothesis(
                    ids[index, :length].tolist(),
                    score,
                    None if weights is None else weights[index, :length].copy(),
                    length < int(self.limits[item]),
                    log_prob,
                    None if trees is None else trees[item],
                    _most_probable(tops, rows[index, : length + 1]) if tops else None,
                )
            )
        return outputs


def _trace(
    steps: list[BeamStep], items: np.ndarray, lengths: np.ndarray, beams: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids (n, L) of n hypotheses, and the row of each one at every step, (n, L + 1).

    At step t, the row of a hypothesis is that of its first t tokens. Entries of both arrays beyond
    the end of a hypothesis are undefined.
    """
    ids = np.zeros((len(items), len(steps)), np.int64)
    rows = np.zeros_like(ids)
    for t in reversed(range(len(steps))):
        step = steps[t]
        through = np.flatnonzero(lengths >= t)
        source = np.searchsorted(step.items, items[through])
        longer = lengths[through] > t
        child = source[longer], beams[through[longer]]
        ids[through[longer], t] = step.tokens[child]
        beams[through[longer]] = step.parents[child]
        rows[through, t] = source * step.previous + beams[through]
    return ids, rows


def _gather(
    by_step: list[np.ndarray | None], rows: np.ndarray, attention_delay: int
) -> np.ndarray | None:
    """Return the attention weights of n hypotheses, (n, L, layers, heads, T); None without attention."""
    present = [weights for weights in by_step if weights is not None]
    if not present:
        return None
    rows = rows[:, attention_delay:]
    out = np.zeros((*rows.shape, *present[0].shape[1:]), present[0].dtype)
    for t, weights in enumerate(present[attention_delay:]):
        out[:, t] = weights[rows[:, t]]
    return out


def _most_probable(
    tops: Sequence[tuple[np.ndarray, np.ndarray]], rows: np.ndarray
) -> list[list[TokenLogProb]]:
    """Return the most probable next tokens of each step, without impossible ones."""
    return [
        [
            TokenLogProb(int(id), float(value))
            for value, id in zip(log_probs[row], ids[row], strict=True)
            if np.isfinite(value)
        ]
        for (log_probs, ids), row in zip(tops, rows, strict=False)
    ]
