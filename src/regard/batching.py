"""Batches of examples with similar length, for about equal work per batch."""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from regard.text import BOS, EOS, PAD


class Example(NamedTuple):
    """A pair as vocabulary ids."""

    source: list[int]
    """Source ids, EOS included."""
    target: list[int]
    """Target ids, without BOS and EOS."""
    copies: Sequence[int] = ()
    """Target-side id of each source token, for a copying model (copy_mechanism.py)."""

    @property
    def size(self) -> tuple[int, int]:
        """Number of tokens that the encoder and the decoder read."""
        return len(self.source), len(self.target) + 1


class Batch(NamedTuple):
    """Examples padded to the longest one."""

    source: Int[Tensor, "B T"]
    lengths: Int[Tensor, " B"]
    """Length of each source, without padding."""
    inputs: Int[Tensor, "B L"]
    """BOS, then the target."""
    targets: Int[Tensor, "B L"]
    """The target, then EOS."""
    copies: Int[Tensor, "B T"] | None = None
    """Target-side id of each source token, for a copying model."""

    def to(self, device: torch.device | str) -> "Batch":
        """Copy the batch to a device."""
        tensors = {name: tensor for name, tensor in self._asdict().items() if tensor is not None}
        return self._replace(**{name: tensor.to(device) for name, tensor in tensors.items()})

    @property
    def target_tokens(self) -> int:
        """Number of target tokens, EOS included, padding excluded."""
        return int((self.targets != PAD).sum())


def pad(rows: Sequence[Sequence[int]]) -> Int[Tensor, "B T"]:
    """Return rows of ids as one tensor, padded at the end."""
    width = max(map(len, rows), default=0)
    padded = [[*row, *[PAD] * (width - len(row))] for row in rows]
    return torch.tensor(padded, dtype=torch.long).view(len(rows), width)


def collate(examples: Sequence[Example]) -> Batch:
    """Return examples as one padded batch."""
    return Batch(
        pad([example.source for example in examples]),
        torch.tensor([len(example.source) for example in examples]),
        pad([[BOS, *example.target] for example in examples]),
        pad([[*example.target, EOS] for example in examples]),
        pad([example.copies for example in examples]) if examples and examples[0].copies else None,
    )


def bucket(
    sizes: Sequence[tuple[int, int]], batch_tokens: int, rng: random.Random | None = None
) -> list[list[int]]:
    """Group examples of similar length; return the indices of each batch.

    A batch holds at most `batch_tokens` source plus target tokens, padding included (a longer
    example is a batch alone).

    Args:
        sizes: source and target length of each example.
        batch_tokens: maximum size of a batch.
        rng: shuffles examples of equal size and the batches; None sorts them by size.
    """
    order = list(range(len(sizes)))
    if rng is not None:
        rng.shuffle(order)
    order.sort(key=lambda index: sizes[index])
    batches: list[list[int]] = []
    widths = (0, 0)
    for index in order:
        source, target = sizes[index]
        new_widths = (max(widths[0], source), max(widths[1], target))
        if batches and (len(batches[-1]) + 1) * sum(new_widths) <= batch_tokens:
            batches[-1].append(index)
            widths = new_widths
        else:
            batches.append([index])
            widths = (source, target)
    if rng is not None:
        rng.shuffle(batches)
    return batches


def epoch(
    examples: Sequence[Example],
    batch_tokens: int,
    seed: int,
    number: int,
    skip: int = 0,
    transform: Callable[[Example, random.Random], Example] | None = None,
) -> Iterator[Batch]:
    """Yield the batches of one epoch, in an order that depends on `seed` and `number` only.

    Args:
        examples: the training examples.
        batch_tokens: maximum size of a batch, in tokens.
        seed: seed of the run.
        number: index of the epoch.
        skip: number of batches to skip, processed before an interruption.
        transform: applied to each example; it must keep the sizes.
    """
    rng = random.Random(f"{seed}:{number}")
    batches = bucket([example.size for example in examples], batch_tokens, rng)
    for index, batch in enumerate(batches[skip:], start=skip):
        selected = [examples[i] for i in batch]
        if transform is not None:
            # one generator per batch: a resumed epoch transforms the remaining batches identically
            batch_rng = random.Random(f"{seed}:{number}:{index}")
            selected = [transform(example, batch_rng) for example in selected]
        yield collate(selected)
