"""CPU kernel of a recurrent layer over whole sequences, without gradients; a task is a block in one direction.

Of `threads.Sizes`, `heads` is the number of directions, `queries` the number of sequences, `keys` their length,
`width` that of a state of one direction, `tile` the number of sequences of a task, and `prepared` is 1 if the
matrices are packed in bfloat16. Other numbers are float32, and indices int64.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from regard.kernels.cpu import simd, tasks, threads
from regard.kernels.cpu.packing import PANEL, ROWS
from regard.kernels.cpu.processor import LANES
from regard.kernels.cpu.products import product, product_bfloat16, whole
from regard.kernels.cpu.tasks import floats, integers
from regard.kernels.recurrent import cells
from regard.kernels.recurrent.sequence import GATES, INPUT_ROWS, INPUTS, ORDER, OUTPUTS, WEIGHTS


@simd.inlined
def _step(
    x: Any, products: Any, state: Any, memory: Any, output: Any, gates: Any, width: Any
) -> None:
    """Compute the next state of one sequence in place, and copy it to the output."""
    if gates == 4:
        cells.lstm(x, x, False, products, memory, state, memory, width)
    else:
        cells.gru(x, x, False, products, state, state, width)
    for d in range(0, width, LANES):
        simd.store(output, d, simd.load(state, d))


def _kernel_of(gates: int) -> Callable[[Any], Callable[[Any], None]]:
    """Return the factory of the kernel for cells with this number of gates."""

    def factory(real: Any) -> Callable[[Any], None]:
        def kernel(arguments: Any) -> None:
            directions, sequences, length, width = tasks.read_sizes(arguments)
            tile, stride = arguments[threads.TILE], whole(gates * width)
            blocks, half = arguments[threads.TASKS] // directions, arguments[threads.PREPARED] != 0
            words = ((width // 2 if half else width) + 1) * stride
            shape = (1, tile * (stride + 2 * width))
            workspace = tasks.thread_workspace(arguments, shape, real(0))
            state = simd.pointer_at(workspace, 0)
            memory = simd.pointer_at(state, tile * width)
            products = simd.pointer_at(memory, tile * width)
            while True:
                task = tasks.fetch_add(arguments, threads.NEXT_TASK)
                if task >= arguments[threads.TASKS]:
                    return
                direction, first = task // blocks, task % blocks * tile
                weights = floats(arguments, WEIGHTS, direction * words)
                count = min(tile, sequences - first)
                rows = (count + ROWS - 1) // ROWS * ROWS
                for d in range(2 * tile * width):
                    state[d] = np.float32(0)
                for t in range(length):
                    panels = stride // PANEL
                    if half:
                        product_bfloat16(
                            state, width, rows, weights, width, panels, products, stride
                        )
                    else:
                        product(state, width, rows, weights, width, panels, products, stride)
                    for row in range(count):
                        start = (first + row) * length
                        order = integers(arguments, ORDER, direction * sequences * length + start)
                        position = start + order[t]
                        x = integers(arguments, INPUT_ROWS, position)[0] * directions + direction
                        _step(
                            floats(arguments, INPUTS, x * gates * width),
                            simd.pointer_at(products, row * stride),
                            simd.pointer_at(state, row * width),
                            simd.pointer_at(memory, row * width),
                            floats(arguments, OUTPUTS, (position * directions + direction) * width),
                            gates,
                            width,
                        )

        return kernel

    return factory


lstm = _kernel_of(GATES["lstm"])
gru = _kernel_of(GATES["gru"])
