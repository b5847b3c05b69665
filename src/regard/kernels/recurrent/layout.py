"""Layout of the weights of a decoder's step: one array of packed matrices, and a table of sizes."""

(
    LAYERS, HIDDEN, GATES, STATE_TENSORS, ENTRIES, SCORE_DIM, VALUE_DIM, READOUT_DIM, VOCABULARY,
    ADDITIVE, ATTENDS_FIRST, FED, MATRICES,
) = range(13)  # fmt: skip
"""Indices of the table: the number of layers; the widths of a state and of its gates; the number of
tensors in a state; the entries of the table of inputs; the widths of projected queries, values and
readout; the size of the vocabulary (0: the output is computed elsewhere); whether the score is additive,
the attention comes before the cells, and the readout is fed to them; and the first of the matrices, with
three numbers each: where it begins, its inputs, and its panels."""

QUERY, READOUT, OUTPUT, FEED, RECURRENT = range(5)
"""Matrices. `RECURRENT + 2 l` multiplies the state of layer l, `RECURRENT + 2 l - 1` the output below it."""
