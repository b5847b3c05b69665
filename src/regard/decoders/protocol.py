"""The decoder protocol: everything that search, training, alignment and explanation require."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from regard.attention import Attention, Intervention, Memory
from regard.kernels.decoding.op import FinishedTensors, OpenHypotheses, SearchOutput


@runtime_checkable
class State(Protocol):
    """What a decoder carries from step to step; only its decoder reads it."""

    def select(self, rows: Tensor, items: Tensor | None = None) -> "State":
        """Return these rows (N',), in this order; `items` (B',) are the sources to keep, None for all."""
        ...


class Step(NamedTuple):
    """The result of one step for each of N rows."""

    log_probs: Tensor
    """(N, V): log-probability of every token."""
    state: Any
    """The `State` to pass to the next step."""
    weights: Tensor | None
    """(N, layers, heads, T): the attention weights for the next token or, if the `attention_delay` of
    the decoder is 1, for the token that was read; None for a decoder without attention."""


class Unrolled(NamedTuple):
    """The result of a decoder for whole targets."""

    states: Tensor
    """(B, L, R): the readout states, from which `predict` computes logits."""
    weights: Tensor | None
    """(B, L, layers, heads, T): the attention weights of `Step`; None unless requested."""


class AttentionInputs(NamedTuple):
    """Inputs with which one attention head attends to the source, for all steps of a target."""

    attention: Attention
    query: Tensor
    """(B, L, Dq)."""
    key: Tensor
    """(B, T, Dk)."""
    value: Tensor
    """(B, T, Dv)."""


@runtime_checkable
class StepDecoder(Protocol):
    """What a search requires of a decoder: its steps."""

    def start(self, memory: Memory) -> Any:
        """Return the `State` before the first token, one row per source."""
        ...

    def step(
        self, token: Int[Tensor, " N"], state: Any, intervention: Intervention | None = None
    ) -> Step:
        """Read the last token and return the log-probabilities of the next.

        An intervention changes the attention weights.
        """
        ...


@runtime_checkable
class SearchDecoder(StepDecoder, Protocol):
    """A decoder that can compute several steps of a beam search at once."""

    def search(
        self, opened: OpenHypotheses, finished: FinishedTensors, state: Any
    ) -> tuple[SearchOutput, Any] | None:
        """Return the result of some steps, and the state after them; None if it cannot compute these."""
        ...


@runtime_checkable
class Decoder(StepDecoder, Protocol):
    """What search, training, alignment and explanation require of a decoder."""

    vocabulary: int
    """Size V of the target vocabulary."""
    attention_layers: int
    """Number of layers that attend to the source; 0 without attention."""
    attention_heads: int
    """Number of attention heads in each of these layers; 0 without attention."""
    attention_delay: int
    """Number of steps after which the weights for a token are known: 1 if they depend on the token, else
    0, which is also the default for decoders that only search."""

    def prepare_memory(self, encoded: Memory) -> Memory:
        """Add to the encoder's output what every step needs from the source, computed once."""
        ...

    def unroll(
        self, memory: Memory, tokens: Int[Tensor, "B L"], need_weights: bool = False
    ) -> Unrolled:
        """Compute all steps at once, reading `tokens` (BOS, then the target)."""
        ...

    def predict(
        self,
        states: Float[Tensor, "*n R"],
        weights: Float[Tensor, "*n layers heads T"] | None = None,
        copies: Int[Tensor, "*m T"] | None = None,
    ) -> Float[Tensor, "*n V"]:
        """Return the logits over the vocabulary for readout states.

        A copying decoder also needs the attention weights of these states and the target-side ids of
        the source's tokens, (B, T) or one row per state; it returns log-probabilities of V + K tokens.
        """
        ...

    def attention_inputs(
        self, memory: Memory, tokens: Int[Tensor, "B L"], layer: int = 0, head: int = 0
    ) -> AttentionInputs:
        """Return the inputs with which one head attends, for all steps of `unroll`.

        Raises:
            ConfigError: the decoder has no attention.
        """
        ...
