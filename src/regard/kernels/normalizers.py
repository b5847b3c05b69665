"""Normalisers of attention scores: softmax, sparsemax, entmax15, none."""

from typing import Any, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor

NORMALIZERS: tuple[str, ...] = ("softmax", "sparsemax", "entmax15", "none")
"""Names of the normalisers."""


def normalize(
    scores: Float[Tensor, "*n L T"], masked: Bool[Tensor, "*#m #L T"] | None, normalizer: str
) -> Float[Tensor, "*n L T"]:
    """Return the weights for the scores: 0 for masked keys, and in rows where every key is masked.

    Scores of masked keys, NaN and infinities included, have no effect, forward or backward.
    """
    if masked is None:
        return apply_normalizer(scores, normalizer)
    if normalizer != "none":
        # a row of -inf would give NaN: use equal scores, whose weights are zeroed below
        empty = masked.all(-1, keepdim=True)
        scores = scores.masked_fill(masked & ~empty, -torch.inf).masked_fill(empty, 0)
    return apply_normalizer(scores, normalizer).masked_fill(masked, 0)


def apply_normalizer(scores: Float[Tensor, "*n T"], normalizer: str) -> Float[Tensor, "*n T"]:
    """Apply the normaliser with this name along the last axis."""
    if normalizer == "none" or not scores.shape[-1]:
        return scores
    if normalizer == "softmax":
        return torch.softmax(scores, dim=-1)
    # torch.compile does not support functions with a rule for forward mode
    function = _Sparse if torch.compiler.is_compiling() else _TransformableSparse
    return cast("Tensor", function.apply(scores, normalizer))


def normalizer_backward(
    gradient: Float[Tensor, "*n T"], weights: Float[Tensor, "*n T"], normalizer: str
) -> Float[Tensor, "*n T"]:
    """Return the gradient of the scores, given that of the weights; 0 for a row of zero weights.

    It is s (g - (s . g) / sum(s)), where g is the gradient of the weights, and s is the weights
    (softmax), 1 for positive weights and 0 elsewhere (sparsemax), or the square roots of the weights
    (entmax15). Peters et al. 2019 (arXiv:1905.05702), appendix A.
    """
    if normalizer == "none":
        return gradient
    if normalizer == "softmax":
        return torch.ops.aten._softmax_backward_data(gradient, weights, -1, weights.dtype)
    positive = weights > 0
    slopes = positive.to(weights.dtype)
    if normalizer == "entmax15":
        # the derivative of the root at 0 is infinite, and appears in the second derivative
        slopes = torch.where(positive, weights, 1).sqrt() * slopes
    shares = gradient * slopes
    # the slopes of a row sum to at least 1, unless every key is masked
    mean = shares.sum(-1, keepdim=True) / slopes.sum(-1, keepdim=True).clamp(min=1)
    return shares - slopes * mean


class _Sparse(torch.autograd.Function):
    """Sparsemax and entmax15, differentiable any number of times."""

    @staticmethod
    def forward(scores: Tensor, normalizer: str) -> Tensor:
        function = _sparsemax if normalizer == "sparsemax" else _entmax15
        # with the maximum at 0, scores below -2 have weight 0; the clamp removes -inf
        return function((scores - scores.amax(-1, keepdim=True)).clamp(min=-4))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(output)
        ctx.save_for_forward(output)
        ctx.normalizer = inputs[1]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (weights,) = ctx.saved_tensors
        return normalizer_backward(gradients[0], weights, ctx.normalizer), None


class _TransformableSparse(_Sparse):
    """The same function, which also supports `torch.vmap` and forward mode."""

    generate_vmap_rule = True

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        (weights,) = ctx.saved_tensors
        return normalizer_backward(
            tangents[0], weights, ctx.normalizer
        )  # the Jacobian is symmetric


def _sparsemax(scores: Tensor) -> Tensor:
    """Return max(z - tau, 0) with tau such that it sums to 1 (Martins and Astudillo 2016, alg. 1)."""
    sorted_scores = scores.sort(dim=-1, descending=True).values
    ranks = torch.arange(1, scores.shape[-1] + 1, device=scores.device, dtype=scores.dtype)
    excess = sorted_scores.cumsum(-1) - 1
    support = (ranks * sorted_scores > excess).sum(-1, keepdim=True).clamp(min=1)
    return (scores - excess.gather(-1, support - 1) / support).clamp(min=0)


def _entmax15(scores: Tensor) -> Tensor:
    """Return max(z / 2 - tau, 0)^2 with tau such that it sums to 1 (Peters et al. 2019, alg. 2)."""
    scores = scores / 2
    sorted_scores = scores.sort(dim=-1, descending=True).values
    ranks = torch.arange(1, scores.shape[-1] + 1, device=scores.device, dtype=scores.dtype)
    mean = sorted_scores.cumsum(-1) / ranks
    variance = sorted_scores.square().cumsum(-1) / ranks - mean.square()
    tau = mean - (1 / ranks - variance).clamp(min=0).sqrt()
    support = (tau <= sorted_scores).sum(-1, keepdim=True).clamp(min=1)
    tau = tau.gather(-1, support - 1)
    # the variance of many similar scores cancels: a step of Newton's method makes the sum exact
    roots = (scores - tau).clamp(min=0)
    tau = tau + (roots.square().sum(-1, keepdim=True) - 1) / (2 * roots.sum(-1, keepdim=True))
    return (scores - tau).clamp(min=0).square()
