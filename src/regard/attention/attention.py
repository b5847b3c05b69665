"""Attention with one head: score, mask, normalise, average; one function with and without weights.

e_ti = score(s_t, h_i)        alpha_t = softmax(e_t)        c_t = sum_i alpha_ti h_i
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from regard.attention.masks import Masks, read_masks, without
from regard.errors import ConfigError, ShapeError
from regard.kernels import additive
from regard.kernels.normalizers import NORMALIZERS
from regard.kernels.precision import to_compute_dtype
from regard.kernels.weighted_sum import weighted_sum
from regard.scores import InnerProductScore, PairwiseScore, Score, check_pair, shape


class AttentionOutput(NamedTuple):
    """What looking at the source gives."""

    context: Tensor
    """(B, L, Dv): for every query the weighted average of the values."""
    weights: Tensor | None
    """(B, L, T), with heads (B, H, L, T): where every query looked (before dropout); None unless
    asked for."""


class Attention(nn.Module):
    """Look from every query at all keys, with any score.

    Args:
        score: a score of this package, or any module with `forward(query, key) -> (B, L, T)`.
        normalizer: `softmax` (weights of a row sum to 1), `sparsemax` (Martins and Astudillo 2016,
            arXiv:1602.02068) and `entmax15` (Peters et al. 2019, arXiv:1905.05702), whose weights
            sum to 1 too and are exactly 0 where the score is low, or `none` (raw scores as weights).
        dropout: share of weights dropped in training, the others scaled up (default 0).

    An inner score without weights runs on `scaled_dot_product_attention` for softmax; a pairwise
    score runs in bounded memory, forward and backward.

    Raises:
        ConfigError: the normaliser is unknown or the dropout is not in [0, 1).
    """

    def __init__(self, score: nn.Module, normalizer: str = "softmax", dropout: float = 0.0) -> None:
        super().__init__()
        if normalizer not in NORMALIZERS:
            raise ConfigError(
                f"no normaliser is named {normalizer!r}; choose one of {', '.join(NORMALIZERS)}"
            )
        if not 0 <= dropout < 1:
            raise ConfigError(f"dropout must lie in [0, 1), got {dropout}")
        self.score = score
        self.normalizer = normalizer
        self.dropout = dropout

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
        """Attend from `query` to `key`, and average `value`.

        Args:
            query: (B, L, Dq).
            key: (B, T, Dk).
            value: (B, T, Dv), what is averaged; the keys themselves by default.
            key_padding_mask: bool (B, T), True = padding, ignored.
            attn_mask: bool (L, T) or (B, L, T), True = may not attend; or float, added to the
                scores, -inf = may not attend.
            key_lengths: int (B,), the number of real keys, instead of a padding mask.
            need_weights: give the weights too.

        Returns:
            The context (B, L, Dv), and the weights (B, L, T) or None. A query that may attend to
            nothing gets a zero context, zero weights and zero gradients. What padding contains
            never matters, NaN and infinities included, forward and backward. A NaN in a key that
            `attn_mask` hides from some queries reaches only the queries that see it, for pairwise
            scores and whenever weights are asked for; PyTorch's own operator, which serves inner
            scores without weights, lets it reach every query of its batch item.

        Raises:
            ShapeError: shapes or dtypes do not fit; the message names them.
        """
        value = key if value is None else value
        check_rows(query, key, value)
        score = self.score
        if isinstance(score, Score):
            score.check(query, key)
        masks = read_masks(key, query.shape[1], key_padding_mask, attn_mask, key_lengths)
        key, value = masks.clean(key), masks.clean(value)
        broken = self.nonfinite_keys(key, value, attn_mask, need_weights)
        if broken is None:
            return self.attend(
                query, self.project_key(key), value, masks.masked, masks.bias, need_weights
            )
        keys = self.project_key(key), self.project_key(without(key, broken))
        values = value, without(value, broken)
        return self.attend_nonfinite(query, keys, values, broken[:, None], masks, need_weights)

    def project_key(self, key: Float[Tensor, "*n T Dk"]) -> Float[Tensor, "*n T E"]:
        """Return the keys that `attend` takes, computed once per source."""
        return self.score.project_key(key) if isinstance(self.score, Score) else key

    def prepare_keys(
        self, keys: Float[Tensor, "*n T E"]
    ) -> Float[Tensor, "*n T E"] | additive.AdditiveKeys:
        """Prepare keys from `project_key` for many calls of `attend`."""
        return additive.prepare_keys(keys) if isinstance(self.score, PairwiseScore) else keys

    def attend(
        self,
        query: Float[Tensor, "*n L Dq"],
        keys: Float[Tensor, "*n T E"] | additive.AdditiveKeys,
        values: Float[Tensor, "*n T Dv"],
        masked: Bool[Tensor, "*#n #L T"] | None = None,
        bias: Float[Tensor, "*#n #L T"] | None = None,
        need_weights: bool = False,
    ) -> AttentionOutput:
        """Score, normalise and sum the values, with one boolean mask (True = masked).

        Keys come from `project_key`, or from `prepare_keys` where many calls share them. Rows may
        have a head axis: (B, H, L, Dq), (B, H, T, E), (B, H, T, Dv).
        """
        score, dropout = self.score, self.dropout if self.training else 0.0
        if isinstance(score, PairwiseScore):
            projected = keys if isinstance(keys, Tensor) else keys.projected
            output = additive.attend(
                score.project_query(query), keys, score.vectors(projected), values, masked, bias,
                self.normalizer, dropout, need_weights,
            )  # fmt: skip
            return AttentionOutput(output.context, output.weights)
        assert isinstance(keys, Tensor)
        if isinstance(score, InnerProductScore) and self._is_plain_dot(need_weights):
            queries = score.project_query(query).to(keys.dtype)
            return AttentionOutput(
                _dot_attention(queries, keys, values, masked, bias, dropout), None
            )
        scores = self._scores(query, keys)
        context, weights = weighted_sum(scores, values, masked, bias, self.normalizer, dropout)
        return AttentionOutput(context, weights if need_weights else None)

    def nonfinite_keys(
        self, key: Tensor, value: Tensor, attn_mask: Tensor | None, need_weights: bool
    ) -> Bool[Tensor, "B T"] | None:
        """The keys that hold NaN or infinities, where they must be kept from some queries."""
        if attn_mask is None or self._is_plain_dot(need_weights):
            return None
        broken = ~(key.isfinite().all(-1) & value.isfinite().all(-1))
        return broken if bool(broken.any()) else None

    def attend_nonfinite(
        self,
        query: Tensor,
        keys: tuple[Tensor, Tensor],
        values: tuple[Tensor, Tensor],
        broken: Bool[Tensor, "*#n 1 T"],
        masks: Masks,
        need_weights: bool,
    ) -> AttentionOutput:
        """Keep NaN and infinite keys from the queries that do not see them.

        Keys and values come twice: as they are, and with zeros for the broken ones. The moves run on
        the latter; what the broken ones give is put in as constants, for the queries that see them.
        """
        with torch.no_grad():
            raw = self._scores(query, keys[0])
        scores = torch.where(broken, raw, self._scores(query, keys[1]))
        dropout = self.dropout if self.training else 0.0
        context, weights = weighted_sum(
            scores, values[1], masks.masked, masks.bias, self.normalizer, dropout
        )
        seen = broken if masks.masked is None else broken & ~masks.masked
        with torch.no_grad():
            spoilt = weights @ values[0] - context
        context = context + torch.where(seen.any(-1, keepdim=True), spoilt, 0)
        return AttentionOutput(context, weights if need_weights else None)

    def _is_plain_dot(self, need_weights: bool) -> bool:
        return (
            isinstance(self.score, InnerProductScore)
            and self.normalizer == "softmax"
            and not need_weights
        )

    def _scores(self, query: Tensor, keys: Tensor) -> Tensor:
        score = self.score
        if isinstance(score, Score):
            return score.compare(score.project_query(query), keys)
        if query.dim() == 3:
            return score(query, keys)
        return score(query.flatten(0, 1), keys.flatten(0, 1)).unflatten(0, query.shape[:2])


def check_rows(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Raise a ShapeError unless query, key and value fit together."""
    check_pair(query, key)
    if value.dim() != 3 or value.shape[:2] != key.shape[:2]:
        raise ShapeError(
            f"expected value (B, T, Dv) with the B and T of the keys, got value {shape(value)} "
            f"and key {shape(key)}"
        )
    if not torch.is_autocast_enabled(query.device.type) and (
        not query.dtype == key.dtype == value.dtype
    ):
        raise ShapeError(
            f"expected query, key and value of one dtype, got {query.dtype}, {key.dtype} and "
            f"{value.dtype}; convert them first"
        )


def _dot_attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    masked: Tensor | None,
    bias: Tensor | None,
    dropout: float,
) -> Tensor:
    """PyTorch's own operator on rows that are transformed already; its True means "takes part"."""
    if bias is not None:
        mask = bias if masked is None else bias.masked_fill(masked, -torch.inf)
    else:
        mask = None if masked is None else ~masked
    if mask is not None:
        mask = mask.expand(*mask.shape[:-2], queries.shape[-2], -1)
    dtype = values.dtype
    rows = [queries, keys, values.to(keys.dtype)]
    if queries.device.type == "cpu":  # half precisions are four times slower on short rows
        rows = [to_compute_dtype(each) for each in rows]
    if mask is not None and mask.is_floating_point():
        mask = mask.to(rows[0].dtype)
    if queries.dim() == 3:  # one head
        rows = [each[:, None] for each in rows]
        mask = None if mask is None else mask[:, None]
    with torch.autocast(queries.device.type, enabled=False):
        context = functional.scaled_dot_product_attention(
            rows[0], rows[1], rows[2], mask, dropout, scale=1.0
        )
    return (context if queries.dim() == 4 else context[:, 0]).to(dtype)
