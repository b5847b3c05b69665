"""LSTM layer over whole sequences in bfloat16, with gradients, on CPUs: products in PyTorch, kernels for the rest.

A step of all directions is one product with the states and one call of a kernel. Numbers are bfloat16, but for
c and its gradient, which are float32. Of `threads.Sizes`, `heads` is the number of directions, `queries` that
of sequences, `keys` their length, `width` that of a state and `tile` the number of sequences of a task.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.kernels.cpu.machine_code import Kernel, load
from regard.kernels.cpu.processor import LANES
from regard.kernels.cpu.threads import Sizes, run_kernel

GATES, POSITIONS, BEFORE, AFTER = range(4)
"""Tensors of both kernels, for S directions, B sequences of T tokens, and states of width D: the gates
(S, B T, 4 D), the position of every sequence at this step (S, B), and c before and after it (S, B, D)."""

PRODUCTS, STATE, PREVIOUS, OUTPUTS = range(4, 8)
"""Forward: the products with the state (S, B, 4 D), the state (S, B, D), and the states before (S, B T, D)
and after (B T, S, D) every position."""

GRAD_OUTPUTS, GRAD_STATE, GRAD_MEMORY, GRAD_GATES, GRAD_STEP = range(4, 9)
"""Backward: the gradients of the outputs (B T, S, D), of the state and of c (S, B, D), of all gates
(S, B T, 4 D), and of those of this step (S, B, 4 D)."""

FORWARD, BACKWARD = (Kernel("recurrent.lstm_kernel", name) for name in ("forward", "backward"))

_ROWS_PER_TASK = 16

_MIN_PRODUCT = 1 << 24
"""Multiplications of a step below which PyTorch's layer is as fast."""


def is_faster(batch: int, width: int) -> bool:
    """Return whether the kernels are faster than PyTorch's layer for states of this width."""
    return 4 * batch * width**2 >= _MIN_PRODUCT and has_kernels(width)


def has_kernels(width: int) -> bool:
    """Return whether there are kernels for states of this width."""
    return width % LANES == 0 and all(load(kernel) is not None for kernel in (FORWARD, BACKWARD))


class _Layer(torch.autograd.Function):
    """Outputs (B, T, S D) of an LSTM layer with S directions.

    Given the inputs (B, T, I), the positions (T, S, B), the first output and memory (S, B, D), and the four
    weights of every direction, in the order of `torch.nn.LSTM`.
    """

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        positions: Tensor,
        state: Tensor,
        memory: Tensor,
        *weights: Tensor,
    ) -> Tensor:
        length, directions, batch = positions.shape
        matrices, by_state, *biases = (_stacked(weights[kind::4]) for kind in range(4))
        width, bias = by_state.shape[2], biases[0] + biases[1]
        rows = inputs.reshape(batch * length, -1)
        gates = rows.new_empty(directions, len(rows), 4 * width)
        for direction in range(directions):
            torch.addmm(bias[direction], rows, matrices[direction].t(), out=gates[direction])
        state = state.clone(memory_format=torch.contiguous_format)
        before = rows.new_empty(directions, len(rows), width)
        memories = memory.new_empty(length + 1, directions, batch, width)
        memories[0] = memory
        products = rows.new_empty(directions, batch, 4 * width)
        outputs = rows.new_empty(batch, length, directions * width)
        for step in range(length):
            torch.bmm(state, by_state.transpose(1, 2), out=products)
            tensors = [gates, positions[step], memories[step], memories[step + 1]]
            run_step(FORWARD, *tensors, products, state, before, outputs)
        ctx.save_for_backward(rows, positions, matrices, by_state, gates, before, memories)
        return outputs

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad_outputs: Tensor
    ) -> tuple[Tensor | None, ...]:
        refuse_second_order()
        rows, positions, matrices, by_state, gates, before, memories = ctx.saved_tensors
        length, directions, batch = positions.shape
        grad_outputs = grad_outputs.contiguous()
        grad_state = rows.new_zeros(directions, batch, by_state.shape[2])
        grad_memory = grad_state.float()
        grad_step = gates.new_empty(directions, batch, gates.shape[2])
        grad_gates = torch.empty_like(gates)
        for step in reversed(range(length)):
            tensors = [gates, positions[step], memories[step], memories[step + 1]]
            gradients = [grad_outputs, grad_state, grad_memory, grad_gates, grad_step]
            run_step(BACKWARD, *tensors, *gradients)
            torch.bmm(grad_step, by_state, out=grad_state)
        grad_rows, grad_weights = torch.zeros_like(rows), list[Tensor]()
        for direction, gradient in enumerate(grad_gates):
            grad_rows.addmm_(gradient, matrices[direction])
            products = [gradient.t() @ rows, gradient.t() @ before[direction]]
            grad_bias = gradient.sum(0)
            grad_weights += [each.float() for each in (*products, grad_bias, grad_bias)]
        return grad_rows.view(batch, length, -1), None, grad_state, grad_memory, *grad_weights


def _stacked(weights: Sequence[Tensor]) -> Tensor:
    """Return the weights of all directions in bfloat16."""
    stacked = weights[0].new_empty(len(weights), *weights[0].shape, dtype=torch.bfloat16)
    for copy, weight in zip(stacked, weights, strict=True):
        copy.copy_(weight)
    return stacked


def refuse_second_order() -> None:
    """Raise a RuntimeError in a backward pass that is itself differentiated."""
    if torch.is_grad_enabled():  # create_graph=True
        raise RuntimeError(
            "an LSTM layer in bfloat16 has no derivatives of second order; compute them in float32"
        )


def run_step(kernel: Kernel, *tensors: Tensor) -> None:
    """Run a kernel for one step."""
    directions, rows, width = tensors[GATES].shape
    batch = tensors[POSITIONS].shape[1]
    sizes = Sizes(directions, batch, rows // max(1, batch), width // 4, _ROWS_PER_TASK)
    tasks = directions * -(-batch // _ROWS_PER_TASK)
    run_kernel(load(kernel), tasks, sizes, tensors, directions * batch * width)


def run(
    inputs: Float[Tensor, "B T I"],
    order: Int[Tensor, "S B T"],
    state: Sequence[Float[Tensor, "B D"]] | None,
    weights: Sequence[Sequence[Tensor]],
) -> Float[Tensor, "B T SD"]:
    """Return the outputs of all S directions, side by side, in bfloat16.

    Args:
        inputs: the inputs, in any precision.
        order: the positions in the order in which a direction reads them.
        state: the first output and memory of all directions; None for zeros.
        weights: for every direction, the matrices of the input and of the state, (4D, I) and (4D, D), and their
            biases, in the order of `torch.nn.LSTM`.

    Raises:
        IndexError: a position is not in the inputs.
    """
    directions, batch, length = order.shape
    # the kernels read and write unchecked
    if order.numel() and not 0 <= int(order.min()) <= int(order.max()) < length:
        raise IndexError(f"a sequence of the batch is longer than its {length} positions")
    first = torch.arange(0, batch * length, length, device=order.device)[:, None]
    positions = (order + first).permute(2, 0, 1).contiguous()
    width = weights[0][1].shape[1]
    if state is None:
        state = [inputs.new_zeros(batch, width)] * 2
    output, memory = (each.reshape(1, batch, width).repeat(directions, 1, 1) for each in state)
    flat = [weight for each in weights for weight in each]
    return _Layer.apply(inputs.bfloat16(), positions, output.bfloat16(), memory.float(), *flat)
