"""Encoders: a batch of source ids in, all their states and the final one out."""

from itertools import zip_longest
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.attention import MultiHeadAttention, padding_from_lengths
from regard.cells import CELLS
from regard.kernels.dropout import dropout
from regard.layers import Embedding, FeedForward, Residual
from regard.positions import head_positions


class EncoderOutput(NamedTuple):
    """What an encoder makes of a batch of sources."""

    states: Tensor
    """(B, T, Dk): one state per source symbol, 0 where the source has ended."""
    final: Tensor
    """(B, F): one state for the whole source; of a recurrent encoder the last one of each direction,
    side by side, of a Transformer the mean."""
    padding: Tensor
    """(B, T), bool: True where the source has ended."""


class RecurrentEncoder(nn.Module):
    """GRU or LSTM over the embedded source, in one or both directions, one or more layers.

    Padding never reaches a state: each direction runs over sequences laid from their own start, so
    no packing is needed and PyTorch's fast layers serve (the backward direction reads every
    sequence turned round within its own length).

    Args:
        vocabulary: size V of the source vocabulary.
        embedding_dim: width of the embeddings.
        hidden_dim: width of one direction.
        layers: number of layers (default 1).
        bidirectional: read in both directions (default True).
        cell: `gru` or `lstm`.
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
            nn.ModuleList(CELLS[cell].layer(width, hidden_dim, batch_first=True) for width in read)
            for read in (widths, widths if bidirectional else [])
        )
        self.dropout = dropout
        self.final_dim = hidden_dim * directions
        self.output_dim = output_dim or self.final_dim
        self.projection = _projection(self.final_dim, self.output_dim)

    def forward(self, source: Int[Tensor, "B T"], lengths: Int[Tensor, " B"]) -> EncoderOutput:
        """Encode ids (B, T), of which the first `lengths` (B,) of each row are real."""
        padding = padding_from_lengths(lengths, source.shape[1])
        turned = reversal_indices(lengths, source.shape[1])
        states = self._drop(self.embedding(source))
        for forward, backward in zip_longest(self.forward_layers, self.backward_layers):
            both = [forward(states)[0]]
            if backward is not None:
                both.append(reorder(backward(reorder(states, turned))[0], turned))
            states = self._drop(torch.cat(both, dim=-1))
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

    def _drop(self, states: Tensor) -> Tensor:
        return dropout(states, self.dropout, self.training)


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each with its residual branch.

    Args:
        dim: width D.
        feed_forward_dim: width inside the feed-forward part.
        activation: of the feed-forward part.
        pre_norm: norm before each part, else after its sum.
        dropout: share of activations dropped.
        **heads: as `MultiHeadAttention` takes them.
    """

    def __init__(
        self,
        dim: int,
        feed_forward_dim: int,
        activation: str,
        pre_norm: bool,
        dropout: float,
        **heads: Any,
    ) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(dim, **heads)
        self.feed_forward = FeedForward(dim, feed_forward_dim, activation, dropout)
        self.residuals = nn.ModuleList(Residual(dim, pre_norm, dropout) for _ in range(2))

    def forward(
        self, rows: Float[Tensor, "B T D"], masked: Bool[Tensor, "B 1 1 T"]
    ) -> Float[Tensor, "B T D"]:
        """Every row looks at all that are not masked."""
        first, second = cast("list[Residual]", list(self.residuals))
        entered = first.sublayer_input(rows)
        queries, seen = (
            self.self_attention.project_query(entered),
            self.self_attention.project_key_value(entered, entered),
        )
        context = self.self_attention.attention.attend(queries, *seen, masked).context
        rows = first.add(rows, self.self_attention.combine_heads(context))
        return second.add(rows, self.feed_forward(second.sublayer_input(rows)))


class TransformerEncoder(nn.Module):
    """Layers of self-attention over the embedded source, all positions in parallel.

    Vaswani et al. 2017 (arXiv:1706.03762), section 3.1.

    Args:
        vocabulary: size V of the source vocabulary.
        dim: width D.
        layers: number of layers.
        positions: name of a positional encoding.
        pre_norm: norm before each part (with one more after the last layer), else after its sum.
        dropout: share of activations dropped.
        output_dim: project the states once to this width; None leaves them as they are.
        **parts: as `EncoderLayer` takes them.
    """

    def __init__(
        self,
        vocabulary: int,
        dim: int,
        layers: int,
        positions: str,
        pre_norm: bool,
        dropout: float,
        output_dim: int | None = None,
        **parts: Any,
    ) -> None:
        super().__init__()
        self.embedding = Embedding(vocabulary, dim, positions, dropout)
        self.layers = nn.ModuleList(
            EncoderLayer(
                dim,
                pre_norm=pre_norm,
                dropout=dropout,
                position_encoding=head_positions(positions),
                **parts,
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(dim) if pre_norm else nn.Identity()
        self.final_dim = dim
        self.output_dim = output_dim or dim
        self.projection = _projection(dim, self.output_dim)

    def forward(self, source: Int[Tensor, "B T"], lengths: Int[Tensor, " B"]) -> EncoderOutput:
        """Encode ids (B, T), of which the first `lengths` (B,) of each row are real."""
        padding = padding_from_lengths(lengths, source.shape[1])
        rows = self.embedding(source)
        for layer in self.layers:
            rows = layer(rows, padding[:, None, None])
        rows = self.norm(rows).masked_fill(padding[..., None], 0)
        final = rows.sum(1) / lengths.clamp(min=1)[:, None]
        return EncoderOutput(
            self.projection(rows).masked_fill(padding[..., None], 0), final, padding
        )


def _projection(width: int, wanted: int) -> nn.Module:
    return nn.Identity() if width == wanted else nn.Linear(width, wanted)


def reversal_indices(lengths: Int[Tensor, " B"], width: int) -> Int[Tensor, "B T"]:
    """Positions that read each sequence backwards within its own length; padding stays in place."""
    positions = torch.arange(width, device=lengths.device)
    mirrored = lengths[:, None] - 1 - positions
    return torch.where(mirrored >= 0, mirrored, positions)


def reorder(states: Float[Tensor, "B T D"], order: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
    """The states at the positions in `order`."""
    return states.gather(1, order[..., None].expand_as(states))
