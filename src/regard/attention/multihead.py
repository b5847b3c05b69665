"""Multi-head attention: every head attends with its own projections; the contexts are concatenated.

    head_h = attention(Q W_Q^h, K W_K^h, V W_V^h)        out = [head_1; …; head_H] W_O

Vaswani et al. 2017 (arXiv:1706.03762), section 3.2.2, with any score function. Self-attention is the same
operation with queries, keys and values from the same sequence.
"""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from regard import scores
from regard.attention.attention import (
    Attention,
    AttentionOutput,
    check_dtype,
    check_rows,
    check_tensors,
    unbatched,
)
from regard.attention.masks import check_mask, nonfinite_rows, resolve_masks
from regard.attention.score_modules import check_no_options
from regard.attention.torch_layer import (
    NotFused,
    constructor_arguments,
    frozen_parameters,
    projections,
    refuse_extra_keys,
    rename_parameters,
)
from regard.errors import ConfigError, ShapeError
from regard.positions import HeadPositions
from regard.score_registry import find_score
from regard.scores import PairwiseScore, Score, make_score, shape
from regard.setting_checks import check_widths


class KeyValue(NamedTuple):
    """Projected keys and values of every head."""

    keys: Tensor
    """(B, H, T, E)."""
    values: Tensor
    """(B, H, T, D / H)."""


class MultiHeadAttention(nn.Module):
    """Multi-head attention with any score function; can replace `torch.nn.MultiheadAttention`.

    Args:
        embed_dim: width D of the queries and the output.
        num_heads: number H of heads; a divisor of `embed_dim`.
        score: the name of a score function, or a module that scores queries and keys of width
            D / H, as in `Attention`. For `additive` and `concat`, the projections of queries and
            keys serve as W and U, and every head has its own v; the parameters of other score
            functions are shared by the heads.
        dropout: probability of dropping a weight in training; the remaining weights are scaled up
            (default 0).
        bias: add a bias to all four projections (default True).
        batch_first: must be True; inputs are (B, L, D).
        kdim: width of keys before the projection (default D).
        vdim: width of values before the projection (default D).
        device, dtype: device and dtype of the parameters; a score module keeps its own.
        add_bias_kv, add_zero_attn: must be False.
        normalizer: as in `Attention`.
        position_encoding: an encoding, such as `regard.positions.RotaryPositions()`, that is applied
            to the projected queries and keys of every head (default None).
        output_projection: multiply the concatenated contexts by W_O (default True).
        **options: further arguments for a score specified by name, such as `scaled`.

    This layer accepts the arguments and masks of `torch.nn.MultiheadAttention` and can load its
    state dict; with `scaled_dot` and the same parameters, the outputs of the two layers are equal.
    Differences: `score` is the third positional argument, `batch_first` must be True, and
    `need_weights` and `average_attn_weights` are False by default. The returned weights are those
    before dropout. For a query whose keys are all masked, the weights are 0 and the output is the
    bias of the output projection; PyTorch's layer returns NaN.

    This layer can replace `self_attn` and `multihead_attn` of `torch.nn.TransformerEncoderLayer` and
    `torch.nn.TransformerDecoderLayer` with `batch_first=True`. PyTorch's fused inference kernel, which
    bypasses `forward`, is then not used; pass `enable_nested_tensor=False` to
    `torch.nn.TransformerEncoder`, which otherwise warns about this.

    Raises:
        ConfigError: the widths, the number of heads, the score or the position encoding is
            incompatible, or `batch_first`, `add_bias_kv` or `add_zero_attn` has an unsupported value.
        ShapeError: the score expects a width other than D / H.
    """

    batch_first = True
    """Inputs are (B, L, D)."""

    zero_padded_queries = False
    """Replace queries at padded positions with zeros; True in `SelfAttention`, where the queries are the keys."""

    # with these attributes, PyTorch's Transformer layers call `forward` in evaluation mode too
    _qkv_same_embed_dim = False
    in_proj_weight = NotFused()
    in_proj_bias = None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        score: str | nn.Module = "scaled_dot",
        dropout: float = 0.0,
        bias: bool = True,
        *,
        batch_first: bool = True,
        kdim: int | None = None,
        vdim: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        normalizer: str = "softmax",
        position_encoding: HeadPositions | None = None,
        output_projection: bool = True,
        **options: Any,
    ) -> None:
        super().__init__()
        check_widths(embed_dim=embed_dim, num_heads=num_heads, kdim=kdim, vdim=vdim)
        if embed_dim % num_heads:
            raise ConfigError(
                f"embed_dim must be a multiple of num_heads, got {embed_dim} and {num_heads}"
            )
        if not batch_first:
            raise ConfigError(
                "MultiHeadAttention expects inputs of shape (B, L, D): leave out batch_first, and "
                "transpose inputs of shape (L, B, D)"
            )
        refuse_extra_keys(add_bias_kv, add_zero_attn)
        width = embed_dim // num_heads
        self.embed_dim, self.num_heads, self.head_dim = embed_dim, num_heads, width
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        module = _head_score(score, num_heads, width, options)
        if isinstance(score, str) and not (device is None and dtype is None):
            module = module.to(device, dtype)
        self.attention = Attention(module, normalizer, dropout)
        if position_encoding is not None:
            _check_encoding(position_encoding)
            name = find_score(score).name if isinstance(score, str) else type(score).__name__
            position_encoding.check(name, isinstance(self.attention.score, PairwiseScore), width)
        self.position_encoding = position_encoding
        linear = functools.partial(nn.Linear, bias=bias, device=device, dtype=dtype)
        self.query_proj = linear(embed_dim, embed_dim)
        self.key_proj = linear(self.kdim, embed_dim)
        self.value_proj = linear(self.vdim, embed_dim)
        self.out_proj = linear(embed_dim, embed_dim) if output_projection else nn.Identity()
        for projection in (self.query_proj, self.key_proj, self.value_proj, self.out_proj):
            if isinstance(projection, nn.Linear):
                nn.init.xavier_uniform_(projection.weight)
                if bias:
                    nn.init.zeros_(projection.bias)

    @classmethod
    def from_torch(
        cls, module: nn.MultiheadAttention, score: str | nn.Module = "scaled_dot", **options: Any
    ) -> "MultiHeadAttention":
        """Return a layer with the projections of PyTorch's layer; frozen parameters stay frozen.

        Args:
            module: PyTorch's layer, with `batch_first` True: inputs are (B, L, D).
            score: as in the constructor; the parameters of a score specified by name are newly
                initialised.
            **options: `normalizer`, `position_encoding` and options for the score.

        Raises:
            ConfigError: the module is not a `torch.nn.MultiheadAttention`, overrides its `forward`,
                has `batch_first` False, or was constructed with `add_bias_kv` or `add_zero_attn`.
        """
        layer = cls(score=score, **constructor_arguments(module), **options)
        # not strict: PyTorch's layer has no parameters of the score
        layer.load_state_dict(projections(module), strict=False)
        for name in frozen_parameters(module):
            layer.get_parameter(name).requires_grad_(False)
        return layer.train(module.training)

    def forward(
        self,
        query: Float[Tensor, "*B L Dq"],
        key: Float[Tensor, "*B T Dk"],
        value: Float[Tensor, "*B T Dv"] | None = None,
        key_padding_mask: Shaped[Tensor, "*B T"] | None = None,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = False,
        is_causal: bool = False,
        *,
        key_lengths: Int[Tensor, "*B"] | None = None,
    ) -> AttentionOutput:
        """Attend from `query` to `key` with every head, and combine the contexts.

        For unbatched input, the B axis is omitted from all arguments and from the result.

        Args:
            query: (B, L, D).
            key: (B, T, kdim).
            value: (B, T, vdim); the keys by default.
            key_padding_mask: bool (B, T), True = padding, ignored; or float, added to the scores,
                -inf = padding.
            need_weights: return the weights too.
            attn_mask: (L, T), (B, L, T), (B H, L, T) or (B, H, L, T); bool, True = may not attend;
                or float, added to the scores, -inf = may not attend.
            average_attn_weights: return the mean of the weights over the heads.
            is_causal: mask the keys after the query's position. With an `attn_mask`, this is only
                a hint that the mask is causal, and is ignored.
            key_lengths: int (B,), the number of real keys, as in `Attention`.

        Returns:
            The output (B, L, D), and the weights of every head (B, H, L, T), their mean (B, L, T), or
            None. Masks have the same effect as in `Attention`. If query and key are the same tensor,
            queries at padded positions that contain NaN or infinities are replaced with zeros.

        Raises:
            ShapeError: the shapes or dtypes are incompatible, or a tensor is nested; the message states
                which.
        """
        check_tensors(query, key, value)
        if query.dim() == key.dim() == 2:
            return unbatched(
                self.forward, query, key, value, key_padding_mask, key_lengths,
                need_weights=need_weights, attn_mask=attn_mask,
                average_attn_weights=average_attn_weights, is_causal=is_causal,
            )  # fmt: skip
        value = key if value is None else value
        self._check_rows(query, key, value)
        if is_causal and attn_mask is None:
            attn_mask = causal_mask(query.shape[1], query.device, key.shape[1])
        masks = resolve_masks(
            key, query.shape[1], key_padding_mask, attn_mask, key_lengths, self.num_heads
        )
        zeroed_queries = self._zeroed_queries(query, key, masks.padding)
        context, weights = self.attention.attend_masked(
            query, key, value, self._project, masks, need_weights, zeroed_queries
        )
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        return AttentionOutput(self.combine_heads(context), weights)

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        keys, values = self.project_key_value(key, value)
        return self.project_query(query), keys, values

    def _zeroed_queries(self, query: Tensor, key: Tensor, padding: Tensor | None) -> Tensor | None:
        """Return a mask (B, L) of the queries to replace with zeros; None if there are none."""
        if padding is None or query is not key:
            return None
        return padding if self.zero_padded_queries else padding & nonfinite_rows(query)

    def _check_rows(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        check_rows(query, key, value)
        widths = query.shape[-1], key.shape[-1], value.shape[-1]
        if widths != (self.embed_dim, self.kdim, self.vdim):
            raise ShapeError(
                f"MultiHeadAttention expects queries of width {self.embed_dim} and keys and "
                f"values of widths {self.kdim} and {self.vdim}, got query {shape(query)}, key "
                f"{shape(key)} and value {shape(value)}"
            )
        if type(self.query_proj) is nn.Linear:
            check_dtype(self.query_proj, query)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *others: Any, **options: Any
    ) -> None:
        rename_parameters(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *others, **options)

    def project_query(
        self, query: Float[Tensor, "B L D"], first: int = 0
    ) -> Float[Tensor, "B H L E"]:
        """Return the queries of every head; the first one is at position `first`."""
        return self._encode_positions(self._split_heads(self.query_proj(query)), first)

    def project_key_value(
        self, key: Float[Tensor, "B T Dk"], value: Float[Tensor, "B T Dv"], first: int = 0
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
    """Self-attention: queries, keys and values come from the same sequence.

        Q = X W_Q    K = X W_K    V = X W_V    softmax(Q K' / sqrt(D)) V

    Vaswani et al. 2017 (arXiv:1706.03762), section 3.2.3, with any score function. With one
    head, `bias=False` and `output_projection=False`, the layer computes exactly this equation.

    Args:
        embed_dim: width D of the vectors of the sequence.
        num_heads: number H of heads (default 1).
        causal: mask the positions after the query (default False).
        score: as in `MultiHeadAttention`.
        dropout: probability of dropping a weight in training.
        bias: add a bias to all projections (default True).
        output_projection: multiply the concatenated contexts by W_O (default True).
        normalizer: as in `Attention`.
        **options: further arguments for `MultiHeadAttention`.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int = 1,
        causal: bool = False,
        score: str | nn.Module = "scaled_dot",
        dropout: float = 0.0,
        *,
        bias: bool = True,
        output_projection: bool = True,
        normalizer: str = "softmax",
        **options: Any,
    ) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(
            embed_dim, num_heads, score, dropout, bias, normalizer=normalizer,
            output_projection=output_projection, **options,
        )  # fmt: skip
        self.attention.zero_padded_queries = True
        self.causal = causal

    def forward(
        self,
        x: Float[Tensor, "*B L D"],
        *,
        key_padding_mask: Shaped[Tensor, "*B L"] | None = None,
        attn_mask: Tensor | None = None,
        key_lengths: Int[Tensor, "*B"] | None = None,
        need_weights: bool = False,
        average_attn_weights: bool = False,
    ) -> AttentionOutput:
        """Attend within `x`, (B, L, D) or (L, D), with masks and result as in `MultiHeadAttention`.

        The content of padded positions is treated as zeros, in queries too, so NaN at these
        positions affects neither the output nor the gradients.
        """
        if self.causal and isinstance(attn_mask, Tensor):
            rows = x[None] if x.dim() == 2 else x
            check_mask(attn_mask, rows, rows.shape[1], self.attention.num_heads)
            future = causal_mask(rows.shape[1], x.device)
            is_bool = attn_mask.dtype == torch.bool
            attn_mask = attn_mask.masked_fill(future, True if is_bool else -torch.inf)
        return self.attention(
            x, x, key_padding_mask=key_padding_mask, attn_mask=attn_mask, key_lengths=key_lengths,
            need_weights=need_weights, average_attn_weights=average_attn_weights,
            is_causal=self.causal,
        )  # fmt: skip


def causal_mask(length: int, device: torch.device, keys: int | None = None) -> Bool[Tensor, "L T"]:
    """Return a mask that is True where the key comes after the query; `keys` defaults to `length`."""
    size = length, length if keys is None else keys
    return torch.ones(size, dtype=torch.bool, device=device).triu(1)


def _check_encoding(encoding: object) -> None:
    if not isinstance(encoding, HeadPositions):
        raise ConfigError(
            "position_encoding must be an encoding for heads, such as "
            f"regard.positions.RotaryPositions(), got {encoding!r}"
        )


def _head_score(
    score: str | nn.Module, heads: int, width: int, options: Mapping[str, Any]
) -> nn.Module:
    if isinstance(score, Score):
        row = torch.empty(1, 1, width)
        score.check(row, row)
    if not isinstance(score, str):
        check_no_options(score, options)
        return score
    entry = find_score(score)
    if entry.head_class is not None:
        for option in options:
            raise ConfigError(
                f"score {entry.name} does not accept options in multi-head attention, got {option}: "
                "the projections provide its W, U and bias"
            )
        return getattr(scores, entry.head_class)(heads, width)
    widths = dict(query_dim=width, key_dim=width, hidden_dim=width)
    for option in options:
        if option in widths:
            raise ConfigError(
                f"MultiHeadAttention sets {option} to the width of a head: leave it out, or set kdim "
                "or vdim for keys or values of a different width"
            )
    return make_score(score, **widths, **{**entry.model_options, **options})
