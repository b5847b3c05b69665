"""CPU kernels of a step of an LSTM layer in bfloat16, and of its gradients; `lstm.py` has the sizes and tensors."""

from collections.abc import Callable
from typing import Any

from regard.kernels.cpu import simd, tasks, threads
from regard.kernels.cpu.activations import sigmoid, tanh
from regard.kernels.cpu.processor import LANES
from regard.kernels.cpu.simd import load_bfloat16 as load
from regard.kernels.cpu.simd import store_bfloat16 as store
from regard.kernels.recurrent.lstm import (
    AFTER,
    BEFORE,
    GATES,
    GRAD_GATES,
    GRAD_MEMORY,
    GRAD_OUTPUTS,
    GRAD_STATE,
    GRAD_STEP,
    OUTPUTS,
    POSITIONS,
    PREVIOUS,
    PRODUCTS,
    STATE,
)


def forward(real: Any) -> Callable[[Any], None]:
    """Return the kernel of a step."""

    def kernel(arguments: Any) -> None:
        directions, sequences, length, width = tasks.read_sizes(arguments)
        tile, blocks = arguments[threads.TILE], arguments[threads.TASKS] // directions
        while True:
            task = tasks.fetch_add(arguments, threads.NEXT_TASK)
            if task >= arguments[threads.TASKS]:
                return
            direction, first = task // blocks, task % blocks * tile
            for sequence in range(first, min(first + tile, sequences)):
                row = direction * sequences + sequence
                position = tasks.integers(arguments, POSITIONS, row)[0]
                at = direction * sequences * length + position
                gates = tasks.halves(arguments, GATES, 4 * at * width)
                products = tasks.halves(arguments, PRODUCTS, 4 * row * width)
                before = tasks.floats(arguments, BEFORE, row * width)
                after = tasks.floats(arguments, AFTER, row * width)
                state = tasks.halves(arguments, STATE, row * width)
                previous = tasks.halves(arguments, PREVIOUS, at * width)
                start = (position * directions + direction) * width
                outputs = tasks.halves(arguments, OUTPUTS, start)
                for d in range(0, width, LANES):
                    f, g, o = d + width, d + 2 * width, d + 3 * width
                    enter = sigmoid(load(gates, d) + load(products, d))
                    forget = sigmoid(load(gates, f) + load(products, f))
                    new = tanh(load(gates, g) + load(products, g))
                    opened = sigmoid(load(gates, o) + load(products, o))
                    memory = forget * simd.load(before, d) + enter * new
                    output = opened * tanh(memory)
                    store(gates, d, enter)
                    store(gates, f, forget)
                    store(gates, g, new)
                    store(gates, o, opened)
                    simd.store(after, d, memory)
                    store(previous, d, load(state, d))
                    store(state, d, output)
                    store(outputs, d, output)

    return kernel


def backward(real: Any) -> Callable[[Any], None]:
    """Return the kernel of the gradients of a step.

        do = dh tanh(c) o (1 - o)    dc' = dc + dh o (1 - tanh^2 c)
        di = dc' g i (1 - i)         df = dc' c_{t-1} f (1 - f)        dg = dc' i (1 - g^2)

    with dh from the outputs and from the next step, and dc = dc' f for the previous step.
    """
    one = real(1)

    def kernel(arguments: Any) -> None:
        directions, sequences, length, width = tasks.read_sizes(arguments)
        tile, blocks = arguments[threads.TILE], arguments[threads.TASKS] // directions
        ones = simd.splat(one)
        while True:
            task = tasks.fetch_add(arguments, threads.NEXT_TASK)
            if task >= arguments[threads.TASKS]:
                return
            direction, first = task // blocks, task % blocks * tile
            for sequence in range(first, min(first + tile, sequences)):
                row = direction * sequences + sequence
                position = tasks.integers(arguments, POSITIONS, row)[0]
                at = direction * sequences * length + position
                gates = tasks.halves(arguments, GATES, 4 * at * width)
                before = tasks.floats(arguments, BEFORE, row * width)
                after = tasks.floats(arguments, AFTER, row * width)
                start = (position * directions + direction) * width
                grad_outputs = tasks.halves(arguments, GRAD_OUTPUTS, start)
                grad_state = tasks.halves(arguments, GRAD_STATE, row * width)
                grad_memory = tasks.floats(arguments, GRAD_MEMORY, row * width)
                grad_gates = tasks.halves(arguments, GRAD_GATES, 4 * at * width)
                grad_step = tasks.halves(arguments, GRAD_STEP, 4 * row * width)
                for d in range(0, width, LANES):
                    f, g, o = d + width, d + 2 * width, d + 3 * width
                    enter, forget = load(gates, d), load(gates, f)
                    new, opened = load(gates, g), load(gates, o)
                    bounded = tanh(simd.load(after, d))
                    dh = load(grad_outputs, d) + load(grad_state, d)
                    dc = dh * opened * (ones - bounded * bounded) + simd.load(grad_memory, d)
                    simd.store(grad_memory, d, dc * forget)
                    grad = dc * new * enter * (ones - enter)
                    store(grad_gates, d, grad)
                    store(grad_step, d, grad)
                    grad = dc * simd.load(before, d) * forget * (ones - forget)
                    store(grad_gates, f, grad)
                    store(grad_step, f, grad)
                    grad = dc * enter * (ones - new * new)
                    store(grad_gates, g, grad)
                    store(grad_step, g, grad)
                    grad = dh * bounded * opened * (ones - opened)
                    store(grad_gates, o, grad)
                    store(grad_step, o, grad)

    return kernel
