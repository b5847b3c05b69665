"""Decoder that attends after its recurrent step (Luong et al. 2015, arXiv:1508.04025)."""

import dataclasses

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention import Intervention, Memory
from regard.decoders.protocol import Unrolled
from regard.decoders.recurrent import AttendingDecoder, RecurrentDecoderConfig, RecurrentState
from regard.kernels.dropout import dropout_mask


class LuongDecoder(AttendingDecoder):
    """Attend with the state after the step (Luong et al. 2015, arXiv:1508.04025, section 3).

        s_t = cell(s_{t-1}, [y_{t-1}; feed])    c_t = attention(s_t, h)    s~_t = tanh(W_c [c_t; s_t])

    With input feeding (section 3.3), the first cell reads the attentional state s~_{t-1} in addition
    to the embedding. Without input feeding and coverage, no step depends on the attention of another
    step, so all steps of a target are computed at once.
    The arguments are those of `AttendingDecoder`.
    """

    @staticmethod
    def extra_dim(config: RecurrentDecoderConfig) -> int:
        """Return the width of the attentional state; 0 without input feeding."""
        return config.readout_dim if config.input_feeding else 0

    def start(self, memory: Memory) -> RecurrentState:
        """Return the first state; its feed is zero."""
        state = super().start(memory)
        if not self.input_feeding:
            return state
        hidden = state.hidden[0][0]
        feed = hidden.new_zeros(hidden.shape[0], self.readout.out_features)
        return dataclasses.replace(state, feed=feed)

    def unroll(
        self, memory: Memory, tokens: Int[Tensor, "B L"], need_weights: bool = False
    ) -> Unrolled:
        """Compute all steps at once, except that coverage and input feeding need the attention before."""
        if self.input_feeding:
            return self._unroll_with_feeding(memory, tokens, need_weights)
        state = self.start(memory)
        top = self._run_cells(self._embed(tokens), state.hidden)
        found = self._find_kernel(top, state)
        if found is not None and (self.coverage is not None or found[0].suits(top, memory.padding)):
            kernel, (*_, tensors) = found
            context, weights = kernel.attend(top, tensors)
        elif self.coverage is None:
            steps = torch.arange(tokens.shape[1], device=tokens.device)
            context, weights = self._attend(top, memory, steps, None, need_weights)
        else:
            context, weights = self._attend_in_turn(top, state)
        weights = weights[:, :, None, None] if need_weights and weights is not None else None
        return Unrolled(self._read_out(context, top), weights)

    def _attend_in_turn(
        self, queries: Float[Tensor, "B L D"], state: RecurrentState
    ) -> tuple[Float[Tensor, "B L Dv"], Float[Tensor, "B L T"]]:
        """Return the contexts and the weights of all steps, computed one by one."""
        contexts: list[Tensor] = []
        by_step: list[Tensor] = []
        for query in queries.unbind(1):
            context, weights, state = self.attend_step(query, state, True)
            assert weights is not None
            contexts.append(context)
            by_step.append(weights)
        return torch.stack(contexts, 1), torch.stack(by_step, 1)

    def _unroll_with_feeding(
        self, memory: Memory, tokens: Int[Tensor, "B L"], need_weights: bool
    ) -> Unrolled:
        state, inputs, readout = self.start(memory), self._project(tokens), self.readout
        is_plain = len(self.cells) == 1 and type(readout) is nn.Linear and readout.bias is not None  # pyright: ignore
        found = self._find_kernel(inputs, state, *readout.parameters()) if is_plain else None
        if found is None:
            return self._unroll_from(state, inputs, need_weights)
        factors = None
        if self.training and self.dropout > 0:
            like = inputs.new_empty(*tokens.T.shape, readout.out_features, dtype=torch.bfloat16)
            factors = dropout_mask(like, self.dropout)
        kernel, arguments = found
        readouts, weights = kernel.feed_input(*arguments, (readout.weight, readout.bias), factors)
        return Unrolled(readouts, weights[:, :, None, None] if need_weights else None)

    def query(self, before: RecurrentState, after: RecurrentState) -> Float[Tensor, "N D"]:
        """Return the query, s_t."""
        return after.hidden[-1][0]

    def advance(
        self,
        inputs: Float[Tensor, "N G"],
        state: RecurrentState,
        need_weights: bool,
        intervention: Intervention | None = None,
    ) -> tuple[Tensor, Tensor | None, RecurrentState]:
        """Return the readout, the weights and the state after one step."""
        hidden = self._step_cells(inputs, state.feed, state.hidden)
        top = hidden[-1][0]
        context, weights, state = self.attend_step(top, state, need_weights, intervention)
        readout = self._read_out(context, top)
        feed = readout if self.input_feeding else None
        return readout, weights, dataclasses.replace(state, hidden=hidden, feed=feed)
