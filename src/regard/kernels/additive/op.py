"""Additive attention as one operator: v . tanh(a + b), its softmax and its average, in bounded memory.

    e_ti = v . tanh(a_t + b_i)        alpha_t = softmax(e_t)        c_t = sum_i alpha_ti h_i

Bahdanau et al. 2015 (arXiv:1409.0473), A.1.2; `a` is their W_a s_{t-1}, `b` their U_a h_i. One door
for every caller: `autograd.py` gives it gradients and makes it an operator of PyTorch, `blocks.py`
bounds the memory, `dispatch.py` says who computes. Half precisions are computed in float32 and rounded
once.
"""

import dataclasses
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.errors import ConfigError
from regard.kernels import eager
from regard.kernels.additive import autograd, blocks, dispatch
from regard.kernels.eager import WORKSPACE


class AdditiveOutput(NamedTuple):
    """What looking with additive scores gives."""

    context: Tensor
    """(B, L, Dv) or (B, H, L, Dv): for every query the weighted average of the values."""
    weights: Tensor | None
    """(B, L, T) or (B, H, L, T): before dropout; None unless asked for."""
    log_sum_exp: Tensor | None
    """(B, L) or (B, H, L): log of the partition function, -inf for a row with every key masked;
    None unless asked for."""


@dataclasses.dataclass(frozen=True)
class AdditiveKeys:
    """Projected keys, with what the backend precomputes from them for repeated use."""

    projected: Tensor
    """(B, T, D) or (B, H, T, D)."""
    prepared: Tensor | None = None
    """Of the same shape, without a gradient; None where the backend precomputes nothing."""

    def __getitem__(self, items: Tensor) -> "AdditiveKeys":
        """Return the keys of the selected batch items."""
        prepared = None if self.prepared is None else self.prepared[items]
        return AdditiveKeys(self.projected[items], prepared)


def prepare_keys(b: Float[Tensor, "*n T D"]) -> AdditiveKeys:
    """Precompute what `scores` and `attend` need of keys that many calls share."""
    return AdditiveKeys(b, dispatch.prepare_keys(eager.to_compute_dtype(b.detach())))


def scores(
    a: Float[Tensor, "*n L D"],
    b: Float[Tensor, "*n T D"] | AdditiveKeys,
    v: Float[Tensor, "*h D"],
    workspace: int = WORKSPACE,
) -> Float[Tensor, "*n L T"]:
    """e_ti = v . tanh(a_t + b_i), (B, L, T); with a head axis (B, H, L, D), (B, H, T, D), (H, D).

    Args:
        a: transformed queries.
        b: projected keys, or the result of `prepare_keys`.
        v: the vector that sums the features, one per head.
        workspace: bound in bytes on what is held beyond inputs, outputs and rows of their size.
    """
    dtype = a.dtype
    b, prepared = _unpack(b)
    with eager.without_autocast(a.device):
        a, b, v = eager.to_compute_dtype(a), eager.to_compute_dtype(b), eager.to_compute_dtype(v)
        powers = None if prepared is None else blocks.flat(prepared)
        rows = blocks.flat(a), blocks.flat(b), v if v.dim() == 2 else v[None]
        return autograd.scores(*rows, powers, workspace).view(*a.shape[:-1], b.shape[-2]).to(dtype)


def _unpack(b: Tensor | AdditiveKeys) -> tuple[Tensor, Tensor | None]:
    return (b.projected, b.prepared) if isinstance(b, AdditiveKeys) else (b, None)


def attend(
    a: Float[Tensor, "*n L D"],
    b: Float[Tensor, "*n T D"] | AdditiveKeys,
    v: Float[Tensor, "*h D"],
    values: Float[Tensor, "*n T Dv"],
    masked: Bool[Tensor, "*m #L T"] | None = None,
    bias: Float[Tensor, "*m2 L T"] | None = None,
    normalizer: str = "softmax",
    dropout: float = 0.0,
    need_weights: bool = False,
    need_log_sum_exp: bool = False,
    workspace: int = WORKSPACE,
) -> AdditiveOutput:
    """Look with `v . tanh(a + b)`: the context, and the weights where they are asked for.

    Args:
        a: transformed queries, (B, L, D) or with heads (B, H, L, D).
        b: projected keys, (B, T, D) or (B, H, T, D), or the result of `prepare_keys`.
        v: the vector that sums the features, (D,) or (H, D).
        values: what is averaged, (B, T, Dv) or (B, H, T, Dv).
        masked: True = may not be attended to; with as many axes as `a`, those of size 1 serve all.
        bias: added to the scores; with as many axes as `a`.
        normalizer: one of `eager.NORMALIZERS`.
        dropout: share of weights dropped, the others scaled up.
        need_weights: give the weights too; they are held whole then.
        need_log_sum_exp: give the log of the partition function too, for `softmax`.
        workspace: bound in bytes on what is held beyond inputs, outputs, their gradients and rows
            of their size (exponentials), forward and backward, unless weights are asked for.

    A masked pair never matters, whatever its score, forward and backward. Values of keys that some
    queries may not see must be finite.
    """
    if need_log_sum_exp and normalizer != "softmax":
        raise ConfigError(f"the normaliser {normalizer!r} has no log-sum-exp; softmax has")
    dtype = values.dtype
    b, prepared = _unpack(b)
    with eager.without_autocast(a.device):
        a, b, v, values = (eager.to_compute_dtype(rows) for rows in (a, b, v, values))
        room = blocks.rows_at_once(b, normalizer, dropout, workspace)
        if need_weights or not b.shape[-2] or a.shape[:-1].numel() <= room:
            pairs = scores(a, AdditiveKeys(b, prepared), v, workspace)
            context, weights = eager.average(pairs, values, masked, bias, normalizer, dropout)
            total = autograd.log_sum_exp(pairs, masked, bias) if need_log_sum_exp else None
            return AdditiveOutput(
                context.to(dtype), weights.to(dtype) if need_weights else None, total
            )
        seed = torch.randint(2**62, ()) if dropout > 0 else None
        given: Any = a, b, values, masked, bias, prepared
        if a.dim() == 3:
            given = tuple(tensor if tensor is None else tensor[:, None] for tensor in given)
        a, b, values, masked, bias, prepared = given
        vectors = v if v.dim() == 2 else v[None]
        context, total = autograd.attention(
            a, b, vectors, values, masked, bias, prepared, seed, normalizer, dropout, workspace
        )  # fmt: skip
        if v.dim() == 1:
            context, total = context[:, 0], total[:, 0]
        return AdditiveOutput(context.to(dtype), None, total if need_log_sum_exp else None)
