"""Launcher of a search inside of a kernel: its matrices, how many steps a call has, and the tensors of the selection."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from regard.kernels.cpu.packing import is_packed_in_bfloat16, pack, panels_of
from regard.kernels.decoding import layout
from regard.kernels.decoding.op import FinishedTensors, Matrix, OpenHypotheses, SearchOutput

INTEGERS: dict[str, Any] = {"dtype": torch.int64, "device": "cpu"}
"""Type of the tensors of integers; the default device may be another one."""

MAX_BLOCK = 64
"""Rows of a task, which share the weights in the cache; with 16, a step takes 1.1 to 1.3 times as long."""
_MAX_STEPS = 32
"""Steps of a call."""
_MAX_WORK = 20_000_000_000
"""Multiplications of a call: 0.2 to 0.4 seconds, after which a search can be ended."""


def pack_matrices(matrices: Sequence[Matrix | None]) -> tuple[Tensor, list[int]]:
    """Return the matrices for `multiply`, and its `ENTRY` numbers for each of them, 0 for None."""
    packed, entries, offset = list[Tensor](), list[int](), 0
    for matrix in matrices:
        if matrix is None:
            entries += [0] * layout.ENTRY
            continue
        packed.append(pack(*matrix))
        outputs, inputs = matrix[0].shape
        entries += [offset, inputs, panels_of(outputs), int(is_packed_in_bfloat16(inputs))]
        offset += packed[-1].numel()
    return torch.cat(packed).detach(), entries


def search(
    opened: OpenHypotheses,
    finished: FinishedTensors,
    work: int,
    run: Callable[[list[int], dict[int, Tensor]], tuple[Tensor, Any] | None],
    least_steps: int = 1,
) -> SearchOutput | None:
    """Return the hypotheses after several steps; None for inputs that the kernel does not support.

    Args:
        opened: the hypotheses before.
        finished: those that have ended before.
        work: multiplications of a row in one step.
        run: runs the kernel, given the sizes of a search and the tensors of the selection; returns the
            attention weights and the state.
        least_steps: number of steps that are computed in any case, if the outputs are not shorter.
    """
    count, beams = len(opened.tokens), opened.beams
    steps = min(_MAX_STEPS, max(least_steps, _MAX_WORK // (count * beams * work)))
    steps = min(steps, len(finished.divisors))
    candidates = 2 * beams if beams > 1 else 1
    n_best = finished.scores.shape[1]
    sizes = [steps, opened.length, beams, n_best, candidates, *opened.special]
    tokens = by_beam(opened.tokens.long().flatten()[:, None], count, beams)
    new = opened.log_probs.new_empty  # the default dtype may be another one
    totals = new(count, beams).fill_(-torch.inf)
    totals[:, : opened.log_probs.shape[1]] = opened.log_probs
    parents, chosen = torch.empty(2, steps, count, beams, **INTEGERS)
    scores, ends, lengths = (tensor.clone() for tensor in finished[3:])
    active = torch.ones(count, **INTEGERS)
    changed = {
        layout.ACTIVE: active, layout.TOKENS: tokens, layout.TOTALS: totals,
        layout.LIMITS: finished.limits, layout.MAX_DIVISORS: finished.max_divisors,
        layout.DIVISORS: finished.divisors,
        layout.BEST: new(count, candidates),
        layout.BEST_INDEX: torch.empty(count, candidates, **INTEGERS),
        layout.PARENTS: parents, layout.CHOSEN: chosen,
        layout.SCORES: scores, layout.ENDS: ends, layout.LENGTHS: lengths,
    }  # fmt: skip
    output = run(sizes, changed)
    if output is None:
        return None
    opened = opened._replace(
        tokens=tokens.view(count, beams), log_probs=totals, length=opened.length + steps
    )
    finished = finished._replace(scores=scores, ends=ends, lengths=lengths)
    return SearchOutput(opened, finished, active.bool(), parents, chosen, *output)


def by_beam(tensor: Tensor, sources: int, beams: int) -> Tensor:
    """Return a copy with `beams` rows for each source: those given, then zeros."""
    rows = tensor.unflatten(0, (sources, len(tensor) // max(1, sources)))
    copied = tensor.new_zeros(sources, beams, *tensor.shape[1:])
    copied[:, : rows.shape[1]] = rows
    return copied.flatten(0, 1)


def sources_per_task(sources: int, beams: int, threads: int) -> int:
    """Return a number that gives every thread about the same number of tasks."""
    tasks = threads * max(1, -(-sources * beams // (MAX_BLOCK * threads)))
    return max(1, -(-sources // tasks))
