"""What the launcher and the kernel of a decoder's steps agree on: tensors, sizes, matrices.

S is the number of steps of a call, B that of sources, K that of beams, and C that of candidates.
"""

(
    WEIGHTS, TABLE, INPUTS, VECTOR, PADDING, KEYS, VALUES, SEARCH, LIMITS, MAX_DIVISORS, DIVISORS,
) = range(11)  # fmt: skip
"""Tensors that the kernel reads, by their place among the arguments: packed matrices; their sizes; the
table of inputs; v; the padding, keys and values of the sources; the sizes of a search; the length limit of
every source, and the divisor of the scores at that length (B,); and the divisors of the scores of hypotheses
that end at each step (S,). Divisors are float64."""

(
    ACTIVE, ROWS, TOKENS, TOTALS, LOG_PROBS, ATTENTION, FEED, BEST, BEST_INDEX, PARENTS, CHOSEN,
    SCORES, ENDS, LENGTHS, STATES,
) = range(11, 26)  # fmt: skip
"""Tensors that it changes: whether the search for a source goes on (B,); the rows of a step (B K,); the last
tokens and the log-probabilities of open hypotheses (B, K); the log-probabilities of all tokens (B K, V), of a
single step only; the attention weights (S, B K, T); the readouts (B K, R); the best continuations and their
indices (B, C); the parents and tokens of hypotheses that stay open (S, B, K); the scores, last beams and
lengths of finished hypotheses (B, n); and the first of the state tensors of all layers, (B K, D) each."""

STEPS, FIRST, BEAMS, N_BEST, CANDIDATES, PAD, BOS, EOS = range(8)
"""Indices of the sizes of a search: S; the number of steps before; K; n, which is 0 for a single step
without selection; C; and the ids of the special tokens."""

(
    LAYERS, HIDDEN, GATES, STATE_TENSORS, ENTRIES, SCORE_DIM, VALUE_DIM, READOUT_DIM, VOCABULARY,
    ADDITIVE, ATTENDS_FIRST, FED, MATRICES,
) = range(13)  # fmt: skip
"""Indices of the sizes of the weights: the number of layers; the widths of a state and of its gates; the
number of tensors in a state; the entries of the table of inputs; the widths of projected queries, values and
readout; the size of the vocabulary (0: the output is computed elsewhere); whether the score is additive,
the attention comes before the cells, and the readout is fed to them; and the first of the matrices, with
three numbers each: where it begins, its inputs, and its panels."""

QUERY, READOUT, OUTPUT, FEED_MATRIX, RECURRENT = range(5)
"""Matrices. `RECURRENT + 2 l` multiplies the state of layer l, `RECURRENT + 2 l - 1` the output below it."""
