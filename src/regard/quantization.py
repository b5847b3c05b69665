"""Weights in 8-bit integers or half precision: rounding, and what a file stores.

A row w of a weight (one output channel) is stored as integers q with one scale s (symmetric quantisation
per channel; Krishnamoorthi 2018, arXiv:1806.08342, section 3.1):

    s = max |w| / 127,    q = round(w / s),    w' = q s

The scale is truncated to 16 significant bits, so that q s is exact in float32 and the rounded weight w'
gives the same q and s again.
"""

from typing import Literal, NamedTuple

import torch
from jaxtyping import Float32, Int8
from torch import Tensor, nn

from regard.errors import ConfigError, not_one_of

WeightType = Literal["float32", "float16", "int8"]
"""How a file stores weights."""

SCALE = ".scale"
"""What follows the name of a quantised tensor in the name of its scales."""

_LARGEST = 127
_DROPPED_BITS = 8
"""Bits of a float32 scale that are set to 0; 16 of its 24 significant bits remain."""


class Quantized(NamedTuple):
    """A tensor in 8-bit integers."""

    values: Int8[Tensor, "R ..."]
    scale: Float32[Tensor, " R"]
    """One scale per row."""


def quantize(tensor: Tensor) -> Quantized:
    """Return a floating-point tensor (R, …) as integers from -127 to 127 with one scale per row."""
    rows = tensor.detach().float().flatten(1)
    limit = rows.abs().amax(1) if rows.shape[1] else rows.new_zeros(len(rows))
    scale = ((limit / _LARGEST).view(torch.int32) & -(1 << _DROPPED_BITS)).view(torch.float32)
    divisor = torch.where(scale == 0, 1.0, scale)[:, None]
    values = (rows / divisor).round().clamp(-_LARGEST, _LARGEST).to(torch.int8)
    return Quantized(values.reshape(tensor.shape), scale)


def dequantize(quantized: Quantized) -> Tensor:
    """Return the float32 tensor that integers and scales stand for."""
    values, scale = quantized
    return values.float() * scale.view(-1, *[1] * (values.ndim - 1))


def compress(tensors: dict[str, Tensor], dtype: WeightType) -> dict[str, Tensor]:
    """Return tensors as a file stores them.

    With `int8`, every floating-point tensor with at least two dimensions becomes integers and its scales,
    `name` and `name.scale`; with `float16`, every floating-point tensor is converted.

    Raises:
        ConfigError: the type is unknown, or a weight is too large for float16.
    """
    if dtype == "float32":
        return tensors
    if dtype not in ("float16", "int8"):
        raise not_one_of("the type of weights", dtype, ("float32", "float16", "int8"))
    compressed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if dtype == "int8" and tensor.is_floating_point() and tensor.ndim > 1:
            compressed[name], compressed[name + SCALE] = quantize(tensor)
        elif dtype == "float16" and tensor.is_floating_point():
            compressed[name] = tensor.detach().half()
            if bool((compressed[name].isinf() & tensor.isfinite()).any()):
                raise ConfigError(f"{name} has weights too large for float16; use int8 or float32")
        else:
            compressed[name] = tensor
    return compressed


def expand(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the float32 tensors that stored tensors stand for; others are unchanged.

    Raises:
        ValueError: the scales of a tensor in integers are missing or do not fit it.
    """
    expanded: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.dtype == torch.int8:
            scale = tensors.get(name + SCALE)
            if scale is None or tensor.ndim < 2 or not _fits(scale, tensor):
                raise ValueError(f"{name}{SCALE} is missing or does not fit {name}")
            expanded[name] = dequantize(Quantized(tensor, scale))
        elif tensor.dtype == torch.float16:
            expanded[name] = tensor.float()
        elif tensors.get(name.removesuffix(SCALE), tensor).dtype != torch.int8:
            expanded[name] = tensor
    return expanded


def _fits(scale: Tensor, values: Tensor) -> bool:
    return scale.dtype == torch.float32 and scale.shape == values.shape[:1]


@torch.no_grad()
def round_weights(module: nn.Module, dtype: WeightType) -> None:
    """Round the weights of a module, in place, to what a file with weights of this type can hold.

    Raises:
        ConfigError: the type is unknown, or a weight is too large for float16.
    """
    state = module.state_dict()
    for name, tensor in expand(compress(state, dtype)).items():
        state[name].copy_(tensor)
