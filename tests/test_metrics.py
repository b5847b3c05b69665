import dataclasses
import json
import math
import random
import re
import unicodedata
from itertools import zip_longest

import numpy as np
import pytest
import sacrebleu
from hypothesis import given
from hypothesis import strategies as st

from regard import metrics
from regard.errors import ConfigError, DataError

FUNCTIONS = [definition.compute for definition in metrics.METRICS.values()]

OUTPUTS = ["the cat sat on the mat .", "a dog ran home", "", "je t'aime bien , toi !"]
SINGLE = [["the cat sat on a mat ."], ["a dog ran home"], ["yes"], ["je t'aime beaucoup !"]]
VARYING = [
    ["the cat sat on a mat .", "a cat sat on the mat ."],
    ["the dog ran home"],
    ["yes", "no", ""],
    ["je t'aime beaucoup !", "je t'aime bien"],
]

texts = st.lists(st.sampled_from(["a", "b", "ab", "é"]), max_size=5).map(" ".join)
corpora = st.lists(
    st.tuples(texts, st.lists(texts, min_size=1, max_size=3)), min_size=1, max_size=8
)


def unzip(corpus):
    outputs, references = zip(*corpus, strict=True)
    return list(outputs), list(references)


def streams(references):
    return [list(stream) for stream in zip_longest(*references)]


def test_exact_match_and_wer_count_outputs_that_equal_any_reference():
    outputs, references = ["a b", "c", "d", "e"], [["a b"], ["x", "c"], ["D"], ["e x"]]
    assert metrics.exact_match(outputs, references).value == 50
    assert metrics.wer(outputs, references).value == 50
    assert metrics.exact_match(outputs, references, lowercase=True).value == 75


def test_per_divides_summed_edits_by_summed_lengths():
    # 1 edit of 4 tokens and 1 of 1: 2 / 5, where the mean of the rates would be 62.5 %
    outputs, references = ["k a t s", "x"], [["k a t z"], ["y"]]
    assert metrics.per(outputs, references).value == pytest.approx(40)


def test_word_error_rate_is_the_edit_distance_over_the_reference_words():
    # by hand: 1 substitution, then 1 insertion and 1 deletion; 3 edits of 4 + 5 reference words
    outputs = ["the cat sat up", "she has a very dog"]
    references = [["the cat sat down"], ["she has a dog now"]]
    assert metrics.word_error_rate(outputs, references).value == pytest.approx(100 * 3 / 9)
    assert metrics.wer(outputs, references).value == 100
    # more edits than reference words: above 100 %
    assert metrics.word_error_rate(["a b c"], [["x"]]).value == pytest.approx(300)


def test_cer_counts_an_unknown_token_as_one_character():
    assert metrics.cer(["a<unk>c"], [["abc"]]).value == pytest.approx(100 / 3)
    assert metrics.per(["a <unk>"], [["a b"]]).value == pytest.approx(50)


def test_cer_counts_code_points_including_spaces():
    assert metrics.cer(["ab c"], [["abc"]]).value == pytest.approx(100 / 3)
    assert metrics.cer(["kitten"], [["sitting"]]).value == pytest.approx(300 / 7)


@pytest.mark.parametrize(
    ("output", "references", "per"),
    [
        ("a b c", ["a b c d e f", "a b x"], 100 / 3),  # 1 edit of 3 before 3 of 6
        ("a b c", ["a b c d", "a b"], 50),  # 1 edit each: the shorter one, in any order
        ("a b c", ["a b", "a b c d"], 50),
        ("a", ["b b b b b b b b", "b"], 100),  # fewest edits, not the smallest rate
        ("", ["a b"], 100),
        ("", [""], 0),
    ],
)
def test_per_uses_the_closest_reference(output, references, per):
    assert metrics.per([output], [references]).value == pytest.approx(per)


def test_edits_against_an_empty_reference_count():
    assert metrics.per(["a b", "c d e f"], [[""], ["c d e f"]]).value == pytest.approx(50)
    assert metrics.per(["a b"], [[""]]).value == 200


@pytest.mark.parametrize("metric", metrics.METRICS)
def test_normal_forms_of_one_text_are_equal(metric):
    composed = "le caf\u00e9 \u00e0 c\u00f4t\u00e9"
    forms = [composed, unicodedata.normalize("NFD", composed)]
    assert forms[0] != forms[1]
    best = 0 if metrics.METRICS[metric].lower_is_better else 100
    for output, reference in (forms, forms[::-1]):
        assert metrics.METRICS[metric].compute([output], [[reference]]).value == best
    assert metrics.cer(["cafe"], [["cafe\u0301"]]).value == 25


BOUNDED = [name for name, metric in metrics.METRICS.items() if math.isfinite(metric.worst)]


@pytest.mark.parametrize("metric", BOUNDED)
def test_wrong_outputs_have_the_worst_value(metric):
    value = metrics.METRICS[metric].compute(["x y", ""], [["le chat dort ici"], ["la nuit"]]).value
    assert value == metrics.METRICS[metric].worst


@pytest.mark.parametrize("metric", metrics.METRICS)
def test_the_amount_of_whitespace_does_not_matter(metric):
    texts = [
        "le chat  dort sur le lit ",
        "le chat dort sur le lit",
        " le\u00a0chat dort\tsur le lit",
    ]
    best = 0 if metrics.METRICS[metric].lower_is_better else 100
    for output in texts:
        for reference in texts:
            assert metrics.METRICS[metric].compute([output], [[reference]]).value == best


@pytest.mark.parametrize("tokenize", ["13a", "none", "zh", "char"])
def test_bleu_and_chrf_of_any_whitespace_are_those_of_sacrebleu(tokenize):
    rng = random.Random(1)
    texts = ["".join(rng.choices("ab. ,\u3000\u00a0\t", k=rng.randint(5, 30))) for _ in range(40)]
    outputs, references = texts[:20], [[text] for text in texts[20:]]
    direct = sacrebleu.metrics.BLEU(tokenize=tokenize)
    expected = direct.corpus_score(outputs, streams(references)).score
    assert metrics.bleu(outputs, references, tokenize).value == pytest.approx(expected)
    expected = sacrebleu.metrics.CHRF().corpus_score(outputs, streams(references)).score
    assert metrics.chrf(outputs, references).value == pytest.approx(expected)


@pytest.mark.parametrize("references", [SINGLE, VARYING])
@pytest.mark.parametrize("tokenize", ["13a", "none", "zh", "char"])
@pytest.mark.parametrize("lowercase", [False, True])
def test_bleu_is_the_corpus_bleu_of_sacrebleu(references, tokenize, lowercase):
    outputs = [output.title() for output in OUTPUTS]
    direct = sacrebleu.metrics.BLEU(tokenize=tokenize, lowercase=lowercase)
    expected = direct.corpus_score(outputs, streams(references)).score
    computed = metrics.bleu(outputs, references, tokenize, lowercase)
    assert computed.value == pytest.approx(expected)
    assert computed.signature == str(direct.get_signature())


@pytest.mark.parametrize("references", [SINGLE, VARYING])
def test_chrf_is_the_corpus_chrf_of_sacrebleu(references):
    direct = sacrebleu.metrics.CHRF()
    expected = direct.corpus_score(OUTPUTS, streams(references)).score
    computed = metrics.chrf(OUTPUTS, references)
    assert computed.value == pytest.approx(expected)
    assert computed.signature == str(direct.get_signature())


@pytest.mark.parametrize("second", [None, "a d c b"])
def test_chrf_of_many_outputs_is_that_of_sacrebleu(second):
    outputs = [f"{number} a b c" for number in range(2500)]
    references = [[f"{number} a c b"] for number in range(2500)]
    if second is not None:
        references[1700].append(second)
    expected = sacrebleu.CHRF()
    value = expected.corpus_score(outputs, streams(references)).score
    found = metrics.chrf(outputs, references)
    assert found.value == pytest.approx(value)
    assert found.signature == str(expected.get_signature())


def test_a_missing_reference_is_not_an_empty_one():
    # a repeated reference changes nothing
    mixed = metrics.bleu(["a b c d e", "f g h i j"], [["a b c d x"], ["f g h i y", "z g h i j"]])
    padded = metrics.bleu(
        ["a b c d e", "f g h i j"], [["a b c d x", "a b c d x"], ["f g h i y", "z g h i j"]]
    )
    assert mixed.value == pytest.approx(padded.value)
    assert "nrefs:var" in (mixed.signature or "")
    # an empty output is closest in length to an empty reference, so that it has no brevity penalty
    outputs = ["a b c d e", ""]
    missing = metrics.bleu(outputs, [["a b c d e", "q"], ["f g"]])
    empty = metrics.bleu(outputs, [["a b c d e", "q"], ["f g", ""]])
    assert missing.value < empty.value == pytest.approx(100)


@given(corpora)
def test_intervals_include_the_value_and_are_deterministic(corpus):
    outputs, references = unzip(corpus)
    for metric in FUNCTIONS:
        first = metric(outputs, references)
        assert first.low <= first.value <= first.high
        assert first == metric(outputs, references)


@given(corpora, st.randoms(use_true_random=False))
def test_the_order_of_outputs_does_not_matter(corpus, random):
    shuffled = random.sample(corpus, len(corpus))
    for metric in FUNCTIONS:
        assert metric(*unzip(corpus)).value == pytest.approx(metric(*unzip(shuffled)).value)


@given(corpora)
def test_wer_is_100_minus_exact_match(corpus):
    exact_match, wer = metrics.exact_match(*unzip(corpus)), metrics.wer(*unzip(corpus))
    assert wer == metrics.MetricValue(
        100 - exact_match.value, 100 - exact_match.high, 100 - exact_match.low
    )


@given(corpora)
def test_a_copy_of_a_reference_changes_nothing(corpus):
    outputs, references = unzip(corpus)
    copied = [[*candidates, candidates[0]] for candidates in references]
    for metric in FUNCTIONS:
        assert metric(outputs, copied).value == pytest.approx(metric(outputs, references).value)


@given(corpora)
def test_error_rates_are_zero_only_if_all_outputs_are_correct(corpus):
    all_correct = metrics.exact_match(*unzip(corpus)).value == 100
    assert (metrics.per(*unzip(corpus)).value == 0) == all_correct
    assert (metrics.cer(*unzip(corpus)).value == 0) == all_correct


@given(corpora)
def test_outputs_equal_to_a_reference_are_correct(corpus):
    _, references = unzip(corpus)
    outputs = [candidates[-1] for candidates in references]
    assert metrics.exact_match(outputs, references) == metrics.MetricValue(100.0, 100.0, 100.0)
    assert metrics.cer(outputs, references) == metrics.MetricValue(0.0, 0.0, 0.0)


def test_interval_of_exact_match_is_binomial():
    # 400 outputs, half right: 1.96 * sqrt(0.25 / 400) = 4.9 %
    computed = metrics.exact_match(["a"] * 400, [["a"], ["b"]] * 200)
    assert computed.low == pytest.approx(45.1, abs=0.8)
    assert computed.high == pytest.approx(54.9, abs=0.8)


def test_intervals_include_a_value_outside_all_resamples():
    counts = np.arange(100).reshape(-1, 1) ** 2
    peak = int(counts.sum())
    assert metrics._bootstrap(counts, lambda sums: -abs(float(sums[0] - peak))).high == 0
    assert metrics._bootstrap(counts, lambda sums: abs(float(sums[0] - peak))).low == 0


def test_report_equals_the_metrics_computed_separately():
    computed = metrics.report(OUTPUTS, VARYING, [6, 4, 1, 5], bleu_tokenize="char", lowercase=True)
    assert computed.n == 4
    assert computed.bleu == metrics.bleu(OUTPUTS, VARYING, "char", lowercase=True)
    for name in ("chrf", "exact_match", "wer", "word_error_rate", "per", "cer"):
        assert getattr(computed, name) == getattr(metrics, name)(OUTPUTS, VARYING, lowercase=True)


def test_report_lower_cases_both_sides_for_every_metric():
    outputs, references = ["The Cat SAT on it"], [["the CAT sat On It"]]
    computed = metrics.report(outputs, references, [5], lowercase=True)
    assert [computed.bleu.value, computed.chrf.value] == pytest.approx([100, 100])
    assert [computed.exact_match.value, computed.per.value, computed.cer.value] == [100, 0, 0]
    assert "case:lc" in (computed.bleu.signature or "")
    assert metrics.report(outputs, references, [5]).exact_match.value == 0


def test_by_length_bins_the_outputs():
    outputs = ["a a", "b", "c", "d d", "e"]
    references = [["a a"], ["x"], ["c"], ["d x"], ["e"]]
    bins = metrics.report(outputs, references, [5, 6, 10, 11, 250]).by_length
    assert [(part.low, part.high, part.n) for part in bins] == [
        (1, 5, 1),
        (6, 10, 2),
        (11, 15, 1),
        (201, 250, 1),
    ]
    assert [part.exact_match for part in bins] == [100, 50, 0, 100]
    assert [part.per for part in bins] == [0, 50, 50, 0]
    assert bins[2].cer == pytest.approx(100 / 3)


@given(st.lists(st.integers(0, 300), min_size=1, max_size=10))
def test_every_output_is_in_one_bin(lengths):
    outputs = ["a"] * len(lengths)
    bins = metrics.report(outputs, [["a"]] * len(lengths), lengths).by_length
    assert sum(part.n for part in bins) == len(lengths)
    for part in bins:
        assert part.n == sum(part.low <= length <= part.high for length in lengths) > 0


def test_to_dict_is_the_json_of_evaluate():
    computed = metrics.report(OUTPUTS, SINGLE, [6, 4, 1, 5])
    written = json.loads(json.dumps(computed.to_dict()))
    names = ["bleu", "chrf", "exact_match", "wer", "word_error_rate", "per", "cer"]
    assert list(written) == ["n", *names, "by_length"]
    for name in names:
        signed = {"signature"} if name in ("bleu", "chrf") else set()
        assert set(written[name]) == {"value", "low", "high"} | signed
    assert written["by_length"] == [dataclasses.asdict(part) for part in computed.by_length]
    assert set(written["by_length"][0]) == {"low", "high", "n", "exact_match", "per", "cer"}


@pytest.mark.parametrize("metric", FUNCTIONS)
@pytest.mark.parametrize(
    ("outputs", "references", "message"),
    [
        ([], [], "no outputs to evaluate; give one or more"),
        (["a", "b"], [["a"]], "2 outputs but 1 lists of references; give one for each output"),
        (["a", "b"], [["a"], []], "output 2 needs a list of one or more references, found []"),
        (["a"], ["abc"], "output 1 needs a list of one or more references, found 'abc'"),
    ],
)
def test_invalid_outputs_and_references_raise(metric, outputs, references, message):
    with pytest.raises(DataError, match=re.escape(message)):
        metric(outputs, references)


def test_report_requires_a_length_per_output():
    with pytest.raises(DataError, match="2 outputs but 1 source lengths"):
        metrics.report(["a", "b"], [["a"], ["b"]], [1])


def test_unknown_bleu_tokenizers_raise(unchecked: None):
    with pytest.raises(
        ConfigError, match="takes one of 13a, none, zh, char, got '14a'; did you mean 13a"
    ):
        metrics.bleu(["a"], [["a"]], "14a")
