"""Recurrent and Transformer encoders: source ids to states."""

from itertools import zip_longest
from typing import NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.attention import MultiHeadAttention, padding_from_lengths
from regard.cells import CELLS
from regard.kernels.dropout import dropout
from regard.layers import Embedding, FeedForward, Residual, TransformerConfig
from regard.positions import head_positions


class EncoderOutput(NamedTuple):
    """The states of a batch of sources."""

    states: Tensor
    """(B, T, Dk): one state per source token, 0 at padding."""
    final: Tensor
    """(B, F): one state for the whole source; of a recurrent encoder the last states of all
    directions, concatenated; of a Transformer the mean."""
    padding: Tensor
    """(B, T), bool: True at padding."""


class RecurrentEncoder(nn.Module):
    """GRU or LSTM over the embedded source, in one or both directions, one or more layers.

    Padding never reaches a state: the backward direction reads every sequence reversed within its
    length, so PyTorch's layers run without packing.

    Args:
        vocabulary: size V of the source vocabulary.
        embedding_dim: width of the embeddings.
        hidden_dim: width of one direction.
        layers: number of layers (default 1).
        bidirectional: read in both directions (default True).
        cell: a name in `regard.cells.CELLS`.
        dropout: share of activations dropped on embeddings, between layers and on the states.
        output_dim: project the states once to this width; None leaves them as they are.
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

    def forward(self, source: Int[Tensor, "B T"], lengths: Int[Tensor, " B"]) -> EncoderOutput:
        """Encode ids (B, T), of which the first `lengths` (B,) of each row are real."""
        padding = padding_from_lengths(lengths, source.shape[1])
        reversal = reversal_indices(lengths, source.shape[1])
        states = self._dropout(self.embedding(source))
        for forward, backward in zip_longest(self.forward_layers, self.backward_layers):
            directions = [forward(states)[0]]
            if backward is not None:
                directions.append(reorder(backward(reorder(states, reversal))[0], reversal))
            states = self._dropout(torch.cat(directions, dim=-1))
        final = self._final(states, lengths)
        states = self.projection(states).masked_fill(padding[..., None], 0)
        return EncoderOutput(states, final, padding)

    def _final(self, states: Tensor, lengths: Tensor) -> Tensor:
        last = (lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, states.shape[-1])
        ends = states.gather(1, last)[:, 0]
        if not self.backward_layers:
            return ends
        width = states.shape[-1] // 2
        return torch.cat([ends[:, :width], states[:, 0, width:]], dim=-1)

    def _dropout(self, states: Tensor) -> Tensor:
        return dropout(states, self.dropout, self.training)


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward network, each with a residual connection."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.self_attention = make_self_attention(config)
        self.feed_forward = FeedForward(
            config.dim, config.feed_forward_dim, config.activation, config.dropout
        )
        self.residuals = nn.ModuleList(
            Residual(config.dim, config.pre_norm, config.dropout) for _ in range(2)
        )

    def forward(
        self, states: Float[Tensor, "B T D"], masked: Bool[Tensor, "B 1 1 T"]
    ) -> Float[Tensor, "B T D"]:
        """Return the states after this layer; every position attends to all that are not masked."""
        first, second = cast("list[Residual]", list(self.residuals))
        inputs = first.sublayer_input(states)
        queries, key_values = (
            self.self_attention.project_query(inputs),
            self.self_attention.project_key_value(inputs, inputs),
        )
        context = self.self_attention.attention.attend(queries, *key_values, masked).context
        states = first.add(states, self.self_attention.combine_heads(context))
        return second.add(states, self.feed_forward(second.sublayer_input(states)))


class TransformerEncoder(nn.Module):
    """Layers of self-attention over the embedded source, all positions in parallel.

    Vaswani et al. 2017 (arXiv:1706.03762), section 3.1.

    Args:
        config: sizes and options.
        vocabulary: size V of the source vocabulary.
        output_dim: project the states once to this width; None leaves them as they are.
    """

    def __init__(
        self, config: TransformerConfig, vocabulary: int, output_dim: int | None = None
    ) -> None:
        super().__init__()
        dim = config.dim
        self.embedding = Embedding(vocabulary, dim, config.positions, config.dropout)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(dim) if config.pre_norm else nn.Identity()
        self.final_dim = dim
        self.output_dim = output_dim or dim
        self.projection = _projection(dim, self.output_dim)

    def forward(self, source: Int[Tensor, "B T"], lengths: Int[Tensor, " B"]) -> EncoderOutput:
        """Encode ids (B, T), of which the first `lengths` (B,) of each row are real."""
        padding = padding_from_lengths(lengths, source.shape[1])
        states = self.embedding(source)
        for layer in self.layers:
            states = layer(states, padding[:, None, None])
        states = self.norm(states).masked_fill(padding[..., None], 0)
        final = states.sum(1) / lengths.clamp(min=1)[:, None]
        states = self.projection(states).masked_fill(padding[..., None], 0)
        return EncoderOutput(states, final, padding)


def make_self_attention(config: TransformerConfig) -> MultiHeadAttention:
    """Return the self-attention of one layer."""
    return MultiHeadAttention(
        config.dim,
        config.num_heads,
        config.score,
        normalizer=config.normalizer,
        position_encoding=head_positions(config.positions),
    )


def _projection(dim: int, output_dim: int) -> nn.Module:
    return nn.Identity() if dim == output_dim else nn.Linear(dim, output_dim)


def reversal_indices(lengths: Int[Tensor, " B"], width: int) -> Int[Tensor, "B T"]:
    """Return indices that reverse each sequence within its length; padding stays in place."""
    positions = torch.arange(width, device=lengths.device)
    reversed_positions = lengths[:, None] - 1 - positions
    return torch.where(reversed_positions >= 0, reversed_positions, positions)


def reorder(states: Float[Tensor, "B T D"], order: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
    """Return the states at the positions in `order`."""
    return states.gather(1, order[..., None].expand_as(states))
