"""Multi-head attention: every head attends with its own projections; the contexts are concatenated.

    head_h = attention(Q W_Q^h, K W_K^h, V W_V^h)        out = [head_1; …; head_H] W_O

Vaswani et al. 2017 (arXiv:1706.03762), section 3.2.2, with any score. Self-attention is the same with
queries, keys and values from one sequence.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard import scores
from regard.attention.attention import Attention, AttentionOutput, check_rows
from regard.attention.masks import check_mask, resolve_masks
from regard.errors import ConfigError, ShapeError
from regard.positions import HeadPositions
from regard.score_registry import find_score
from regard.scores import PairwiseScore, Score, make_score, shape


class KeyValue(NamedTuple):
    """Projected keys and values of every head."""

    keys: Tensor
    """(B, H, T, E)."""
    values: Tensor
    """(B, H, T, D / H)."""


class MultiHeadAttention(nn.Module):
    """Multi-head attention with any score.

    Args:
        embed_dim: width D of queries, keys, values and the output.
        num_heads: number H of heads; a divisor of `embed_dim`.
        score: name of a score, or a module for rows of width D / H, as in `Attention`. For
            `additive` and `concat` the projections of queries and keys are W and U, and every head
            has its own v; the parameters of other scores are shared by the heads.
        dropout: probability of dropping a weight in training; the others are scaled up (default 0).
        bias: add a bias to all four projections (default True).
        normalizer: as in `Attention`.
        key_dim: width of keys and values before the projection (default D).
        position_encoding: applied to the projected queries and keys of every head, such as
            `regard.positions.RotaryPositions()`.

    With `scaled_dot` and the same parameters the output equals that of
    `torch.nn.MultiheadAttention`. For a query that may attend to nothing the weights are 0 and the
    output is the bias of the output projection; PyTorch's layer gives NaN.

    Raises:
        ConfigError: the widths, the number of heads, the score or the positions do not fit.
        ShapeError: the score expects rows of a width other than D / H.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        score: str | nn.Module = "scaled_dot",
        dropout: float = 0.0,
        bias: bool = True,
        *,
        normalizer: str = "softmax",
        key_dim: int | None = None,
        position_encoding: HeadPositions | None = None,
    ) -> None:
        super().__init__()
        if num_heads < 1 or embed_dim < 1 or embed_dim % num_heads:
            raise ConfigError(
                f"embed_dim must be a multiple of num_heads, got {embed_dim} and {num_heads}"
            )
        width = embed_dim // num_heads
        self.embed_dim, self.num_heads = embed_dim, num_heads
        self.key_dim = embed_dim if key_dim is None else key_dim
        self.attention = Attention(_head_score(score, num_heads, width), normalizer, dropout)
        if position_encoding is not None:
            name = find_score(score).name if isinstance(score, str) else type(score).__name__
            position_encoding.check(name, isinstance(self.attention.score, PairwiseScore), width)
        self.position_encoding = position_encoding
        self.query_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.key_proj = nn.Linear(self.key_dim, embed_dim, bias=bias)
        self.value_proj = nn.Linear(self.key_dim, embed_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        for projection in (self.query_proj, self.key_proj, self.value_proj, self.out_proj):
            nn.init.xavier_uniform_(projection.weight)
            if bias:
                nn.init.zeros_(projection.bias)

    def forward(
        self,
        query: Float[Tensor, "B L Dq"],
        key: Float[Tensor, "B T Dk"],
        value: Float[Tensor, "B T Dv"] | None = None,
        *,
        key_padding_mask: Bool[Tensor, "B T"] | None = None,
        attn_mask: Tensor | None = None,
        key_lengths: Int[Tensor, " B"] | None = None,
        need_weights: bool = False,
    ) -> AttentionOutput:
        """Attend from `query` to `key` with every head, and combine the contexts.

        Arguments as in `Attention.forward`: `query` is (B, L, D), `key` and `value` are (B, T, D) or
        of width `key_dim`, and `attn_mask` may also be (B, H, L, T).

        Returns:
            The output (B, L, D), and the weights of every head (B, H, L, T) or None. Masks act as in
            `Attention`.

        Raises:
            ShapeError: shapes or dtypes do not fit; the message names them.
        """
        value = key if value is None else value
        check_rows(query, key, value)
        widths = query.shape[-1], key.shape[-1], value.shape[-1]
        if widths != (self.embed_dim, self.key_dim, self.key_dim):
            raise ShapeError(
                f"MultiHeadAttention expects queries of width {self.embed_dim} and keys and "
                f"values of width {self.key_dim}, got query {shape(query)}, key {shape(key)} and "
                f"value {shape(value)}"
            )
        length, heads = query.shape[1], self.num_heads
        masks = resolve_masks(key, length, key_padding_mask, attn_mask, key_lengths, heads)
        context, weights = self.attention.attend_masked(
            self.project_query(query), key, value, self.project_key_value, masks, need_weights
        )
        return AttentionOutput(self.combine_heads(context), weights)

    def project_query(
        self, query: Float[Tensor, "B L D"], first: int = 0
    ) -> Float[Tensor, "B H L E"]:
        """Return the queries of every head; the first one is at position `first`."""
        return self._encode_positions(self._split_heads(self.query_proj(query)), first)

    def project_key_value(
        self, key: Float[Tensor, "B T Dk"], value: Float[Tensor, "B T Dk"], first: int = 0
    ) -> KeyValue:
        """Return the keys and values of every head; the first ones are at position `first`."""
        keys = self._encode_positions(self._split_heads(self.key_proj(key)), first)
        return KeyValue(self.attention.project_key(keys), self._split_heads(self.value_proj(value)))

    def combine_heads(self, context: Float[Tensor, "B H L E"]) -> Float[Tensor, "B L D"]:
        """Concatenate the contexts of the heads and apply the output projection."""
        return self.out_proj(context.transpose(1, 2).flatten(2))

    def _split_heads(self, rows: Tensor) -> Tensor:
        return rows.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def _encode_positions(self, rows: Tensor, first: int) -> Tensor:
        return rows if self.position_encoding is None else self.position_encoding(rows, first)


class SelfAttention(nn.Module):
    """Self-attention: queries, keys and values come from one sequence.

        Q = X W_Q    K = X W_K    V = X W_V    softmax(Q K' / sqrt(D)) V

    Vaswani et al. 2017 (arXiv:1706.03762), section 3.2.3, with any score.

    Args:
        embed_dim, num_heads, score, dropout, normalizer: as in `MultiHeadAttention`; one head by default.
        causal: mask the positions after the query (default False).
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int = 1,
        causal: bool = False,
        score: str | nn.Module = "scaled_dot",
        dropout: float = 0.0,
        *,
        normalizer: str = "softmax",
    ) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(
            embed_dim, num_heads, score, dropout, normalizer=normalizer
        )
        self.causal = causal

    def forward(
        self,
        x: Float[Tensor, "B L D"],
        *,
        key_padding_mask: Bool[Tensor, "B L"] | None = None,
        attn_mask: Tensor | None = None,
        key_lengths: Int[Tensor, " B"] | None = None,
        need_weights: bool = False,
    ) -> AttentionOutput:
        """Attend within `x` (B, L, D); masks and result as in `MultiHeadAttention`."""
        if self.causal:
            mask = causal_mask(x.shape[1], x.device)
            if attn_mask is not None:
                check_mask(attn_mask, x, x.shape[1], self.attention.num_heads)
                is_bool = attn_mask.dtype == torch.bool
                mask = attn_mask.masked_fill(mask, True if is_bool else -torch.inf)
            attn_mask = mask
        return self.attention(
            x, x, key_padding_mask=key_padding_mask, attn_mask=attn_mask, key_lengths=key_lengths,
            need_weights=need_weights,
        )  # fmt: skip


def causal_mask(length: int, device: torch.device) -> Bool[Tensor, "L L"]:
    """Return a mask that is True where the key is after the query."""
    return torch.ones(length, length, dtype=torch.bool, device=device).triu(1)


def _head_score(score: str | nn.Module, heads: int, width: int) -> nn.Module:
    if isinstance(score, Score):
        row = torch.empty(1, 1, width)
        score.check(row, row)
    if not isinstance(score, str):
        return score
    entry = find_score(score)
    if entry.head_class is not None:
        return getattr(scores, entry.head_class)(heads, width)
    return make_score(
        score, query_dim=width, key_dim=width, hidden_dim=width, **entry.model_options
    )
