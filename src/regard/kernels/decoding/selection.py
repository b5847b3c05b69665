"""Beam search inside of a kernel: its rows, and the continuations of one source's hypotheses.

The same rules as in `regard.hypotheses`. Row r of a block has the index `rows[r]` in the tensors.
"""

import math
from typing import Any

import numpy as np
from numba.extending import register_jitable

from regard.kernels.cpu import simd, tasks, threads
from regard.kernels.cpu.activations import exp_2x_bounded
from regard.kernels.cpu.packing import PANEL
from regard.kernels.cpu.processor import LANES
from regard.kernels.cpu.products import whole_vectors
from regard.kernels.cpu.tasks import doubles, floats, integers
from regard.kernels.decoding.layout import (
    ACTIVE,
    BEAMS,
    BEST,
    BEST_INDEX,
    BOS,
    CANDIDATES,
    CHOSEN,
    DIVISORS,
    ENDS,
    EOS,
    LENGTHS,
    LIMITS,
    MAX_DIVISORS,
    N_BEST,
    PAD,
    PARENTS,
    SCORES,
    TOKENS,
    TOTALS,
)

_ZERO, _HALF = np.float32(0), np.float32(0.5)
_LOWEST = np.float32(-np.inf)


@simd.inlined
def list_rows(arguments: Any, search: Any, first: Any, last: Any, beams: Any, rows: Any) -> Any:
    """List the rows of the active sources of a block; return their number."""
    count = 0
    for source in range(first, last):
        if integers(arguments, ACTIVE, source)[0] != 0:
            for beam in range(beams):
                rows[count] = source * search[BEAMS] + beam
                count += 1
    return count


@simd.inlined
def log_sum_exp(logits: Any, count: Any) -> Any:
    """Return log sum exp of the logits, which fill whole vectors."""
    padded = whole_vectors(count)
    zeros, half = simd.splat(_ZERO), simd.splat(_HALF)
    smallest = zeros - simd.load(logits, 0)
    for d in range(LANES, padded, LANES):
        smallest = simd.minimum(smallest, zeros - simd.load(logits, d))
    largest = _ZERO - simd.reduce_minimum(smallest)
    shift, total = simd.splat(largest), zeros
    for d in range(0, padded, LANES):
        total += exp_2x_bounded((simd.load(logits, d) - shift) * half)
    return largest + np.float32(math.log(simd.reduce_sum(total)))


@simd.inlined
def _insert(totals: Any, indices: Any, count: Any, total: Any, index: Any) -> None:
    """Insert a number into a descending list after its equals, and drop the last one."""
    place = count - 1
    while place > 0 and totals[place - 1] < total:
        totals[place], indices[place] = totals[place - 1], indices[place - 1]
        place -= 1
    totals[place], indices[place] = total, index


@simd.inlined
def _largest_of_panel(scores: Any, start: Any, previous: Any, log_sum: Any) -> Any:
    """Return the largest total of the continuations with the tokens of a panel, without NaN."""
    before, shift, zeros = simd.splat(previous), simd.splat(log_sum), simd.splat(_ZERO)
    low = zeros - (before + (simd.load(scores, start) - shift))
    high = zeros - (before + (simd.load(scores, start + LANES) - shift))
    infinite = simd.splat(-_LOWEST)
    return _ZERO - simd.reduce_minimum(simd.minimum(simd.minimum(infinite, low), high))


@register_jitable
def _find_best(
    arguments: Any, vocabulary: Any, search: Any, source: Any, length: Any, rows: Any,
    logits: Any, stride: Any,
) -> None:  # fmt: skip
    """Write the best continuations of a source's hypotheses, whose logits are in these rows."""
    count = search[CANDIDATES]
    totals = floats(arguments, BEST, source * count)
    indices = integers(arguments, BEST_INDEX, source * count)
    previous = floats(arguments, TOTALS, source * search[BEAMS])
    end = search[EOS]
    only_end = integers(arguments, LIMITS, source)[0] == length
    for place in range(count):
        totals[place], indices[place] = _LOWEST, end
    for row in range(rows):
        scores = simd.pointer_at(logits, row * stride)
        log_sum = log_sum_exp(scores, vocabulary)
        if not math.isfinite(log_sum):
            tasks.fetch_add(arguments, threads.OUT_OF_RANGE)
        for start in range(0, vocabulary, PANEL):
            # most tokens are worse than the candidates so far
            if _largest_of_panel(scores, start, previous[row], log_sum) > totals[count - 1]:
                for token in range(start, min(start + PANEL, vocabulary)):
                    total = previous[row] + (scores[token] - log_sum)
                    excluded = token == search[PAD] or token == search[BOS]
                    if (
                        total > totals[count - 1]
                        and not excluded
                        and (token == end or not only_end)
                    ):
                        _insert(totals, indices, count, total, row * vocabulary + token)


@simd.inlined
def _finish(
    arguments: Any, search: Any, source: Any, step: Any, length: Any, total: Any, beam: Any
) -> None:
    """Add a hypothesis that ends after `length` tokens, if it is one of the best."""
    count = search[N_BEST]
    scores = floats(arguments, SCORES, source * count)
    ends = integers(arguments, ENDS, source * count)
    lengths = integers(arguments, LENGTHS, source * count)
    score = total / np.float32(doubles(arguments, DIVISORS, step)[0])
    if score > scores[count - 1]:
        place = count - 1
        while place > 0 and scores[place - 1] < score:
            scores[place], ends[place] = scores[place - 1], ends[place - 1]
            lengths[place] = lengths[place - 1]
            place -= 1
        scores[place], ends[place], lengths[place] = score, beam, length


@register_jitable
def select(
    arguments: Any, vocabulary: Any, search: Any, source: Any, step: Any, length: Any, rows: Any,
    logits: Any, stride: Any,
) -> Any:  # fmt: skip
    """Choose the continuations of a source's hypotheses; return a pointer to their parents.

    `step` is the number of the step within this call; the hypotheses have `length` tokens each, and
    their logits are in these rows.
    """
    _find_best(arguments, vocabulary, search, source, length, rows, logits, stride)
    beams, count = search[BEAMS], search[CANDIDATES]
    sources = arguments[threads.QUERIES]
    best = floats(arguments, BEST, source * count)
    indices = integers(arguments, BEST_INDEX, source * count)
    parents = integers(arguments, PARENTS, (step * sources + source) * beams)
    chosen = integers(arguments, CHOSEN, (step * sources + source) * beams)
    totals = floats(arguments, TOTALS, source * beams)
    tokens = integers(arguments, TOKENS, source * beams)
    end, opened = search[EOS], 0
    for place in range(count):
        parent, token = indices[place] // vocabulary, indices[place] % vocabulary
        if token != end:
            if opened < beams:
                parents[opened], chosen[opened], totals[opened] = parent, token, best[place]
                tokens[opened] = token
                opened += 1
        elif best[place] > _LOWEST:
            _finish(arguments, search, source, step, length, best[place], parent)
    for beam in range(opened, beams):
        parents[beam], chosen[beam], totals[beam], tokens[beam] = 0, end, _LOWEST, end
    limit = integers(arguments, LIMITS, source)[0]
    last = floats(arguments, SCORES, (source + 1) * search[N_BEST] - 1)[0]
    bound = np.float64(totals[0]) / doubles(arguments, MAX_DIVISORS, source)[0]
    integers(arguments, ACTIVE, source)[0] = np.int64(np.float64(last) < bound and limit > length)
    return parents
