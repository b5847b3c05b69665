"""What the launcher and the kernel of a recurrent decoder's steps agree on: tensors, sizes, matrices."""

from typing import Any

from regard.kernels.cpu.packing import whole
from regard.kernels.decoding.layout import OWN

VECTOR, KEYS, VALUES, LOG_PROBS, FEED, STATES = range(OWN, OWN + 6)
"""Tensors: v; the keys and values of the sources; the log-probabilities of all tokens (B K, V), of a single
step only; the readouts (B K, R); and the first of the state tensors of all layers, (B K, D) each. The
kernel changes those from the log-probabilities on."""

(
    LAYERS, HIDDEN, GATES, STATE_TENSORS, ENTRIES, SCORE_DIM, VALUE_DIM, READOUT_DIM, VOCABULARY,
    ADDITIVE, ATTENDS_FIRST, FED, MATRICES,
) = range(13)  # fmt: skip
"""Indices of the sizes of the weights: the number of layers; the widths of a state and of its gates; the
number of tensors in a state; the entries of the table of inputs; the widths of projected queries, values and
readout; the size of the vocabulary (0: the output is computed elsewhere); whether the score is additive,
the attention comes before the cells, and the readout is fed to them; and the first of the matrices."""

QUERY, READOUT, OUTPUT, FEED_MATRIX, RECURRENT = range(5)
"""Matrices. `RECURRENT + 2 l` multiplies the state of layer l, `RECURRENT + 2 l - 1` the output below it."""


def buffer_widths(table: Any) -> Any:
    """Return the widths of the rows of the buffers: of three wide ones, three narrow ones and the logits."""
    wide = whole(max(table[GATES], table[VALUE_DIM]))
    narrow = whole(max(table[HIDDEN], max(table[SCORE_DIM], table[READOUT_DIM])))
    return wide, narrow, whole(table[VOCABULARY])


def workspace_width(table: Any) -> Any:
    """Return the numbers that a thread needs for one row of its block."""
    wide, narrow, logits = buffer_widths(table)
    return 3 * (wide + narrow) + logits + table[LAYERS] * table[STATE_TENSORS] * table[HIDDEN]
