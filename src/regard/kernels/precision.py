"""Precision of the computation: float32 for half precisions, no autocast."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context manager that disables autocast."""
    # an exported program may run under an autocast that was not active at its export
    if torch.is_autocast_enabled(device.type) or torch.compiler.is_compiling():
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def to_compute_dtype(tensor: Tensor) -> Tensor:
    """Return the tensor in the dtype of the computation: float32 for half precisions."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
