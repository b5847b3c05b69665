"""Letters to the same letters: the task that shows whether attention can walk along a source."""

import random
import string

from regard.datasets.pairs import Example, Splits, pick, split

LONGEST = 20
TRAIN, DEV, TEST = 10_000, 500, 1_000


def make(seed: int) -> Splits:
    """Pairs of letters between spaces and the same letters; 1 to 20 of them, every length as likely."""
    copies = (
        Example(source, source, tuple((place, place) for place in range(len(source.split()))))
        for source in letters(seed)
    )
    return split(copies, DEV, TEST, seed)


def letters(seed: int) -> list[str]:
    """As many different sources as a set has, in the order they were drawn."""
    generator = random.Random(seed)
    found: dict[str, None] = {}
    while len(found) < TRAIN + DEV + TEST:
        length = 1 + int(generator.random() * LONGEST)
        found[" ".join(pick(string.ascii_lowercase, generator) for _ in range(length))] = None
    return list(found)
