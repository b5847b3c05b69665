"""Base class for the languages: random choices and random sentences in one language."""

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from phrasebook.templates import Phrase
from regard.datasets.splits import pick

Item = TypeVar("Item")
Weighted = Sequence[tuple[int | float, Item]]
"""Items, each preceded by its weight."""


class SentenceGenerator:
    """Generates sentences in one language with English translations, using one random generator."""

    def __init__(self, generator: random.Random) -> None:
        self._generator = generator

    def sentence(self) -> Phrase:
        """Return a sentence; its form is sampled by weight."""
        return self.weighted(self.forms())()

    def forms(self) -> Weighted[Callable[[], Phrase]]:
        """Return the sentence forms of the language, each preceded by its weight."""
        raise NotImplementedError

    def pick(self, items: Sequence[Item]) -> Item:
        """Return one of the items with equal probability."""
        return pick(items, self._generator)

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self._generator.random() < probability

    def weighted(self, choices: Weighted[Item]) -> Item:
        """Return one of the items with probability proportional to its weight."""
        remaining = self._generator.random() * sum(weight for weight, _ in choices)
        for weight, item in choices:
            remaining -= weight
            if remaining < 0:
                return item
        return choices[-1][1]
