"""Attention at every step, and LSTM layers that read it, in bfloat16, with gradients, on CPUs.

The score is additive. The layer reads the context (`attend_first`; Bahdanau et al. 2015, arXiv:1409.0473) or, with
input feeding, the readout of the step before (`feed_input`; Luong et al. 2015, arXiv:1508.04025):

    c_t = attention(s_{t-1})    s_t = cell(s_{t-1}, x_t + W_x c_t)
    s_t = cell(s_{t-1}, x_t + W_x r_{t-1})    c_t = attention(s_t)    r_t = tanh(W_r [c_t; s_t] + b_r)

With coverage (See et al. 2017, arXiv:1704.04368), each step depends on the attention of those before. If the states do
not, `attend` computes only the attention, also without coverage.

States, contexts, readouts and the products with matrices are bfloat16; the cell state m_t is kept in float32. In
the tensors of all steps, the step is the first axis. The gradient of a matrix is one product for all steps.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.kernels.recurrent.attention_steps import (
    AttentionGradients,
    AttentionSteps,
    AttentionTensors,
    gradient_of_matrix,
    has_attention_kernels,
    whole_vectors,
)
from regard.kernels.recurrent.lstm import (
    BACKWARD,
    FORWARD,
    has_kernels,
    refuse_second_order,
    run_step,
)
from regard.kernels.weighted_sum import without_autocast

_MOST_PAIRS = 256
"""Pairs of a step and a key up to which the kernels of a step are faster than the additive operator."""


class Cell(NamedTuple):
    """The weights of an LSTM cell."""

    extra_weight: Float[Tensor, "G I"]
    """W_x."""
    state_weight: Float[Tensor, "G D"]
    bias: Float[Tensor, " G"]


class _Cells(NamedTuple):
    """The cells of all steps."""

    extra_weight: Tensor
    state_weight: Tensor
    positions: Tensor
    """(L, 1, B): the rows of the gates."""
    gates: Float[Tensor, "L B G"]
    memories: Float[Tensor, "L+1 1 B D"]
    """m_0 to m_L."""
    before: Float[Tensor, "L B D"]
    """s_0 to s_{L-1}."""
    states: Float[Tensor, "L B D"]
    """s_1 to s_L."""

    @classmethod
    def allocate(cls, inputs: Tensor, memory: Tensor, weights: Sequence[Tensor]) -> "_Cells":
        """Return buffers for all steps, given x (B, L, G), m_0 and the fields of `Cell`."""
        extra_weight, state_weight, bias = weights
        (batch, steps, gates_dim), width = inputs.shape, state_weight.shape[1]
        gates = inputs.new_empty(steps, batch, gates_dim)
        torch.add(inputs.transpose(0, 1), bias, out=gates)
        memories = memory.new_empty(steps + 1, 1, batch, width)
        memories[0] = memory
        positions = torch.arange(steps * batch, device=inputs.device).view(steps, 1, batch)
        before, states = inputs.new_empty(2, steps, batch, width)
        return cls(extra_weight, state_weight, positions, gates, memories, before, states)

    def advance(self, step: int, state: Tensor, extra: Tensor | None) -> None:
        """Replace the state before the step with the one after it."""
        products = state @ self.state_weight.t()
        if extra is not None:
            products.addmm_(extra, self.extra_weight.t())
        before, states = self.before.flatten(0, 1)[None], self.states.flatten(0, 1)[:, None]
        run_step(FORWARD, *self.of_step(step), products[None], state[None], before, states)

    def of_step(self, step: int) -> list[Tensor]:
        """Return the first arguments of both kernels."""
        gates = self.gates.flatten(0, 1)[None]
        return [gates, self.positions[step], *self.memories[step : step + 2]]


class _CellGradients:
    """The gradients of `_Cells`, from the last step to the first."""

    def __init__(self, cells: _Cells) -> None:
        self._cells = cells
        self.state = torch.zeros_like(cells.before[0])
        """The gradient of the state before the latest step, through the cells."""
        self._memory = torch.zeros_like(cells.memories[0])
        self._gates = torch.empty_like(cells.gates)

    def of_gates(self, step: int, grad_states: Float[Tensor, "L B D"]) -> Float[Tensor, "B G"]:
        """Return the gradient of the gates of a step; `grad_states` come from outside of the cells."""
        cells, gates = self._cells, self._gates.flatten(0, 1)[None]
        given = [grad_states.flatten(0, 1)[:, None], self.state[None], self._memory]
        # with one direction, the rows of the step are the gradients of its products, too
        run_step(BACKWARD, *cells.of_step(step), *given, gates, self._gates[step][None])
        torch.mm(self._gates[step], cells.state_weight, out=self.state)
        return self._gates[step]

    def of_inputs(self, extras: Float[Tensor, "L2 B I"]) -> list[Tensor]:
        """Return the gradients of x, s_0, m_0 and the fields of `Cell`.

        `extras` were the extra inputs of the last L2 steps.
        """
        gates = self._gates
        extra_weight = gradient_of_matrix(gates[len(gates) - len(extras) :], extras)
        state_weight = gradient_of_matrix(gates, self._cells.before)
        weights = extra_weight, state_weight, gates.sum((0, 1))
        return [gates.transpose(0, 1), self.state, self._memory[0], *weights]


def _first_order(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a backward pass: disable autocast, and raise an error if it is itself differentiated."""

    @functools.wraps(compute)
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        refuse_second_order()
        with without_autocast(gradients[0].device):
            return compute(ctx, *gradients)

    return backward


class _Attend(torch.autograd.Function):
    """Contexts and weights, given s_1 to s_L (L, B, D), which are the queries, and `AttentionTensors`."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, *given: Tensor) -> tuple[Tensor, Tensor]:
        attention = AttentionSteps.allocate(given, len(states))
        for step, state in enumerate(states):
            attention.attend(step, state)
        ctx.save_for_backward(states, *attention)
        return attention.contexts, attention.weights

    @staticmethod
    @_first_order
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad_contexts: Tensor, grad_weights: Tensor
    ) -> tuple[Tensor | None, ...]:
        states, *saved = ctx.saved_tensors
        of_attention = AttentionGradients(AttentionSteps(*saved), grad_weights)
        of_attention.contexts.copy_(grad_contexts)
        grad_states = torch.zeros_like(states)
        for step in reversed(range(len(states))):
            of_attention.add_to(grad_states[step], step)
        return grad_states, *of_attention.of_inputs(states)


class _AttendFirst(torch.autograd.Function):
    """States, contexts and weights, given x (B, L, G), s_0, m_0, `Cell` and `AttentionTensors`."""

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, state: Tensor, memory: Tensor, *others: Any
    ) -> tuple[Tensor, ...]:
        steps = inputs.shape[1]
        cells = _Cells.allocate(inputs, memory, others[:3])
        attention = AttentionSteps.allocate(others[3:], steps)
        state = state.clone(memory_format=torch.contiguous_format)
        for step in range(steps):
            cells.advance(step, state, attention.attend(step, state))
        ctx.save_for_backward(*cells, *attention)
        return cells.states, attention.contexts, attention.weights

    @staticmethod
    @_first_order
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad_states: Tensor, grad_contexts: Tensor, grad_weights: Tensor
    ) -> tuple[Tensor | None, ...]:
        cells, attention = _saved(ctx.saved_tensors)
        of_cells, of_attention = _CellGradients(cells), AttentionGradients(attention, grad_weights)
        grad_states = grad_states.contiguous()
        for step in reversed(range(len(grad_states))):
            given = grad_contexts[step], of_cells.of_gates(step, grad_states), cells.extra_weight
            torch.addmm(*given, out=of_attention.contexts[step])
            of_attention.add_to(of_cells.state, step)
        of_inputs = of_cells.of_inputs(attention.contexts)
        return *of_inputs, *of_attention.of_inputs(cells.before)


class _FeedInput(torch.autograd.Function):
    """Readouts and weights, given x (B, L, G), s_0, m_0, W_r, b_r, factors, `Cell` and `AttentionTensors`.

    The readouts are multiplied by the factors of dropout (L, B, R); None without dropout.
    """

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        state: Tensor,
        memory: Tensor,
        weight: Tensor,
        bias: Tensor,
        factors: Tensor | None,
        *others: Any,
    ) -> tuple[Tensor, Tensor]:
        steps = inputs.shape[1]
        cells = _Cells.allocate(inputs, memory, others[:3])
        attention = AttentionSteps.allocate(others[3:], steps)
        state = state.clone(memory_format=torch.contiguous_format)
        activations = state.new_empty(steps, len(state), len(bias))
        readouts = activations if factors is None else torch.empty_like(activations)
        for step in range(steps):
            cells.advance(step, state, readouts[step - 1] if step else None)
            joined = torch.cat([attention.attend(step, state), state], dim=1)
            activations[step] = torch.addmm(bias, joined, weight.t()).tanh_()
            if factors is not None:
                torch.mul(activations[step], factors[step], out=readouts[step])
        ctx.save_for_backward(weight, factors, activations, readouts, *cells, *attention)
        return readouts, attention.weights

    @staticmethod
    @_first_order
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad_readouts: Tensor, grad_weights: Tensor
    ) -> tuple[Tensor | None, ...]:
        weight, factors, activations, readouts, *saved = ctx.saved_tensors
        cells, attention = _saved(saved)
        of_cells, of_attention = _CellGradients(cells), AttentionGradients(attention, grad_weights)
        contexts, grad_products = attention.contexts, torch.empty_like(activations)
        of_context, of_state = weight.split([contexts.shape[2], cells.states.shape[2]], dim=1)
        grad_states, grad_extra = torch.empty_like(cells.states), None
        for step in reversed(range(len(readouts))):
            gradient = grad_readouts[step]
            gradient = gradient if grad_extra is None else gradient + grad_extra
            gradient = gradient if factors is None else gradient * factors[step]
            grad_products[step] = torch.ops.aten.tanh_backward(gradient, activations[step])
            torch.mm(grad_products[step], of_context, out=of_attention.contexts[step])
            torch.mm(grad_products[step], of_state, out=grad_states[step])
            of_attention.add_to(grad_states[step], step)
            grad_extra = of_cells.of_gates(step, grad_states) @ cells.extra_weight
        blocks = [gradient_of_matrix(grad_products, rows) for rows in (contexts, cells.states)]
        of_readout = torch.cat(blocks, dim=1), grad_products.sum((0, 1)), None
        of_inputs = of_cells.of_inputs(readouts[:-1])
        of_source = of_attention.of_inputs(cells.states)
        return *of_inputs[:3], *of_readout, *of_inputs[3:], *of_source


def _saved(tensors: Sequence[Any]) -> tuple[_Cells, AttentionSteps]:
    """Return what a forward pass has saved last."""
    fields = len(_Cells._fields)
    return _Cells(*tensors[:fields]), AttentionSteps(*tensors[fields:])


def is_faster(batch: int, width: int) -> bool:
    """Return whether there is a kernel for states of this width; it is faster with any number of rows."""
    return has_kernels(width) and has_attention_kernels()


def suits(states: Float[Tensor, "B L D"], masked: Bool[Tensor, "B T"]) -> bool:
    """Return whether `attend` is faster than the additive operator, if the attention does not depend on the steps before.

    For many pairs, the operator is faster: it computes an exponential per query and key instead of a tanh per pair.
    """
    return states.shape[1] * masked.shape[1] <= _MOST_PAIRS


def attend(
    states: Float[Tensor, "B L D"], attention: AttentionTensors
) -> tuple[Float[Tensor, "B L Dv"], Float[Tensor, "B L T"]]:
    """Return the contexts in bfloat16, and the attention weights in float32.

    Args:
        states: the queries.
        attention: what they attend to.
    """
    with without_autocast(states.device):
        queries = states.bfloat16().transpose(0, 1).contiguous()
        outputs = _Attend.apply(queries, *attention.prepared())
    contexts, weights = (each.transpose(0, 1) for each in outputs)
    return contexts[..., : attention.values.shape[2]], weights


def attend_first(
    inputs: Float[Tensor, "B L G"],
    state: Sequence[Float[Tensor, "B D"]],
    cell: Cell,
    attention: AttentionTensors,
) -> tuple[Float[Tensor, "B L D"], Float[Tensor, "B L Dv"], Float[Tensor, "B L T"]]:
    """Return the states and the contexts in bfloat16, and the attention weights in float32.

    Args:
        inputs: x, the projected embeddings.
        state: s_0 and m_0.
        cell: the weights of the cell.
        attention: what the layer attends to.
    """
    with without_autocast(inputs.device):
        cell = cell._replace(extra_weight=whole_vectors(cell.extra_weight))
        outputs = _AttendFirst.apply(
            *_in_compute_dtypes(inputs, state),
            *(weight.bfloat16() for weight in cell),
            *attention.prepared(),
        )
    states, contexts, weights = (each.transpose(0, 1) for each in outputs)
    return states, contexts[..., : attention.values.shape[2]], weights


def feed_input(
    inputs: Float[Tensor, "B L G"],
    state: Sequence[Float[Tensor, "B D"]],
    cell: Cell,
    attention: AttentionTensors,
    readout: tuple[Float[Tensor, "R Dv+D"], Float[Tensor, " R"]],
    factors: Float[Tensor, "L B R"] | None,
) -> tuple[Float[Tensor, "B L R"], Float[Tensor, "B L T"]]:
    """Return the readouts in bfloat16, and the attention weights in float32.

    Args:
        inputs: x, the projected embeddings.
        state: s_0 and m_0.
        cell: the weights of the cell.
        attention: what the layer attends to.
        readout: W_r and b_r.
        factors: the factors of dropout for the readouts, in bfloat16; None without dropout.
    """
    weight, width = readout[0].bfloat16(), attention.values.shape[2]
    weight = torch.cat([whole_vectors(weight[:, :width]), weight[:, width:]], dim=1)
    with without_autocast(inputs.device):
        outputs = _FeedInput.apply(
            *_in_compute_dtypes(inputs, state),
            weight,
            readout[1].bfloat16(),
            factors,
            *(weight.bfloat16() for weight in cell),
            *attention.prepared(),
        )
    readouts, weights = (each.transpose(0, 1) for each in outputs)
    return readouts, weights


def _in_compute_dtypes(inputs: Tensor, state: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    output, memory = state
    return inputs.bfloat16(), output.bfloat16(), memory.float()
