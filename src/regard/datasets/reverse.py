"""Letters -> the same letters in reverse order: attention has to move from right to left."""

from regard.datasets.copy import letters
from regard.datasets.splits import Example, Splits, sample


def make(seed: int) -> Splits:
    """Return pairs of 1 to 20 space-separated letters and the same letters in reverse order."""
    return sample(map(_reversed, letters(seed)), seed)


def _reversed(source: str) -> Example:
    words = source.split()
    last = len(words) - 1
    links = tuple((i, last - i) for i in range(len(words)))
    return Example(source, " ".join(reversed(words)), links)
