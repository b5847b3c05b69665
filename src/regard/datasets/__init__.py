"""Built-in datasets of pairs, without downloads or licence restrictions.

phrasebook   Chinese-English and Spanish-English sentences with gold links; fixed
dates        dates as they are written in many languages -> 2026-11-21
numbers      48213 -> forty eight thousand two hundred and thirteen
inflection   tocar, V;IND;PST;PFV;1;SG -> toqué: invented Spanish verbs, tags in the third column
copy         letters -> the same letters, with gold links
reverse      letters -> the same letters in reverse order, with gold links

All datasets but the phrasebook are generated from a seed in seconds. No source occurs in two
splits, with the same features if it has any.
"""

from collections.abc import Callable

from regard.datasets import copy, dates, inflection, numbers, phrasebook, reverse
from regard.datasets.splits import Example, Splits, split, write
from regard.errors import DataError, ExtraError, nearest

__all__ = ["FIXED", "NAMES", "Example", "Splits", "make", "split", "write"]

_MAKERS: dict[str, Callable[[int], Splits]] = {
    "phrasebook": lambda _: phrasebook.load(),
    "dates": dates.make,
    "numbers": numbers.make,
    "inflection": inflection.make,
    "copy": copy.make,
    "reverse": reverse.make,
}

NAMES = tuple(_MAKERS)
"""Names that `make` accepts."""

FIXED = ("phrasebook",)
"""Datasets that do not depend on the seed."""


def make(name: str, seed: int = 1) -> Splits:
    """Return the dataset with this name; the same seed yields the same dataset on any machine.

    `dates` and `numbers` also depend on the versions of Babel and num2words.

    Raises:
        DataError: there is no dataset with this name.
        ExtraError: the dataset needs an optional package that is not installed.
    """
    if name not in _MAKERS:
        hint = nearest(name, NAMES)
        raise DataError(f"no dataset {name!r}{hint}; datasets: {', '.join(NAMES)}")
    try:
        return _MAKERS[name](seed)
    except ModuleNotFoundError as error:
        raise ExtraError(
            f"the dataset {name!r} needs {error.name}: pip install 'regard[datasets]'"
        ) from None
