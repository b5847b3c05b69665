"""Decoders for inference: what does not depend on the step is computed once, and kernels run the search."""

import logging

import torch

from regard.attention.score_modules import calls_own_modules
from regard.decoders.bahdanau import BahdanauDecoder
from regard.decoders.ensemble import EnsembleDecoder, EnsembleSteps
from regard.decoders.folded_recurrent import FoldedRecurrentDecoder, can_fold
from regard.decoders.folded_transformer import FoldedTransformerDecoder
from regard.decoders.luong import LuongDecoder
from regard.decoders.protocol import Decoder, StepDecoder
from regard.decoders.recurrent import AttendingDecoder
from regard.decoders.transformer import TransformerDecoder

_log = logging.getLogger(__name__)

_DTYPES = (torch.float32, torch.float64)


def fold(decoder: Decoder) -> StepDecoder:
    """Return a decoder with the same steps that is faster in inference, or `decoder` if it cannot be folded."""
    if isinstance(decoder, EnsembleDecoder):
        # the steps of a Transformer are its own
        _log.info("an ensemble is searched step by step in PyTorch")
        members = [
            member if isinstance(member, TransformerDecoder) else fold(member)
            for member in decoder.members
        ]
        return EnsembleSteps(members, decoder.shapes)
    folded = _folded(decoder)
    if isinstance(decoder, AttendingDecoder | TransformerDecoder) and (
        folded is None or folded.kernel is None
    ):
        _log.info("this decoder is computed step by step in PyTorch: there is no kernel for it")
    return folded or decoder


def _folded(decoder: Decoder) -> FoldedRecurrentDecoder | FoldedTransformerDecoder | None:
    if not isinstance(decoder, BahdanauDecoder | LuongDecoder | TransformerDecoder):
        return None
    exact = all(weight.dtype in _DTYPES for weight in decoder.parameters())
    if not (exact and calls_own_modules(decoder)):
        return None
    if isinstance(decoder, TransformerDecoder):
        return FoldedTransformerDecoder(decoder)
    return FoldedRecurrentDecoder(decoder) if can_fold(decoder) else None
