"""The additive scores and their gradients on the CPU: what the compiled loops are given, and give back.

Where an exponential would be NaN, or so far out that the result would not be exact, the functions
here give None.
"""

import math

import torch
from torch import Tensor

from regard.kernels import lanes, loops, workers

LARGEST_VECTOR = 1e18
"""|v| up to which sums over pairs of features stay finite on their way."""

ENOUGH_UNITS = 64
"""Units of work from which on larger ones are better than more."""


def exponentials(rows: Tensor) -> Tensor | None:
    """e^{2x} of rows (..., D)."""
    rows = rows.contiguous()
    out = torch.empty_like(rows)
    units = -(-rows.numel() // loops.NUMBERS_PER_UNIT)
    farthest = rows.new_empty(units)
    sizes, spare = (1, 1, rows.numel(), 1, 0), lanes.BYTES // rows.element_size()
    workers.run(loops.exponentials, units, sizes, [rows, out, farthest], rows.numel(), spare)
    return out if _reached(farthest) else None


def scores(
    queries: Tensor, sources: Tensor, vectors: Tensor, powers: Tensor | None = None
) -> Tensor | None:
    """The scores of a (N, L, D), b (N, T, D) and v (H, D), item n with row n mod H of v.

    `powers` are the exponentials of b, where they are at hand.
    """
    items, rows, width = queries.shape
    units = items * -(-rows // loops.QUERIES_PER_UNIT)
    if not _near(vectors):
        return None
    if powers is None and rows > loops.QUERIES_PER_UNIT:
        powers = exponentials(sources)
        if powers is None:
            return None
    keys = sources.shape[1]
    sources = sources if powers is None else powers
    given = [each.contiguous() for each in (queries, sources, vectors)]
    out, farthest = queries.new_empty(items, rows, keys), queries.new_empty(units)
    far = math.inf
    if powers is not None and rows > loops.QUERIES_PER_UNIT and powers.numel():
        # how far the keys go; with few queries it does not pay to know
        far = math.log(float(powers.max())) / 2
    sizes = vectors.shape[0], rows, keys, width, int(powers is not None)
    pair = 2 * lanes.BYTES // queries.element_size()
    scratch = (loops.QUERIES_PER_UNIT + 2) * -(-width // pair) * pair + pair // 2
    tensors = [*given, out, farthest, queries.new_tensor([far])]
    workers.run(loops.scores, units, sizes, tensors, out.numel() * width, scratch)
    return out if _reached(farthest) else None


def gradients(
    gradient: Tensor, queries: Tensor, sources: Tensor, vectors: Tensor
) -> tuple[Tensor, Tensor, Tensor] | None:
    """The gradients of a (N, L, D), b (N, T, D) and v (H, D), given that of the scores (N, L, T)."""
    if not _near(vectors):
        return None
    given = [each.contiguous() for each in (queries, sources, vectors, gradient)]
    items, rows, width = queries.shape
    keys = sources.shape[1]
    of_queries, of_sources = (queries.new_empty(each.shape) for each in (queries, sources))
    of_vectors = queries.new_empty(items, width)
    size = lanes.BYTES // queries.element_size()
    vectors_per_row = -(-width // size)
    if rows <= loops.QUERIES_PER_UNIT:
        make, units, together = loops.by_keys, items, 0
        scratch = (2 * rows + 4) * vectors_per_row * size
    else:
        together = max(1, min(vectors_per_row, items * vectors_per_row // ENOUGH_UNITS))
        make = loops.by_features
        units, scratch = items * -(-vectors_per_row // together), (2 * (rows + keys) + 1) * size
    farthest = queries.new_empty(units)
    sizes = vectors.shape[0], rows, keys, width, together
    tensors = [*given, of_queries, of_sources, of_vectors, farthest]
    workers.run(make, units, sizes, tensors, gradient.numel() * width, scratch)
    if not _reached(farthest):
        return None
    # numpy adds the items in their order, on one thread
    by_head = of_vectors.view(-1, *vectors.shape).numpy()
    return of_queries, of_sources, torch.from_numpy(by_head.sum(axis=0))


def _near(vectors: Tensor) -> bool:
    # NaN compares false
    return bool((abs(vectors.numpy()) <= LARGEST_VECTOR).all())


def _reached(farthest: Tensor) -> bool:
    # NaN compares false
    reach = loops.REACH if farthest.dtype == torch.float32 else loops.REACH_OF_DOUBLES
    return bool((farthest.numpy() <= reach).all())
