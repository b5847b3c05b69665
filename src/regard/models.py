"""Encoder and decoder put together, built from the settings."""

import dataclasses
from typing import Any, cast

from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from regard import scores
from regard.attention import Attention, Memory
from regard.attention.coverage import Coverage, coverage_cost
from regard.attention.window import LocalWindow
from regard.config import ModelConfig
from regard.data import Batch
from regard.decoders import (
    BahdanauDecoder,
    Decoder,
    FixedContextDecoder,
    LuongDecoder,
    TransformerDecoder,
)
from regard.encoders import RecurrentEncoder, TransformerEncoder
from regard.score_registry import SCORES

_LOWEST = -30.0
"""Bound on the log-probability of what a copying decoder cannot give, which smoothing weighs too."""


class Seq2Seq(nn.Module):
    """An encoder, and a decoder that may look back at all of the encoder's states."""

    def __init__(
        self,
        encoder: RecurrentEncoder | TransformerEncoder,
        decoder: Decoder,
        padding_id: int = 0,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder
        self.padding_id = padding_id

    def encode(
        self,
        source: Int[Tensor, "B T"],
        lengths: Int[Tensor, " B"],
        copies: Int[Tensor, "B T"] | None = None,
    ) -> Memory:
        """All that a decoder needs of a batch of sources, computed once.

        `copies` are the ids of the source's symbols on the target side, for a copying decoder.
        """
        memory = self.decoder.prepare_memory(self.encoder(source, lengths))
        return dataclasses.replace(memory, copies=copies)

    def forward(
        self, batch: Batch, *, label_smoothing: float = 0.0, coverage_loss: float = 0.0
    ) -> Tensor:
        """Compute the cross-entropy, in nats per target token, of the batch's targets.

        Padding (`padding_id`) in `targets` does not count. `coverage_loss` times the attention that
        goes where it went before is added (See et al. 2017, arXiv:1704.04368, eq. 13).
        """
        targets, copies = batch.targets, batch.copies
        memory = self.encode(batch.source, batch.lengths, copies)
        unrolled = self.decoder.unroll(
            memory, batch.inputs, need_weights=copies is not None or coverage_loss > 0
        )
        real = targets != self.padding_id
        if copies is None:
            logits = self.decoder.predict(unrolled.states[real]).float()
            loss = functional.cross_entropy(logits, targets[real], label_smoothing=label_smoothing)
        else:
            assert unrolled.weights is not None
            rows = copies[real.nonzero()[:, 0]]
            found = self.decoder.predict(unrolled.states[real], unrolled.weights[real], rows)
            loss = self._copying_loss(found, targets[real], label_smoothing)
        if coverage_loss > 0 and unrolled.weights is not None:
            again = coverage_cost(unrolled.weights[:, :, -1].mean(2))[real]
            loss = loss + coverage_loss * again.mean()
        return loss

    def _copying_loss(
        self, log_probs: Float[Tensor, "n VK"], targets: Int[Tensor, " n"], label_smoothing: float
    ) -> Tensor:
        """Cross-entropy; smoothing spreads its share over the vocabulary, whatever can be copied."""
        log_probs = log_probs.clamp(min=_LOWEST)
        right = log_probs.gather(1, targets[:, None]).mean()
        others = log_probs[:, : self.decoder.vocabulary].mean()
        return -(1 - label_smoothing) * right - label_smoothing * others


def build(config: ModelConfig, source_vocabulary: int, target_vocabulary: int) -> Seq2Seq:
    """Build the model that the settings describe, with fresh weights."""
    config = config.resolved()
    encoder = _encoder(config, source_vocabulary)
    decoder = _transformer_decoder if config.kind == "transformer" else _recurrent_decoder
    return Seq2Seq(encoder, decoder(config, target_vocabulary, encoder))


def _encoder(config: ModelConfig, vocabulary: int) -> RecurrentEncoder | TransformerEncoder:
    entry = SCORES.get(cast("str", config.attention))
    equal = config.kind == "rnn" and entry is not None and entry.equal_widths
    output_dim = config.decoder_dim if equal else None
    layers = cast("int", config.encoder_layers)
    if config.encoder == "transformer":
        parts = _transformer_parts(config)
        if config.attention == "none":
            parts["score"] = "scaled_dot"  # none says what the decoder sees, not the encoder
        return TransformerEncoder(
            vocabulary, config.encoder_dim, layers, output_dim=output_dim, **parts
        )
    return RecurrentEncoder(
        vocabulary,
        config.embedding_dim,
        config.encoder_dim,
        layers=layers,
        bidirectional=config.bidirectional,
        cell=config.cell,
        dropout=config.dropout,
        output_dim=output_dim,
    )


def _transformer_parts(config: ModelConfig) -> dict[str, Any]:
    return {
        "positions": config.positions,
        "pre_norm": config.pre_norm,
        "dropout": config.dropout,
        "feed_forward_dim": config.feed_forward_dim,
        "activation": config.activation,
        "num_heads": config.heads,
        "score": config.attention,
        "normalizer": config.normalizer,
    }


def _transformer_decoder(
    config: ModelConfig, vocabulary: int, encoder: RecurrentEncoder | TransformerEncoder
) -> Decoder:
    return TransformerDecoder(
        vocabulary,
        config.decoder_dim,
        cast("int", config.decoder_layers),
        source_dim=encoder.output_dim,
        tie_embeddings=config.tie_embeddings,
        copying=config.copy,
        **_transformer_parts(config),
    )


def _recurrent_decoder(
    config: ModelConfig, vocabulary: int, encoder: RecurrentEncoder | TransformerEncoder
) -> Decoder:
    widths: dict[str, Any] = {
        "vocabulary": vocabulary,
        "embedding_dim": config.embedding_dim,
        "hidden_dim": config.decoder_dim,
        "final_dim": encoder.final_dim,
        "layers": config.decoder_layers,
        "cell": config.cell,
        "dropout": config.dropout,
        "tie_embeddings": config.tie_embeddings,
        "copying": config.copy,
    }
    if config.attention == "none":
        context = encoder.final_dim
        return FixedContextDecoder(**widths, context_dim=context, extra_dim=context)
    entry = SCORES[cast("str", config.attention)]
    score = scores.make_score(
        entry.name,
        query_dim=config.decoder_dim,
        key_dim=encoder.output_dim,
        hidden_dim=config.attention_dim,
        **entry.model_options,
    )
    attention = Attention(score, config.normalizer)
    widths["context_dim"] = encoder.output_dim
    if config.window != "none":
        widths["window"] = LocalWindow(config.window, config.window_radius, config.decoder_dim)
    if config.coverage:
        widths["coverage"] = Coverage(config.attention_dim)
    if config.decoder == "bahdanau":
        return BahdanauDecoder(attention, **widths)
    return LuongDecoder(attention, config.input_feeding, **widths)


def count_parameters(model: nn.Module) -> int:
    """Number of trainable numbers, shared ones once."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
