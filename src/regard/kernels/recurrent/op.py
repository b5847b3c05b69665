"""Steps of a recurrent decoder with attention, and the beam search between them, without gradients.

    e_i = score(q, k_i)    alpha = softmax(e)    c = sum_i alpha_i v_i
    gates = inputs[token] + x + W_h h            new state = cell(gates, state)
    r = tanh(c' + W_r h' + b_r)                  log P = log softmax(W_o r + b_o)

The query q is a projection of h before the step, with x the first part of c and c' the rest (Bahdanau et
al. 2015), or of the top state h' after it, with x a product of the previous r or nothing, and c' = c
(Luong et al. 2015). The values v_i are projected beforehand, so c is part of the gates and of r.
"""

from typing import Any, NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.kernels.compilation import import_kernel
from regard.kernels.decoding.op import (
    FinishedTensors,
    Matrix,
    OpenHypotheses,
    SearchOutput,
)


class DecoderWeights(NamedTuple):
    """The weights of a decoder; G is the width of the gates, D of a state, R of the readout."""

    cell: str
    """`lstm` or `gru`, with the gates of `regard.cells`."""
    attends_first: bool
    """Whether the query is the state before the step."""
    inputs: Float[Tensor, "M G"]
    """The input part of the gates of the first layer for every token, with its bias."""
    recurrent: list[Matrix]
    """The matrix of the state of every layer, (G, D)."""
    upper: list[Matrix]
    """The matrix of the output of the layer below, for every layer but the first, (G, D)."""
    feed: Matrix | None
    """The matrix of the previous readout, (G, R)."""
    query: Matrix
    """The projection of the queries, (E, D)."""
    vector: Float[Tensor, " E"] | None
    """v of an additive score; None for an inner product."""
    readout: Matrix
    """(R, D)."""
    output: Matrix | None
    """(V, R); None where the output is computed elsewhere."""


class KernelState(NamedTuple):
    """The state of a decoder, with N rows."""

    hidden: tuple[tuple[Tensor, ...], ...]
    """The state tensors of every layer, (N, D) each."""
    feed: Float[Tensor, "N R"] | None
    """The previous readout; None if it is not fed to the cells."""


class SourceTensors(NamedTuple):
    """What the decoder attends to."""

    keys: Float[Tensor, "B T E"]
    """Projected keys; e^{2k} for an additive score, as `additive.prepare_keys` computes them."""
    values: Float[Tensor, "B T U"]
    """Projected values."""
    padding: Bool[Tensor, "B T"]


class StepOutput(NamedTuple):
    """The result of a step for N rows."""

    log_probs: Float[Tensor, "N V"] | None
    """None without an output matrix."""
    weights: Float[Tensor, "N T"]
    """The attention weights."""
    state: KernelState
    """The new state; its feed is the readout."""


class RecurrentKernel:
    """The kernel of a decoder's steps with its weights in the order in which it reads them."""

    def __init__(self, weights: DecoderWeights, backend: Any) -> None:
        self._backend, self._weights = backend, backend.pack_weights(weights)

    def step(
        self, tokens: Int[Tensor, " N"], state: KernelState, sources: SourceTensors
    ) -> StepOutput | None:
        """Return the result of a step for N = B x beams rows; None for what the kernel does not support."""
        return self._backend.step(self._weights, tokens, state, sources)

    def search(
        self,
        opened: OpenHypotheses,
        finished: FinishedTensors,
        state: KernelState,
        sources: SourceTensors,
    ) -> SearchOutput | None:
        """Return the result of several steps of a beam search; None for what the kernel does not support."""
        return self._backend.search(self._weights, opened, finished, state, sources)


def load_kernel(weights: DecoderWeights) -> RecurrentKernel | None:
    """Return the kernel for these weights; None where there is none."""
    backend = import_kernel("recurrent.launch")
    supported = backend is not None and backend.supports(weights)
    return RecurrentKernel(weights, backend) if supported else None
