"""The three moves of one look side by side: score, normalise, average."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from regard.charts.base import BLUES, GREY, INK, Chart, heading, style
from regard.charts.drawing import blue
from regard.charts.labels import spelled

_HEIGHT = 190
_DARK = "#08519c"
_GIVEN = ["The weights are given;", "the context is the average of the states with these weights."]
_EXPLANATION = [
    "Every state gets a score, the scores become weights that sum to 1,",
    "and the context is the average of the states with these weights.",
]


@runtime_checkable
class Look(Protocol):
    """What is drawn of one look at T states; a `regard.explanation.Explanation` has it all."""

    @property
    def values(self) -> np.ndarray:
        """(T, Dv): what is averaged."""
        ...

    @property
    def scores(self) -> np.ndarray | None:
        """(T,): one score per state; None where weights were given."""
        ...

    @property
    def weights(self) -> np.ndarray:
        """(T,): one weight per state."""
        ...

    @property
    def context(self) -> np.ndarray:
        """(Dv,): the average."""
        ...

    @property
    def labels(self) -> list[str]:
        """Names of the T states."""
        ...


@dataclass(frozen=True, eq=False)
class AttentionSteps(Chart):
    """Scores, weights and context of one look.

    Attributes:
        look: its numbers.
        title: a line above the panels, or "".
    """

    look: Look
    title: str = ""

    @property
    def labels(self) -> list[str]:
        """The names of the states, and what the panels say."""
        return [*spelled(self.look.labels), "−"]

    def to_json(self) -> str:
        """The numbers: labels, scores, weights, values, context."""
        look = self.look
        content: dict[str, Any] = {
            "labels": list(look.labels),
            "scores": None if look.scores is None else look.scores.tolist(),
            "weights": look.weights.tolist(),
            "values": look.values.tolist(),
            "context": look.context.tolist(),
        }
        return json.dumps(content, ensure_ascii=False) + "\n"

    def to_altair(self) -> Any:
        """The panels as an `altair.HConcatChart`, for changes of your own."""
        import altair as alt

        look = self.look
        names = spelled(look.labels)
        panels: dict[str, Any] = {}
        if look.scores is not None:
            panels["1  score"] = _bars(look.scores, names, "one number per state")
        total = f"the weights sum to {look.weights.sum():.2f}"
        move = "2  weights" if look.scores is None else "2  normalise"
        panels[move] = _bars(look.weights, names, total, shaded=True)
        panels["3  average"] = (
            _plane(look, names)
            if look.values.shape[1] == 2
            else _bars(
                look.context, [str(i + 1) for i in range(len(look.context))], "c, by component"
            )
        )
        for title, panel in panels.items():
            panel.title = alt.TitleParams(title, subtitle=panel.title, fontSize=14, offset=10)
        explanation = _GIVEN if look.scores is None else _EXPLANATION
        return alt.hconcat(*panels.values(), spacing=44).properties(
            title=alt.TitleParams(**heading(self.title, explanation)), config=style()
        )

    def __repr__(self) -> str:
        return f"AttentionSteps({len(self.look.labels)} states)"


def attention_steps(explanation: Look, *, title: str = "") -> AttentionSteps:
    """Draw the scores, the weights and the context of one look, from left to right.

    States of two dimensions are points in a plane, with the context in their hull; the context of
    others is drawn by its components. Where weights were given there are no scores to draw.

    Args:
        explanation: what `regard.explanation.explain` gives.
        title: a line above the panels.
    """
    return AttentionSteps(explanation, title)


def _bars(numbers: np.ndarray, names: Sequence[str], note: str, shaded: bool = False) -> Any:
    """A bar for each number, the number on it; `shaded`: the darker, the more."""
    import altair as alt

    digits = 3 if shaded and len(names) <= 6 else 2
    rows = [
        {"place": i, "name": name, "number": number, "text": _written(number, digits),
         "colour": blue(number) if shaded else BLUES[4]}
        for i, (name, number) in enumerate(zip(names, numbers.astype(float).tolist(), strict=True))
    ]  # fmt: skip
    width = min(280.0, max(130.0, 40.0 * len(names)))
    low, high = min(0.0, float(numbers.min())), max(0.0, float(numbers.max()))
    room = 0.12 * (high - low or 1)
    domain = [low - room if low < 0 else 0, high + room]
    expression = f"{json.dumps(list(names))}[datum.value]"
    axis = alt.Axis(labelExpr=expression, labelAngle=_angle(names, width), labelOverlap=False)
    base = alt.Chart(alt.InlineData(values=rows), width=width, height=_HEIGHT, title=note)
    place = alt.X("place:O", title=None, axis=axis)

    def up(field: str) -> Any:
        return alt.Y(field, type="quantitative", axis=None, scale=alt.Scale(domain=domain))

    bars = base.mark_bar(size=min(26, 0.6 * width / len(names))).encode(
        x=place,
        y=up("number"),
        color=alt.Color("colour:N", scale=None),
        tooltip=["name:N", "text:N"],
    )
    over = alt.expr("datum.number < 0 ? 9 : -8")
    words = base.mark_text(dy=over, color=INK, fontSize=11 if len(names) <= 8 else 9).encode(
        x=place, y=up("number"), text="text:N"
    )
    zero = base.transform_calculate(zero="0").mark_rule(color="#c3cad2").encode(y=up("zero"))
    return alt.layer(zero, bars, words).properties(width=width, height=_HEIGHT, title=note)


def _angle(names: Sequence[str], width: float) -> int:
    return 0 if max(map(len, names)) * 7 <= width / len(names) else -45


def _plane(look: Look, names: Sequence[str]) -> Any:
    """The states as points, their hull shaded, and the context in it."""
    import altair as alt

    points, context = look.values.astype(float), look.context.astype(float)
    middle, span = _frame(points, context)

    def chart(rows: Sequence[Mapping[str, Any]]) -> Any:
        axes: dict[str, Any] = {
            name: kind(
                f"{name}:Q",
                title=None,
                scale=alt.Scale(domain=[at - span / 2, at + span / 2], nice=False, zero=False),
                axis=alt.Axis(grid=False, tickCount=4, labelColor=GREY),
            )
            for name, kind, at in (("x", alt.X, middle[0]), ("y", alt.Y, middle[1]))
        }
        return alt.Chart(alt.InlineData(values=list(rows))).encode(**axes)

    corners = [{"x": x, "y": y, "order": i} for i, (x, y) in enumerate(_hull(points))]
    hull = chart([*corners, {**corners[0], "order": len(corners)}]).mark_line(
        fill=BLUES[1], fillOpacity=0.7, stroke=BLUES[2], strokeWidth=1
    )
    rows = [
        {"x": x, "y": y, "x2": context[0], "y2": context[1], "name": name, "weight": weight,
         "width": max(0.75, 10 * min(1.0, abs(weight))), "colour": blue(abs(weight))}
        for (x, y), name, weight in zip(points.tolist(), names, look.weights.tolist(), strict=True)
    ]  # fmt: skip
    lines = chart(rows).mark_rule().encode(
        x2="x2:Q", y2="y2:Q", color=alt.Color("colour:N", scale=None),
        size=alt.Size("width:Q", scale=None),
        tooltip=["name:N", alt.Tooltip("weight:Q", format=".3f")],
    )  # fmt: skip
    states = chart(rows).mark_point(filled=True, size=60, color=GREY, opacity=1)
    here = chart([{"x": context[0], "y": context[1]}])
    dot = here.mark_point(
        filled=True, size=130, color=_DARK, stroke="white", strokeWidth=1.5, opacity=1
    )
    ways = points - context
    named = chart(_beside(points, names, span, ways)).mark_text(
        fontSize=12 if len(names) <= 8 else 10, color=INK
    )
    free = np.array([_free_way(ways)])
    name = chart(_beside(context[None], ["c"], span, free)).mark_text(
        fontSize=14, fontWeight="bold", color=_DARK
    )
    layers = [hull.encode(order="order:Q"), lines, states, dot]
    layers += [each.encode(text="name:N") for each in (named, name)]
    note = f"c = ({_written(context[0])}, {_written(context[1])})"
    if look.weights.min() >= 0 and abs(look.weights.sum() - 1) < 1e-6:
        note += ", inside their hull"
    return alt.layer(*layers).properties(width=_HEIGHT, height=_HEIGHT, title=note)


def _frame(points: np.ndarray, context: np.ndarray) -> tuple[np.ndarray, float]:
    """The middle of the plane's square, and its side, with room for names."""
    everything = np.concatenate([points, context[None]])
    low, high = everything.min(0), everything.max(0)
    return (low + high) / 2, 1.4 * (float((high - low).max()) or 1.0)


def _beside(
    points: np.ndarray, names: Sequence[str], span: float, ways: np.ndarray
) -> list[dict[str, Any]]:
    """Where names stand: a little on from the points, the ways that are given."""
    lengths = np.linalg.norm(ways, axis=1, keepdims=True)
    ways = np.where(lengths > 1e-9 * span, ways / np.maximum(lengths, 1e-12 * span), [0.0, 1.0])
    places = (points + 0.085 * span * ways).tolist()
    return [{"x": x, "y": y, "name": name} for (x, y), name in zip(places, names, strict=True)]


def _free_way(ways: np.ndarray) -> tuple[float, float]:
    """The middle of the widest angle between the ways, where a name crosses no line."""
    angles = np.sort(np.arctan2(ways[:, 1], ways[:, 0]))
    gaps = np.diff(angles, append=angles[0] + 2 * np.pi)
    middle = angles[gaps.argmax()] + gaps.max() / 2
    return float(np.cos(middle)), float(np.sin(middle))


def _written(number: float, digits: int = 2) -> str:
    return f"{number:.{digits}f}".replace("-", "−")


def _hull(points: np.ndarray) -> list[tuple[float, float]]:
    """The corners of the smallest convex polygon around the points (Andrew's monotone chain)."""
    ordered = sorted({(float(x), float(y)) for x, y in points})
    if len(ordered) < 3:
        return ordered
    return [*_chain(ordered)[:-1], *_chain(ordered[::-1])[:-1]]


def _chain(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Half of the hull: the points at which the way along them never turns right."""
    kept: list[tuple[float, float]] = []
    for x, y in points:
        while len(kept) > 1:
            (x0, y0), (x1, y1) = kept[-2:]
            if (x1 - x0) * (y - y0) - (y1 - y0) * (x - x0) > 0:
                break
            kept.pop()
        kept.append((x, y))
    return kept
