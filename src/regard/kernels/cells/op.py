"""One step of a recurrent cell: the equations, and one kernel for them without gradients."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor


def gru_step(inputs: Tensor, recurrent: Tensor, state: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Cho et al. 2014 (arXiv:1406.1078), as `torch.nn.GRU` computes it."""
    width = 2 * state[0].shape[-1]
    reset, update = torch.sigmoid(inputs[:, :width] + recurrent[:, :width]).chunk(2, dim=-1)
    new = torch.tanh(inputs[:, width:] + reset * recurrent[:, width:])
    return (new + update * (state[0] - new),)


def lstm_step(inputs: Tensor, recurrent: Tensor, state: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Hochreiter and Schmidhuber 1997, with forget gates, as `torch.nn.LSTM` computes it."""
    enter, forget, new, out = (inputs + recurrent).chunk(4, dim=-1)
    memory = torch.sigmoid(forget) * state[1] + torch.sigmoid(enter) * torch.tanh(new)
    return torch.sigmoid(out) * torch.tanh(memory), memory


STEPS: dict[str, Callable[[Tensor, Tensor, Sequence[Tensor]], tuple[Tensor, ...]]] = {
    "gru": gru_step,
    "lstm": lstm_step,
}
"""Next state from the input part and the recurrent part of the gates, (N, G) each, and the state."""


def frozen_step(
    name: str,
    inputs: Float[Tensor, "M G"],
    rows: Int[Tensor, " N"],
    extra: Float[Tensor, "N S"] | None,
    recurrent: Float[Tensor, "N G"],
    state: Sequence[Float[Tensor, "N D"]],
) -> tuple[Tensor, ...]:
    """Return the state after one step, without gradients.

    Args:
        name: a name in `STEPS`.
        inputs: (M, G), of which row `rows[n]` is the input part of the gates of item n.
        rows: (N,).
        extra: (N, S) with S >= G: its first G columns are added to the input part.
        recurrent: (N, G), the recurrent part of the gates.
        state: the state tensors, (N, D) each.
    """
    backend = _load_backend() if recurrent.device.type == "cpu" else None
    if backend and recurrent.dtype == torch.float32:
        new = backend.step(name, inputs, rows, extra, recurrent, state[-1])
        if new is not None:
            return new
    chosen = inputs[rows]
    if extra is not None:
        chosen = chosen + extra[:, : chosen.shape[1]]
    return STEPS[name](chosen, recurrent, state)


@functools.cache
def _load_backend() -> Any:
    """Return the module of the CPU kernels; None where numba cannot be imported."""
    try:
        from regard.kernels.cells import cpu
    except Exception:  # a broken compiler raises any exception
        return None
    return cpu
