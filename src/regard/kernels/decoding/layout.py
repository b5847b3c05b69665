"""Tensors and sizes of every kernel of a decoder's steps.

S is the number of steps of a call, B that of sources, K that of beams, and C that of candidates.
"""

(
    WEIGHTS, TABLE, INPUTS, PADDING, SEARCH, LIMITS, MAX_DIVISORS, DIVISORS,
) = range(8)  # fmt: skip
"""Tensors that the kernel reads, by their place among the arguments: packed matrices; their sizes; the
table of inputs, a row per token; the padding of the sources; the sizes of a search; the length limit of
every source, and the divisor of the scores at that length (B,); and the divisors of the scores of hypotheses
that end at each step (S,). Divisors are float64."""

(
    ACTIVE, ROWS, TOKENS, TOTALS, ATTENTION, BEST, BEST_INDEX, PARENTS, CHOSEN, SCORES, ENDS, LENGTHS,
    OWN,
) = range(8, 21)  # fmt: skip
"""Tensors that it changes: whether the search for a source goes on (B,); the rows of a step (B K,); the last
tokens and the log-probabilities of open hypotheses (B, K); the attention weights (S, B K, …); the best
continuations and their indices (B, C); the parents and tokens of hypotheses that stay open (S, B, K); the
scores, last beams and lengths of finished hypotheses (B, n); and the first of a kernel's own tensors."""

STEPS, FIRST, BEAMS, N_BEST, CANDIDATES, PAD, BOS, EOS = range(8)
"""Indices of the sizes of a search: S; the number of steps before; K; n, which is 0 for a single step
without selection; C; and the ids of the special tokens."""

ENTRY = 4
"""Numbers of a matrix in the table of a kernel."""
