"""Diagram of the three steps of attention: score, normalise, weighted sum."""

import math
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from regard.charts.base import BLUES, GREY, INK
from regard.charts.labels import token_labels
from regard.charts.svg import FAINT, STRONG, Canvas, Diagram, element, weight_colour
from regard.charts.text import truncate

_SIDE = 190.0
"""Height of the bars and side of the plane in pixels."""
_NUMBER_WIDTH = 24.0
"""Minimum pixels for a bar with its number."""
_GIVEN = ["The weights are given;", "the context is the sum of the states with these weights."]
_EXPLANATION = [
    "Each state gets a score, the scores are normalised to weights that sum to 1,",
    "and the context is the sum of the states with these weights.",
]


@runtime_checkable
class ExplainedAttention(Protocol):
    """Attention of one query to T states, as in `regard.explanation.Explanation`."""

    @property
    def values(self) -> np.ndarray:
        """(T, Dv)."""
        ...

    @property
    def scores(self) -> np.ndarray | None:
        """(T,); None if the weights were given."""
        ...

    @property
    def weights(self) -> np.ndarray:
        """(T,)."""
        ...

    @property
    def context(self) -> np.ndarray:
        """(Dv,), the weighted sum of the values."""
        ...

    @property
    def labels(self) -> list[str]:
        """Names of the T states."""
        ...


def attention_steps(explanation: ExplainedAttention, *, title: str = "") -> Diagram:
    """Draw scores, weights and context of one query, from left to right.

    States with two components are drawn as points in a plane, with the context and their convex hull;
    otherwise, the components of the context are drawn. If the weights were given, there are no
    scores.

    Args:
        explanation: an `Explanation`, from `regard.explanation.explain`.
        title: chart title.
    """
    names, scores = token_labels(explanation.labels), explanation.scores
    weights, context = explanation.weights, explanation.context
    panels: list[Canvas] = []
    if scores is not None:
        panels.append(_bars("1 score", "one number per state", scores, names))
    heading = "2 weights" if scores is None else "2 normalise"
    note = f"the weights sum to {weights.sum():.2f}"
    panels.append(_bars(heading, note, weights, names, shaded=True))
    if len(context) == 2:
        panels.append(_plane("3 weighted sum", explanation, names))
    else:
        components = [str(i + 1) for i in range(len(context))]
        interval = -(-len(context) // 40)  # 12 pixels per label
        panels.append(
            _bars("3 weighted sum", "c, by component", context, components, interval=interval)
        )
    canvas = Canvas()
    for panel in panels:
        canvas.paste(panel, canvas.right + 44 if canvas.elements else 0.0)
    fields = ("labels", "scores", "weights", "values", "context")
    content = {name: getattr(explanation, name) for name in fields}
    return canvas.diagram(content, title, _GIVEN if scores is None else _EXPLANATION)


def _draw_heading(canvas: Canvas, heading: str, note: str) -> None:
    left = canvas.left
    canvas.text(left, -36.0, heading, size=14.0, anchor="start", bold=True)
    canvas.text(left, -17.0, note, size=12.0, anchor="start", fill=GREY)


def _bars(
    heading: str,
    note: str,
    numbers: np.ndarray,
    names: Sequence[str],
    shaded: bool = False,
    interval: int = 1,
) -> Canvas:
    """Draw one bar per number, every `interval`-th with its name; if `shaded`, larger ones are darker.

    If there is no space to print all numbers, only the largest is printed.
    """
    canvas, count = Canvas(), len(names)
    width = max(130.0, min(280.0, 40.0 * count), min(480.0, _NUMBER_WIDTH * count))
    pitch, digits = width / count, 3 if shaded and count <= 6 else 2
    centres = [pitch * (i + 0.5) for i in range(count)]
    low, high = min(0.0, float(numbers.min())), max(0.0, float(numbers.max()))
    margin = 0.12 * (high - low or 1)
    scale = _SIDE / (high - low + margin * (2 if low < 0 else 1))
    zero = scale * (high + margin)
    canvas.line((0.0, zero), (width, zero), 1.0, FAINT)
    for x, name, number in zip(centres, names, numbers.tolist(), strict=True):
        text, height = _decimal(number, digits), scale * number
        fill, bar = weight_colour(number) if shaded else BLUES[4], min(26.0, 0.6 * pitch)
        canvas.box(x, zero - height / 2, bar, abs(height), f"{name}: {text}", fill=fill)
        if pitch >= _NUMBER_WIDTH or abs(number) == abs(numbers).max():
            size = 11.0 if count <= 8 else 9.0
            canvas.text(x, zero - height + (9 if number < 0 else -8), text, size=size)
    canvas.labels(centres[::interval], _SIDE + 12, names[::interval], interval * pitch, size=11.0)
    _draw_heading(canvas, heading, note)
    return canvas


def _plane(heading: str, explanation: ExplainedAttention, names: Sequence[str]) -> Canvas:
    """Draw the states as points in a plane, their convex hull and the context."""
    canvas, weights, context = Canvas(), explanation.weights, explanation.context
    points = np.concatenate([explanation.values, context[None]]).astype(float)
    span = 1.4 * (float(np.ptp(points, axis=0).max()) or 1.0)  # leaves space for the names
    low = (points.min(0) + points.max(0) - span) / 2
    pixels = (points - low) * [_SIDE / span, -_SIDE / span] + [0, _SIDE]
    for axis in (0, 1):
        for value, label in _ticks(low[axis], span):
            offset = (value - low[axis]) * _SIDE / span
            x, y = (-8.0, _SIDE - offset) if axis else (offset, _SIDE + 12)
            canvas.text(x, y, label, size=11.0, fill=GREY, anchor="end" if axis else "middle")
    cx, cy = pixels[-1].tolist()
    corners = " ".join(f"{x:.2f},{y:.2f}" for x, y in convex_hull(pixels[:-1]))
    hull: dict[str, Any] = {"fill": BLUES[1], "fill_opacity": 0.7, "stroke": BLUES[2]}
    canvas.add(element("polygon", points=corners, **hull), (0.0, 0.0), (_SIDE, _SIDE))
    for (x, y), name, weight in zip(pixels[:-1], names, weights.tolist(), strict=True):
        width, colour = max(0.75, 10 * min(1.0, abs(weight))), weight_colour(abs(weight))
        canvas.line((x, y), (cx, cy), width, colour, f"{name}: {weight:.3f}")
    for x, y in pixels[:-1]:
        canvas.box(x, y, 8.0, 8.0, rx=4, fill=GREY)
    canvas.box(cx, cy, 12.0, 12.0, rx=6, fill=STRONG, stroke="white", stroke_width=1.5)
    for i, name in enumerate([*names, "c"]):
        is_context = i == len(names)
        dx, dy = free_direction(np.delete(pixels, i, axis=0) - pixels[i])
        canvas.text(
            *(pixels[i] + [9 * dx, 15 * dy]),
            truncate(name, 12.0, 80.0),
            size=14.0 if is_context else 12.0 if len(names) <= 8 else 10.0,
            fill=STRONG if is_context else INK,
            anchor="middle" if abs(dx) < 0.4 else "start" if dx > 0 else "end",
            bold=is_context,
        )
    note = f"c = ({_decimal(context[0])}, {_decimal(context[1])})"
    if weights.min() >= 0 and abs(weights.sum() - 1) < 1e-6:
        note += ", inside their hull"
    _draw_heading(canvas, heading, note)
    return canvas


def _ticks(low: float, span: float) -> list[tuple[float, str]]:
    """Return about four round numbers in an interval, with their labels."""
    power = 10.0 ** math.floor(math.log10(span / 4))
    step = next(step for step in (power, 2 * power, 5 * power, 10 * power) if 6 * step >= span)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    multiples = range(math.ceil(low / step), math.floor((low + span) / step) + 1)
    return [(number * step, _decimal(number * step, digits)) for number in multiples]


def _decimal(number: float, digits: int = 2) -> str:
    return f"{number:.{digits}f}".replace("-", "−")


def free_direction(directions: np.ndarray) -> tuple[float, float]:
    """Return the unit vector in the middle of the widest angle between (N, 2) directions.

    Zero vectors are ignored.
    """
    x, y = directions[np.abs(directions).max(1) > 1e-6].T
    if not len(x):
        return 0.0, -1.0
    angles = np.sort(np.arctan2(y, x))
    gaps = np.diff(angles, append=angles[0] + 2 * np.pi)
    middle = angles[gaps.argmax()] + gaps.max() / 2
    return float(np.cos(middle)), float(np.sin(middle))


def convex_hull(points: np.ndarray) -> list[tuple[float, float]]:
    """Return the corners of the convex hull of (N, 2) points, with Andrew's monotone chain."""
    ordered = sorted({(float(x), float(y)) for x, y in points})
    hull: list[tuple[float, float]] = []
    for chain in (ordered, ordered[::-1]):  # lower half from left to right, then upper half back
        start = len(hull)
        for x, y in chain:
            while len(hull) > start + 1:
                (x0, y0), (x1, y1) = hull[-2:]
                if (x1 - x0) * (y - y0) > (y1 - y0) * (x - x0):  # a left turn
                    break
                hull.pop()
            hull.append((x, y))
        hull.pop()
    return hull or ordered
