"""The oracle: the three moves of attention, obvious and slow, in any dtype.

Every other path is held to these functions, gradients included. Masks are boolean, True = may not
be attended to.
"""

import itertools

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def inner_scores(
    query: Float[Tensor, "B L D"], key: Float[Tensor, "B T D"]
) -> Float[Tensor, "B L T"]:
    """Compare every query with every key: e_ti = q_t . k_i."""
    return torch.einsum("bld,btd->blt", query, key)


def additive_scores(
    a: Float[Tensor, "B L D"], b: Float[Tensor, "B T D"], v: Float[Tensor, " D"]
) -> Float[Tensor, "B L T"]:
    """Compare every query with every key: e_ti = v . tanh(a_t + b_i).

    Bahdanau et al. 2015 (arXiv:1409.0473), A.1.2; `a` is their W_a s_{t-1}, `b` their U_a h_i.
    """
    return torch.einsum("bltd,d->blt", torch.tanh(a[:, :, None] + b[:, None]), v)


def normalize(
    scores: Float[Tensor, "B L T"], masked: Bool[Tensor, "B L T"], normalizer: str
) -> Float[Tensor, "B L T"]:
    """Turn scores into weights; a masked key, and a row with every key masked, weighs 0."""
    if normalizer == "none":
        return scores.masked_fill(masked, 0)
    weights = torch.zeros_like(scores)
    for item, step in itertools.product(*map(range, scores.shape[:2])):
        seen = ~masked[item, step]
        if seen.any():
            exponentials = torch.exp(scores[item, step, seen] - scores[item, step, seen].max())
            weights[item, step, seen] = exponentials / exponentials.sum()
    return weights


def average(
    weights: Float[Tensor, "B L T"], values: Float[Tensor, "B T Dv"]
) -> Float[Tensor, "B L Dv"]:
    """The context c_t = sum_i alpha_ti h_i."""
    return torch.einsum("blt,btd->bld", weights, values)
