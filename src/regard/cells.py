"""Recurrent cells: PyTorch's layers for whole sequences, and one step of each."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

StepFunction = Callable[[Tensor, Tensor, Sequence[Tensor]], tuple[Tensor, ...]]
"""Next state from the input part and the recurrent part of the gates, (N, G) each, and the state."""


def gru_step(inputs: Tensor, recurrent: Tensor, state: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Compute one step of the GRU of Cho et al. 2014 (arXiv:1406.1078), as in `torch.nn.GRU`."""
    width = 2 * state[0].shape[-1]
    reset, update = torch.sigmoid(inputs[:, :width] + recurrent[:, :width]).chunk(2, dim=-1)
    new = torch.tanh(inputs[:, width:] + reset * recurrent[:, width:])
    return (new + update * (state[0] - new),)


def lstm_step(inputs: Tensor, recurrent: Tensor, state: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Compute one step of the LSTM with forget gates (Hochreiter and Schmidhuber 1997), as in `torch.nn.LSTM`."""
    enter, forget, new, out = (inputs + recurrent).chunk(4, dim=-1)
    memory = torch.sigmoid(forget) * state[1] + torch.sigmoid(enter) * torch.tanh(new)
    return torch.sigmoid(out) * torch.tanh(memory), memory


class CellType(NamedTuple):
    """A kind of recurrent cell."""

    layer: Callable[..., nn.RNNBase]
    """PyTorch's layer, for whole sequences."""
    state_tensors: int
    """Number of tensors (N, D) in the state; the first is the output."""
    step: StepFunction
    """Returns the next state, given the input and recurrent parts of the gates, (N, G), and the state."""


CELLS = {"gru": CellType(nn.GRU, 1, gru_step), "lstm": CellType(nn.LSTM, 2, lstm_step)}
"""Cells by name."""


class Cell(nn.Module):
    """A recurrent cell that runs one step, or a whole sequence with PyTorch's layer.

    Its input has two parts: `inputs`, known for all steps beforehand and projected together, and
    `extra`, computed at each step.

    Args:
        input_dim: width of the part that is known beforehand.
        extra_dim: width of the part that is computed at each step; 0 if there is none.
        hidden_dim: width D of the state.
        cell: a name in `CELLS`.
    """

    def __init__(self, input_dim: int, extra_dim: int, hidden_dim: int, cell: str) -> None:
        super().__init__()
        self.name, self.cell = cell, CELLS[cell]
        self.rnn = self.cell.layer(input_dim + extra_dim, hidden_dim, batch_first=True)
        self.input_dim = input_dim

    def run(
        self, inputs: Float[Tensor, "B L I"], state: Sequence[Float[Tensor, "B D"]]
    ) -> Float[Tensor, "B L D"]:
        """Return the outputs for a whole sequence; I = input_dim + extra_dim."""
        first = [tensor[None].contiguous() for tensor in state]
        return self.rnn(inputs, first[0] if len(first) == 1 else tuple(first))[0]

    def project(self, inputs: Float[Tensor, "*n I"]) -> Float[Tensor, "*n G"]:
        """Return the part of the gates that depends on the known input; I = input_dim."""
        return functional.linear(inputs, *self.known)

    def step(
        self,
        projected: Float[Tensor, "N G"],
        extra: Float[Tensor, "N E"] | None,
        state: Sequence[Float[Tensor, "N D"]],
    ) -> tuple[Tensor, ...]:
        """Return the state after one step; `projected` comes from `project`."""
        if extra is not None:
            projected = projected + functional.linear(extra, self.extra_weight)
        recurrent = functional.linear(state[0], *self.recurrent)
        return self.cell.step(projected, recurrent, state)

    @property
    def known(self) -> tuple[Float[Tensor, "G I"], Float[Tensor, " G"]]:
        """The matrix that multiplies the part of the input known beforehand, and the bias."""
        weight, _, bias, _ = self._weights()
        return weight[:, : self.input_dim], bias

    @property
    def extra_weight(self) -> Float[Tensor, "G E"]:
        """The matrix that multiplies the part of the input computed at each step."""
        return self._weights()[0][:, self.input_dim :]

    @property
    def recurrent(self) -> tuple[Float[Tensor, "G D"], Float[Tensor, " G"]]:
        """The matrix that multiplies the state, and the bias."""
        _, weight, _, bias = self._weights()
        return weight, bias

    def _weights(self) -> list[nn.Parameter]:
        """Return the weights for input and state, then the biases, in PyTorch's order."""
        return self.rnn.all_weights[0]
