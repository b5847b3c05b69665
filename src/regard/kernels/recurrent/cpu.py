"""CPU kernel of the steps of a recurrent decoder, with the search between them; a task is a block of sources.

What a block needs between its products stays in the cache of one core. `op.py` has the equations,
`layout.py` the tensors and sizes. Of `threads.Sizes`, `queries` is the number of sources and `tile` that
of a task. A row is a hypothesis; row r of a block has the index `rows[r]` in the tensors.
"""

from collections.abc import Callable
from typing import Any

from numba.extending import register_jitable

from regard.kernels.cpu import simd, tasks, threads
from regard.kernels.cpu.activations import tanh
from regard.kernels.cpu.packing import ROWS
from regard.kernels.cpu.processor import LANES
from regard.kernels.cpu.tasks import floats, integers
from regard.kernels.decoding import selection
from regard.kernels.decoding.layout import (
    ATTENTION,
    BEAMS,
    ENTRY,
    FIRST,
    INPUTS,
    N_BEST,
    SEARCH,
    STEPS,
    TABLE,
    TOKENS,
)
from regard.kernels.decoding.layout import ROWS as ROW_INDICES
from regard.kernels.decoding.products import multiply
from regard.kernels.recurrent import cells, layout
from regard.kernels.recurrent.attention import attend
from regard.kernels.recurrent.layout import (
    ATTENDS_FIRST,
    ENTRIES,
    FED,
    FEED,
    FEED_MATRIX,
    GATES,
    HIDDEN,
    LAYERS,
    LOG_PROBS,
    MATRICES,
    OUTPUT,
    QUERY,
    READOUT,
    READOUT_DIM,
    RECURRENT,
    STATE_TENSORS,
    STATES,
    VALUE_DIM,
    VOCABULARY,
)

_buffer_widths: Any = simd.inlined(layout.buffer_widths)
_workspace_width: Any = simd.inlined(layout.workspace_width)


@simd.inlined
def _multiply(
    arguments: Any, table: Any, matrix: Any, x: Any, stride: Any, rows: Any, y: Any
) -> Any:
    """Write the products of rows with a matrix to y; return the stride of its rows."""
    return multiply(arguments, table, MATRICES + ENTRY * matrix, x, stride, rows, y)


@simd.inlined
def _copy(source: Any, target: Any, width: Any) -> None:
    for d in range(0, width, LANES):
        simd.store(target, d, simd.load(source, d))


@simd.inlined
def _gather(arguments: Any, index: Any, rows: Any, count: Any, width: Any, x: Any) -> None:
    """Copy the rows of a block from a tensor to x."""
    for row in range(count):
        _copy(floats(arguments, index, rows[row] * width), simd.pointer_at(x, row * width), width)


@register_jitable
def _attend_block(
    arguments: Any, table: Any, search: Any, step: Any, rows: Any, count: Any, x: Any,
    query: Any, context: Any,
) -> None:  # fmt: skip
    """Write the weights and contexts of a block of rows with the states x."""
    stride = _multiply(arguments, table, QUERY, x, table[HIDDEN], count, query)
    keys, beams = arguments[threads.KEYS], search[BEAMS]
    for row in range(count):
        index = step * arguments[threads.QUERIES] * beams + rows[row]
        attend(
            arguments, table, rows[row] // beams, simd.pointer_at(query, row * stride),
            floats(arguments, ATTENTION, index * keys),
            simd.pointer_at(context, row * table[VALUE_DIM]),
        )  # fmt: skip


@register_jitable
def _step_cell(
    arguments: Any, table: Any, layer: Any, row: Any, x: Any, extra: Any, extended: Any,
    gates: Any, new: Any, stride: Any,
) -> None:  # fmt: skip
    """Write the state tensors of one layer, `stride` apart, given the index of the old ones."""
    width, tensors = table[HIDDEN], table[STATE_TENSORS]
    last = floats(arguments, STATES + tensors * (layer + 1) - 1, row * width)
    if tensors == 2:
        memory = simd.pointer_at(new, stride)
        cells.lstm(x, extra, extended, gates, last, new, memory, width)
    else:
        cells.gru(x, extra, extended, gates, last, new, width)


@register_jitable
def _step_layers(
    arguments: Any, table: Any, rows: Any, count: Any, x: Any, above: Any, gates: Any,
    extra: Any, extra_stride: Any, new: Any, stride: Any,
) -> None:  # fmt: skip
    """Write the states of all layers of a block; `extra` is added to the inputs if its stride is not 0."""
    width, tensors, tokens = table[HIDDEN], table[STATE_TENSORS], integers(arguments, TOKENS, 0)
    for layer in range(table[LAYERS]):
        above_stride = table[GATES]
        states = simd.pointer_at(new, layer * tensors * stride)
        if layer > 0:
            below = simd.pointer_at(new, (layer - 1) * tensors * stride)
            matrix = RECURRENT + 2 * layer - 1
            above_stride = _multiply(arguments, table, matrix, below, width, count, above)
        _gather(arguments, STATES + layer * tensors, rows, count, width, x)
        gate_stride = _multiply(arguments, table, RECURRENT + 2 * layer, x, width, count, gates)
        for row in range(count):
            inputs = simd.pointer_at(above, row * above_stride)
            if layer == 0:
                entry = min(max(tokens[rows[row]], 0), table[ENTRIES] - 1)
                inputs = floats(arguments, INPUTS, entry * table[GATES])
            _step_cell(
                arguments, table, layer, rows[row], inputs,
                simd.pointer_at(extra, row * extra_stride), layer == 0 and extra_stride != 0,
                simd.pointer_at(gates, row * gate_stride), simd.pointer_at(states, row * width),
                stride,
            )  # fmt: skip


@register_jitable
def _read_out(
    arguments: Any, table: Any, count: Any, x: Any, context: Any, readout: Any, logits: Any
) -> Any:
    """Write the readouts and the logits of a block with the top states x; return both strides."""
    width = table[READOUT_DIM]
    stride = _multiply(arguments, table, READOUT, x, table[HIDDEN], count, readout)
    for row in range(count):
        part = simd.pointer_at(context, (row + 1) * table[VALUE_DIM] - width)
        target = simd.pointer_at(readout, row * stride)
        for d in range(0, width, LANES):
            simd.store(target, d, tanh(simd.load(target, d) + simd.load(part, d)))
    if table[VOCABULARY] == 0:
        return stride, stride
    return stride, _multiply(arguments, table, OUTPUT, readout, stride, count, logits)


@register_jitable
def _write_states(
    arguments: Any, table: Any, index: Any, row: Any, new: Any, stride: Any, readout: Any
) -> None:
    """Write the state tensors and the readout of a row of the block to the tensors."""
    width, readout_dim = table[HIDDEN], table[READOUT_DIM]
    for number in range(table[LAYERS] * table[STATE_TENSORS]):
        source = simd.pointer_at(new, number * stride + row * width)
        _copy(source, floats(arguments, STATES + number, index * width), width)
    _copy(readout, floats(arguments, FEED, index * readout_dim), readout_dim)


@simd.inlined
def _write_log_probs(arguments: Any, table: Any, index: Any, logits: Any) -> None:
    vocabulary = table[VOCABULARY]
    out = floats(arguments, LOG_PROBS, index * vocabulary)
    log_sum = selection.log_sum_exp(logits, vocabulary)
    for token in range(vocabulary):
        out[token] = logits[token] - log_sum


@register_jitable
def _continue_block(
    arguments: Any, table: Any, search: Any, step: Any, rows: Any, count: Any, beams: Any,
    new: Any, stride: Any, readout: Any, readout_stride: Any, logits: Any, logits_stride: Any,
) -> None:  # fmt: skip
    """Select the continuations, with their states; for a single step, write its results."""
    for start in range(0, count, beams):
        source = rows[start] // search[BEAMS]
        parents, kept = rows, beams
        if search[N_BEST] > 0:
            kept = search[BEAMS]
            parents = selection.select(
                arguments, table[VOCABULARY], search, source, step, search[FIRST] + step, beams,
                simd.pointer_at(logits, start * logits_stride), logits_stride,
            )  # fmt: skip
        for beam in range(kept):
            row = start + (beam if search[N_BEST] == 0 else parents[beam])
            index = source * search[BEAMS] + beam
            output = simd.pointer_at(readout, row * readout_stride)
            _write_states(arguments, table, index, row, new, stride, output)
            if search[N_BEST] == 0 and table[VOCABULARY] > 0:
                scores = simd.pointer_at(logits, row * logits_stride)
                _write_log_probs(arguments, table, index, scores)


def steps(real: Any) -> Callable[[Any], None]:
    """Return the kernel, for float32."""

    def kernel(arguments: Any) -> None:
        table, search = integers(arguments, TABLE, 0), integers(arguments, SEARCH, 0)
        per_task, width = arguments[threads.TILE], table[HIDDEN]
        size = (per_task * search[BEAMS] + ROWS - 1) // ROWS * ROWS
        wide, narrow, logits_width = _buffer_widths(table)
        shape = (1, size * _workspace_width(table))
        workspace = tasks.thread_workspace(arguments, shape, real(0))
        gates = simd.pointer_at(workspace, 0)
        above, extra = simd.pointer_at(gates, size * wide), simd.pointer_at(gates, 2 * size * wide)
        x = simd.pointer_at(gates, 3 * size * wide)
        query, readout = simd.pointer_at(x, size * narrow), simd.pointer_at(x, 2 * size * narrow)
        logits = simd.pointer_at(x, 3 * size * narrow)
        new, stride = simd.pointer_at(logits, size * logits_width), size * width
        top = simd.pointer_at(new, (table[LAYERS] - 1) * table[STATE_TENSORS] * stride)
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
                extra_stride = 0
                if table[ATTENDS_FIRST] != 0:
                    _gather(arguments, STATES, rows, count, width, x)
                    _attend_block(arguments, table, search, step, rows, count, x, query, extra)
                    extra_stride = table[VALUE_DIM]
                elif table[FED] != 0:
                    _gather(arguments, FEED, rows, count, table[READOUT_DIM], x)
                    extra_stride = _multiply(
                        arguments, table, FEED_MATRIX, x, table[READOUT_DIM], count, extra
                    )
                _step_layers(
                    arguments, table, rows, count, x, above, gates, extra, extra_stride, new, stride
                )
                if table[ATTENDS_FIRST] == 0:
                    _attend_block(arguments, table, search, step, rows, count, top, query, extra)
                readout_stride, logits_stride = _read_out(
                    arguments, table, count, top, extra, readout, logits
                )
                _continue_block(
                    arguments, table, search, step, rows, count, beams, new, stride, readout,
                    readout_stride, logits, logits_stride,
                )  # fmt: skip

    return kernel
