"""Additive attention, v . tanh(a + b), in bounded memory: one operator with several backends."""

from regard.kernels.additive.op import WORKSPACE, AdditiveOutput, attend, exponentials, scores

__all__ = ["WORKSPACE", "AdditiveOutput", "attend", "exponentials", "scores"]
