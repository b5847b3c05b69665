"""Launches the CPU kernel of a recurrent decoder's steps: packs the weights, checks and allocates the rest."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.kernels.additive.cpu.exponentials import LARGEST_VECTOR
from regard.kernels.cpu.products import LANES, PANEL, ROWS, pack, panels_of
from regard.kernels.cpu.threads import Sizes, run_kernel
from regard.kernels.recurrent import cpu, layout
from regard.kernels.recurrent.op import (
    DecoderWeights,
    FinishedTensors,
    KernelState,
    Matrix,
    OpenHypotheses,
    SearchOutput,
    SourceTensors,
    StepOutput,
)

_INTEGERS: dict[str, Any] = {"dtype": torch.int64, "device": "cpu"}
"""Type of the tensors of integers; the default device may be another one."""
_STATE_TENSORS = {"lstm": 2, "gru": 1}
_MAX_BLOCK = 64
"""Rows of a task, which share the weights in the cache; with 16, a step takes 1.1 to 1.3 times as long."""
_MAX_STEPS = 32
"""Steps of a call."""
_MAX_WORK = 20_000_000_000
"""Multiplications of a call: 0.2 to 0.4 seconds, after which a search can be ended."""


class PackedWeights(NamedTuple):
    """The weights of a step as the kernel reads them."""

    numbers: Tensor
    """All matrices, packed."""
    table: Tensor
    """int64, with the indices of `layout.py`."""
    sizes: list[int]
    """The same numbers."""
    inputs: Tensor
    vector: Tensor
    """v and its sum; the sum alone for an inner product."""
    work: int
    """Multiplications of a row by weights."""


def supports(weights: DecoderWeights) -> bool:
    """Return whether the kernel computes the step: float32 on the CPU, widths of whole vectors."""
    matrices = [weights.query, weights.readout, *weights.recurrent, *weights.upper]
    matrices += [matrix for matrix in (weights.feed, weights.output) if matrix]
    vector = weights.vector
    given = [weights.inputs, vector, *(tensor for matrix in matrices for tensor in matrix)]
    tensors = [tensor for tensor in given if tensor is not None]
    return (
        weights.cell in _STATE_TENSORS
        and all(t.dtype == torch.float32 and t.device.type == "cpu" for t in tensors)
        and not (weights.readout[0].shape[1] % LANES or len(weights.readout[0]) % LANES)
        and len(weights.query[0]) % PANEL == 0
        and (vector is None or bool(vector.abs().max() <= LARGEST_VECTOR))
    )


def pack_weights(weights: DecoderWeights) -> PackedWeights:
    """Return the weights in the order in which the kernel reads them."""
    readout_dim, hidden_dim = weights.readout[0].shape
    gates, layers = weights.inputs.shape[1], len(weights.recurrent)
    extra = gates if weights.attends_first else 0
    matrices: list[Matrix | None] = [weights.query, weights.readout, weights.output, weights.feed]
    for layer, recurrent in enumerate(weights.recurrent):
        matrices += [weights.upper[layer - 1], recurrent] if layer else [recurrent]
    sizes = [
        layers, hidden_dim, gates, _STATE_TENSORS[weights.cell], len(weights.inputs), len(weights.query[0]),
        extra + readout_dim, readout_dim, 0 if weights.output is None else len(weights.output[0]),
        weights.vector is not None, weights.attends_first, weights.feed is not None,
    ]  # fmt: skip
    packed, offset = list[Tensor](), 0
    for matrix in matrices:
        if matrix is None:
            sizes += [0, 0, 0]
            continue
        packed.append(pack(*matrix))
        sizes += [offset, matrix[0].shape[1], panels_of(len(matrix[0]))]
        offset += packed[-1].numel()
    vector = weights.inputs.new_empty(0) if weights.vector is None else weights.vector
    vector = torch.cat([vector, vector.sum()[None]]).detach()
    numbers = torch.cat(packed).detach()
    sizes = [int(size) for size in sizes]
    table = torch.tensor(sizes, **_INTEGERS)
    return PackedWeights(
        numbers, table, sizes, weights.inputs.detach().contiguous(), vector, offset
    )


def step(
    weights: PackedWeights,
    tokens: Tensor,
    state: KernelState,
    sources: SourceTensors,
) -> StepOutput | None:
    """Return the result of a step; None for inputs that the kernel does not support."""
    count, rows = len(sources.padding), len(tokens)
    beams = rows // max(1, count)
    if rows != beams * count or tokens.dtype != torch.int64:
        return None
    search = [1, 1, beams, 0, 0, 0, 0, 0]
    log_probs = sources.values.new_empty(rows, weights.sizes[layout.VOCABULARY])
    changed = {layout.TOKENS: tokens.clone(), layout.LOG_PROBS: log_probs}
    output = _run(weights, search, changed, state, sources, rows)
    if output is None:
        return None
    attention, state = output
    return StepOutput(log_probs if log_probs.shape[1] else None, attention[0], state)


def search(
    weights: PackedWeights,
    opened: OpenHypotheses,
    finished: FinishedTensors,
    state: KernelState,
    sources: SourceTensors,
) -> SearchOutput | None:
    """Return the hypotheses after several steps; None for inputs that the kernel does not support."""
    count, beams = len(sources.padding), opened.beams
    if not (weights.sizes[layout.VOCABULARY] and count):
        return None
    steps = min(_MAX_STEPS, max(1, _MAX_WORK // (count * beams * _work(weights, sources))))
    steps = min(steps, len(finished.divisors))
    candidates = 2 * beams if beams > 1 else 1
    n_best = finished.scores.shape[1]
    sizes = [steps, opened.length, beams, n_best, candidates, *opened.special]
    tokens = _by_beam(opened.tokens.long().flatten()[:, None], count, beams)
    new = sources.values.new_empty  # the default dtype may be another one
    totals = new(count, beams).fill_(-torch.inf)
    totals[:, : opened.log_probs.shape[1]] = opened.log_probs
    parents, chosen = torch.empty(2, steps, count, beams, **_INTEGERS)
    scores, ends, lengths = (tensor.clone() for tensor in finished[3:])
    active = torch.ones(count, **_INTEGERS)
    changed = {
        layout.ACTIVE: active, layout.TOKENS: tokens, layout.TOTALS: totals,
        layout.LIMITS: finished.limits, layout.MAX_DIVISORS: finished.max_divisors,
        layout.DIVISORS: finished.divisors,
        layout.BEST: new(count, candidates),
        layout.BEST_INDEX: torch.empty(count, candidates, **_INTEGERS),
        layout.PARENTS: parents, layout.CHOSEN: chosen,
        layout.SCORES: scores, layout.ENDS: ends, layout.LENGTHS: lengths,
    }  # fmt: skip
    output = _run(weights, sizes, changed, state, sources, opened.tokens.numel())
    if output is None:
        return None
    opened = opened._replace(
        tokens=tokens.view(count, beams), log_probs=totals, length=opened.length + steps
    )
    finished = finished._replace(scores=scores, ends=ends, lengths=lengths)
    return SearchOutput(opened, finished, active.bool(), parents, chosen, *output)


def _run(
    weights: PackedWeights,
    search: list[int],
    given: dict[int, Tensor],
    state: KernelState,
    sources: SourceTensors,
    rows: int,
) -> tuple[Tensor, KernelState] | None:
    """Return the attention weights (S, B K, T) and the new state, given a state of N rows."""
    sizes, (count, length) = weights.sizes, sources.padding.shape
    steps, _, beams, *_ = search
    if not _are_supported(sizes, state, sources, rows):
        return None
    attention = sources.values.new_empty(steps, count * beams, length)
    feed = sources.values.new_empty(count * beams, sizes[layout.READOUT_DIM])
    if state.feed is not None:
        feed = _by_beam(state.feed, count, beams)
    states = [_by_beam(tensor, count, beams) for layer in state.hidden for tensor in layer]
    none = torch.empty(0, **_INTEGERS)
    given |= {
        layout.WEIGHTS: weights.numbers, layout.TABLE: weights.table,
        layout.INPUTS: weights.inputs, layout.VECTOR: weights.vector,
        layout.PADDING: sources.padding, layout.KEYS: sources.keys, layout.VALUES: sources.values,
        layout.SEARCH: torch.tensor(search, **_INTEGERS), layout.ATTENTION: attention, layout.FEED: feed,
        layout.ROWS: torch.empty(count * beams, **_INTEGERS),
        **{layout.STATES + number: tensor for number, tensor in enumerate(states)},
    }  # fmt: skip
    given.setdefault(layout.ACTIVE, torch.ones(count, **_INTEGERS))
    tensors = [given.get(index, none).contiguous() for index in range(layout.STATES + len(states))]
    per_task = _sources_per_task(count, beams, torch.get_num_threads())
    kernel_sizes = Sizes(
        heads=beams, queries=count, keys=length, width=sizes[layout.HIDDEN], tile=per_task
    )
    block = -(-per_task * beams // ROWS) * ROWS
    workspace = (1, block * cpu.workspace_width(sizes))
    work = steps * count * beams * _work(weights, sources)
    if not run_kernel(cpu.steps, -(-count // per_task), kernel_sizes, tensors, work, workspace):
        return None
    by_layer = zip(*[iter(states)] * sizes[layout.STATE_TENSORS], strict=True)
    return attention, KernelState(tuple(by_layer), feed)


def _work(weights: PackedWeights, sources: SourceTensors) -> int:
    """Return the number of multiplications of a row."""
    width = weights.sizes[layout.SCORE_DIM] + weights.sizes[layout.VALUE_DIM]
    return weights.work + sources.padding.shape[1] * width


def _are_supported(sizes: list[int], state: KernelState, sources: SourceTensors, rows: int) -> bool:
    """Return whether the kernel, which reads memory unchecked, can read these tensors."""
    count, length = sources.padding.shape
    states = [tensor for layer in state.hidden for tensor in layer]
    expected = [
        (sources.keys, (count, length, sizes[layout.SCORE_DIM])),
        (sources.values, (count, length, sizes[layout.VALUE_DIM])),
        *((tensor, (rows, sizes[layout.HIDDEN])) for tensor in states),
    ]
    if state.feed is not None:
        expected.append((state.feed, (rows, sizes[layout.READOUT_DIM])))
    return (
        all(tensor.shape == shape and tensor.dtype == torch.float32 for tensor, shape in expected)
        and len(states) == sizes[layout.LAYERS] * sizes[layout.STATE_TENSORS]
        and sources.padding.dtype == torch.bool
        and sizes[layout.ENTRIES] > 0
        and (state.feed is not None) == bool(sizes[layout.FED])
    )


def _by_beam(tensor: Tensor, sources: int, beams: int) -> Tensor:
    """Return a copy with `beams` rows for each source: those given, then zeros."""
    rows = tensor.unflatten(0, (sources, len(tensor) // max(1, sources)))
    copied = tensor.new_zeros(sources, beams, tensor.shape[-1])
    copied[:, : rows.shape[1]] = rows
    return copied.flatten(0, 1)


def _sources_per_task(sources: int, beams: int, threads: int) -> int:
    """Return a number that gives every thread about the same number of tasks."""
    tasks = threads * max(1, -(-sources * beams // (_MAX_BLOCK * threads)))
    return max(1, -(-sources // tasks))
