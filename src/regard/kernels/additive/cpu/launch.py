"""The additive scores and their gradients on the CPU: what the compiled loops are given, and give back.

Where an exponential would be NaN, or so far out that the result would not be exact, the functions
here give None.
"""

import math

import torch
from torch import Tensor

from regard.kernels.additive.cpu import common, simd, threads
from regard.kernels.additive.cpu import gradients as gradient_kernels
from regard.kernels.additive.cpu import scores as score_kernels

UNITS_PER_THREAD = 16
"""Units of a thread's work from which on larger ones are better than more."""

FEW = 8
"""Queries, or looks at all keys, for which it does not pay to prepare the keys first."""


def prepare_keys(b: Tensor) -> Tensor | None:
    """Return e^{2b}."""
    b = b.contiguous()
    out = torch.empty_like(b)
    units = -(-b.numel() // common.NUMBERS_PER_UNIT)
    sizes, spare = (1, 1, b.numel(), 1, 0, 0), simd.BYTES // b.element_size()
    right = threads.run(common.exponentials, units, sizes, [b, out], b.numel(), spare)
    return out if right else None


def scores(
    queries: Tensor, sources: Tensor, vectors: Tensor, powers: Tensor | None = None
) -> Tensor | None:
    """The scores of a (N, L, D), b (N, T, D) and v (H, D), item n with row n mod H of v.

    `powers` are the exponentials of b, where they are at hand.
    """
    items, rows, width = queries.shape
    size = simd.BYTES // queries.element_size()
    padded = score_kernels.padded_width(width, size)
    together = min(score_kernels.NUMBERS_AT_ONCE // max(1, padded), items * rows // _enough_units())
    together = max(4, min(together, rows + 3) // 4 * 4)
    blocks = -(-rows // together)
    if powers is None and blocks > FEW:
        powers = prepare_keys(sources)
        if powers is None:
            return None
    keys = sources.shape[1]
    sources = sources if powers is None else powers
    given = [each.contiguous() for each in (queries, sources, vectors)]
    out = queries.new_empty(items, rows, keys)
    far = math.inf
    if powers is not None and rows > FEW and powers.numel():
        # how far the keys go
        far = math.log(float(powers.numpy().max())) / 2
    sizes = vectors.shape[0], rows, keys, width, together, int(powers is not None)
    scratch = score_kernels.room(padded, together, size)
    tensors = [*given, out, queries.new_tensor([far])]
    right = threads.run(
        score_kernels.scores, items * blocks, sizes, tensors, out.numel() * width, scratch
    )
    return out if right else None


def gradients(
    gradient: Tensor, queries: Tensor, sources: Tensor, vectors: Tensor
) -> tuple[Tensor, Tensor, Tensor] | None:
    """The gradients of a (N, L, D), b (N, T, D) and v (H, D), given that of the scores (N, L, T)."""
    given = [each.contiguous() for each in (queries, sources, vectors, gradient)]
    items, rows, width = queries.shape
    keys = sources.shape[1]
    of_queries, of_sources = (queries.new_empty(each.shape) for each in (queries, sources))
    of_vectors = queries.new_empty(items, width)
    size = simd.BYTES // queries.element_size()
    vectors_per_row = -(-width // size)
    if rows <= FEW:
        make, units, together = gradient_kernels.by_keys, items, 0
        scratch = gradient_kernels.room_by_keys(rows, vectors_per_row * size)
    else:
        together = max(1, min(vectors_per_row, items * vectors_per_row // _enough_units()))
        make = gradient_kernels.by_features
        units = items * -(-vectors_per_row // together)
        scratch = gradient_kernels.room_by_features(rows, keys, size)
    sizes = vectors.shape[0], rows, keys, width, together, 0
    tensors = [*given, of_queries, of_sources, of_vectors]
    if not threads.run(make, units, sizes, tensors, gradient.numel() * width, scratch):
        return None
    # numpy adds the items in their order, on one thread
    by_head = of_vectors.view(-1, *vectors.shape).numpy()
    return of_queries, of_sources, torch.from_numpy(by_head.sum(axis=0))


def _enough_units() -> int:
    return UNITS_PER_THREAD * torch.get_num_threads()
