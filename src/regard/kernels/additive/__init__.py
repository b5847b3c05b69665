"""Additive attention, v . tanh(a + b), in bounded memory: one operator with several backends."""

from regard.kernels.additive.op import (
    WORKSPACE,
    AdditiveKeys,
    AdditiveOutput,
    attend,
    prepare_keys,
    scores,
)

__all__ = ["WORKSPACE", "AdditiveKeys", "AdditiveOutput", "attend", "prepare_keys", "scores"]
