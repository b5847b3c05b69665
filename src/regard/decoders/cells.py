"""A recurrent cell that runs one step, or a whole sequence."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from regard.encoders import CELLS


class Cell(nn.Module):
    """A recurrent cell that can run one step, or a whole sequence with PyTorch's fast layer.

    Its input may come in two parts: what is known for all steps beforehand (`project` it once),
    and what each step finds out (`extra`).

    Args:
        input_dim: width of the part that is known beforehand.
        extra_dim: width of the part that each step finds out; 0 for none.
        hidden_dim: width of the state.
        cell: `gru` or `lstm`.
    """

    def __init__(self, input_dim: int, extra_dim: int, hidden_dim: int, cell: str) -> None:
        super().__init__()
        self.rnn = CELLS[cell](input_dim + extra_dim, hidden_dim, batch_first=True)
        self.input_dim = input_dim

    def run(self, inputs: Tensor, hidden: Sequence[Tensor]) -> Tensor:
        """The states (B, L, D) of a whole sequence of complete inputs (B, L, input + extra)."""
        first = [tensor[None].contiguous() for tensor in hidden]
        return self.rnn(inputs, first[0] if len(first) == 1 else tuple(first))[0]

    def project(self, inputs: Tensor) -> Tensor:
        """The part of the gates that comes from the known input, for any number of steps."""
        weight, _, bias, _ = self._weights()
        return functional.linear(inputs, weight[:, : self.input_dim], bias)

    def step(
        self, known: Tensor, extra: Tensor | None, hidden: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """Carry `hidden` one step on; `known` comes from `project`, `extra` from this step."""
        weight, weight_hidden, _, bias_hidden = self._weights()
        if extra is not None:
            known = known + functional.linear(extra, weight[:, self.input_dim :])
        recurrent = functional.linear(hidden[0], weight_hidden, bias_hidden)
        if isinstance(self.rnn, nn.LSTM):
            enter, forget, new, out = (known + recurrent).chunk(4, dim=-1)
            c = torch.sigmoid(forget) * hidden[1] + torch.sigmoid(enter) * torch.tanh(new)
            return torch.sigmoid(out) * torch.tanh(c), c
        width = 2 * hidden[0].shape[-1]
        reset, update = torch.sigmoid(known[:, :width] + recurrent[:, :width]).chunk(2, dim=-1)
        new = torch.tanh(known[:, width:] + reset * recurrent[:, width:])
        return (new + update * (hidden[0] - new),)

    def _weights(self) -> list[nn.Parameter]:
        """Of input and state, then their biases: PyTorch's order."""
        return self.rnn.all_weights[0]
