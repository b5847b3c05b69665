"""What every set is made of: examples, their three parts, and the files they are written to."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TypeVar

from regard.files import write_text

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Example:
    """A source, its target, and which of their words belong together."""

    source: str
    """With features behind a TAB, where the set has them."""
    target: str
    links: tuple[tuple[int, int], ...] | None = None
    """Pairs (source word, target word), 0-based over words between spaces; None where unknown."""


@dataclass(frozen=True, slots=True)
class Splits:
    """The three parts of a set; no source stands in two of them."""

    train: tuple[Example, ...]
    dev: tuple[Example, ...]
    test: tuple[Example, ...]


def shuffled(items: Iterable[Item], generator: random.Random) -> list[Item]:
    """The items in a random order, the same for a seed in every version of Python.

    Only `random.random` is promised not to change between versions, hence the sort.
    """
    return sorted(items, key=lambda _: generator.random())


def pick(items: Sequence[Item], generator: random.Random) -> Item:
    """One of the items, each as likely."""
    return items[int(generator.random() * len(items))]


def split(examples: Iterable[Example], dev: int, test: int, seed: int) -> Splits:
    """Shuffle the examples into parts that share no source.

    Args:
        examples: the pairs; of several with one source the last is kept.
        dev: number of examples in the dev part.
        test: number of examples in the test part; the rest is for training.
        seed: of the order.
    """
    by_source = {example.source: example for example in examples}
    order = shuffled(by_source.values(), random.Random(seed))
    return Splits(
        train=tuple(order[dev + test :]),
        dev=tuple(order[:dev]),
        test=tuple(order[dev : dev + test]),
    )


def write(splits: Splits, folder: Path) -> None:
    """Write train.tsv, dev.tsv and test.tsv: a line per pair, source TAB target (TAB features).

    Where the links are known, train.align, dev.align and test.align stand beside them: a line per
    pair in the Pharaoh format, as in `0-0 1-2`.

    Raises:
        DataError: the folder cannot be written.
    """
    for part in (field.name for field in fields(splits)):
        examples: tuple[Example, ...] = getattr(splits, part)
        pairs = ("\t".join(_columns(example)) + "\n" for example in examples)
        write_text(folder / f"{part}.tsv", "".join(pairs))
        links = [example.links for example in examples if example.links is not None]
        if len(links) == len(examples):
            write_text(folder / f"{part}.align", "".join(map(_pharaoh, links)))


def _columns(example: Example) -> list[str]:
    source, *features = example.source.split("\t")
    return [source, example.target, *features]


def _pharaoh(links: tuple[tuple[int, int], ...]) -> str:
    return " ".join(f"{source}-{target}" for source, target in sorted(links)) + "\n"
