"""Charts described with Altair and drawn with vl-convert, without network or browser.

Both are imported only when a chart is drawn.
"""

import functools
from abc import abstractmethod
from typing import Any

from regard.charts.base import GREY, INK, Chart, html_page, script_json
from regard.charts.fonts import FONT
from regard.charts.text import title_lines
from regard.text_table import escape_controls

_TITLE_SIZE = 16.0
_STYLE = """
.vega-bindings { font: 13px sans-serif; color: #616e7c; padding-left: 16px }
.vega-bindings input, .vega-bindings select { vertical-align: middle; accent-color: #08519c }
.vega-bindings .vega-bind { margin: 6px 0 }
.vega-bindings input { width: 240px }"""
# The menu exports images; its other entries would send the data to a website.
_MENU = {"export": True, "source": False, "compiled": False, "editor": False}
_OPTIONS = {"actions": _MENU, "renderer": "svg", "downloadFileName": "regard"}


class VegaChart(Chart):
    """Chart drawn with Vega-Lite."""

    @abstractmethod
    def to_altair(self) -> Any:
        """Return an `altair.Chart` for further customisation."""

    def to_interactive(self) -> Any:
        """Return the Altair chart for the HTML page, with its inputs."""
        return self.to_altair()

    def to_html(self) -> str:
        """Return the chart as one HTML page that contains its script and data, and loads nothing."""
        spec, options = script_json(self.to_interactive().to_dict()), script_json(_OPTIONS)
        body = (
            f'<div id="chart"></div>\n<script>{_vega_embed()}</script>\n'
            f'<script>\nvegaEmbed("#chart", {spec}, {options}).catch(console.error);\n</script>'
        )
        return html_page(self.title, body, _STYLE)

    def to_svg(self) -> str:
        """Return the chart as SVG; the viewer supplies the fonts."""
        import vl_convert

        return vl_convert.vegalite_to_svg(self.to_altair().to_dict())

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """Return the formats that a notebook can display."""
        import altair as alt

        version = alt.SCHEMA_VERSION.partition(".")[0]
        spec = {f"application/vnd.vegalite.{version}+json": self.to_altair().to_dict()}
        return {**spec, **super()._repr_mimebundle_()}


@functools.cache
def _vega_embed() -> str:
    """Return the script that draws a chart on a page."""
    import vl_convert

    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")


def chart_title(title: str, explanation: list[str], limit: float) -> Any:
    """Return an Altair title with `title` above `explanation`, or with the latter alone.

    A title wider than `limit` pixels is split into several lines.
    """
    import altair as alt

    if not title:
        small: dict[str, Any] = {"fontSize": 12, "lineHeight": 16, "fontWeight": "normal"}
        return alt.TitleParams(explanation, color=GREY, **small)
    lines = title_lines(escape_controls(title), _TITLE_SIZE, limit)
    return alt.TitleParams(lines, subtitle=explanation)


def theme(label_font: float = 11) -> dict[str, Any]:
    """Return the Vega-Lite `config` that all charts share."""
    guide = {"titleFontSize": 12, "titleFontWeight": "normal", "titleColor": GREY}
    title = {"fontSize": _TITLE_SIZE, "color": INK, "lineHeight": 20}
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
