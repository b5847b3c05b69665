"""Search with any decoder: greedy search, beam search and forced decoding.

Hypotheses carry the attention weights of their steps, so every output of a search has its attention.
"""

import functools
import logging
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.attention import Intervention, Memory
from regard.batching import pad
from regard.decoders import Decoder, SearchDecoder, Step, StepDecoder
from regard.errors import ConfigError, DataError, ShapeError
from regard.hypotheses import (
    BeamStep,
    Continuations,
    FinishedHypotheses,
    Hypothesis,
    SearchTrees,
    best_continuations,
    length_normalization,
)
from regard.kernels.decoding.op import MOST_WEIGHT_BYTES, OpenHypotheses
from regard.kernels.weighted_sum import to_compute_dtype
from regard.setting_checks import (
    check_beam_size,
    check_count,
    check_ids,
    check_length_penalty,
    check_limits,
)
from regard.text import BOS, EOS, PAD

_log = logging.getLogger(__name__)


class SearchConstraints(NamedTuple):
    """Prefixes and interventions that a search applies."""

    prefixes: Int[Tensor, "B P"]
    """Tokens that each output begins with, padded at the end."""
    pins: Float[Tensor, "B S T"]
    """Pinned weights at steps 0 to S - 1; NaN where a weight is not pinned."""
    ablated_heads: Bool[Tensor, "layers heads"] | None = None
    """True for heads whose weights are set to 0, at every step."""

    def intervention(self, step: int, items: Int[Tensor, " A"]) -> Intervention | None:
        """Return the intervention on these sources at one step; None if there is none."""
        inside = step < self.pins.shape[1]
        pins = self.pins[items, step] if inside else self.pins.new_full((), torch.nan)
        if self.ablated_heads is None and bool(pins.isnan().all()):
            return None
        return Intervention(pins.expand(len(items), self.pins.shape[2]), self.ablated_heads)

    def interventions(self, steps: int) -> Intervention | None:
        """Return the interventions at all of the first steps; None if there are none."""
        if self.ablated_heads is None and not self.pins.shape[1]:
            return None
        missing = max(0, steps - self.pins.shape[1])
        pins = torch.nn.functional.pad(self.pins, (0, 0, 0, missing), value=torch.nan)
        return Intervention(pins[:, :steps], self.ablated_heads)

    def force(self, totals: Float[Tensor, "A K V"], step: int, items: Int[Tensor, " A"]) -> None:
        """Within the prefix, set the totals of all tokens except the prefix token to -inf.

        Raises:
            ConfigError: the prefix has probability 0.
        """
        if step >= self.prefixes.shape[1]:
            return
        token = self.prefixes[items, step, None]
        forced = token != PAD
        vocabulary = torch.arange(totals.shape[2], device=totals.device)
        totals.masked_fill_((forced & (vocabulary != token))[:, None], -torch.inf)
        if bool((forced[:, 0] & (totals.amax((1, 2)) == -torch.inf)).any()):
            raise ConfigError(
                f"token {step} of a prefix (counted from 0) has probability 0, as does an unknown word to copy "
                "to which the model does not attend; leave it out, or pin other weights"
            )


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
    """Return the best outputs for each of B sources, best first; a beam size of 1 is greedy search.

    The search for a source ends when no open hypothesis could still enter its `n_best` outputs, even
    if all remaining tokens had probability 1, so stopping early never changes the result.

    Args:
        decoder: any object with the methods `start` and `step` of `Decoder`.
        memory: the encoded sources.
        limits: (B,), the maximum number of tokens in each output; EOS is forced at that length.
        beam_size: number of hypotheses kept per source, or `n_best` if that is larger.
        n_best: number of outputs per source.
        length_penalty: exponent of the length penalty.
        constraints: prefixes and interventions.
        return_tree: store the search tree of the source in the field `tree` of each output.
        top_logprobs: number of most probable tokens to return for every step, under the decoder's
            own distribution, which prefixes do not restrict; PAD and BOS are left out.
        on_step: called before every step, or before several that the decoder computes at once; an
            exception that it raises ends the search.

    Raises:
        ConfigError: `beam_size` or `n_best` is not in [1, `MAX_BEAM_SIZE`], `length_penalty` is not
            in [0, 10], `top_logprobs` or a limit is negative, or a source has no output of finite score.
        DataError: the attention weights of a source take more than 4 GB.
        ShapeError: the number of limits differs from the number of sources.
    """
    _check_options(memory, limits, beam_size, n_best, length_penalty, top_logprobs)
    beam_size, n_best, top_logprobs = map(operator.index, (beam_size, n_best, top_logprobs))
    search = _Search(
        decoder=decoder,
        finished=FinishedHypotheses(limits, n_best, length_penalty),
        device=limits.device,
        beams=max(beam_size, n_best),
        constraints=constraints,
        trees=SearchTrees(len(limits)) if return_tree else None,
        top_logprobs=top_logprobs,
    )
    beam, steps, several = search.start(memory), list[BeamStep](), True
    held = 0
    while len(beam.items):
        if on_step is not None:
            on_step()
        found = search.several_steps(beam, len(steps)) if several else None
        several = found is not None  # after a failure, others are likely
        new, beam = found or search.one_step(beam, len(steps))
        steps += new
        held += sum(
            step.weights.nbytes // len(step.items) for step in new if step.weights is not None
        )
        if held > MOST_WEIGHT_BYTES:
            raise DataError(
                f"the attention weights of a text take more than {MOST_WEIGHT_BYTES / 1e9:.0f} GB after "
                f"{len(steps):,} steps; divide long texts, or choose a smaller beam size"
            )
    _check_finite(np.isfinite(search.finished.scores[:, 0]).all())
    delay = getattr(decoder, "attention_delay", 0)
    return search.finished.trace(steps, None if search.trees is None else search.trees.nodes, delay)


class _Beam(NamedTuple):
    """The open hypotheses of A active sources."""

    items: np.ndarray
    """(A,): the indices of the sources, ascending."""
    tokens: np.ndarray
    """(A, K): the last tokens."""
    log_probs: np.ndarray
    """(A, K): the sums of the log-probabilities."""
    state: Any
    """The state of the decoder, with A x K rows."""


@dataclass(frozen=True)
class _Search:
    """The settings and results of a beam search."""

    decoder: StepDecoder
    finished: FinishedHypotheses
    device: torch.device
    beams: int
    constraints: SearchConstraints | None
    trees: SearchTrees | None
    top_logprobs: int

    def start(self, memory: Memory) -> _Beam:
        sources = len(self.finished.limits)
        log_probs = np.zeros((sources, 1), np.float32)
        state = self.decoder.start(memory)
        return _Beam(np.arange(sources), np.full(log_probs.shape, BOS), log_probs, state)

    def one_step(self, beam: _Beam, length: int) -> tuple[list[BeamStep], _Beam]:
        """Compute a step for hypotheses of `length` tokens."""
        items, constraints = self._tensor(beam.items), self.constraints
        step = _step(
            self.decoder, self._tensor(beam.tokens), beam.state, constraints, length, items
        )
        totals = _totals(step.log_probs, beam.log_probs, self.finished.limits[beam.items] == length)
        if constraints is not None:
            constraints.force(totals, length, items)
        opened, ended = best_continuations(totals, self.beams)
        if self.trees is not None:
            self.trees.add(beam.items, opened, ended)
        self.finished.add(beam.items, ended, length)
        active = self.finished.active(beam.items, opened.log_probs.max(1), length)
        recorded = _recorded(step, beam.items, opened, beam.tokens.shape[1], self.top_logprobs)
        return [recorded], self._continued(beam, opened, active, step.state)

    def several_steps(self, beam: _Beam, length: int) -> tuple[list[BeamStep], _Beam] | None:
        """Compute several steps with the decoder's own search; None if it cannot do that."""
        plain = self.constraints is None and self.trees is None and not self.top_logprobs
        # isinstance would compare all attributes of the protocol at every call
        if not hasattr(self.decoder, "search"):
            return None
        if not plain:
            _log_steps()
            return None
        decoder = cast("SearchDecoder", self.decoder)
        tokens, log_probs = torch.from_numpy(beam.tokens), torch.from_numpy(beam.log_probs)
        opened = OpenHypotheses(tokens, log_probs, length, self.beams, (PAD, BOS, EOS))
        found = decoder.search(opened, self.finished.tensors(beam.items, length), beam.state)
        if found is None:
            return None
        output, state = found
        self.finished.replace(beam.items, output.finished)
        active, parents, chosen = (
            tensor.numpy() for tensor in (output.active, output.parents, output.tokens)
        )
        if not active.any():  # no hypothesis leads through the steps after the last end
            used = max(0, int(output.finished.lengths.max()) + 1 - length)
            parents, chosen = parents[:used], chosen[:used]
        weights = output.weights.numpy()
        steps = [
            BeamStep(beam.items, self.beams, *step)
            for step in zip(parents, chosen, weights, strict=False)
        ]
        last = Continuations(
            output.opened.log_probs.numpy(),
            np.tile(np.arange(self.beams), (len(active), 1)),
            output.opened.tokens.numpy(),
        )
        return steps, self._continued(beam._replace(tokens=last.tokens), last, active, state)

    def _continued(
        self, beam: _Beam, opened: Continuations, active: np.ndarray, state: Any
    ) -> _Beam:
        """Return the continuations of the active sources, given the state of the rows before."""
        if active.any():
            state = _select(state, active, opened.parents, beam.tokens.shape, self.device)
        return _Beam(beam.items[active], opened.tokens[active], opened.log_probs[active], state)

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.as_tensor(array, device=self.device)


@functools.cache
def _log_steps() -> None:
    """Say once, in the log, that kernels do not support these options."""
    _log.info(
        "with prefixes, interventions, search trees or top_logprobs, a search is computed step by step in PyTorch"
    )


def _check_options(
    memory: Any,
    limits: Tensor,
    beam_size: int,
    n_best: int,
    length_penalty: float,
    top_logprobs: int,
) -> None:
    check_beam_size(beam_size=beam_size, n_best=n_best)
    check_length_penalty(length_penalty)
    check_count("top_logprobs", top_logprobs, 0)
    # other decoders may have their own type of memory
    sources = len(memory.states) if isinstance(memory, Memory) else len(limits)
    if limits.shape != (sources,) or limits.is_floating_point():
        raise ShapeError(
            f"expected limits of an integer dtype and shape (B,) = {(sources,)}, got {limits.dtype} "
            f"{tuple(limits.shape)}"
        )
    check_limits(limits.tolist())


@torch.inference_mode()
def forced_decode(
    decoder: Decoder,
    memory: Memory,
    targets: list[list[int]],
    length_penalty: float = 1.0,
    need_weights: bool = True,
) -> list[Hypothesis]:
    """Return the score and, if needed, the attention weights of given targets (ids without EOS).

    Raises:
        ConfigError: the log-probability of a target is NaN, or `length_penalty` is not in [0, 10].
        DataError: the number of targets differs from the number of sources, a target contains PAD, BOS,
            EOS or an unknown id, or the weights would take too much memory.
    """
    check_length_penalty(length_penalty)
    if len(targets) != len(memory.states):
        raise DataError(
            f"expected as many targets as sources, got {len(targets)} and {len(memory.states)}"
        )
    copies = [] if memory.copies is None else memory.copies.flatten().tolist()
    check_ids(targets, max([decoder.vocabulary - 1, *copies]), reserved={PAD, BOS, EOS})
    if need_weights:
        _check_weights(decoder, memory, max(map(len, targets), default=0) + 1)
    device = memory.states.device
    lengths = [len(target) + 1 for target in targets]
    outputs = pad([[*target, EOS] for target in targets]).to(device)
    inputs = pad([[BOS, *target] for target in targets]).to(device)
    unrolled = decoder.unroll(memory, inputs, need_weights or memory.copies is not None)
    logits = decoder.predict(unrolled.states, unrolled.weights, memory.copies)
    log_probs = to_compute_dtype(logits).log_softmax(-1).gather(2, outputs[..., None])[..., 0]
    log_probs = log_probs.masked_fill(outputs == PAD, 0).sum(1).cpu()
    scores = log_probs.numpy() / length_normalization(np.array(lengths), length_penalty)
    weights = None
    if need_weights and unrolled.weights is not None:
        weights = unrolled.weights[:, decoder.attention_delay :].float().cpu().numpy()
    _check_finite(not np.isnan(scores).any())
    return [
        Hypothesis(
            target,
            score,
            None if weights is None else weights[row, : len(target)].copy(),
            True,
            log_prob,
        )
        for row, (target, score, log_prob) in enumerate(
            zip(targets, scores.tolist(), log_probs.tolist(), strict=True)
        )
    ]


def _check_weights(decoder: Decoder, memory: Memory, steps: int) -> None:
    """Raise a DataError if the attention weights of one text would take too much memory."""
    size = 4 * decoder.attention_layers * decoder.attention_heads * steps * memory.states.shape[1]
    if size > MOST_WEIGHT_BYTES:
        raise DataError(
            f"the attention weights of a text take more than {MOST_WEIGHT_BYTES / 1e9:.0f} GB; divide long texts"
        )


def _check_finite(finite: bool | np.bool_) -> None:
    if not finite:
        raise ConfigError(
            "the log-probabilities of the decoder are infinite or NaN; train again with a lower "
            "training.learning_rate, or start from finite weights"
        )


def _step(
    decoder: StepDecoder,
    tokens: Int[Tensor, "A K"],
    state: Any,
    constraints: SearchConstraints | None,
    number: int,
    items: Int[Tensor, " A"],
) -> Step:
    """Compute one step for all hypotheses; a decoder need only accept interventions if there are any."""
    intervention = None if constraints is None else constraints.intervention(number, items)
    if intervention is None:
        return decoder.step(tokens.flatten(), state)
    return decoder.step(tokens.flatten(), state, intervention)


def _totals(
    step_log_probs: Float[Tensor, "N V"], log_probs: np.ndarray, at_limit: np.ndarray
) -> Float[Tensor, "A K V"]:
    """Return the log-probabilities of all continuations; at the limit, only EOS is possible."""
    device = step_log_probs.device
    previous = torch.from_numpy(log_probs).to(device)[..., None]
    totals = previous + step_log_probs.view(*log_probs.shape, -1)
    for token in (PAD, BOS):
        totals.select(2, token).fill_(-torch.inf)
    if at_limit.any():
        ends = totals[..., EOS].clone()
        totals[torch.from_numpy(at_limit).to(device)] = -torch.inf
        totals[..., EOS] = ends
    return totals


def _select(
    state: Any,
    active: np.ndarray,
    parents: np.ndarray,
    shape: tuple[int, ...],
    device: torch.device,
) -> Any:
    """Return the state of the parents for the active sources; `shape` is (A, K') before the step."""
    rows = torch.from_numpy((np.arange(shape[0])[:, None] * shape[1] + parents)[active]).flatten()
    remaining = None if active.all() else torch.from_numpy(np.flatnonzero(active)).to(device)
    return state.select(rows.to(device), remaining)


def _recorded(
    step: Step, items: np.ndarray, beam: Continuations, previous: int, top_logprobs: int
) -> BeamStep:
    weights = None if step.weights is None else step.weights.float().cpu().numpy()
    if not top_logprobs:
        return BeamStep(items, previous, beam.parents, beam.tokens, weights)
    never = torch.tensor([PAD, BOS], device=step.log_probs.device)
    possible = step.log_probs.index_fill(1, never, -torch.inf)
    top = possible.topk(min(top_logprobs, possible.shape[1]))
    ranked = top.values.float().cpu().numpy(), top.indices.cpu().numpy()
    return BeamStep(items, previous, beam.parents, beam.tokens, weights, ranked)
