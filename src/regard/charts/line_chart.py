"""Line charts: a metric against training time or source length, one line per model."""

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from regard.charts.base import GREY, INK
from regard.charts.vega import VegaChart, chart_title, theme
from regard.text_table import escape_controls

# Okabe and Ito's colour-blind-safe palette, with grey instead of yellow, which is too pale on white
_COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#7f7f7f"]
_WIDTH, _HEIGHT = 560.0, 300.0
_LABEL_HEIGHT, _LABEL_GAP = 17.0, 16.0
"""Pixels per label, and between the plot and the labels."""
_SIDE_BY_SIDE = 3.0
"""Pixels between lines that would coincide."""


@dataclasses.dataclass(frozen=True)
class Point:
    """A data point of a line chart."""

    series: str
    """Name of the line that the point belongs to."""
    x: float
    y: float
    tooltip: str
    """Text displayed under the pointer."""


@dataclasses.dataclass(frozen=True)
class LineChart(VegaChart):
    """Line chart with one line per series, with its name at the right end.

    Lines that would coincide are drawn side by side, so that none hides another.

    Attributes:
        points: all data points; series are listed in the order of their first point.
        x_title: title of the x-axis.
        y_title: title of the y-axis.
        title: chart title, or "".
        explanation: subtitle.
        rule: position and label of a vertical reference line, such as the longest training source.
        y_domain: limits of the y-axis; None: computed from the data, and including 0.
        notes: text that follows the name of a series, by series.
    """

    points: Sequence[Point]
    x_title: str
    y_title: str
    title: str = ""
    explanation: str = ""
    rule: tuple[float, str] | None = None
    y_domain: tuple[float, float] | None = None
    notes: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def series(self) -> list[str]:
        """Names of the series, in order."""
        return list(dict.fromkeys(point.series for point in self.points))

    def to_json(self) -> str:
        """Return the points as JSON."""
        points = [dataclasses.asdict(point) for point in self.points]
        return json.dumps({"points": points}, ensure_ascii=False) + "\n"

    def to_altair(self) -> Any:
        """Return an `altair.LayerChart` for further customisation."""
        return self._escaped()._draw()

    def _draw(self) -> Any:
        import altair as alt

        low, high = self.y_domain or _round_limits([point.y for point in self.points])
        pixel = (high - low) / _HEIGHT
        drawn = _side_by_side(self.points, _SIDE_BY_SIDE * pixel)
        records = [
            {**dataclasses.asdict(point), "drawn": y}
            for point, y in zip(self.points, drawn, strict=True)
        ]
        series = range(len(self.series))
        colours = [_COLOURS[i % len(_COLOURS)] for i in series]
        dashes = [[5, 3] if i // len(_COLOURS) % 2 else [1, 0] for i in series]
        dash = alt.StrokeDash("series:N", legend=None).scale(domain=self.series, range=dashes)
        scale = alt.Scale(domain=[low, high], nice=False)
        base = alt.Chart(alt.InlineData(values=records)).encode(
            x=alt.X("x:Q", title=self.x_title, axis=alt.Axis(grid=False)),
            y=alt.Y("drawn:Q", title=self.y_title, scale=scale),
            color=alt.Color("series:N", legend=None).scale(domain=self.series, range=colours),
            tooltip=["series:N", "tooltip:N"],
        )
        layers = [
            base.mark_line(strokeWidth=2).encode(strokeDash=dash),
            base.mark_point(filled=True, size=28, opacity=1),
        ]
        layers += self._labels(base, records, _LABEL_HEIGHT * pixel, (low, high))
        if self.rule is not None:
            x, label = self.rule
            data = alt.InlineData(values=[{"x": x, "label": label}])
            reference = alt.Chart(data).encode(x="x:Q")
            layers += [
                reference.mark_rule(strokeDash=[4, 4], color=GREY),
                reference.mark_text(align="center", y=-12, color=GREY).encode(text="label:N"),
            ]
        explanation = [self.explanation] if self.explanation else []
        if any(point.y != y for point, y in zip(self.points, drawn, strict=True)):
            explanation.append("Lines that would coincide are drawn side by side.")
        if len({max(p.x for p in self.points if p.series == name) for name in self.series}) > 1:
            explanation.append("Dots lead from the end of a line to its name.")
        return alt.layer(*layers).properties(
            width=_WIDTH,
            height=_HEIGHT,
            title=chart_title(self.title, explanation, _WIDTH + 120),
            config=theme(),
        )

    def _escaped(self) -> "LineChart":
        """Return a chart without characters that XML does not allow in the names and tooltips."""
        points = [
            dataclasses.replace(
                point, series=escape_controls(point.series), tooltip=escape_controls(point.tooltip)
            )
            for point in self.points
        ]
        notes = {escape_controls(name): note for name, note in self.notes.items()}
        return dataclasses.replace(self, points=points, notes=notes)

    def _labels(
        self, base: Any, records: list[dict[str, Any]], height: float, limits: tuple[float, float]
    ) -> list[Any]:
        """Return the names of the lines to the right of the plot, each joined to the end of its line."""
        import altair as alt

        ends = {record["series"]: record for record in sorted(records, key=lambda r: r["x"])}
        heights = _spread([end["drawn"] for end in ends.values()], height, limits)
        rows = [
            {**end, "label_y": y, "label": self._label(end["series"])}
            for end, y in zip(ends.values(), heights, strict=True)
        ]
        labelled = base.properties(data=alt.InlineData(values=rows))
        right = alt.value(_WIDTH + _LABEL_GAP)
        return [
            labelled.mark_rule(strokeWidth=1, strokeDash=[1, 4], opacity=0.7, aria=False).encode(
                x2=right, y2="label_y:Q"
            ),
            labelled.mark_text(align="left", dx=4, fontSize=12, limit=260, aria=False).encode(
                x=right, y="label_y:Q", text="label:N", color=alt.value(INK)
            ),
        ]

    def _label(self, series: str) -> str:
        note = self.notes.get(series)
        return f"{series} ({note})" if note else series


_SMALLEST = 1e-300
"""Range below which a tenth of it would be inexact."""


def _round_limits(values: Sequence[float]) -> tuple[float, float]:
    """Return limits that contain the values and 0, at multiples of a tenth to a half of the range."""
    low, high = min([0.0, *values]), max([0.0, *values])
    step = 10.0 ** math.floor(math.log10(high - low)) / 2 if high - low > _SMALLEST else 1.0
    return step * math.floor(low / step), step * max(1, math.ceil(high / step))


def _side_by_side(points: Sequence[Point], distance: float) -> list[float]:
    """Return the y of each point; points with the same x are at least `distance` apart."""
    drawn = [point.y for point in points]
    by_x: dict[float, list[int]] = {}
    for i, point in enumerate(points):
        by_x.setdefault(point.x, []).append(i)
    for column in by_x.values():
        positions = _apart([points[i].y for i in column], distance)
        for i, position in zip(column, positions, strict=True):
            drawn[i] = position
    return drawn


def _apart(values: Sequence[float], distance: float) -> list[float]:
    """Return positions in the order of the values and at least `distance` apart.

    Values that are closer are moved apart, and each group keeps its mean. Of equal values, the first
    is on top, so that parallel lines do not cross.
    """
    groups: list[list[int]] = []
    for i in sorted(range(len(values)), key=lambda i: (values[i], -i)):
        groups.append([i])
        while len(groups) > 1:
            below, above = groups[-2:]
            gap = fmean(values[i] for i in above) - fmean(values[i] for i in below)
            if gap >= distance * (len(below) + len(above)) / 2:
                break
            groups[-2:] = [below + above]
    positions = list(values)
    for group in groups:
        if len(group) > 1:
            middle = fmean(values[i] for i in group)
            for rank, i in enumerate(group):
                positions[i] = middle + distance * (rank - (len(group) - 1) / 2)
    return positions


def _spread(values: Sequence[float], height: float, limits: tuple[float, float]) -> list[float]:
    """Return positions as `_apart` does, but within the limits, and closer if space is short."""
    low, high = limits
    height = min(height, (high - low) / max(1, len(values) - 1))
    placed = _apart(values, height)
    order = sorted(range(len(values)), key=lambda i: placed[i])
    for below, i in zip([None, *order], order, strict=False):
        placed[i] = max(placed[i], low if below is None else placed[below] + height)
    for above, i in zip([None, *reversed(order)], reversed(order), strict=False):
        placed[i] = min(placed[i], high if above is None else placed[above] - height)
    return placed
