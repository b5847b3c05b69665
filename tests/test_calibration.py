"""Probability and margin of outputs, and the expected calibration error."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import regard
from regard.calibration import calibrate
from regard.cli.main import main


def test_the_error_of_two_bins_computed_by_hand() -> None:
    calibration = calibrate([0.95, 0.85, 0.15, 1.0], [True, False, False, True])
    # (0.9, 1]: mean 0.975, all right; (0.8, 0.9]: 0.85, none; (0.1, 0.2]: 0.15, none
    assert calibration.value == pytest.approx(100 * (2 * 0.025 + 0.85 + 0.15) / 4)
    rows = [(part.low, part.high, part.n, part.exact_match) for part in calibration.bins]
    assert rows == [(10, 20, 1, 0), (80, 90, 1, 0), (90, 100, 2, 100)]
    assert "26.25 (10 bins; mean probability " in str(calibration)
    text = str(calibrate([0.95, 0.75, 0.15, 0.35], [True, False, False, False]))
    assert "mean probability 55.0 %, exact match 25.0 %)" in text


def test_the_edges_belong_to_the_bin_below() -> None:
    calibration = calibrate([0.0, 0.1, 0.5, 1.0], [False] * 4)
    assert [(part.low, part.n) for part in calibration.bins] == [(0, 2), (40, 1), (90, 1)]


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=50))
def test_the_error_is_bounded_and_every_output_is_in_one_bin(
    rows: list[tuple[float, bool]],
) -> None:
    probabilities, right = zip(*rows, strict=True)
    calibration = calibrate(probabilities, right)
    assert sum(part.n for part in calibration.bins) == len(rows)
    # by the triangle inequality, at least the difference of the overall means
    assert 0 <= calibration.value <= 100 + 1e-9
    difference = abs(np.mean(probabilities) - np.mean(right))
    assert calibration.value >= 100 * difference - 1e-9
    for part in calibration.bins:
        assert part.low - 1e-9 <= part.probability <= part.high + 1e-9


@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 0.6])
def test_probabilities_do_not_depend_on_the_length_penalty_and_sum_to_at_most_one(
    make_translator: Callable[..., regard.Translator], length_penalty: float
) -> None:
    translator = make_translator()
    best = translator.translate("a b", 200, 200, length_penalty=length_penalty)
    assert isinstance(best, list)
    forced = translator.align(["a b"] * 5, [output.tokens for output in best[:5]])
    for output, aligned in zip(best, forced, strict=False):
        assert aligned.probability == pytest.approx(output.probability, rel=1e-4)
        assert output.probability == math.exp(output.log_prob)
    assert 0 < sum(output.probability for output in best) <= 1 + 1e-5


def test_the_margin_is_the_distance_to_the_next_distinct_output(
    make_translator: Callable[..., regard.Translator],
) -> None:
    best = make_translator().translate("a b", 5, 5)
    assert isinstance(best, list)
    others = [output.probability for output in best[1:] if output.text != best[0].text]
    assert best[0].margin == pytest.approx(best[0].probability - max(others))
    single = make_translator().translate("a b")
    assert single.margin == single.probability == pytest.approx(best[0].probability)
    assert make_translator().translate("").probability == 1


def test_confidence_appends_probability_and_margin(
    folders: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = tmp_path / "lines"
    lines.write_text("a b\n\nd c a\n")

    def rows(*options: str) -> list[list[str]]:
        assert main(["translate", str(folders[0]), str(lines), *options]) == 0
        return [line.split("\t") for line in capsys.readouterr().out.splitlines()]

    translator = regard.Translator.load(folders[0])
    best = translator.translate(["a b", "", "d c a"], n_best=2)
    expected = [
        [output.text, f"{output.probability:.6f}", f"{output.margin:.6f}"] for output, _ in best
    ]
    assert rows("--confidence") == expected
    assert [row[:1] for row in expected] == rows()
    greedy = rows("--confidence", "--beam-size", "1")
    assert [row[1] for row in greedy] == [row[2] for row in greedy]
    ranked = rows("--confidence", "--n-best", "2")
    assert [row[:2] for row in ranked] == [[str(n), str(r)] for n in (1, 2, 3) for r in (1, 2)]
    assert [row[3:] for row in ranked[::2]] == expected


def test_evaluation_reports_the_calibration(folders: list[Path]) -> None:
    translator = regard.Translator.load(folders[0])
    report = regard.evaluate(translator, [("a b", "b a"), ("a b c", "c b a"), ("d a", "x")])
    values = report.to_dict()["calibration"]
    right = [
        output.text == text
        for output, text in zip(report.translations, ("b a", "c b a", "x"), strict=True)
    ]
    expected = calibrate([output.probability for output in report.translations], right)
    assert values == expected.to_dict()
    assert sum(part["n"] for part in values["bins"]) == 3
    assert f"exact match: {values['value']:.2f} (10 bins; mean" in str(report)
