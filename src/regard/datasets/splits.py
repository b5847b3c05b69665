"""Examples, the three splits of a dataset, and the files they are written to."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TypeVar

from regard.alignment import Alignment
from regard.files import write_text

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Example:
    """A source, its target, and the links between their words."""

    source: str
    target: str
    links: tuple[tuple[int, int], ...] | None = None
    """Pairs (source word, target word), 0-based over whitespace words; None if unknown."""
    features: str | None = None
    """Features of the source, such as `V;IND;FUT;1;SG`, in datasets that have them."""


@dataclass(frozen=True, slots=True)
class Splits:
    """The three splits of a dataset; no source occurs in two of them, with the same features if it has any."""

    train: tuple[Example, ...]
    dev: tuple[Example, ...]
    test: tuple[Example, ...]


def shuffled(items: Iterable[Item], generator: random.Random) -> list[Item]:
    """Return the items in random order; a seed yields the same order in every version of Python.

    Only `random.random` is guaranteed not to change between versions, hence the sort.
    """
    return sorted(items, key=lambda _: generator.random())


def pick(items: Sequence[Item], generator: random.Random) -> Item:
    """Return one of the items with equal probability."""
    return items[int(generator.random() * len(items))]


def split(examples: Iterable[Example], dev: int, test: int, seed: int) -> Splits:
    """Shuffle the examples and split them by source.

    Args:
        examples: the pairs; of several with the same source and features, the last is kept.
        dev: number of examples in the dev set.
        test: number of examples in the test set; the remaining ones form the training set.
        seed: seed of the random order.
    """
    by_source = {(example.source, example.features): example for example in examples}
    order = shuffled(by_source.values(), random.Random(seed))
    return Splits(
        train=tuple(order[dev + test :]),
        dev=tuple(order[:dev]),
        test=tuple(order[dev : dev + test]),
    )


def sample(examples: Iterable[Example], seed: int, train: int = 10_000) -> Splits:
    """Take the first distinct examples and split them: `train`, 500 for dev and 1,000 for test.

    Args:
        examples: the pairs in the order of sampling; the iterable may be infinite.
        seed: seed of the random order.
        train: number of examples in the training set.
    """
    dev, test = 500, 1_000
    distinct: dict[tuple[str, str | None], Example] = {}
    for example in examples:
        distinct[example.source, example.features] = example
        if len(distinct) == train + dev + test:
            break
    return split(distinct.values(), dev, test, seed)


def write(splits: Splits, folder: str | Path) -> None:
    """Write train.tsv, dev.tsv and test.tsv, one line per pair: source TAB target (TAB features).

    If the links are known, also write train.align, dev.align and test.align, one line per pair in
    the Pharaoh format, such as `0-0 1-2`.

    Raises:
        DataError: the folder cannot be written.
    """
    for part in (field.name for field in fields(splits)):
        examples: tuple[Example, ...] = getattr(splits, part)
        columns = ((example.source, example.target, example.features) for example in examples)
        lines = ("\t".join(text for text in row if text is not None) + "\n" for row in columns)
        write_text(Path(folder, f"{part}.tsv"), "".join(lines))
        links = [example.links for example in examples if example.links is not None]
        if len(links) == len(examples):
            write_text(
                Path(folder, f"{part}.align"), "".join(f"{Alignment(pairs)}\n" for pairs in links)
            )
