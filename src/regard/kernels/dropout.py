"""Fast dropout on the CPU: 64 random bits serve four elements.

On CPUs, PyTorch draws a random number for every element, which took a sixth of the training time of
a Transformer. The dropout probability is rounded to a multiple of 2^-16, and the elements that are
kept are scaled for the rounded probability, so that expectations are exact.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

_LEVELS = 1 << 16


def dropout(rows: Float[Tensor, "*n"], share: float, training: bool) -> Float[Tensor, "*n"]:
    """Zero a share of the elements in training, and scale the others by 1 / (1 - share)."""
    if not training or share == 0:
        return rows
    if rows.device.type != "cpu" or torch.compiler.is_compiling() or in_transform():
        return functional.dropout(rows, share)  # it can be traced and transformed
    return rows * dropout_mask(rows, share)


def in_transform() -> bool:
    """Return whether a transform of `torch.func`, such as `torch.vmap`, is active."""
    return torch._C._are_functorch_transforms_active()  # pyright: ignore


def dropout_mask(
    like: Float[Tensor, "*n"], share: float, generator: torch.Generator | None = None
) -> Float[Tensor, "*n"]:
    """Return the factors of dropout: 0 for a share of the elements, 1 / (1 - share) for the rest."""
    dropped = min(_LEVELS - 1, round(share * _LEVELS))
    draws = torch.empty((like.numel() + 3) // 4, dtype=torch.int64, device=like.device)
    draws.random_(-(2**63), None, generator=generator)
    levels = draws.view(torch.int16)[: like.numel()].view(like.shape)
    kept, factor = levels.ge_(dropped - _LEVELS // 2), _LEVELS / (_LEVELS - dropped)
    if like.element_size() > kept.element_size():
        return kept.to(like.dtype).mul_(factor)
    # in half precision, write the bits of the factor: a conversion would take longer than the rest
    bits = torch.tensor(factor, dtype=like.dtype, device="cpu").view(torch.int16)
    return kept.mul_(int(bits)).view(like.dtype)
