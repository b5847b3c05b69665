"""Paired bootstrap: against resampling by hand and sacrebleu, and its properties."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard import metrics
from regard.errors import DataError
from regard.metrics import METRICS, RESAMPLES, SEED
from regard.significance import compare

texts = st.lists(st.sampled_from(["a", "b", "c"]), max_size=4).map(" ".join)
rows = st.lists(st.tuples(texts, texts, texts), min_size=1, max_size=12)


def _metrics(outputs: list[str], references: list[str]) -> metrics.MetricValues:
    return metrics.report(outputs, [[text] for text in references], [1] * len(outputs))


def test_exact_match_equals_resampling_by_hand() -> None:
    rng = random.Random(1)
    n = 60
    matches = np.array([[rng.random() < 0.9, rng.random() < 0.5] for _ in range(n)], dtype=int)
    systems = [["yes" if match else "no" for match in column] for column in matches.T]
    computed = compare(*(_metrics(outputs, ["yes"] * n) for outputs in systems), name="other")
    generator = np.random.default_rng(SEED)
    differences = []
    for _ in range(RESAMPLES):
        first, second = matches[generator.integers(n, size=n)].mean(0)
        differences.append(100 * (first - second))
    found = computed.differences["exact_match"]
    expected = 100 * (matches[:, 0].mean() - matches[:, 1].mean())
    assert found.difference == pytest.approx(expected)
    assert expected > 0
    assert (found.low, found.high) == pytest.approx(tuple(np.percentile(differences, (2.5, 97.5))))
    opposite = sum(difference <= 1e-9 for difference in differences)
    assert found.p_value == pytest.approx(2 * (opposite + 1) / (RESAMPLES + 1), abs=1e-12)
    assert 0 < found.p_value < 0.05 < found.low


@pytest.mark.parametrize(("noise", "significant"), [(0.45, True), (0.02, False)])
def test_bleu_and_chrf_agree_with_the_paired_bootstrap_of_sacrebleu(
    noise: float, significant: bool
) -> None:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.significance import PairedTest

    rng = random.Random(5)
    references = [" ".join(rng.choices("abcdefgh", k=9)) for _ in range(120)]

    def system(share: float) -> list[str]:
        return [
            " ".join("z" if rng.random() < share else token for token in text.split())
            for text in references
        ]

    first, second = system(0.2), system(0.2 + noise)
    computed = compare(_metrics(first, references), _metrics(second, references)).differences
    _, scores = PairedTest(
        [("first", first), ("second", second)],
        {"bleu": BLEU(force=True), "chrf": CHRF()},
        [references],
        test_type="bs",
        n_samples=RESAMPLES,
    )()
    for name, results in zip(("bleu", "chrf"), list(scores.values())[1:], strict=True):
        found = computed[name]
        assert found.value == pytest.approx(results[0].score)
        assert found.other == pytest.approx(results[1].score)
        assert (found.p_value < 0.05) == (results[1].p_value < 0.05) == significant


@given(rows)
def test_exchanging_the_systems_changes_only_the_signs(rows: list[tuple[str, str, str]]) -> None:
    first, second, references = (list(column) for column in zip(*rows, strict=True))
    systems = _metrics(first, references), _metrics(second, references)
    there, back = compare(*systems).differences, compare(*systems[::-1]).differences
    for name in METRICS:
        assert there[name].difference == -back[name].difference
        assert there[name].p_value == back[name].p_value
        ends = (-back[name].high, -back[name].low)
        assert (there[name].low, there[name].high) == pytest.approx(ends)
        assert 2 / (RESAMPLES + 1) <= there[name].p_value <= 1


def test_equal_systems_do_not_differ() -> None:
    system = _metrics(["a b", "c"], ["a b", "d"])
    for part in compare(system, system).differences.values():
        assert (part.difference, part.low, part.high, part.p_value) == (0, 0, 0, 1)


def test_different_sources_raise() -> None:
    with pytest.raises(DataError, match="on the same sources, got 2 and 1 sources"):
        compare(_metrics(["a", "b"], ["a", "b"]), _metrics(["a"], ["a"]))


def test_different_settings_raise() -> None:
    systems = [
        metrics.report(["a b"], [["a b"]], [1], lowercase=lowercase) for lowercase in (False, True)
    ]
    with pytest.raises(DataError, match=r"the same metrics, got BLEU .*case:mixed.* and .*case:lc"):
        compare(*systems)


def test_the_table_names_the_other_system() -> None:
    comparison = compare(_metrics(["a", "b"], ["a", "c"]), _metrics(["b", "b"], ["a", "c"]), "old")
    lines = str(comparison).splitlines()
    assert lines[0] == "compared with old, paired bootstrap over the sources, two-sided p-values"
    row = next(line for line in lines if line.startswith("exact match"))
    assert row.split()[2:5] == ["50.00", "0.00", "+50.00"]
    document = comparison.to_dict()
    assert document["other"] == "old"
    assert list(document)[1:] == list(METRICS)
