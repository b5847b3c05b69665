"""Attention with additive scores, a block of queries at a time: all weights are never held at once.

a (B, H, L, D), b (B, H, T, D), v (H, D), values (B, H, T, Dv). The backward pass makes the weights
of every block again.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from regard.kernels import eager
from regard.kernels.additive import dispatch
from regard.kernels.dropout import dropout_mask


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
    if exponentials is None:
        exponentials = dispatch.prepare_keys(b)
    generator = None if seed is None else torch.Generator(a.device).manual_seed(int(seed))
    for place in places(a, b, normalizer, dropout, workspace):
        items = place[:-1]
        powers = None if exponentials is None else flat(exponentials[items])
        rows = flat(a[place]), flat(b[items]), v[place[1]]
        scores = dispatch.scores(*rows, powers, workspace).view(*a[place].shape[:-1], b.shape[-2])
        hidden = None if masked is None else _part(masked, place)
        if bias is not None:
            scores += _part(bias, place)
        if hidden is not None:
            scores.masked_fill_(hidden, -torch.inf)
        kept = dropout_mask(scores, dropout, generator) if dropout > 0 else None
        yield _Block(place, items, scores, hidden, kept)


def _part(tensor: Tensor, place: tuple[slice, ...]) -> Tensor:
    """The block of a tensor whose axes have the full size, or 1 and serve every block."""
    cuts = zip(place, tensor.shape, strict=False)
    return tensor[tuple(slice(None) if size == 1 else cut for cut, size in cuts)]


def _weigh(block: _Block, normalizer: str) -> Tensor:
    """The weights of a block; its scores are spent."""
    weights = eager.apply_normalizer(block.scores, normalizer)
    return weights if block.masked is None else weights.masked_fill_(block.masked, 0)


def attend(
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


def gradients(
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
        gradient = eager.normalizer_backward(gradient, weights, normalizer)
        if of_total is not None:
            gradient += weights * of_total[place][..., None]
        if bias is not None:
            part = _part(of_bias, place)
            part += gradient.sum_to_size(part.shape)
        rows = flat(a[place]), flat(b[items]), v[place[1]]
        shares = dispatch.gradients(flat(gradient), *rows, workspace)
        of_a[place] += shares[0].view_as(of_a[place])
        of_b[items] += shares[1].view_as(of_b[items])
        of_v[place[1]] += shares[2]
    return of_a, of_b, of_v, of_values, of_bias


def flat(rows: Tensor) -> Tensor:
    """Rows with batch and heads as one axis."""
    return rows.flatten(0, -3)
