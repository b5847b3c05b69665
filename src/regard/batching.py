"""Batches of examples of similar length, so that the work per batch is about the same."""

import random
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import ArrayLike
from torch import Tensor

from regard.text import BOS, EOS, PAD


class TokenLink(NamedTuple):
    """A source token that a target token is linked to."""

    source: int
    target: int
    share: float
    """Part of the attention of the target token, whose shares sum to 1."""


class Example(NamedTuple):
    """A pair as vocabulary ids."""

    source: list[int]
    """Source ids, EOS included."""
    target: list[int]
    """Target ids, without BOS and EOS."""
    copies: Sequence[int] = ()
    """Target-side id of each source token, for a copying model (copy_mechanism.py)."""
    links: Sequence[TokenLink] | None = None
    """Links between tokens, for guided alignment (guided_alignment.py)."""

    @property
    def size(self) -> tuple[int, int]:
        """Number of tokens that the encoder and the decoder read."""
        return len(self.source), len(self.target) + 1


@runtime_checkable
class Examples(Protocol):
    """Examples by index: a list, or rows of a memory-mapped file (mapped_pairs.py)."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Example: ...


@runtime_checkable
class SizedExamples(Examples, Protocol):
    """Examples whose sizes are known without reading them."""

    @property
    def sizes(self) -> Int[np.ndarray, "N 2"]:
        """Size of each example."""
        ...


def sizes_of(examples: Examples) -> Int[np.ndarray, "N 2"]:
    """Return the size of each example."""
    if isinstance(examples, SizedExamples):
        return examples.sizes
    sizes = [examples[index].size for index in range(len(examples))]
    return np.array(sizes, dtype=np.int64).reshape(-1, 2)


class Batch(NamedTuple):
    """Examples padded to the length of the longest one."""

    source: Int[Tensor, "B T"]
    lengths: Int[Tensor, " B"]
    """Length of each source, without padding."""
    inputs: Int[Tensor, "B L"]
    """BOS, then the target."""
    targets: Int[Tensor, "B L"]
    """The target, then EOS."""
    copies: Int[Tensor, "B T"] | None = None
    """Target-side id of each source token, for a copying model."""
    links: Float[Tensor, "B L T"] | None = None
    """The share of each source token that a target token is linked to, otherwise 0."""

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
        _link_shares(examples) if examples and examples[0].links is not None else None,
    )


def _link_shares(examples: Sequence[Example]) -> Float[Tensor, "B L T"]:
    """Return the links of a batch as one distribution over the source per target token."""
    sources, targets = (max(sizes) for sizes in zip(*(e.size for e in examples), strict=True))
    shares = np.zeros((len(examples), targets, sources), np.float32)
    for row, example in enumerate(examples):
        for source, target, share in example.links or ():
            shares[row, target, source] = share
    return torch.from_numpy(shares)


def bucket(
    sizes: ArrayLike,
    batch_tokens: int,
    rng: random.Random | None = None,
    most: Callable[[int, int], int] | None = None,
) -> list[Int[np.ndarray, " n"]]:
    """Group examples of similar length; return the indices of each batch.

    A batch contains at most `batch_tokens` source plus target tokens, padding included; a longer
    example forms a batch by itself.

    Args:
        sizes: source and target length of each example, shape (N, 2).
        batch_tokens: maximum size of a batch.
        rng: shuffles the batches, and examples of the same size; if None, batches are sorted by size.
        most: maximum number of examples in a batch, by its source and target length; None for no limit of its own.
    """
    lengths = np.asarray(sizes, dtype=np.int64).reshape(-1, 2)
    order = _order(len(lengths), rng)
    base = lengths[:, 1].max(initial=0) + 1
    keys = lengths[:, 0] * base + lengths[:, 1]
    order = order[np.argsort(keys[order], kind="stable")]
    starts: list[int] = []
    start, end, widths = 0, 0, (0, 0)
    for key, count in zip(*(a.tolist() for a in np.unique(keys, return_counts=True)), strict=True):
        source, target = divmod(key, int(base))
        while count:
            new_widths = (max(widths[0], source), max(widths[1], target))
            limit = batch_tokens // sum(new_widths)
            if most is not None:
                limit = min(limit, most(*new_widths))
            left = limit - (end - start)
            if left < 1 and end > start:  # the batch is full
                starts.append(end)
                start, widths = end, (0, 0)
                continue
            added = min(count, max(1, left))
            end, count, widths = end + added, count - added, new_widths
    batches = np.split(order, starts) if len(order) else []
    return [batches[index] for index in _order(len(batches), rng)]


def _order(count: int, rng: random.Random | None) -> Int[np.ndarray, " n"]:
    """Return the indices below `count`, shuffled if there is a generator."""
    order = array("q", range(count))
    if rng is not None:
        rng.shuffle(order)
    return np.array(order, dtype=np.int64)


def epoch(
    examples: Examples,
    batch_tokens: int,
    seed: int,
    number: int,
    skip: int = 0,
    transform: Callable[[Example, random.Random], Example] | None = None,
) -> Iterator[list[Example]]:
    """Yield the batches of one epoch, in an order that depends only on `seed` and `number`.

    Args:
        examples: the training examples.
        batch_tokens: maximum size of a batch, in tokens.
        seed: seed of the run.
        number: index of the epoch.
        skip: number of batches to skip because they were processed before an interruption.
        transform: function applied to each example; it must not change the size.
    """
    rng = random.Random(f"{seed}:{number}")
    batches = bucket(sizes_of(examples), batch_tokens, rng)
    for index, batch in enumerate(batches[skip:], start=skip):
        selected = [examples[i] for i in batch.tolist()]
        if transform is not None:
            # one generator per batch: a resumed epoch transforms the remaining batches identically
            batch_rng = random.Random(f"{seed}:{number}:{index}")
            selected = [transform(example, batch_rng) for example in selected]
        yield selected
