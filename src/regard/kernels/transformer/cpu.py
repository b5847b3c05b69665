"""CPU kernel of a beam search with a Transformer decoder; a task is a block of sources.

What a block needs between its products stays in the cache of one core. `op.py` has the equations,
`layout.py` and `regard.kernels.decoding.layout` the tensors and sizes. Of `threads.Sizes`, `queries` is the
number of sources, `keys` that of their tokens, and `tile` that of the sources of a task.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba.extending import register_jitable

from regard.kernels.cpu import activations, simd, tasks, threads
from regard.kernels.cpu.packing import ROWS
from regard.kernels.cpu.processor import LANES
from regard.kernels.cpu.products import whole, whole_vectors
from regard.kernels.cpu.tasks import floats, integers
from regard.kernels.decoding import selection
from regard.kernels.decoding.layout import (
    ACTIVE,
    ATTENTION,
    BEAMS,
    ENTRY,
    FIRST,
    INPUTS,
    PADDING,
    SEARCH,
    STEPS,
    TABLE,
    TOKENS,
)
from regard.kernels.decoding.layout import ROWS as ROW_INDICES
from regard.kernels.decoding.products import multiply
from regard.kernels.transformer import layout
from regard.kernels.transformer.layout import (
    ACTIVATION,
    ANCESTORS,
    COMBINATION,
    EPSILONS,
    FIRST_OF_LAYERS,
    GELU,
    HEADS,
    HEADS_WIDTH,
    HIDDEN,
    HIDDEN_MATRIX,
    HIDDEN_OUTPUT,
    KEYS,
    LAYERS,
    MATRICES,
    NORMS,
    OF_A_LAYER,
    OUTPUT,
    PLANES,
    POSITIONS,
    PRE_NORM,
    PROJECTIONS,
    ROTATIONS,
    SOURCE_COMBINATION,
    SOURCE_KEYS,
    SOURCE_QUERY,
    SOURCE_VALUES,
    SWIGLU,
    VALUES,
    VOCABULARY,
    WIDTH,
)

_ZERO, _ONE, _HALF = np.float32(0), np.float32(1), np.float32(0.5)
_LOWEST = np.float32(-np.inf)

_workspace_width: Any = simd.inlined(layout.workspace_width)


@simd.inlined
def _normalize(arguments: Any, norm: Any, x: Any, y: Any, width: Any) -> None:
    """Write the layer norm of a row."""
    weight = floats(arguments, NORMS, 2 * norm * width)
    bias, total = simd.pointer_at(weight, width), simd.splat(_ZERO)
    for d in range(0, width, LANES):
        total += simd.load(x, d)
    mean = simd.splat(simd.reduce_sum(total) / np.float32(width))
    total = simd.splat(_ZERO)
    for d in range(0, width, LANES):
        centered = simd.load(x, d) - mean
        total = simd.fma(centered, centered, total)
    variance = simd.reduce_sum(total) / np.float32(width)
    scale = simd.splat(_ONE / math.sqrt(variance + floats(arguments, EPSILONS, norm)[0]))
    for d in range(0, width, LANES):
        centered = (simd.load(x, d) - mean) * scale
        simd.store(y, d, simd.fma(centered, simd.load(weight, d), simd.load(bias, d)))


@simd.inlined
def _matrix(layer: Any, number: Any) -> Any:
    """Return the entry of a matrix of a layer in the table."""
    return MATRICES + ENTRY * (FIRST_OF_LAYERS + layer * OF_A_LAYER + number)


@simd.inlined
def _write_scores(query: Any, key: Any, scores: Any, stride: Any, heads: Any, width: Any) -> None:
    """Write the score of every head for one key."""
    for head in range(heads):
        s = simd.splat(_ZERO)
        for d in range(head * width, (head + 1) * width, LANES):
            s = simd.fma(simd.load(query, d), simd.load(key, d), s)
        scores[head * stride] = simd.reduce_sum(s)


@simd.inlined
def _add_value(value: Any, weights: Any, stride: Any, context: Any, heads: Any, width: Any) -> None:
    """Add the weighted value of one position to the context of every head."""
    for head in range(heads):
        weight = simd.load_splat(weights, head * stride)
        for d in range(head * width, (head + 1) * width, LANES):
            simd.store(context, d, simd.fma(weight, simd.load(value, d), simd.load(context, d)))


@simd.inlined
def _softmax(scores: Any, count: Any) -> None:
    """Replace scores with weights, up to a whole vector; those of -inf are below 2e-35, not 0."""
    padded, largest = whole_vectors(count), _LOWEST
    for i in range(count):
        largest = max(largest, scores[i])
    for i in range(count, padded):
        scores[i] = _LOWEST
    shift, half, total = simd.splat(largest), simd.splat(_HALF), simd.splat(_ZERO)
    for i in range(0, padded, LANES):
        e = activations.exp_2x_bounded((simd.load(scores, i) - shift) * half)
        total += e
        simd.store(scores, i, e)
    scale = simd.reciprocal(simd.splat(simd.reduce_sum(total)))
    for i in range(0, padded, LANES):
        simd.store(scores, i, simd.load(scores, i) * scale)


@simd.inlined
def _clear(row: Any, width: Any) -> None:
    for d in range(0, width, LANES):
        simd.store(row, d, simd.splat(_ZERO))


@simd.inlined
def _rotate(row: Any, cosines: Any, sines: Any, heads: Any, planes: Any) -> None:
    """Rotate every head of a query or a key in place."""
    for head in range(heads):
        left = simd.pointer_at(row, 2 * head * planes)
        right = simd.pointer_at(left, planes)
        for d in range(0, planes, LANES):
            cosine, sine = simd.load(cosines, d), simd.load(sines, d)
            a, b = simd.load(left, d), simd.load(right, d)
            simd.store(left, d, a * cosine - b * sine)
            simd.store(right, d, simd.fma(a, sine, b * cosine))


@register_jitable
def _attend_to_past(
    arguments: Any, table: Any, search: Any, layer: Any, step: Any, index: Any, query: Any,
    scores: Any, stride: Any, context: Any,
) -> None:  # fmt: skip
    """Store the key and the value of a hypothesis, and write the context of its self-attention."""
    width, heads, beams = table[HEADS_WIDTH], table[HEADS], search[BEAMS]
    source, beam, length = index // beams, index % beams, search[FIRST] + step
    tokens, sources = search[FIRST] + search[STEPS], arguments[threads.QUERIES]
    first = (layer * sources + source) * tokens * beams * width
    keys, values = floats(arguments, KEYS, first), floats(arguments, VALUES, first)
    half = (step % 2 * sources * beams + index) * tokens
    ancestors = integers(arguments, ANCESTORS, half)
    ancestors[length] = beam
    planes = table[PLANES]
    cosines = floats(arguments, ROTATIONS, 2 * step * planes)
    sines = simd.pointer_at(cosines, planes)
    for part in range(2):  # the query and the key
        row = simd.pointer_at(query, part * width)
        _rotate(row, cosines, sines, heads, planes)
    own = (length * beams + beam) * width
    for d in range(0, width, LANES):
        simd.store(keys, own + d, simd.load(query, width + d))
        simd.store(values, own + d, simd.load(query, 2 * width + d))
    for i in range(length + 1):
        key = simd.pointer_at(keys, (i * beams + ancestors[i]) * width)
        _write_scores(query, key, simd.pointer_at(scores, i), stride, heads, width // heads)
    for head in range(heads):
        _softmax(simd.pointer_at(scores, head * stride), length + 1)
    _clear(context, width)
    for i in range(length + 1):
        value = simd.pointer_at(values, (i * beams + ancestors[i]) * width)
        _add_value(value, simd.pointer_at(scores, i), stride, context, heads, width // heads)


@register_jitable
def _attend_to_source(
    arguments: Any, table: Any, search: Any, layer: Any, step: Any, index: Any, query: Any,
    scores: Any, stride: Any, context: Any,
) -> None:  # fmt: skip
    """Write the weights and the context of the attention of a hypothesis to its source."""
    width, heads, beams = table[HEADS_WIDTH], table[HEADS], search[BEAMS]
    count, sources, source = arguments[threads.KEYS], arguments[threads.QUERIES], index // beams
    first = (layer * sources + source) * count * width
    keys, values = floats(arguments, SOURCE_KEYS, first), floats(arguments, SOURCE_VALUES, first)
    padding = tasks.booleans(arguments, PADDING, source * count)
    row = (step * sources * beams + index) * table[LAYERS] + layer
    weights = floats(arguments, ATTENTION, row * heads * count)
    for i in range(count):
        if padding[i] == 0:
            key = simd.pointer_at(keys, i * width)
            _write_scores(query, key, simd.pointer_at(scores, i), stride, heads, width // heads)
        else:
            for head in range(heads):
                scores[head * stride + i] = _LOWEST
    for head in range(heads):
        _softmax(simd.pointer_at(scores, head * stride), count)
        for i in range(count):
            weights[head * count + i] = _ZERO if padding[i] != 0 else scores[head * stride + i]
    _clear(context, width)
    for i in range(count):
        if padding[i] == 0:
            value = simd.pointer_at(values, i * width)
            _add_value(value, simd.pointer_at(scores, i), stride, context, heads, width // heads)


@simd.inlined
def _activate(table: Any, row: Any) -> Any:
    """Apply the activation to a row in place."""
    width = table[HIDDEN]
    if table[ACTIVATION] == SWIGLU:
        width = width // 2
        for d in range(0, width, LANES):
            gate = simd.load(row, d)
            gated = gate * activations.sigmoid(gate) * simd.load(row, width + d)
            simd.store(row, d, gated)
    elif table[ACTIVATION] == GELU:
        for d in range(0, width, LANES):
            simd.store(row, d, activations.gelu(simd.load(row, d)))
    else:
        for d in range(0, width, LANES):
            simd.store(row, d, activations.maximum_with_zero(simd.load(row, d)))


@register_jitable
def _begin_sublayer(
    arguments: Any, table: Any, norm: Any, count: Any, x: Any, normalized: Any
) -> None:
    """Write the inputs of a sublayer for the rows of a block."""
    width = table[WIDTH]
    for row in range(count):
        source, target = (
            simd.pointer_at(x, row * width),
            simd.pointer_at(normalized, row * width),
        )
        if table[PRE_NORM] != 0:
            _normalize(arguments, norm, source, target, width)
        else:
            for d in range(0, width, LANES):
                simd.store(target, d, simd.load(source, d))


@register_jitable
def _end_sublayer(arguments: Any, table: Any, norm: Any, count: Any, x: Any, output: Any) -> None:
    """Add the outputs of a sublayer to the states of a block."""
    width = table[WIDTH]
    for row in range(count):
        state, added = simd.pointer_at(x, row * width), simd.pointer_at(output, row * width)
        for d in range(0, width, LANES):
            simd.store(state, d, simd.load(state, d) + simd.load(added, d))
        if table[PRE_NORM] == 0:
            _normalize(arguments, norm, state, state, width)


@register_jitable
def _run_layer(
    arguments: Any, table: Any, search: Any, layer: Any, step: Any, rows: Any, count: Any,
    x: Any, normalized: Any, output: Any, heads: Any, context: Any, hidden: Any, scores: Any,
    stride: Any,
) -> None:  # fmt: skip
    """Update the states of a block."""
    width, inner, norm = table[WIDTH], table[HEADS_WIDTH], 3 * layer
    _begin_sublayer(arguments, table, norm, count, x, normalized)
    multiply(arguments, table, _matrix(layer, PROJECTIONS), normalized, width, count, heads)
    for row in range(count):
        _attend_to_past(
            arguments, table, search, layer, step, rows[row],
            simd.pointer_at(heads, row * 3 * inner), scores, stride,
            simd.pointer_at(context, row * inner),
        )  # fmt: skip
    multiply(arguments, table, _matrix(layer, COMBINATION), context, inner, count, output)
    _end_sublayer(arguments, table, norm, count, x, output)
    _begin_sublayer(arguments, table, norm + 1, count, x, normalized)
    multiply(arguments, table, _matrix(layer, SOURCE_QUERY), normalized, width, count, heads)
    for row in range(count):
        _attend_to_source(
            arguments, table, search, layer, step, rows[row],
            simd.pointer_at(heads, row * inner), scores, stride,
            simd.pointer_at(context, row * inner),
        )  # fmt: skip
    multiply(arguments, table, _matrix(layer, SOURCE_COMBINATION), context, inner, count, output)
    _end_sublayer(arguments, table, norm + 1, count, x, output)
    _begin_sublayer(arguments, table, norm + 2, count, x, normalized)
    entry = _matrix(layer, HIDDEN_MATRIX)
    wide = multiply(arguments, table, entry, normalized, width, count, hidden)
    for row in range(count):
        _activate(table, simd.pointer_at(hidden, row * wide))
    multiply(arguments, table, _matrix(layer, HIDDEN_OUTPUT), hidden, wide, count, output)
    _end_sublayer(arguments, table, norm + 2, count, x, output)


@register_jitable
def _embed(arguments: Any, table: Any, step: Any, rows: Any, count: Any, x: Any) -> None:
    """Write the embeddings of the last tokens of a block."""
    width, tokens = table[WIDTH], integers(arguments, TOKENS, 0)
    position = floats(arguments, POSITIONS, step * width)
    for row in range(count):
        token = min(max(tokens[rows[row]], 0), table[VOCABULARY] - 1)
        source, target = (
            floats(arguments, INPUTS, token * width),
            simd.pointer_at(x, row * width),
        )
        for d in range(0, width, LANES):
            simd.store(target, d, simd.load(source, d) + simd.load(position, d))


@register_jitable
def _descend(arguments: Any, search: Any, source: Any, step: Any, parents: Any) -> None:
    """Write the ancestors of the continuations of a source."""
    beams, length = search[BEAMS], search[FIRST] + step
    tokens, sources = length - step + search[STEPS], arguments[threads.QUERIES]
    before = (step % 2 * sources + source) * beams * tokens
    after = ((step + 1) % 2 * sources + source) * beams * tokens
    for beam in range(beams):
        old = integers(arguments, ANCESTORS, before + parents[beam] * tokens)
        new = integers(arguments, ANCESTORS, after + beam * tokens)
        for i in range(length + 1):
            new[i] = old[i]


def steps(real: Any) -> Callable[[Any], None]:
    """Return the kernel, for float32."""

    def kernel(arguments: Any) -> None:
        table, search = integers(arguments, TABLE, 0), integers(arguments, SEARCH, 0)
        per_task, width = arguments[threads.TILE], table[WIDTH]
        inner, vocabulary = table[HEADS_WIDTH], table[VOCABULARY]
        size = (per_task * search[BEAMS] + ROWS - 1) // ROWS * ROWS
        longest = max(arguments[threads.KEYS], search[FIRST] + search[STEPS])
        stride = whole_vectors(longest)
        shape = (1, size * _workspace_width(table) + table[HEADS] * stride)
        x = simd.pointer_at(tasks.thread_workspace(arguments, shape, real(0)), 0)
        normalized = simd.pointer_at(x, size * width)
        output = simd.pointer_at(normalized, size * width)
        heads = simd.pointer_at(output, size * width)
        context = simd.pointer_at(heads, size * 3 * inner)
        hidden = simd.pointer_at(context, size * inner)
        logits = simd.pointer_at(hidden, size * whole(table[HIDDEN]))
        scores = simd.pointer_at(logits, size * whole(vocabulary))
        while True:
            first = tasks.fetch_add(arguments, threads.NEXT_TASK) * per_task
            last = min(first + per_task, arguments[threads.QUERIES])
            if first >= last:
                return
            rows = integers(arguments, ROW_INDICES, first * search[BEAMS])
            for step in range(search[STEPS]):
                beams = search[BEAMS] if search[FIRST] + step > 0 else 1
                count = selection.list_rows(arguments, search, first, last, beams, rows)
                if count == 0:
                    break
                _embed(arguments, table, step, rows, count, x)
                for layer in range(table[LAYERS]):
                    _run_layer(
                        arguments, table, search, layer, step, rows, count, x, normalized, output,
                        heads, context, hidden, scores, stride,
                    )  # fmt: skip
                _begin_sublayer(arguments, table, 3 * table[LAYERS], count, x, normalized)
                entry = MATRICES + ENTRY * OUTPUT
                wide = multiply(arguments, table, entry, normalized, width, count, logits)
                for row in range(0, count, beams):
                    source = rows[row] // search[BEAMS]
                    parents = selection.select(
                        arguments, vocabulary, search, source, step, search[FIRST] + step, beams,
                        simd.pointer_at(logits, row * wide), wide,
                    )  # fmt: skip
                    if integers(arguments, ACTIVE, source)[0] != 0:
                        _descend(arguments, search, source, step, parents)

    return kernel
