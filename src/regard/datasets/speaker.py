"""Somebody who says random sentences of one language, with their English."""

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from regard.datasets.pairs import pick
from regard.datasets.weaving import Phrase

Item = TypeVar("Item")
Weighted = Sequence[tuple[int | float, Item]]
"""Choices, each after its weight."""


class Speaker:
    """Draws every choice of a sentence from one generator."""

    def __init__(self, generator: random.Random) -> None:
        self._generator = generator

    def sentence(self) -> Phrase:
        """A sentence, of a form drawn by its weight."""
        return self.weighted(self.forms())()

    def forms(self) -> Weighted[Callable[[], Phrase]]:
        """The forms of sentence this language has here, each after its weight."""
        raise NotImplementedError

    def pick(self, items: Sequence[Item]) -> Item:
        """One of the items, each as likely."""
        return pick(items, self._generator)

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self._generator.random() < probability

    def weighted(self, choices: Weighted[Item]) -> Item:
        """One of the choices, each as likely as its weight says."""
        left = self._generator.random() * sum(weight for weight, _ in choices)
        for weight, item in choices:
            left -= weight
            if left < 0:
                return item
        return choices[-1][1]
