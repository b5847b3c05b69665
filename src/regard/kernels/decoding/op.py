"""Input and output of several steps of a beam search inside of a kernel."""

from typing import Any, NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor

MOST_WEIGHT_BYTES = 4_000_000_000
"""Maximum size of the attention weights that the search for one source keeps, of all hypotheses and steps."""

Matrix = tuple[Tensor, Tensor | None]
"""A weight (E, D) and its bias (E,)."""


class OpenHypotheses(NamedTuple):
    """Hypotheses of a search that have not ended, K' for each of B sources."""

    tokens: Int[Tensor, "B K2"]
    """The last tokens."""
    log_probs: Float[Tensor, "B K2"]
    """The sums of the log-probabilities."""
    length: int
    """The number of tokens of each."""
    beams: int
    """The number K of hypotheses to keep."""
    special: tuple[int, int, int]
    """The ids of PAD and BOS, which are never chosen, and of EOS."""


class FinishedTensors(NamedTuple):
    """The n best finished hypotheses of every source, and when a search ends."""

    limits: Int[Tensor, " B"]
    """The maximum numbers of tokens."""
    max_divisors: Float[Tensor, " B"]
    """The divisors of the scores at that length, in float64."""
    divisors: Float[Tensor, " M"]
    """The divisors of the scores of hypotheses that end at the next M steps, in float64."""
    scores: Float[Tensor, "B n"]
    """-inf where there is none."""
    ends: Int[Tensor, "B n"]
    """The beams that ended."""
    lengths: Int[Tensor, "B n"]
    """The numbers of tokens, without EOS."""


class SearchOutput(NamedTuple):
    """The result of S steps of a search."""

    opened: OpenHypotheses
    finished: FinishedTensors
    active: Bool[Tensor, " B"]
    """Whether the search for a source goes on."""
    parents: Int[Tensor, "S B K"]
    """The beams that the open hypotheses continue; undefined for a source that is no longer active."""
    tokens: Int[Tensor, "S B K"]
    """The tokens that they add."""
    weights: Float[Tensor, "S N layers heads T"]
    """The attention weights of N = B K rows."""
    state: Any
    """The state that the kernel computed."""
