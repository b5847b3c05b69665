"""Cross-entropy with label smoothing, in blocks of rows, on CPUs.

PyTorch's function holds several matrices (N, V) in float32 at once, and its backward pass adds two of them.
"""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from regard.kernels.additive.autograd import needs_dispatcher
from regard.kernels.dropout import in_transform
from regard.kernels.weighted_sum import in_forward_mode, to_compute_dtype

_BLOCK = 1 << 18
"""Logits of a block, which stays in the cache; for fewer, PyTorch's function is as fast."""


def cross_entropy(
    logits: Float[Tensor, "N V"], targets: Int[Tensor, " N"], label_smoothing: float = 0.0
) -> Tensor:
    """Return the mean cross-entropy, in nats, of N rows, as `torch.nn.functional.cross_entropy` does.

        loss_n = -(1 - epsilon) log p_n,y - epsilon / V sum_v log p_n,v,    p_n = softmax(z_n)

    Szegedy et al. 2016 (arXiv:1512.00567, section 7). Logits in half precision are converted to float32.
    """
    is_large = logits.device.type == "cpu" and logits.numel() > _BLOCK
    if not is_large or needs_dispatcher([logits]) or in_transform() or in_forward_mode():
        return _by_pytorch(logits, targets, label_smoothing)
    return _CrossEntropy.apply(logits, targets, label_smoothing)


def _by_pytorch(logits: Tensor, targets: Tensor, label_smoothing: float) -> Tensor:
    logits = to_compute_dtype(logits)
    return functional.cross_entropy(logits, targets, label_smoothing=label_smoothing)


class _CrossEntropy(torch.autograd.Function):
    """The mean cross-entropy of logits (N, V)."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, label_smoothing: float) -> Tensor:
        ctx.save_for_backward(logits, targets)
        ctx.label_smoothing = label_smoothing
        count, vocabulary = logits.shape
        total = logits.new_zeros((), dtype=torch.float64)
        for rows, correct in _blocks(logits, targets):
            log_probs = to_compute_dtype(rows).log_softmax(1)
            total += (1 - label_smoothing) * log_probs.gather(1, correct).sum()
            if label_smoothing:
                total += label_smoothing / vocabulary * log_probs.sum()
        return (-total / count).to(to_compute_dtype(logits[:0]).dtype)

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad_loss: Tensor
    ) -> tuple[Tensor | None, ...]:
        logits, targets = ctx.saved_tensors
        smoothing = ctx.label_smoothing
        differentiable = torch.is_grad_enabled()  # create_graph=True
        if differentiable or needs_dispatcher([grad_loss]):  # is_grads_batched=True
            with torch.enable_grad():
                loss = _by_pytorch(logits, targets, smoothing)
                found = torch.autograd.grad(loss, logits, grad_loss, create_graph=differentiable)
            return *found, None, None
        count, vocabulary = logits.shape
        gradient, scale = torch.empty_like(logits), grad_loss / count
        for rows, correct, out in _blocks(logits, targets, gradient):
            probabilities = to_compute_dtype(rows).softmax(1)
            if smoothing:
                probabilities -= smoothing / vocabulary
            ones = torch.full_like(correct, smoothing - 1, dtype=probabilities.dtype)
            out.copy_(probabilities.scatter_add_(1, correct, ones).mul_(scale))
        return gradient, None, None


def _blocks(logits: Tensor, targets: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield the blocks of rows of all tensors; those of the targets have shape (n, 1)."""
    size = max(1, _BLOCK // logits.shape[1])
    yield from zip(
        *(tensor.split(size) for tensor in (logits, targets[:, None], *others)), strict=True
    )
