"""What the launcher and the kernel of a Transformer decoder agree on: tensors, sizes, matrices.

M is the number of tokens of a hypothesis at the end of a call.
"""

from typing import Any

from regard.kernels.cpu.packing import whole
from regard.kernels.decoding.layout import OWN

(
    NORMS, EPSILONS, POSITIONS, ROTATIONS, SOURCE_KEYS, SOURCE_VALUES, KEYS, VALUES, ANCESTORS,
) = range(OWN, OWN + 9)  # fmt: skip
"""Tensors: weight and bias of every norm, in the order of use (3 layers + 1, 2, D), and its epsilon; what is
added to the embeddings at every step of the call (S, D); the cosines and sines of the angles by which the
queries and keys of the step are rotated (S, 2, planes); keys and values of the sources (layers, B, T, U); and
two that the kernel changes, keys and values of the tokens read so far, (layers, B, M, K, U), where K counts the
beams at the time when a token was read. In `ANCESTORS`, (2, B, K, M), is the beam from which a hypothesis
descends at each of its tokens; the two halves serve even and odd steps of a call."""

(
    LAYERS, WIDTH, HEADS_WIDTH, HEADS, PLANES, HIDDEN, VOCABULARY, PRE_NORM, ACTIVATION, MATRICES,
) = range(10)  # fmt: skip
"""Indices of the sizes of the weights: the number of layers; the width D of a state and U of all heads; the
number of heads, and that of the planes in which each is rotated; the outputs of the first matrix of the
feed-forward network; the size of the vocabulary; whether norms come before the sublayers; the activation; and
the first of the matrices."""

ACTIVATIONS = ("relu", "gelu", "swiglu")
RELU, GELU, SWIGLU = range(3)
"""The activations, and their places in the tuple, by which the kernel knows them."""

OUTPUT, FIRST_OF_LAYERS = 0, 1
PROJECTIONS, COMBINATION, SOURCE_QUERY, SOURCE_COMBINATION, HIDDEN_MATRIX, HIDDEN_OUTPUT = range(6)
"""Matrices: the output, then those of each layer."""
OF_A_LAYER = 6


def workspace_width(table: Any) -> Any:
    """Return the numbers that a thread needs for one row of its block."""
    widths = 3 * table[WIDTH] + 4 * table[HEADS_WIDTH]
    return widths + whole(table[HIDDEN]) + whole(table[VOCABULARY])
