"""Letters to the same letters: a test of monotonic attention."""

import random
import string

from regard.datasets.splits import Example, Splits, pick, split

MAX_LETTERS = 20
TRAIN, DEV, TEST = 10_000, 500, 1_000


def make(seed: int) -> Splits:
    """Return pairs of 1 to 20 space-separated letters and the same letters; lengths are uniform."""
    copies = (
        Example(source, source, tuple((i, i) for i in range(len(source.split()))))
        for source in letters(seed)
    )
    return split(copies, DEV, TEST, seed)


def letters(seed: int) -> list[str]:
    """Return the distinct sources of a dataset, in the order in which they were sampled."""
    generator = random.Random(seed)
    sources: dict[str, None] = {}
    while len(sources) < TRAIN + DEV + TEST:
        length = 1 + int(generator.random() * MAX_LETTERS)
        sources[" ".join(pick(string.ascii_lowercase, generator) for _ in range(length))] = None
    return list(sources)
