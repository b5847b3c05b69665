"""Decoders: one protocol for every way of writing a target while looking back at the source.

    start(memory) -> State                      before the first symbol
    step(token, state) -> Step                  one symbol further: log-probabilities, state, weights
    unroll(memory, tokens) -> Unrolled          all steps at once for given targets (the same numbers)

Search knows only this protocol. A state holds N rows, the same number for every source of its
memory and grouped by source, so that N = B x beams; the queries of one source share its memory.

protocol.py the protocol · recurrent.py fixed context, Luong, Bahdanau · transformer.py self-attention ·
output.py the next symbol, written or copied
"""

from regard.decoders.protocol import Decoder, State, Step, Unrolled
from regard.decoders.recurrent import BahdanauDecoder, FixedContextDecoder, LuongDecoder
from regard.decoders.transformer import TransformerDecoder

__all__ = [
    "BahdanauDecoder",
    "Decoder",
    "FixedContextDecoder",
    "LuongDecoder",
    "State",
    "Step",
    "TransformerDecoder",
    "Unrolled",
]
