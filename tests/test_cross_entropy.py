"""Cross-entropy in blocks of rows, against PyTorch's function in float64."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from regard.kernels import cross_entropy as module
from regard.kernels.cross_entropy import cross_entropy

BLOCK = 64
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 4e-3}
"""By dtype of the logits; gradients have that dtype."""


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BLOCK", BLOCK)


def _inputs(
    count: int, vocabulary: int, dtype: torch.dtype, seed: int = 0
) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    logits = (3 * torch.randn(count, vocabulary)).to(dtype).requires_grad_()
    return logits, torch.randint(vocabulary, (count,))


def _expected(logits: Tensor, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    exact = logits.detach().double().requires_grad_()
    loss = functional.cross_entropy(exact, targets, label_smoothing=smoothing)
    return loss.detach(), torch.autograd.grad(loss, exact)[0]


@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(1, 40),
    vocabulary=st.integers(1, 2 * BLOCK),
    smoothing=st.sampled_from([0.0, 0.1, 1.0]),
    dtype=st.sampled_from([*TOLERANCES]),
)
def test_the_loss_and_its_gradient_are_those_of_pytorch(
    seed: int, count: int, vocabulary: int, smoothing: float, dtype: torch.dtype
) -> None:
    logits, targets = _inputs(count, vocabulary, dtype, seed)
    loss = cross_entropy(logits, targets, smoothing)
    assert loss.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert (type(loss.grad_fn).__name__ == "_CrossEntropyBackward") == (count * vocabulary > BLOCK)
    (3 * loss).backward()
    expected, gradient = _expected(logits, targets, smoothing)
    precision = TOLERANCES[dtype] if dtype == torch.float64 else TOLERANCES[torch.float32]
    torch.testing.assert_close(loss.detach().double(), expected, rtol=precision, atol=precision)
    assert logits.grad is not None
    assert logits.grad.dtype == dtype
    atol = TOLERANCES[dtype] / count
    torch.testing.assert_close(
        logits.grad.double(), 3 * gradient, rtol=TOLERANCES[dtype], atol=atol
    )


def test_it_has_derivatives_of_second_order() -> None:
    logits, targets = _inputs(9, 11, torch.float64)
    assert torch.autograd.gradgradcheck(lambda z: cross_entropy(z, targets, 0.1), [logits])


# PyTorch's own import of its rules for forward mode
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_it_can_be_transformed() -> None:
    logits, targets = _inputs(9, 11, torch.float64)

    def loss(z: Tensor) -> Tensor:
        return cross_entropy(z, targets, 0.1)

    gradient: Any = torch.func.grad(loss)(logits.detach())
    torch.testing.assert_close(gradient, _expected(logits, targets, 0.1)[1])
    direction = torch.randn_like(logits)
    derivative = torch.func.jvp(loss, (logits.detach(),), (direction,))[1]
    torch.testing.assert_close(derivative, (gradient * direction).sum())


@torch.inference_mode()
def test_it_is_computed_in_inference_mode() -> None:
    logits, targets = torch.randn(9, 11), torch.randint(11, (9,))
    expected = functional.cross_entropy(logits, targets, label_smoothing=0.1)
    torch.testing.assert_close(cross_entropy(logits, targets, 0.1), expected)


def test_gradients_may_be_batched() -> None:
    logits, targets = _inputs(9, 11, torch.float64)
    loss, factors = (
        cross_entropy(logits, targets, 0.1),
        torch.tensor([1.0, -2.0], dtype=torch.float64),
    )
    (found,) = torch.autograd.grad(loss, logits, factors, is_grads_batched=True)
    expected = _expected(logits, targets, 0.1)[1]
    torch.testing.assert_close(found, factors[:, None, None] * expected)


def test_the_default_device_has_no_effect() -> None:
    logits, targets = _inputs(9, 11, torch.float32)
    with torch.device("meta"):
        loss = cross_entropy(logits, targets, 0.1)
        loss.backward()
    assert loss.device.type == "cpu"
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_a_target_outside_the_vocabulary_is_an_error() -> None:
    logits, _ = _inputs(9, 11, torch.float32)
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        cross_entropy(logits, torch.full((9,), 11))
