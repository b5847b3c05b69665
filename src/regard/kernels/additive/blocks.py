"""Additive attention in blocks of queries: only the weights of one block are in memory at a time.

The backward pass recomputes the weights of every block.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.kernels.additive import dispatch
from regard.kernels.additive.pytorch import partition
from regard.kernels.dropout import dropout_mask
from regard.kernels.normalizers import apply_normalizer, normalizer_backward
from regard.kernels.weighted_sum import finite_bias


class Arguments(NamedTuple):
    """Arguments of additive attention."""

    a: Tensor
    """(B, H, L, D): projected queries."""
    b: Tensor
    """(B, H, T, D): projected keys."""
    v: Tensor
    """(H, D)."""
    values: Tensor
    """(B, H, T, Dv)."""
    masked: Tensor | None
    """bool; like `bias`, broadcast to (B, H, L, T)."""
    bias: Tensor | None
    prepared: Tensor | None
    """Result of `dispatch.prepare_keys`."""
    seed: Tensor | None
    """Seed of dropout; None without dropout."""
    normalizer: str
    dropout: float
    workspace: int
    """Bound on temporary memory, in bytes."""

    def partition(self) -> list[tuple[slice, ...]]:
        """Return the blocks, as slices of (B, H, L)."""
        capacity = queries_per_block(self.b, self.normalizer, self.dropout, self.workspace)
        return partition(self.a.shape[:-1], capacity)


def queries_per_block(b: Tensor, normalizer: str, dropout: float, workspace: int) -> int:
    """Return the number of queries whose scores and temporary tensors fit into the workspace."""
    # the scores, the weights and the gradients of both; with dropout, two copies of its mask
    copies = 6 if dropout > 0 else 4
    # the sorted scores, their indices (integers of 8 bytes) and cumulative sums
    copies += 0 if normalizer in ("softmax", "none") else 8
    return workspace // (copies * b.element_size() * max(1, b.shape[-2]))


class _Block(NamedTuple):
    """A block of queries."""

    queries: tuple[slice, ...]
    """Index of the queries, (B, H, L)."""
    keys: tuple[slice, ...]
    """Index of their keys, (B, H)."""
    scores: Tensor
    """Scores plus bias; -inf where masked."""
    weights: Tensor
    """Weights before dropout; with the normaliser `none`, the same tensor as `scores`."""
    masked: Tensor | None
    dropout_mask: Tensor | None


def _blocks(arguments: Arguments) -> Iterator[_Block]:
    """Yield the blocks, which are equal in both passes, dropout included."""
    a, b, v, _, masked, bias, prepared, seed, normalizer, dropout, workspace = arguments
    if prepared is None:
        prepared = dispatch.prepare_keys(b)
    generator = None if seed is None else torch.Generator(a.device).manual_seed(int(seed))
    for queries in arguments.partition():
        keys = queries[:-1]
        scores = dispatch.scores(
            flatten(a[queries]), flatten(b[keys]), v[queries[1]],
            None if prepared is None else flatten(prepared[keys]), workspace,
        ).view(*a[queries].shape[:-1], b.shape[-2])  # fmt: skip
        masked_block = None if masked is None else _slice(masked, queries)
        if bias is not None:
            scores += finite_bias(_slice(bias, queries), scores.dtype)
        if masked_block is not None:
            scores.masked_fill_(masked_block, -torch.inf)
        weights = apply_normalizer(scores, normalizer)
        if masked_block is not None:
            weights.masked_fill_(masked_block, 0)
        mask = dropout_mask(scores, dropout, generator) if dropout > 0 else None
        yield _Block(queries, keys, scores, weights, masked_block, mask)


def _slice(tensor: Tensor, queries: tuple[slice, ...]) -> Tensor:
    """Return the block of a tensor whose axes have full size, or size 1 for broadcasting."""
    axes = zip(queries, tensor.shape, strict=False)
    return tensor[tuple(slice(None) if size == 1 else axis for axis, size in axes)]


def attend(*fields: Any) -> tuple[Tensor, Tensor]:
    """Return the context (B, H, L, Dv) and, for softmax, the log-sum-exp (B, H, L)."""
    arguments = Arguments(*fields)
    a, values = arguments.a, arguments.values
    context = values.new_empty(*a.shape[:-1], values.shape[-1])
    log_sum_exp = a.new_zeros(a.shape[:-1])
    for block in _blocks(arguments):
        weights = block.weights
        if arguments.normalizer == "softmax":
            # the largest weight is e^(maximum - log_sum_exp); the maximum is -inf if every key is masked
            maximum, log_weight = block.scores.amax(-1), weights.amax(-1).log()
            log_sum_exp[block.queries] = maximum - log_weight.masked_fill_(maximum == -torch.inf, 0)
        weights = weights if block.dropout_mask is None else weights.mul_(block.dropout_mask)
        context[block.queries] = weights @ values[block.keys]
    return context, log_sum_exp


def gradients(
    grad_context: Tensor, grad_log_sum_exp: Tensor | None, *fields: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of a, b, v, values and bias; the last is empty without a bias."""
    arguments = Arguments(*fields)
    a, b, v, values, _, bias, *_ = arguments
    grad_a, grad_b, grad_v, grad_values = (x.new_zeros(x.shape) for x in (a, b, v, values))
    grad_bias = a.new_zeros(0 if bias is None else bias.shape)
    for block in _blocks(arguments):
        queries, keys, weights = block.queries, block.keys, block.weights
        dropped = weights if block.dropout_mask is None else weights * block.dropout_mask
        grad_values[keys] += dropped.mT @ grad_context[queries]
        gradient = grad_context[queries] @ values[keys].mT
        if block.dropout_mask is not None:
            gradient *= block.dropout_mask
        if block.masked is not None:
            gradient.masked_fill_(block.masked, 0)
        gradient = normalizer_backward(gradient, weights, arguments.normalizer)
        if grad_log_sum_exp is not None:
            gradient += weights * grad_log_sum_exp[queries][..., None]
        if bias is not None:
            grad_slice = _slice(grad_bias, queries)
            grad_slice += gradient.sum_to_size(grad_slice.shape)
        rows = flatten(a[queries]), flatten(b[keys]), v[queries[1]]
        block_a, block_b, block_v = dispatch.gradients(
            flatten(gradient), *rows, arguments.workspace
        )
        grad_a[queries] += block_a.view_as(grad_a[queries])
        grad_b[keys] += block_b.view_as(grad_b[keys])
        grad_v[queries[1]] += block_v
    return grad_a, grad_b, grad_v, grad_values, grad_bias


def flatten(rows: Tensor) -> Tensor:
    """Return rows with batch and heads as one axis."""
    return rows.flatten(0, -3)
