"""Attention with many heads: every head looks with its own projections, and all looks are joined.

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
from regard.attention.masks import check_mask, read_masks, without
from regard.errors import ConfigError, ShapeError
from regard.positions import HeadPositions
from regard.score_registry import find_score
from regard.scores import PairwiseScore, Score, make_score, shape


class KeyValue(NamedTuple):
    """Keys and values as heads look at them, computed once for any number of looks."""

    keys: Tensor
    """(B, H, T, E)."""
    values: Tensor
    """(B, H, T, D / H)."""


class MultiHeadAttention(nn.Module):
    """Look with many heads at once, with any score.

    Args:
        embed_dim: width D of queries, keys, values and of what comes out.
        num_heads: number H of heads; it divides `embed_dim`.
        score: the name of a score, or a module that compares rows of width D / H, as `Attention`
            takes it. The projections of queries and keys are the W and U of `additive` and
            `concat`, and every head has its own v; other scores with parameters share them between
            the heads, which the projections set apart.
        dropout: share of weights dropped in training, the others scaled up (default 0).
        bias: add a bias to all four projections (default True).
        normalizer: as `Attention` takes it.
        key_dim: width of keys and values as they come, where it is not D.
        position_encoding: applied to the projected queries and keys of every head, such as
            `regard.positions.RotaryPositions()`.

    With `scaled_dot` and the same parameters the output equals that of
    `torch.nn.MultiheadAttention`. A query that may attend to nothing has weights 0 here, and the
    bias of the output projection as its output, where that gives NaN.

    Raises:
        ConfigError: the widths, the number of heads, the score or the positions do not fit.
        ShapeError: a score was made for rows of another width than D / H.
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
        query: Float[Tensor, "B1 L Dq"],
        key: Float[Tensor, "B2 T2 Dk"],
        value: Float[Tensor, "B3 T3 Dv"] | None = None,
        key_padding_mask: Bool[Tensor, "B4 T4"] | None = None,
        attn_mask: Tensor | None = None,
        key_lengths: Int[Tensor, " B5"] | None = None,
        need_weights: bool = False,
    ) -> AttentionOutput:
        """Attend from `query` to `key` with every head, and join what they find.

        Args:
            query: (B, L, D).
            key: (B, T, D), or of width `key_dim`.
            value: as `key`; the keys themselves by default.
            key_padding_mask: bool (B, T), True = padding, ignored.
            attn_mask: bool (L, T), (B, L, T) or (B, H, L, T), True = may not attend; or float,
                added to the scores, -inf = may not attend.
            key_lengths: int (B,), the number of real keys, instead of a padding mask.
            need_weights: give the weights too.

        Returns:
            The output (B, L, D), and the weights of every head (B, H, L, T) or None. Masks are kept
            as `Attention` keeps them.

        Raises:
            ShapeError: shapes or dtypes do not fit; the message names them.
        """
        value = key if value is None else value
        check_rows(query, key, value)
        self._check_widths(query, key, value)
        length, heads, look = query.shape[1], self.num_heads, self.attention
        masks = read_masks(key, length, key_padding_mask, attn_mask, key_lengths, heads)
        key, value = masks.clean(key), masks.clean(value)
        queries = self.project_query(query)
        broken = look.nonfinite_keys(key, value, attn_mask, need_weights)
        if broken is None:
            seen = self.project_key_value(key, value)
            found = look.attend(queries, *seen, masks.masked, masks.bias, need_weights)
        else:
            spoilt = self.project_key_value(key, value)
            seen = self.project_key_value(without(key, broken), without(value, broken))
            keys, values = zip(spoilt, seen, strict=True)
            found = look.attend_nonfinite(
                queries, keys, values, broken[:, None, None], masks, need_weights
            )
        return AttentionOutput(self.combine_heads(found.context), found.weights)

    def project_query(
        self, query: Float[Tensor, "B L D"], first: int = 0
    ) -> Float[Tensor, "B H L E"]:
        """Queries of every head, at positions `first` and on."""
        return self._turn(self._split(self.query_proj(query)), first)

    def project_key_value(
        self, key: Float[Tensor, "B T Dk"], value: Float[Tensor, "B T Dk"], first: int = 0
    ) -> KeyValue:
        """Keys and values of every head, at positions `first` and on."""
        keys = self._turn(self._split(self.key_proj(key)), first)
        return KeyValue(self.attention.project_key(keys), self._split(self.value_proj(value)))

    def combine_heads(self, context: Float[Tensor, "B H L E"]) -> Float[Tensor, "B L D"]:
        """What the heads have found, side by side, through the output projection."""
        return self.out_proj(context.transpose(1, 2).flatten(2))

    def _split(self, rows: Tensor) -> Tensor:
        return rows.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)

    def _turn(self, rows: Tensor, first: int) -> Tensor:
        return rows if self.position_encoding is None else self.position_encoding(rows, first)

    def _check_widths(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        found = query.shape[-1], key.shape[-1], value.shape[-1]
        if found != (self.embed_dim, self.key_dim, self.key_dim):
            raise ShapeError(
                f"MultiHeadAttention expects queries of width {self.embed_dim} and keys and "
                f"values of width {self.key_dim}, got query {shape(query)}, key {shape(key)} and "
                f"value {shape(value)}"
            )


class SelfAttention(nn.Module):
    """Look from every position of a sequence at all of them: queries, keys and values are one.

        Q = X W_Q    K = X W_K    V = X W_V    softmax(Q K' / sqrt(D)) V

    Vaswani et al. 2017 (arXiv:1706.03762), section 3.2.3, with any score.

    Args:
        embed_dim: width D of the sequence.
        num_heads: number H of heads (default 1).
        causal: no position sees a later one (default False).
        score: as `MultiHeadAttention` takes it.
        dropout: share of weights dropped in training.
        normalizer: as `Attention` takes it.
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
        key_padding_mask: Bool[Tensor, "B2 L2"] | None = None,
        attn_mask: Tensor | None = None,
        key_lengths: Int[Tensor, " B3"] | None = None,
        need_weights: bool = False,
    ) -> AttentionOutput:
        """Look within `x` (B, L, D); masks and weights as `MultiHeadAttention` has them."""
        if self.causal:
            later = causal_mask(x.shape[1], x.device)
            if attn_mask is not None:
                check_mask(attn_mask, x, x.shape[1], self.attention.num_heads)
            if attn_mask is None:
                attn_mask = later
            elif attn_mask.dtype == torch.bool:
                attn_mask = attn_mask | later
            else:
                attn_mask = attn_mask.masked_fill(later, -torch.inf)
        return self.attention(
            x, x, None, key_padding_mask, attn_mask, key_lengths, need_weights=need_weights
        )


def causal_mask(length: int, device: torch.device) -> Bool[Tensor, "L L"]:
    """True where the key lies after the query."""
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
