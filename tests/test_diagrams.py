"""Diagrams: every state, line and number where it belongs, whatever the tokens are."""

import json
import math
import xml.etree.ElementTree as ET
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.charts import Chart, attention_steps, encoder_decoder, self_attention
from regard.charts.attention_steps import _free_way, _hull
from regard.charts.drawing import blue
from regard.errors import ConfigError, DataError, ShapeError
from regard.explanation import explain

SOURCE = ["te", "quiero", "te", "</s>"]
TARGET = ["I", "love", "you"]
WEIGHTS = np.array([[0.1, 0.7, 0.16, 0.04], [0.02, 0.9, 0.04, 0.04], [0.6, 0.1, 0.3, 0.0]])
SVG = "{http://www.w3.org/2000/svg}"
TOKENS = st.lists(
    st.text(max_size=6) | st.sampled_from(["the", "</script>", "学习", "سلام", "😀", "x" * 60]),
    min_size=1,
    max_size=5,
)


def drawn(picture):
    return ET.fromstring(picture.to_svg())


def texts(picture):
    return ["".join(e.itertext()) for e in drawn(picture).iter(f"{SVG}text")]


def looks(diagram):
    return [line for line in diagram.lines if line.spoken]


def even(rows, columns):
    return np.full((rows, columns), 1 / columns)


def test_every_state_has_a_line_as_thick_as_its_weight():
    lines = looks(encoder_decoder(WEIGHTS, SOURCE, TARGET, 0))
    found = {line.x: line for line in lines}
    assert len(found) == 4
    ordered = [found[x] for x in sorted(found)]
    assert [line.spoken.rsplit(": ")[1] for line in ordered] == ["0.100", "0.700", "0.160", "0.040"]
    assert ordered[1].width == pytest.approx(7 * ordered[0].width)
    assert len({(line.x2, line.y2) for line in lines}) == 1


def test_darker_for_more():
    def light(share):
        return sum(int(blue(share)[i : i + 2], 16) for i in (1, 3, 5))

    shades = [light(share) for share in np.linspace(0, 1, 20)]
    assert shades == sorted(shades, reverse=True)
    assert shades[0] < 3 * 245
    assert blue(-1.0) == blue(0.0)
    assert blue(2.0) == blue(1.0)


def test_weights_are_printed_from_five_hundredths():
    written = texts(encoder_decoder(WEIGHTS, SOURCE, TARGET, 0))
    assert [text for text in written if text.startswith("0.")] == ["0.10", "0.70", "0.16"]


@pytest.mark.parametrize("step", [0, 1, 2])
def test_only_what_is_written_so_far_is_shown(step):
    diagram = encoder_decoder(WEIGHTS, SOURCE, TARGET, step)
    words = [word.text for word in diagram.words]
    assert [token in words for token in TARGET] == [t <= step for t in range(3)]
    assert [word.text for word in diagram.words if word.bold] == [TARGET[step]]
    assert words.count("te") == 2
    (context,) = {(line.x2, line.y2) for line in looks(diagram)}
    up = [line for line in diagram.lines if line.arrow and (line.x, line.y) == context]
    assert [(line.x2, line.y2 < line.y) for line in up] == [(context[0], True)]


def test_arrows_go_from_state_to_state():
    arrows = [line for line in encoder_decoder(WEIGHTS, SOURCE, TARGET, 1).lines if line.arrow]
    level = [line for line in arrows if line.y == line.y2]
    assert len(level) == 3 + 1  # encoder, and decoder up to the step
    assert all(line.x < line.x2 for line in level)


def test_without_attention_one_line_carries_all():
    diagram = encoder_decoder(None, SOURCE, TARGET, 1)
    (line,) = looks(diagram)
    states = [box.x for box in diagram.boxes if box.y == max(each.y for each in diagram.boxes)]
    assert line.x == max(states)
    assert json.loads(diagram.to_json())["attention"] is None
    assert any("bottleneck" in text for text in texts(diagram))


def test_the_data_is_kept():
    assert json.loads(encoder_decoder(WEIGHTS, SOURCE, TARGET, 2).to_json()) == {
        "source_tokens": SOURCE,
        "target_tokens": TARGET,
        "step": 2,
        "attention": WEIGHTS.tolist(),
    }


def test_a_sequence_is_drawn_twice_with_a_line_for_every_look():
    tokens = ["a", "a", "b"]
    weights = np.array([[0.5, 0.5, 0.0], [0.2, 0.2, 0.6], [0.0, 0.0, 1.0]])
    diagram = self_attention(weights, tokens)
    assert [text for text in texts(diagram) if text in tokens].count("a") == 4
    assert sorted(line.spoken for line in looks(diagram)) == [
        "a looks at a: 0.200", "a looks at a: 0.200", "a looks at a: 0.500", "a looks at a: 0.500",
        "a looks at b: 0.600", "b looks at b: 1.000",
    ]  # fmt: skip
    assert {line.y for line in looks(diagram)} != {line.y2 for line in looks(diagram)}


def test_one_position_is_set_off_with_its_weights():
    weights = np.array([[0.5, 0.5, 0.0], [0.2, 0.04, 0.76], [0.0, 0.0, 1.0]])
    diagram = self_attention(weights, ["a", "b", "c"], 1)
    assert [text for text in texts(diagram) if text.startswith("0.")] == ["0.20", "0.76"]
    pale = {line.colour for line in looks(diagram) if not line.spoken.startswith("b")}
    strong = {line.colour for line in looks(diagram) if line.spoken.startswith("b")}
    assert len(pale) == 1
    assert not pale & strong
    assert [word.text for word in diagram.words if word.bold] == ["b"]


@settings(max_examples=8, deadline=None)
@given(TOKENS, TOKENS, st.data())
def test_any_tokens_make_whole_diagrams(source, target, data):
    step = data.draw(st.integers(0, len(target) - 1))
    position = data.draw(st.none() | st.integers(0, len(source) - 1))
    for diagram in (
        encoder_decoder(even(len(target), len(source)), source, target, step, title=source[0]),
        self_attention(even(len(source), len(source)), source, position),
    ):
        marks = [e for e in drawn(diagram).iter() if e.get("aria-roledescription") == "rule mark"]
        assert len(marks) == len(looks(diagram))
        page = diagram.to_html()
        assert page.count("</script>") == 2
        assert all(0 <= x <= diagram.width for line in diagram.lines for x in (line.x, line.x2))
        assert all(0 <= y <= diagram.height for line in diagram.lines for y in (line.y, line.y2))
        assert all(0 <= word.y <= diagram.height for word in diagram.words)


@pytest.mark.parametrize("count", [3, 12, 40])
def test_neighbours_do_not_overlap(count):
    diagram = encoder_decoder(even(1, count), ["quiero"] * count, ["x"])
    row = sorted(box.x for box in diagram.boxes if box.y == max(each.y for each in diagram.boxes))
    (width,) = {box.width for box in diagram.boxes if box.x in row and box.corner == 6}
    assert len(row) == count
    assert all(right - left > width for left, right in pairwise(row))


def test_diagrams_save_as_every_format(tmp_path):
    for picture in (
        encoder_decoder(WEIGHTS, SOURCE, TARGET),
        self_attention(np.eye(3), TARGET),
        attention_steps(explain([1, 2], [[1, 0], [0, 1], [1, 1]])),
    ):
        assert isinstance(picture, Chart)
        for suffix, start in [
            (".html", b"<!DOC"),
            (".svg", b"<svg"),
            (".png", b"\x89P"),
            (".json", b"{"),
        ]:
            picture.save(tmp_path / f"a{suffix}")
            assert (tmp_path / f"a{suffix}").read_bytes().startswith(start)
        assert picture._repr_mimebundle_()["image/svg+xml"].startswith("<svg")


def test_errors_say_what_was_found():
    with pytest.raises(ShapeError, match=r"\(3, 4\).*got \(4, 3\)"):
        encoder_decoder(WEIGHTS.T, SOURCE, TARGET)
    with pytest.raises(ShapeError, match=r"\(3, 3\).*got \(3, 4\)"):
        self_attention(WEIGHTS, TARGET)
    for step in (-1, 3):
        with pytest.raises(ConfigError, match=f"no step {step}: the output has 3 steps"):
            encoder_decoder(WEIGHTS, SOURCE, TARGET, step)
    with pytest.raises(ConfigError, match="no position 3: the sequence has 3 symbols"):
        self_attention(np.eye(3), TARGET, 3)
    with pytest.raises(DataError, match="nothing to draw"):
        encoder_decoder(None, [], TARGET)


def test_three_moves_show_scores_weights_and_context():
    picture = attention_steps(explain([1, 2], [[1, 0], [0, 1], [1, 1]]))
    written = texts(picture)
    assert [text for text in written if text in ("1.00", "2.00", "3.00")] == [
        "1.00",
        "2.00",
        "3.00",
    ]
    for text in ("0.090", "0.245", "0.665", "the weights sum to 1.00"):
        assert text in written
    assert "c = (0.76, 0.91), inside their hull" in written
    assert written.count("h1") == 3
    assert len(picture.to_altair().to_dict()["hconcat"]) == 3
    assert json.loads(picture.to_json())["context"] == pytest.approx([0.7553, 0.9100], abs=1e-4)


def test_given_weights_have_no_scores_to_show():
    picture = attention_steps(
        explain(None, np.eye(4), weights=[0.4, 0.3, 0.2, 0.2], labels=["a"] * 4)
    )
    assert len(picture.to_altair().to_dict()["hconcat"]) == 2
    written = texts(picture)
    assert "the weights sum to 1.10" in written
    assert not any("score" in text or "hull" in text for text in written)
    assert written.count("a") == 4
    assert [text for text in written if text in ("0.40", "0.30", "0.20")] == [
        "0.40",
        "0.30",
    ] + 2 * ["0.20"]


def test_a_context_of_negative_weights_is_not_said_to_be_inside():
    picture = attention_steps(explain(None, np.eye(2), weights=[-0.5, 1.5]))
    assert "c = (−0.50, 1.50)" in texts(picture)


@settings(max_examples=8, deadline=None)
@given(TOKENS, st.integers(1, 4), st.integers(0, 9))
def test_any_labels_make_three_whole_panels(labels, width, seed):
    states = np.random.default_rng(seed).normal(size=(len(labels), width))
    picture = attention_steps(explain(states[0], states, labels=labels), title=labels[0])
    bars = [e for e in drawn(picture).iter() if e.get("aria-roledescription") == "bar"]
    assert len(bars) == 2 * len(labels) + (width if width != 2 else 0)
    assert picture.to_html().count("</script>") == 2


@given(
    st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), min_size=1, max_size=9),
    st.integers(0, 99),
)
def test_the_hull_is_convex_and_holds_every_average(points, seed):
    states = np.array(points, float)
    corners = _hull(states)
    assert set(corners) <= {(float(x), float(y)) for x, y in points}
    if len(corners) < 3:
        return
    context = np.random.default_rng(seed).dirichlet(np.ones(len(points))) @ states
    for here, there in zip(corners, [*corners[1:], corners[0]], strict=True):
        edge = np.subtract(there, here)
        for point in (*points, context):
            across = np.subtract(point, here)
            assert edge[0] * across[1] - edge[1] * across[0] > -1e-9


def test_one_state_alone_is_a_point():
    assert _hull(np.array([[1.0, 2.0], [1.0, 2.0]])) == [(1.0, 2.0)]
    x, y = _free_way(np.array([[1.0, 0.0]]))
    assert math.hypot(x + 1, y) < 1e-9
    drawn(attention_steps(explain([1, 2], [[1, 2]])))
