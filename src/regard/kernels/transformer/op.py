"""Beam search with a Transformer decoder, without gradients.

    x = E[token] + p_t    x = x + A_t(norm(x))    x = x + C(norm(x))    x = x + F(norm(x))
    log P = log softmax(W_o norm(x) + b_o)

The three sublayers of every layer are self-attention A, attention C to the source and the feed-forward
network F (Vaswani et al. 2017, arXiv:1706.03762, section 3.1). Positions are added to the embeddings, or
rotate the queries and keys of A (Su et al. 2021, arXiv:2104.09864). Without `pre_norm`, a sublayer is
x = norm(x + A(x)), and there is no last norm.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.kernels.compilation import import_kernel
from regard.kernels.decoding.op import (
    FinishedTensors,
    Matrix,
    OpenHypotheses,
    SearchOutput,
)


class Norm(NamedTuple):
    """A layer norm, (x - mean) / sqrt(variance + epsilon) * weight + bias."""

    weight: Float[Tensor, " D"]
    bias: Float[Tensor, " D"]
    epsilon: float


class LayerWeights(NamedTuple):
    """The weights of a layer; D is the width of a state, U of all heads, F of the feed-forward network.

    Scores are inner products of projected queries and keys.
    """

    norms: list[Norm]
    """Those of the three sublayers."""
    projections: Matrix
    """Queries, keys and values of self-attention, (3 U, D)."""
    combination: Matrix
    """(D, U)."""
    source_query: Matrix
    """Queries of the attention to the source, (U, D)."""
    source_combination: Matrix
    """(D, U)."""
    hidden: Matrix
    """(F, D); of a gated network (2 F, D), the gates first."""
    output: Matrix
    """(D, F)."""


class TransformerWeights(NamedTuple):
    """The weights of a decoder."""

    inputs: Float[Tensor, "V D"]
    """The embedding of every token."""
    layers: list[LayerWeights]
    norm: Norm | None
    """The last norm."""
    output: Matrix
    """(V, D)."""
    heads: int
    planes: int
    """Number of planes of a head in which queries and keys of self-attention are rotated; 0: none."""
    activation: str
    """`relu`, `gelu` or `swiglu`."""
    pre_norm: bool


class TransformerPositions(NamedTuple):
    """The positions of M steps, the most that a call computes."""

    added: Float[Tensor, "M D"]
    """What is added to the embeddings."""
    rotations: Float[Tensor, "M 2 planes"]
    """Cosines and sines of the angles by which queries and keys are rotated; feature d of the first half of
    a head and feature d of its second half form a plane."""


class TransformerSources(NamedTuple):
    """What the decoder attends to."""

    keys: Float[Tensor, "layers B T U"]
    values: Float[Tensor, "layers B T U"]
    padding: Bool[Tensor, "B T"]


class TransformerPast(NamedTuple):
    """The keys and values of the tokens that N hypotheses have read, t each."""

    keys: Float[Tensor, "layers N t U"]
    values: Float[Tensor, "layers N t U"]


class TransformerCache(NamedTuple):
    """The keys and values of all tokens that the steps of a search have read; M is their number."""

    keys: Float[Tensor, "layers B M K U"]
    values: Float[Tensor, "layers B M K U"]
    ancestors: Int[Tensor, "B K M"]
    """The beam from which a hypothesis descends at each of its tokens."""

    def past(self, rows: Int[Tensor, " N"]) -> TransformerPast:
        """Return the keys and values of hypotheses, of which there are B K."""
        chosen = self.ancestors.flatten(0, 1)[rows]
        source = (rows // self.ancestors.shape[1])[:, None]
        token = torch.arange(chosen.shape[1], device=rows.device)
        return TransformerPast(
            *(part[:, source, token, chosen] for part in (self.keys, self.values))
        )


class TransformerKernel:
    """The kernel of a decoder's search with its weights in the order in which it reads them."""

    def __init__(self, weights: TransformerWeights, backend: Any) -> None:
        self._backend, self._weights = backend, backend.pack_weights(weights)

    def search(
        self,
        opened: OpenHypotheses,
        finished: FinishedTensors,
        positions: TransformerPositions,
        past: TransformerPast,
        sources: TransformerSources,
    ) -> SearchOutput | None:
        """Return the result of several steps of a beam search; None for what the kernel does not support.

        The state of the result is a `TransformerCache`.
        """
        return self._backend.search(self._weights, opened, finished, positions, past, sources)


def load_kernel(weights: TransformerWeights) -> TransformerKernel | None:
    """Return the kernel for these weights; None where there is none."""
    backend = import_kernel("transformer.launch")
    supported = backend is not None and backend.supports(weights)
    return TransformerKernel(weights, backend) if supported else None
