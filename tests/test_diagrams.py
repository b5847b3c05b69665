"""Diagrams: positions of states, lines, weights and labels, for any tokens."""

import json
import math
import re
import xml.etree.ElementTree as ET
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.charts import (
    Chart,
    MissingGlyphWarning,
    attention_steps,
    encoder_decoder,
    self_attention,
)
from regard.charts.attention_steps import convex_hull, free_direction
from regard.charts.svg import weight_colour
from regard.charts.text import text_width
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


def elements(chart, name):
    return list(ET.fromstring(chart.to_svg()).iter(SVG + name))


def texts(chart, **attributes):
    return [
        "".join(text.itertext())
        for text in elements(chart, "text")
        if attributes.items() <= text.attrib.items()
    ]


def tooltip(element):
    return element.findtext(f"{SVG}title")


def numbers(element, *names):
    return tuple(float(element.get(name)) for name in names)


def attention_lines(chart):
    return [line for line in elements(chart, "line") if tooltip(line)]


def starts(chart):
    return {numbers(line, "x1", "y1") for line in attention_lines(chart)}


def ends(chart):
    return {numbers(line, "x2", "y2") for line in attention_lines(chart)}


def arrows(chart):
    """Return the start and the end of each arrow."""
    endpoints = []
    for group in elements(chart, "g"):
        if group.get("class") == "arrow":
            x, y, angle = map(float, re.findall(r"-?[\d.]+", group.get("transform")))
            tip = group[1].get("d")
            length, angle_in_radians = float(tip[1 : tip.index(",")]), math.radians(angle)
            endpoints.append(
                (
                    (x, y),
                    (
                        x + length * math.cos(angle_in_radians),
                        y + length * math.sin(angle_in_radians),
                    ),
                )
            )
    return endpoints


def encoder_states(chart):
    """Return the left edge and the width of each encoder state."""
    states = [numbers(r, "x", "y", "width") for r in elements(chart, "rect") if r.get("class")]
    return sorted((x, width) for x, y, width in states if y == max(y for _, y, _ in states))


def uniform_weights(rows, columns):
    return np.full((rows, columns), 1 / columns)


def test_every_state_has_a_line_whose_width_is_its_weight():
    diagram = encoder_decoder(WEIGHTS, SOURCE, TARGET, 0)
    lines = sorted(attention_lines(diagram), key=lambda line: numbers(line, "x1"))
    assert len(starts(diagram)) == len(lines) == 4
    assert [tooltip(line).rsplit(": ")[1] for line in lines] == ["0.100", "0.700", "0.160", "0.040"]
    widths = [numbers(line, "stroke-width")[0] for line in lines]
    assert widths[1] == pytest.approx(7 * widths[0])
    assert len(ends(diagram)) == 1


def test_larger_weights_are_darker():
    def brightness(weight):
        return sum(int(weight_colour(weight)[i : i + 2], 16) for i in (1, 3, 5))

    shades = [brightness(weight) for weight in np.linspace(0, 1, 20)]
    assert shades == sorted(shades, reverse=True)
    assert shades[0] < 3 * 245
    assert weight_colour(-1.0) == weight_colour(0.0)
    assert weight_colour(2.0) == weight_colour(1.0)


def test_only_weights_of_at_least_0_05_are_printed():
    written = texts(encoder_decoder(WEIGHTS, SOURCE, TARGET, 0))
    assert [text for text in written if text.startswith("0.")] == ["0.10", "0.70", "0.16"]


@pytest.mark.parametrize("step", [0, 1, 2])
def test_only_tokens_up_to_the_step_are_drawn(step):
    diagram = encoder_decoder(WEIGHTS, SOURCE, TARGET, step)
    words = texts(diagram)
    assert [token in words for token in TARGET] == [t <= step for t in range(3)]
    assert texts(diagram, **{"font-weight": "bold"}) == [TARGET[step]]
    assert words.count("te") == 2
    (context,) = ends(diagram)
    (end,) = [end for start, end in arrows(diagram) if start == context]
    assert end[0] == pytest.approx(context[0])
    assert end[1] < context[1]


def test_arrows_connect_successive_states():
    level = [
        (start[0], end[0])
        for start, end in arrows(encoder_decoder(WEIGHTS, SOURCE, TARGET, 1))
        if start[1] == end[1]
    ]
    assert len(level) == 3 + 1  # encoder, and decoder up to the step
    assert all(start < end for start, end in level)


def test_without_attention_the_only_line_is_from_the_last_state():
    diagram = encoder_decoder(None, SOURCE, TARGET, 1)
    ((x, _),) = starts(diagram)
    left, width = encoder_states(diagram)[-1]
    assert len(attention_lines(diagram)) == 1
    assert x == left + width / 2
    assert json.loads(diagram.to_json())["attention"] is None
    assert any("bottleneck" in text for text in texts(diagram))


def test_json_contains_the_data():
    assert json.loads(encoder_decoder(WEIGHTS, SOURCE, TARGET, 2).to_json()) == {
        "source_tokens": SOURCE,
        "target_tokens": TARGET,
        "step": 2,
        "attention": WEIGHTS.tolist(),
    }


def test_self_attention_draws_a_line_per_query_and_key():
    tokens = ["a", "a", "b"]
    weights = np.array([[0.5, 0.5, 0.0], [0.2, 0.2, 0.6], [0.0, 0.0, 1.0]])
    diagram = self_attention(weights, tokens)
    assert [text for text in texts(diagram) if text in tokens].count("a") == 4
    assert sorted(map(tooltip, attention_lines(diagram))) == [
        "a attends to a: 0.200", "a attends to a: 0.200", "a attends to a: 0.500",
        "a attends to a: 0.500", "a attends to b: 0.600", "b attends to b: 1.000",
    ]  # fmt: skip
    assert {y for _, y in starts(diagram)} != {y for _, y in ends(diagram)}


def test_one_position_is_highlighted_with_its_weights():
    weights = np.array([[0.5, 0.5, 0.0], [0.2, 0.04, 0.76], [0.0, 0.0, 1.0]])
    diagram = self_attention(weights, ["a", "b", "c"], 1)
    assert [text for text in texts(diagram) if text.startswith("0.")] == ["0.20", "0.76"]
    colours = [(tooltip(line)[0], line.get("stroke")) for line in attention_lines(diagram)]
    pale = {colour for token, colour in colours if token != "b"}
    strong = {colour for token, colour in colours if token == "b"}
    assert len(pale) == 1
    assert not pale & strong
    assert texts(diagram, **{"font-weight": "bold"}) == ["b"]


@settings(max_examples=8, deadline=None)
@given(TOKENS, TOKENS, st.data())
def test_any_tokens_make_complete_diagrams(source, target, data):
    step = data.draw(st.integers(0, len(target) - 1))
    position = data.draw(st.none() | st.integers(0, len(source) - 1))
    for diagram, count in (
        (
            encoder_decoder(
                uniform_weights(len(target), len(source)), source, target, step, title=source[0]
            ),
            len(source),
        ),
        (
            self_attention(uniform_weights(len(source), len(source)), source, position),
            len(source) ** 2,
        ),
    ):
        assert len(attention_lines(diagram)) == count
        assert diagram.to_html().count("</script>") == 0
        left, top, width, height = map(float, elements(diagram, "svg")[0].get("viewBox").split())
        points = [
            *starts(diagram),
            *ends(diagram),
            *(p for arrow in arrows(diagram) for p in arrow),
        ]
        assert all(left <= x <= left + width for x, _ in points)
        assert all(top <= y <= top + height for _, y in points)
        assert all(top <= numbers(e, "y")[0] <= top + height for e in elements(diagram, "text"))


@pytest.mark.parametrize("token", ["</script>", "</svg>", '"><b>&amp;', "سلام", "学习", "a\x07"])
def test_tokens_and_title_are_escaped(token):
    diagram = encoder_decoder(np.ones((1, 1)), [token], [token], title=f"</title>{token}")
    escaped = token.replace("\x07", "\\x07")
    assert texts(diagram).count(escaped) == 2
    assert f"</title>{escaped}" in texts(diagram)
    assert tooltip(attention_lines(diagram)[0]) == f"{escaped} attends to {escaped}: 1.000"
    assert elements(diagram, "svg")[0].get("aria-label") == f"</title>{escaped}"
    assert not [e for e in ET.fromstring(diagram.to_svg()).iter() if e.tag == f"{SVG}b"]


@pytest.mark.parametrize("count", [3, 12, 40])
def test_neighbours_do_not_overlap(count):
    row = encoder_states(encoder_decoder(uniform_weights(1, count), ["quiero"] * count, ["x"]))
    assert len(row) == count
    assert all(right - left > width for (left, width), (right, _) in pairwise(row))


def test_png_warns_of_characters_without_a_font():
    with pytest.warns(MissingGlyphWarning, match="\u0378: .*svg"):
        self_attention(np.eye(1), ["\u0378"]).to_png()


def test_diagrams_save_as_every_format(tmp_path):
    for chart in (
        encoder_decoder(WEIGHTS, SOURCE, TARGET),
        self_attention(np.eye(3), TARGET),
        attention_steps(explain([1, 2], [[1, 0], [0, 1], [1, 1]])),
    ):
        assert isinstance(chart, Chart)
        for suffix, start in [
            (".html", b"<!DOC"),
            (".svg", b"<svg"),
            (".png", b"\x89P"),
            (".pdf", b"%PDF"),
            (".json", b"{"),
        ]:
            chart.save(tmp_path / f"a{suffix}")
            assert (tmp_path / f"a{suffix}").read_bytes().startswith(start)
        assert chart._repr_mimebundle_()["image/svg+xml"].startswith("<svg")


def test_errors_report_the_invalid_value():
    with pytest.raises(ShapeError, match=r"\(3, 4\).*got \(4, 3\)"):
        encoder_decoder(WEIGHTS.T, SOURCE, TARGET)
    with pytest.raises(ShapeError, match=r"\(3, 3\).*got \(3, 4\)"):
        self_attention(WEIGHTS, TARGET)
    for step in (-1, 3):
        with pytest.raises(ConfigError, match=f"no step {step}: the output has 3 steps"):
            encoder_decoder(WEIGHTS, SOURCE, TARGET, step)
    with pytest.raises(ConfigError, match="no position 3: the sequence has 3 tokens"):
        self_attention(np.eye(3), TARGET, 3)
    with pytest.raises(DataError, match="nothing to draw"):
        encoder_decoder(None, [], TARGET)


def panels(chart):
    return [g for g in elements(chart, "svg")[0] if g.tag == f"{SVG}g"]


def test_the_three_steps_are_scores_weights_and_context():
    chart = attention_steps(explain([1, 2], [[1, 0], [0, 1], [1, 1]]))
    printed = texts(chart)
    assert [text for text in printed if text in ("1.00", "2.00", "3.00")] == [
        "1.00",
        "2.00",
        "3.00",
    ]
    for text in ("0.090", "0.245", "0.665", "the weights sum to 1.00"):
        assert text in printed
    assert "c = (0.76, 0.91), inside their hull" in printed
    assert printed.count("h1") == 3
    assert len(panels(chart)) == 3
    assert json.loads(chart.to_json())["context"] == pytest.approx([0.7553, 0.9100], abs=1e-4)


def test_explicit_weights_have_no_panel_of_scores():
    chart = attention_steps(
        explain(None, np.eye(4), weights=[0.4, 0.3, 0.2, 0.2], labels=["a"] * 4)
    )
    assert len(panels(chart)) == 2
    printed = texts(chart)
    assert "the weights sum to 1.10" in printed
    assert not any("score" in text or "hull" in text for text in printed)
    assert printed.count("a") == 4
    assert [text for text in printed if text in ("0.40", "0.30", "0.20")] == [
        "0.40",
        "0.30",
    ] + 2 * ["0.20"]


def test_a_context_of_negative_weights_is_not_reported_inside_the_hull():
    chart = attention_steps(explain(None, np.eye(2), weights=[-0.5, 1.5]))
    assert "c = (−0.50, 1.50)" in texts(chart)


@settings(max_examples=8, deadline=None)
@given(TOKENS, st.integers(1, 4), st.integers(0, 9))
def test_any_labels_make_complete_panels(labels, width, seed):
    states = np.random.default_rng(seed).normal(size=(len(labels), width))
    chart = attention_steps(explain(states[0], states, labels=labels), title=labels[0])
    bars = [rect for rect in elements(chart, "rect") if tooltip(rect)]
    assert len(panels(chart)) == 3
    assert len(bars) == 2 * len(labels) + (width if width != 2 else 0)
    assert chart.to_html().count("</script>") == 0


@given(
    st.lists(st.tuples(st.integers(-5, 5), st.integers(-5, 5)), min_size=1, max_size=9),
    st.integers(0, 99),
)
def test_the_hull_is_convex_and_contains_every_weighted_average(points, seed):
    states = np.array(points, float)
    corners = convex_hull(states)
    assert set(corners) <= {(float(x), float(y)) for x, y in points}
    if len(corners) < 3:
        return
    context = np.random.default_rng(seed).dirichlet(np.ones(len(points))) @ states
    for start, end in zip(corners, [*corners[1:], corners[0]], strict=True):
        edge = np.subtract(end, start)
        for point in (*points, context):
            offset = np.subtract(point, start)
            assert edge[0] * offset[1] - edge[1] * offset[0] > -1e-9


def test_a_single_state_is_a_point():
    assert convex_hull(np.array([[1.0, 2.0], [1.0, 2.0]])) == [(1.0, 2.0)]
    x, y = free_direction(np.array([[1.0, 0.0]]))
    assert math.hypot(x + 1, y) < 1e-9
    ET.fromstring(attention_steps(explain([1, 2], [[1, 2]])).to_svg())


@pytest.mark.parametrize("count", [9, 16, 20, 40])
def test_numbers_and_labels_of_many_states_do_not_overlap(count):
    states = np.random.default_rng(count).normal(size=(count, 1))
    labels = [f"token {i:02}" for i in range(count)]
    chart = attention_steps(explain(states[0], states, labels=labels))
    for panel in panels(chart)[:2]:
        written = {
            "".join(t.itertext()): numbers(t, "x", "font-size") for t in panel.iter(f"{SVG}text")
        }
        slanted = [written[label] for label in labels]
        assert all(0.71 * (b - a) >= 0.94 * size for (a, size), (b, _) in pairwise(slanted))
        printed = sorted(
            (*numbers(text, "x"), text_width("".join(text.itertext()), *numbers(text, "font-size")))
            for text in panel.iter(f"{SVG}text")
            if re.fullmatch(r"−?\d\.\d\d", "".join(text.itertext()))
        )
        assert len(printed) == (count if count <= 20 else 1)
        assert all(b - a >= (left + right) / 2 for (a, left), (b, right) in pairwise(printed))


def test_numbers_of_many_components_do_not_overlap():
    panel = panels(attention_steps(explain(np.ones(512), np.eye(3, 512))))[2]
    written = [t for t in panel.iter(f"{SVG}text") if "".join(t.itertext()).isdigit()]
    labels = [numbers(t, "x", "font-size") for t in written]
    assert 20 <= len(labels) <= 40
    assert all(0.71 * (b - a) >= 0.75 * size for (a, size), (b, _) in pairwise(labels))


def test_uniform_weights_of_many_tokens_are_drawn():
    chart = self_attention(np.full((250, 250), 1 / 250), ["w"] * 250)
    assert chart.to_svg().count("<line") >= 250 * 250
