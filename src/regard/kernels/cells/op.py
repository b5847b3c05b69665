"""One step of a recurrent cell as one kernel, without gradients."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

StepFunction = Callable[[Tensor, Tensor, Sequence[Tensor]], tuple[Tensor, ...]]
"""Returns the next state, given the input and recurrent parts of the gates, (N, G), and the state."""


def frozen_step(
    name: str,
    step: StepFunction,
    inputs: Float[Tensor, "M G"],
    rows: Int[Tensor, " N"],
    extra: Float[Tensor, "N S"] | None,
    recurrent: Float[Tensor, "N G"],
    state: Sequence[Float[Tensor, "N D"]],
) -> tuple[Tensor, ...]:
    """Return the state after one step, without gradients.

    Args:
        name: name of the cell, for which there may be a kernel.
        step: the equations of the cell, used if there is no kernel.
        inputs: (M, G); row `rows[n]` is the input part of the gates for item n.
        rows: (N,).
        extra: (N, S) with S >= G: its first G columns are added to the input part.
        recurrent: (N, G), the recurrent part of the gates.
        state: the state tensors, (N, D) each.
    """
    backend = _load_backend() if recurrent.device.type == "cpu" else None
    if backend:
        new = backend.step(name, inputs, rows, extra, recurrent, state[-1])
        if new is not None:
            return new
    chosen = inputs[rows]
    if extra is not None:
        chosen = chosen + extra[:, : chosen.shape[1]]
    return step(chosen, recurrent, state)


@functools.cache
def _load_backend() -> Any:
    """Return the module of the CPU kernels; None if it cannot be imported."""
    try:
        from regard.kernels.cells import cpu
    except Exception:  # a broken compiler raises any exception
        return None
    return cpu
