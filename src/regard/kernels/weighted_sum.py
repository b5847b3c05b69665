"""Context and weights from scores, on any device and in any dtype.

Half-precision inputs are converted to float32 for the computation; autocast is disabled.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.hooks import unserializable_hook

from regard.kernels.dropout import dropout as drop
from regard.kernels.normalizers import normalize


def is_autocast_enabled(device: torch.device) -> bool:
    """Return whether autocast is enabled on a device; some, such as `meta`, do not support it."""
    kind = device.type
    known = kind in ("cpu", "cuda") or torch.amp.is_autocast_available(kind)
    return known and torch.is_autocast_enabled(kind)


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context manager that disables autocast."""
    # an exported program may run in an autocast context that was not active during export
    if torch.compiler.is_compiling() or is_autocast_enabled(device):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def in_forward_mode() -> bool:
    """Return whether forward-mode derivatives are being computed, for example by `torch.func.jvp`."""
    return forward_ad._current_level >= 0  # pyright: ignore[reportPrivateUsage]


def in_vmap() -> bool:
    """Return whether `torch.vmap` is active; False when compiling."""
    functorch: Any = torch._C._functorch  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
    if torch.compiler.is_compiling():
        return False
    stack = functorch.get_interpreter_stack() or []
    return any(level.key() == functorch.TransformType.Vmap for level in stack)


def to_compute_dtype(tensor: Tensor) -> Tensor:
    """Return the tensor in the dtype of the computation: float32 for half-precision inputs."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def finite_bias(bias: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a bias of which every finite number is finite in a dtype too: -inf masks."""
    largest = torch.finfo(dtype).max
    return bias.clamp(-largest, largest) if torch.finfo(bias.dtype).max > largest else bias


def weighted_sum(
    scores: Float[Tensor, "*n L T"],
    values: Float[Tensor, "*n T Dv"],
    masked: Bool[Tensor, "*#m #L T"] | None = None,
    bias: Float[Tensor, "*#m #L T"] | None = None,
    normalizer: str = "softmax",
    dropout: float = 0.0,
) -> tuple[Float[Tensor, "*n L Dv"], Float[Tensor, "*n L T"]]:
    """Return the context c_t = sum_i alpha_ti h_i, and the weights before dropout."""
    dtype = values.dtype
    with without_autocast(scores.device):
        scores = to_compute_dtype(scores)
        if bias is not None:
            scores = scores + bias
        weights = normalize(scores, masked, normalizer)
        dropped = drop(weights, dropout, training=True)
        context = torch.matmul(dropped, to_compute_dtype(values).to(dropped.dtype))
        if context.requires_grad and not torch.compiler.is_compiling():
            context.register_hook(_contiguous)
        return context.to(dtype), weights.to(dtype)


@unserializable_hook
def _contiguous(gradient: Tensor | None) -> Tensor | None:
    """Materialise an expanded gradient (of a sum or mean), which would slow down batched products."""
    return None if gradient is None else gradient.contiguous()
