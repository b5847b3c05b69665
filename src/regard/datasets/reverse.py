"""Letters to the same letters from the last to the first: attention has to walk backwards."""

from regard.datasets.copy import DEV, TEST, letters
from regard.datasets.pairs import Example, Splits, split


def make(seed: int) -> Splits:
    """Pairs of letters between spaces and the same letters in reverse; 1 to 20 of them."""
    return split((_reversed(source) for source in letters(seed)), DEV, TEST, seed)


def _reversed(source: str) -> Example:
    words = source.split()
    last = len(words) - 1
    links = tuple((place, last - place) for place in range(len(words)))
    return Example(source, " ".join(reversed(words)), links)
