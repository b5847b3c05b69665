"""Line charts: a metric against training time or source length, one line per model."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from regard.charts.base import GREY
from regard.charts.vega import VegaChart, theme

# Okabe and Ito's palette: distinguishable with colour-blindness
_COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#f0e442"]


@dataclasses.dataclass(frozen=True)
class Point:
    """A data point of a line chart."""

    series: str
    """Name of its line."""
    x: float
    y: float
    tooltip: str
    """Text displayed under the pointer."""


@dataclasses.dataclass(frozen=True)
class LineChart(VegaChart):
    """Line chart with one line per series.

    Attributes:
        points: all data points; series are listed in the order of their first point.
        x_title: title of the x-axis.
        y_title: title of the y-axis.
        title: chart title, or "".
        explanation: subtitle.
        rule: position and label of a vertical reference line, such as the longest training source.
        y_domain: limits of the y-axis; None: from the data.
    """

    points: Sequence[Point]
    x_title: str
    y_title: str
    title: str = ""
    explanation: str = ""
    rule: tuple[float, str] | None = None
    y_domain: tuple[float, float] | None = None

    @property
    def series(self) -> list[str]:
        """Names of the lines, in order."""
        return list(dict.fromkeys(point.series for point in self.points))

    def to_json(self) -> str:
        """Return the points as JSON."""
        points = [dataclasses.asdict(point) for point in self.points]
        return json.dumps({"points": points}, ensure_ascii=False) + "\n"

    def to_altair(self) -> Any:
        """Return an `altair.LayerChart` for further customisation."""
        import altair as alt

        scale = alt.Scale() if self.y_domain is None else alt.Scale(domain=list(self.y_domain))
        colours = alt.Scale(domain=self.series, range=_COLOURS[: len(self.series)])
        data = alt.InlineData(values=[dataclasses.asdict(point) for point in self.points])
        base = alt.Chart(data).encode(
            x=alt.X("x:Q", title=self.x_title, axis=alt.Axis(grid=False)),
            y=alt.Y("y:Q", title=self.y_title, scale=scale),
            color=alt.Color("series:N", title=None, sort=self.series, scale=colours),
            tooltip=["series:N", "tooltip:N"],
        )
        layers = [base.mark_line(strokeWidth=2), base.mark_point(filled=True, size=45)]
        if self.rule is not None:
            x, label = self.rule
            data = alt.InlineData(values=[{"x": x, "label": label}])
            reference = alt.Chart(data).encode(x="x:Q")
            layers += [
                reference.mark_rule(strokeDash=[4, 4], color=GREY),
                reference.mark_text(align="center", y=-8, color=GREY).encode(text="label:N"),
            ]
        return alt.layer(*layers).properties(
            width=560,
            height=300,
            title=alt.TitleParams(self.title, subtitle=self.explanation),
            config=theme(),
        )
