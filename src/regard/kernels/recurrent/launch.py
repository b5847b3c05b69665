"""Launches the CPU kernel of a recurrent decoder's step: packs the weights, checks and allocates the rest."""

from typing import NamedTuple

import torch
from torch import Tensor

from regard.kernels.additive.cpu.exponentials import LARGEST_VECTOR
from regard.kernels.cpu.products import LANES, PANEL, ROWS, pack, panels_of
from regard.kernels.cpu.threads import Sizes, run_kernel
from regard.kernels.recurrent import cpu, layout
from regard.kernels.recurrent.op import Matrix, StepOutput, StepWeights

_STATE_TENSORS = {"lstm": 2, "gru": 1}
_MAX_BLOCK = 64
"""Rows of a task, which share the weights in the cache; with 16, a step takes 1.1 to 1.3 times as long."""


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
    """Multiplications of a row."""


def supports(weights: StepWeights) -> bool:
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


def pack_weights(weights: StepWeights) -> PackedWeights:
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
    vector = torch.empty(0) if weights.vector is None else weights.vector
    vector = torch.cat([vector, vector.sum()[None]]).detach()
    numbers = torch.cat(packed).detach()
    sizes = [int(size) for size in sizes]
    table = torch.tensor(sizes, dtype=torch.int64)
    return PackedWeights(
        numbers, table, sizes, weights.inputs.detach().contiguous(), vector, offset
    )


def step(
    weights: PackedWeights,
    tokens: Tensor,
    hidden: tuple[tuple[Tensor, ...], ...],
    feed: Tensor | None,
    keys: Tensor,
    values: Tensor,
    padding: Tensor,
) -> StepOutput | None:
    """Return the result of the step; None for inputs that the kernel does not support."""
    sizes, rows, (sources, length) = weights.sizes, len(tokens), padding.shape
    states = [tensor for layer in hidden for tensor in layer]
    fed = bool(sizes[layout.FED])
    # the kernel reads memory unchecked
    expected = [
        (keys, (sources, length, sizes[layout.SCORE_DIM])),
        (values, (sources, length, sizes[layout.VALUE_DIM])),
        *((state, (rows, sizes[layout.HIDDEN])) for state in states),
    ]
    if feed is not None:
        expected.append((feed, (rows, sizes[layout.READOUT_DIM])))
    if not (
        all(tensor.shape == shape and tensor.dtype == torch.float32 for tensor, shape in expected)
        and len(states) == sizes[layout.LAYERS] * sizes[layout.STATE_TENSORS]
        and tokens.dtype == torch.int64
        and padding.dtype == torch.bool
        and rows % max(1, sources) == 0
        and sizes[layout.ENTRIES] > 0
        and (feed is not None) == fed
    ):
        return None
    vocabulary, readout_dim = sizes[layout.VOCABULARY], sizes[layout.READOUT_DIM]
    log_probs = values.new_empty(rows, vocabulary)
    attention = values.new_empty(rows, length)
    readout = values.new_empty(rows, readout_dim)
    new = [torch.empty_like(state, memory_format=torch.contiguous_format) for state in states]
    inputs = [tokens, padding, keys, values, readout if feed is None else feed, *states]
    tokens, padding, keys, values, old_feed, *states = (tensor.contiguous() for tensor in inputs)
    tensors = [
        weights.numbers, weights.table, weights.inputs, weights.vector, tokens, padding, keys, values,
        old_feed, log_probs, attention, readout, *states, *new,
    ]  # fmt: skip
    block = _rows_per_task(rows, torch.get_num_threads())
    beams = rows // max(1, sources)
    kernel_sizes = Sizes(
        heads=beams, queries=rows, keys=length, width=sizes[layout.HIDDEN], tile=block
    )
    workspace = (1, block * cpu.workspace_width(sizes))
    work = rows * weights.work
    if not run_kernel(cpu.step, -(-rows // block), kernel_sizes, tensors, work, workspace):
        return None
    by_layer = zip(*[iter(new)] * sizes[layout.STATE_TENSORS], strict=True)
    return StepOutput(log_probs if vocabulary else None, attention, readout, tuple(by_layer))


def _rows_per_task(rows: int, threads: int) -> int:
    """Return a multiple of `ROWS` that gives every thread the same number of tasks."""
    tasks = threads * max(1, -(-rows // (_MAX_BLOCK * threads)))
    return max(1, -(-rows // (tasks * ROWS))) * ROWS
