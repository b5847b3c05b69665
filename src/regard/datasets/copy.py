"""Letters -> the same letters: a test of monotonic attention."""

import random
import string
from collections.abc import Iterator

from regard.datasets.splits import Example, Splits, pick, sample

MAX_LETTERS = 20


def make(seed: int) -> Splits:
    """Return pairs of 1 to 20 space-separated letters and the same letters.

    Lengths are uniform, but for the shortest, of which there are fewer different sources.
    """
    copies = (
        Example(source, source, tuple((i, i) for i in range(len(source.split()))))
        for source in letters(seed)
    )
    return sample(copies, seed)


def letters(seed: int) -> Iterator[str]:
    """Yield sources without end."""
    generator = random.Random(seed)
    while True:
        length = 1 + int(generator.random() * MAX_LETTERS)
        yield " ".join(pick(string.ascii_lowercase, generator) for _ in range(length))
