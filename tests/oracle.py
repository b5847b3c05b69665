"""The float64 reference of every score and of attention, and comparison within a tolerance."""

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.attention import AttentionOutput
from regard.kernels import reference

EPS = {torch.float64: 1e-13, torch.float32: 2.0**-23, torch.bfloat16: 2.0**-7}
"""Base tolerance of each dtype: its machine epsilon, for float64 1e-13."""


def tolerance_for(dtype: torch.dtype, **factors: int) -> float:
    """Return the tolerance of a dtype: `float32=16` means 16 times its epsilon."""
    return EPS[dtype] * factors.get(str(dtype).removeprefix("torch."), 1)


def assert_close(actual: Tensor | None, expected: Tensor | None, tolerance: float) -> None:
    """Assert that max |actual - expected| <= tolerance * max(1, max |expected|)."""
    assert actual is not None
    assert expected is not None
    assert actual.shape == expected.shape
    if actual.numel():
        actual, expected = actual.detach().double(), expected.detach().double()
        error = float((actual - expected).abs().max())
        assert error <= tolerance * max(1.0, float(expected.abs().max())), error


def assert_all_close(
    actual: Iterable[Tensor], expected: Iterable[Tensor], tolerance: float
) -> None:
    """Assert that two sequences of tensors are equally long and close in pairs."""
    for actual_tensor, expected_tensor in zip(actual, expected, strict=True):
        assert_close(actual_tensor, expected_tensor, tolerance)


def assert_all_equal(actual: Iterable[Tensor], expected: Iterable[Tensor]) -> None:
    """Assert that two sequences of tensors are equally long and equal in pairs."""
    for actual_tensor, expected_tensor in zip(actual, expected, strict=True):
        assert torch.equal(actual_tensor, expected_tensor)


def gradients(output: Tensor, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the gradients of a weighted sum of the output with fixed, unequal weights."""
    weights = torch.linspace(-1, 2, output.numel(), dtype=torch.float64).view_as(output)
    # rounded to bfloat16, so that they are equal in every dtype
    weights = weights.bfloat16().to(output.dtype)
    return torch.autograd.grad(output, list(inputs), weights, materialize_grads=True)


def to_float64(tensor: Tensor) -> Tensor:
    """Return a detached float64 tensor that requires gradients if the given tensor does."""
    return tensor.detach().double().requires_grad_(tensor.requires_grad)


def reference_attention(
    scores: Tensor,
    values: Tensor,
    masked: Tensor | None = None,
    bias: Tensor | None = None,
    normalizer: str = "softmax",
) -> AttentionOutput:
    """Return the context and the attention weights that the reference computes from scores."""
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
    norms = norms.masked_fill(norms == 0, 1)  # the score of a zero vector is 0
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
"""The formula of every score by name, as in the papers, in float64."""


def module_to_float64(module: nn.Module) -> nn.Module:
    """Return a copy of a module in float64."""
    return copy.deepcopy(module).double()
