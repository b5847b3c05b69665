"""Backend selection by device type.

A backend is a module with `prepare_keys`, `scores` and `gradients`, which return None for input that
it does not support. Plain PyTorch (`pytorch.py`) handles all other devices and unsupported input.

Shapes: a (N, L, D), b (N, T, D), v (H, D); item n uses row n mod H of v.
"""

import functools
import importlib
import warnings
from typing import Any

import torch
from torch import Tensor

from regard.kernels.additive import pytorch

BACKENDS = {"cpu": "cpu.launch", "cuda": "cuda"}
"""Module of the backend of each device type."""

GPU_WORKSPACE = 16 * pytorch.WORKSPACE
"""Default workspace on a GPU, which needs many rows at once to be busy."""


def default_workspace(device: torch.device) -> int:
    """Return the default bound, in bytes, on the memory of one call."""
    return GPU_WORKSPACE if device.type == "cuda" else pytorch.WORKSPACE


def prepare_keys(b: Tensor) -> Tensor | None:
    """Return what the backend precomputes from keys for repeated use, in the shape of b, or None."""
    backend = load_backend(b.device.type)
    return backend.prepare_keys(b) if backend else None


def scores(a: Tensor, b: Tensor, v: Tensor, prepared: Tensor | None, workspace: int) -> Tensor:
    """Return e_ti = v . tanh(a_t + b_i), (N, L, T); `prepared` is the result of `prepare_keys`."""
    backend = load_backend(a.device.type)
    result = backend.scores(a, b, v, prepared) if backend else None
    return pytorch.scores(a, b, v, workspace) if result is None else result


def gradients(
    grad_scores: Tensor, a: Tensor, b: Tensor, v: Tensor, workspace: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of a, b and v."""
    backend = load_backend(a.device.type)
    result = backend.gradients(grad_scores, a, b, v) if backend else None
    return pytorch.gradients(grad_scores, a, b, v, workspace) if result is None else result


@functools.cache
def load_backend(device_type: str) -> Any:
    """Return the backend module, or None if there is none; warn if it cannot be used."""
    name = BACKENDS.get(device_type)
    if name is None:
        return None
    try:
        backend = importlib.import_module(f"regard.kernels.additive.{name}")
        if device_type == "cuda":
            backend.check_driver()
        return backend
    except Exception as error:  # a broken compiler raises any exception
        warnings.warn(
            "additive attention runs on plain PyTorch, which is many times slower: "
            f"{type(error).__name__}: {error}",
            stacklevel=2,
        )
        return None
