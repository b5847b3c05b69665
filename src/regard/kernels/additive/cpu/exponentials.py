"""Exponentials e^{2x} in CPU kernels, and the range in which the kernels are exact.

    e_ti = v . tanh(a_t + b_i),    tanh(a + b) = 1 - 2 r,    r = 1 / (1 + e^{2a} e^{2b})

The exponentials are computed once per row. What remains for every pair and feature, in the gradient
too, is a multiplication, an addition and a share of a reciprocal. A function of a floating-point
type (`exponentials` here, and those in `scores.py` and `gradients.py`) returns a kernel for the type.
"""

from collections.abc import Callable
from typing import Any

from regard.kernels.additive.cpu.layout import ELEMENTS_PER_TASK, RANGES
from regard.kernels.cpu import simd, tasks, threads
from regard.kernels.cpu.processor import BYTES


@simd.inlined
def exp_2x_row(x: Any, y: Any, buffer: Any) -> Any:
    """Write e^{2x} of a row to y; return the largest |x|, or NaN. `buffer` has room for one vector."""
    size = len(buffer)
    end = len(x) // size * size
    buffer[:] = 0
    largest = simd.load(buffer, 0)
    for i in range(0, end, size):
        part = simd.load(x, i)
        largest = simd.max_abs(largest, part)
        simd.store(y, i, simd.exp_2x(part))
    if end < len(x):
        for i in range(end, len(x)):
            buffer[i - end] = x[i]
        part = simd.load(buffer, 0)
        largest = simd.max_abs(largest, part)
        simd.store(buffer, 0, simd.exp_2x(part))
        for i in range(end, len(x)):
            y[i] = buffer[i - end]
    return simd.reduce_max_abs(largest)


@simd.inlined
def larger_or_nan(x: Any, y: Any) -> Any:
    """Return the larger of two absolute values, or NaN."""
    return x if x > y or x != x else y


def exponentials(real: Any) -> Callable[[Any], None]:
    """Return the kernel of e^{2x}; a task is a range of elements."""
    real_bytes, limit, _ = RANGES[real]
    size = BYTES // real_bytes

    def kernel(arguments: Any) -> None:
        one = real(1)
        count = arguments[threads.KEYS]
        x = tasks.array(arguments, 0, (count,), one)
        y = tasks.array(arguments, 1, (count,), one)
        buffer = tasks.thread_workspace(arguments, (1, size), one)[0]
        while True:
            task = tasks.fetch_add(arguments, threads.NEXT_TASK)
            if task >= arguments[threads.TASKS]:
                return
            start = task * ELEMENTS_PER_TASK
            stop = min(count, start + ELEMENTS_PER_TASK)
            if not exp_2x_row(x[start:stop], y[start:stop], buffer) <= limit:
                tasks.fetch_add(arguments, threads.OUT_OF_RANGE)

    return kernel
