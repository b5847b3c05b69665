"""Built-in sets of pairs, each generated from a seed in seconds: no download, no licence.

phrasebook   small grammars, Chinese-English and Spanish-English, with gold links
dates        dates as people write them in many languages -> 2026-11-21
numbers      48213 -> forty eight thousand two hundred and thirteen
inflection   tocar, V;IND;PST;PFV;1;SG -> toqué: invented Spanish verbs, tags in the third column
copy         letters -> the same letters, with gold links
reverse      letters -> the same letters from the last to the first, with gold links

No source stands in two parts of a set.
"""

import difflib

from regard.datasets import copy, dates, inflection, numbers, phrasebook, reverse
from regard.datasets.pairs import Example, Splits, split, write
from regard.errors import DataError

__all__ = ["NAMES", "Example", "Splits", "make", "split", "write"]

_MAKERS = {
    "phrasebook": phrasebook.make,
    "dates": dates.make,
    "numbers": numbers.make,
    "inflection": inflection.make,
    "copy": copy.make,
    "reverse": reverse.make,
}

NAMES = tuple(_MAKERS)
"""Names that `make` takes."""


def make(name: str, seed: int = 1) -> Splits:
    """Generate the set of this name: the same seed gives the same set, on any machine.

    Raises:
        DataError: there is no set of this name.
        ExtraError: the set needs an optional package that is not installed.
    """
    if name not in _MAKERS:
        near = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.0)[0]
        raise DataError(f"no set {name!r}; nearest is {near!r} (there are {', '.join(NAMES)})")
    return _MAKERS[name](seed)
