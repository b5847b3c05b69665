"""CPU kernel of one step of a recurrent decoder; a task is a block of rows.

What a block needs between its products stays in the cache of one core. `op.py` has the equations,
`layout.py` the table of sizes. Of `threads.Sizes`, `heads` is the number of beams of a source, `queries`
the number of rows and `tile` that of a task. All pointers but `table`, `tokens` and `padding` are to float32.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba.extending import register_jitable

from regard.kernels.additive.cpu.exponentials import RANGES
from regard.kernels.additive.cpu.scores import sum_of_row
from regard.kernels.cpu import simd, threads
from regard.kernels.cpu.products import LANES, PANEL, ROWS, product
from regard.kernels.recurrent import cells
from regard.kernels.recurrent.layout import (
    ADDITIVE,
    ATTENDS_FIRST,
    ENTRIES,
    FED,
    FEED,
    GATES,
    HIDDEN,
    LAYERS,
    MATRICES,
    OUTPUT,
    QUERY,
    READOUT,
    READOUT_DIM,
    RECURRENT,
    SCORE_DIM,
    STATE_TENSORS,
    VALUE_DIM,
    VOCABULARY,
)

WEIGHTS, TABLE, INPUTS, VECTOR, TOKENS, PADDING, KEYS, VALUES, OLD_FEED = range(9)
"""Tensors that the kernel reads, by their place among the arguments."""

LOG_PROBS, ATTENTION, NEW_FEED, STATES = range(9, 13)
"""Tensors that it writes, and the first of the old, then the new, state tensors of all layers."""

_, _LIMIT, _LARGEST = RANGES[np.float32]
_ZERO, _ONE, _HALF = np.float32(0), np.float32(1), np.float32(0.5)


@simd.inlined
def _tensor(arguments: Any, index: Any, offset: Any) -> Any:
    """Return a pointer to an element of a tensor."""
    return simd.pointer_at(threads.as_pointer(arguments[threads.POINTERS + index], _ZERO), offset)


@simd.inlined
def _integers(arguments: Any, index: Any) -> Any:
    return threads.as_pointer(arguments[threads.POINTERS + index], np.int64(0))


@register_jitable
def _multiply(
    arguments: Any, table: Any, matrix: Any, x: Any, stride: Any, rows: Any, y: Any
) -> Any:
    """Write the products of rows with a matrix to y; return the stride of its rows."""
    entry = MATRICES + 3 * matrix
    offset, inputs, panels = table[entry], table[entry + 1], table[entry + 2]
    packed = _tensor(arguments, WEIGHTS, offset)
    rows = (rows + ROWS - 1) // ROWS * ROWS
    product(x, stride, rows, packed, inputs, panels, y, panels * PANEL)
    return panels * PANEL


@simd.inlined
def _copy_rows(arguments: Any, tensor: Any, start: Any, count: Any, width: Any, x: Any) -> None:
    """Copy rows of a tensor to x."""
    source = _tensor(arguments, tensor, start * width)
    for d in range(0, count * width, LANES):
        simd.store(x, d, simd.load(source, d))


@simd.inlined
def _dot(x: Any, y: Any, width: Any) -> Any:
    s = simd.splat(_ZERO)
    for d in range(0, width, LANES):
        s = simd.fma(simd.load(x, d), simd.load(y, d), s)
    return simd.reduce_sum(s)


@simd.inlined
def _exponentials(row: Any, width: Any) -> Any:
    """Replace x with e^{2x}; return the largest |x|, or NaN."""
    largest = simd.splat(_ZERO)
    for d in range(0, width, LANES):
        x = simd.load(row, d)
        largest = simd.max_abs(largest, x)
        simd.store(row, d, simd.exp_2x(x))
    return simd.reduce_max_abs(largest)


@simd.inlined
def _write_scores(
    arguments: Any, table: Any, item: Any, query: Any, padding: Any, scores: Any
) -> Any:
    """Write the scores of one query with the keys of its source; return the largest."""
    count, width, largest = arguments[threads.KEYS], table[SCORE_DIM], _ZERO - np.float32(np.inf)
    v = _tensor(arguments, VECTOR, 0)
    keys = _tensor(arguments, KEYS, item * count * width)
    ones, ceiling, sum_v = simd.splat(_ONE), simd.splat(np.float32(_LARGEST)), _ZERO
    if table[ADDITIVE] != 0:
        sum_v = v[width]
        if not _exponentials(query, width) <= _LIMIT:
            threads.fetch_add(arguments, threads.OUT_OF_RANGE)
    for i in range(count):
        if padding[i] == 0:
            key = simd.pointer_at(keys, i * width)
            if table[ADDITIVE] != 0:
                s = sum_of_row(query, key, v, width, ones, ceiling)
                scores[i] = sum_v - (s + s)
            else:
                scores[i] = _dot(query, key, width)
            largest = max(largest, scores[i])
    return largest


@register_jitable
def _attend(arguments: Any, table: Any, row: Any, query: Any, context: Any) -> None:
    """Write the attention weights and the context of one row."""
    count, width, item = arguments[threads.KEYS], table[VALUE_DIM], row // arguments[threads.HEADS]
    padding = threads.as_pointer(arguments[threads.POINTERS + PADDING], np.uint8(0))
    padding = simd.pointer_at(padding, item * count)
    weights = _tensor(arguments, ATTENTION, row * count)
    values = _tensor(arguments, VALUES, item * count * width)
    largest = _write_scores(arguments, table, item, query, padding, weights)
    total = _ZERO
    for i in range(count):
        weights[i] = _ZERO if padding[i] != 0 else np.float32(math.exp(weights[i] - largest))
        total += weights[i]
    for i in range(count):
        if padding[i] == 0:
            weights[i] = weights[i] / total
    for d in range(0, width, LANES):
        s = simd.splat(_ZERO)
        for i in range(count):
            s = simd.fma(simd.load_splat(weights, i), simd.load(values, i * width + d), s)
        simd.store(context, d, s)


@register_jitable
def _write_log_probs(logits: Any, out: Any, count: Any) -> None:
    """Write log softmax of the logits, which fill whole vectors, to the `count` elements of a row."""
    padded = (count + LANES - 1) // LANES * LANES
    zeros, half = simd.splat(_ZERO), simd.splat(_HALF)
    smallest = zeros - simd.load(logits, 0)
    for d in range(LANES, padded, LANES):
        smallest = simd.minimum(smallest, zeros - simd.load(logits, d))
    largest = _ZERO - simd.reduce_minimum(smallest)
    shift, total = simd.splat(largest), zeros
    for d in range(0, padded, LANES):
        total += cells.exp_2x_bounded((simd.load(logits, d) - shift) * half)
    log_sum = largest + np.float32(math.log(simd.reduce_sum(total)))
    for d in range(count):
        out[d] = logits[d] - log_sum


@register_jitable
def _step_cell(
    arguments: Any, table: Any, layer: Any, row: Any, x: Any, extra: Any, extended: Any, gates: Any
) -> None:
    """Write the state tensors of one layer and row."""
    width, tensors = table[HIDDEN], table[STATE_TENSORS]
    old = STATES + tensors * layer
    new = old + tensors * table[LAYERS]
    last = _tensor(arguments, old + tensors - 1, row * width)
    output = _tensor(arguments, new, row * width)
    if tensors == 2:
        memory = _tensor(arguments, new + 1, row * width)
        cells.lstm(x, extra, extended, gates, last, output, memory, width)
    else:
        cells.gru(x, extra, extended, gates, last, output, width)


@simd.inlined
def _whole(width: Any) -> Any:
    """Return the width in whole panels."""
    return (width + PANEL - 1) // PANEL * PANEL


@simd.inlined
def buffer_widths(table: Any) -> Any:
    """Return the widths of the rows of the buffers: of three wide ones, three narrow ones and the logits."""
    wide = _whole(max(table[GATES], table[VALUE_DIM]))
    narrow = _whole(max(table[HIDDEN], max(table[SCORE_DIM], table[READOUT_DIM])))
    return wide, narrow, _whole(table[VOCABULARY])


@simd.inlined
def workspace_width(table: Any) -> Any:
    """Return the numbers that a thread needs for one row of its block."""
    wide, narrow, logits = buffer_widths(table)
    return 3 * (wide + narrow) + logits


@register_jitable
def _attend_block(
    arguments: Any, table: Any, start: Any, count: Any, x: Any, query: Any, context: Any
) -> None:
    """Write the weights and contexts of a block of rows with the states x."""
    stride = _multiply(arguments, table, QUERY, x, table[HIDDEN], count, query)
    for row in range(count):
        target = simd.pointer_at(context, row * table[VALUE_DIM])
        _attend(arguments, table, start + row, simd.pointer_at(query, row * stride), target)


@register_jitable
def _step_layers(
    arguments: Any, table: Any, start: Any, count: Any, x: Any, above: Any, gates: Any,
    extra: Any, extra_stride: Any,
) -> None:  # fmt: skip
    """Write the states of all layers of a block; `extra` is added to the inputs if its stride is not 0."""
    width, tokens = table[HIDDEN], _integers(arguments, TOKENS)
    new = STATES + table[LAYERS] * table[STATE_TENSORS]
    for layer in range(table[LAYERS]):
        above_stride = table[GATES]
        if layer > 0:
            _copy_rows(arguments, new + (layer - 1) * table[STATE_TENSORS], start, count, width, x)
            above_stride = _multiply(
                arguments, table, RECURRENT + 2 * layer - 1, x, width, count, above
            )
        _copy_rows(arguments, STATES + layer * table[STATE_TENSORS], start, count, width, x)
        stride = _multiply(arguments, table, RECURRENT + 2 * layer, x, width, count, gates)
        for row in range(count):
            inputs = simd.pointer_at(above, row * above_stride)
            if layer == 0:
                entry = min(max(tokens[start + row], 0), table[ENTRIES] - 1)
                inputs = _tensor(arguments, INPUTS, entry * table[GATES])
            _step_cell(
                arguments, table, layer, start + row, inputs,
                simd.pointer_at(extra, row * extra_stride), layer == 0 and extra_stride != 0,
                simd.pointer_at(gates, row * stride),
            )  # fmt: skip


@register_jitable
def _read_out(
    arguments: Any,
    table: Any,
    start: Any,
    count: Any,
    x: Any,
    context: Any,
    readout: Any,
    logits: Any,
) -> None:
    """Write the readout, and the log-probabilities, of a block with the top states x."""
    width = table[READOUT_DIM]
    stride = _multiply(arguments, table, READOUT, x, table[HIDDEN], count, readout)
    for row in range(count):
        part = simd.pointer_at(context, (row + 1) * table[VALUE_DIM] - width)
        source = simd.pointer_at(readout, row * stride)
        target = _tensor(arguments, NEW_FEED, (start + row) * width)
        for d in range(0, width, LANES):
            y = cells.tanh(simd.load(source, d) + simd.load(part, d))
            simd.store(source, d, y)
            simd.store(target, d, y)
    vocabulary = table[VOCABULARY]
    if vocabulary > 0:
        logits_stride = _multiply(arguments, table, OUTPUT, readout, stride, count, logits)
        for row in range(count):
            out = _tensor(arguments, LOG_PROBS, (start + row) * vocabulary)
            _write_log_probs(simd.pointer_at(logits, row * logits_stride), out, vocabulary)


def step(real: Any) -> Callable[[Any], None]:
    """Return the kernel, for float32."""

    def kernel(arguments: Any) -> None:
        table, tile = _integers(arguments, TABLE), arguments[threads.TILE]
        width, top = table[HIDDEN], (2 * table[LAYERS] - 1) * table[STATE_TENSORS]
        wide, narrow, _ = buffer_widths(table)
        shape = (1, tile * workspace_width(table))
        workspace = threads.thread_workspace(arguments, shape, real(0))
        gates = simd.pointer_at(workspace, 0)
        above, extra = simd.pointer_at(gates, tile * wide), simd.pointer_at(gates, 2 * tile * wide)
        x = simd.pointer_at(gates, 3 * tile * wide)
        query, readout = simd.pointer_at(x, tile * narrow), simd.pointer_at(x, 2 * tile * narrow)
        logits = simd.pointer_at(x, 3 * tile * narrow)
        while True:
            start = threads.fetch_add(arguments, threads.NEXT_TASK) * tile
            count = min(tile, arguments[threads.QUERIES] - start)
            if count <= 0:
                return
            stride = 0
            if table[ATTENDS_FIRST] != 0:
                _copy_rows(arguments, STATES, start, count, width, x)
                _attend_block(arguments, table, start, count, x, query, extra)
                stride = table[VALUE_DIM]
            elif table[FED] != 0:
                _copy_rows(arguments, OLD_FEED, start, count, table[READOUT_DIM], x)
                stride = _multiply(arguments, table, FEED, x, table[READOUT_DIM], count, extra)
            _step_layers(arguments, table, start, count, x, above, gates, extra, stride)
            _copy_rows(arguments, STATES + top, start, count, width, x)
            if table[ATTENDS_FIRST] == 0:
                _attend_block(arguments, table, start, count, x, query, extra)
            _read_out(arguments, table, start, count, x, extra, readout, logits)

    return kernel
