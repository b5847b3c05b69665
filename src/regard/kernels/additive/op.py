"""Additive attention as one operator: v . tanh(a + b), softmax and weighted sum in bounded memory.

    e_ti = v . tanh(a_t + b_i)        alpha_t = softmax(e_t)        c_t = sum_i alpha_ti h_i

Bahdanau et al. 2015 (arXiv:1409.0473), A.1.2; `a` is their W_a s_{t-1}, `b` their U_a h_i.
`autograd.py` adds gradients and registers PyTorch operators, `blocks.py` bounds the memory,
`dispatch.py` selects the backend. Half-precision inputs are computed in float32 and rounded once.

The error of a score is absolute, in units of u = eps sum_d |v_d|, with eps = 2^-23 for float32.
Measured for widths from 4 to 512: at most 3.1 u in the CPU kernels for normally distributed v, 8.2 u
where the elements of v differ by orders of magnitude, and 8.6 u where PyTorch's operators compute it.
The error of the gradients of a and b is a few eps |v_d| times the sum of the |gradients| of the scores
that depend on the row. Scores much smaller than u, as for queries and keys near 0, have no correct digits.
"""

import dataclasses
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.errors import ConfigError, ShapeError
from regard.kernels.additive import autograd, blocks, dispatch
from regard.kernels.weighted_sum import to_compute_dtype, weighted_sum, without_autocast


class AdditiveOutput(NamedTuple):
    """Result of additive attention."""

    context: Tensor
    """(B, L, Dv) or (B, H, L, Dv): the weighted sum of the values for every query."""
    weights: Tensor | None
    """(B, L, T) or (B, H, L, T): the weights before dropout; None unless requested."""
    log_sum_exp: Tensor | None
    """(B, L) or (B, H, L): log of the partition function, -inf for a row with every key masked;
    None unless requested."""


@dataclasses.dataclass(frozen=True)
class AdditiveKeys:
    """Projected keys, with what the backend precomputes from them for repeated use."""

    projected: Tensor
    """(B, T, D) or (B, H, T, D)."""
    prepared: Tensor | None = None
    """Tensor of the same shape, without a gradient; None if the backend precomputes nothing."""

    def __getitem__(self, items: Tensor) -> "AdditiveKeys":
        """Return the keys of the selected batch items."""
        prepared = None if self.prepared is None else self.prepared[items]
        return AdditiveKeys(self.projected[items], prepared)


def prepare_keys(b: Float[Tensor, "*n T D"]) -> AdditiveKeys:
    """Precompute what `scores` and `attend` need from keys that many calls share."""
    b = to_compute_dtype(b)
    if autograd.needs_dispatcher([b]):  # kernels read and write memory that a trace does not see
        return AdditiveKeys(b)
    return AdditiveKeys(b, dispatch.prepare_keys(b.detach()))


def scores(
    a: Float[Tensor, "*n L D"],
    b: Float[Tensor, "*n T D"] | AdditiveKeys,
    v: Float[Tensor, "*h D"],
    workspace: int | None = None,
) -> Float[Tensor, "*n L T"]:
    """Return e_ti = v . tanh(a_t + b_i), (B, L, T) or, with heads, (B, H, L, T).

    Args:
        a: projected queries, (B, L, D) or (B, H, L, D).
        b: projected keys, (B, T, D) or (B, H, T, D), or the result of `prepare_keys`.
        v: the vector of the score, (D,) or (H, D).
        workspace: bound in bytes on the memory beyond inputs, outputs and tensors of their size; 16 MiB
            by default, 256 MiB on a GPU.
    """
    dtype = a.dtype
    workspace = dispatch.default_workspace(a.device) if workspace is None else workspace
    b, prepared = _unpack(b)
    with without_autocast(a.device):
        a, b, v = to_compute_dtype(a), to_compute_dtype(b), to_compute_dtype(v)
        _check(a, b, v)
        inputs = blocks.flatten(a), blocks.flatten(b), v if v.dim() == 2 else v[None]
        prepared = None if prepared is None else blocks.flatten(prepared)
        pairs = autograd.scores(*inputs, prepared, workspace)
        return pairs.view(*a.shape[:-1], b.shape[-2]).to(dtype)


def frozen_scores(a: Tensor, b: AdditiveKeys, v: Tensor) -> Tensor:
    """Return `scores` for one head, without checks and without gradients."""
    a, keys, v = to_compute_dtype(a), to_compute_dtype(b.projected), to_compute_dtype(v)
    return dispatch.scores(a, keys, v[None], b.prepared, dispatch.default_workspace(a.device))


def _check(a: Tensor, b: Tensor, v: Tensor) -> None:
    """Raise a ShapeError for tensors that the kernels, which do not check bounds, cannot process."""
    if (
        not a.shape[-1] == b.shape[-1] == v.shape[-1]
        or a.shape[:-2] != b.shape[:-2]
        or v.shape[:-1] != a.shape[1:-2]
    ):
        raise ShapeError(
            "expected projected queries (B, L, D), keys (B, T, D) and a vector (D,) or, with heads, "
            "(B, H, L, D), (B, H, T, D) and (H, D), got "
            f"{tuple(a.shape)}, {tuple(b.shape)} and {tuple(v.shape)}"
        )
    for name, kinds in (
        ("device", (a.device, b.device, v.device)),
        ("dtype", (a.dtype, b.dtype, v.dtype)),
    ):
        if not kinds[0] == kinds[1] == kinds[2]:
            raise ShapeError(
                "expected queries, keys and the vector of the score to have the same "
                f"{name}, got {', '.join(map(str, kinds))}"
            )


def _fits(a: Tensor, b: Tensor, normalizer: str, dropout: float, workspace: int) -> bool:
    """Return whether all scores fit into the workspace; False in a compiler, for any size."""
    if torch.compiler.is_compiling():
        return False
    return a.shape[:-1].numel() <= blocks.queries_per_block(b, normalizer, dropout, workspace)


def _unpack(b: Tensor | AdditiveKeys) -> tuple[Tensor, Tensor | None]:
    return (b.projected, b.prepared) if isinstance(b, AdditiveKeys) else (b, None)


def attend(
    a: Float[Tensor, "*n L D"],
    b: Float[Tensor, "*n T D"] | AdditiveKeys,
    v: Float[Tensor, "*h D"],
    values: Float[Tensor, "*n T Dv"],
    masked: Bool[Tensor, "*m #L T"] | None = None,
    bias: Float[Tensor, "*m2 #L T"] | None = None,
    normalizer: str = "softmax",
    dropout: float = 0.0,
    need_weights: bool = False,
    need_log_sum_exp: bool = False,
    workspace: int | None = None,
) -> AdditiveOutput:
    """Return the context of attention with scores v . tanh(a + b), and the weights if requested.

    Args:
        a: projected queries, (B, L, D) or, with heads, (B, H, L, D).
        b: projected keys, (B, T, D) or (B, H, T, D), or the result of `prepare_keys`.
        v: the vector of the score, (D,) or (H, D).
        values: (B, T, Dv) or (B, H, T, Dv).
        masked: True = may not be attended to; with as many axes as `a`, broadcast.
        bias: added to the scores; with as many axes as `a`.
        normalizer: one of `NORMALIZERS`.
        dropout: share of weights dropped; the others are scaled up.
        need_weights: return the weights too, which holds all of them in memory.
        need_log_sum_exp: return the log of the partition function too (`softmax` only).
        workspace: bound in bytes on the memory beyond inputs, outputs, their gradients and tensors
            of their size (exponentials), forward and backward, unless weights are requested; 16 MiB by
            default, 256 MiB on a GPU.

    A masked pair has no effect, whatever its score, forward or backward. Values of keys that are
    masked for only some of the queries must be finite.
    """
    if need_log_sum_exp and normalizer != "softmax":
        raise ConfigError(f"the log-sum-exp requires the normaliser softmax, got {normalizer!r}")
    dtype = values.dtype
    workspace = dispatch.default_workspace(a.device) if workspace is None else workspace
    b, prepared = _unpack(b)
    with without_autocast(a.device):
        a, b, v, values = (to_compute_dtype(tensor) for tensor in (a, b, v, values))
        _check(a, b, v)
        if need_weights or not b.shape[-2] or _fits(a, b, normalizer, dropout, workspace):
            pairs = scores(a, AdditiveKeys(b, prepared), v, workspace)
            context, weights = weighted_sum(pairs, values, masked, bias, normalizer, dropout)
            total = autograd.log_sum_exp(pairs, masked, bias) if need_log_sum_exp else None
            return AdditiveOutput(
                context.to(dtype), weights.to(dtype) if need_weights else None, total
            )
        seed = torch.randint(2**62, (), device="cpu") if dropout > 0 else None
        tensors: Any = a, b, v, values, masked, bias, prepared
        if a.dim() == 3:
            tensors = [x if x is None else x[None] if x is v else x[:, None] for x in tensors]
        context, total = autograd.attention(*tensors, seed, normalizer, dropout, workspace)
        if a.dim() == 3:
            context, total = context[:, 0], total[:, 0]
        return AdditiveOutput(context.to(dtype), None, total if need_log_sum_exp else None)
