"""Attention in plain PyTorch: any device, any dtype, exact at any magnitude.

The pairwise tensor of the additive scores, B x L x T x D numbers, is never held whole: blocks of it
are made and used, forward and backward. `cpu.py` and `gpu.py` compute the same scores and gradients
faster where they can; what is made of the scores is computed here for all of them.
"""

import itertools
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.kernels.dropout import dropout_mask

WORKSPACE = 16 * 2**20
"""Default bound, in bytes, on what one call holds beyond inputs, outputs and their gradients."""

NORMALIZERS: tuple[str, ...] = ("softmax", "sparsemax", "entmax15", "none")
"""What can turn scores into weights."""

# live copies of a block: the tanh, its gradient and a product
_COPIES = 3


def normalize(
    scores: Float[Tensor, "*n L T"], masked: Bool[Tensor, "*#m #L T"] | None, normalizer: str
) -> Float[Tensor, "*n L T"]:
    """Turn scores into weights; a masked key, and a row with every key masked, weighs 0.

    Scores of masked keys never matter, NaN and infinities included, forward and backward.
    """
    if masked is None:
        return apply_normalizer(scores, normalizer)
    if normalizer != "none":
        # a row of -inf alone would be NaN: give it equal scores, its weights are zeroed below
        empty = masked.all(-1, keepdim=True)
        scores = scores.masked_fill(masked & ~empty, -torch.inf).masked_fill(empty, 0)
    return apply_normalizer(scores, normalizer).masked_fill(masked, 0)


def apply_normalizer(scores: Float[Tensor, "*n T"], normalizer: str) -> Float[Tensor, "*n T"]:
    """The normaliser of this name, over the last axis."""
    if normalizer == "none" or not scores.shape[-1]:
        return scores
    if normalizer == "softmax":
        return torch.softmax(scores, dim=-1)
    return cast("Tensor", _Sparse.apply(scores, normalizer))


def normalizer_backward(
    gradient: Float[Tensor, "*n T"], weights: Float[Tensor, "*n T"], normalizer: str
) -> Float[Tensor, "*n T"]:
    """The gradient of the scores, given that of the weights; a row of weights 0 gets none.

    With s the slopes of the weights, g their gradient: s (g - (s . g) / sum(s)), where s is the
    weights (softmax), 1 on those above 0 (sparsemax), their square roots (entmax15). Peters et al.
    2019 (arXiv:1905.05702), appendix A.
    """
    if normalizer == "none":
        return gradient
    if normalizer == "softmax":
        return torch.ops.aten._softmax_backward_data(gradient, weights, -1, weights.dtype)
    inside = weights > 0
    slopes = inside.to(weights.dtype)
    if normalizer == "entmax15":
        # the root of 0 has no finite derivative, which a second derivative would meet
        slopes = torch.where(inside, weights, 1).sqrt() * slopes
    shares = gradient * slopes
    # the slopes of a row sum to 1 at least, unless every key is masked
    mean = shares.sum(-1, keepdim=True) / slopes.sum(-1, keepdim=True).clamp(min=1)
    return shares - slopes * mean


class _Sparse(torch.autograd.Function):
    """Weights that are exactly 0 below a threshold, differentiable as often as one likes."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, normalizer: str) -> Tensor:
        threshold = _sparsemax if normalizer == "sparsemax" else _entmax15
        # the highest score at 0: none below -1 has weight, and -inf need not be computed with
        weights = threshold((scores - scores.amax(-1, keepdim=True)).clamp(min=-4))
        ctx.save_for_backward(weights)
        ctx.normalizer = normalizer
        return weights

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (weights,) = ctx.saved_tensors
        return normalizer_backward(gradients[0], weights, ctx.normalizer), None


def _sparsemax(scores: Tensor) -> Tensor:
    """max(z - tau, 0) with the tau that makes it sum to 1 (Martins and Astudillo 2016, alg. 1)."""
    ordered = scores.sort(dim=-1, descending=True).values
    ranks = torch.arange(1, scores.shape[-1] + 1, device=scores.device, dtype=scores.dtype)
    excess = ordered.cumsum(-1) - 1
    size = (ranks * ordered > excess).sum(-1, keepdim=True).clamp(min=1)
    return (scores - excess.gather(-1, size - 1) / size).clamp(min=0)


def _entmax15(scores: Tensor) -> Tensor:
    """max(z / 2 - tau, 0)^2 with the tau that makes it sum to 1 (Peters et al. 2019, alg. 2)."""
    scores = scores / 2
    ordered = scores.sort(dim=-1, descending=True).values
    ranks = torch.arange(1, scores.shape[-1] + 1, device=scores.device, dtype=scores.dtype)
    mean = ordered.cumsum(-1) / ranks
    variance = ordered.square().cumsum(-1) / ranks - mean.square()
    tau = mean - (1 / ranks - variance).clamp(min=0).sqrt()
    size = (tau <= ordered).sum(-1, keepdim=True).clamp(min=1)
    return (scores - tau.gather(-1, size - 1)).clamp(min=0).square()


class WeightedSum(NamedTuple):
    """What the second and third move give."""

    context: Tensor
    """(..., L, Dv): for every query the weighted average of the values."""
    weights: Tensor
    """(..., L, T): before dropout."""


def average(
    scores: Float[Tensor, "*n L T"],
    values: Float[Tensor, "*n T Dv"],
    masked: Bool[Tensor, "*#m #L T"] | None = None,
    bias: Float[Tensor, "*#m #L T"] | None = None,
    normalizer: str = "softmax",
    dropout: float = 0.0,
) -> WeightedSum:
    """The second and third move for given scores: the context and the weights."""
    dtype = values.dtype
    with without_autocast(scores.device):
        scores = to_compute_dtype(scores)
        if bias is not None:
            scores = scores + bias
        weights = normalize(scores, masked, normalizer)
        dropped = weights * dropout_mask(weights, dropout) if dropout > 0 else weights
        context = torch.matmul(dropped, to_compute_dtype(values).to(dropped.dtype))
        if context.requires_grad and not torch.compiler.is_compiling():
            context.register_hook(_dense)
        return WeightedSum(context.to(dtype), weights.to(dtype))


def _dense(gradient: Tensor | None) -> Tensor | None:
    """That of a sum or mean is one number seen as many, which batched products take item by item."""
    return None if gradient is None else gradient.contiguous()


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """What is computed inside is computed in the dtype that it has."""
    # an exported program may be run under an autocast that was not there when it was made
    if torch.is_autocast_enabled(device.type) or torch.compiler.is_compiling():
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def to_compute_dtype(tensor: Tensor) -> Tensor:
    """The tensor in the dtype that is computed in: float32 for the half precisions."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def additive_scores(
    a: Float[Tensor, "N L D"],
    b: Float[Tensor, "N T D"],
    v: Float[Tensor, "H D"],
    workspace: int = WORKSPACE,
) -> Float[Tensor, "N L T"]:
    """e_ti = v . tanh(a_t + b_i) in blocks of at most `workspace` bytes; item n has row n mod H."""
    out = a.new_empty(*a.shape[:2], b.shape[1])
    v = _repeated(v, a)
    for items, rows, keys in _blocks(a, b, workspace):
        tanh = (a[items, rows, None] + b[items, None, keys]).tanh_()
        out[items, rows, keys] = (tanh @ v[items, None, :, None])[..., 0]
    return out


def additive_gradients(
    gradient: Float[Tensor, "N L T"],
    a: Float[Tensor, "N L D"],
    b: Float[Tensor, "N T D"],
    v: Float[Tensor, "H D"],
    workspace: int = WORKSPACE,
) -> tuple[Float[Tensor, "N L D"], Float[Tensor, "N T D"], Float[Tensor, "H D"]]:
    """The gradients of a, b and v, given that of the scores, in blocks.

    A pair whose score has no gradient gives none, NaN and infinities included.
    """
    of_a, of_b = torch.zeros_like(a), torch.zeros_like(b)
    vectors = _repeated(v, a)
    of_v = torch.zeros_like(vectors)
    for items, rows, keys in _blocks(a, b, workspace):
        tanh = (a[items, rows, None] + b[items, None, keys]).tanh_()
        g = gradient[items, rows, keys, None]
        tanh.masked_fill_(g == 0, 0)
        of_v[items] += (tanh * g).sum((1, 2))
        tanh.square_().neg_().add_(1).mul_(g).mul_(vectors[items, None, None])
        of_a[items, rows] += tanh.sum(2)
        of_b[items, keys] += tanh.sum(1)
    return of_a, of_b, of_v.view(-1, *v.shape).sum(0)


def blocks(sizes: tuple[int, ...], room: int) -> list[tuple[slice, ...]]:
    """Blocks of at most `room` elements (and at least one) that cover `sizes`, last axes longest."""
    axes: list[list[slice]] = []
    for size in reversed(sizes):
        step = max(1, min(size, room))
        axes.insert(0, [slice(start, start + step) for start in range(0, size, step)])
        room //= max(1, size)
    return list(itertools.product(*axes))


def _blocks(a: Tensor, b: Tensor, workspace: int) -> list[tuple[slice, ...]]:
    """Items, rows and keys whose pairs fit into the workspace."""
    room = workspace // (_COPIES * a.element_size() * max(1, a.shape[-1]))
    return blocks((*a.shape[:2], b.shape[1]), room)


def _repeated(v: Tensor, a: Tensor) -> Tensor:
    """The vector of every item, (N, D)."""
    return v.repeat(a.shape[0] // v.shape[0], 1)
