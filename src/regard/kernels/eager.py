"""Attention in plain PyTorch: any device, any dtype, exact at any magnitude.

The pairwise tensor of the additive scores, B x L x T x D numbers, is never held whole: blocks of it
are made and used, forward and backward. `cpu.py` and `gpu.py` compute the same scores and gradients
faster where they can; what is made of the scores is computed here for all of them.
"""

import itertools
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

WORKSPACE = 16 * 2**20
"""Default bound, in bytes, on what one call holds beyond inputs, outputs and their gradients."""

# live copies of a block: the tanh, its gradient and a product
_COPIES = 3


def normalize(
    scores: Float[Tensor, "*n L T"], masked: Bool[Tensor, "*#m #L T"] | None, normalizer: str
) -> Float[Tensor, "*n L T"]:
    """Turn scores into weights; a masked key, and a row with every key masked, weighs 0.

    Scores of masked keys never matter, NaN and infinities included, forward and backward.
    """
    if masked is None:
        return scores if normalizer == "none" else torch.softmax(scores, dim=-1)
    if normalizer == "softmax":
        # a row of -inf alone would be NaN: give it equal scores, its weights are zeroed below
        empty = masked.all(-1, keepdim=True)
        scores = scores.masked_fill(masked & ~empty, -torch.inf).masked_fill(empty, 0)
        scores = torch.softmax(scores, dim=-1)
    return scores.masked_fill(masked, 0)


class Averaged(NamedTuple):
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
) -> Averaged:
    """The second and third move for given scores: the context and the weights."""
    dtype = values.dtype
    with torch.autocast(scores.device.type, enabled=False):
        scores = wide(scores)
        if bias is not None:
            scores = scores + bias
        weights = normalize(scores, masked, normalizer)
        kept = drop(weights, dropout)
        dropped = weights if kept is None else weights * kept
        context = torch.matmul(dropped, wide(values).to(dropped.dtype))
        return Averaged(context.to(dtype), weights.to(dtype))


def drop(like: Tensor, share: float, generator: torch.Generator | None = None) -> Tensor | None:
    """What dropout multiplies with: 0 for this share, 1 / (1 - share) for the rest."""
    if share == 0:
        return None
    return torch.empty_like(like).bernoulli_(1 - share, generator=generator).div_(1 - share)


def wide(tensor: Tensor) -> Tensor:
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
