import dataclasses
import re
from itertools import product
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard import ConfigError, DataError, Translation, symmetrize
from regard.alignment import Alignment, best_links
from regard.config import Symmetrization
from regard.symmetrization import combine_links, mean_weights

links = st.frozensets(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=10)


def published(forward, reverse):
    """Return the result of the published pseudo-code, over all positions of a 5 x 5 grid."""
    union, grid = forward | reverse, [*product(range(5), repeat=2)]
    links = set(forward & reverse)

    def unlinked(link):
        return [all(link[side] != other[side] for other in links) for side in (0, 1)]

    changed = True
    while changed:
        changed = False
        for source, target in grid:
            if (source, target) not in links:
                continue
            for i, j in product((-1, 0, 1), repeat=2):
                new = (source + i, target + j)
                if new in union and new not in links and any(unlinked(new)):
                    links.add(new)
                    changed = True
    for direction in (forward, reverse):
        for link in grid:
            if link in direction and all(unlinked(link)):
                links.add(link)
    return Alignment(links)


@given(links, links)
def test_grow_diag_final_and_equals_the_published_algorithm(forward, reverse):
    assert combine_links(forward, reverse, "grow-diag-final-and") == published(forward, reverse)


def test_negative_weights_count_as_0() -> None:
    forward = np.array([[-1.0, 2.0, 0.0], [-3.0, 0.5, 0.0]])
    reverse = np.array([[0.5, -2.0, 0.0], [1.5, 1.0, 0.0]])
    expected = [[0, np.sqrt(3), 0], [0, np.sqrt(0.5), 0]]
    np.testing.assert_allclose(mean_weights(forward, reverse), expected)


@given(links, links)
def test_methods_are_nested(forward, reverse):
    inner, grown, outer = (
        set(combine_links(forward, reverse, method))
        for method in ("intersection", "grow-diag-final-and", "union")
    )
    assert inner == forward & reverse
    assert outer == forward | reverse
    assert inner <= grown <= outer


@given(links, links)
def test_intersection_and_union_are_symmetric(forward, reverse):
    for method in ("intersection", "union"):
        assert combine_links(forward, reverse, method) == combine_links(reverse, forward, method)


@given(links)
def test_equal_directions_are_kept(both):
    assert combine_links(both, both) == Alignment(both)


def test_grow_diag_final_and_by_hand():
    forward, reverse = {(0, 0), (1, 1), (4, 3)}, {(0, 0), (2, 1), (4, 3), (1, 4)}
    # (1, 1) is adjacent to (0, 0), and (2, 1) to (1, 1); 1 has a link, so the distant (1, 4) stays out
    assert str(combine_links(forward, reverse)) == "0-0 1-1 2-1 4-3"
    # of two links that compete in the final step, that of the first argument is added
    assert combine_links({(0, 0)}, {(0, 4)}) == [(0, 0)]
    assert combine_links({(0, 4)}, {(0, 0)}) == [(0, 4)]


def weights(rows, columns):
    """Return positive weights with a last column of the tokens outside words; every row sums to 1."""
    return np.random.default_rng(rows).dirichlet(np.ones(columns + 1), size=rows)


@pytest.mark.parametrize(
    ("method", "message"), [("intersect", "did you mean intersection"), ("soft", "needs weights")]
)
def test_methods_that_combine_no_links_are_refused(method, message, unchecked):
    with pytest.raises(ConfigError, match=message):
        combine_links([(0, 0)], [(1, 1)], method)


def test_mean_weights_by_hand():
    forward = np.array([[0.5, 0.25, 0.25], [0.0, 1.0, 0.0], [0.25, 0.25, 0.5]])
    reverse = np.array([[0.5, 0.5, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]])
    means = mean_weights(forward, reverse)
    np.testing.assert_allclose(means[0], [0.5, 0.25, 0])
    np.testing.assert_allclose(means[1], [0, 0.5, 0])
    assert best_links(means) == [(0, 0), (1, 1), (1, 2)]
    assert best_links(means, 0.3) == [(0, 0), (1, 1)]


@given(st.integers(1, 6), st.integers(1, 6))
def test_the_mean_of_both_directions_is_symmetric_and_between_them(targets, sources):
    forward, reverse = weights(targets, sources), weights(sources, targets)
    means = mean_weights(forward, reverse)[:, :-1]
    np.testing.assert_array_equal(means, mean_weights(reverse, forward)[:, :-1].T)
    there, back = forward[:, :-1], reverse[:, :-1].T
    assert (np.minimum(there, back) <= means + 1e-12).all()
    assert (means <= np.maximum(there, back) + 1e-12).all()


def translation(source, target, rows):
    tokens = [*source.split(), "</s>"]
    words = [*range(len(tokens) - 1), None]
    return Translation(
        source, tokens, target.split(), target, 0.0, np.array(rows),
        source_words=words, target_words=[*range(len(target.split()))],
    )  # fmt: skip


@pytest.fixture
def both():
    forward = translation("a b", "x y z", [[0.9, 0.1, 0], [0.8, 0.2, 0], [0.1, 0.05, 0.85]])
    reverse = translation("x y z", "a b", [[0.8, 0.1, 0.1, 0], [0.0, 0.9, 0.1, 0]])
    return forward, reverse


def test_two_translations_are_symmetrised(both):
    assert str(both[0].alignment()) == "0-0 0-1"
    assert str(both[1].alignment()) == "0-0 1-1"
    expected = {
        "intersection": "0-0",
        "union": "0-0 0-1 1-1",
        "grow-diag-final-and": "0-0 0-1 1-1",
        "soft": "0-0 1-1 1-2",
    }
    assert {method: str(symmetrize(*both, method)) for method in expected} == expected
    assert set(expected) == set(get_args(Symmetrization))
    assert str(symmetrize(*both)) == expected["soft"]


def test_a_threshold_applies_to_the_mean_or_to_both_directions(both):
    assert str(symmetrize(*both, threshold=0.3)) == "0-0 1-1"
    assert str(symmetrize(*both, "union", threshold=0.85)) == "0-0 1-1"
    with pytest.raises(ConfigError, match=r"must be from 0 to 1, got -1\.0"):
        symmetrize(*both, threshold=-1.0)


def test_an_unknown_method_names_the_nearest(both, unchecked):
    with pytest.raises(ConfigError, match="got 'unions'; did you mean union"):
        symmetrize(*both, "unions")


def test_models_with_other_words_are_refused(both):
    forward, reverse = both
    message = (
        "the models split the source 'a b' into 2 words and 3; train both with the same units, or "
        "separate the words by spaces"
    )
    other = dataclasses.replace(reverse, target_words=[0, 2])
    with pytest.raises(DataError, match=re.escape(message)):
        symmetrize(forward, other)
    with pytest.raises(DataError, match="the target 'x y z' into 1 word and 3"):
        symmetrize(forward, dataclasses.replace(reverse, source_words=[0, 0, 0, None]))


def test_punctuation_that_one_model_leaves_out_has_no_soft_links(both):
    forward, _ = both
    short = translation("x y", "a b", [[0.8, 0.1, 0.1], [0.0, 0.9, 0.1]])
    assert str(symmetrize(forward, dataclasses.replace(short, left_out=["z"]))) == "0-0 1-1"
