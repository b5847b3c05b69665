"""Linear layers without gradients; on the CPU, with oneDNN's matrix product.

PyTorch computes products of float32 matrices with MKL, which does not use AVX-512 on all processors
that support it; oneDNN does, and stores the weight once in the order in which it is read.
"""

from functools import cached_property
from typing import Any, TypeGuard

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

_MIN_ROWS = 4
"""Number of rows below which the overhead of oneDNN exceeds its gain."""
_MAX_EXACT_ROWS = 16
"""Number of rows up to which the input is not padded."""


class FrozenLinear:
    """x W^T + b with fixed weights, W (E, D).

    Args:
        weight: W.
        bias: b.
        may_round: compute float32 in bfloat16, and round the result to it too, where `rounds_to_bfloat16`.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, may_round: bool = False) -> None:
        self.weight = weight.detach().contiguous()
        self.bias = None if bias is None else bias.detach()
        self.matrix = self.weight, self.bias
        self._rounds = may_round and weight.dtype == torch.float32 and rounds_to_bfloat16()

    @cached_property
    def _packed(self) -> Tensor | None:
        return _pack(self.weight.bfloat16() if self._rounds else self.weight)

    def __call__(self, x: Float[Tensor, "*n D"]) -> Float[Tensor, "*n E"]:
        """Return the product."""
        packed, count = self._packed, x.shape[:-1].numel()
        if packed is None or x.dtype != self.weight.dtype or count < _MIN_ROWS:
            return functional.linear(x, self.weight, self.bias)
        rows = x.reshape(count, x.shape[-1])
        if (padded := _padded_count(count)) > count:
            rows = functional.pad(rows, (0, 0, 0, padded - count))
        if not self._rounds:
            product = _onednn()._linear_pointwise(rows, packed, self.bias, "none", [], "")
            return product[:count].view(*x.shape[:-1], -1)
        product = _onednn()._linear_pointwise(rows.bfloat16(), packed, None, "none", [], "")
        product = product[:count].float().view(*x.shape[:-1], -1)
        return product if self.bias is None else product + self.bias


def rounds_to_bfloat16() -> bool:
    """Return whether products of float32 matrices are computed in bfloat16, and summed in float32.

    They are if PyTorch's setting for oneDNN permits it, and the processor is faster.
    """
    # `torch.get_float32_matmul_precision` raises an error after this setting has been changed
    permitted = torch.backends.mkldnn.matmul.fp32_precision == "bf16"  # pyright: ignore
    return permitted and has_bfloat16()


def has_bfloat16() -> bool:
    """Return whether the processor multiplies numbers of bfloat16."""
    return torch.cpu._is_avx512_bf16_supported()  # pyright: ignore[reportPrivateUsage]


class InferenceLinear(nn.Linear):
    """A linear layer without gradients, which has the attributes of another layer.

    It computes with the weights of its first call.
    """

    @cached_property
    def _frozen(self) -> FrozenLinear:
        return FrozenLinear(self.weight, self.bias)

    def forward(self, input: Float[Tensor, "*n D"]) -> Float[Tensor, "*n E"]:
        """Return the product."""
        return self._frozen(input)


def has_hooks(module: nn.Module) -> bool:
    """Return whether the module computes more or other than its type.

    Hooks are called before or after `forward` or its gradients, or `forward` is replaced, as Accelerate does.
    """
    own = vars(module)  # faster than the attributes
    kinds = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
    return "forward" in own or any(map(own.__getitem__, kinds))


def is_linear(module: nn.Module) -> bool:
    """Return whether the module is a linear layer with a bias."""
    return type(module) in (nn.Linear, InferenceLinear) and isinstance(module.bias, Tensor)


def is_plain_embedding(module: nn.Module) -> TypeGuard[nn.Embedding]:
    """Return whether the embeddings of a module are the rows of its weights."""
    return type(module) is nn.Embedding and module.max_norm is None and not has_hooks(module)


def compute_weights(module: nn.Module) -> None:
    """Run the hooks of `torch.nn.utils`, such as those of `prune`, that set weights before `forward` is called.

    This is for code that reads the weights of a module instead of calling it.
    """
    for hook in vars(module)["_forward_pre_hooks"].values():
        if any(base.__module__.startswith("torch.nn.utils.") for base in type(hook).__mro__):
            hook(module, ())


def _padded_count(count: int) -> int:
    """Return the number of rows to pass to oneDNN, which has four values per power of two.

    For every number of rows, oneDNN compiles and keeps a program of about a megabyte.
    """
    if count <= _MAX_EXACT_ROWS:
        return count
    unit = 1 << (count.bit_length() - 3)
    return -(-count // unit) * unit


def _onednn() -> Any:
    return torch.ops.mkldnn


def _pack(weight: Tensor) -> Tensor | None:
    """Return the weight in oneDNN's layout; None if oneDNN cannot multiply by it."""
    usable = weight.device.type == "cpu" and weight.dtype in (torch.float32, torch.bfloat16)
    if not (usable and torch.backends.mkldnn.is_available() and weight.numel()):
        return None
    try:
        return _onednn()._reorder_linear_weight(weight)
    except (AttributeError, RuntimeError):  # neither operator is part of PyTorch's public interface
        return None
