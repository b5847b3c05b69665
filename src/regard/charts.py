"""Heat maps of attention: arrays and labels in; a page, a picture, data or terminal text out.

Altair describes the map and vl-convert draws it, both without network or browser; they are imported
only when a map is drawn.
"""

import functools
import html
import json
import unicodedata
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import rich
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from regard.errors import ConfigError, DataError, ShapeError
from regard.files import written_whole

# One hue, ever darker (ColorBrewer "Blues"): still in order for colour-blind eyes and in grey print.
_BLUES = [
    "#f7fbff", "#deebf7", "#c6dbef", "#9ecae1", "#6baed6", "#4292c6", "#2171b5", "#08519c", "#08306b",
]  # fmt: skip
_INK, _GREY = "#1f2933", "#616e7c"
_FONT = "sans-serif"
_EXPLANATION = [
    "Each row is one step of the output: the darker a cell,",
    "the more the model looked at that part of the source.",
]
_SHADES = " ░▒▓█"
_SHADE_LIMITS = (0.05, 0.25, 0.5, 0.75)
_KEY = "weight  ░ 0.05  ▒ 0.25  ▓ 0.5  █ 0.75 and more"
_NO_GLYPH = "\U0010fffd"  # for private use, and the last of its kind: no font draws it

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>body {{ margin: 24px; background: white; overflow-x: auto }}</style>
<script>{library}</script>
</head>
<body>
<div id="chart"></div>
<script>
vegaEmbed("#chart", {spec}, {options}).catch(console.error);
</script>
</body>
</html>
"""
# The menu saves pictures; its other entries would send the data to a website.
_MENU = {"export": True, "source": False, "compiled": False, "editor": False}
_OPTIONS = {"actions": _MENU, "renderer": "svg", "downloadFileName": "attention"}


class MissingGlyphWarning(UserWarning):
    """A picture shows boxes in place of characters that no installed font can draw."""


@dataclass(frozen=True, eq=False)
class Chart:
    """A heat map of attention weights; `save` writes it, a notebook shows it by itself.

    Attributes:
        weights: (L, T), one row per output symbol, one column per source symbol.
        source_tokens: the T symbols the model read.
        target_tokens: the L symbols it wrote.
        title: a line above the map, or "".
    """

    weights: np.ndarray
    source_tokens: Sequence[str]
    target_tokens: Sequence[str]
    title: str = ""

    def save(self, path: str | Path) -> None:
        """Write the map to `path`, whole or not at all, in the format its suffix names.

        `.html` is one page that works offline, with the weight of each cell under the pointer;
        `.svg` and `.png` are pictures; `.json` holds tokens and weights.

        Raises:
            ConfigError: the suffix is none of these four.
            DataError: the place cannot be written.
        """
        writers = {".html": self.to_html, ".png": self.to_png, ".svg": self.to_svg}
        writers[".json"] = self.to_json
        suffix = Path(path).suffix.lower()
        if suffix not in writers:
            raise ConfigError(
                f"a chart is saved as .html, .png, .svg or .json, got {str(path)!r}; "
                "give the file one of these suffixes"
            )
        content = writers[suffix]()
        with written_whole(path) as temporary:
            temporary.write_bytes(content.encode() if isinstance(content, str) else content)

    def to_html(self) -> str:
        """The map as one page that loads nothing: script, data and all are inside."""
        return _PAGE.format(
            title=html.escape(_shown(self.title) or "Attention"),
            library=_vega_embed(),
            spec=_script_json(self.to_altair().to_dict()),
            options=_script_json(_OPTIONS),
        )

    def to_svg(self) -> str:
        """The map as SVG; its letters are drawn with the fonts of whoever opens it."""
        import vl_convert

        return vl_convert.vegalite_to_svg(self.to_altair().to_dict())

    def to_png(self) -> bytes:
        """The map as PNG, two pixels to a unit.

        Warns:
            MissingGlyphWarning: no font of this computer can draw some characters.
        """
        import vl_convert

        if missing := self.missing_glyphs:
            warnings.warn(
                f"no installed font can draw {_first(missing, 20)}: the picture shows boxes instead; install "
                "a font that has them (for instance fonts-noto-cjk), or save as .svg or .html, "
                "which use the reader's fonts",
                MissingGlyphWarning,
                stacklevel=2,
            )
        return vl_convert.vegalite_to_png(self.to_altair().to_dict(), scale=2)

    def to_json(self) -> str:
        """The data of the map: source_tokens, target_tokens, attention (rounded to 6 digits)."""
        content = {
            "source_tokens": list(self.source_tokens),
            "target_tokens": list(self.target_tokens),
            "attention": self.weights.astype(float).round(6).tolist(),
        }
        return json.dumps(content, ensure_ascii=False) + "\n"

    def to_altair(self) -> Any:
        """The map as an `altair.Chart`, for changes of your own."""
        import altair as alt

        source, target = _labels(self.source_tokens), _labels(self.target_tokens)
        size = _Size.of(source, target)
        # Cells are keyed by position: a token as key would merge the columns of equal tokens.
        return (
            alt.Chart(
                alt.InlineData(values=_rows(self.weights)),
                title=alt.TitleParams(**_title(self.title)),
                width=size.width,
                height=size.height,
                config=_style(size),
            )
            .transform_flatten(["weight"])
            .transform_window(number="row_number()", groupby=["row"])
            .transform_calculate(
                column="datum.number - 1",
                source="source_tokens[datum.number - 1]",
                output="target_tokens[datum.row]",
            )
            .transform_calculate(
                spoken="datum.output + ' looks at ' + datum.source + ': ' + format(datum.weight, '.3f')"
            )
            .mark_rect(stroke="white", strokeWidth=size.gap)
            .encode(**_encoding(size))
            .add_params(
                alt.param(name="source_tokens", value=source),
                alt.param(name="target_tokens", value=target),
            )
        )

    @functools.cached_property
    def missing_glyphs(self) -> str:
        """The characters of labels and title that no installed font can draw, each once."""
        labels = [*_labels(self.source_tokens), *_labels(self.target_tokens), _shown(self.title)]
        return "".join(c for c in dict.fromkeys("".join(labels)) if not _drawable(c))

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """What a notebook shows: the picture, or the live map where it can draw one by itself."""
        import altair as alt

        version = alt.SCHEMA_VERSION.partition(".")[0]
        return {
            f"application/vnd.vegalite.{version}+json": self.to_altair().to_dict(),
            "image/svg+xml": self.to_svg(),
            "text/plain": repr(self),
        }

    def __repr__(self) -> str:
        return f"Chart({len(self.target_tokens)} output x {len(self.source_tokens)} source symbols)"


def heatmap(
    weights: np.ndarray,
    source_tokens: Sequence[str],
    target_tokens: Sequence[str],
    *,
    title: str = "",
) -> Chart:
    """Draw attention weights as a map: source across, output down, darker for more attention.

    The scale of the colours is always 0 to 1, so that maps can be compared; weights outside it
    (attention that is not normalised) take the colour of its nearer end.

    Args:
        weights: (L, T), one row per output symbol.
        source_tokens: the T symbols the model read.
        target_tokens: the L symbols it wrote.
        title: a line above the map, for instance the sentence.

    Raises:
        ShapeError: the weights are not one row per output and one column per source symbol.
        DataError: there is no row or no column, or a weight is not a finite number.
    """
    weights = _checked(weights, source_tokens, target_tokens)
    return Chart(weights, list(source_tokens), list(target_tokens), title)


def terminal_heatmap(
    weights: np.ndarray,
    source_tokens: Sequence[str],
    target_tokens: Sequence[str],
    *,
    width: int | None = None,
) -> Text:
    """Draw attention weights as a block of text, source across, output down.

    Shades stand for weights, so it reads without colour and on light and dark ground alike. A source
    too long for the width goes on below, with the output repeated.

    Args:
        weights: (L, T), one row per output symbol.
        source_tokens: the T symbols the model read.
        target_tokens: the L symbols it wrote.
        width: columns of the terminal; None: as many as it has.

    Raises:
        ShapeError: the weights are not one row per output and one column per source symbol.
        DataError: there is no row or no column, or a weight is not a finite number.
    """
    weights = _checked(weights, source_tokens, target_tokens)
    source, target = _labels(source_tokens), _labels(target_tokens)
    width = width or rich.get_console().width
    margin = min(max(map(cell_len, target)), max(1, width // 4))
    size = _column_size(source, width - margin)
    columns = max(1, (width - margin) // (size + 1))
    levels = np.digitize(weights, _SHADE_LIMITS)
    text = Text(no_wrap=True, overflow="crop")
    for start in range(0, len(source), columns):
        part = slice(start, start + columns)
        text.append(" " * margin)
        for label in source[part]:
            text.append(" " + _fitted(label, size), style="bold")
        for label, row in zip(target, levels[:, part], strict=True):
            text.append("\n" + _fitted(label, margin, right=True), style="bold")
            text.append("".join(f" {_SHADES[level] * size}" for level in row), style="blue")
        text.append("\n\n")
    return text.append(_KEY, style="dim")


def _checked(
    weights: np.ndarray, source_tokens: Sequence[str], target_tokens: Sequence[str]
) -> np.ndarray:
    weights = np.asarray(weights)
    expected = (len(target_tokens), len(source_tokens))
    if weights.shape != expected:
        raise ShapeError(
            f"weights must be {expected}, one row for each of {expected[0]} target tokens and one "
            f"column for each of {expected[1]} source tokens, got {weights.shape}"
        )
    if not weights.size:
        raise DataError(
            f"nothing to draw: {expected[0]} target tokens and {expected[1]} source tokens; "
            "a chart needs at least one of each"
        )
    if not np.isfinite(weights).all():
        row, column = np.argwhere(~np.isfinite(weights))[0]
        raise DataError(
            f"weights must be finite numbers, got {weights[row, column]} in row {row}, column "
            f"{column} (both from 0)"
        )
    return weights


def _rows(weights: np.ndarray) -> list[dict[str, Any]]:
    """One record per row of the map: a record per cell would repeat its keys L x T times."""
    rounded = weights.astype(float).round(4).tolist()
    return [{"row": row, "weight": values} for row, values in enumerate(rounded)]


def _labels(tokens: Sequence[str]) -> list[str]:
    return [_label(token) for token in tokens]


def _label(token: str) -> str:
    """`token` as it can be shown: only spaces as ␣, control characters as their escapes."""
    if all(unicodedata.category(character) == "Zs" for character in token):
        return "␣" * max(1, len(token))
    return _shown(token)


def _shown(text: str) -> str:
    """`text` with control characters, for which XML and so SVG has no place, as their escapes."""
    return "".join(repr(c)[1:-1] if _is_control(c) else c for c in text)


def _is_control(character: str) -> bool:
    not_a_character = ord(character) & 0xFFFE == 0xFFFE
    return not_a_character or unicodedata.category(character) in ("Cc", "Cs")


@functools.cache
def _vega_embed() -> str:
    """The script that draws the map in a page."""
    import vl_convert

    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")


def _script_json(value: Any) -> str:
    """JSON that cannot end the script it stands in, whatever the tokens say."""
    text = json.dumps(value, ensure_ascii=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _drawable(character: str) -> bool:
    """Whether a picture of `character` differs from a picture of one that no font has.

    The renderer itself is asked, because it alone knows its fonts: those of the system and its own.
    """
    return character.isascii() or _drawing(character) != _drawing(_NO_GLYPH)


@functools.cache
def _drawing(character: str) -> bytes:
    import vl_convert

    return vl_convert.svg_to_png(
        '<svg xmlns="http://www.w3.org/2000/svg" width="32" height="32">'
        f'<text x="8" y="24" font-size="16" font-family="{_FONT}">{character}</text></svg>'
    )


@dataclass(frozen=True, kw_only=True)
class _Size:
    """Measures of a map, in pixels: cells about square, smaller where there are many."""

    width: float
    height: float
    font: float
    gap: float
    label_angle: int
    legend_length: float
    title_limit: float

    @classmethod
    def of(cls, source: Sequence[str], target: Sequence[str]) -> "_Size":
        side = min(44.0, max(11.0, 720 / max(len(source), len(target))))
        font = min(13.0, side - 2)
        longest = max(map(cell_len, source)) * font * 0.6 + 6
        # a cell may be up to twice as wide as high when that lets its label lie flat
        flat = longest <= 2 * side and max(side, longest) * len(source) <= 720
        cell_width = max(side, longest) if flat else side
        height = side * len(target)
        return cls(
            width=cell_width * len(source),
            height=height,
            font=font,
            gap=1.0 if side >= 16 else 0.5,
            label_angle=0 if flat else -45 if side >= 20 else -90,
            legend_length=min(160.0, max(90.0, height)),
            title_limit=max(480.0, cell_width * len(source) + 120),
        )


def _title(title: str) -> dict[str, Any]:
    if not title:
        return {"text": _EXPLANATION, "fontSize": 12, "fontWeight": "normal", "color": _GREY}
    return {"text": _shown(title), "subtitle": _EXPLANATION}


def _encoding(size: _Size) -> dict[str, Any]:
    import altair as alt

    labels: dict[str, Any] = {"labelOverlap": False, "labelLimit": 140}
    source = alt.Axis(
        orient="top", labelExpr="source_tokens[datum.value]", labelAngle=size.label_angle, **labels
    )
    target = alt.Axis(labelExpr="target_tokens[datum.value]", **labels)
    return {
        "x": alt.X("column:O", title="source", axis=source),
        "y": alt.Y("row:O", title="output", axis=target),
        "color": alt.Color("weight:Q", title="weight")
        .scale(domain=[0, 1], range=_BLUES, clamp=True)
        .legend(values=[0, 0.5, 1], gradientLength=size.legend_length),
        "tooltip": ["source:N", "output:N", alt.Tooltip("weight:Q", format=".3f")],
        "description": "spoken:N",
    }


def _first(characters: str, count: int) -> str:
    more = len(characters) - count
    return characters if more <= 0 else f"{characters[:count]} and {more} more"


def _style(size: _Size) -> dict[str, Any]:
    """Vega-Lite's `config`: quiet lines, dark letters, air between the parts."""
    guide = {"titleFontSize": 12, "titleFontWeight": "normal", "titleColor": _GREY}
    title = {"fontSize": 16, "color": _INK, "lineHeight": 16, "limit": size.title_limit}
    subtitle = {"subtitleFontSize": 12, "subtitleColor": _GREY, "subtitleLineHeight": 16}
    axis = {"domain": False, "ticks": False, "labelPadding": 6, "titlePadding": 10}
    gradient = {"gradientThickness": 12, "gradientStrokeColor": "#d5dbe1"}
    return {
        "background": "white",
        "font": _FONT,
        "padding": 16,
        "view": {"stroke": None},
        "title": {"anchor": "start", "offset": 14, **title, **subtitle, "subtitlePadding": 6},
        "axis": {**guide, **axis, "labelColor": _INK, "labelFontSize": size.font},
        "legend": {**guide, **gradient, "labelColor": _INK, "labelFontSize": 11, "offset": 18},
    }


def _column_size(labels: Sequence[str], room: int) -> int:
    """Terminal cells for each column: the longest label if all fit side by side, else fewer."""
    longest = min(12, max(2, *map(cell_len, labels)))
    return max(1, min(longest, room - 1, max(4, room // len(labels) - 1)))


def _fitted(label: str, size: int, right: bool = False) -> str:
    """`label` in exactly `size` terminal cells, cut with an ellipsis or filled with spaces."""
    if cell_len(label) > size:
        return set_cell_size(set_cell_size(label, size - 1).rstrip() + "…", size)
    filling = " " * (size - cell_len(label))
    return filling + label if right else label + filling
