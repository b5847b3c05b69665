"""Encoders, which map source ids to states: recurrent, Transformer, and those of an ensemble."""

from collections.abc import Sequence
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention import (
    EnsembleMemory,
    Memory,
    MultiHeadAttention,
    padding_from_lengths,
)
from regard.attention.multihead import KeyValue
from regard.cells import CELLS, run_layer
from regard.kernels.dropout import dropout
from regard.layers import Embedding, FeedForward, Residual, TransformerConfig
from regard.positions import HEAD_POSITIONS


class RecurrentEncoder(nn.Module):
    """GRU or LSTM over the embedded source, in one or both directions, with one or more layers.

    Padding never reaches a state: the backward direction reads every sequence reversed within its
    length, so PyTorch's layers run without packing.

    Args:
        vocabulary: size V of the source vocabulary.
        embedding_dim: width of the embeddings.
        hidden_dim: width of one direction.
        layers: number of layers (default 1).
        bidirectional: read in both directions (default True).
        cell: a name in `regard.cells.CELLS`.
        dropout: share of activations dropped in the embeddings, between layers and in the states.
        output_dim: project the states once to this width; None leaves them unchanged.
    """

    def __init__(
        self,
        vocabulary: int,
        embedding_dim: int,
        hidden_dim: int,
        layers: int = 1,
        bidirectional: bool = True,
        cell: str = "lstm",
        dropout: float = 0.0,
        output_dim: int | None = None,
    ) -> None:
        super().__init__()
        directions = 2 if bidirectional else 1
        self.embedding = nn.Embedding(vocabulary, embedding_dim)
        nn.init.normal_(self.embedding.weight, std=embedding_dim**-0.5)
        widths = [embedding_dim] + [hidden_dim * directions] * (layers - 1)
        self.forward_layers, self.backward_layers = (
            nn.ModuleList(
                CELLS[cell].layer(width, hidden_dim, batch_first=True) for width in input_dims
            )
            for input_dims in (widths, widths if bidirectional else [])
        )
        self.dropout = dropout
        self.final_dim = hidden_dim * directions
        self.output_dim = output_dim or self.final_dim
        self.projection = _projection(self.final_dim, self.output_dim)

    def forward(self, source: Int[Tensor, "B T"], lengths: Int[Tensor, " B"]) -> Memory:
        """Encode ids (B, T), given the number of real ids in each row, `lengths` (B,)."""
        reversal = reversal_indices(lengths, source.shape[1])
        states = self._dropout(self.embedding(source))
        orders = [None, reversal][: 2 if self.backward_layers else 1]
        for directions in self.layers():
            states = self._dropout(run_layer(directions, states, orders))
        return self._memory(states, lengths)

    def layers(self) -> list[tuple[nn.Module, ...]]:
        """Return the directions of every layer."""
        modules = self.forward_layers, self.backward_layers
        return [*zip(*(each for each in modules if len(each)), strict=True)]

    def _memory(self, states: Float[Tensor, "B T D"], lengths: Int[Tensor, " B"]) -> Memory:
        """Return the encoding, given the outputs of the last layer."""
        padding = padding_from_lengths(lengths, states.shape[1])
        final = self._final(states, lengths)
        states = self.projection(states).masked_fill(padding[..., None], 0)
        return Memory(states, padding, final)

    def _final(self, states: Tensor, lengths: Tensor) -> Tensor:
        """Return the last output of every direction; 0 for empty sequences."""
        last = (lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, states.shape[-1])
        ends = states.gather(1, last)[:, 0]
        if self.backward_layers:
            width = states.shape[-1] // 2
            ends = torch.cat([ends[:, :width], states[:, 0, width:]], dim=-1)
        return ends.masked_fill((lengths == 0)[:, None], 0)

    def _dropout(self, states: Tensor) -> Tensor:
        return dropout(states, self.dropout, self.training)


class TransformerLayer(nn.Module):
    """Encoder layer and base class of decoder layers: self-attention and feed-forward network.

    Both sublayers have residual connections.

    Args:
        config: sizes and options.
        source_dim: width of the encoder's states, to which `cross_attention` attends; None for a
            layer without cross-attention.
    """

    def __init__(self, config: TransformerConfig, source_dim: int | None = None) -> None:
        super().__init__()
        dim, heads, normalizer = config.dim, config.num_heads, config.normalizer
        encoding = HEAD_POSITIONS.get(config.positions)
        self.self_attention = MultiHeadAttention(
            dim,
            heads,
            config.score,
            normalizer=normalizer,
            position_encoding=None if encoding is None else encoding(),
            **config.score_options,
        )
        if source_dim is not None:
            self.cross_attention = MultiHeadAttention(
                dim,
                heads,
                config.score,
                kdim=source_dim,
                vdim=source_dim,
                normalizer=normalizer,
                **config.score_options,
            )
        self.feed_forward = FeedForward(
            dim, config.feed_forward_dim, config.activation, config.dropout
        )
        residuals = nn.ModuleList(
            Residual(dim, config.pre_norm, config.dropout)
            for _ in range(2 if source_dim is None else 3)
        )
        self.residuals = cast("Sequence[Residual]", residuals)

    def self_attend(
        self, states: Float[Tensor, "N L D"], masked: Tensor | None, past: KeyValue | None = None
    ) -> tuple[Float[Tensor, "N L D"], KeyValue]:
        """Return the states after self-attention, and all keys and values, those of `past` first."""
        residual = self.residuals[0]
        inputs = residual.sublayer_input(states)
        length = 0 if past is None else past.values.shape[2]
        key_values = self.self_attention.project_key_value(inputs, inputs, length)
        if past is not None:
            pairs = zip(past, key_values, strict=True)
            key_values = KeyValue(*(torch.cat(pair, dim=2) for pair in pairs))
        queries = self.self_attention.project_query(inputs, length)
        context = self.self_attention.attention.attend(queries, *key_values, masked).context
        return residual.add(states, self.self_attention.combine_heads(context)), key_values

    def self_attention_weights(
        self, states: Float[Tensor, "N L D"], masked: Tensor | None = None
    ) -> Float[Tensor, "N H L L"]:
        """Return the weights of self-attention over whole sequences."""
        inputs, layer = self.residuals[0].sublayer_input(states), self.self_attention
        query, (keys, values) = layer.project_query(inputs), layer.project_key_value(inputs, inputs)
        output = layer.attention.attend(query, keys, values, masked, need_weights=True)
        return cast("Tensor", output.weights)

    def feed(self, states: Float[Tensor, "N L D"]) -> Float[Tensor, "N L D"]:
        """Return the states after the feed-forward network."""
        residual = self.residuals[-1]
        return residual.add(states, self.feed_forward(residual.sublayer_input(states)))


class TransformerEncoder(nn.Module):
    """Layers of self-attention over the embedded source, computed for all positions in parallel.

    Vaswani et al. 2017 (arXiv:1706.03762), section 3.1.

    Args:
        config: sizes and options.
        vocabulary: size V of the source vocabulary.
        output_dim: project the states once to this width; None leaves them unchanged.
    """

    def __init__(
        self, config: TransformerConfig, vocabulary: int, output_dim: int | None = None
    ) -> None:
        super().__init__()
        dim = config.dim
        self.embedding = Embedding(vocabulary, dim, config.positions, config.dropout)
        layers = nn.ModuleList(TransformerLayer(config) for _ in range(config.layers))
        self.layers = cast("Sequence[TransformerLayer]", layers)
        self.norm = nn.LayerNorm(dim) if config.pre_norm else nn.Identity()
        self.final_dim = dim
        self.output_dim = output_dim or dim
        self.projection = _projection(dim, self.output_dim)

    def forward(self, source: Int[Tensor, "B T"], lengths: Int[Tensor, " B"]) -> Memory:
        """Encode ids (B, T), given the number of real ids in each row, `lengths` (B,)."""
        padding = padding_from_lengths(lengths, source.shape[1])
        states = self.embedding(source)
        for layer in self.layers:
            states = layer.feed(layer.self_attend(states, padding[:, None, None])[0])
        states = self.norm(states).masked_fill(padding[..., None], 0)
        final = states.sum(1) / lengths.clamp(min=1)[:, None]
        states = self.projection(states).masked_fill(padding[..., None], 0)
        return Memory(states, padding, final)

    def self_attention_weights(
        self, source: Int[Tensor, "B T"], lengths: Int[Tensor, " B"]
    ) -> Float[Tensor, "B layers H T T"]:
        """Return the self-attention weights of every layer."""
        masked = padding_from_lengths(lengths, source.shape[1])[:, None, None]
        states, by_layer = self.embedding(source), list[Tensor]()
        for layer in self.layers:
            by_layer.append(layer.self_attention_weights(states, masked))
            states = layer.feed(layer.self_attend(states, masked)[0])
        return torch.stack(by_layer, dim=1)


class EnsembleEncoder(nn.Module):
    """The encoders of several models, which encode the same sources.

    Args:
        members: the encoders, at least one.
    """

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, source: Int[Tensor, "B T"], lengths: Int[Tensor, " B"]) -> EnsembleMemory:
        """Encode ids (B, T), given the number of real ids in each row, `lengths` (B,)."""
        return EnsembleMemory.of([member(source, lengths) for member in self.members])


def _projection(dim: int, output_dim: int) -> nn.Module:
    return nn.Identity() if dim == output_dim else nn.Linear(dim, output_dim)


def reversal_indices(lengths: Int[Tensor, " B"], width: int) -> Int[Tensor, "B T"]:
    """Return indices that reverse each sequence within its length; padding stays in place."""
    positions = torch.arange(width, device=lengths.device)
    reversed_positions = lengths[:, None] - 1 - positions
    return torch.where(reversed_positions >= 0, reversed_positions, positions)
