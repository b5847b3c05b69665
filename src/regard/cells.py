"""Recurrent cells: PyTorch's layers for whole sequences, and one step of each."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeGuard, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from regard.kernels.additive.autograd import needs_dispatcher
from regard.kernels.compilation import import_kernel
from regard.kernels.dropout import in_transform
from regard.kernels.linear import compute_weights, has_hooks
from regard.kernels.weighted_sum import in_forward_mode

StepFunction = Callable[[Tensor, Tensor, Sequence[Tensor]], tuple[Tensor, ...]]
"""Next state from the input part and the recurrent part of the gates, (N, G) each, and the state."""


def gru_step(inputs: Tensor, recurrent: Tensor, state: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Compute one step of the GRU of Cho et al. 2014 (arXiv:1406.1078), in the form of `torch.nn.GRU`.

    The reset gate multiplies the product of U and the state; in the paper, it multiplies the state.
    """
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


def run_layer(
    directions: Sequence[nn.Module],
    inputs: Float[Tensor, "B T I"],
    orders: Sequence[Int[Tensor, "B T"] | None],
    state: Sequence[Float[Tensor, "B D"]] | None = None,
) -> Float[Tensor, "B T D"]:
    """Return the outputs of a layer for whole sequences, those of all directions side by side.

    Args:
        directions: PyTorch's layers, or modules that are called like them, one per direction.
        inputs: the inputs of all directions.
        orders: the positions in the order in which each direction reads them; None for the order of the inputs.
        state: the first state of a single direction; None for zeros.
    """
    if (kernel := faster_kernel("lstm", directions, [inputs, *(state or [])])) is not None:
        positions = torch.arange(inputs.shape[1], device=inputs.device).expand(inputs.shape[:2])
        order = torch.stack([positions if each is None else each for each in orders])
        weights = [cast("nn.LSTM", layer).all_weights[0] for layer in directions]
        return kernel.run(inputs, order, state, weights)
    outputs: list[Tensor] = []
    for layer, order in zip(directions, orders, strict=True):
        read = inputs if order is None else _gather_rows(inputs, order)
        if state is None:
            output = layer(read)[0]
        else:
            first = [tensor[None].contiguous() for tensor in state]
            output = layer(read, first[0] if len(first) == 1 else tuple(first))[0]
        outputs.append(output if order is None else _gather_rows(output, order))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)


def _gather_rows(rows: Float[Tensor, "B T D"], indices: Int[Tensor, "B T"]) -> Tensor:
    return rows.gather(1, indices[..., None].expand(-1, -1, rows.shape[-1]))


def is_plain(layer: nn.Module) -> TypeGuard[nn.RNNBase]:
    """Return whether a module is one of PyTorch's recurrent layers, without hooks, that can be computed elsewhere.

    It is in float32 on the CPU, has biases and a single layer and direction, and reads (B, T, I).
    """
    if not isinstance(layer, nn.LSTM | nn.GRU) or type(layer) not in (nn.LSTM, nn.GRU):
        return False
    if has_hooks(layer) or layer.proj_size:
        return False
    options = layer.num_layers == 1, layer.bias, layer.batch_first, not layer.bidirectional
    return all(options) and all(
        w.dtype == torch.float32 and w.device.type == "cpu" for w in layer.all_weights[0]
    )


def faster_kernel(name: str, directions: Sequence[nn.Module], tensors: Sequence[Tensor]) -> Any:
    """Return a module of `kernels.recurrent` for layers in bfloat16; None for PyTorch's layers.

    Args:
        name: name of the module.
        directions: the layers.
        tensors: the inputs (B, T, I), then the other tensors on which the outputs depend.
    """
    inputs = tensors[0]
    if inputs.device.type != "cpu" or not torch.is_autocast_enabled("cpu"):
        return None
    if torch.get_autocast_dtype("cpu") != torch.bfloat16 or in_forward_mode() or in_transform():
        return None
    layers = [layer for layer in directions if is_plain(layer) and isinstance(layer, nn.LSTM)]
    weights = [weight for layer in layers for weight in layer.all_weights[0]]
    if len(layers) < len(directions) or needs_dispatcher([*tensors, *weights]):
        return None
    kernel = import_kernel(f"recurrent.{name}") if inputs.numel() else None
    is_faster = kernel is not None and kernel.is_faster(len(inputs), layers[0].hidden_size)
    return kernel if is_faster else None


class Cell(nn.Module):
    """A recurrent cell that runs one step, or a whole sequence.

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
        return run_layer([self.rnn], inputs, [None], state)

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

    def _weights(self) -> Sequence[Tensor]:
        """Return the weights for input and state, then the biases, in PyTorch's order."""
        compute_weights(self.rnn)
        return self.rnn.all_weights[0]
