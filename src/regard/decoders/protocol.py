"""The protocol that search, training and alignment know of a decoder, and nothing else."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from regard.attention import Intervention, Memory
from regard.encoders import EncoderOutput


@runtime_checkable
class State(Protocol):
    """What a decoder remembers between steps; only its decoder looks inside."""

    def select(self, rows: Tensor, items: Tensor | None = None) -> "State":
        """These rows (N',), in this order; `items` (B',) are the sources that stay, None for all."""
        ...


class Step(NamedTuple):
    """What one step gives for each of N rows."""

    log_probs: Tensor
    """(N, V): log-probability of every symbol."""
    state: Any
    """A `State`: what the next step takes."""
    weights: Tensor | None
    """(N, layers, heads, T): where the step looked; None for a decoder without attention."""


class Unrolled(NamedTuple):
    """What a decoder gives for whole targets."""

    states: Tensor
    """(B, L, R): the readout states, from which `predict` makes logits."""
    weights: Tensor | None
    """(B, L, layers, heads, T): where each step looked; None unless asked for."""


@runtime_checkable
class Decoder(Protocol):
    """What search, training and alignment need of a decoder."""

    vocabulary: int
    """Size V of the target vocabulary."""

    def prepare_memory(self, encoded: EncoderOutput) -> Memory:
        """Compute once what every step needs of the source."""
        ...

    def start(self, memory: Memory) -> Any:
        """The `State` before the first symbol, one row per source."""
        ...

    def step(
        self, token: Int[Tensor, " N"], state: Any, intervention: Intervention | None = None
    ) -> Step:
        """Read the symbol written last and give the next one's log-probabilities.

        An intervention pushes the look at the source.
        """
        ...

    def unroll(
        self, memory: Memory, tokens: Int[Tensor, "B L"], need_weights: bool = False
    ) -> Unrolled:
        """All steps at once, reading `tokens` (a start symbol, then the target)."""
        ...

    def predict(
        self,
        states: Float[Tensor, "*n R"],
        weights: Float[Tensor, "*n layers heads T"] | None = None,
        copies: Int[Tensor, "*m T"] | None = None,
    ) -> Float[Tensor, "*n V"]:
        """Logits over the vocabulary from readout states.

        A copying decoder needs to know where they looked, and the ids of the source's symbols,
        (B, T) or one row per state; it gives log-probabilities over V + K symbols.
        """
        ...
