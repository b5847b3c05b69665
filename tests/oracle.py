"""What the tests hold the package to: the reference in float64, and how near is near."""

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention import AttentionOutput
from regard.kernels import reference

EPS = {torch.float64: 1e-13, torch.float32: 2.0**-23, torch.bfloat16: 2.0**-7}
"""Unit of every tolerance: the machine epsilon, but 1e-13 for float64, which is never multiplied."""


def bound(dtype: torch.dtype, **factors: int) -> float:
    """The tolerance of a dtype: `float32=16` means 16 times its epsilon."""
    return EPS[dtype] * factors.get(str(dtype).removeprefix("torch."), 1)


def close(found: Tensor | None, expected: Tensor | None, tolerance: float) -> None:
    """No number is further off than `tolerance` times the largest expected number, or 1."""
    assert found is not None
    assert expected is not None
    assert found.shape == expected.shape
    if found.numel():
        found, expected = found.detach().double(), expected.detach().double()
        error = float((found - expected).abs().max())
        assert error <= tolerance * max(1.0, float(expected.abs().max()))


def gradients(output: Tensor, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The gradients of a sum of the output with fixed, unequal weights."""
    weights = torch.linspace(-1, 2, output.numel(), dtype=torch.float64).view_as(output)
    # rounded to bfloat16 they are the same numbers in every dtype
    weights = weights.bfloat16().to(output.dtype)
    return torch.autograd.grad(output, list(inputs), weights, materialize_grads=True)


def double(tensor: Tensor) -> Tensor:
    """A leaf of its own in float64."""
    twin = tensor.detach().double()
    return twin.requires_grad_(tensor.requires_grad)


def finish(
    scores: Tensor,
    values: Tensor,
    masked: Tensor | None = None,
    bias: Tensor | None = None,
    normalizer: str = "softmax",
) -> AttentionOutput:
    """Return the context and the weights of the reference."""
    if bias is not None:
        scores = scores + bias
    if masked is None:
        masked = torch.zeros(scores.shape, dtype=torch.bool)
    weights = reference.normalize(scores, masked.expand_as(scores), normalizer)
    return AttentionOutput(reference.weighted_sum(weights, values), weights)


def _inner(query: Tensor, key: Tensor) -> Tensor:
    return reference.inner_scores(query, key)


def _cosine(score: Any, query: Tensor, key: Tensor) -> Tensor:
    norms = query.norm(dim=-1)[:, :, None] * key.norm(dim=-1)[:, None]
    return _inner(query, key) / norms / score.log_temperature.exp()


def _inner_product(score: Any, query: Tensor, key: Tensor) -> Tensor:
    matrix = score.factor @ score.factor.T + score.eps * torch.eye(key.shape[-1]).double()
    return _inner(query @ matrix, key)


def _additive(score: Any, query: Tensor, key: Tensor) -> Tensor:
    b = key @ score.key_proj.weight.T
    b = b if score.key_proj.bias is None else b + score.key_proj.bias
    return reference.additive_scores(query @ score.query_proj.weight.T, b, score.vector)


def _concat(score: Any, query: Tensor, key: Tensor) -> Tensor:
    shape = *query.shape[:2], key.shape[1], -1
    pairs = torch.cat(
        [query[:, :, None].expand(shape), key[:, None].expand(shape)],
        dim=-1,
    )
    hidden = pairs @ score.weight.T
    hidden = hidden if score.bias is None else hidden + score.bias
    return torch.tanh(hidden) @ score.vector


FORMULAS: dict[str, Callable[[Any, Tensor, Tensor], Tensor]] = {
    "dot": lambda score, query, key: _inner(query, key),
    "scaled_dot": lambda score, query, key: _inner(query, key) / math.sqrt(query.shape[-1]),
    "cosine": _cosine,
    "bilinear": lambda score, query, key: _inner(query @ score.weight * score.scale, key),
    "inner_product": _inner_product,
    "additive": _additive,
    "concat": _concat,
}
"""Every score by name, written down as in the papers: float64, no memory spared."""


def doubled(module: nn.Module) -> nn.Module:
    """A copy in float64."""
    return copy.deepcopy(module).double()
