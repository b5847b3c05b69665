"""Numbers in digits to English words: 48213 -> forty eight thousand two hundred and thirteen."""

import random
from dataclasses import replace

from regard.datasets.splits import Example, Splits, split
from regard.errors import ExtraError

TRAIN, DEV, TEST = 8_000, 500, 1_000
DIGITS = 6


def make(seed: int) -> Splits:
    """Return all numbers below 1000 and equally many of each length from 4 to 6 digits.

    The ten digits are always in the training set.

    Raises:
        ExtraError: num2words is not installed.
    """
    try:
        from num2words import num2words
    except ImportError:
        raise ExtraError(
            "the dataset 'numbers' needs num2words: pip install 'regard[datasets]'"
        ) from None

    def example(number: int) -> Example:
        words: str = num2words(number, lang="en")
        return Example(str(number), words.replace("-", " ").replace(",", ""))

    splits = split(map(example, _numbers(random.Random(seed))), DEV, TEST, seed)
    return replace(splits, train=(*map(example, range(10)), *splits.train))


def _numbers(generator: random.Random) -> list[int]:
    """Return all numbers of two and three digits, then numbers of each length in turn."""
    numbers = dict.fromkeys(range(10, 1000))
    while len(numbers) < TRAIN + DEV + TEST - 10:
        for digits in range(4, DIGITS + 1):
            least = 10 ** (digits - 1)
            numbers[least + int(generator.random() * 9 * least)] = None
    return list(numbers)[: TRAIN + DEV + TEST - 10]
