"""Additive scores, and attention with them in blocks, as operators of PyTorch.

Opaque to `torch.compile`, with shapes and gradients that it knows; the backward passes are
operators of their own. Derivatives of any order are right: a backward pass that is itself
differentiated runs on plain autograd and holds all B x L x T x D pairs.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.kernels import backends, eager
from regard.kernels.dropout import keep

# The scores: a (N, L, D), b (N, T, D), v (H, D), item n with row n mod H of v.


scores = torch.library.custom_op("regard::additive_scores", backends.scores, mutates_args=())


@scores.register_fake
def _(a: Tensor, b: Tensor, v: Tensor, exponentials: Tensor | None, workspace: int) -> Tensor:
    return a.new_empty(a.shape[0], a.shape[1], b.shape[1])


@torch.library.custom_op("regard::additive_scores_backward", mutates_args=())
def scores_backward(
    gradient: Tensor, a: Tensor, b: Tensor, v: Tensor, workspace: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of a, b and v, given that of the scores."""
    return backends.gradients(gradient, a, b, v, workspace)


@scores_backward.register_fake
def _(
    gradient: Tensor, a: Tensor, b: Tensor, v: Tensor, workspace: int
) -> tuple[Tensor, Tensor, Tensor]:
    return _like(a), _like(b), _like(v)


def _keep_scores(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, _, ctx.workspace = inputs
    ctx.save_for_backward(*tensors)


def _differentiate_scores(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    if torch.is_grad_enabled():
        return _on_autograd(ctx, [gradient], _plain_scores)
    return *scores_backward(gradient, *ctx.saved_tensors, ctx.workspace), None, None


def _plain_scores(a: Tensor, b: Tensor, v: Tensor) -> list[Tensor]:
    """All pairs at once, differentiable as often as one likes."""
    vectors = v.repeat(a.shape[0] // v.shape[0], 1)[:, None, :, None]
    return [((a[:, :, None] + b[:, None]).tanh() @ vectors)[..., 0]]


scores.register_autograd(_differentiate_scores, setup_context=_keep_scores)


# Attention in blocks: a (B, H, L, D), b (B, H, T, D), v (H, D), values (B, H, T, Dv).


def rows_at_once(b: Tensor, normalizer: str, dropout: float, workspace: int) -> int:
    """Queries whose scores, and what is made of them, fit into the workspace."""
    # the scores, the weights and the gradients of both; with dropout what it keeps, twice
    copies = 6 if dropout > 0 else 4
    # the scores in order, where they were (integers of 8 bytes), and what is summed up of them
    copies += 0 if normalizer in ("softmax", "none") else 8
    return workspace // (copies * b.element_size() * max(1, b.shape[-2]))


def places(
    a: Tensor, b: Tensor, normalizer: str, dropout: float, workspace: int
) -> list[tuple[slice, ...]]:
    """Blocks of so many queries."""
    return eager.blocks(a.shape[:-1], rows_at_once(b, normalizer, dropout, workspace))


class _Block(NamedTuple):
    """What both passes need of a block of queries."""

    place: tuple[slice, ...]
    items: tuple[slice, ...]
    """The place without its last axis: batch and heads."""
    scores: Tensor
    """With the bias, -inf where masked."""
    masked: Tensor | None
    kept: Tensor | None
    """What dropout multiplies the weights with."""


def _blocks(
    a: Tensor,
    b: Tensor,
    v: Tensor,
    masked: Tensor | None,
    bias: Tensor | None,
    exponentials: Tensor | None,
    seed: Tensor | None,
    normalizer: str,
    dropout: float,
    workspace: int,
) -> Iterator[_Block]:
    """The blocks one after the other, the same in both passes, with the same draws of dropout."""
    if exponentials is None and a.device.type == "cpu" and (cpu := backends.module("cpu")):
        exponentials = cpu.exponentials(b)
    generator = None if seed is None else torch.Generator(a.device).manual_seed(int(seed))
    for place in places(a, b, normalizer, dropout, workspace):
        items = place[:-1]
        powers = None if exponentials is None else flat(exponentials[items])
        rows = flat(a[place]), flat(b[items]), v[place[1]]
        scores = backends.scores(*rows, powers, workspace).view(*a[place].shape[:-1], b.shape[-2])
        hidden = None if masked is None else _part(masked, place)
        if bias is not None:
            scores += _part(bias, place)
        if hidden is not None:
            scores.masked_fill_(hidden, -torch.inf)
        kept = keep(scores, dropout, generator) if dropout > 0 else None
        yield _Block(place, items, scores, hidden, kept)


def _part(tensor: Tensor, place: tuple[slice, ...]) -> Tensor:
    """The block of a tensor whose axes have the full size, or 1 and serve every block."""
    cuts = zip(place, tensor.shape, strict=False)
    return tensor[tuple(slice(None) if size == 1 else cut for cut, size in cuts)]


def _weigh(block: _Block, normalizer: str) -> Tensor:
    """The weights of a block; its scores are spent."""
    weights = eager.weigh(block.scores, normalizer)
    return weights if block.masked is None else weights.masked_fill_(block.masked, 0)


@torch.library.custom_op("regard::additive_attention", mutates_args=())
def attention(
    a: Tensor,
    b: Tensor,
    v: Tensor,
    values: Tensor,
    masked: Tensor | None,
    bias: Tensor | None,
    exponentials: Tensor | None,
    seed: Tensor | None,
    normalizer: str,
    dropout: float,
    workspace: int,
) -> tuple[Tensor, Tensor]:
    """The context (B, H, L, Dv) and the log-sum-exp (B, H, L), never more than a block of weights."""
    context = values.new_empty(*a.shape[:-1], values.shape[-1])
    total = a.new_zeros(a.shape[:-1])
    shared = a, b, v, masked, bias, exponentials, seed, normalizer, dropout, workspace
    for block in _blocks(*shared):
        highest = block.scores.amax(-1)
        weights = _weigh(block, normalizer)
        if normalizer == "softmax":
            # the largest weight is e^(highest - total); with every key masked, highest is -inf
            share = weights.amax(-1).log()
            total[block.place] = highest - share.masked_fill_(highest == -torch.inf, 0)
        weights = weights if block.kept is None else weights.mul_(block.kept)
        context[block.place] = weights @ values[block.items]
    return context, total


@attention.register_fake
def _(a: Tensor, b: Tensor, v: Tensor, values: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    return values.new_empty(*a.shape[:-1], values.shape[-1]), a.new_empty(a.shape[:-1])


@torch.library.custom_op("regard::additive_attention_backward", mutates_args=())
def attention_backward(
    of_context: Tensor,
    of_total: Tensor | None,
    a: Tensor,
    b: Tensor,
    v: Tensor,
    values: Tensor,
    masked: Tensor | None,
    bias: Tensor | None,
    exponentials: Tensor | None,
    seed: Tensor | None,
    normalizer: str,
    dropout: float,
    workspace: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of a, b, v, values and bias; every block's weights are made again."""
    of_a, of_b, of_v, of_values = (each.new_zeros(each.shape) for each in (a, b, v, values))
    of_bias = a.new_zeros(0 if bias is None else bias.shape)
    shared = a, b, v, masked, bias, exponentials, seed, normalizer, dropout, workspace
    for block in _blocks(*shared):
        place, items = block.place, block.items
        weights = _weigh(block, normalizer)
        dropped = weights if block.kept is None else weights * block.kept
        of_values[items] += dropped.mT @ of_context[place]
        gradient = of_context[place] @ values[items].mT
        if block.kept is not None:
            gradient *= block.kept
        if block.masked is not None:
            gradient.masked_fill_(block.masked, 0)
        gradient = eager.weigh_backward(gradient, weights, normalizer)
        if of_total is not None:
            gradient += weights * of_total[place][..., None]
        if bias is not None:
            part = _part(of_bias, place)
            part += gradient.sum_to_size(part.shape)
        rows = flat(a[place]), flat(b[items]), v[place[1]]
        shares = backends.gradients(flat(gradient), *rows, workspace)
        of_a[place] += shares[0].view_as(of_a[place])
        of_b[items] += shares[1].view_as(of_b[items])
        of_v[place[1]] += shares[2]
    return of_a, of_b, of_v, of_values, of_bias


@attention_backward.register_fake
def _(
    of_context: Tensor,
    of_total: Tensor | None,
    a: Tensor,
    b: Tensor,
    v: Tensor,
    values: Tensor,
    masked: Tensor | None,
    bias: Tensor | None,
    *others: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    of_bias = a.new_empty(0 if bias is None else bias.shape)
    return _like(a), _like(b), _like(v), _like(values), of_bias


def _keep_attention(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.normalizer, ctx.dropout, ctx.workspace = inputs
    ctx.save_for_backward(*tensors)
    ctx.set_materialize_grads(False)


def _differentiate_attention(
    ctx: Any, of_context: Tensor | None, of_total: Tensor | None
) -> tuple[Tensor | None, ...]:
    a, _, _, values, _, bias, *_ = ctx.saved_tensors
    if of_context is None:
        of_context = values.new_zeros(*a.shape[:-1], values.shape[-1])
    if torch.is_grad_enabled():
        return _on_autograd(ctx, [of_context, of_total], functools.partial(_plain_attention, ctx))
    with torch.autocast(a.device.type, enabled=False):
        *shares, of_bias = attention_backward(
            of_context, of_total, *ctx.saved_tensors, ctx.normalizer, ctx.dropout, ctx.workspace
        )
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
    pairs = _plain_scores(flat(a), flat(b), v)[0].view(*a.shape[:-1], b.shape[-2])
    weights = eager.normalize(pairs if bias is None else pairs + bias, masked, ctx.normalizer)
    if seed is not None:
        generator = torch.Generator(a.device).manual_seed(int(seed))
        kept = torch.empty_like(weights)
        for place in places(a, b, ctx.normalizer, ctx.dropout, ctx.workspace):
            kept[place] = keep(weights[place], ctx.dropout, generator)
        weights = weights * kept
    total = log_sum_exp(pairs, masked, bias) if ctx.normalizer == "softmax" else pairs[..., 0] * 0
    return [weights @ values, total]


attention.register_autograd(_differentiate_attention, setup_context=_keep_attention)


def _on_autograd(
    ctx: Any, gradients: list[Tensor | None], compute: Callable[..., list[Tensor]]
) -> tuple[Tensor | None, ...]:
    """The gradients of an operator's inputs, themselves differentiable."""
    # views: where one input was made from another, its gradient stays its own
    inputs: list[Any] = [None if each is None else each.view_as(each) for each in ctx.saved_tensors]
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


def _like(tensor: Tensor) -> Tensor:
    """What a gradient looks like: the shape of its tensor, contiguous."""
    return tensor.new_empty(tensor.shape)


def flat(rows: Tensor) -> Tensor:
    """Rows with batch and heads as one axis."""
    return rows.flatten(0, -3)


def log_sum_exp(pairs: Tensor, masked: Tensor | None, bias: Tensor | None) -> Tensor:
    """The log of the partition function of every row; -inf where every key is masked."""
    pairs = pairs if bias is None else pairs + bias
    return (pairs if masked is None else pairs.masked_fill(masked, -torch.inf)).logsumexp(-1)
