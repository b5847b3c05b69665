"""Memory: everything that is computed once per source and used at every step."""

import dataclasses
from collections.abc import Sequence

from jaxtyping import Int
from torch import Tensor

from regard.kernels.additive import AdditiveKeys


@dataclasses.dataclass(frozen=True)
class Memory:
    """A batch of encoded sources; the decoder adds prepared keys and values to an encoder's output."""

    states: Tensor
    """(B, T, Dk): the encoder's states, one per source token, 0 at padded positions."""
    padding: Tensor
    """(B, T), bool: True at padded positions."""
    final: Tensor
    """(B, F): one state for the whole source, the only input to a decoder without attention. In a
    recurrent encoder, it concatenates the last states of all directions; in a Transformer, it is
    the mean of the states."""
    keys: tuple[Tensor | AdditiveKeys, ...] = ()
    """Prepared keys for each decoder layer that attends to the source, (B, T, E) or, with heads,
    (B, H, T, E)."""
    values: tuple[Tensor, ...] = ()
    """Projected values for each layer with multi-head attention to the source, (B, H, T, E); in a
    `PosteriorDecoder`, the states projected for the readout, (B, T, R)."""
    copies: Tensor | None = None
    """(B, T): target-side id of every source token, for a copying decoder."""

    def select(self, items: Int[Tensor, " N"]) -> "Memory":
        """Return the memory of the sources at these indices."""
        return Memory(
            states=self.states[items],
            padding=self.padding[items],
            final=self.final[items],
            keys=tuple(keys[items] for keys in self.keys),
            values=tuple(values[items] for values in self.values),
            copies=None if self.copies is None else self.copies[items],
        )


@dataclasses.dataclass(frozen=True)
class EnsembleMemory(Memory):
    """The memories of several models for the same sources; its own fields are those of the first one."""

    members: tuple[Memory, ...] = ()

    @classmethod
    def of(cls, members: Sequence[Memory]) -> "EnsembleMemory":
        """Return the memory of an ensemble with these members."""
        first = members[0]
        return cls(
            states=first.states,
            padding=first.padding,
            final=first.final,
            copies=first.copies,
            members=tuple(members),
        )

    def select(self, items: Int[Tensor, " N"]) -> "EnsembleMemory":
        """Return the memory of the sources at these indices."""
        return type(self).of([member.select(items) for member in self.members])
