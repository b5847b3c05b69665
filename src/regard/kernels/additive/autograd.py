"""Additive scores, and attention computed with them in blocks, as PyTorch operators with gradients.

`torch.compile` treats them as opaque, with known shapes and gradients; the backward passes are
operators too. Where PyTorch's dispatcher need not see the call, the implementation is called
directly: a call through a Python operator adds a twentieth to the time for 32 x 32 pairs in 32 items,
and its first use imports 140 MB.

Derivatives of any order are correct: a backward pass that is itself differentiated, and forward mode
(`torch.func.jvp`), run on plain autograd and hold all B x L x T x D pairs in memory.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from regard.kernels.additive import blocks, dispatch
from regard.kernels.additive.blocks import Arguments
from regard.kernels.dropout import dropout_mask
from regard.kernels.normalizers import normalize
from regard.kernels.weighted_sum import finite_bias, in_forward_mode, without_autocast

_torch: Any = torch._C  # pyright: ignore[reportPrivateUsage]


class _Computation:
    """A computation on tensors, called as an operator if PyTorch's dispatcher must see the call."""

    def __init__(
        self,
        name: str,
        compute: Callable[..., Any],
        fake: Callable[..., Any],
        schema: str | None = None,
    ) -> None:
        self.compute = compute
        self.operator = torch.library.custom_op(
            f"regard::{name}", compute, mutates_args=(), schema=schema
        )
        self.operator.register_fake(fake)

    def __call__(self, *inputs: Any) -> Any:
        return (self.operator if needs_dispatcher(inputs) else self.compute)(*inputs)

    def with_gradients(
        self,
        save: Callable[..., None],
        differentiate: Callable[..., Any],
        pairwise: Callable[..., Any],
    ) -> Callable[..., Any]:
        """Register the backward pass; return the computation with gradients.

        In forward mode the result is that of `pairwise`, the same function written with PyTorch's operators.
        """
        self.operator.register_autograd(differentiate, setup_context=save)

        def call(*inputs: Any) -> Any:
            if in_forward_mode():
                return pairwise(*inputs)
            if not torch.compiler.is_compiling() and _torch._are_functorch_transforms_active():
                # torch.vmap, torch.func.grad and the like transform functions, not operators
                return Function.apply(*inputs)
            if needs_dispatcher(inputs):
                return self.operator(*inputs)
            return (Function.apply if torch.is_grad_enabled() else self.compute)(*inputs)

        class Function(torch.autograd.Function):
            forward = staticmethod(self)
            setup_context = staticmethod(save)
            backward = staticmethod(differentiate)
            vmap = _loop_over_batch(call)

        return call


def needs_dispatcher(inputs: Sequence[Any]) -> bool:
    """Return whether a call is being recorded, or a tensor has no data."""
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
        or is_in_torch_dispatch_mode()
        or not all(
            type(x) in (Tensor, Parameter) and _torch._has_storage(x)
            for x in inputs
            if isinstance(x, Tensor)
        )
    )


def _fake_scores(a: Tensor, b: Tensor, *others: Any) -> Tensor:
    return a.new_empty(*a.shape[:2], b.shape[1])


def _fake_gradients(grad_scores: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    return tuple(tensor.new_empty(tensor.shape) for tensor in inputs[:3])


def _fake_attend(
    a: Tensor, b: Tensor, v: Tensor, values: Tensor, *others: Any
) -> tuple[Tensor, Tensor]:
    return values.new_empty(*a.shape[:-1], values.shape[-1]), a.new_empty(a.shape[:-1])


def _fake_attend_backward(
    grad_context: Tensor, grad_log_sum_exp: Tensor | None, *inputs: Any
) -> tuple[Tensor, ...]:
    a, bias = inputs[0], inputs[5]
    grad_bias = a.new_empty(0 if bias is None else bias.shape)
    return *(tensor.new_empty(tensor.shape) for tensor in inputs[:4]), grad_bias


_ARGUMENTS = (
    "Tensor a, Tensor b, Tensor v, Tensor values, Tensor? masked, Tensor? bias, Tensor? prepared, "
    "Tensor? seed, str normalizer, float dropout, SymInt workspace"
)
"""The fields of `Arguments` in PyTorch's schema language."""

scores_forward = _Computation("additive_scores", dispatch.scores, _fake_scores)
scores_backward = _Computation("additive_scores_backward", dispatch.gradients, _fake_gradients)
attention_forward = _Computation(
    "additive_attention", blocks.attend, _fake_attend, f"({_ARGUMENTS}) -> (Tensor, Tensor)"
)
attention_backward = _Computation(
    "additive_attention_backward",
    blocks.gradients,
    _fake_attend_backward,
    f"(Tensor grad_context, Tensor? grad_log_sum_exp, {_ARGUMENTS}) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor)",
)


def _save_scores(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.workspace = inputs
    ctx.save_for_backward(*tensors[:3])


def _backward_of_scores(ctx: Any, grad_scores: Tensor) -> tuple[Tensor | None, ...]:
    with without_autocast(grad_scores.device):
        if torch.is_grad_enabled():
            return _differentiable_backward(ctx, [grad_scores], _pairwise_scores)
        return *scores_backward(grad_scores, *ctx.saved_tensors, ctx.workspace), None, None


def _pairwise_scores(a: Tensor, b: Tensor, v: Tensor) -> list[Tensor]:
    """Return the scores, computed on plain autograd with all pairs at once."""
    vectors = v.repeat(a.shape[0] // v.shape[0], 1)[:, None, :, None]
    return [((a[:, :, None] + b[:, None]).tanh() @ vectors)[..., 0]]


def _save_attention(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.options = inputs[-3:]
    ctx.save_for_backward(*inputs[:-3])
    ctx.set_materialize_grads(False)


def _backward_of_attention(
    ctx: Any, grad_context: Tensor | None, grad_log_sum_exp: Tensor | None
) -> tuple[Tensor | None, ...]:
    arguments = Arguments(*ctx.saved_tensors, *ctx.options)
    a, values = arguments.a, arguments.values
    if grad_context is None:
        grad_context = values.new_zeros(*a.shape[:-1], values.shape[-1])
    gradients = [grad_context, grad_log_sum_exp]
    with without_autocast(a.device):
        if torch.is_grad_enabled():
            compute = functools.partial(_pairwise_attention, ctx.options)
            return _differentiable_backward(ctx, gradients, compute)
        *others, grad_bias = attention_backward(*gradients, *arguments)
    return *others, None, None if arguments.bias is None else grad_bias, *[None] * 5


def _pairwise_attention(options: tuple[Any, ...], *tensors: Any) -> list[Tensor]:
    """Return the context and the log-sum-exp, computed on plain autograd with the same dropout."""
    arguments = Arguments(*tensors, *options)
    a, b, v, values, masked, bias, _, seed, normalizer, dropout, _ = arguments
    pairs = _pairwise_scores(blocks.flatten(a), blocks.flatten(b), v)[0]
    pairs = pairs.view(*a.shape[:-1], b.shape[-2])
    if bias is not None:
        bias = finite_bias(bias, pairs.dtype).to(pairs.dtype)
    weights = normalize(pairs if bias is None else pairs + bias, masked, normalizer)
    if seed is not None:
        weights = weights * _DropoutMask.apply(seed, weights, arguments.partition(), dropout)
    total = log_sum_exp(pairs, masked, bias) if normalizer == "softmax" else pairs[..., 0] * 0
    return [weights @ values, total]


def _differentiable_backward(
    ctx: Any, gradients: list[Tensor | None], compute: Callable[..., list[Tensor]]
) -> tuple[Tensor | None, ...]:
    """Return differentiable gradients with respect to an operator's inputs.

    `torch.func.vjp` also accepts inputs that do not require gradients: those of a `torch.func.vjp`
    that is called after the forward pass, for example by `torch.func.jacrev`.
    """
    inputs: list[Any] = list(ctx.saved_tensors)
    required = [i for i, need in enumerate(ctx.needs_input_grad[: len(inputs)]) if need]
    given = [i for i, gradient in enumerate(gradients) if gradient is not None]

    def outputs(*differentiated: Tensor) -> tuple[Tensor, ...]:
        values = dict(zip(required, differentiated, strict=True))
        results = compute(*(values.get(i, x) for i, x in enumerate(inputs)))
        return tuple(results[i] for i in given)

    pull_back = torch.func.vjp(outputs, *(inputs[i] for i in required))[1]
    grad_inputs = pull_back(tuple(gradients[i] for i in given))
    by_input = dict(zip(required, grad_inputs, strict=True))
    return tuple(by_input.get(i) for i in range(len(ctx.needs_input_grad)))


def _loop_over_batch(call: Callable[..., Any]) -> Any:
    """Return the `vmap` rule for a call: a loop over the batch."""

    def rule(info: Any, axes: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        def item(index: int) -> list[Any]:
            pairs = zip(inputs, axes, strict=True)
            return [x.select(axis, index) if isinstance(axis, int) else x for x, axis in pairs]

        outputs = [call(*item(index)) for index in range(info.batch_size)]
        if isinstance(outputs[0], Tensor):
            return torch.stack(outputs), 0
        return tuple(map(torch.stack, zip(*outputs, strict=True))), (0,) * len(outputs[0])

    return staticmethod(rule)


class _DropoutMask(torch.autograd.Function):
    """The factors of dropout that belong to a seed, which `torch.vmap` may have batched."""

    @staticmethod
    def forward(
        seed: Tensor, weights: Tensor, partition: list[tuple[slice, ...]], dropout: float
    ) -> Tensor:
        generator = torch.Generator(weights.device).manual_seed(int(seed))
        mask = torch.empty_like(weights)
        for block in partition:
            mask[block] = dropout_mask(weights[block], dropout, generator)
        return mask

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[None, ...]:
        return None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        return None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Tensor, int]:
        call: Callable[..., Any] = _DropoutMask.apply
        return _loop_over_batch(call)(info, in_dims, *inputs)


scores = scores_forward.with_gradients(
    _save_scores, _backward_of_scores, lambda *inputs: _pairwise_scores(*inputs[:3])[0]
)
"""Return the scores for a (N, L, D), b (N, T, D), v (H, D); item n uses row n mod H of v."""

attention = attention_forward.with_gradients(
    _save_attention,
    _backward_of_attention,
    lambda *inputs: tuple(_pairwise_attention(inputs[8:], *inputs[:8])),
)
"""Return the context and the log-sum-exp for the fields of `Arguments`, with gradients."""


def log_sum_exp(pairs: Tensor, masked: Tensor | None, bias: Tensor | None) -> Tensor:
    """Return the log of the partition function of every row; -inf where every key is masked."""
    pairs = pairs if bias is None else pairs + bias
    return (pairs if masked is None else pairs.masked_fill(masked, -torch.inf)).logsumexp(-1)
