"""Decoder that sums over the positions to which it may attend: posterior and hard monotonic attention."""

import dataclasses
from collections.abc import Iterable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from regard.attention import Attention, Intervention, Memory
from regard.attention.window import LocalWindow
from regard.decoders.protocol import Decoder, Step, Unrolled
from regard.decoders.recurrent import (
    AttendingDecoder,
    RecurrentDecoderConfig,
    RecurrentState,
    stack_steps,
)
from regard.kernels.linear import compute_weights
from regard.kernels.normalizers import normalize
from regard.kernels.weighted_sum import to_compute_dtype


class PosteriorDecoder(AttendingDecoder):
    """Predict a token from every source position, and sum over the positions a_t.

        P(y_t | y_<t) = sum_i P(a_t = i | y_<t) P(y_t | a_t = i, s_t)
        P(y_t | a_t = i, s_t) = softmax(W_o tanh(W_c [h_i; s_t]))        s_t = cell(s_{t-1}, y_{t-1})

    Shankar and Sarawagi 2019, "Posterior Attention Models for Sequence to Sequence Learning" (ICLR),
    section 2. Attention as usual averages the states h_i before it predicts a token from them; this
    decoder averages the predictions. The normalised scores are the prior P(a_t = i | y_<t). The attention
    weights are the posterior, which is known when the decoder reads y_t, one step later:

        P(a_t = i | y_<=t) = P(a_t = i | y_<t) P(y_t | a_t = i, s_t) / P(y_t | y_<t)

    Every step sums over all positions, so that P(y) is the exact sum over all alignments (Wu et al. 2018,
    arXiv:1808.10024, eq. 8), unless input feeding makes s_t depend on the posterior: then the first cell
    also reads sum_i P(a_{t-1} = i | y_<t) h_i, as in Shankar and Sarawagi 2019.

    With `monotonic`, no step attends before the previous position: exact hard monotonic attention (Wu and Cotterell 2019,
    arXiv:1905.06319, section 3), with the scores e_ti normalised over the positions from a_{t-1} on:

        P(a_t = i | y_<t) = sum_j P(a_{t-1} = j | y_<t) 1[i >= j] exp(e_ti) / sum_{k >= j} exp(e_tk)

    where a_0 is the first position. P(y) is the sum over the monotonic alignments. With softmax, two cumulative sums
    give the prior of a step in time O(T); other normalisers take O(T^2).

    An intervention pins weights of the prior. An ablated head predicts from a context of 0, and its
    weights are 0. Training and search hold all B L T V probabilities, which suits the small vocabularies
    of letters and phones.

    Args:
        config: sizes and options; coverage and copying are not supported.
        attention: the attention layer, whose weights are the prior; for queries of width `hidden_dim`.
        window: the part of the source to attend to; None for the whole source.
        monotonic: attend only to positions from the previous one on.
    """

    attention_delay = 1

    def __init__(
        self,
        config: RecurrentDecoderConfig,
        attention: Attention,
        window: LocalWindow | None = None,
        monotonic: bool = False,
    ) -> None:
        super().__init__(config, attention, window)
        self.monotonic = monotonic

    @property
    def values_per_position(self) -> int:
        """Number of values that a step computes for each source position: the readout state and V probabilities."""
        return self.readout.out_features + self.vocabulary

    @staticmethod
    def extra_dim(config: RecurrentDecoderConfig) -> int:
        """Return the width of the context; 0 without input feeding."""
        return config.context_dim if config.input_feeding else 0

    def prepare_memory(self, encoded: Memory) -> Memory:
        """Project the keys, and the states for the readout, once per source."""
        keys = self.attention.project_key(encoded.states)
        by_context, _ = self._readout_weights()
        values = functional.linear(encoded.states, by_context)
        return dataclasses.replace(encoded, keys=(keys,), values=(values,))

    def start(self, memory: Memory) -> RecurrentState:
        """Return the first state, which attends to the first position."""
        first = _log(_first(memory))[..., None].expand(-1, -1, self.vocabulary)
        return dataclasses.replace(super().start(memory), joint=first)

    def query(self, before: RecurrentState, after: RecurrentState) -> Float[Tensor, "N D"]:
        """Return the query, s_t."""
        return after.hidden[-1][0]

    def step(
        self,
        token: Int[Tensor, " N"],
        state: RecurrentState,
        intervention: Intervention | None = None,
    ) -> Step:
        """Read one token, return its weights and the log-probabilities of the next."""
        assert state.joint is not None
        memory, sources = state.memory, state.memory.states.shape[0]
        index = token[:, None, None].expand(-1, state.joint.shape[1], 1)
        weights = state.joint.gather(2, index)[..., 0].softmax(-1)
        # the beams of a source take the place of steps
        posterior = weights.view(sources, -1, weights.shape[1])
        values, kept = memory.values[0], None
        if intervention is not None and intervention.ablated_heads is not None:
            kept = ~intervention.ablated_heads[0, 0]
            weights, values = weights * kept, values * kept
        feed = None
        if self.input_feeding:
            context = posterior.to(memory.states.dtype) @ memory.states
            feed = (context if kept is None else context * kept).flatten(0, 1)
        hidden = self._step_cells(self._project(token), feed, state.hidden)
        query = hidden[-1][0].view(sources, -1, self.state_shape[2])
        steps = torch.zeros_like(query[0, :, 0], dtype=torch.long) + state.steps
        prior = self._prior(*self._scores(query, memory, steps), posterior)
        if intervention is not None:
            prior = _pin(prior, intervention)
        joint = _log(prior)[..., None] + self._token_log_probs(query, values)
        joint = joint.flatten(0, 1)
        state = dataclasses.replace(state, hidden=hidden, joint=joint, steps=state.steps + 1)
        return Step(joint.logsumexp(1), state, weights[:, None, None])

    def unroll(
        self, memory: Memory, tokens: Int[Tensor, "B L"], need_weights: bool = False
    ) -> Unrolled:
        """Compute all steps: one by one with input feeding, otherwise one by one only for the prior.

        The states are log-probabilities (B, L, V).
        """
        if self.input_feeding:
            return self._unroll_steps(memory, tokens, need_weights)
        state = self.start(memory)
        query = self._run_cells(self._embed(tokens), state.hidden)
        steps = torch.arange(tokens.shape[1], device=tokens.device)
        token_log_probs = self._token_log_probs(query, memory.values[0])
        scores, masked = self._scores(query, memory, steps)
        index = tokens[:, 1:, None, None].expand(-1, -1, scores.shape[2], 1)
        of_targets = token_log_probs[:, :-1].gather(3, index)[..., 0]
        priors, posteriors = list[Tensor](), [_first(memory)[:, None]]
        for t in range(tokens.shape[1]):
            if t:
                joint = _log(priors[-1]) + of_targets[:, t - 1, None]
                posteriors.append(joint.softmax(-1))
            step = slice(t, t + 1)
            priors.append(self._prior(scores[:, step], masked[:, step], posteriors[-1]))
        joint = _log(torch.cat(priors, 1))[..., None] + token_log_probs
        weights = torch.cat(posteriors, 1)[:, :, None, None] if need_weights else None
        return Unrolled(joint.logsumexp(2), weights)

    def predict(
        self,
        states: Float[Tensor, "*n V"],
        weights: Float[Tensor, "*n layers heads T"] | None = None,
        copies: Int[Tensor, "*m T"] | None = None,
    ) -> Float[Tensor, "*n V"]:
        """Return the states of `unroll`, which are log-probabilities."""
        return states

    def _unroll_steps(self, memory: Memory, tokens: Tensor, need_weights: bool) -> Unrolled:
        state, log_probs, weights = self.start(memory), list[Tensor](), list[Tensor | None]()
        for token in tokens.unbind(1):
            step = self.step(token, state)
            state = step.state
            log_probs.append(step.log_probs)
            weights.append(None if step.weights is None else step.weights[:, 0, 0])
        return Unrolled(torch.stack(log_probs, 1), stack_steps(weights) if need_weights else None)

    def _readout_weights(self) -> tuple[Tensor, Tensor]:
        """Return the parts of W_c for h_i and for s_t."""
        compute_weights(self.readout)
        hidden_dim = self.state_shape[2]
        by_context, by_state = self.readout.weight.split(
            [self.readout.in_features - hidden_dim, hidden_dim], dim=1
        )
        return by_context, by_state

    def _token_log_probs(
        self, query: Float[Tensor, "B L D"], values: Float[Tensor, "B T R"]
    ) -> Float[Tensor, "B L T V"]:
        """Return log P(y_t | a_t = i, s_t) for every position, given the projected states."""
        _, by_state = self._readout_weights()
        by_query = functional.linear(query, by_state, self.readout.bias)
        readout = self._dropout(torch.tanh(values[:, None] + by_query[:, :, None]))
        return torch.log_softmax(to_compute_dtype(self.output(readout)), dim=-1)

    def _scores(
        self, query: Float[Tensor, "B L D"], memory: Memory, steps: Int[Tensor, " L"]
    ) -> tuple[Float[Tensor, "B L T"], Bool[Tensor, "B L T"]]:
        """Return the scores and the masked positions; `steps` contains the numbers of the steps."""
        keys = memory.keys[0]
        assert isinstance(keys, Tensor)
        scores = to_compute_dtype(self.attention.scores(query, keys))
        masked, bias = self._mask(query, memory, steps)
        return scores if bias is None else scores + bias, masked.expand_as(scores)

    def _prior(
        self,
        scores: Float[Tensor, "B L T"],
        masked: Bool[Tensor, "B L T"],
        posterior: Float[Tensor, "B L T"],
    ) -> Float[Tensor, "B L T"]:
        """Return P(a_t = i | y_<t), given that of a_{t-1} = i."""
        if not self.monotonic:
            return normalize(scores, masked, self.attention.normalizer)
        if self.attention.normalizer == "softmax":
            return _monotonic_prior(scores, masked, posterior)
        positions = torch.arange(scores.shape[2], device=scores.device)
        masked = masked[:, :, None] | (positions < positions[:, None])
        scores = scores[:, :, None].expand_as(masked)
        transition = normalize(scores, masked, self.attention.normalizer)
        return (posterior[:, :, None] @ transition)[:, :, 0]


def _monotonic_prior(
    scores: Float[Tensor, "B L T"], masked: Bool[Tensor, "B L T"], posterior: Float[Tensor, "B L T"]
) -> Float[Tensor, "B L T"]:
    """Return sum_{j <= i} p_j exp(e_i) / Z_j for posteriors p, where Z_j = sum_{k >= j} exp(e_k), in time O(T).

    Masked positions are left out of both sums. The softmax changes only rounding errors, as the posteriors sum to 1.
    """
    # finite, because the gradient of logcumsumexp at -inf is NaN
    lowest = torch.finfo(scores.dtype).min / 4
    scores = scores.masked_fill(masked, lowest)
    # the logarithms round in proportion to the largest score
    scores = scores - scores.detach().amax(-1, keepdim=True)
    log_partition = scores.flip(-1).logcumsumexp(-1).flip(-1)
    ratios = _log(posterior).clamp(min=lowest) - log_partition
    return normalize(scores + ratios.logcumsumexp(-1), masked, "softmax")


def values_per_position(decoders: Iterable[Decoder]) -> int:
    """Return the number of values that a step of these decoders computes for each source position."""
    return sum(each.values_per_position for each in decoders if isinstance(each, PosteriorDecoder))


def _first(memory: Memory) -> Float[Tensor, "B T"]:
    """Return weights of 1 for the first position and 0 for the others."""
    first = torch.arange(memory.states.shape[1], device=memory.states.device) == 0
    return first.to(to_compute_dtype(memory.states).dtype).expand(memory.states.shape[0], -1)


def _log(probabilities: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """Return the logarithm; -inf, with a gradient of 0, where a probability is 0 or denormal."""
    possible = probabilities >= torch.finfo(probabilities.dtype).tiny
    return torch.where(possible, probabilities, 1).log().masked_fill(~possible, -torch.inf)


def _pin(prior: Float[Tensor, "B K T"], intervention: Intervention) -> Float[Tensor, "B K T"]:
    """Return the prior with pinned weights, scaled to sum to 1; unchanged if all weights are pinned to 0."""
    pinned = intervention.pin(prior)
    total = pinned.sum(-1, keepdim=True)
    return torch.where(total > 0, pinned / total, prior)
