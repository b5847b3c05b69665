"""Decoder without attention (Cho et al. 2014, arXiv:1406.1078, section 2.2)."""

import dataclasses

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.attention import Intervention, Memory
from regard.decoders.output import repeat_beams
from regard.decoders.protocol import AttentionInputs, Unrolled
from regard.decoders.recurrent import RecurrentDecoder, RecurrentDecoderConfig, RecurrentState
from regard.errors import ConfigError


class FixedContextDecoder(RecurrentDecoder):
    """A decoder without attention (Cho et al. 2014, arXiv:1406.1078, section 2.2).

    The context of every step is the encoder's final state c, read by the first cell and by the
    readout: the bottleneck that attention removes.

    Args:
        config: sizes and options; `context_dim` equals `final_dim`.
    """

    def __init__(self, config: RecurrentDecoderConfig) -> None:
        super().__init__(config, extra_dim=config.context_dim)

    def advance(
        self,
        inputs: Float[Tensor, "N G"],
        state: RecurrentState,
        need_weights: bool,
        intervention: Intervention | None = None,
    ) -> tuple[Tensor, None, RecurrentState]:
        """Return the readout, no weights, and the state after one step."""
        context = repeat_beams(state.memory.final, len(inputs))
        hidden = self._step_cells(inputs, context, state.hidden)
        readout = self._read_out(context, hidden[-self.state_tensors])
        return readout, None, dataclasses.replace(state, hidden=hidden)

    def unroll(
        self, memory: Memory, tokens: Int[Tensor, "B L"], need_weights: bool = False
    ) -> Unrolled:
        """Compute all steps at once; no weights."""
        context = memory.final[:, None].expand(-1, tokens.shape[1], -1)
        inputs = torch.cat([self._embed(tokens), context], dim=-1)
        top = self._run_cells(inputs, self.start(memory).hidden)
        return Unrolled(self._read_out(context, top), None)

    def attention_inputs(
        self, memory: Memory, tokens: Int[Tensor, "B L"], layer: int = 0, head: int = 0
    ) -> AttentionInputs:
        """Raise a ConfigError: this decoder has no attention."""
        raise ConfigError("this decoder has no attention")
