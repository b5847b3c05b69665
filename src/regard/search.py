"""Search: greedy, beam and forced, over any decoder that can `start`, `step` and `unroll`.

The weights of every step travel with the hypotheses exactly as their scores do, so attention is
there for every output of every search.
"""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.attention import Intervention, Memory
from regard.decoders import Decoder
from regard.text import BOS, EOS, PAD


class Hypothesis(NamedTuple):
    """One output of a search."""

    ids: list[int]
    """The symbols written, without the end symbol."""
    score: float
    """Sum of the log-probabilities, the end symbol's included, over the length penalty."""
    weights: np.ndarray | None
    """(len(ids), layers, heads, T): where each symbol's step looked; None without attention."""
    complete: bool
    """False where the end symbol had to be forced at the length limit."""
    tree: "list[SearchNode] | None" = None
    """Everything the search kept open or ended, if asked for."""


class BeamStep(NamedTuple):
    """What one step of beam search leaves for tracing hypotheses back."""

    items: Tensor
    """(A,): the sources still searched, by their place in the batch."""
    parents: Tensor
    """(A, K): for every new beam the beam it goes on from."""
    tokens: Tensor
    """(A, K): the symbol it adds."""
    weights: Tensor | None
    """(A, K', layers, heads, T): where each of the beams before looked for that symbol."""


class SearchNode(NamedTuple):
    """A branch of the tree of everything that a search kept open or ended."""

    parent: int
    """The branch it goes on from, by its place in the tree; -1 at the start."""
    id: int
    """The symbol it adds."""
    score: float
    """Sum of the log-probabilities so far."""


class _SearchTree:
    """The trees of B sources, grown while they are searched."""

    def __init__(self, sources: int) -> None:
        self.trees: list[list[SearchNode]] = [[] for _ in range(sources)]
        self._open = [[-1] for _ in range(sources)]

    def add(self, items: Tensor, kept: "_Extended") -> None:
        """One step of the sources that are still searched."""
        rows = [each.tolist() for each in (items, *kept[:3], *kept.ended)]
        for item, scores, parents, tokens, ended, beams in zip(*rows, strict=True):
            tree, before = self.trees[item], self._open[item]
            opened: list[int] = []
            for score, parent, token in zip(scores, parents, tokens, strict=True):
                opened.append(len(tree))
                if score > -torch.inf:
                    tree.append(SearchNode(before[parent], token, score))
            for score, beam in zip(ended, beams, strict=True):
                if score > -torch.inf:
                    tree.append(SearchNode(before[beam], EOS, score))
            self._open[item] = opened


def length_normalization(length: Tensor | int, length_penalty: float) -> Tensor:
    """((5 + length) / 6) ** length_penalty (Wu et al. 2016, arXiv:1609.08144, eq. 14); the end symbol counts."""
    return ((5 + torch.as_tensor(length, dtype=torch.float32)) / 6) ** length_penalty


class SearchConstraints(NamedTuple):
    """What a search is made to do."""

    prefixes: Int[Tensor, "B P"]
    """The symbols that each output begins with, padded at the end."""
    pins: Float[Tensor, "B S T"]
    """Weights set for the steps 0 to S - 1, NaN where they are free."""
    dropped: Bool[Tensor, "layers heads"] | None = None
    """True for heads that find nothing, at every step."""

    def at(self, step: int, items: Int[Tensor, " A"]) -> Intervention | None:
        """What to do to the looks of these sources."""
        inside = step < self.pins.shape[1]
        pins = self.pins[items, step] if inside else self.pins.new_full((), torch.nan)
        if self.dropped is None and bool(pins.isnan().all()):
            return None
        width = self.pins.shape[2]
        return Intervention(pins.expand(len(items), width), self.dropped)

    def force(self, totals: Float[Tensor, "A K V"], step: int, items: Int[Tensor, " A"]) -> None:
        """Leave the prefix's symbol alone to go on with, where there is one."""
        if step >= self.prefixes.shape[1]:
            return
        wanted = self.prefixes[items, step]
        forced = (wanted != PAD).nonzero()[:, 0]
        kept = totals[forced].gather(2, wanted[forced, None, None].expand(-1, totals.shape[1], 1))
        totals[forced] = -torch.inf
        places = wanted[forced, None, None].expand(-1, totals.shape[1], 1)
        totals[forced] = totals[forced].scatter(2, places, kept)


@torch.inference_mode()
def beam_search(
    decoder: Decoder,
    memory: Memory,
    limits: Int[Tensor, " B"],
    beam_size: int = 5,
    n_best: int = 1,
    length_penalty: float = 1.0,
    steering: SearchConstraints | None = None,
    return_tree: bool = False,
) -> list[list[Hypothesis]]:
    """The best outputs found for each of B sources, best first; a beam of 1 is greedy search.

    A source is done when none of its open beams, even if the rest of it had probability 1, could
    still enter its `n_best`; so stopping early never changes the result.

    Args:
        decoder: anything with the decoder protocol.
        memory: the encoded sources.
        limits: (B,), the most symbols of each output; the end symbol is forced there.
        beam_size: open hypotheses per source (widened to `n_best`).
        n_best: outputs per source.
        length_penalty: exponent of the length penalty.
        steering: prefixes to begin with, and looks to push.
        return_tree: give every hypothesis the tree of its search.
    """
    beams = max(beam_size, n_best)
    pool = _Pool(limits, n_best, length_penalty)
    growth = _SearchTree(len(limits)) if return_tree else None
    items = torch.arange(len(limits), device=limits.device)
    state, scores = decoder.start(memory), torch.zeros(len(limits), 1, device=limits.device)
    tokens = torch.full_like(scores, BOS, dtype=torch.long)
    history: list[BeamStep] = []
    while len(items):
        intervention = None if steering is None else steering.at(len(history), items)
        # a decoder that nobody pushes need not know of pushing
        pushed = () if intervention is None else (intervention,)
        step = decoder.step(tokens.flatten(), state, *pushed)
        totals = _totals(step.log_probs, scores, limits[items] == len(history))
        if steering is not None:
            steering.force(totals, len(history), items)
        extended = _extend(totals, beams)
        scores, parents, tokens, ended = extended
        if growth is not None:
            growth.add(items, extended)
        pool.add(items, ended, len(history))
        weights = step.weights
        if weights is not None:
            weights = weights.view(len(items), -1, *weights.shape[1:])
        history.append(BeamStep(items, parents, tokens, weights))
        stay = ~pool.done(items, scores.amax(1)) & (limits[items] > len(history) - 1)
        base = torch.arange(len(items), device=items.device) * (len(step.log_probs) // len(items))
        rows = base[:, None] + parents
        if bool(stay.all()):
            state = step.state.select(rows.flatten())
            continue
        left = stay.nonzero()[:, 0]
        items, scores, tokens = items[left], scores[left], tokens[left]
        state = step.state.select(rows[left].reshape(-1), left)
    found = pool.trace(history)
    if growth is None:
        return found
    return [
        [one._replace(tree=tree) for one in best]
        for best, tree in zip(found, growth.trees, strict=True)
    ]


@torch.inference_mode()
def forced_decode(
    decoder: Decoder, memory: Memory, targets: list[list[int]], length_penalty: float = 1.0
) -> list[Hypothesis]:
    """The score of given targets (ids without the end symbol), and where each step looked."""
    device = memory.states.device
    lengths = [len(target) + 1 for target in targets]
    outputs = torch.full((len(targets), max(lengths, default=1)), PAD, device=device)
    for row, target in enumerate(targets):
        outputs[row, : lengths[row]] = torch.tensor([*target, EOS], device=device)
    starts = torch.full_like(outputs[:, :1], BOS)
    inputs = torch.cat([starts, outputs[:, :-1]], dim=1)
    unrolled = decoder.unroll(memory, inputs, need_weights=True)
    log_probs = torch.log_softmax(
        decoder.predict(unrolled.states, unrolled.weights, memory.copies).float(), dim=-1
    )
    found = log_probs.gather(2, outputs[..., None])[..., 0].masked_fill(outputs == PAD, 0)
    scores = found.sum(1).cpu() / length_normalization(torch.tensor(lengths), length_penalty)
    weights = None if unrolled.weights is None else unrolled.weights.float().cpu().numpy()
    return [
        Hypothesis(
            target, float(score), None if weights is None else weights[row, : len(target)], True
        )
        for row, (target, score) in enumerate(zip(targets, scores, strict=True))
    ]


def _totals(
    log_probs: Float[Tensor, "N V"], scores: Float[Tensor, "A K"], at_limit: Tensor
) -> Float[Tensor, "A K V"]:
    """Scores of all continuations; only the end symbol continues an output at its limit."""
    totals = scores[..., None] + log_probs.view(*scores.shape, -1)
    totals[..., PAD] = totals[..., BOS] = -torch.inf
    ends = totals[..., EOS].clone()
    totals[at_limit] = -torch.inf
    totals[..., EOS] = ends
    return totals


class _Ended(NamedTuple):
    scores: Tensor  # (A, C): -inf where the candidate did not end
    beams: Tensor  # (A, C): the beam that ended


class _Extended(NamedTuple):
    scores: Tensor  # (A, K)
    parents: Tensor  # (A, K)
    tokens: Tensor  # (A, K)
    ended: _Ended


def _extend(totals: Tensor, beams: int) -> _Extended:
    """The best continuations that stay open, and those that end."""
    vocabulary = totals.shape[-1]
    # twice as many candidates as beams: even if every beam ends, as many stay open
    count = min(2 * beams if beams > 1 else 1, totals[0].numel())
    best, flat = totals.flatten(1).topk(count)
    parents, tokens = flat // vocabulary, flat % vocabulary
    ended = _Ended(best.masked_fill(tokens != EOS, -torch.inf), parents)
    still, order = best.masked_fill(tokens == EOS, -torch.inf).topk(min(beams, count))
    return _Extended(still, parents.gather(1, order), tokens.gather(1, order), ended)


class _Pool:
    """The finished hypotheses of every source: the best `n_best` so far."""

    def __init__(self, limits: Tensor, n_best: int, length_penalty: float) -> None:
        shape = (len(limits), n_best)
        self.limits, self.length_penalty = limits, length_penalty
        self.scores = torch.full(shape, -torch.inf, device=limits.device)
        self.beams = torch.zeros(shape, dtype=torch.long, device=limits.device)
        self.steps = torch.zeros_like(self.beams)
        self.bounds = length_normalization(limits.cpu() + 1, length_penalty).to(limits.device)

    def add(self, items: Tensor, ended: _Ended, length: int) -> None:
        """Put in what ended after `length` symbols."""
        penalty = float(length_normalization(length + 1, self.length_penalty))
        scores = torch.cat([self.scores[items], ended.scores / penalty], dim=1)
        best, order = scores.topk(self.scores.shape[1])
        steps = torch.cat([self.steps[items], torch.full_like(ended.beams, length)], dim=1)
        beams = torch.cat([self.beams[items], ended.beams], dim=1)
        self.scores[items] = best
        self.steps[items] = steps.gather(1, order)
        self.beams[items] = beams.gather(1, order)

    def done(self, items: Tensor, best_open: Tensor) -> Tensor:
        """True for sources whose open hypotheses can no longer enter the pool."""
        return self.scores[items, -1] >= best_open / self.bounds[items]

    def trace(self, history: list[BeamStep]) -> list[list[Hypothesis]]:
        """Follow the finished hypotheses back through the steps."""
        scores, steps, beams = (t.cpu().numpy() for t in (self.scores, self.steps, self.beams))
        limits = self.limits.cpu().numpy()
        kept = [_on_cpu(step) for step in history]
        places = []
        for items, *_ in kept:
            place = np.full(len(scores), -1)
            place[items] = np.arange(len(items))
            places.append(place)
        return [
            [
                _follow(
                    kept,
                    places,
                    item,
                    int(steps[item, n]),
                    int(beams[item, n]),
                    float(scores[item, n]),
                    int(limits[item]),
                )
                for n in range(scores.shape[1])
                if np.isfinite(scores[item, n])
            ]
            for item in range(len(scores))
        ]


def _on_cpu(step: BeamStep) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
    weights = None if step.weights is None else step.weights.float().cpu().numpy()
    return step.items.cpu().numpy(), step.parents.cpu().numpy(), step.tokens.cpu().numpy(), weights


def _follow(
    kept: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]],
    places: list[np.ndarray],
    item: int,
    length: int,
    beam: int,
    score: float,
    limit: int,
) -> Hypothesis:
    ids: list[int] = []
    rows: list[np.ndarray] = []
    for step in range(length - 1, -1, -1):
        _, parents, tokens, weights = kept[step]
        place = places[step][item]
        ids.append(int(tokens[place, beam]))
        beam = parents[place, beam]
        if weights is not None:
            rows.append(weights[place, beam])
    looked = None
    if kept[0][3] is not None:
        looked = np.stack(rows[::-1]) if rows else np.zeros((0, *kept[0][3].shape[2:]), np.float32)
    return Hypothesis(ids[::-1], score, looked, length < limit)
