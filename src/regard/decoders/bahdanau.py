"""Decoder that attends before its recurrent step (Bahdanau et al. 2015, arXiv:1409.0473)."""

import torch
from jaxtyping import Int
from torch import Tensor

from regard.attention import Memory
from regard.decoders.protocol import Unrolled
from regard.decoders.recurrent import AttendingDecoder, stack_steps


class BahdanauDecoder(AttendingDecoder):
    """Attend with the state before the step (Bahdanau et al. 2015, arXiv:1409.0473, A.2.2).

        c_t = attention(s_{t-1}, h)    s_t = cell(s_{t-1}, [y_{t-1}; c_t])

    The readout reads s_t and c_t. With several layers, only the first one attends; the others run
    on top of its states. The arguments are those of `AttendingDecoder`.
    """

    attends_first = True

    def unroll(
        self, memory: Memory, tokens: Int[Tensor, "B L"], need_weights: bool = False
    ) -> Unrolled:
        """Compute all steps: one by one in the first layer, all at once in the rest."""
        state = self.start(memory)
        hidden = state.hidden[0]
        states: list[Tensor] = []
        contexts: list[Tensor] = []
        by_step: list[Tensor | None] = []
        for inputs in self._project(tokens).unbind(1):
            context, weights, state = self.attend_step(hidden[0], state, need_weights)
            hidden = self.cells[0].step(inputs, context, hidden)
            states.append(hidden[0])
            contexts.append(context)
            by_step.append(weights)
        top = self._run_cells(torch.stack(states, 1), state.hidden, first=1)
        readouts = self._read_out(torch.stack(contexts, 1), top)
        return Unrolled(readouts, stack_steps(by_step))
