"""CPU backend: launches the kernels for the additive scores and their gradients.

The functions return None if an exponential is NaN, or so large that the result would be inexact.
"""

import math

import torch
from torch import Tensor

from regard.kernels.additive.cpu import layout
from regard.kernels.cpu.machine_code import Kernel, load
from regard.kernels.cpu.processor import BYTES
from regard.kernels.cpu.threads import Sizes, run_kernel

EXPONENTIALS = Kernel("additive.cpu.exponentials", "exponentials")
SCORES = Kernel("additive.cpu.scores", "scores")
BY_KEYS = Kernel("additive.cpu.gradients", "by_keys")
BY_FEATURES = Kernel("additive.cpu.gradients", "by_features")

TASKS_PER_THREAD = 16
"""Number of tasks per thread above which larger tasks are better than more tasks."""

PREPARE_ABOVE = 8
"""Largest number of queries, or of tiles, for which precomputing exponentials of keys is slower."""


def prepare_keys(b: Tensor) -> Tensor | None:
    """Return e^{2b}."""
    b = b.contiguous()
    out = torch.empty_like(b)
    tasks = -(-b.numel() // layout.ELEMENTS_PER_TASK)
    sizes, shape = Sizes(1, 1, b.numel(), 1), (1, BYTES // b.element_size())
    exact = run_kernel(load(EXPONENTIALS, b.dtype), tasks, sizes, [b, out], b.numel(), shape)
    return out if exact else None


def scores(a: Tensor, b: Tensor, v: Tensor, prepared: Tensor | None = None) -> Tensor | None:
    """Return the scores for a (N, L, D), b (N, T, D) and v (H, D); item n uses row n mod H of v."""
    items, queries, width = a.shape
    lanes = BYTES // a.element_size()
    padded = layout.padded_width(width, lanes)
    tile = min(layout.TILE_ELEMENTS // max(1, padded), items * queries // _enough_tasks())
    tile = max(4, min(tile, queries + 3) // 4 * 4)
    tiles = -(-queries // tile)
    if prepared is None and tiles > PREPARE_ABOVE:
        prepared = prepare_keys(b)
        if prepared is None:
            return None
    keys = b if prepared is None else prepared
    out = a.new_empty(items, queries, b.shape[1])
    max_b = math.inf
    if prepared is not None and queries > PREPARE_ABOVE and prepared.numel():
        max_b = math.log(float(prepared.numpy().max())) / 2
    sizes = Sizes(v.shape[0], queries, b.shape[1], width, tile, int(prepared is not None))
    shape = layout.scores_shape(padded, tile, lanes)
    inputs = [tensor.contiguous() for tensor in (a, keys, v)]
    tensors = [*inputs, out, a.new_tensor([max_b])]
    exact = run_kernel(
        load(SCORES, a.dtype), items * tiles, sizes, tensors, out.numel() * width, shape
    )
    return out if exact else None


def gradients(
    grad_scores: Tensor, a: Tensor, b: Tensor, v: Tensor
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return the gradients of a (N, L, D), b (N, T, D) and v (H, D)."""
    items, queries, width = a.shape
    keys = b.shape[1]
    grad_a, grad_b = a.new_empty(a.shape), b.new_empty(b.shape)
    grad_v = a.new_empty(items, width)
    lanes = BYTES // a.element_size()
    vectors = -(-width // lanes)
    if queries <= PREPARE_ABOVE:
        kernel, tasks, tile = BY_KEYS, items, 0
        shape = layout.by_keys_shape(queries, vectors * lanes)
    else:
        kernel = BY_FEATURES
        tile = max(1, min(vectors, items * vectors // _enough_tasks()))
        tasks = items * -(-vectors // tile)
        shape = layout.by_features_shape(queries, keys, lanes)
    sizes = Sizes(v.shape[0], queries, keys, width, tile)
    tensors = [*(tensor.contiguous() for tensor in (a, b, v, grad_scores)), grad_a, grad_b, grad_v]
    if not run_kernel(
        load(kernel, a.dtype), tasks, sizes, tensors, grad_scores.numel() * width, shape
    ):
        return None
    # numpy adds the items in order, on one thread
    by_head = grad_v.view(-1, *v.shape).numpy()
    return grad_a, grad_b, torch.from_numpy(by_head.sum(axis=0))


def _enough_tasks() -> int:
    return TASKS_PER_THREAD * torch.get_num_threads()
