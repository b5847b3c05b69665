"""Line charts: names at the ends of the lines, lines that would coincide, formats."""

import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.charts import LineChart, Point

SVG = "{http://www.w3.org/2000/svg}"


def chart(values, **options):
    """Return a chart of a line per list of values."""
    points = [
        Point(f"line {n}", float(x), float(y), f"{y}")
        for n, line in enumerate(values)
        for x, y in enumerate(line)
    ]
    return LineChart(points, "x", "y", **options)


def records(line_chart, layer):
    spec = line_chart.to_altair().to_dict()
    return spec["datasets"][spec["layer"][layer]["data"]["name"]]


def drawn_points(line_chart):
    """Return the drawn points of each line as (x, y)."""
    by_series = {}
    for row in records(line_chart, 1):
        by_series.setdefault(row["series"], []).append((row["x"], row["drawn"]))
    return by_series


def labels(line_chart):
    """Return text and height of the labels at the ends of the lines."""
    return {row["label"]: row["label_y"] for row in records(line_chart, 3)}


def svg_texts(line_chart):
    return ["".join(t.itertext()) for t in ET.fromstring(line_chart.to_svg()).iter(f"{SVG}text")]


def test_every_line_is_named_at_its_end_with_its_note():
    texts = svg_texts(chart([[1, 2], [3, 4]], notes={"line 1": "12 parameters"}))
    assert "line 0" in texts
    assert "line 1 (12 parameters)" in texts


@given(st.lists(st.floats(0, 100), min_size=1, max_size=12))
def test_names_do_not_overlap_and_are_in_the_order_of_the_ends(ends):
    line_chart = chart([[end] for end in ends], y_domain=(0.0, 100.0))
    heights = labels(line_chart)
    assert list(heights) == [f"line {n}" for n in range(len(ends))]
    pixels = sorted(3 * height for height in heights.values())
    assert all(above - below > 16.9 for below, above in pairwise(pixels))
    assert -1e-6 <= pixels[0] <= pixels[-1] <= 300 + 1e-6
    by_height = sorted(heights, key=heights.__getitem__)
    values = [ends[int(name.removeprefix("line "))] for name in by_height]
    assert values == sorted(values)


def test_equal_lines_are_drawn_side_by_side_and_the_data_are_unchanged():
    line_chart = chart([[100, 100, 50], [100, 100, 50], [100, 80, 50]], y_domain=(0.0, 100.0))
    drawn = drawn_points(line_chart)
    assert [y for _, y in drawn["line 0"]] == pytest.approx([101, 100.5, 51])
    assert [y for _, y in drawn["line 1"]] == pytest.approx([100, 99.5, 50])
    assert [y for _, y in drawn["line 2"]] == pytest.approx([99, 80, 49])
    assert {point.y for point in line_chart.points} == {100, 80, 50}
    assert "Lines that would coincide are drawn side by side." in svg_texts(line_chart)


def test_lines_apart_are_drawn_where_they_are():
    line_chart = chart([[1.0, 2.0], [3.0, 4.0]], explanation="why")
    assert drawn_points(line_chart) == {"line 0": [(0, 1), (1, 2)], "line 1": [(0, 3), (1, 4)]}
    assert not any("side by side" in text for text in svg_texts(line_chart))


@given(st.lists(st.floats(0, 100), min_size=2, max_size=9))
def test_points_of_one_length_are_apart_and_in_order(values):
    drawn = drawn_points(chart([[value] for value in values], y_domain=(0.0, 100.0)))
    heights = [drawn[f"line {n}"][0][1] for n in range(len(values))]
    ordered = sorted(range(len(values)), key=lambda n: (values[n], -n))
    pixels = [3 * heights[n] for n in ordered]
    assert all(above - below > 2.99 for below, above in pairwise(pixels))


@pytest.mark.parametrize("values", [[[0.0, 0.0]], [[-3.0, 5.0]], [[1e-9, 2e-9]], [[7.0]]])
def test_any_range_of_values_has_limits_around_it(values):
    low, high = chart(values).to_altair().to_dict()["layer"][0]["encoding"]["y"]["scale"]["domain"]
    assert low <= min(0, *values[0], 0)
    assert max(0, *values[0], 0) <= high
    assert low < high


def test_more_lines_than_colours_differ_in_dashes():
    encoding = chart([[n] for n in range(11)]).to_altair().to_dict()["layer"][0]["encoding"]
    styles = zip(
        encoding["color"]["scale"]["range"],
        map(tuple, encoding["strokeDash"]["scale"]["range"]),
        strict=True,
    )
    assert len(set(styles)) == 11


def test_the_subtitle_explains_the_connectors_of_lines_that_end_early():
    note = "Dots lead from the end of a line to its name."
    assert note in svg_texts(chart([[1, 2, 3], [2, 4]]))
    assert note not in svg_texts(chart([[1, 2], [2, 4]]))


def test_a_chart_without_points_is_drawn():
    assert LineChart([], "x", "y").to_svg().startswith("<svg")


@pytest.mark.parametrize("value", [5e-324, 1e-308, 1e300])
def test_values_of_any_size_are_drawn(value):
    assert "<svg" in chart([[value, 0.0]]).to_svg()
