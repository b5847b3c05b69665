"""Recurrent cells inside of CPU kernels, one row at a time, from the products with their matrices."""

from typing import Any

from regard.kernels.cpu import simd
from regard.kernels.cpu.activations import sigmoid, tanh
from regard.kernels.cpu.processor import LANES


@simd.inlined
def _input(x: Any, extra: Any, extended: Any, d: Any) -> Any:
    """Return a vector of the input part of the gates."""
    return simd.load(x, d) + simd.load(extra, d) if extended else simd.load(x, d)


@simd.inlined
def lstm(
    x: Any,
    extra: Any,
    extended: Any,
    recurrent: Any,
    memory: Any,
    output: Any,
    new: Any,
    width: Any,
) -> None:
    """Write the output and the memory of an LSTM, with the gates of `regard.cells.lstm_step`.

    The input part of the gates is `x`, and `extra` is added to it if `extended`; (4D,) each.
    """
    for d in range(0, width, LANES):
        f, g, o = d + width, d + 2 * width, d + 3 * width
        enter = sigmoid(_input(x, extra, extended, d) + simd.load(recurrent, d))
        forget = sigmoid(_input(x, extra, extended, f) + simd.load(recurrent, f))
        candidate = tanh(_input(x, extra, extended, g) + simd.load(recurrent, g))
        opened = sigmoid(_input(x, extra, extended, o) + simd.load(recurrent, o))
        kept = forget * simd.load(memory, d) + enter * candidate
        simd.store(new, d, kept)
        simd.store(output, d, opened * tanh(kept))


@simd.inlined
def gru(
    x: Any, extra: Any, extended: Any, recurrent: Any, state: Any, new: Any, width: Any
) -> None:
    """Write the state of a GRU, with the gates of `regard.cells.gru_step`; (3D,) each."""
    for d in range(0, width, LANES):
        u, n = d + width, d + 2 * width
        reset = sigmoid(_input(x, extra, extended, d) + simd.load(recurrent, d))
        update = sigmoid(_input(x, extra, extended, u) + simd.load(recurrent, u))
        candidate = tanh(_input(x, extra, extended, n) + reset * simd.load(recurrent, n))
        simd.store(new, d, candidate + update * (simd.load(state, d) - candidate))
