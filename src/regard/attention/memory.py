"""What is computed once per source, and looked at in every step."""

import dataclasses

from jaxtyping import Int
from torch import Tensor

from regard.kernels.additive import AdditiveKeys


@dataclasses.dataclass(frozen=True)
class Memory:
    """One batch of encoded sources, with all that is computed once per source."""

    states: Tensor
    """(B, T, Dk): the encoder's states."""
    padding: Tensor
    """(B, T), bool: True where the source has ended."""
    final: Tensor
    """(B, F): the encoder's final state, all that a decoder without attention sees."""
    keys: tuple[Tensor | AdditiveKeys, ...] = ()
    """(B, T, E) or with heads (B, H, T, E), for every attention over the source: its prepared keys."""
    values: tuple[Tensor, ...] = ()
    """(B, H, T, E) for every attention with heads: its projected values."""
    copies: Tensor | None = None
    """(B, T): of every source symbol its id on the target side, where it may be copied."""

    def select(self, items: Int[Tensor, " N"]) -> "Memory":
        """The memory of these sources alone, in this order."""
        return Memory(
            states=self.states[items],
            padding=self.padding[items],
            final=self.final[items],
            keys=tuple(keys[items] for keys in self.keys),
            values=tuple(values[items] for values in self.values),
            copies=None if self.copies is None else self.copies[items],
        )
