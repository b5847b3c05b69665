"""Base class of all charts: saving, display in notebooks, colours."""

import html
import json
import warnings
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from regard.charts.fonts import missing_glyphs, with_cjk_fonts
from regard.files import atomic_write, check_chart_suffix
from regard.text_table import escape_controls

INK, GREY = "#1f2933", "#616e7c"
# A sequential scale in one hue (ColorBrewer "Blues"): its order is also visible in greyscale.
BLUES = [
    "#f7fbff", "#deebf7", "#c6dbef", "#9ecae1", "#6baed6", "#4292c6", "#2171b5", "#08519c", "#08306b",
]  # fmt: skip

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>body {{ margin: 24px; background: white; overflow-x: auto }}{style}</style>
</head>
<body>
{body}
</body>
</html>
"""


class MissingGlyphWarning(UserWarning):
    """An image shows boxes in place of characters that no installed font has."""


class Chart(ABC):
    """Chart that can be saved and that notebooks display."""

    title: str
    """Chart title, or ""."""

    @abstractmethod
    def to_svg(self) -> str:
        """Return the chart as SVG; the viewer supplies the fonts."""

    def to_html(self) -> str:
        """Return the chart as one HTML page that works offline."""
        return html_page(self.title, self.to_svg())

    @abstractmethod
    def to_json(self) -> str:
        """Return the data of the chart as JSON."""

    def to_png(self) -> bytes:
        """Return the chart as PNG, at two pixels per unit.

        Warns:
            MissingGlyphWarning: no installed font has some of the characters.
        """
        import vl_convert

        return vl_convert.svg_to_png(self._svg_with_fonts(), scale=2)

    def to_pdf(self) -> bytes:
        """Return the chart as a PDF page of the same size.

        Warns:
            MissingGlyphWarning: no installed font has some of the characters.
        """
        import vl_convert

        return vl_convert.svg_to_pdf(self._svg_with_fonts())

    def _svg_with_fonts(self) -> str:
        """Return the chart as SVG for the renderer, and warn if its fonts lack some characters."""
        svg = self.to_svg()
        if missing := missing_glyphs(svg):
            more = f" and {len(missing) - 20} more" if len(missing) > 20 else ""
            warnings.warn(
                f"no installed font can draw {missing[:20]}{more}: the image shows boxes instead; "
                "install a font that has them (for instance fonts-noto-cjk), or save as .svg or "
                ".html, which use the reader's fonts",
                MissingGlyphWarning,
                stacklevel=3,
            )
        return with_cjk_fonts(svg)

    def save(self, path: str | Path) -> None:
        """Write the chart to `path` atomically, in the format given by the suffix.

        `.html` is a page that works offline, with tooltips; `.svg`, `.png` and `.pdf` are images;
        `.json` contains the data.

        Raises:
            ConfigError: the suffix is not one of these five.
            DataError: the file cannot be written.
        """
        check_chart_suffix(path)
        content = getattr(self, f"to_{Path(path).suffix.lower()[1:]}")()
        with atomic_write(path) as temporary:
            if isinstance(content, str):  # a lone surrogate becomes its escape in JSON
                content = content.encode(errors="backslashreplace")
            temporary.write_bytes(content)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """Return the formats that a notebook can display."""
        return {"image/svg+xml": self.to_svg(), "text/plain": repr(self)}


def html_page(title: str, body: str, style: str = "") -> str:
    """Return a complete HTML page."""
    title = html.escape(escape_controls(title) or "regard")
    return _PAGE.format(title=title, body=body, style=style)


def script_json(value: Any) -> str:
    """Return JSON that cannot close the script element that contains it, whatever the tokens are."""
    escapes = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}
    return json.dumps(value, ensure_ascii=False).translate(escapes)
