"""Attention: score, mask, normalise, average; one function with and without weights.

    e_ti = score(s_t, h_i)        alpha_t = softmax(e_t)        c_t = sum_i alpha_ti h_i

Masks are boolean with True = padding / may not be attended to, the names and the polarity of
`torch.nn.MultiheadAttention` (and the opposite of `scaled_dot_product_attention`).
"""

import dataclasses
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from regard.errors import ConfigError, ShapeError
from regard.kernels import additive, eager
from regard.scores import InnerScore, PairwiseScore, Score, check_pair, shape

NORMALIZERS: tuple[str, ...] = ("softmax", "none")
"""What can turn scores into weights."""


class Attended(NamedTuple):
    """What looking at the source gives."""

    context: Tensor
    """(B, L, Dv): for every query the weighted average of the values."""
    weights: Tensor | None
    """(B, L, T): where every query looked (before dropout); None unless asked for."""


@dataclasses.dataclass(frozen=True)
class Memory:
    """One batch of encoded sources, with all that is computed once per source."""

    states: Tensor
    """(B, T, Dk): the encoder's states."""
    padding: Tensor
    """(B, T), bool: True where the source has ended."""
    final: Tensor
    """(B, F): the encoder's final state, all that a decoder without attention sees."""
    keys: tuple[Tensor, ...] = ()
    """(B, T, E) for every attention that looks at the source: its projected keys."""
    exponentials: tuple[Tensor | None, ...] = ()
    """(B, T, E) for every attention with a pairwise score: the exponentials of those keys."""

    def select(self, items: Int[Tensor, " N"]) -> "Memory":
        """The memory of these sources alone, in this order."""
        return Memory(
            states=self.states[items],
            padding=self.padding[items],
            final=self.final[items],
            keys=tuple(keys[items] for keys in self.keys),
            exponentials=tuple(each if each is None else each[items] for each in self.exponentials),
        )


class Attention(nn.Module):
    """Look from every query at all keys, with any score.

    Args:
        score: a score of this package, or any module with `forward(query, key) -> (B, L, T)`.
        normalizer: `softmax` (weights of a row sum to 1) or `none` (raw scores as weights).
        dropout: share of weights dropped in training, the others scaled up (default 0).

    An inner score without weights runs on `scaled_dot_product_attention`; a pairwise score runs in
    bounded memory, forward and backward.

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
    ) -> Attended:
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
        self._check(query, key, value)
        padding = _padding(key, key_padding_mask, key_lengths)
        masked, bias = _split_mask(attn_mask, query, key)
        if padding is not None:
            hidden = padding if masked is None else padding | masked.all(dim=-2)
            masked = padding[:, None] if masked is None else masked | padding[:, None]
        elif masked is not None:
            hidden = masked.all(dim=-2).expand(key.shape[0], -1)
        else:
            hidden = None
        if hidden is not None:
            # a key that nobody may see is replaced before any arithmetic: 0 x NaN would be NaN
            key, value = _without(key, hidden), _without(value, hidden)
        if attn_mask is not None and not (isinstance(self.score, InnerScore) and not need_weights):
            broken = ~(key.isfinite().all(-1) & value.isfinite().all(-1))
            if bool(broken.any()):
                return self._look_around(query, key, value, broken, masked, bias, need_weights)
        keys = self.project_key(key)
        return self.look(query, keys, value, masked, bias, need_weights)

    def project_key(self, key: Float[Tensor, "B T Dk"]) -> Float[Tensor, "B T E"]:
        """What `look` takes as keys, computed once per source."""
        return self.score.project_key(key) if isinstance(self.score, Score) else key

    def exponentials(self, keys: Float[Tensor, "B T E"]) -> Float[Tensor, "B T E"] | None:
        """What a pairwise score needs of the projected keys at every look; None for other scores."""
        return additive.exponentials(keys) if isinstance(self.score, PairwiseScore) else None

    def look(
        self,
        query: Float[Tensor, "B L Dq"],
        keys: Float[Tensor, "B T E"],
        values: Float[Tensor, "B T Dv"],
        masked: Bool[Tensor, "#B #L T"] | None = None,
        bias: Float[Tensor, "#B L T"] | None = None,
        need_weights: bool = False,
        exponentials: Float[Tensor, "B T E"] | None = None,
    ) -> Attended:
        """The three moves, for keys from `project_key` and one boolean mask (True = masked).

        `exponentials` come from the method of that name, for keys that are looked at many times.
        """
        score, dropout = self.score, self.dropout if self.training else 0.0
        if isinstance(score, PairwiseScore):
            queries, vector = score.project_query(query), score.vector.to(keys.dtype)
            looked = additive.attend(
                queries, keys, vector, values, masked, bias, self.normalizer, dropout, need_weights,
                exponentials=exponentials,
            )  # fmt: skip
            return Attended(looked.context, looked.weights)
        if isinstance(score, InnerScore) and self.normalizer == "softmax" and not need_weights:
            queries = score.project_query(query).to(keys.dtype)
            return Attended(_dot_attention(queries, keys, values, masked, bias, dropout), None)
        scores = (
            score.compare(score.project_query(query), keys)
            if isinstance(score, Score)
            else score(query, keys)
        )
        context, weights = eager.average(scores, values, masked, bias, self.normalizer, dropout)
        return Attended(context, weights if need_weights else None)

    def _look_around(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        broken: Tensor,
        masked: Tensor | None,
        bias: Tensor | None,
        need_weights: bool,
    ) -> Attended:
        """Keep NaN and infinite keys from the queries that do not see them.

        The moves run on clean keys and values; what the broken ones give is put in as constants,
        for the queries that see them alone.
        """
        clean_key, clean_value = _without(key, broken), _without(value, broken)
        with torch.no_grad():
            raw = self.score(query, key)
        scores = torch.where(broken[:, None], raw, self.score(query, clean_key))
        dropout = self.dropout if self.training else 0.0
        context, weights = eager.average(
            scores, clean_value, masked, bias, self.normalizer, dropout
        )
        seen = broken[:, None] if masked is None else broken[:, None] & ~masked
        with torch.no_grad():
            spoilt = torch.bmm(weights, value) - context
        context = context + torch.where(seen.any(-1, keepdim=True), spoilt, 0)
        return Attended(context, weights if need_weights else None)

    def _check(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        check_pair(query, key)
        if value.dim() != 3 or value.shape[:2] != key.shape[:2]:
            raise ShapeError(
                f"expected value (B, T, Dv) with the B and T of the keys, got value {shape(value)} "
                f"and key {shape(key)}"
            )
        if isinstance(self.score, Score):
            self.score.check(query, key)
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
        mask = mask.expand(-1, queries.shape[1], -1)[:, None]
        mask = mask.to(queries.dtype) if mask.is_floating_point() else mask
    return functional.scaled_dot_product_attention(
        queries[:, None], keys[:, None], values.to(keys.dtype)[:, None], mask, dropout, scale=1.0
    )[:, 0].to(values.dtype)


def padding_from_lengths(lengths: Int[Tensor, " B"], width: int) -> Bool[Tensor, "B T"]:
    """True at the positions from each length on, over `width` positions."""
    return torch.arange(width, device=lengths.device) >= lengths[:, None]


def _padding(
    key: Tensor, key_padding_mask: Tensor | None, key_lengths: Tensor | None
) -> Tensor | None:
    batch, width = key.shape[:2]
    if key_padding_mask is not None and key_lengths is not None:
        raise ShapeError("key_padding_mask and key_lengths say the same: give one of them")
    if key_padding_mask is not None:
        if key_padding_mask.dtype != torch.bool or key_padding_mask.shape != (batch, width):
            raise ShapeError(
                f"expected key_padding_mask of bool (B, T) = {(batch, width)}, True = padding, got "
                f"{key_padding_mask.dtype} {shape(key_padding_mask)}"
            )
        return key_padding_mask
    if key_lengths is None:
        return None
    dtype = key_lengths.dtype
    if key_lengths.shape != (batch,) or dtype == torch.bool or dtype.is_floating_point:
        raise ShapeError(
            f"expected key_lengths of int (B,) = {(batch,)}, got {dtype} {shape(key_lengths)}"
        )
    return padding_from_lengths(key_lengths, width)


def _split_mask(
    attn_mask: Tensor | None, query: Tensor, key: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """What is masked, and what is added to the scores; both with three axes."""
    if attn_mask is None:
        return None, None
    batch, length, width = *query.shape[:2], key.shape[1]
    if attn_mask.shape not in ((length, width), (batch, length, width)):
        raise ShapeError(
            f"expected attn_mask (L, T) = {(length, width)} or (B, L, T) = "
            f"{(batch, length, width)}, got {shape(attn_mask)}"
        )
    mask = attn_mask if attn_mask.dim() == 3 else attn_mask[None]
    if mask.dtype == torch.bool:
        return mask, None
    if not mask.is_floating_point():
        raise ShapeError(
            f"expected attn_mask of bool (True = may not attend) or float, got {mask.dtype}"
        )
    masked = mask == -torch.inf
    # the -inf are in `masked` now; left in the sum they would make NaN of an infinite score
    return masked, mask.masked_fill(masked, 0)


def _without(rows: Tensor, hidden: Tensor) -> Tensor:
    return rows.masked_fill(hidden[..., None], 0)
