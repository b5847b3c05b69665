"""LSTM layers that need the attention of every step, in bfloat16, with gradients, on CPUs.

The score is additive. The layer reads the context (`attend_first`; Bahdanau et al. 2015, arXiv:1409.0473) or, with
input feeding, the readout of the step before (`feed_input`; Luong et al. 2015, arXiv:1508.04025):

    c_t = attention(s_{t-1})    s_t = cell(s_{t-1}, x_t + W_x c_t)
    s_t = cell(s_{t-1}, x_t + W_x r_{t-1})    c_t = attention(s_t)    r_t = tanh(W_r [c_t; s_t] + b_r)

Queries, scores, weights and c of the cell are float32, all other numbers bfloat16. In the tensors of this module,
the steps come first. The gradients of a matrix and of the values are one product for all steps.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.kernels.additive import AdditiveKeys, dispatch
from regard.kernels.normalizers import normalize, normalizer_backward
from regard.kernels.recurrent.lstm import (
    BACKWARD,
    FORWARD,
    has_kernels,
    refuse_second_order,
    run_step,
)
from regard.kernels.weighted_sum import without_autocast


class Cell(NamedTuple):
    """The weights of an LSTM cell."""

    by_extra: Float[Tensor, "G I"]
    """W_x."""
    by_state: Float[Tensor, "G D"]
    bias: Float[Tensor, " G"]


class Source(NamedTuple):
    """What is attended to, and the weights of the score."""

    keys: AdditiveKeys
    """Projected keys (B, T, E)."""
    values: Float[Tensor, "B T C"]
    masked: Bool[Tensor, "B T"]
    by_query: Float[Tensor, "E D"]
    vector: Float[Tensor, " E"]

    def tensors(self) -> list[Tensor | None]:
        """Return the fields of `_Attention` up to `by_query`."""
        keys, prepared = self.keys.projected, self.keys.prepared
        vector, values = self.vector.float(), self.values.float()
        return [keys, prepared, vector, values, self.masked, self.by_query.bfloat16()]


class _Attention(NamedTuple):
    """Attention at all steps."""

    keys: Tensor
    prepared: Tensor | None
    vector: Tensor
    values: Tensor
    masked: Tensor
    by_query: Tensor
    queries: Float[Tensor, "L B E"]
    weights: Float[Tensor, "L B T"]
    contexts: Float[Tensor, "L B C"]

    @classmethod
    def of(cls, source: Sequence[Any], steps: int) -> "_Attention":
        """Return the attention to `Source.tensors`, with space for all steps."""
        keys, values = source[0], source[3]
        batch, length, width = keys.shape
        queries = keys.new_empty(steps, batch, width)
        weights = keys.new_empty(steps, batch, length)
        contexts = values.new_empty(steps, batch, values.shape[2], dtype=torch.bfloat16)
        return cls._make([*source, queries, weights, contexts])

    def attend(self, step: int, state: Float[Tensor, "B D"]) -> Float[Tensor, "B C"]:
        """Return the context of a step."""
        self.queries[step] = state @ self.by_query.t()
        queries, workspace = self.queries[step][:, None], dispatch.default_workspace(state.device)
        scores = dispatch.scores(queries, self.keys, self.vector[None], self.prepared, workspace)
        weights = normalize(scores, self.masked[:, None], "softmax")
        self.weights[step] = weights[:, 0]
        self.contexts[step] = torch.bmm(weights, self.values)[:, 0]
        return self.contexts[step]


class _AttentionGradients:
    """The gradients of `_Attention`, step by step."""

    def __init__(self, attention: _Attention) -> None:
        self._attention = attention
        self._queries = torch.empty_like(attention.queries, dtype=torch.bfloat16)
        self._contexts = torch.empty_like(attention.contexts, dtype=torch.float32)
        self._keys = torch.zeros_like(attention.keys)
        self._vector = torch.zeros_like(attention.vector)

    def add(self, step: int, context: Tensor, weights: Tensor, grad_state: Tensor) -> None:
        """Add the gradient of the state that was the query to `grad_state`, given those of context and weights."""
        attention, self._contexts[step] = self._attention, context
        # `values @ context` takes PyTorch five to ten times as long
        gradient = torch.bmm(self._contexts[step][:, None], attention.values.transpose(1, 2))
        gradient += weights[:, None]
        gradient = normalizer_backward(gradient, attention.weights[step][:, None], "softmax")
        queries, keys, vector = attention.queries[step][:, None], attention.keys, attention.vector
        workspace = dispatch.default_workspace(keys.device)
        by_query, by_keys, by_vector = dispatch.gradients(
            gradient, queries, keys, vector[None], workspace
        )
        self._queries[step] = by_query[:, 0]
        self._keys += by_keys
        self._vector += by_vector[0]
        grad_state.addmm_(self._queries[step], attention.by_query)

    def of_source(self, states: Float[Tensor, "L B D"]) -> list[Tensor | None]:
        """Return the gradients of `Source.tensors`, given the states that were the queries."""
        weights = self._attention.weights.permute(1, 2, 0)
        values = torch.bmm(weights, self._contexts.transpose(0, 1))
        return [self._keys, None, self._vector, values, None, _of_matrix(self._queries, states)]


class _Cells(NamedTuple):
    """The cells of all steps."""

    by_extra: Tensor
    by_state: Tensor
    positions: Tensor
    """(L, 1, B): the rows of the gates."""
    gates: Float[Tensor, "L B G"]
    memories: Float[Tensor, "L+1 1 B D"]
    before: Float[Tensor, "L B D"]
    """The states before every step."""
    states: Float[Tensor, "L B D"]

    @classmethod
    def of(cls, inputs: Tensor, memory: Tensor, weights: Sequence[Tensor]) -> "_Cells":
        """Return the cells with the fields of `Cell`, given x (B, L, G) and the first c, with space for all steps."""
        by_extra, by_state, bias = weights
        (batch, steps, gates_dim), width = inputs.shape, by_state.shape[1]
        gates = inputs.new_empty(steps, batch, gates_dim)
        torch.add(inputs.transpose(0, 1), bias, out=gates)
        memories = memory.new_empty(steps + 1, 1, batch, width)
        memories[0] = memory
        positions = torch.arange(steps * batch, device=inputs.device).view(steps, 1, batch)
        before, states = inputs.new_empty(2, steps, batch, width)
        return cls(by_extra, by_state, positions, gates, memories, before, states)

    def run(self, step: int, state: Tensor, extra: Tensor | None) -> None:
        """Replace the state with the next one."""
        products = state @ self.by_state.t()
        if extra is not None:
            products.addmm_(extra, self.by_extra.t())
        before, states = self.before.flatten(0, 1)[None], self.states.flatten(0, 1)[:, None]
        run_step(FORWARD, *self.of_step(step), products[None], state[None], before, states)

    def of_step(self, step: int) -> list[Tensor]:
        """Return what the kernels of a step and of its gradients have in common."""
        gates = self.gates.flatten(0, 1)[None]
        return [gates, self.positions[step], *self.memories[step : step + 2]]


class _CellGradients:
    """The gradients of `_Cells`, step by step."""

    def __init__(self, cells: _Cells) -> None:
        self._cells = cells
        self.state = torch.zeros_like(cells.before[0])
        """Of the state after the step, then before it."""
        self._memory = torch.zeros_like(cells.memories[0])
        self._gates = torch.empty_like(cells.gates)

    def add(self, step: int, states: Float[Tensor, "L B D"]) -> Float[Tensor, "B I"]:
        """Return the gradient of the extra input of a step, given those of the states from other layers."""
        cells, by_gates = self._cells, torch.empty_like(self._gates[step])
        given = [states.flatten(0, 1)[:, None], self.state[None], self._memory]
        gates = self._gates.flatten(0, 1)[None]
        run_step(BACKWARD, *cells.of_step(step), *given, gates, by_gates[None])
        torch.mm(by_gates, cells.by_state, out=self.state)
        return by_gates @ cells.by_extra

    def of_inputs(self, extras: Float[Tensor, "L2 B I"]) -> list[Tensor]:
        """Return the gradients of x, the first state, the first c and the fields of `Cell`.

        `extras` contains the extra inputs of the last L2 steps.
        """
        gates = self._gates
        by_extra = _of_matrix(gates[len(gates) - len(extras) :], extras)
        weights = by_extra, _of_matrix(gates, self._cells.before), gates.sum((0, 1))
        return [gates.transpose(0, 1), self.state, self._memory[0], *weights]


def _of_matrix(products: Float[Tensor, "L B E"], inputs: Float[Tensor, "L B I"]) -> Tensor:
    """Return the gradient (E, I) of the matrix that all steps multiply by, given those of the products."""
    return products.flatten(0, 1).t() @ inputs.flatten(0, 1)


def _first_order(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Return a backward pass that cannot be differentiated, without autocast, in which its caller may be."""

    @functools.wraps(compute)
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        refuse_second_order()
        with without_autocast(gradients[0].device):
            return compute(ctx, *gradients)

    return backward


class _AttendFirst(torch.autograd.Function):
    """States, contexts and weights, given x (B, L, G), the first state and c, `Cell` and `Source.tensors`."""

    @staticmethod
    def forward(
        ctx: Any, inputs: Tensor, state: Tensor, memory: Tensor, *others: Any
    ) -> tuple[Tensor, ...]:
        steps = inputs.shape[1]
        cells, attention = _Cells.of(inputs, memory, others[:3]), _Attention.of(others[3:], steps)
        state = state.clone(memory_format=torch.contiguous_format)
        for step in range(steps):
            cells.run(step, state, attention.attend(step, state))
        ctx.save_for_backward(*cells, *attention)
        return cells.states, attention.contexts, attention.weights

    @staticmethod
    @_first_order
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad_states: Tensor, grad_contexts: Tensor, grad_weights: Tensor
    ) -> tuple[Tensor | None, ...]:
        saved, fields = ctx.saved_tensors, len(_Cells._fields)
        cells, attention = _Cells(*saved[:fields]), _Attention(*saved[fields:])
        by_cells, by_attention = _CellGradients(cells), _AttentionGradients(attention)
        grad_states = grad_states.contiguous()
        for step in reversed(range(len(grad_states))):
            context = grad_contexts[step] + by_cells.add(step, grad_states).float()
            by_attention.add(step, context, grad_weights[step], by_cells.state)
        of_inputs = by_cells.of_inputs(attention.contexts)
        return *of_inputs, *by_attention.of_source(cells.before)


class _FeedInput(torch.autograd.Function):
    """Readouts and weights, given x (B, L, G), the first state and c, W_r, b_r, `Cell` and `Source.tensors`.

    `factors` (L, B, R) of dropout multiply the readouts; None without dropout.
    """

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        state: Tensor,
        memory: Tensor,
        readout: Tensor,
        bias: Tensor,
        factors: Tensor | None,
        *others: Any,
    ) -> tuple[Tensor, Tensor]:
        steps = inputs.shape[1]
        cells, attention = _Cells.of(inputs, memory, others[:3]), _Attention.of(others[3:], steps)
        state = state.clone(memory_format=torch.contiguous_format)
        activations = state.new_empty(steps, len(state), len(bias))
        readouts = activations if factors is None else torch.empty_like(activations)
        for step in range(steps):
            cells.run(step, state, readouts[step - 1] if step else None)
            joined = torch.cat([attention.attend(step, state), state], dim=1)
            activations[step] = torch.addmm(bias, joined, readout.t()).tanh_()
            if factors is not None:
                torch.mul(activations[step], factors[step], out=readouts[step])
        ctx.save_for_backward(readout, factors, activations, readouts, *cells, *attention)
        return readouts, attention.weights

    @staticmethod
    @_first_order
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad_readouts: Tensor, grad_weights: Tensor
    ) -> tuple[Tensor | None, ...]:
        readout, factors, activations, readouts, *saved = ctx.saved_tensors
        fields = len(_Cells._fields)
        cells, attention = _Cells(*saved[:fields]), _Attention(*saved[fields:])
        by_cells, by_attention = _CellGradients(cells), _AttentionGradients(attention)
        width, products = attention.contexts.shape[2], torch.empty_like(activations)
        grad_states, extra = torch.empty_like(cells.states), None
        for step in reversed(range(len(readouts))):
            gradient = grad_readouts[step] if extra is None else grad_readouts[step] + extra
            gradient = gradient if factors is None else gradient * factors[step]
            products[step] = torch.ops.aten.tanh_backward(gradient, activations[step])
            joined = products[step] @ readout
            grad_states[step] = joined[:, width:]
            by_attention.add(step, joined[:, :width], grad_weights[step], grad_states[step])
            extra = by_cells.add(step, grad_states)
        of_inputs = by_cells.of_inputs(readouts[:-1])
        by_readout = [_of_matrix(products, each) for each in (attention.contexts, cells.states)]
        of_readout = torch.cat(by_readout, dim=1), products.sum((0, 1)), None
        of_source = by_attention.of_source(cells.states)
        return *of_inputs[:3], *of_readout, *of_inputs[3:], *of_source


def is_faster(batch: int, width: int) -> bool:
    """Return whether the functions of this module support states of this width; they are always faster."""
    return has_kernels(width)


def attend_first(
    inputs: Float[Tensor, "B L G"],
    state: Sequence[Float[Tensor, "B D"]],
    cell: Cell,
    source: Source,
) -> tuple[Float[Tensor, "B L D"], Float[Tensor, "B L C"], Float[Tensor, "B L T"]]:
    """Return the states, the contexts and, in float32, the attention weights.

    Args:
        inputs: x, the projected embeddings.
        state: s and c before the first step.
        cell: the weights of the cell.
        source: what is attended to.
    """
    with without_autocast(inputs.device):
        tensors = *_in_bfloat16(inputs, state), *(weight.bfloat16() for weight in cell)
        outputs = _AttendFirst.apply(*tensors, *source.tensors())
    states, contexts, weights = (each.transpose(0, 1) for each in outputs)
    return states, contexts, weights


def feed_input(
    inputs: Float[Tensor, "B L G"],
    state: Sequence[Float[Tensor, "B D"]],
    cell: Cell,
    source: Source,
    readout: tuple[Float[Tensor, "R C+D"], Float[Tensor, " R"]],
    factors: Float[Tensor, "L B R"] | None,
) -> tuple[Float[Tensor, "B L R"], Float[Tensor, "B L T"]]:
    """Return the readouts and, in float32, the attention weights.

    The arguments are those of `attend_first`, W_r and b_r, and the factors of dropout in bfloat16.
    """
    with without_autocast(inputs.device):
        weights = [weight.bfloat16() for weight in readout]
        tensors = *_in_bfloat16(inputs, state), *weights, factors
        cell_weights = [weight.bfloat16() for weight in cell]
        outputs = _FeedInput.apply(*tensors, *cell_weights, *source.tensors())
    readouts, alphas = (each.transpose(0, 1) for each in outputs)
    return readouts, alphas


def _in_bfloat16(inputs: Tensor, state: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    output, memory = state
    return inputs.bfloat16(), output.bfloat16(), memory.float()
