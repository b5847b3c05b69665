"""Heatmaps: labels, colours, formats, interactive selection and fonts."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
import vl_convert
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from regard.charts import MissingGlyphWarning, heatmap, terminal_heatmap
from regard.charts.base import INK
from regard.charts.fonts import missing_glyphs
from regard.errors import ConfigError, DataError, ShapeError

SOURCE = ["el", "gato", "negro", "no", "duerme"]
TARGET = ["the", "black", "cat", "sleeps"]
WEIGHTS = np.array(
    [
        [0.90, 0.10, 0.00, 0.00, 0.00],
        [0.02, 0.30, 0.68, 0.00, 0.00],
        [0.00, 0.60, 0.40, 0.00, 0.00],
        [0.00, 0.00, 0.00, 0.20, 0.80],
    ]
)
UNASSIGNED = "\u0378"  # an unassigned code point, which no font contains
SVG = "{http://www.w3.org/2000/svg}"


def uniform_weights(source, target):
    return np.full((len(target), len(source)), 1 / max(1, len(source)))


def to_svg_tree(chart):
    return ET.fromstring(chart.to_svg())


def cells(svg):
    return [e for e in svg.iter(f"{SVG}path") if e.get("aria-roledescription") == "rect mark"]


def axis_labels(svg):
    """Return the labels of both axes in drawing order: source, then target."""
    groups = [g for g in svg.iter(f"{SVG}g") if "role-axis-label" in g.get("class", "")]
    return [["".join(t.itertext()) for t in group.iter(f"{SVG}text")] for group in groups]


class ParsedPage(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts, self.title, self.open = [], [], "", ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.open = tag

    def handle_endtag(self, tag):
        self.open = ""

    def handle_data(self, data):
        if self.open == "script":
            self.scripts.append(data)
        if self.open == "title":
            self.title += data

    @property
    def spec(self):
        call = self.scripts[-1]
        return json.JSONDecoder().raw_decode(call, call.index("{"))[0]


def values(spec, name):
    return next(p["value"] for p in spec["params"] if p["name"] == name)


def test_every_weight_has_a_cell_that_is_darker_for_larger_weights():
    svg = to_svg_tree(heatmap(WEIGHTS, SOURCE, TARGET))
    colours = {cell.get("aria-label"): cell.get("fill") for cell in cells(svg)}
    assert len(colours) == WEIGHTS.size
    light = sum(int(n) for n in colours["the attends to no: 0.000"][4:-1].split(","))
    dark = sum(int(n) for n in colours["the attends to el: 0.900"][4:-1].split(","))
    assert dark < light / 2


def test_columns_are_labelled_with_the_source_and_rows_with_the_target():
    assert axis_labels(to_svg_tree(heatmap(WEIGHTS, SOURCE, TARGET))) == [SOURCE, TARGET]


def test_the_same_weight_has_the_same_colour_in_every_heatmap():
    charts = [heatmap(np.array([[0.2, weight]]), ["a", "b"], ["c"]) for weight in (0.8, 0.0)]
    first, second = (cells(to_svg_tree(chart))[0] for chart in charts)
    assert first.get("fill") == second.get("fill")


def test_repeated_tokens_keep_their_columns_and_rows():
    source, target = ["the", "cat", "the", "the"], ["le", "le"]
    svg = to_svg_tree(heatmap(uniform_weights(source, target), source, target))
    assert len(cells(svg)) == 8
    assert axis_labels(svg) == [source, target]


def test_more_than_ten_columns_stay_in_order():
    source = [f"w{i}" for i in range(23)]
    assert (
        axis_labels(to_svg_tree(heatmap(uniform_weights(source, ["x"]), source, ["x"])))[0]
        == source
    )


def test_long_labels_are_truncated_on_the_axis_only():
    word = "Donaudampfschifffahrtsgesellschaftskapitän"
    svg = to_svg_tree(heatmap(np.ones((1, 1)), [word], ["x"]))
    label = axis_labels(svg)[0][0]
    assert label.endswith("…")
    assert word.startswith(label[:-1])
    assert word in cells(svg)[0].get("aria-label")


def test_all_labels_are_drawn_at_two_hundred_tokens():
    source, target = [f"s{i}" for i in range(200)], ["x", "y"]
    assert axis_labels(to_svg_tree(heatmap(uniform_weights(source, target), source, target))) == [
        source,
        target,
    ]


def test_blank_tokens_have_a_visible_label():
    assert axis_labels(to_svg_tree(heatmap(np.eye(2), ["a", " "], ["\u00a0", ""]))) == [
        ["a", "␣"],
        ["␣", "␣"],
    ]


@given(st.lists(st.text(max_size=6), min_size=1, max_size=4), st.text(max_size=6))
def test_any_token_gives_a_complete_image_and_page(tokens, title):
    chart = heatmap(uniform_weights(tokens, ["x"]), tokens, ["x"], title=title)
    svg = chart.to_svg()
    assert len(cells(ET.fromstring(svg))) == len(tokens)
    assert not any(map(str.isascii, missing_glyphs(svg)))
    assert len(values(ParsedPage(chart.to_html()).spec, "source_tokens")) == len(tokens)
    assert json.loads(chart.to_json())["source_tokens"] == tokens


def test_html_loads_no_external_resources():
    page = ParsedPage(heatmap(WEIGHTS, SOURCE, TARGET, title="t").to_html())
    assert {tag for tag, _ in page.tags} == {
        "html", "head", "meta", "title", "style", "script", "body", "div",
    }  # fmt: skip
    assert not [attrs for _, attrs in page.tags if "src" in attrs or "href" in attrs]
    assert len(page.scripts) == 2
    assert "window.vegaEmbed" in page.scripts[0]
    assert values(page.spec, "source_tokens") == SOURCE


def test_the_menu_of_html_offers_only_exports():
    call = ParsedPage(heatmap(WEIGHTS, SOURCE, TARGET).to_html()).scripts[-1]
    spec_end = json.JSONDecoder().raw_decode(call, call.index("{"))[1]
    options = json.JSONDecoder().raw_decode(call, call.index("{", spec_end))[0]
    assert options["actions"] == {
        "export": True,
        "source": False,
        "compiled": False,
        "editor": False,
    }


@pytest.mark.parametrize("token", ["</script><script>alert(1)</script>", "<img onerror=x>", "<!--"])
def test_tokens_and_title_are_escaped(token):
    chart = heatmap(np.ones((1, 1)), [token], [token], title=f"</title>{token}")
    page = ParsedPage(chart.to_html())
    assert len(page.scripts) == 2
    assert "img" not in dict(page.tags)
    assert page.title == f"</title>{token}"
    assert values(page.spec, "source_tokens") == [token]
    assert token not in chart.to_html()
    assert cells(to_svg_tree(chart))[0].get("aria-label") == f"{token} attends to {token}: 1.000"


def test_json_contains_tokens_and_weights():
    text = heatmap(np.array([[1 / 3, 2 / 3]], np.float32), ["你", "b"], ["é"], title="t").to_json()
    assert "你" in text
    assert json.loads(text) == {
        "source_tokens": ["你", "b"],
        "target_tokens": ["é"],
        "attention": [[0.333333, 0.666667]],
    }


def test_attributions_are_not_called_attention():
    chart = heatmap([[0.25, 0.75]], ["a", "b"], ["c"], method="integrated gradients")
    content = json.loads(chart.to_json())
    assert content["method"] == "integrated gradients"
    assert content["weights"] == [[0.25, 0.75]]
    assert "attention" not in content
    texts = " ".join("".join(text.itertext()) for text in to_svg_tree(chart).iter())
    assert "the larger the attribution (integrated gradients), without its sign" in texts


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("a.html", b"<!DOCTYPE"),
        ("a.PNG", b"\x89PNG"),
        ("a.svg", b"<svg"),
        ("a.pdf", b"%PDF"),
        ("a.json", b"{"),
    ],
)
def test_save_selects_the_format_by_the_suffix(tmp_path, name, start):
    path = tmp_path / "new" / name
    heatmap(WEIGHTS, SOURCE, TARGET).save(path)
    assert path.read_bytes().startswith(start)
    assert [p.name for p in path.parent.iterdir()] == [name]


@pytest.mark.parametrize("name", ["a.gif", "a"])
def test_save_rejects_other_suffixes(tmp_path, name):
    with pytest.raises(ConfigError, match=r"\.html, \.png, \.svg, \.pdf or \.json.*" + name):
        heatmap(WEIGHTS, SOURCE, TARGET).save(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_lone_surrogates_are_saved_as_escapes(tmp_path):
    source = ["\ud800", *SOURCE[1:]]
    heatmap(WEIGHTS, source, TARGET).save(tmp_path / "a.json")
    content = json.loads((tmp_path / "a.json").read_text("utf-8"))
    assert source in content.values()


def test_png_has_two_pixels_per_unit():
    chart = heatmap(WEIGHTS, SOURCE, TARGET)
    width = int.from_bytes(chart.to_png()[16:20], "big")
    assert abs(width - 2 * float(to_svg_tree(chart).get("width"))) <= 2


def test_a_notebook_displays_the_image_and_the_interactive_chart():
    bundle = heatmap(WEIGHTS, SOURCE, TARGET)._repr_mimebundle_()
    interactive = next(value for mime, value in bundle.items() if "vegalite" in mime)
    assert bundle["image/svg+xml"].startswith("<svg")
    assert values(interactive, "target_tokens") == TARGET


def test_png_warns_of_characters_without_a_font(tmp_path):
    chart = heatmap(np.eye(2), ["a" + UNASSIGNED, "é"], [UNASSIGNED, "b"])
    assert missing_glyphs(chart.to_svg()) == UNASSIGNED
    with pytest.warns(MissingGlyphWarning, match=f"{UNASSIGNED}: .*fonts-noto-cjk.*svg"):
        chart.save(tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")


def test_svg_and_html_do_not_warn_of_missing_glyphs(tmp_path):
    chart = heatmap(np.ones((1, 1)), [UNASSIGNED], ["b"])
    chart.save(tmp_path / "a.svg")
    chart.save(tmp_path / "a.html")


@pytest.mark.parametrize(
    ("fonts", "missing"), [("", "字é中文"), ("é", "字中文"), ("中文字", "é"), ("中é文字", "")]
)
def test_missing_glyphs_depend_on_the_fonts(fonts, missing):
    chart = heatmap(np.ones((1, 3)), ["a中", "é", "文中"], ["b"], title="字 é")
    render = {c: c.encode() for c in fonts}
    assert missing_glyphs(chart.to_svg(), lambda c: render.get(c, b"box")) == missing


def test_a_long_list_of_missing_characters_is_truncated():
    missing = "".join(chr(0x10F000 + i) for i in range(26))  # private use: no font contains them
    with pytest.warns(MissingGlyphWarning, match=f"draw {missing[:20]} and 6 more: "):
        heatmap(np.eye(2), [missing[:6], missing[6:13]], [missing[13:20], missing[20:]]).to_png()


def test_the_font_of_the_renderer_covers_latin_greek_and_cyrillic():
    assert missing_glyphs(heatmap(np.ones((1, 1)), ["aéñßж"], ["λ"]).to_svg()) == ""


@pytest.mark.parametrize("draw", [heatmap, terminal_heatmap])
def test_errors_report_the_invalid_value(draw):
    with pytest.raises(ShapeError, match=r"\(4, 5\).*got \(5, 4\)"):
        draw(WEIGHTS.T, SOURCE, TARGET)
    with pytest.raises(DataError, match="nothing to draw: 0 target"):
        draw(np.zeros((0, 5)), SOURCE, [])
    with pytest.raises(DataError, match="nothing to draw: 4 target tokens and 0 source"):
        draw(np.zeros((4, 0)), [], TARGET)
    with pytest.raises(DataError, match="got nan in row 0, column 1"):
        draw(np.array([[1, np.nan]]), ["a", "b"], ["c"])
    with pytest.raises(ShapeError, match="expected weights as numbers in rows of the same length"):
        draw([[1], [1, 2]], ["a", "b"], ["c", "d"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_of_a_layer_are_drawn(dtype):
    weights = torch.tensor([[0.25, 0.75]], dtype=dtype, requires_grad=True)
    heads = weights[:, None, None]
    chart = heatmap(weights, ["a", "b"], ["c"], heads=heads)
    np.testing.assert_array_equal(chart.weights, [[0.25, 0.75]])
    np.testing.assert_array_equal(chart.heads, [[[[0.25, 0.75]]]])


def test_the_terminal_heatmap_shades_cells_by_weight():
    assert terminal_heatmap(WEIGHTS, SOURCE, TARGET, width=80).plain.splitlines() == [
        "       el     gato   negro  no     duerme",
        "   the ██████ ░░░░░░                     ",
        " black        ▒▒▒▒▒▒ ▓▓▓▓▓▓              ",
        "   cat        ▓▓▓▓▓▓ ▒▒▒▒▒▒              ",
        "sleeps                      ░░░░░░ ██████",
        "",
        "weight  ░ 0.05  ▒ 0.25  ▓ 0.5  █ 0.75 and more",
    ]


def test_the_terminal_heatmap_is_readable_without_colour():
    console = Console(width=80, force_terminal=False)
    with console.capture() as capture:
        console.print(terminal_heatmap(WEIGHTS, SOURCE, TARGET, width=80))
    assert "\x1b" not in capture.get()
    assert "██████ ░░░░░░" in capture.get()


@given(
    st.lists(st.sampled_from(["a", "gato", "日本語", " ", "x" * 30, "e\u0301"]), min_size=1),
    st.integers(min_value=48, max_value=120),
)
def test_the_terminal_heatmap_fits_the_width_and_shows_every_column(source, width):
    target = ["日本", "the"]
    text = terminal_heatmap(np.ones((2, len(source))), source, target, width=width).plain
    blocks = text.split("\n\n")[:-1]
    runs = 0
    for lines in map(str.splitlines, blocks):
        assert len(lines) == 3
        assert len({cell_len(line) for line in lines}) == 1
        assert cell_len(lines[0]) <= width
        runs += len(lines[2].split()) - 1
    assert runs == len(source)


def test_the_page_has_a_slider_over_the_steps_and_images_have_none():
    chart = heatmap(WEIGHTS, SOURCE, TARGET)
    spec = ParsedPage(chart.to_html()).spec
    slider = next(p for p in spec["params"] if p["name"] == "step")
    assert slider["bind"] == {
        "input": "range",
        "min": 0,
        "max": 3,
        "step": 1,
        "name": "output step ",
    }
    assert not [p for p in spec["params"] if p["name"] in ("layer", "head")]
    assert not [p for p in chart.to_altair().to_dict()["params"] if "bind" in p]
    assert not [e for e in to_svg_tree(chart).iter() if e.get("aria-roledescription") == "bar"]


def select(chart, step=0, **choice):
    """Return the labels of the cells, the bars and the caption after a selection."""
    spec = chart.to_interactive().to_dict()
    for param in spec["params"]:
        if param["name"] == "step":
            param["value"] = [{"row": step}]
        param["value"] = choice.get(param["name"], param.get("value"))
    svg = ET.fromstring(vl_convert.vegalite_to_svg(spec))
    bars = [e.get("aria-label") for e in svg.iter() if e.get("aria-roledescription") == "bar"]
    texts = ["".join(e.itertext()) for e in svg.iter(f"{SVG}text")]
    return (
        [cell.get("aria-label") for cell in cells(svg)],
        [float(bar.rsplit(": ")[-1].replace("−", "-")) for bar in bars],
        next(text for text in texts if "the weights sum" in text),
    )


@pytest.mark.parametrize("step", range(len(TARGET)))
def test_bars_show_the_weights_of_the_selected_step(step):
    cells_, bars, caption = select(heatmap(WEIGHTS, SOURCE, TARGET), step)
    assert len(cells_) == WEIGHTS.size
    assert bars == WEIGHTS[step].tolist()
    assert caption == f"step {step}, “{TARGET[step]}”: the weights sum to 1.00"


def test_the_selected_row_has_a_frame():
    spec = heatmap(WEIGHTS, SOURCE, TARGET).to_interactive().to_dict()
    svg = ET.fromstring(vl_convert.vegalite_to_svg(spec))
    frames = [e for e in svg.iter(f"{SVG}path") if e.get("stroke") == INK]
    assert len(frames) == 1
    assert frames[0].get("fill") in (None, "none", "transparent")


def test_layers_and_heads_can_be_selected():
    heads = np.random.default_rng(1).dirichlet(np.ones(5), (4, 3, 2))
    chart = heatmap(WEIGHTS, SOURCE, TARGET, heads=heads)
    bindings = {
        p["name"]: p["bind"] for p in chart.to_interactive().to_dict()["params"] if "bind" in p
    }
    assert bindings["layer"]["options"] == ["default", "0", "1", "2"]
    assert bindings["head"]["options"] == ["average", "0", "1"]
    for choice, expected in [
        ({}, WEIGHTS),
        ({"head": "1"}, WEIGHTS),
        ({"layer": "2"}, heads[:, 2].mean(1)),
        ({"layer": "0", "head": "1"}, heads[:, 0, 1]),
    ]:
        labels, bars, caption = select(chart, 2, **choice)
        np.testing.assert_allclose(bars, expected[2], atol=0.00056)
        assert len(labels) == WEIGHTS.size
        assert caption.endswith("sum to 1.00")
    assert len(cells(to_svg_tree(chart))) == WEIGHTS.size


def test_layers_with_one_head_have_no_head_selection():
    chart = heatmap(WEIGHTS, SOURCE, TARGET, heads=np.repeat(WEIGHTS[:, None, None], 2, axis=1))
    bindings = [p["name"] for p in chart.to_interactive().to_dict()["params"] if "bind" in p]
    assert sorted(bindings) == ["layer", "step"]
    assert select(chart, 1, layer="1")[1] == WEIGHTS[1].tolist()


def test_a_single_head_is_not_stored_twice():
    with_head = (
        heatmap(WEIGHTS, SOURCE, TARGET, heads=WEIGHTS[:, None, None]).to_interactive().to_dict()
    )
    assert with_head == heatmap(WEIGHTS, SOURCE, TARGET).to_interactive().to_dict()


def test_arrays_may_be_changed_after_a_heatmap_is_made():
    weights, heads = WEIGHTS.copy(), WEIGHTS[:, None, None].copy()
    chart = heatmap(weights, SOURCE, TARGET, heads=heads)
    page = chart.to_html()
    weights.fill(0)
    heads.fill(0)
    assert chart.to_html() == page


def test_all_heads_of_a_large_model_stay_small():
    heads = np.full((40, 6, 8, 40), 1 / 40, np.float32)
    tokens = [f"w{i}" for i in range(40)]
    chart = heatmap(heads[:, 0, 0], tokens, tokens, heads=heads)
    assert len(json.dumps(chart.to_interactive().to_dict())) < 1_000_000


def test_the_caption_reports_sums_other_than_1():
    weights = np.array([[1.5, -0.5, 1.0]])
    _, bars, caption = select(heatmap(weights, ["a", "b", "c"], ["x"]))
    assert bars == [1.5, -0.5, 1.0]
    assert caption.endswith("sum to 2.00")


@pytest.mark.parametrize("token", ["</script>", "'+x+'", "a' + datum.row", "\\", "👩‍👩‍👧", "سلام"])
def test_any_token_has_a_bar(token):
    _, bars, caption = select(heatmap(np.array([[0.25, 0.75]]), [token, token], [token]))
    assert bars == [0.25, 0.75]
    assert f"“{token}”" in caption


def test_the_shape_of_heads_must_match_the_weights():
    with pytest.raises(ShapeError, match=r"\(4, layers, heads, 5\), got \(5, 1, 1, 4\)"):
        heatmap(WEIGHTS, SOURCE, TARGET, heads=WEIGHTS.T[:, None, None])
    with pytest.raises(DataError, match="all heads must be finite"):
        heatmap(WEIGHTS, SOURCE, TARGET, heads=np.full((4, 1, 1, 5), np.nan))


def test_importing_charts_does_not_import_the_renderers():
    code = "import sys, regard.charts; print({'altair', 'vl_convert'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"
