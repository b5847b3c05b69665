"""Launches the CPU kernel of a recurrent decoder's steps: packs the weights, checks and allocates the rest."""

from typing import NamedTuple

import torch
from torch import Tensor

from regard.kernels.additive.cpu.layout import LARGEST_VECTOR
from regard.kernels.cpu.machine_code import Kernel, load
from regard.kernels.cpu.packing import PANEL, ROWS
from regard.kernels.cpu.processor import LANES
from regard.kernels.cpu.threads import Sizes, run_kernel
from regard.kernels.decoding import launch as decoding
from regard.kernels.decoding import layout as shared
from regard.kernels.decoding.launch import INTEGERS, by_beam, pack_matrices, sources_per_task
from regard.kernels.decoding.op import FinishedTensors, Matrix, OpenHypotheses, SearchOutput
from regard.kernels.recurrent import layout
from regard.kernels.recurrent.op import (
    DecoderWeights,
    KernelState,
    SourceTensors,
    StepOutput,
)

_KERNEL = Kernel("recurrent.cpu", "steps")
_STATE_TENSORS = {"lstm": 2, "gru": 1}


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
    """Multiplications of a row by weights, about half as many in bfloat16, which take half the time."""


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
    numbers, entries = pack_matrices(matrices)
    vector = weights.inputs.new_empty(0) if weights.vector is None else weights.vector
    vector = torch.cat([vector, vector.sum()[None]]).detach()
    sizes = [int(size) for size in [*sizes, *entries]]
    table = torch.tensor(sizes, **INTEGERS)
    return PackedWeights(
        numbers, table, sizes, weights.inputs.detach().contiguous(), vector, numbers.numel()
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
    changed = {shared.TOKENS: tokens.clone(), layout.LOG_PROBS: log_probs}
    output = _run(weights, search, changed, state, sources, rows)
    if output is None:
        return None
    attention, state = output
    return StepOutput(log_probs if log_probs.shape[1] else None, attention[0, :, 0, 0], state)


def search(
    weights: PackedWeights,
    opened: OpenHypotheses,
    finished: FinishedTensors,
    state: KernelState,
    sources: SourceTensors,
) -> SearchOutput | None:
    """Return the hypotheses after several steps; None for inputs that the kernel does not support."""
    if not (weights.sizes[layout.VOCABULARY] and len(sources.padding)):
        return None
    rows = opened.tokens.numel()
    return decoding.search(
        opened, finished, _work(weights, sources),
        lambda sizes, given: _run(weights, sizes, given, state, sources, rows),
    )  # fmt: skip


def _run(
    weights: PackedWeights,
    search: list[int],
    given: dict[int, Tensor],
    state: KernelState,
    sources: SourceTensors,
    rows: int,
) -> tuple[Tensor, KernelState] | None:
    """Return the attention weights (S, B K, 1, 1, T) and the new state, given a state of N rows."""
    sizes, (count, length) = weights.sizes, sources.padding.shape
    steps, _, beams, *_ = search
    if not _are_supported(sizes, state, sources, rows):
        return None
    attention = sources.values.new_empty(steps, count * beams, length)
    feed = sources.values.new_empty(count * beams, sizes[layout.READOUT_DIM])
    if state.feed is not None:
        feed = by_beam(state.feed, count, beams)
    states = [by_beam(tensor, count, beams) for layer in state.hidden for tensor in layer]
    none = torch.empty(0, **INTEGERS)
    given |= {
        shared.WEIGHTS: weights.numbers, shared.TABLE: weights.table,
        shared.INPUTS: weights.inputs, layout.VECTOR: weights.vector,
        shared.PADDING: sources.padding, layout.KEYS: sources.keys, layout.VALUES: sources.values,
        shared.SEARCH: torch.tensor(search, **INTEGERS), shared.ATTENTION: attention, layout.FEED: feed,
        shared.ROWS: torch.empty(count * beams, **INTEGERS),
        **{layout.STATES + number: tensor for number, tensor in enumerate(states)},
    }  # fmt: skip
    given.setdefault(shared.ACTIVE, torch.ones(count, **INTEGERS))
    tensors = [given.get(index, none).contiguous() for index in range(layout.STATES + len(states))]
    per_task = sources_per_task(count, beams, torch.get_num_threads())
    kernel_sizes = Sizes(
        heads=beams, queries=count, keys=length, width=sizes[layout.HIDDEN], tile=per_task
    )
    block = -(-per_task * beams // ROWS) * ROWS
    workspace = (1, block * layout.workspace_width(sizes))
    work = steps * count * beams * _work(weights, sources)
    if not run_kernel(load(_KERNEL), -(-count // per_task), kernel_sizes, tensors, work, workspace):
        return None
    by_layer = zip(*[iter(states)] * sizes[layout.STATE_TENSORS], strict=True)
    return attention[:, :, None, None], KernelState(tuple(by_layer), feed)


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
