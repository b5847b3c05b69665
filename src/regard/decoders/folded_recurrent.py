"""Recurrent decoders for inference: products that do not depend on the step are computed once."""

import dataclasses
from collections.abc import Sequence
from typing import cast

import torch
from jaxtyping import Int
from torch import Tensor

from regard.attention import Intervention, Memory
from regard.attention.score_modules import is_inner_product
from regard.decoders.output import CopyingOutput, known_tokens
from regard.decoders.protocol import Step
from regard.decoders.recurrent import AttendingDecoder, RecurrentState, query_weight
from regard.kernels import additive
from regard.kernels.additive import AdditiveKeys
from regard.kernels.decoding.op import FinishedTensors, OpenHypotheses, SearchOutput
from regard.kernels.linear import FrozenLinear, is_linear, is_plain_embedding
from regard.kernels.normalizers import normalize
from regard.kernels.recurrent.op import (
    DecoderWeights,
    KernelState,
    RecurrentKernel,
    SourceTensors,
    load_kernel,
)
from regard.kernels.weighted_sum import to_compute_dtype, without_autocast
from regard.scores import PairwiseScore, Score


def can_fold(decoder: AttendingDecoder) -> bool:
    """Return whether the decoder's layers are those whose weights `FoldedRecurrentDecoder` reads."""
    layers = [decoder.bridge, decoder.readout]
    if not isinstance(decoder.output, CopyingOutput):  # which is called
        layers.append(decoder.output)
    return is_plain_embedding(decoder.embedding) and all(map(is_linear, layers))


class FoldedRecurrentDecoder:
    """A recurrent decoder with attention, without gradients.

    The embeddings are projected for the first cell once per entry of the vocabulary. The encoder's
    states, which are the values, are projected once per source, instead of projecting the context at
    every step:

        W c_t = W sum_i alpha_ti h_i = sum_i alpha_ti (W h_i)

    It computes with the weights that the decoder had when it was folded. Autocast has no effect.
    `kernel` computes its steps and searches; it is None if there is no kernel for this decoder.
    """

    def __init__(self, decoder: AttendingDecoder) -> None:
        self.decoder = decoder
        with torch.no_grad(), without_autocast(decoder.bridge.weight.device):
            self._fold_weights()

    def _fold_weights(self) -> None:
        decoder, readout = self.decoder, self.decoder.readout
        first, hidden_dim = decoder.cells[0], decoder.state_shape[2]
        self._inputs = first.project(decoder.embedding.weight)
        self._extra = FrozenLinear(first.extra_weight)
        self._recurrent = [FrozenLinear(*cell.recurrent) for cell in decoder.cells]
        self._upper = [FrozenLinear(*cell.known) for cell in decoder.cells[1:]]
        by_context, by_state = readout.weight.split(
            [readout.in_features - hidden_dim, hidden_dim], dim=1
        )
        self._readout = FrozenLinear(by_state, readout.bias)
        self._query = self._fold_query()
        output = decoder.output
        copies = isinstance(output, CopyingOutput)
        self._output = None if copies else FrozenLinear(output.weight, output.bias)
        blocks = [first.extra_weight, by_context] if decoder.attends_first else [by_context]
        self._values = FrozenLinear(torch.cat(blocks), may_round=True)
        self.kernel = None if self._query is None else self._load_kernel(self._query)

    def _load_kernel(self, query: FrozenLinear) -> RecurrentKernel | None:
        """Return the kernel of the steps; None if there is none for this decoder."""
        decoder, score = self.decoder, self.decoder.attention.score
        if decoder.attention.normalizer != "softmax":
            return None
        weights = DecoderWeights(
            cell=decoder.cells[0].name,
            attends_first=decoder.attends_first,
            inputs=self._inputs,
            recurrent=[linear.matrix for linear in self._recurrent],
            upper=[linear.matrix for linear in self._upper],
            feed=self._extra.matrix if decoder.input_feeding else None,
            query=query.matrix,
            vector=score.vector if isinstance(score, PairwiseScore) else None,
            readout=self._readout.matrix,
            output=None if self._output is None else self._output.matrix,
        )
        return load_kernel(weights)

    def start(self, memory: Memory) -> RecurrentState:
        """Return the first state; the values in its memory are projected."""
        with without_autocast(memory.states.device):
            values = self._values(memory.states)
            state = self.decoder.start(memory)
        return dataclasses.replace(state, memory=dataclasses.replace(memory, states=values))

    def step(
        self,
        token: Int[Tensor, " N"],
        state: RecurrentState,
        intervention: Intervention | None = None,
    ) -> Step:
        """Read one token and return the log-probabilities of the next."""
        with without_autocast(token.device):
            return self._step(token, state, intervention)

    def _step(
        self, token: Tensor, state: RecurrentState, intervention: Intervention | None
    ) -> Step:
        decoder, hidden = self.decoder, state.hidden
        if intervention is None and (step := self._run_kernel(token, state)) is not None:
            return step
        if decoder.attends_first:
            query = hidden[0][0]
            context, weights, state = self._attend(query, state, intervention)
            hidden = self._step_cells(token, context, hidden)
        else:
            feed = None if state.feed is None else self._extra(state.feed)
            hidden = self._step_cells(token, feed, hidden)
            query = hidden[-1][0]
            context, weights, state = self._attend(query, state, intervention)
        readout = self._readout(hidden[-1][0])
        readout = torch.tanh(readout + context[:, -readout.shape[1] :])
        weights = None if weights is None else weights[:, None, None]
        feed = None if state.feed is None else readout
        state = dataclasses.replace(state, hidden=hidden, feed=feed)
        if self._output is None:
            log_probs = decoder.log_probs(readout, weights, state.memory.copies)
        else:
            log_probs = torch.log_softmax(to_compute_dtype(self._output(readout)), dim=-1)
        return Step(log_probs, state, weights)

    def search(
        self, opened: OpenHypotheses, finished: FinishedTensors, state: RecurrentState
    ) -> tuple[SearchOutput, RecurrentState] | None:
        """Return the result of several steps of a beam search; None if the kernel does not support them."""
        if (sources := self._sources(state)) is None or self.kernel is None:
            return None
        before = KernelState(state.hidden, state.feed)
        output = self.kernel.search(opened, finished, before, sources)
        if output is None:
            return None
        steps = output.opened.length - opened.length
        return output, self._next_state(state, output.state, steps)

    def _run_kernel(self, token: Tensor, state: RecurrentState) -> Step | None:
        """Return the result of the kernel; None if it does not support this step."""
        if (sources := self._sources(state)) is None or self.kernel is None:
            return None
        copies = state.memory.copies
        if copies is not None:
            token = known_tokens(token, self.decoder.vocabulary)
        output = self.kernel.step(token, KernelState(state.hidden, state.feed), sources)
        if output is None:
            return None
        weights, log_probs = output.weights[:, None, None], output.log_probs
        if log_probs is None:
            log_probs = self.decoder.log_probs(cast("Tensor", output.state.feed), weights, copies)
        return Step(log_probs, self._next_state(state, output.state, 1), weights)

    def _sources(self, state: RecurrentState) -> SourceTensors | None:
        """Return what the kernel attends to; None if it is not prepared for the kernel."""
        if self.kernel is None:
            return None
        memory, keys = state.memory, state.memory.keys[0]
        keys = keys.prepared if isinstance(keys, AdditiveKeys) else keys
        return None if keys is None else SourceTensors(keys, memory.states, memory.padding)

    @staticmethod
    def _next_state(state: RecurrentState, new: KernelState, steps: int) -> RecurrentState:
        feed = None if state.feed is None else new.feed
        return RecurrentState(state.memory, new.hidden, feed, state.steps + steps)

    def _fold_query(self) -> FrozenLinear | None:
        """Return the projection of queries; None if the decoder must compute the attention itself."""
        decoder, score = self.decoder, self.decoder.attention.score
        if decoder.window or decoder.coverage:
            return None
        if (weight := query_weight(score)) is not None:
            return FrozenLinear(weight)
        if not is_inner_product(score):
            return None
        rows = torch.eye(decoder.state_shape[2]).to(decoder.bridge.weight)
        return FrozenLinear(score.project_query(rows).T)

    def _attend(
        self, query: Tensor, state: RecurrentState, intervention: Intervention | None
    ) -> tuple[Tensor, Tensor | None, RecurrentState]:
        """Return the context, the weights and the new state, as `AttendingDecoder.attend_step` does."""
        if self._query is None or intervention is not None:
            return self.decoder.attend_step(query, state, True, intervention)
        memory, attention = state.memory, self.decoder.attention
        queries = self._query(query).unflatten(0, (len(memory.states), -1))
        score, keys = cast("Score", attention.score), memory.keys[0]
        if isinstance(keys, Tensor):
            scores = score.compare(queries, keys)
        else:
            scores = additive.frozen_scores(queries, keys, cast("PairwiseScore", score).vector)
        weights = normalize(scores, memory.padding[:, None], attention.normalizer)
        context = torch.matmul(weights, memory.states)
        state = dataclasses.replace(state, steps=state.steps + 1)
        return context.flatten(0, 1), weights.flatten(0, 1), state

    def _step_cells(
        self, token: Tensor, extra: Tensor | None, hidden: Sequence[Sequence[Tensor]]
    ) -> tuple[tuple[Tensor, ...], ...]:
        """Return the state tensors of all layers after one step; `extra` is added to the inputs."""
        inputs, rows = self._inputs, known_tokens(token.long(), self.decoder.vocabulary)
        new: list[tuple[Tensor, ...]] = []
        cell = self.decoder.cells[0]
        for index, (recurrent, layer) in enumerate(zip(self._recurrent, hidden, strict=True)):
            if index:
                inputs, extra = self._upper[index - 1](new[-1][0]), None
                rows = torch.arange(len(inputs), device=inputs.device)
            gates, chosen = recurrent(layer[0]), inputs[rows]
            if extra is not None:
                chosen = chosen + extra[:, : chosen.shape[1]]
            new.append(cell.cell.step(chosen, gates, layer))
        return tuple(new)
