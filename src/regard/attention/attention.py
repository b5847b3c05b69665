"""Attention with one head: score, normalise, weighted sum, with masks and optional weights.

e_ti = score(s_t, h_i)        alpha_t = softmax(e_t)        c_t = sum_i alpha_ti h_i
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from regard.attention.masks import Masks, nonfinite_rows, resolve_masks, zero_rows
from regard.attention.score_modules import check_no_options, has_form, projects_separately
from regard.errors import ConfigError, ShapeError, not_one_of
from regard.kernels import additive
from regard.kernels.normalizers import NORMALIZERS
from regard.kernels.weighted_sum import (
    finite_bias,
    in_forward_mode,
    in_vmap,
    is_autocast_enabled,
    to_compute_dtype,
    weighted_sum,
    without_autocast,
)
from regard.scores import (
    InnerProductScore,
    PairwiseScore,
    Score,
    check_pair,
    make_score,
    shape,
)
from regard.setting_checks import is_number


class AttentionOutput(NamedTuple):
    """Context and attention weights."""

    context: Tensor
    """(B, L, Dv): the weighted sum of the values for every query."""
    weights: Tensor | None
    """(B, L, T) or, with heads, (B, H, L, T): the attention weights before dropout; None unless
    `need_weights` is True."""


class Attention(nn.Module):
    """Attend from queries to keys with any score function.

        Attention("additive", query_dim=256, key_dim=512, hidden_dim=256)

    Args:
        score: the name of a score function, a score module from this package, or any module with
            `forward(query, key) -> (B, L, T)`.
        normalizer: `softmax`, whose weights sum to 1; `sparsemax` (Martins and Astudillo 2016,
            arXiv:1602.02068) or `entmax15` (Peters et al. 2019, arXiv:1905.05702), whose weights
            also sum to 1 and are exactly 0 for low scores; or `none`, which uses the scores as
            weights.
        dropout: probability of dropping a weight in training; the remaining weights are scaled up
            (default 0).
        query_dim, key_dim, hidden_dim, **options: arguments for `make_score`, if `score` is a name.

    With softmax, all named scores except `additive` and `concat` use `scaled_dot_product_attention`
    unless weights are requested. On the CPU, it has no second derivatives: request the weights, or
    use it within `torch.nn.attention.sdpa_kernel(SDPBackend.MATH)`. The additive and concat scores
    are computed in bounded memory, forward and backward; an `attn_mask` of bool adds one byte for each
    of the B L T pairs, and with padding another; a float `attn_mask` also adds a copy of itself, and
    in the backward pass its gradient.

    Raises:
        ConfigError: the score, the normaliser or an option is unknown, a width is missing, or the
            dropout is not in [0, 1).
        ShapeError: the score needs equal widths, and `query_dim` and `key_dim` differ.
    """

    def __init__(
        self,
        score: str | nn.Module,
        normalizer: str = "softmax",
        dropout: float = 0.0,
        *,
        query_dim: int | None = None,
        key_dim: int | None = None,
        hidden_dim: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        widths = dict(query_dim=query_dim, key_dim=key_dim, hidden_dim=hidden_dim)
        if isinstance(score, str):
            score = make_score(score, **widths, **options)
        else:
            check_no_options(score, widths, options)
        if normalizer not in NORMALIZERS:
            raise not_one_of("normalizer", normalizer, NORMALIZERS)
        if not (is_number(dropout) and 0 <= float(dropout) < 1):
            raise ConfigError(f"dropout must be a number in [0, 1), got {dropout!r}")
        self.score = score
        self.normalizer = normalizer
        self.dropout = float(dropout)

    def forward(
        self,
        query: Float[Tensor, "*B L Dq"],
        key: Float[Tensor, "*B T Dk"],
        value: Float[Tensor, "*B T Dv"] | None = None,
        *,
        key_padding_mask: Bool[Tensor, "*B T"] | None = None,
        attn_mask: Tensor | None = None,
        key_lengths: Int[Tensor, "*B"] | None = None,
        need_weights: bool = False,
    ) -> AttentionOutput:
        """Attend from `query` to `key`, and return the weighted sums of `value`.

        For unbatched input, the B axis is omitted from all arguments and from the result: `query`
        (L, Dq), `key` (T, Dk), `value` (T, Dv), `key_padding_mask` (T,), `key_lengths` ().

        Args:
            query: (B, L, Dq).
            key: (B, T, Dk).
            value: (B, T, Dv); the keys by default.
            key_padding_mask: bool (B, T), True = padding, ignored.
            attn_mask: bool (L, T) or (B, L, T), True = may not attend; or float, added to the
                scores, -inf = may not attend.
            key_lengths: int (B,), the number of real keys, from 0 to T, as an alternative to a padding
                mask. On a GPU, under `torch.vmap` and when compiled, values outside this range are
                clamped to it instead of raising an error.
            need_weights: return the weights too.

        Returns:
            The context (B, L, Dv), and the weights (B, L, T) or None. A finite query whose keys are all
            masked gets a zero context, zero weights and zero gradients. The content of padded
            positions, including NaN and infinities, affects neither the output nor the gradients.
            If a key or value contains NaN or infinities and `attn_mask` masks it for only some of
            the queries, the other queries get NaN. This applies to the additive and concat scores,
            and to every score if weights are requested; otherwise, PyTorch's operator computes the
            result and propagates the NaN to every query of the batch item.

        Raises:
            ShapeError: the shapes or dtypes are incompatible; the message states them.
        """
        check_tensors(query, key, value)
        if query.dim() == key.dim() == 2:
            return unbatched(
                self.forward, query, key, value, key_padding_mask, key_lengths,
                attn_mask=attn_mask, need_weights=need_weights,
            )  # fmt: skip
        value = key if value is None else value
        check_rows(query, key, value)
        if isinstance(self.score, Score):
            self.score.check(query, key)
            check_dtype(self.score, query)
        masks = resolve_masks(key, query.shape[1], key_padding_mask, attn_mask, key_lengths)
        return self.attend_masked(
            query, key, value, lambda q, k, v: (q, self.project_key(k), v), masks, need_weights,
            masks.padding if query is key else None,
        )  # fmt: skip

    def attend_masked(
        self,
        query: Float[Tensor, "B L Dq"],
        key: Float[Tensor, "B T Dk"],
        value: Float[Tensor, "B T Dv"],
        project: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]],
        masks: Masks,
        need_weights: bool,
        zeroed_queries: Bool[Tensor, "B L"] | None,
    ) -> AttentionOutput:
        """Attend with the result of `project(query, key, value)`; masked content has no effect.

        Queries in `zeroed_queries` (the padding, where `query is key`) are replaced with zeros too:
        otherwise NaN times the zero gradient of their results would make the gradients of the
        projection NaN.
        With an `attn_mask`, rows of keys and values that are not finite are replaced with zeros, and
        the result of every query that may attend to one of them is NaN. No control flow depends on
        the values of the masks, so the call can be transformed, compiled and exported.
        """
        zeroed, nonfinite = masks.masked_keys, None
        if zeroed is not None and masks.per_query and not self._uses_sdpa(need_weights):
            nonfinite = nonfinite_rows(key) if value is key else nonfinite_rows(key, value)
            zeroed = zeroed | nonfinite
        if zeroed is not None:  # a weight of 0 is not enough, as 0 x NaN is NaN
            rows = zero_rows(key, zeroed)
            if zeroed_queries is not None:
                query = rows if zeroed_queries is zeroed else zero_rows(query, zeroed_queries)
            value = rows if value is key else zero_rows(value, zeroed)
            key = rows
        queries, keys, values = project(query, key, value)
        output = self.attend(queries, keys, values, masks.masked, masks.bias, need_weights)
        if nonfinite is None or masks.masked is None:
            return output
        nonfinite = nonfinite[:, None] if queries.dim() == 3 else nonfinite[:, None, None]
        return _nan_where_attended(output, nonfinite, masks.masked)

    def project_key(self, key: Float[Tensor, "*n T Dk"]) -> Float[Tensor, "*n T E"]:
        """Return the keys that `attend` expects, computed once per source."""
        return self.score.project_key(key) if projects_separately(self.score) else key

    def prepare_keys(
        self, keys: Float[Tensor, "*n T E"]
    ) -> Float[Tensor, "*n T E"] | additive.AdditiveKeys:
        """Prepare keys from `project_key` for repeated calls to `attend`."""
        return additive.prepare_keys(keys) if has_form(self.score, PairwiseScore) else keys

    def attend(
        self,
        query: Float[Tensor, "*n L Dq"],
        keys: Float[Tensor, "*n T E"] | additive.AdditiveKeys,
        values: Float[Tensor, "*n T Dv"],
        masked: Bool[Tensor, "*#n #L T"] | None = None,
        bias: Float[Tensor, "*#n #L T"] | None = None,
        need_weights: bool = False,
    ) -> AttentionOutput:
        """Compute scores, weights and contexts, with a single boolean mask (True = masked).

        Keys come from `project_key`, or from `prepare_keys` if many calls share them. The
        inputs may have a head axis: (B, H, L, Dq), (B, H, T, E), (B, H, T, Dv).
        """
        score, dropout = self.score, self.dropout if self.training else 0.0
        if has_form(score, PairwiseScore):
            projected = keys if isinstance(keys, Tensor) else keys.projected
            output = additive.attend(
                score.project_query(query), keys, score.vectors(projected), values, masked, bias,
                self.normalizer, dropout, need_weights,
            )  # fmt: skip
            return AttentionOutput(output.context, output.weights)
        assert isinstance(keys, Tensor)
        if has_form(score, InnerProductScore) and self._uses_sdpa(need_weights):
            queries = score.project_query(query).to(keys.dtype)
            return AttentionOutput(_sdpa(queries, keys, values, masked, bias, dropout), None)
        scores = self.scores(query, keys)
        context, weights = weighted_sum(scores, values, masked, bias, self.normalizer, dropout)
        return AttentionOutput(context, weights if need_weights else None)

    def _uses_sdpa(self, need_weights: bool) -> bool:
        return (
            has_form(self.score, InnerProductScore)
            and self.normalizer == "softmax"
            and not need_weights
            # PyTorch's operator has no forward-mode derivative and no batching rule
            and not (in_forward_mode() or in_vmap())
        )

    def scores(
        self, query: Float[Tensor, "*n L Dq"], keys: Float[Tensor, "*n T E"]
    ) -> Float[Tensor, "*n L T"]:
        """Return the scores of every query with every key from `project_key`, without masks.

        Raises:
            ShapeError: the score is a module that returns another shape.
        """
        score = self.score
        if projects_separately(score):
            return score.compare(score.project_query(query), keys)
        heads = query.shape[:-2]
        query, keys = query.flatten(0, -3), keys.flatten(0, -3)
        scores = score(query, keys)
        expected = *query.shape[:2], keys.shape[1]
        if not isinstance(scores, Tensor) or scores.shape != expected:
            given = shape(scores) if isinstance(scores, Tensor) else type(scores).__name__
            raise ShapeError(
                f"the score function {type(score).__name__} must return scores of shape (B, L, T) = "
                f"{tuple(expected)}, got {given}"
            )
        return scores if len(heads) == 1 else scores.unflatten(0, heads)


def unbatched(
    forward: Callable[..., AttentionOutput],
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    key_padding_mask: Tensor | None,
    key_lengths: Tensor | None,
    **others: Any,
) -> AttentionOutput:
    """Call `forward` with a batch of one item, and return the result without the batch axis."""
    keys = key[None]
    try:
        output = forward(
            keys if query is key else query[None],
            keys,
            keys if value is None or value is key else value[None],
            key_padding_mask=_with_batch_axis(key_padding_mask),
            key_lengths=_with_batch_axis(key_lengths),
            **others,
        )
    except ShapeError as error:
        raise ShapeError(
            f"{error} (B = 1 was added: query {shape(query)} and key {shape(key)} have no batch axis)"
        ) from None
    return AttentionOutput(output.context[0], None if output.weights is None else output.weights[0])


def _with_batch_axis(mask: Tensor | None) -> Tensor | None:
    """Return a mask with B = 1; what is no tensor is left for `resolve_masks` to refuse."""
    return mask[None] if isinstance(mask, Tensor) else mask


def check_tensors(query: Any, key: Any, value: Any) -> None:
    """Raise a ShapeError unless query and key are tensors, and value is one or None."""
    if not (isinstance(query, Tensor) and isinstance(key, Tensor)) or not isinstance(
        value, Tensor | None
    ):
        types = ", ".join(type(rows).__name__ for rows in (query, key, value))
        raise ShapeError(f"expected query, key and value to be tensors, got {types}")


def check_dtype(layer: nn.Module, query: Tensor) -> None:
    """Raise a ShapeError if the matrix of a layer does not have the dtype of the queries, unless autocast converts both."""
    weight = next((weight for weight in layer.parameters() if weight.dim() > 1), None)
    if weight is None or not weight.is_floating_point() or weight.dtype == query.dtype:
        return
    # autocast does not convert float64
    if torch.float64 in (weight.dtype, query.dtype) or not is_autocast_enabled(query.device):
        raise ShapeError(
            f"the parameters have dtype {weight.dtype}, and query {query.dtype}: convert the layer (layer.to(dtype)) "
            "or the input"
        )


def check_rows(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Raise a ShapeError unless query, key and value fit together."""
    if query.is_nested or key.is_nested or value.is_nested:
        raise ShapeError(
            "attention does not accept nested tensors: pass padded tensors and key_lengths, or pass "
            "enable_nested_tensor=False to torch.nn.TransformerEncoder"
        )
    check_pair(query, key)
    if value.device != key.device:
        raise ShapeError(f"expected value on the device of key, {key.device}, got {value.device}")
    if value.dim() != 3 or value.shape[:2] != key.shape[:2]:
        raise ShapeError(
            f"expected value of shape (B, T, Dv) with the same B and T as key, got value "
            f"{shape(value)} and key {shape(key)}"
        )
    dtypes = f"{query.dtype}, {key.dtype} and {value.dtype}"
    if not all(rows.is_floating_point() for rows in (query, key, value)):
        raise ShapeError(
            f"expected query, key and value to have a floating-point dtype, got {dtypes}"
        )
    mixed = {query.dtype, key.dtype, value.dtype}
    # autocast does not convert float64
    if len(mixed) > 1 and (torch.float64 in mixed or not is_autocast_enabled(query.device)):
        raise ShapeError(
            f"expected query, key and value to have the same dtype, got {dtypes}; convert them first"
        )


def _nan_where_attended(
    output: AttentionOutput, nonfinite: Tensor, masked: Tensor
) -> AttentionOutput:
    """Set the result of each query with an unmasked nonfinite key to NaN; masked weights stay 0."""
    attended = torch.gt(nonfinite, masked).any(-1, keepdim=True)
    # NaN is added, so that gradients do not depend on it
    context = output.context + torch.zeros_like(attended, dtype=output.context.dtype).masked_fill(
        attended, torch.nan
    )
    weights = output.weights
    if weights is not None:
        weights = weights.masked_fill(torch.gt(attended, masked), torch.nan)
    return AttentionOutput(context, weights)


def _sdpa(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    masked: Tensor | None,
    bias: Tensor | None,
    dropout: float,
) -> Tensor:
    """Call PyTorch's operator on projected inputs; True in its boolean mask means "may attend"."""
    dtype, one_head = values.dtype, queries.dim() == 3
    rows = [queries, keys, values.to(keys.dtype)]
    if queries.device.type == "cpu":  # half precision is four times slower on short sequences
        rows = [to_compute_dtype(row) for row in rows]
    mask = None if masked is None else ~masked
    if bias is not None:
        bias = finite_bias(bias, rows[0].dtype).to(rows[0].dtype)
        mask = bias if masked is None else bias.masked_fill(masked, -torch.inf)
    if mask is not None:
        mask = mask.expand(*mask.shape[:-2], queries.shape[-2], -1)
        mask = mask[:, None] if one_head else mask
    query, key, value = (row[:, None] if one_head else row for row in rows)
    with without_autocast(queries.device):
        context = functional.scaled_dot_product_attention(
            query, key, value, mask, dropout, scale=1.0
        )
    return (context[:, 0] if one_head else context).to(dtype)
