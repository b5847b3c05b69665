"""Recurrent decoders for inference: products that do not depend on the step are computed once."""

import dataclasses

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from regard.attention import Intervention, Memory
from regard.decoders.output import known_tokens
from regard.decoders.protocol import Decoder, Step, StepDecoder
from regard.decoders.recurrent import AttendingDecoder, RecurrentState


def fold(decoder: Decoder) -> StepDecoder:
    """Return a decoder with the same steps that is faster in inference; others are returned as they are."""
    return FoldedDecoder(decoder) if isinstance(decoder, AttendingDecoder) else decoder


class FoldedDecoder:
    """A recurrent decoder with attention, without gradients.

    The embeddings are projected for the first cell once per entry of the vocabulary, and the encoder's
    states, which are the values, once per source instead of the context at every step:

        W c_t = W sum_i alpha_ti h_i = sum_i alpha_ti (W h_i)

    The weights are folded again when those of the decoder have changed.
    """

    def __init__(self, decoder: AttendingDecoder) -> None:
        self.decoder = decoder
        self._versions = _versions(decoder)
        self._fold()

    @torch.no_grad()
    def _fold(self) -> None:
        decoder, readout = self.decoder, self.decoder.readout
        cell, hidden_dim = decoder.cells[0], decoder.state_shape[2]
        self.inputs = cell.project(decoder.embedding.weight)
        by_context, by_state = readout.weight.split(
            [readout.in_features - hidden_dim, hidden_dim], dim=1
        )
        self.readout_by_state = by_state.contiguous()
        self.extra = cell.extra_weight.contiguous()
        blocks = [self.extra, by_context] if decoder.attends_first else [by_context]
        self.values = torch.cat(blocks)

    def start(self, memory: Memory) -> RecurrentState:
        """Return the first state; the values of its memory are projected."""
        versions = _versions(self.decoder)
        if versions != self._versions:
            self._versions = versions
            self._fold()
        values = functional.linear(memory.states, self.values)
        state = self.decoder.start(memory)
        return dataclasses.replace(state, memory=dataclasses.replace(memory, states=values))

    def step(
        self,
        token: Int[Tensor, " N"],
        state: RecurrentState,
        intervention: Intervention | None = None,
    ) -> Step:
        """Read one token and return the log-probabilities of the next."""
        decoder = self.decoder
        inputs = self.inputs[known_tokens(token, decoder.vocabulary)]
        if decoder.attends_first:
            context, weights, state = decoder.attend_step(
                state.hidden[0][0], state, True, intervention
            )
            inputs += context[:, : inputs.shape[1]]
            context = context[:, inputs.shape[1] :]
            hidden = decoder.step_cells(inputs, None, state.hidden)
        else:
            if state.feed is not None:
                inputs += functional.linear(state.feed, self.extra)
            hidden = decoder.step_cells(inputs, None, state.hidden)
            context, weights, state = decoder.attend_step(hidden[-1][0], state, True, intervention)
        readout = self._read_out(context, hidden[-1][0])
        weights = None if weights is None else weights[:, None, None]
        feed = None if state.feed is None else readout
        state = dataclasses.replace(state, hidden=hidden, feed=feed)
        return Step(decoder.log_probs(readout, weights, state.memory.copies), state, weights)

    def _read_out(self, context: Float[Tensor, "N R"], hidden: Float[Tensor, "N D"]) -> Tensor:
        projected = functional.linear(hidden, self.readout_by_state, self.decoder.readout.bias)
        return torch.tanh(projected + context)


def _versions(decoder: AttendingDecoder) -> list[tuple[int, int]]:
    """Return what changes with the weights: their addresses, and counts of changes in place."""
    return [
        (weight.data_ptr(), 0 if weight.is_inference() else weight._version)
        for weight in decoder.parameters()
    ]
