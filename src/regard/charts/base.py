"""What every chart can do: be saved as a page, a picture or data, and show itself in a notebook.

Altair describes a chart and vl-convert draws it, both without network or browser; they are imported
only when a chart is drawn.
"""

import functools
import html
import json
import unicodedata
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.errors import ConfigError
from regard.files import atomic_write

INK, GREY = "#1f2933", "#616e7c"
# One hue, ever darker (ColorBrewer "Blues"): still in order for colour-blind eyes and in grey print.
BLUES = [
    "#f7fbff", "#deebf7", "#c6dbef", "#9ecae1", "#6baed6", "#4292c6", "#2171b5", "#08519c", "#08306b",
]  # fmt: skip
FONT = "sans-serif"
_NO_GLYPH = "\U0010fffd"  # for private use, and the last of its kind: no font draws it

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>body {{ margin: 24px; background: white; overflow-x: auto }}
.vega-bindings {{ font: 13px sans-serif; color: #616e7c; padding-left: 16px }}
.vega-bindings input, .vega-bindings select {{ vertical-align: middle; accent-color: #08519c }}
.vega-bindings .vega-bind {{ margin: 6px 0 }}
.vega-bindings input {{ width: 240px }}</style>
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
_OPTIONS = {"actions": _MENU, "renderer": "svg", "downloadFileName": "regard"}


class MissingGlyphWarning(UserWarning):
    """A picture shows boxes in place of characters that no installed font can draw."""


class Chart(ABC):
    """A chart; `save` writes it, a notebook shows it by itself."""

    title: str
    """A line above the chart, or ""."""

    @abstractmethod
    def to_altair(self) -> Any:
        """The chart as an `altair.Chart`, for changes of your own."""

    def to_page(self) -> Any:
        """The chart as its page shows it, with what moves there."""
        return self.to_altair()

    @abstractmethod
    def to_json(self) -> str:
        """The data of the chart."""

    @property
    @abstractmethod
    def labels(self) -> Sequence[str]:
        """All text that a font must draw."""

    def save(self, path: str | Path) -> None:
        """Write the chart to `path`, whole or not at all, in the format its suffix names.

        `.html` is one page that works offline, with the numbers under the pointer;
        `.svg` and `.png` are pictures; `.json` holds the data.

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
        with atomic_write(path) as temporary:
            temporary.write_bytes(content.encode() if isinstance(content, str) else content)

    def to_html(self) -> str:
        """The chart as one page that loads nothing: script, data and all are inside."""
        return _PAGE.format(
            title=html.escape(shown(self.title) or "regard"),
            library=_vega_embed(),
            spec=_script_json(self.to_page().to_dict()),
            options=_script_json(_OPTIONS),
        )

    def to_svg(self) -> str:
        """The chart as SVG; its letters are drawn with the fonts of whoever opens it."""
        import vl_convert

        return vl_convert.vegalite_to_svg(self.to_altair().to_dict())

    def to_png(self) -> bytes:
        """The chart as PNG, two pixels to a unit.

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

    @functools.cached_property
    def missing_glyphs(self) -> str:
        """The characters of labels and title that no installed font can draw, each once."""
        text = "".join([*self.labels, shown(self.title)])
        return "".join(c for c in dict.fromkeys(text) if not _drawable(c))

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """What a notebook shows: the picture, or the live map where it can draw one by itself."""
        import altair as alt

        version = alt.SCHEMA_VERSION.partition(".")[0]
        return {
            f"application/vnd.vegalite.{version}+json": self.to_altair().to_dict(),
            "image/svg+xml": self.to_svg(),
            "text/plain": repr(self),
        }


def shown(text: str) -> str:
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
        f'<text x="8" y="24" font-size="16" font-family="{FONT}">{character}</text></svg>'
    )


def _first(characters: str, count: int) -> str:
    more = len(characters) - count
    return characters if more <= 0 else f"{characters[:count]} and {more} more"


def heading(title: str, explanation: Sequence[str]) -> dict[str, Any]:
    """Parameters of the title: a line, with smaller ones below, or these alone."""
    lines = [shown(line) for line in explanation]
    if not title:
        return {"text": lines, "fontSize": 12, "fontWeight": "normal", "color": GREY}
    return {"text": shown(title), "subtitle": lines}


def style(label_font: float = 11, title_limit: float = 720) -> dict[str, Any]:
    """Vega-Lite's `config`: quiet lines, dark letters, air between the parts."""
    guide = {"titleFontSize": 12, "titleFontWeight": "normal", "titleColor": GREY}
    title = {"fontSize": 16, "color": INK, "lineHeight": 16, "limit": title_limit}
    subtitle = {"subtitleFontSize": 12, "subtitleColor": GREY, "subtitleLineHeight": 16}
    axis = {"domain": False, "ticks": False, "labelPadding": 6, "titlePadding": 10}
    gradient = {"gradientThickness": 12, "gradientStrokeColor": "#d5dbe1"}
    return {
        "background": "white",
        "font": FONT,
        "padding": 16,
        "view": {"stroke": None},
        "title": {"anchor": "start", "offset": 14, **title, **subtitle, "subtitlePadding": 6},
        "axis": {**guide, **axis, "labelColor": INK, "labelFontSize": label_font},
        "legend": {**guide, **gradient, "labelColor": INK, "labelFontSize": 11, "offset": 18},
    }
