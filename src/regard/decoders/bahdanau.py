"""Decoder that attends before its recurrent step (Bahdanau et al. 2015, arXiv:1409.0473)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.attention import Memory
from regard.decoders.protocol import Unrolled
from regard.decoders.recurrent import AttendingDecoder, RecurrentState, stack_steps


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
        state, inputs = self.start(memory), self._project(tokens)
        if (found := self._find_kernel(inputs, state)) is not None:
            kernel, arguments = found
            states, contexts, weights = kernel.attend_first(*arguments)
            by_step = weights[:, :, None, None] if need_weights else None
        else:
            states, contexts, by_step = self._unroll_first(inputs, state, need_weights)
        top = self._run_cells(states, state.hidden, first=1)
        return Unrolled(self._read_out(contexts, top), by_step)

    def _unroll_first(
        self, inputs: Float[Tensor, "B L G"], state: RecurrentState, need_weights: bool
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the states and the contexts of the first layer, and the weights."""
        hidden = state.hidden[0]
        states: list[Tensor] = []
        contexts: list[Tensor] = []
        by_step: list[Tensor | None] = []
        for projected in inputs.unbind(1):
            context, weights, state = self.attend_step(hidden[0], state, need_weights)
            hidden = self.cells[0].step(projected, context, hidden)
            states.append(hidden[0])
            contexts.append(context)
            by_step.append(weights)
        return torch.stack(states, 1), torch.stack(contexts, 1), stack_steps(by_step)
