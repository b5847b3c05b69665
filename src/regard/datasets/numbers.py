"""Numbers in digits -> English words: 48213 -> forty eight thousand two hundred and thirteen."""

import random
from collections.abc import Iterator
from dataclasses import replace

from regard.datasets.splits import Example, Splits, sample

DIGITS = 6


def make(seed: int) -> Splits:
    """Return all numbers below 1000, and about equally many of each length from 4 to 6 digits.

    The ten digits are always in the training set.
    """
    from num2words import num2words

    def example(number: int) -> Example:
        words: str = num2words(number, lang="en")
        return Example(str(number), words.replace("-", " ").replace(",", ""))

    splits = sample(map(example, _numbers(random.Random(seed))), seed, train=7_990)
    return replace(splits, train=(*map(example, range(10)), *splits.train))


def _numbers(generator: random.Random) -> Iterator[int]:
    """Yield all numbers of two and three digits, then numbers of each length in turn."""
    yield from range(10, 1000)
    while True:
        for digits in range(4, DIGITS + 1):
            least = 10 ** (digits - 1)
            yield least + int(generator.random() * 9 * least)
