"""Decoder without attention (Cho et al. 2014, arXiv:1406.1078, section 2.2)."""

import torch
from jaxtyping import Int
from torch import Tensor

from regard.attention import Memory
from regard.decoders.protocol import AttentionInputs, Unrolled
from regard.decoders.recurrent import RecurrentDecoder
from regard.errors import ConfigError


class FixedContextDecoder(RecurrentDecoder):
    """A decoder without attention (Cho et al. 2014, arXiv:1406.1078, section 2.2).

    The context of every step is the encoder's final state c, read by the first cell and by the
    readout: the bottleneck that attention removes.

    Args:
        config: sizes and options; `context_dim` equals `final_dim`.
    """

    def unroll(
        self, memory: Memory, tokens: Int[Tensor, "B L"], need_weights: bool = False
    ) -> Unrolled:
        """Compute all steps at once; there are no attention weights."""
        context = memory.final[:, None].expand(-1, tokens.shape[1], -1)
        inputs = torch.cat([self._embed(tokens), context], dim=-1)
        top = self._run_cells(inputs, self.start(memory).hidden)
        return Unrolled(self._read_out(context, top), None)

    def attention_inputs(
        self, memory: Memory, tokens: Int[Tensor, "B L"], layer: int = 0, head: int = 0
    ) -> AttentionInputs:
        """Raise a ConfigError: this decoder has no attention."""
        raise ConfigError("this decoder has no attention")
