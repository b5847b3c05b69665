"""Additive attention as one operator: v . tanh(a + b), its softmax and its average, in bounded memory.

    e_ti = v . tanh(a_t + b_i)        alpha_t = softmax(e_t)        c_t = sum_i alpha_ti h_i

Bahdanau et al. 2015 (arXiv:1409.0473), A.1.2; `a` is their W_a s_{t-1}, `b` their U_a h_i. One door
for every caller; who computes is decided here: numba on the CPU (`cpu.py`), Triton on CUDA
(`gpu.py`), plain PyTorch (`eager.py`) everywhere else, and on the CPU wherever an exponential would
leave the range of the dtype. The operators are opaque to `torch.compile`, with shapes and gradients
that it knows. Half precisions are computed in float32 and rounded once.

Derivatives of any order are right. A backward pass that is itself differentiated runs on plain
autograd and holds all B x L x T x D pairs.
"""

import functools
import importlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.errors import ConfigError
from regard.kernels import eager
from regard.kernels.eager import WORKSPACE


class Looked(NamedTuple):
    """What looking with additive scores gives."""

    context: Tensor
    """(B, L, Dv) or (B, H, L, Dv): for every query the weighted average of the values."""
    weights: Tensor | None
    """(B, L, T) or (B, H, L, T): before dropout; None unless asked for."""
    log_sum_exp: Tensor | None
    """(B, L) or (B, H, L): log of the partition function, -inf for a row with every key masked;
    None unless asked for."""


def exponentials(b: Float[Tensor, "*n D"]) -> Float[Tensor, "*n D"] | None:
    """e^{2b}, which every step that looks at the same keys can share; None where it is of no use.

    It has no gradient: that of the scores goes to `b` directly.
    """
    cpu = _module("cpu") if b.device.type == "cpu" else None
    return cpu.exponentials(eager.wide(b.detach())) if cpu else None


def scores(
    a: Float[Tensor, "*n L D"],
    b: Float[Tensor, "*n T D"],
    v: Float[Tensor, "*h D"],
    exponentials: Float[Tensor, "*n T D"] | None = None,
    workspace: int = WORKSPACE,
) -> Float[Tensor, "*n L T"]:
    """e_ti = v . tanh(a_t + b_i), (B, L, T); with a head axis (B, H, L, D), (B, H, T, D), (H, D).

    Args:
        a: transformed queries.
        b: transformed keys.
        v: the vector that sums the features, one per head.
        exponentials: `exponentials(b)`, where they are at hand.
        workspace: bound in bytes on what is held beyond inputs and outputs.
    """
    dtype = a.dtype
    with torch.autocast(a.device.type, enabled=False):
        a, b, v = eager.wide(a), eager.wide(b), eager.wide(v)
        graph = torch.is_grad_enabled() or torch.compiler.is_compiling()
        compute = _scores if graph else _pairs
        powers = None if exponentials is None else _flat(exponentials)
        rows = _flat(a), _flat(b), v if v.dim() == 2 else v[None]
        return compute(*rows, powers, workspace).view(*a.shape[:-1], b.shape[-2]).to(dtype)


def attend(
    a: Float[Tensor, "*n L D"],
    b: Float[Tensor, "*n T D"],
    v: Float[Tensor, "*h D"],
    values: Float[Tensor, "*n T Dv"],
    masked: Bool[Tensor, "*m #L T"] | None = None,
    bias: Float[Tensor, "*m2 L T"] | None = None,
    normalizer: str = "softmax",
    dropout: float = 0.0,
    need_weights: bool = False,
    need_log_sum_exp: bool = False,
    exponentials: Float[Tensor, "*n T D"] | None = None,
    workspace: int = WORKSPACE,
) -> Looked:
    """Look with `v . tanh(a + b)`: the context, and the weights where they are asked for.

    Args:
        a: transformed queries, (B, L, D) or with heads (B, H, L, D).
        b: transformed keys, (B, T, D) or (B, H, T, D).
        v: the vector that sums the features, (D,) or (H, D).
        values: what is averaged, (B, T, Dv) or (B, H, T, Dv).
        masked: True = may not be attended to; with as many axes as `a`, those of size 1 serve all.
        bias: added to the scores; with as many axes as `a`.
        normalizer: `softmax` or `none`.
        dropout: share of weights dropped, the others scaled up.
        need_weights: give the weights too; they are held whole then.
        need_log_sum_exp: give the log of the partition function too, for `softmax`.
        exponentials: `exponentials(b)`, where they are at hand.
        workspace: bound in bytes on what is held beyond inputs, outputs and their gradients,
            forward and backward, unless weights are asked for.

    A masked pair never matters, whatever its score, forward and backward. Values of keys that some
    queries may not see must be finite.
    """
    if need_log_sum_exp and normalizer != "softmax":
        raise ConfigError(f"the normaliser {normalizer!r} has no log-sum-exp; softmax has")
    dtype = values.dtype
    with torch.autocast(a.device.type, enabled=False):
        a, b, v, values = (eager.wide(rows) for rows in (a, b, v, values))
        if need_weights or not b.shape[-2] or len(_places(a, b, dropout, workspace)) <= 1:
            pairs = scores(a, b, v, exponentials, workspace)
            context, weights = eager.average(pairs, values, masked, bias, normalizer, dropout)
            total = _log_sum_exp(pairs, masked, bias) if need_log_sum_exp else None
            return Looked(context.to(dtype), weights.to(dtype) if need_weights else None, total)
        seed = torch.randint(2**62, ()) if dropout > 0 else None
        given: Any = a, b, values, masked, bias, exponentials
        if a.dim() == 3:
            given = tuple(tensor if tensor is None else tensor[:, None] for tensor in given)
        a, b, values, masked, bias, exponentials = given
        vectors = v if v.dim() == 2 else v[None]
        context, total = _attention(
            a, b, vectors, values, masked, bias, exponentials, seed, normalizer, dropout, workspace
        )  # fmt: skip
        if v.dim() == 1:
            context, total = context[:, 0], total[:, 0]
        return Looked(context.to(dtype), None, total if need_log_sum_exp else None)


def _flat(rows: Tensor) -> Tensor:
    """Rows with batch and heads as one axis."""
    return rows.flatten(0, -3)


def _log_sum_exp(pairs: Tensor, masked: Tensor | None, bias: Tensor | None) -> Tensor:
    pairs = pairs if bias is None else pairs + bias
    return (pairs if masked is None else pairs.masked_fill(masked, -torch.inf)).logsumexp(-1)


# Who computes.


def _pairs(a: Tensor, b: Tensor, v: Tensor, exponentials: Tensor | None, workspace: int) -> Tensor:
    """The scores (N, L, T) of a (N, L, D), b (N, T, D), v (H, D), item n with row n mod H of v."""
    found = None
    if a.device.type == "cuda" and (gpu := _module("gpu")):
        found = gpu.scores(a, b, v)
    elif a.device.type == "cpu" and (cpu := _module("cpu")):
        found = cpu.scores(a, b, v, exponentials)
    return eager.additive_scores(a, b, v, workspace) if found is None else found


def _shares(
    gradient: Tensor, a: Tensor, b: Tensor, v: Tensor, workspace: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of a, b and v, given that of the scores."""
    found = None
    if a.device.type == "cuda" and (gpu := _module("gpu")):
        found = gpu.gradients(gradient, a, b, v)
    elif a.device.type == "cpu" and (cpu := _module("cpu")):
        found = cpu.gradients(gradient, a, b, v)
    return eager.additive_gradients(gradient, a, b, v, workspace) if found is None else found


@functools.cache
def _module(name: str) -> Any:
    """The backend, or None where what it needs is not installed, said once."""
    try:
        return importlib.import_module(f"regard.kernels.{name}")
    except ImportError as error:
        warnings.warn(
            f"additive attention runs on plain PyTorch, many times slower: {error}", stacklevel=2
        )
        return None


# The scores as an operator: a (N, L, D), b (N, T, D), v (H, D), item n with row n mod H of v.


_scores = torch.library.custom_op("regard::additive_scores", _pairs, mutates_args=())


@_scores.register_fake
def _(a: Tensor, b: Tensor, v: Tensor, exponentials: Tensor | None, workspace: int) -> Tensor:
    return a.new_empty(a.shape[0], a.shape[1], b.shape[1])


@torch.library.custom_op("regard::additive_scores_backward", mutates_args=())
def _scores_backward(
    gradient: Tensor, a: Tensor, b: Tensor, v: Tensor, workspace: int
) -> tuple[Tensor, Tensor, Tensor]:
    return _shares(gradient, a, b, v, workspace)


@_scores_backward.register_fake
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
    return *_scores_backward(gradient, *ctx.saved_tensors, ctx.workspace), None, None


def _plain_scores(a: Tensor, b: Tensor, v: Tensor) -> list[Tensor]:
    """All pairs at once, differentiable as often as one likes."""
    vectors = v.repeat(a.shape[0] // v.shape[0], 1)[:, None, :, None]
    return [((a[:, :, None] + b[:, None]).tanh() @ vectors)[..., 0]]


_scores.register_autograd(_differentiate_scores, setup_context=_keep_scores)


# Attention in blocks as an operator: a (B, H, L, D), b (B, H, T, D), v (H, D), values (B, H, T, Dv).


def _places(a: Tensor, b: Tensor, dropout: float, workspace: int) -> list[tuple[slice, ...]]:
    """Blocks of queries whose scores, and what is made of them, fit into the workspace."""
    # the scores, the weights and the gradients of both; with dropout what it keeps, twice
    copies = 6 if dropout > 0 else 4
    room = workspace // (copies * a.element_size() * max(1, b.shape[-2]))
    return eager.blocks(a.shape[:-1], room)


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
    dropout: float,
    workspace: int,
) -> Iterator[_Block]:
    """The blocks one after the other, the same in both passes, with the same draws of dropout."""
    if exponentials is None and a.device.type == "cpu" and (cpu := _module("cpu")):
        exponentials = cpu.exponentials(b)
    generator = None if seed is None else torch.Generator(a.device).manual_seed(int(seed))
    for place in _places(a, b, dropout, workspace):
        items = place[:-1]
        powers = None if exponentials is None else _flat(exponentials[items])
        rows = _flat(a[place]), _flat(b[items]), v[place[1]]
        scores = _pairs(*rows, powers, workspace).view(*a[place].shape[:-1], b.shape[-2])
        hidden = None if masked is None else _part(masked, place)
        if bias is not None:
            scores += _part(bias, place)
        if hidden is not None:
            scores.masked_fill_(hidden, -torch.inf)
        yield _Block(place, items, scores, hidden, eager.drop(scores, dropout, generator))


def _part(tensor: Tensor, place: tuple[slice, ...]) -> Tensor:
    """The block of a tensor whose axes have the full size, or 1 and serve every block."""
    cuts = zip(place, tensor.shape, strict=False)
    return tensor[tuple(slice(None) if size == 1 else cut for cut, size in cuts)]


def _weigh(block: _Block, normalizer: str) -> Tensor:
    """The weights of a block; its scores are spent."""
    weights = block.scores if normalizer == "none" else torch.softmax(block.scores, dim=-1)
    return weights if block.masked is None else weights.masked_fill_(block.masked, 0)


@torch.library.custom_op("regard::additive_attention", mutates_args=())
def _attention(
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
    context = values.new_empty(*a.shape[:-1], values.shape[-1])
    total = a.new_zeros(a.shape[:-1])
    shared = a, b, v, masked, bias, exponentials, seed, dropout, workspace
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


@_attention.register_fake
def _(
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
    return values.new_empty(*a.shape[:-1], values.shape[-1]), a.new_empty(a.shape[:-1])


@torch.library.custom_op("regard::additive_attention_backward", mutates_args=())
def _attention_backward(
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
    of_a, of_b, of_v, of_values = (each.new_zeros(each.shape) for each in (a, b, v, values))
    of_bias = a.new_zeros(0 if bias is None else bias.shape)
    shared = a, b, v, masked, bias, exponentials, seed, dropout, workspace
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
        if normalizer == "softmax":
            gradient = torch.ops.aten._softmax_backward_data(gradient, weights, -1, weights.dtype)
        if of_total is not None:
            gradient += weights * of_total[place][..., None]
        if bias is not None:
            part = _part(of_bias, place)
            part += gradient.sum_to_size(part.shape)
        rows = _flat(a[place]), _flat(b[items]), v[place[1]]
        shares = _shares(_flat(gradient), *rows, workspace)
        of_a[place] += shares[0].view_as(of_a[place])
        of_b[items] += shares[1].view_as(of_b[items])
        of_v[place[1]] += shares[2]
    return of_a, of_b, of_v, of_values, of_bias


@_attention_backward.register_fake
def _(
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
        *shares, of_bias = _attention_backward(
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
    pairs = _plain_scores(_flat(a), _flat(b), v)[0].view(*a.shape[:-1], b.shape[-2])
    weights = eager.normalize(pairs if bias is None else pairs + bias, masked, ctx.normalizer)
    if seed is not None:
        generator = torch.Generator(a.device).manual_seed(int(seed))
        kept = torch.empty_like(weights)
        for place in _places(a, b, ctx.dropout, ctx.workspace):
            kept[place] = cast("Tensor", eager.drop(weights[place], ctx.dropout, generator))
        weights = weights * kept
    total = _log_sum_exp(pairs, masked, bias) if ctx.normalizer == "softmax" else pairs[..., 0] * 0
    return [weights @ values, total]


_attention.register_autograd(_differentiate_attention, setup_context=_keep_attention)


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
