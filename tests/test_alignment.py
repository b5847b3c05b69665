import gzip
import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.alignment import (
    Alignment,
    GoldAlignment,
    alignment_metrics,
    best_links,
    from_weights,
    parse_links,
    read_gold,
    word_weights,
)
from regard.errors import ConfigError, DataError, ShapeError

links = st.frozensets(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=12)
golds = st.builds(GoldAlignment, links, links)


def test_an_alignment_is_a_sorted_list_whose_str_is_pharaoh():
    alignment = Alignment([(1, 2), (0, 0), (1, 2), (0, 10), (0, 9)])
    assert alignment == [(0, 0), (0, 9), (0, 10), (1, 2)]
    assert str(alignment) == "0-0 0-9 0-10 1-2"
    assert str(Alignment()) == ""


def test_links_of_numpy_integers_can_be_written_as_json():
    alignment = Alignment(zip(np.array([1, 0]), np.array([0, 1]), strict=True))
    assert json.dumps(alignment) == "[[0, 1], [1, 0]]"


@given(links)
def test_pharaoh_round_trip(pairs):
    gold = parse_links(str(Alignment(pairs)), "here")
    assert gold == GoldAlignment(sure=pairs, possible=pairs)


def test_each_target_word_takes_the_source_word_with_most_weight():
    weights = np.array([[0.1, 0.7, 0.2], [0.6, 0.3, 0.1], [0.2, 0.3, 0.5]])
    assert str(from_weights(weights, [0, 1, 2], [0, 1, 2])) == "0-1 1-0 2-2"


def test_ties_go_to_the_leftmost_source_word():
    weights = np.array([[0.25, 0.25, 0.25, 0.25]])
    assert from_weights(weights, [0, 1, 2, None], [0]) == [(0, 0)]
    assert from_weights(weights, [None, 0, 1, 2], [0]) == [(0, 0)]


def test_the_tokens_of_a_source_word_are_summed():
    # every token of word 1 has less weight than word 0, but their sum has more
    weights = np.array([[0.375, 0.25, 0.25, 0.125]])
    assert from_weights(weights, [0, 1, 1, 1], [0]) == [(1, 0)]
    assert from_weights(weights, [0, 1, 2, 3], [0]) == [(0, 0)]


def test_the_tokens_of_a_target_word_are_averaged():
    weights = np.array([[0.9, 0.1], [0.4, 0.6], [0.4, 0.6]])
    assert from_weights(weights, [0, 1], [0, 0, 0]) == [(0, 0)]
    assert from_weights(weights, [0, 1], [0, 1, 1]) == [(0, 0), (1, 1)]


def test_a_word_that_attends_to_almost_nothing_but_the_end_symbol_stays_unlinked():
    weights = np.array([[0.1, 0.05, 0.85], [0.3, 0.1, 0.6]])
    assert from_weights(weights, [0, 1, None], [0, 1]) == [(0, 1)]
    # the weights of two tokens without a word are summed
    assert from_weights(np.array([[0.1, 0.5, 0.4]]), [0, None, None], [0]) == []
    assert from_weights(np.array([[0.1, 0.5, 0.4]]), [0, None, 1], [0]) == [(1, 0)]


def test_a_source_word_with_some_weight_everywhere_attracts_fewer_links():
    # agreements by hand: 0.5 / sqrt(1.5) < 0.4 / sqrt(0.4), and 0.5 / sqrt(1.5) > 0.2 / sqrt(0.4)
    weights = np.array([[0.5, 0.4, 0.1], [1.0, 0.0, 0.0]])
    assert from_weights(weights, [0, 1, None], [0, 1]) == [(0, 1), (1, 0)]
    assert from_weights(weights, [0, 1, None], [0, 1], several=True) == [(0, 0), (0, 1), (1, 0)]
    weights = np.array([[0.5, 0.2, 0.3], [1.0, 0.2, 0.0]])
    assert from_weights(weights, [0, 1, None], [0, 1]) == [(0, 0), (0, 1)]


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 2**16))
def test_links_agree_best_in_the_definition(targets, sources, seed):
    weights = np.random.default_rng(seed).dirichlet(np.full(sources + 1, 0.5), size=targets)
    for source, target in best_links(weights):
        agreements = [np.sqrt(row[target] * row[target] / row.sum()) for row in weights[:, :-1].T]
        assert agreements[source] == pytest.approx(max(agreements))
    assert {target for _, target in best_links(weights)} == {*np.flatnonzero(weights[:, -1] <= 0.8)}


def test_target_tokens_without_a_word_are_ignored():
    weights = np.array([[0.9, 0.1], [0.1, 0.9], [1.0, 0.0]])
    assert from_weights(weights, [0, 1], [None, 0, None]) == [(1, 0)]


@pytest.mark.parametrize(
    ("weights", "source_words", "target_words"),
    [
        (np.zeros((0, 2)), [0, 1], []),
        (np.zeros((1, 0)), [], [0]),
        (np.ones((1, 1)), [None], [0]),
        (np.zeros((1, 2)), [0, 1], [0]),
        (np.full((1, 2), np.nan), [0, 1], [0]),
    ],
)
def test_nothing_to_attend_to_gives_no_links(weights, source_words, target_words):
    assert from_weights(weights, source_words, target_words) == []


@given(st.permutations(range(6)))
def test_one_hot_weights_give_their_permutation(order):
    weights = np.eye(6, dtype=np.float32)[order]
    expected = Alignment(zip(order, range(6), strict=True))
    assert from_weights(weights, range(6), range(6)) == expected


def test_a_threshold_removes_links_with_less_weight():
    weights = np.array([[0.75, 0.25], [0.5, 0.5]])
    assert from_weights(weights, [0, 1], [0, 1], 0.5) == [(0, 0), (1, 1)]
    assert from_weights(weights, [0, 1], [0, 1], 0.6) == [(0, 0)]
    with pytest.raises(ConfigError, match=r"must be from 0 to 1, got 1\.5"):
        from_weights(weights, [0, 1], [0, 1], 1.5)


def test_word_weights_add_source_tokens_and_average_target_tokens():
    weights = np.array([[0.5, 0.25, 0.25], [0.25, 0.25, 0.5], [0.0, 0.0, 1.0]])
    merged = word_weights(weights, [0, 0, None], [0, 0, 1])
    np.testing.assert_allclose(merged, [[0.625, 0.375], [0.0, 1.0]])


def test_weights_of_another_shape_are_refused():
    message = "one column per source token, (1, 3), found (1, 2)"
    with pytest.raises(ShapeError, match=re.escape(message)):
        from_weights(np.ones((1, 2)), [0, 1, 2], [0])


def test_sure_links_are_possible_too():
    gold = parse_links("  0-0 2?1\t1-1 ", "here")
    assert gold.sure == {(0, 0), (1, 1)}
    assert gold.possible == {(0, 0), (1, 1), (2, 1)}
    assert parse_links("", "here") == GoldAlignment(frozenset())


@pytest.mark.parametrize("word", ["1", "1-", "-1-2", "1:2", "1-2-3", "a-b", "1–2", "٣-١", "1p2"])
def test_a_malformed_link_names_its_place_and_what_was_expected(word):
    with pytest.raises(DataError) as caught:
        parse_links(f"0-0 {word}", "test.align, line 7")
    assert str(caught.value) == (
        "test.align, line 7: expected links such as 0-0 (sure) or 1?2 (possible), source before "
        f"target and counted from 0, found {word!r}; correct this line"
    )


@pytest.mark.parametrize(("name", "pack"), [("g.align", bytes), ("g.align.gz", gzip.compress)])
def test_gold_files_are_read_gzipped_or_not(tmp_path, name, pack):
    path = tmp_path / name
    path.write_bytes(pack(b"0-0 1?1\n\n2-0\r\n"))
    assert read_gold(path) == [
        GoldAlignment(frozenset({(0, 0)}), frozenset({(1, 1)})),
        GoldAlignment(frozenset()),
        GoldAlignment(frozenset({(2, 0)})),
    ]


def test_a_malformed_gold_file_names_file_and_line(tmp_path):
    path = tmp_path / "gold.align"
    path.write_text("0-0\n0-0 1/1\n")
    with pytest.raises(DataError, match=re.escape(f"{path}, line 2: expected links")):
        read_gold(path)


def test_metrics_computed_by_hand():
    # A has 4 links, 3 of them possible and 2 sure; S has 3: 1 - (2 + 3) / (4 + 3)
    predicted = [Alignment([(0, 0), (1, 1)]), Alignment([(0, 1), (2, 2)])]
    gold = [parse_links("0-0 1?1 2-2", "1"), parse_links("0-1", "2")]
    computed = alignment_metrics(predicted, gold)
    assert computed.precision == pytest.approx(3 / 4)
    assert computed.recall == pytest.approx(2 / 3)
    assert computed.aer == pytest.approx(2 / 7)


def test_links_are_counted_per_pair_and_summed_over_the_corpus():
    # a link counts only in its own pair, and pairs are weighted by their number of links
    gold = [parse_links("0-0", "1"), parse_links("0-0 1-1 2-2", "2")]
    computed = alignment_metrics([Alignment(), Alignment([(0, 0), (1, 1), (2, 2)])], gold)
    assert (computed.precision, computed.recall) == (1, pytest.approx(3 / 4))
    assert computed.aer == pytest.approx(1 - 6 / 7)


@given(st.lists(golds, max_size=5))
def test_predicting_the_sure_links_has_error_rate_0(gold):
    computed = alignment_metrics([Alignment(links.sure) for links in gold], gold)
    assert (computed.precision, computed.recall, computed.aer) == (1, 1, 0)


@given(st.lists(golds, max_size=5))
def test_predicting_all_possible_links_has_error_rate_0(gold):
    assert alignment_metrics([Alignment(links.possible) for links in gold], gold).aer == 0


@given(st.lists(st.tuples(links, golds), min_size=1, max_size=5), st.randoms())
def test_metrics_lie_between_0_and_1_in_any_order_of_pairs(pairs, random):
    def scored(pairs):
        return alignment_metrics(
            [Alignment(made) for made, _ in pairs], [gold for _, gold in pairs]
        )

    computed = scored(pairs)
    assert all(0 <= value <= 1 for value in (computed.precision, computed.recall, computed.aer))
    assert computed == scored(random.sample(pairs, len(pairs)))


@given(links)
def test_with_all_links_sure_aer_is_one_minus_f1(gold_links):
    predicted = Alignment([(0, 0), (1, 1), (2, 3)])
    computed = alignment_metrics([predicted], [GoldAlignment(gold_links)])
    total = computed.precision + computed.recall
    f1 = 2 * computed.precision * computed.recall / total if total else 0
    if gold_links:
        assert computed.aer == pytest.approx(1 - f1)


def test_metrics_without_links():
    nothing = alignment_metrics([Alignment()], [GoldAlignment(frozenset())])
    assert (nothing.precision, nothing.recall, nothing.aer) == (1, 1, 0)
    missed = alignment_metrics([Alignment()], [parse_links("0-0", "here")])
    assert (missed.precision, missed.recall, missed.aer) == (1, 0, 1)
    invented = alignment_metrics([Alignment([(0, 0)])], [GoldAlignment(frozenset())])
    assert (invented.precision, invented.recall, invented.aer) == (0, 1, 1)


def test_unequal_numbers_of_lines_are_refused():
    message = "2 lines of predicted links but 1 of gold links; give one line"
    with pytest.raises(DataError, match=message):
        alignment_metrics([Alignment(), Alignment()], [GoldAlignment(frozenset())])
