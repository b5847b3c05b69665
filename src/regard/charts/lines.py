"""Figures as lines, one per model: how accuracy goes with the length of the source."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from regard.charts.base import Chart, style

# Okabe and Ito's colours: apart for colour-blind eyes too
_COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#f0e442"]


@dataclasses.dataclass(frozen=True)
class Point:
    """One mark of a line."""

    line: str
    """Its line's name."""
    x: float
    """Where it stands."""
    y: float
    """How high."""
    label: str
    """What is shown under the pointer."""


@dataclasses.dataclass(frozen=True)
class Lines(Chart):
    """Lines over one axis.

    Attributes:
        points: all marks; the lines appear in the order of their first marks.
        x_title: what runs across.
        y_title: what runs up.
        title: a line above the chart.
        explanation: a smaller line below it.
        rule: where to draw an upright rule, such as the longest source of training, and its name.
        y_domain: the ends of the upright axis; None: as the points ask for.
    """

    points: Sequence[Point]
    x_title: str
    y_title: str
    title: str = ""
    explanation: str = ""
    rule: tuple[float, str] | None = None
    y_domain: tuple[float, float] | None = None

    @property
    def names(self) -> list[str]:
        """The lines in order."""
        return list(dict.fromkeys(point.line for point in self.points))

    @property
    def labels(self) -> list[str]:
        """All text that a font must draw."""
        rule = [] if self.rule is None else [self.rule[1]]
        return [*self.names, self.x_title, self.y_title, self.explanation, *rule]

    def to_json(self) -> str:
        """The points."""
        points = [dataclasses.asdict(point) for point in self.points]
        return json.dumps({"points": points}, ensure_ascii=False) + "\n"

    def to_altair(self) -> Any:
        """The chart as an `altair.Chart`, for changes of your own."""
        import altair as alt

        scale = alt.Scale() if self.y_domain is None else alt.Scale(domain=list(self.y_domain))
        colours = alt.Scale(domain=self.names, range=_COLOURS[: len(self.names)])
        data = alt.InlineData(values=[dataclasses.asdict(point) for point in self.points])
        base = alt.Chart(data).encode(
            x=alt.X("x:Q", title=self.x_title, axis=alt.Axis(grid=False)),
            y=alt.Y("y:Q", title=self.y_title, scale=scale),
            color=alt.Color("line:N", title=None, sort=self.names, scale=colours),
            tooltip=["line:N", "label:N"],
        )
        layers = [base.mark_line(strokeWidth=2), base.mark_point(filled=True, size=45)]
        if self.rule is not None:
            at, name = self.rule
            mark = alt.Chart(alt.InlineData(values=[{"x": at, "name": name}]))
            layers += [
                mark.mark_rule(strokeDash=[4, 4], color="#616e7c").encode(x="x:Q"),
                mark.mark_text(align="center", y=-8, color="#616e7c").encode(
                    x="x:Q", text="name:N"
                ),
            ]
        return alt.layer(*layers).properties(
            width=560,
            height=300,
            title=alt.TitleParams(self.title, subtitle=self.explanation),
            config=style(),
        )
