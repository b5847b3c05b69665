"""Sequence-to-sequence models, built from the settings."""

import dataclasses
from collections.abc import Sequence
from typing import cast

from jaxtyping import Float, Int
from torch import Tensor, nn

from regard import scores
from regard.attention import Attention, Memory
from regard.attention.coverage import Coverage, coverage_cost
from regard.attention.window import LocalWindow
from regard.batching import Batch
from regard.config import ModelConfig
from regard.decoders import (
    BahdanauDecoder,
    Decoder,
    EnsembleDecoder,
    FixedContextDecoder,
    LuongDecoder,
    PosteriorDecoder,
    RecurrentDecoderConfig,
    TransformerDecoder,
)
from regard.encoders import EnsembleEncoder, RecurrentEncoder, TransformerEncoder
from regard.errors import ConfigError, is_out_of_memory
from regard.guided_alignment import guided_alignment_losses
from regard.kernels.cross_entropy import cross_entropy
from regard.layers import TransformerConfig
from regard.score_registry import SCORES
from regard.text import PAD

_LOWEST = -30.0
"""Lower bound on log-probabilities of a copying decoder, since label smoothing includes impossible
tokens."""


class Seq2Seq(nn.Module):
    """An encoder, and a decoder that may attend to all of the encoder's states."""

    def __init__(
        self, encoder: RecurrentEncoder | TransformerEncoder | EnsembleEncoder, decoder: Decoder
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    def encode(
        self,
        source: Int[Tensor, "B T"],
        lengths: Int[Tensor, " B"],
        copies: Int[Tensor, "B T"] | None = None,
    ) -> Memory:
        """Encode a batch of sources: compute, once, what the decoder needs at every step.

        `copies` contains the target-side ids of the source's tokens, for a copying decoder.
        """
        encoded = dataclasses.replace(self.encoder(source, lengths), copies=copies)
        return self.decoder.prepare_memory(encoded)

    def forward(
        self,
        batch: Batch,
        *,
        label_smoothing: float = 0.0,
        coverage_loss: float = 0.0,
        guided_alignment: float = 0.0,
    ) -> Tensor:
        """Compute the cross-entropy, in nats per target token, of the batch's targets.

        Padding in `targets` is ignored. The coverage loss of See et al. 2017
        (arXiv:1704.04368, eq. 13), times `coverage_loss`, is added, and so is the loss of
        `guided_alignment` of a batch with links, times `guided_alignment`.
        """
        targets, copies = batch.targets, batch.copies
        memory = self.encode(batch.source, batch.lengths, copies)
        guided = guided_alignment > 0 and batch.links is not None
        need_weights = copies is not None or coverage_loss > 0 or guided
        unrolled = self.decoder.unroll(memory, batch.inputs, need_weights)
        real = targets != PAD
        positions = real.flatten().nonzero()[:, 0]
        # the gradient of an index takes PyTorch several times as long as that of `index_select`
        states = unrolled.states.flatten(0, 1).index_select(0, positions)
        if copies is None:
            logits = self.decoder.predict(states)
            loss = cross_entropy(logits, targets[real], label_smoothing)
        else:
            assert unrolled.weights is not None
            weights, rows = unrolled.weights[real], copies[real.nonzero()[:, 0]]
            log_probs = self.decoder.predict(states, weights, rows)
            loss = self._copying_loss(log_probs, targets[real], label_smoothing)
        if coverage_loss > 0 and unrolled.weights is not None:
            costs = coverage_cost(unrolled.weights[:, :, -1].mean(2))[real]
            loss = loss + coverage_loss * costs.mean()
        if batch.links is not None and guided:
            assert unrolled.weights is not None
            weights = unrolled.weights[:, self.decoder.attention_delay :]
            length = weights.shape[1]  # with a delay, those for EOS are missing, which has no links
            losses = guided_alignment_losses(weights, batch.links[:, :length])
            total = losses[real[:, :length]].sum()
            loss = loss + guided_alignment * total / real.sum()
        return loss

    def _copying_loss(
        self, log_probs: Float[Tensor, "n VK"], targets: Int[Tensor, " n"], label_smoothing: float
    ) -> Tensor:
        """Return the cross-entropy; label smoothing covers the vocabulary, not the copied tokens."""
        log_probs = log_probs.clamp(min=_LOWEST)
        correct = log_probs.gather(1, targets[:, None]).mean()
        uniform = log_probs[:, : self.decoder.vocabulary].mean()
        return -(1 - label_smoothing) * correct - label_smoothing * uniform


def build(config: ModelConfig, source_vocabulary: int, target_vocabulary: int) -> Seq2Seq:
    """Return the model that the settings describe, with newly initialised float32 weights.

    Raises:
        ConfigError: the weights do not fit in memory.
    """
    config = config.resolved()
    try:
        encoder = _encoder(config, source_vocabulary)
        model = Seq2Seq(encoder, _decoder(config, target_vocabulary, encoder))
        return model.float()  # whatever torch.get_default_dtype() is: files of weights hold float32
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise ConfigError(
            "there is not enough memory for the weights of this model; choose smaller dimensions "
            "or fewer layers"
        ) from None


def ensemble(members: Sequence[Seq2Seq], layers: Sequence[int]) -> Seq2Seq:
    """Return one model that averages the predictions of several with the same vocabularies.

    `layers` contains the selected attention layer of each member.
    """
    return Seq2Seq(
        EnsembleEncoder([model.encoder for model in members]),
        EnsembleDecoder([model.decoder for model in members], layers),
    )


def _encoder(config: ModelConfig, vocabulary: int) -> RecurrentEncoder | TransformerEncoder:
    entry = SCORES.get(cast("str", config.attention))
    equal_widths = config.kind == "rnn" and entry is not None and entry.equal_widths
    output_dim = config.decoder_dim if equal_widths else None
    layers = cast("int", config.encoder_layers)
    if config.encoder == "transformer":
        sizes = _transformer_config(config, config.encoder_dim, layers)
        return TransformerEncoder(sizes, vocabulary, output_dim)
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


def _transformer_config(config: ModelConfig, dim: int, layers: int) -> TransformerConfig:
    return TransformerConfig(
        dim=dim,
        layers=layers,
        num_heads=config.heads,
        feed_forward_dim=config.feed_forward_dim,
        activation=config.activation,
        positions=config.positions,
        pre_norm=config.pre_norm,
        dropout=config.dropout,
        # `none` means a decoder without attention; the encoder still uses self-attention
        score="scaled_dot" if config.attention == "none" else cast("str", config.attention),
        score_options={"scaled": True} if config.attention_scaled else {},
        normalizer=config.normalizer,
    )


def _decoder(
    config: ModelConfig, vocabulary: int, encoder: RecurrentEncoder | TransformerEncoder
) -> Decoder:
    layers = cast("int", config.decoder_layers)
    if config.kind == "transformer":
        return TransformerDecoder(
            _transformer_config(config, config.decoder_dim, layers),
            vocabulary,
            encoder.output_dim,
            tie_embeddings=config.tie_embeddings,
            copying=config.copy,
        )
    sizes = RecurrentDecoderConfig(
        vocabulary=vocabulary,
        embedding_dim=config.embedding_dim,
        hidden_dim=config.decoder_dim,
        context_dim=encoder.final_dim if config.attention == "none" else encoder.output_dim,
        final_dim=encoder.final_dim,
        layers=layers,
        cell=config.cell,
        dropout=config.dropout,
        tie_embeddings=config.tie_embeddings,
        copying=config.copy,
        input_feeding=config.input_feeding,
    )
    if config.attention == "none":
        return FixedContextDecoder(sizes)
    entry = SCORES[cast("str", config.attention)]
    options = dict(entry.model_options)
    if config.attention_bias:
        options["bias"] = True
    if config.attention_scaled:
        options["scaled"] = True
    score = scores.make_score(
        entry.name,
        query_dim=config.decoder_dim,
        key_dim=encoder.output_dim,
        hidden_dim=config.attention_dim,
        **options,
    )
    attention, window = Attention(score, config.normalizer), None
    if config.window != "none":
        window = LocalWindow(config.window, config.window_radius, config.decoder_dim)
    if config.decoder == "posterior":
        return PosteriorDecoder(sizes, attention, window, config.monotonic)
    coverage = Coverage(config.attention_dim) if config.coverage else None
    decoder = BahdanauDecoder if config.decoder == "bahdanau" else LuongDecoder
    return decoder(sizes, attention, window, coverage)


def count_parameters(model: nn.Module) -> int:
    """Return the number of trainable parameters; shared ones are counted once."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)
