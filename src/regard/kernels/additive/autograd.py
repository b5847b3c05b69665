"""Additive scores, and attention with them in blocks, as operators of PyTorch with their gradients.

Opaque to `torch.compile`, with shapes and gradients that it knows; the backward passes are
operators of their own. Where nobody traces, what computes is called directly: PyTorch's way to an
operator in Python takes a twentieth of a call with 32 x 32 pairs of 32 items, and what its first
use imports takes 140 MB.

Derivatives of any order are right: a backward pass that is itself differentiated runs on plain
autograd and holds all B x L x T x D pairs.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from regard.kernels import eager
from regard.kernels.additive import blocks, dispatch
from regard.kernels.dropout import dropout_mask

_torch: Any = torch._C  # pyright: ignore[reportPrivateUsage]


def scores(a: Tensor, b: Tensor, v: Tensor, exponentials: Tensor | None, workspace: int) -> Tensor:
    """e_ti = v . tanh(a_t + b_i) of a (N, L, D), b (N, T, D), v (H, D), item n with row n mod H."""
    inputs = a, b, v, exponentials, workspace
    return _chosen(traced_scores, _Scores.apply, dispatch.scores, inputs)(*inputs)


def attention(*inputs: Any) -> tuple[Tensor, Tensor]:
    """What `blocks.attend` gives for the same arguments, with gradients."""
    return _chosen(traced_attention, _Attention.apply, blocks.attend, inputs)(*inputs)


def _chosen(
    operator: Callable[..., Any],
    function: Callable[..., Any],
    compute: Callable[..., Any],
    inputs: Sequence[Any],
) -> Callable[..., Any]:
    """How to call: as an operator, as a function with gradients, or as it is."""
    if not torch.compiler.is_compiling() and _torch._are_functorch_transforms_active():
        # torch.vmap, torch.func.grad and the like see through functions, not through operators
        return function
    if _traced(inputs):
        return operator
    return function if torch.is_grad_enabled() else compute


def _traced(inputs: Sequence[Any]) -> bool:
    """Must PyTorch's dispatcher see the call: does anybody record it, or a tensor hold no numbers?"""
    return (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
        or is_in_torch_dispatch_mode()
        or not all(_holds_numbers(each) for each in inputs if isinstance(each, Tensor))
    )


def _holds_numbers(tensor: Tensor) -> bool:
    return type(tensor) in (Tensor, Parameter) and _torch._has_storage(tensor)


traced_scores = torch.library.custom_op("regard::additive_scores", dispatch.scores, mutates_args=())
traced_scores_gradients = torch.library.custom_op(
    "regard::additive_scores_backward", dispatch.gradients, mutates_args=()
)
traced_attention = torch.library.custom_op(
    "regard::additive_attention", blocks.attend, mutates_args=()
)
traced_attention_gradients = torch.library.custom_op(
    "regard::additive_attention_backward", blocks.gradients, mutates_args=()
)


@traced_scores.register_fake
def _(a: Tensor, b: Tensor, *others: Any) -> Tensor:
    return a.new_empty(a.shape[0], a.shape[1], b.shape[1])


@traced_scores_gradients.register_fake
def _(gradient: Tensor, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    a, b, v, _ = inputs
    return _like(a), _like(b), _like(v)


@traced_attention.register_fake
def _(a: Tensor, b: Tensor, v: Tensor, values: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    return values.new_empty(*a.shape[:-1], values.shape[-1]), a.new_empty(a.shape[:-1])


@traced_attention_gradients.register_fake
def _(
    of_context: Tensor, of_total: Tensor | None, *inputs: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    a, b, v, values, _, bias, *_ = inputs
    of_bias = a.new_empty(0 if bias is None else bias.shape)
    return _like(a), _like(b), _like(v), _like(values), of_bias


def _like(tensor: Tensor) -> Tensor:
    """What a gradient looks like: the shape of its tensor, contiguous."""
    return tensor.new_empty(tensor.shape)


def _keep_scores(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, _, ctx.workspace = inputs
    ctx.save_for_backward(*tensors)


def _differentiate_scores(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors
    with eager.without_autocast(gradient.device):
        if torch.is_grad_enabled():
            return _on_autograd(ctx, saved, [gradient], _plain_scores)
        traced = _traced([gradient, *saved])
        compute: Any = traced_scores_gradients if traced else dispatch.gradients
        return *compute(gradient, *saved, ctx.workspace), None, None


def _plain_scores(a: Tensor, b: Tensor, v: Tensor) -> list[Tensor]:
    """All pairs at once, differentiable as often as one likes."""
    vectors = v.repeat(a.shape[0] // v.shape[0], 1)[:, None, :, None]
    return [((a[:, :, None] + b[:, None]).tanh() @ vectors)[..., 0]]


def _keep_attention(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.normalizer, ctx.dropout, ctx.workspace = inputs
    ctx.save_for_backward(*tensors)
    ctx.set_materialize_grads(False)


def _differentiate_attention(
    ctx: Any, of_context: Tensor | None, of_total: Tensor | None
) -> tuple[Tensor | None, ...]:
    a, _, _, values, _, bias, *_ = saved = ctx.saved_tensors
    if of_context is None:
        of_context = values.new_zeros(*a.shape[:-1], values.shape[-1])
    given = [of_context, of_total]
    with eager.without_autocast(a.device):
        if torch.is_grad_enabled():
            return _on_autograd(ctx, saved, given, functools.partial(_plain_attention, ctx))
        traced = _traced([*given, *saved])
        compute: Any = traced_attention_gradients if traced else blocks.gradients
        *shares, of_bias = compute(*given, *saved, ctx.normalizer, ctx.dropout, ctx.workspace)
    return *shares, None, None if bias is None else of_bias, *[None] * 5


def _plain_attention(
    ctx: Any,
    a: Tensor,
    b: Tensor,
    v: Tensor,
    values: Tensor,
    masked: Tensor | None,
    bias: Tensor | None,
    exponentials: Tensor | None,
    seed: Tensor | None,
) -> list[Tensor]:
    """The same on plain autograd; dropout draws block by block as the operator does."""
    pairs = _plain_scores(blocks.flat(a), blocks.flat(b), v)[0].view(*a.shape[:-1], b.shape[-2])
    weights = eager.normalize(pairs if bias is None else pairs + bias, masked, ctx.normalizer)
    if seed is not None:
        generator = torch.Generator(a.device).manual_seed(int(seed))
        kept = torch.empty_like(weights)
        for place in blocks.places(a, b, ctx.normalizer, ctx.dropout, ctx.workspace):
            kept[place] = dropout_mask(weights[place], ctx.dropout, generator)
        weights = weights * kept
    total = log_sum_exp(pairs, masked, bias) if ctx.normalizer == "softmax" else pairs[..., 0] * 0
    return [weights @ values, total]


def _on_autograd(
    ctx: Any,
    saved: Sequence[Tensor | None],
    gradients: list[Tensor | None],
    compute: Callable[..., list[Tensor]],
) -> tuple[Tensor | None, ...]:
    """The gradients of an operator's inputs, themselves differentiable."""
    # views: where one input was made from another, its gradient stays its own
    inputs: list[Any] = [None if each is None else each.view_as(each) for each in saved]
    wanted = [i for i, need in enumerate(ctx.needs_input_grad[: len(inputs)]) if need]
    pairs = [(o, g) for o, g in zip(compute(*inputs), gradients, strict=True) if g is not None]
    outputs, given = zip(*pairs, strict=True)
    found = torch.autograd.grad(
        outputs, [inputs[i] for i in wanted], given, create_graph=True, materialize_grads=True
    )
    shares: list[Tensor | None] = [None] * len(ctx.needs_input_grad)
    for i, share in zip(wanted, found, strict=True):
        shares[i] = share
    return tuple(shares)


traced_scores.register_autograd(_differentiate_scores, setup_context=_keep_scores)
traced_attention.register_autograd(_differentiate_attention, setup_context=_keep_attention)


def _slice_by_slice(call: Callable[..., Any]) -> Any:
    """What `torch.vmap` makes of a call."""

    def mapped(info: Any, axes: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        def at(number: int) -> list[Any]:
            pairs = zip(inputs, axes, strict=True)
            return [each if axis is None else each.select(axis, number) for each, axis in pairs]

        slices = [call(*at(number)) for number in range(info.batch_size)]
        if isinstance(slices[0], Tensor):
            return torch.stack(slices), 0
        return tuple(map(torch.stack, zip(*slices, strict=True))), (0,) * len(slices[0])

    return staticmethod(mapped)


class _Scores(torch.autograd.Function):
    """The scores with their gradients, called directly where that will do."""

    @staticmethod
    def forward(*inputs: Any) -> Tensor:
        return (traced_scores if _traced(inputs) else dispatch.scores)(*inputs)

    setup_context = staticmethod(_keep_scores)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _differentiate_scores(ctx, *gradients)

    vmap = _slice_by_slice(scores)


class _Attention(torch.autograd.Function):
    """Attention in blocks with its gradients, called directly where that will do."""

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, Tensor]:
        return (traced_attention if _traced(inputs) else blocks.attend)(*inputs)

    setup_context = staticmethod(_keep_attention)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return _differentiate_attention(ctx, *gradients)

    vmap = _slice_by_slice(attention)


def log_sum_exp(pairs: Tensor, masked: Tensor | None, bias: Tensor | None) -> Tensor:
    """The log of the partition function of every row; -inf where every key is masked."""
    pairs = pairs if bias is None else pairs + bias
    return (pairs if masked is None else pairs.masked_fill(masked, -torch.inf)).logsumexp(-1)
