"""The attention weights of all layers of a Transformer, self-attention included, for one output."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from regard.decoders import TransformerDecoder
from regard.encoders import TransformerEncoder
from regard.inference import for_inference
from regard.kernels.weighted_sum import without_autocast
from regard.request import Pins, TextOrTokens, prepare
from regard.text import BOS, BOS_TOKEN, EOS_TOKEN, SourceLike
from regard.translator import Translator


class LayerWeights(NamedTuple):
    """Attention weights for a source of T tokens, EOS included, and L tokens that the decoder read."""

    source_tokens: list[str]
    """Tokens that the encoder read, EOS included (T)."""
    decoder_inputs: list[str]
    """Tokens that the decoder read: BOS, then the output (L)."""
    encoder: np.ndarray | None
    """(layers, heads, T, T): self-attention of a Transformer encoder; None for a recurrent one."""
    decoder: np.ndarray | None
    """(layers, heads, L, L): self-attention of a Transformer decoder; None for a recurrent one."""
    cross: np.ndarray | None
    """(layers, heads, L, T): attention of a Transformer decoder to the source, or None."""


def count_layer_weights(translator: Translator, source: int, target: int) -> int:
    """Return how many weights `LayerWeights` has for T = `source` and L = `target` tokens."""
    model, count = translator.trained.model, 0
    heads = translator.trained.config.model.heads
    if isinstance(model.encoder, TransformerEncoder):
        count += len(model.encoder.layers) * heads * source**2
    if isinstance(model.decoder, TransformerDecoder):
        count += model.decoder.attention_layers * heads * target * (target + source)
    return count


@torch.inference_mode()
def layer_weights(
    translator: Translator,
    text: SourceLike,
    target: TextOrTokens,
    ablate_heads: Sequence[tuple[int, int]] = (),
    pin: Pins | None = None,
) -> LayerWeights:
    """Return the attention weights in all layers and heads of a Transformer for a given target.

    Args:
        translator: a model whose encoder or decoder, or both, is a Transformer.
        text: the source text, or pair (text, features).
        target: the target, as text or as tokens.
        ablate_heads: (layer, head) pairs; the source attention weights of these heads are set to 0.
        pin: attention weights to impose, {step: {source token: weight}}.

    Raises:
        ConfigError: there is no such layer, head, step or source token.
    """
    request = prepare(translator.trained, [text], [target], pin, ablate_heads, forced=True)
    model, device = for_inference(translator.trained.model), translator.device
    (source,) = request.sources
    encoder = decoder = cross = None
    with without_autocast(device):
        if isinstance(model.encoder, TransformerEncoder):
            encoder = model.encoder.self_attention_weights(*request.padded(device))
        if isinstance(model.decoder, TransformerDecoder):
            memory = request.encode(model, device)
            tokens = torch.tensor([[BOS, *source.prefix.ids]], device=device)
            constraints = request.constraints(model.decoder, device)
            interventions = constraints and constraints.interventions(tokens.shape[1])
            decoder, cross = model.decoder.weights_of_layers(memory, tokens, interventions)
    return LayerWeights(
        [*source.encoding.tokens, EOS_TOKEN],
        [BOS_TOKEN, *source.prefix.tokens],
        *(
            None if weights is None else weights[0].float().cpu().numpy()
            for weights in (encoder, decoder, cross)
        ),
    )
