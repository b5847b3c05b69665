"""Additive attention, v . tanh(a + b), in bounded memory: one operator with several backends."""

from regard.kernels.additive.op import (
    AdditiveKeys,
    AdditiveOutput,
    attend,
    frozen_scores,
    prepare_keys,
    scores,
)
from regard.kernels.additive.pytorch import WORKSPACE

__all__ = [
    "WORKSPACE",
    "AdditiveKeys",
    "AdditiveOutput",
    "attend",
    "frozen_scores",
    "prepare_keys",
    "scores",
]
