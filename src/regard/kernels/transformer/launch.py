"""Launches the CPU kernel of a Transformer decoder's search: packs the weights, checks and allocates the rest."""

from typing import NamedTuple

import torch
from torch import Tensor

from regard.kernels.cpu.machine_code import Kernel, load
from regard.kernels.cpu.packing import PANEL, ROWS
from regard.kernels.cpu.processor import LANES
from regard.kernels.cpu.threads import Sizes, run_kernel
from regard.kernels.decoding import launch as decoding
from regard.kernels.decoding import layout as shared
from regard.kernels.decoding.launch import INTEGERS, pack_matrices, sources_per_task
from regard.kernels.decoding.op import (
    MOST_WEIGHT_BYTES,
    FinishedTensors,
    Matrix,
    OpenHypotheses,
    SearchOutput,
)
from regard.kernels.transformer import layout
from regard.kernels.transformer.op import (
    LayerWeights,
    Norm,
    TransformerCache,
    TransformerPast,
    TransformerPositions,
    TransformerSources,
    TransformerWeights,
)

_KERNEL = Kernel("transformer.cpu", "steps")
_FLOAT_BYTES = 4
_LEAST_STEPS = 8
"""Steps of a call at least, if the outputs are not shorter: every call copies the keys and values so far."""


class PackedWeights(NamedTuple):
    """The weights of a decoder as the kernel reads them."""

    numbers: Tensor
    """All matrices, packed."""
    table: Tensor
    """int64, with the indices of `layout.py`."""
    sizes: list[int]
    """The same numbers."""
    inputs: Tensor
    norms: Tensor
    epsilons: Tensor


def supports(weights: TransformerWeights) -> bool:
    """Return whether the kernel computes the search: float32 on the CPU, equal layers, whole vectors."""
    (vocabulary, width), heads = weights.inputs.shape, weights.heads
    if not weights.layers or (weights.norm is not None) != weights.pre_norm:
        return False
    inner, hidden = len(weights.layers[0].source_query[0]), len(weights.layers[0].hidden[0])
    expanded = hidden // (2 if weights.activation == "swiglu" else 1)
    shapes = [
        (3 * inner, width), (width, inner), (inner, width), (width, inner), (hidden, width),
        (width, expanded),
    ]  # fmt: skip
    pairs = [(weights.output, (vocabulary, width))]
    pairs += [
        pair for layer in weights.layers for pair in zip(_matrices(layer), shapes, strict=True)
    ]
    parts = [(part, (width,)) for norm in _norms(weights) for part in norm[:2]]
    parts += [(matrix, shape) for (matrix, _), shape in pairs]
    parts += [(bias, shape[:1]) for (_, bias), shape in pairs if bias is not None]
    return (
        all(part.shape == shape and _is_readable(part) for part, shape in parts)
        and _is_readable(weights.inputs)
        and not (width % PANEL or inner % PANEL or expanded % PANEL)
        and not inner % (heads * LANES)
        and (not weights.planes or inner == 2 * heads * weights.planes)
        and not weights.planes % LANES
    )


def _is_readable(tensor: Tensor) -> bool:
    return (tensor.dtype, tensor.device.type) == (torch.float32, "cpu")


def pack_weights(weights: TransformerWeights) -> PackedWeights:
    """Return the weights in the order in which the kernel reads them."""
    layers, (vocabulary, width) = weights.layers, weights.output[0].shape
    matrices = [weights.output, *(matrix for layer in layers for matrix in _matrices(layer))]
    numbers, entries = pack_matrices(matrices)
    sizes = [
        len(layers), width, len(layers[0].source_query[0]), weights.heads, weights.planes,
        len(layers[0].hidden[0]), vocabulary, weights.pre_norm,
        layout.ACTIVATIONS.index(weights.activation), *entries,
    ]  # fmt: skip
    sizes = [int(size) for size in sizes]
    norms = _norms(weights)
    return PackedWeights(
        numbers, torch.tensor(sizes, **INTEGERS), sizes, weights.inputs.detach().contiguous(),
        torch.stack([torch.stack([norm.weight, norm.bias]) for norm in norms]).detach(),
        weights.inputs.new_tensor([norm.epsilon for norm in norms]),
    )  # fmt: skip


def _matrices(layer: LayerWeights) -> list[Matrix]:
    """Return the matrices in the order of `layout.py`."""
    return [
        layer.projections, layer.combination, layer.source_query, layer.source_combination,
        layer.hidden, layer.output,
    ]  # fmt: skip


def _norms(weights: TransformerWeights) -> list[Norm]:
    norms = [norm for layer in weights.layers for norm in layer.norms]
    return norms if weights.norm is None else [*norms, weights.norm]


def search(
    weights: PackedWeights,
    opened: OpenHypotheses,
    finished: FinishedTensors,
    positions: TransformerPositions,
    past: TransformerPast,
    sources: TransformerSources,
) -> SearchOutput | None:
    """Return the hypotheses after several steps; None for inputs that the kernel does not support."""
    if not _are_supported(weights.sizes, opened, positions, past, sources):
        return None
    longest = len(sources.padding[0]) + opened.length + len(positions.added)
    attention = 2 * longest * weights.sizes[layout.LAYERS] * weights.sizes[layout.HEADS_WIDTH]
    # all steps of a call keep their weights, also those that no output needs
    row = weights.sizes[layout.LAYERS] * weights.sizes[layout.HEADS] * len(sources.padding[0])
    steps = max(1, MOST_WEIGHT_BYTES // max(1, _FLOAT_BYTES * opened.beams * row))
    finished = finished._replace(divisors=finished.divisors[: min(len(positions.added), steps)])
    return decoding.search(
        opened, finished, weights.numbers.numel() + attention,
        lambda search, given: _run(weights, search, given, positions, past, sources), _LEAST_STEPS,
    )  # fmt: skip


def _run(
    weights: PackedWeights,
    search: list[int],
    given: dict[int, Tensor],
    positions: TransformerPositions,
    past: TransformerPast,
    sources: TransformerSources,
) -> tuple[Tensor, TransformerCache] | None:
    """Return the attention weights (S, B K, layers, heads, T), and the state after the steps."""
    sizes, (count, length) = weights.sizes, sources.padding.shape
    steps, first, beams, *_ = search
    layers, width, heads = (sizes[i] for i in (layout.LAYERS, layout.HEADS_WIDTH, layout.HEADS))
    tokens, new = first + steps, weights.inputs.new_empty
    attention = new(steps, count * beams, layers, heads, length)
    keys, values = (new(layers, count, tokens, beams, width) for _ in past)
    for cache, before in zip((keys, values), past, strict=True):
        rows = before.unflatten(1, (count, -1)).transpose(2, 3)
        cache[:, :, :first, : rows.shape[3]] = rows
    # hypotheses begin with tokens of their own
    ancestors = torch.arange(beams, **INTEGERS)[:, None].repeat(2, count, 1, tokens)
    given |= {
        shared.WEIGHTS: weights.numbers, shared.TABLE: weights.table,
        shared.INPUTS: weights.inputs, shared.PADDING: sources.padding,
        shared.SEARCH: torch.tensor(search, **INTEGERS), shared.ATTENTION: attention,
        shared.ROWS: torch.empty(count * beams, **INTEGERS),
        layout.NORMS: weights.norms, layout.EPSILONS: weights.epsilons,
        layout.POSITIONS: positions.added, layout.ROTATIONS: positions.rotations,
        layout.SOURCE_KEYS: sources.keys, layout.SOURCE_VALUES: sources.values,
        layout.KEYS: keys, layout.VALUES: values, layout.ANCESTORS: ancestors,
    }  # fmt: skip
    tensors = [given[index].contiguous() for index in range(layout.ANCESTORS + 1)]
    per_task = sources_per_task(count, beams, torch.get_num_threads())
    kernel_sizes = Sizes(heads=beams, queries=count, keys=length, width=width, tile=per_task)
    block = -(-per_task * beams // ROWS) * ROWS
    longest = -(-max(length, tokens) // LANES) * LANES
    workspace = (1, block * layout.workspace_width(sizes) + heads * longest)
    work = steps * count * beams * weights.numbers.numel()
    if not run_kernel(load(_KERNEL), -(-count // per_task), kernel_sizes, tensors, work, workspace):
        return None
    return attention, TransformerCache(keys, values, ancestors[steps % 2])


def _are_supported(
    sizes: list[int],
    opened: OpenHypotheses,
    positions: TransformerPositions,
    past: TransformerPast,
    sources: TransformerSources,
) -> bool:
    """Return whether the kernel, which reads memory unchecked, can read these tensors."""
    layers, width, inner = (sizes[i] for i in (layout.LAYERS, layout.WIDTH, layout.HEADS_WIDTH))
    rows = (layers, *sources.padding.shape, inner)
    read = (layers, opened.tokens.numel(), opened.length, inner)
    expected = [
        (sources.keys, rows), (sources.values, rows), (past.keys, read), (past.values, read),
        (positions.added, (len(positions.added), width)),
        (positions.rotations, (len(positions.added), 2, sizes[layout.PLANES])),
    ]  # fmt: skip
    return (
        all(tensor.shape == shape and _is_readable(tensor) for tensor, shape in expected)
        and len(opened.tokens) == len(sources.padding)
        and (sources.padding.dtype, sources.padding.device.type) == (torch.bool, "cpu")
        and len(positions.added) > 0
        and len(sources.padding) > 0
        and not bool(sources.padding.all(1).any())
    )
