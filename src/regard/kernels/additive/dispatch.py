"""Who computes the additive scores and their gradients.

numba on the CPU (`cpu.py`), Triton on CUDA (`gpu.py`), plain PyTorch (`eager.py`) everywhere else,
and wherever an exponential would leave the range of the dtype.

Shapes: a (N, L, D), b (N, T, D), v (H, D), item n with row n mod H of v.
"""

import functools
import importlib
import warnings
from typing import Any

from torch import Tensor

from regard.kernels import eager


def scores(a: Tensor, b: Tensor, v: Tensor, exponentials: Tensor | None, workspace: int) -> Tensor:
    """e_ti = v . tanh(a_t + b_i), (N, L, T); `exponentials` are those of b, where they are at hand."""
    found = None
    if a.device.type == "cuda" and (gpu := module("cuda")):
        found = gpu.scores(a, b, v)
    elif a.device.type == "cpu" and (cpu := module("cpu.launch")):
        found = cpu.scores(a, b, v, exponentials)
    return eager.additive_scores(a, b, v, workspace) if found is None else found


def prepare_keys(b: Tensor) -> Tensor | None:
    """Precompute what repeated calls need of the same keys; None where there is nothing."""
    cpu = module("cpu.launch") if b.device.type == "cpu" else None
    return cpu.exponentials(b) if cpu else None


def gradients(
    gradient: Tensor, a: Tensor, b: Tensor, v: Tensor, workspace: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of a, b and v, given that of the scores."""
    found = None
    if a.device.type == "cuda" and (gpu := module("cuda")):
        found = gpu.gradients(gradient, a, b, v)
    elif a.device.type == "cpu" and (cpu := module("cpu.launch")):
        found = cpu.gradients(gradient, a, b, v)
    return eager.additive_gradients(gradient, a, b, v, workspace) if found is None else found


@functools.cache
def module(name: str) -> Any:
    """The backend, or None where what it needs is not installed, said once."""
    try:
        return importlib.import_module(f"regard.kernels.additive.{name}")
    except ImportError as error:
        warnings.warn(
            f"additive attention runs on plain PyTorch, many times slower: {error}", stacklevel=2
        )
        return None
