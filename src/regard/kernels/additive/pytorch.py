"""Additive scores and their gradients in plain PyTorch: any device and dtype, any magnitude.

The pairwise tensor of B x L x T x D elements is computed in blocks, forward and backward.
"""

import itertools

import torch
from jaxtyping import Float
from torch import Tensor

WORKSPACE = 16 * 2**20
"""Default bound, in bytes, on the memory of one call beyond inputs, outputs and their gradients."""

# live copies of a block: the tanh, its gradient and a product
_COPIES = 3


def scores(
    a: Float[Tensor, "N L D"],
    b: Float[Tensor, "N T D"],
    v: Float[Tensor, "H D"],
    workspace: int = WORKSPACE,
) -> Float[Tensor, "N L T"]:
    """Return e_ti = v . tanh(a_t + b_i), computed in blocks of at most `workspace` bytes."""
    out = a.new_empty(*a.shape[:2], b.shape[1])
    vectors = _vector_per_item(v, a)
    for items, rows, keys in _blocks(a, b, workspace):
        tanh = (a[items, rows, None] + b[items, None, keys]).tanh_()
        out[items, rows, keys] = (tanh @ vectors[items, None, :, None])[..., 0]
    return out


def gradients(
    grad_scores: Float[Tensor, "N L T"],
    a: Float[Tensor, "N L D"],
    b: Float[Tensor, "N T D"],
    v: Float[Tensor, "H D"],
    workspace: int = WORKSPACE,
) -> tuple[Float[Tensor, "N L D"], Float[Tensor, "N T D"], Float[Tensor, "H D"]]:
    """Return the gradients of a, b and v, computed in blocks.

    A pair whose score has gradient 0 contributes nothing, even if it contains NaN or infinities.
    """
    grad_a, grad_b = torch.zeros_like(a), torch.zeros_like(b)
    vectors = _vector_per_item(v, a)
    grad_vectors = torch.zeros_like(vectors)
    for items, rows, keys in _blocks(a, b, workspace):
        tanh = (a[items, rows, None] + b[items, None, keys]).tanh_()
        g = grad_scores[items, rows, keys, None]
        tanh.masked_fill_(g == 0, 0)
        grad_vectors[items] += (tanh * g).sum((1, 2))
        tanh.square_().neg_().add_(1).mul_(g).mul_(vectors[items, None, None])
        grad_a[items, rows] += tanh.sum(2)
        grad_b[items, keys] += tanh.sum(1)
    return grad_a, grad_b, grad_vectors.view(-1, *v.shape).sum(0)


def partition(sizes: tuple[int, ...], capacity: int) -> list[tuple[slice, ...]]:
    """Return blocks of at most `capacity` elements (and at least one) that cover `sizes`.

    The last axes are split last.
    """
    axes: list[list[slice]] = []
    for size in reversed(sizes):
        step = max(1, min(size, capacity))
        axes.insert(0, [slice(start, start + step) for start in range(0, size, step)])
        capacity //= max(1, size)
    return list(itertools.product(*axes))


def _blocks(a: Tensor, b: Tensor, workspace: int) -> list[tuple[slice, ...]]:
    """Return slices of items, queries and keys whose pairs fit into the workspace."""
    capacity = workspace // (_COPIES * a.element_size() * max(1, a.shape[-1]))
    return partition((*a.shape[:2], b.shape[1]), capacity)


def _vector_per_item(v: Tensor, a: Tensor) -> Tensor:
    """Return the vector of every item, (N, D)."""
    return v.repeat(a.shape[0] // v.shape[0], 1)
