"""Text in charts: titles in several lines, fonts of CJK characters, PDF."""

import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from regard.charts import MissingGlyphWarning, heatmap
from regard.charts.fonts import with_cjk_fonts

SOURCE, TARGET = ["te", "quiero"], ["I", "love", "you"]
WEIGHTS = np.array([[0.5, 0.5], [0.1, 0.9], [0.8, 0.2]])
UNASSIGNED = "\u0378"  # an unassigned code point, which no font contains
SVG = "{http://www.w3.org/2000/svg}"


def to_svg_tree(chart):
    return ET.fromstring(chart.to_svg())


def fonts(svg):
    """Return the font of each text."""
    return {"".join(t.itertext()): t.get("font-family") for t in svg.iter(f"{SVG}text")}


def title(svg):
    group = next(g for g in svg.iter(f"{SVG}g") if "role-title-text" in g.get("class", ""))
    return ["".join(line.itertext()) for line in group.iter(f"{SVG}tspan")] or [
        "".join(group.itertext())
    ]


def test_a_long_title_keeps_source_and_translation():
    source, target = " ".join(["quiero"] * 20), " ".join(["machine"] * 14)
    lines = title(to_svg_tree(heatmap(WEIGHTS, SOURCE, TARGET, title=f"{source} → {target}")))
    assert " ".join(lines) == f"{source} → {target}"
    assert [line for line in lines if line.startswith("→ machine")]
    assert len(lines) <= 6


@pytest.mark.parametrize(
    ("source", "target"), [("casa", "house"), ("学", "習"), ("x" * 90, "y" * 90)]
)
def test_a_very_long_title_is_shortened_in_the_middle_of_source_and_translation(source, target):
    text = f"first {f'{source} ' * 200}last → begin {f'{target} ' * 200}end"
    lines = title(to_svg_tree(heatmap(WEIGHTS, SOURCE, TARGET, title=text)))
    assert len(lines) == 6
    assert lines[0].startswith("first")
    assert lines[2].endswith("last")
    assert lines[3].startswith("→ begin")
    assert lines[5].endswith("end")
    assert lines[1].endswith(" …")
    assert lines[4].endswith(" …")


def test_the_arrow_between_texts_from_right_to_left_points_to_the_right():
    hebrew, arabic = "שלום", "مرحبا"
    for source, target, mark in ((hebrew, arabic, "\u200e"), (hebrew, "hello", ""), ("a", "b", "")):
        chart = heatmap(WEIGHTS, SOURCE, TARGET, title=f"{source} → {target}")
        assert title(to_svg_tree(chart)) == [f"{source}{mark} → {mark}{target}"]


def test_a_short_title_is_one_line():
    assert title(to_svg_tree(heatmap(WEIGHTS, SOURCE, TARGET, title="a → b"))) == ["a → b"]


@pytest.mark.parametrize(
    ("text", "family"),
    [("我 爱", "Noto Sans CJK SC"), ("私 は", "Noto Sans CJK JP"), ("나는", "Noto Sans CJK KR")],
)
def test_images_name_sans_serif_fonts_for_cjk_text_only(text, family):
    chart = heatmap(WEIGHTS, SOURCE, [text, *TARGET[1:]], title=f"{text} → b")
    svg = ET.fromstring(with_cjk_fonts(chart.to_svg()))
    families = fonts(svg)
    assert families[text].startswith(family)
    assert families[f"{text} → b"].startswith(family)
    assert families[text].endswith("sans-serif")
    assert families["quiero"].startswith("Arial")
    assert list(families) == list(fonts(to_svg_tree(chart)))
    without = heatmap(WEIGHTS, SOURCE, TARGET).to_svg()
    assert with_cjk_fonts(without) == without


def test_pdf_is_a_page_of_the_size_of_the_chart():
    chart = heatmap(WEIGHTS, SOURCE, TARGET, title="te quiero")
    pdf = chart.to_pdf()
    assert pdf.startswith(b"%PDF")
    width, height = map(float, re.search(rb"/MediaBox ?\[0 0 ([\d.]+) ([\d.]+)\]", pdf).groups())
    svg = to_svg_tree(chart)
    assert width / height == pytest.approx(
        float(svg.get("width")) / float(svg.get("height")), rel=0.02
    )


def test_pdf_warns_of_characters_without_a_font():
    with pytest.warns(MissingGlyphWarning, match=UNASSIGNED):
        heatmap(np.ones((1, 1)), [UNASSIGNED], ["b"]).to_pdf()
