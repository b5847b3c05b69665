"""Decoders, and the protocol that search and training use.

    start(memory) -> State                      before the first token
    step(token, state) -> Step                  one token: log-probabilities, state, weights
    unroll(memory, tokens) -> Unrolled          all steps of given targets at once (the same results)

A state has N rows, grouped by source, with the same number for every source in its memory, so that
N = B x beams; the queries of one source share its memory.
"""

from regard.decoders.bahdanau import BahdanauDecoder
from regard.decoders.ensemble import EnsembleDecoder
from regard.decoders.fixed_context import FixedContextDecoder
from regard.decoders.folded import fold
from regard.decoders.luong import LuongDecoder
from regard.decoders.posterior import PosteriorDecoder
from regard.decoders.protocol import (
    AttentionInputs,
    Decoder,
    SearchDecoder,
    State,
    Step,
    StepDecoder,
    Unrolled,
)
from regard.decoders.recurrent import RecurrentDecoderConfig
from regard.decoders.transformer import TransformerDecoder

__all__ = [
    "AttentionInputs",
    "BahdanauDecoder",
    "Decoder",
    "EnsembleDecoder",
    "FixedContextDecoder",
    "LuongDecoder",
    "PosteriorDecoder",
    "RecurrentDecoderConfig",
    "SearchDecoder",
    "State",
    "Step",
    "StepDecoder",
    "TransformerDecoder",
    "Unrolled",
    "fold",
]
