"""Linear layers without gradients, on the CPU with oneDNN's matrix product.

PyTorch computes products of float32 matrices with MKL, which does not use AVX-512 on all processors
that have it; oneDNN does, and stores the weight once in the order in which it is read.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional


class FrozenLinear:
    """x W^T + b with fixed weights, W (E, D)."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = weight.detach().contiguous()
        self.bias = None if bias is None else bias.detach()
        self._packed = _pack(self.weight)

    def __call__(self, x: Float[Tensor, "*n D"]) -> Float[Tensor, "*n E"]:
        """Return the product."""
        if self._packed is None or not x.numel():
            return functional.linear(x, self.weight, self.bias)
        return _onednn()._linear_pointwise(x, self._packed, self.bias, "none", [], "")


def _onednn() -> Any:
    return torch.ops.mkldnn


def _pack(weight: Tensor) -> Tensor | None:
    """Return the weight in oneDNN's layout; None where oneDNN cannot multiply with it."""
    usable = weight.device.type == "cpu" and weight.dtype in (torch.float32, torch.bfloat16)
    if not (usable and torch.backends.mkldnn.is_available() and weight.numel()):
        return None
    try:
        return _onednn()._reorder_linear_weight(weight)
    except (AttributeError, RuntimeError):  # neither operator is part of PyTorch's public interface
        return None
