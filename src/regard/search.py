"""Search over any decoder: greedy search, beam search and forced decoding.

Hypotheses carry the attention weights of their steps, so every output of a search has its attention.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.attention import Intervention, Memory
from regard.batching import pad
from regard.decoders import Decoder, Step, StepDecoder
from regard.errors import ConfigError, DataError, ShapeError
from regard.kernels.weighted_sum import to_compute_dtype
from regard.setting_checks import check_beam_size, check_ids, check_length_penalty, check_limits
from regard.text import BOS, EOS, PAD


class Hypothesis(NamedTuple):
    """One output of a search."""

    ids: list[int]
    """Its tokens, without EOS."""
    score: float
    """Sum of the log-probabilities, EOS included, over the length penalty."""
    weights: np.ndarray | None
    """(len(ids), layers, heads, T): the attention weights; None without attention."""
    complete: bool
    """False if EOS was forced at the length limit."""
    tree: "list[SearchNode] | None" = None
    """All hypotheses that the search kept, open or finished; None unless asked for."""
    top: "list[list[TokenLogProb]] | None" = None
    """The most probable tokens of each of the len(ids) + 1 steps, best first; None unless asked for."""


class TokenLogProb(NamedTuple):
    """A token that could come next."""

    id: int
    log_prob: float
    """Its log-probability in nats, given the tokens before it."""


class SearchNode(NamedTuple):
    """A node of a search tree: a hypothesis that the search kept, open or finished."""

    parent: int
    """Index of the node that it continues; -1 at the start."""
    id: int
    """Its last token."""
    log_prob: float
    """Sum of the log-probabilities so far."""


class SearchConstraints(NamedTuple):
    """Prefixes and interventions that a search applies."""

    prefixes: Int[Tensor, "B P"]
    """Tokens that each output begins with, padded at the end."""
    pins: Float[Tensor, "B S T"]
    """Pinned weights of the steps 0 to S - 1, NaN where there are none."""
    ablated_heads: Bool[Tensor, "layers heads"] | None = None
    """True for heads whose weights are set to 0, at every step."""

    def intervention(self, step: int, items: Int[Tensor, " A"]) -> Intervention | None:
        """Return the intervention on these sources at one step; None if there is none."""
        inside = step < self.pins.shape[1]
        pins = self.pins[items, step] if inside else self.pins.new_full((), torch.nan)
        if self.ablated_heads is None and bool(pins.isnan().all()):
            return None
        return Intervention(pins.expand(len(items), self.pins.shape[2]), self.ablated_heads)

    def force(self, totals: Float[Tensor, "A K V"], step: int, items: Int[Tensor, " A"]) -> None:
        """Set all tokens but that of the prefix to -inf, within the prefix."""
        if step >= self.prefixes.shape[1]:
            return
        token = self.prefixes[items, step, None]
        vocabulary = torch.arange(totals.shape[2], device=totals.device)
        totals.masked_fill_(((token != PAD) & (vocabulary != token))[:, None], -torch.inf)


def length_normalization(length: Tensor | int, length_penalty: float) -> Tensor:
    """Return the divisor ((5 + length) / 6) ** length_penalty; the length includes EOS.

    Wu et al. 2016, arXiv:1609.08144, eq. 14.
    """
    return ((5 + torch.as_tensor(length, dtype=torch.float32)) / 6) ** length_penalty


@torch.inference_mode()
def beam_search(
    decoder: StepDecoder,
    memory: Memory,
    limits: Int[Tensor, " B"],
    beam_size: int = 5,
    n_best: int = 1,
    length_penalty: float = 1.0,
    constraints: SearchConstraints | None = None,
    return_tree: bool = False,
    top_logprobs: int = 0,
    on_step: Callable[[], None] | None = None,
) -> list[list[Hypothesis]]:
    """Return the best outputs of each of B sources, best first; a beam of 1 is greedy search.

    The search for a source ends when none of its open hypotheses could still enter its `n_best`,
    even if all remaining tokens had probability 1, so stopping early never changes the result.

    Args:
        decoder: any object with the methods `start` and `step` of `Decoder`.
        memory: the encoded sources.
        limits: (B,), the maximum number of tokens of each output; EOS is forced at that length.
        beam_size: number of hypotheses kept per source (at least `n_best`).
        n_best: outputs per source.
        length_penalty: exponent of the length penalty.
        constraints: prefixes and interventions.
        return_tree: return the search tree with every hypothesis.
        top_logprobs: how many of the most probable tokens of every step to return, under the
            decoder's own distribution, which prefixes do not restrict.
        on_step: called before every step; an exception that it raises ends the search.

    Raises:
        ConfigError: `beam_size` or `n_best` is not in [1, `MAX_BEAM_SIZE`], `length_penalty` is not
            in [0, 10], `top_logprobs` or a limit is negative, or no output has a finite log-probability.
        ShapeError: the number of limits differs from the number of sources.
    """
    check_beam_size(beam_size=beam_size, n_best=n_best)
    _check_options(memory, limits, length_penalty, top_logprobs)
    beams = max(beam_size, n_best)
    finished = _FinishedHypotheses(limits, n_best, length_penalty)
    trees = _SearchTrees(len(limits)) if return_tree else None
    items = torch.arange(len(limits), device=limits.device)
    state, log_probs = decoder.start(memory), torch.zeros(len(limits), 1, device=limits.device)
    tokens = torch.full_like(log_probs, BOS, dtype=torch.long)
    history: list[_BeamStep] = []
    while len(items):
        if on_step is not None:
            on_step()
        length = len(history)
        step = _step(decoder, tokens, state, constraints, length, items)
        totals = _continuations(step.log_probs, log_probs, limits[items] == length)
        if constraints is not None:
            constraints.force(totals, length, items)
        beam, ended = _best_continuations(totals, beams)
        if trees is not None:
            trees.add(items, beam, ended)
        finished.add(items, ended, length)
        top = step.log_probs.topk(min(top_logprobs, step.log_probs.shape[1]))
        history.append(_BeamStep(items, beam.parents, beam.tokens, step.weights, *top))
        starts = torch.arange(len(items), device=items.device)[:, None] * tokens.shape[1]
        rows = starts + beam.parents
        log_probs, tokens = beam.log_probs, beam.tokens
        remaining = finished.remaining(items, log_probs.amax(1), length)
        if remaining is not None:
            items, rows, log_probs, tokens = (
                tensor[remaining] for tensor in (items, rows, log_probs, tokens)
            )
        state = step.state.select(rows.flatten(), remaining)
    return finished.trace(history, None if trees is None else trees.nodes)


def _check_options(memory: Any, limits: Tensor, length_penalty: float, top_logprobs: int) -> None:
    check_length_penalty(length_penalty)
    if top_logprobs < 0:
        raise ConfigError(f"top_logprobs must be at least 0, got {top_logprobs}")
    # other decoders may have a memory of their own kind
    sources = len(memory.states) if isinstance(memory, Memory) else len(limits)
    if limits.shape != (sources,) or limits.is_floating_point():
        raise ShapeError(
            f"expected limits of int (B,) = {(sources,)}, got {limits.dtype} {tuple(limits.shape)}"
        )
    check_limits(limits.tolist())


@torch.inference_mode()
def forced_decode(
    decoder: Decoder, memory: Memory, targets: list[list[int]], length_penalty: float = 1.0
) -> list[Hypothesis]:
    """Return the score and the attention weights of given targets (ids without EOS).

    Raises:
        ConfigError: the log-probability of a target is NaN, or `length_penalty` is not in [0, 10].
        DataError: there is not one target per source, or a target has ids that are PAD, BOS, EOS or unknown.
    """
    check_length_penalty(length_penalty)
    if len(targets) != len(memory.states):
        raise DataError(
            f"expected one target per source, got {len(targets)} and {len(memory.states)}"
        )
    copies = [] if memory.copies is None else memory.copies.flatten().tolist()
    check_ids(targets, max([decoder.vocabulary - 1, *copies]), reserved={PAD, BOS, EOS})
    device = memory.states.device
    lengths = [len(target) + 1 for target in targets]
    outputs = pad([[*target, EOS] for target in targets]).to(device)
    inputs = pad([[BOS, *target] for target in targets]).to(device)
    unrolled = decoder.unroll(memory, inputs, need_weights=True)
    logits = decoder.predict(unrolled.states, unrolled.weights, memory.copies)
    log_probs = to_compute_dtype(logits).log_softmax(-1).gather(2, outputs[..., None])[..., 0]
    log_probs = log_probs.masked_fill(outputs == PAD, 0).sum(1).cpu()
    scores = log_probs / length_normalization(torch.tensor(lengths), length_penalty)
    weights = None if unrolled.weights is None else unrolled.weights.float().cpu().numpy()
    if bool(scores.isnan().any()):
        raise _not_finite()
    return [
        Hypothesis(target, score, None if weights is None else weights[row, : len(target)], True)
        for row, (target, score) in enumerate(zip(targets, scores.tolist(), strict=True))
    ]


def _not_finite() -> ConfigError:
    return ConfigError(
        "the log-probabilities of the decoder are infinite or NaN; train again with a lower "
        "training.learning_rate, or from weights that are finite"
    )


def _step(
    decoder: StepDecoder,
    tokens: Int[Tensor, "A K"],
    state: Any,
    constraints: SearchConstraints | None,
    number: int,
    items: Int[Tensor, " A"],
) -> Step:
    """Compute one step of all hypotheses; a decoder without interventions need not accept them."""
    intervention = None if constraints is None else constraints.intervention(number, items)
    if intervention is None:
        return decoder.step(tokens.flatten(), state)
    return decoder.step(tokens.flatten(), state, intervention)


class _BeamStep(NamedTuple):
    """One step of beam search, for tracing hypotheses back."""

    items: Tensor  # (A,): indices of the active sources in the batch, ascending
    parents: Tensor  # (A, K): the previous beam that each new beam continues
    tokens: Tensor  # (A, K): the token that it adds
    weights: Tensor | None  # (A x K', layers, heads, T): attention weights of the previous beams
    top_log_probs: Tensor  # (A x K', N): log-probabilities of the next tokens of the previous beams
    top_ids: Tensor  # (A x K', N)


class _Candidates(NamedTuple):
    """Continuations of the hypotheses of A sources."""

    log_probs: Tensor  # (A, C): -inf where there is none
    parents: Tensor  # (A, C)
    tokens: Tensor  # (A, C)


def _continuations(
    step_log_probs: Float[Tensor, "N V"], log_probs: Float[Tensor, "A K"], at_limit: Tensor
) -> Float[Tensor, "A K V"]:
    """Return the log-probabilities of all continuations; at the limit, of EOS only."""
    totals = log_probs[..., None] + step_log_probs.view(*log_probs.shape, -1)
    totals[..., PAD] = totals[..., BOS] = -torch.inf
    ends = totals[..., EOS].clone()
    totals[at_limit] = -torch.inf
    totals[..., EOS] = ends
    return totals


def _best_continuations(
    totals: Float[Tensor, "A K V"], beams: int
) -> tuple[_Candidates, _Candidates]:
    """Return the best continuations that stay open, and those that end."""
    # twice as many candidates as beams: even if every beam ends, as many stay open
    count = min(2 * beams if beams > 1 else 1, totals[0].numel())
    best, flat = totals.flatten(1).topk(count)
    parents, tokens = flat // totals.shape[-1], flat % totals.shape[-1]
    ended = _Candidates(best.masked_fill(tokens != EOS, -torch.inf), parents, tokens)
    log_probs, order = best.masked_fill(tokens == EOS, -torch.inf).topk(min(beams, count))
    return _Candidates(log_probs, parents.gather(1, order), tokens.gather(1, order)), ended


class _SearchTrees:
    """The search trees of B sources."""

    def __init__(self, sources: int) -> None:
        self.nodes: list[list[SearchNode]] = [[] for _ in range(sources)]
        self._beams = [[-1] for _ in range(sources)]

    def add(self, items: Tensor, beam: _Candidates, ended: _Candidates) -> None:
        """Add one step of the active sources."""
        columns = [torch.cat(pair, dim=1).tolist() for pair in zip(beam, ended, strict=True)]
        for item, *candidates in zip(items.tolist(), *columns, strict=True):
            nodes, previous, indices = self.nodes[item], self._beams[item], list[int]()
            for log_prob, parent, token in zip(*candidates, strict=True):
                indices.append(len(nodes))
                if log_prob > -torch.inf:
                    nodes.append(SearchNode(previous[parent], token, log_prob))
            self._beams[item] = indices


class _FinishedHypotheses:
    """The `n_best` finished hypotheses of every source so far."""

    def __init__(self, limits: Tensor, n_best: int, length_penalty: float) -> None:
        shape = (len(limits), n_best)
        self.limits, self.length_penalty = limits, length_penalty
        self.scores = torch.full(shape, -torch.inf, device=limits.device)
        self.beams = torch.zeros(shape, dtype=torch.long, device=limits.device)
        self.lengths = torch.zeros_like(self.beams)
        self.max_divisors = length_normalization(limits.cpu() + 1, length_penalty).to(limits.device)

    def add(self, items: Tensor, ended: _Candidates, length: int) -> None:
        """Add the hypotheses that ended after `length` tokens."""
        divisor = float(length_normalization(length + 1, self.length_penalty))
        scores = (ended.log_probs / divisor).to(self.scores.dtype)  # a model may compute in float64
        scores = torch.cat([self.scores[items], scores], dim=1)
        self.scores[items], order = scores.topk(self.scores.shape[1])
        lengths = torch.full_like(ended.parents, length)
        for column, new in ((self.lengths, lengths), (self.beams, ended.parents)):
            column[items] = torch.cat([column[items], new], dim=1).gather(1, order)

    def remaining(self, items: Tensor, best_open: Tensor, length: int) -> Tensor | None:
        """Return the indices of the sources to search further after `length` tokens; None for all.

        The search goes on within the limit while an open hypothesis may become one of the `n_best`.
        """
        bounds = best_open / self.max_divisors[items]
        active = (self.scores[items, -1] < bounds) & (self.limits[items] > length)
        return None if bool(active.all()) else active.nonzero()[:, 0]

    def trace(
        self, history: list[_BeamStep], trees: list[list[SearchNode]] | None
    ) -> list[list[Hypothesis]]:
        """Trace the finished hypotheses back through the steps.

        Raises:
            ConfigError: no output of a source has a finite log-probability.
        """
        if not bool(self.scores[:, 0].isfinite().all()):
            raise _not_finite()
        tensors = (self.limits, self.scores, self.lengths, self.beams)
        columns = [tensor.tolist() for tensor in tensors]
        steps = [_to_numpy(step) for step in history]
        return [
            [
                Hypothesis(
                    ids, score, weights, length < limit, None if trees is None else trees[item], top
                )
                for score, length, beam in zip(*rows, strict=True)
                if np.isfinite(score)
                for ids, weights, top in [_trace(steps, item, length, beam)]
            ]
            for item, (limit, *rows) in enumerate(zip(*columns, strict=True))
        ]


class _Arrays(NamedTuple):
    """A `_BeamStep` in numpy, with one axis for sources and one for beams."""

    items: np.ndarray
    parents: np.ndarray
    tokens: np.ndarray
    weights: np.ndarray | None
    top_log_probs: np.ndarray
    top_ids: np.ndarray


def _to_numpy(step: _BeamStep) -> _Arrays:
    items, parents, tokens = (tensor.cpu().numpy() for tensor in step[:3])
    shape = len(items), -1
    log_probs, ids = (top.unflatten(0, shape).cpu().numpy() for top in step[4:])
    weights = None
    if step.weights is not None:
        weights = step.weights.float().unflatten(0, shape).cpu().numpy()
    return _Arrays(items, parents, tokens, weights, log_probs, ids)


def _trace(
    steps: list[_Arrays], item: int, length: int, beam: int
) -> tuple[list[int], np.ndarray | None, list[list[TokenLogProb]] | None]:
    """Return ids, weights and most probable tokens of the hypothesis in one beam after `length` tokens."""
    ids: list[int] = []
    weights: list[np.ndarray] = []
    last = steps[length]
    top = [_most_probable(last, int(np.searchsorted(last.items, item)), beam)]
    for step in reversed(steps[:length]):
        row = int(np.searchsorted(step.items, item))
        ids.append(int(step.tokens[row, beam]))
        beam = int(step.parents[row, beam])
        top.append(_most_probable(step, row, beam))
        if step.weights is not None:
            weights.append(step.weights[row, beam])
    by_step = None
    if (first := steps[0].weights) is not None:
        by_step = np.array(weights[::-1], first.dtype).reshape(length, *first.shape[2:])
    return ids[::-1], by_step, top[::-1] if steps[0].top_ids.shape[-1] else None


def _most_probable(step: _Arrays, row: int, beam: int) -> list[TokenLogProb]:
    """Return the most probable next tokens of one beam; none that is impossible."""
    pairs = zip(step.top_ids[row, beam], step.top_log_probs[row, beam], strict=True)
    return [TokenLogProb(int(id), float(value)) for id, value in pairs if np.isfinite(value)]
