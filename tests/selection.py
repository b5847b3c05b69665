"""Selection of parameters: which combinations are tested by `make test`, and which by `make soak`."""

import itertools
from collections.abc import Iterable
from typing import Any

import pytest

RECURRENT_OR_TRANSFORMER = [
    pytest.param(0, id="recurrent"),
    pytest.param(1, id="transformer", marks=pytest.mark.slow),
]
"""Number of one of the shared folders of `tests/conftest.py`."""


def covering(combinations: Iterable[tuple[Any, ...]], size: int = 2) -> list[Any]:
    """Return combinations of values for `pytest.mark.parametrize`, most of them as long tests.

    The others contain every pair of values that occurs in a combination, or every single value
    for size 1. They are selected one after the other, each time one with the most new pairs.
    """
    combinations = [*combinations]
    missing = [
        set(itertools.combinations(enumerate(map(repr, values)), size)) for values in combinations
    ]
    selected: set[int] = set()
    while any(missing):
        index = max(range(len(missing)), key=lambda index: len(missing[index]))
        selected.add(index)
        covered = set(missing[index])
        for pairs in missing:
            pairs -= covered
    return [
        pytest.param(*values, marks=[] if index in selected else pytest.mark.soak)
        for index, values in enumerate(combinations)
    ]
