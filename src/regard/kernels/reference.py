"""Slow reference implementation of the steps score, normalise and weighted sum, in any dtype.

Tests compare every other implementation with these functions, gradients included. Masks are
boolean; True = may not be attended to.
"""

import itertools

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def inner_scores(
    query: Float[Tensor, "B L D"], key: Float[Tensor, "B T D"]
) -> Float[Tensor, "B L T"]:
    """Return e_ti = q_t . k_i for every query and key."""
    return torch.einsum("bld,btd->blt", query, key)


def additive_scores(
    a: Float[Tensor, "B L D"], b: Float[Tensor, "B T D"], v: Float[Tensor, " D"]
) -> Float[Tensor, "B L T"]:
    """Return e_ti = v . tanh(a_t + b_i) for every query and key.

    Bahdanau et al. 2015 (arXiv:1409.0473), A.1.2; `a` is their W_a s_{t-1}, `b` their U_a h_i.
    """
    return torch.einsum("bltd,d->blt", torch.tanh(a[:, :, None] + b[:, None]), v)


def normalize(
    scores: Float[Tensor, "B L T"], masked: Bool[Tensor, "B L T"], normalizer: str
) -> Float[Tensor, "B L T"]:
    """Return the weights for the scores: 0 for masked keys, and in rows where every key is masked."""
    if normalizer == "none":
        return scores.masked_fill(masked, 0)
    weights = torch.zeros_like(scores)
    for item, step in itertools.product(*map(range, scores.shape[:2])):
        visible = ~masked[item, step]
        if visible.any():
            weights[item, step, visible] = _ROWS[normalizer](scores[item, step, visible])
    return weights


def _softmax(scores: Float[Tensor, " T"]) -> Float[Tensor, " T"]:
    exponentials = torch.exp(scores - scores.max())
    return exponentials / exponentials.sum()


def _sparsemax(scores: Float[Tensor, " T"]) -> Float[Tensor, " T"]:
    """Return the max(z - tau, 0) that sums to 1, trying every size of the support."""
    ordered = scores.sort(descending=True).values
    for count in range(1, len(scores) + 1):
        tau = (ordered[:count].sum() - 1) / count
        if count == len(scores) or ordered[count] <= tau:
            return (scores - tau).clamp(min=0)
    return torch.full_like(scores, torch.nan)


def _entmax15(scores: Float[Tensor, " T"]) -> Float[Tensor, " T"]:
    """Return the max(z / 2 - tau, 0)^2 that sums to 1, trying every size of the support."""
    halves = (scores - scores.max()) / 2
    ordered = halves.sort(descending=True).values
    for count in range(1, len(scores) + 1):
        top = ordered[:count]
        tau = top.mean() - ((1 - (top - top.mean()).square().sum()) / count).sqrt()
        if count == len(scores) or ordered[count] <= tau:
            return (halves - tau).clamp(min=0).square()
    return torch.full_like(scores, torch.nan)


_ROWS = {"softmax": _softmax, "sparsemax": _sparsemax, "entmax15": _entmax15}


def weighted_sum(
    weights: Float[Tensor, "B L T"], values: Float[Tensor, "B T Dv"]
) -> Float[Tensor, "B L Dv"]:
    """Return the context c_t = sum_i alpha_ti h_i."""
    return torch.einsum("blt,btd->bld", weights, values)
