"""Animation of an encoder-decoder with attention, as SVG with CSS animations."""

import hashlib
import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from regard.arrays import to_array
from regard.charts.attention_steps import ExplainedAttention
from regard.charts.base import GREY, INK, html_page
from regard.charts.labels import check_weights, token_labels
from regard.charts.svg import FAINT, STRONG, Canvas, Diagram, element, weight_colour
from regard.charts.text import text_width, truncate
from regard.errors import DataError

_CELL, _CELLS = 13.0, 4
"""Side of a component in pixels, and the number of components drawn per direction."""
_ENCODE, _PHASES, _HOLD = 0.5, {"score": 1.3, "normalise": 1.3, "sum": 1.7, "token": 1.2}, 3.0
"""Seconds per state and direction, for each phase of a decoding step, and at the end."""
_FADE = 0.15
_LABEL_WIDTH = 105.0
"""Pixels of the longest token; longer ones are truncated."""
_ORDERS = {1: ("",), 2: ("from left to right ", "from right to left ")}
_ROWS = {"output": -36.0, "decoder": 0.0, "context": 74.0, "weight": 196.0, "score": 226.0}
_BAR = 40.0
"""Height of the bar for weight 1; bars are drawn above the row of weights."""
_ENCODER_Y, _SOURCE_Y = 272.0, 320.0
_NEGATIVE = "#b35806"
_SCRIPT = Path(__file__).with_name("animation.js")

_EXPLANATION = ["Cells are the first components of each direction: blue positive, orange negative."]

Interval = tuple[float, float | None]
"""Seconds at which an element appears and disappears; None: visible to the end."""


@dataclass(frozen=True, eq=False, repr=False)
class Animation(Diagram):
    """Diagram with CSS animations; the HTML page has buttons and a time slider.

    Readers who prefer reduced motion see the last frame and can use the slider. A PNG image shows the
    last frame.
    """

    duration: float = 0.0
    """Seconds of one cycle."""
    stops: tuple[float, ...] = ()
    """Seconds at which a phase is complete."""

    def to_fragment(self) -> str:
        """Return the image and its controls as HTML elements."""
        stops = ",".join(f"{1000 * stop:.0f}" for stop in self.stops)
        name = html.escape(self.title or "animation")
        return (
            f'<div class="regard-animation" data-stops="{stops}" '
            f'data-duration="{1000 * self.duration:.0f}">{self.svg}'
            '<div style="display:flex;gap:.5em;align-items:center;max-width:720px">'
            '<button type="button">Pause</button>'
            '<button type="button" aria-label="Previous phase">◂</button>'
            '<button type="button" aria-label="Next phase">▸</button>'
            f'<input type="range" min="0" value="0" aria-label="Time: {name}" style="flex:1"></div>'
            f"<script>{_SCRIPT.read_text('utf-8')}</script></div>"
        )

    def to_html(self) -> str:
        """Return the animation with its controls as one HTML page that works offline."""
        return html_page(self.title, self.to_fragment())

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return {"text/html": self.to_fragment(), "text/plain": repr(self)}

    def __repr__(self) -> str:
        return f"Animation({self.title!r})"


def animated_encoder_decoder(
    steps: Sequence[ExplainedAttention],
    source_tokens: Sequence[str],
    target_tokens: Sequence[str],
    *,
    bidirectional: bool = True,
    title: str = "",
) -> Animation:
    """Animate encoder and decoder: states, then the scores, weights, context and token at every step.

    The cells of a state or context show its first components in each direction: blue for positive
    and orange for negative values. Encoder states are drawn as the values of the attention; if these
    are projected, their halves are not the two directions, so set `bidirectional` to False. The lines of a
    step start from s_t, the query of Luong's decoder; that of Bahdanau's is s_(t-1).

    Args:
        steps: L explanations with scores, one per target token, from
            `regard.explanation.from_model.explain_step`.
        source_tokens: T tokens.
        target_tokens: L tokens.
        bidirectional: whether the second half of each encoder state was computed from right to left.
        title: chart title.

    Raises:
        ShapeError: the weights are not (L, T).
        DataError: L or T is 0, a weight is not finite, or a step has no scores.
    """
    if any(step.scores is None for step in steps):
        raise DataError("an animation needs the scores of every step, got a step without scores")
    weights = to_array([step.weights for step in steps], "weights") if steps else np.zeros((0, 0))
    check_weights(weights, source_tokens, target_tokens)
    source, target = (
        [truncate(label, 13.0, _LABEL_WIDTH) for label in token_labels(tokens)]
        for tokens in (source_tokens, target_tokens)
    )
    content = {
        "source_tokens": list(source_tokens),
        "target_tokens": list(target_tokens),
        "scores": [np.asarray(step.scores).round(6).tolist() for step in steps],
        "attention": weights.round(6).tolist(),
        "context": [step.context.round(6).tolist() for step in steps],
    }
    # style sheets apply to the whole page: every animation has its own class names
    digest = hashlib.sha256(json.dumps([content, title, bidirectional]).encode()).hexdigest()[:8]
    scene = _Scene(f"regard-{digest}", source, target, 2 if bidirectional else 1)
    scene.draw_frame()
    scene.encode(steps[0].values)
    for number, step in enumerate(steps):
        scene.decode(number, step)
    return scene.animation(content, title)


class _Scene:
    """Elements and the intervals in which they are visible."""

    def __init__(self, name: str, source: list[str], target: list[str], directions: int) -> None:
        self.name, self.source, self.target, self.directions = name, source, target, directions
        longest = max(text_width(token, 13.0) for token in source + target)
        widest = max(len(source), len(target))
        self.pitch = max(74.0, longest + 18, min(116.0, 600 / widest))
        self.source_x, self.target_x = (
            [self.pitch * (i + (widest - len(row)) / 2) for i in range(len(row))]
            for row in (source, target)
        )
        self.canvas = Canvas()
        self.time = 0.0
        self.stops: list[float] = []
        self.intervals: dict[Interval, int] = {}
        self.captions: list[tuple[str, Interval]] = []

    def show(self, drawing: Canvas, start: float, end: float | None) -> None:
        """Add a drawing that is visible from `start` to `end`, or also without animation if `end` is None."""
        number = self.intervals.setdefault((start, end), len(self.intervals))
        visible: dict[str, Any] = {} if end is None else {"opacity": 0}
        group = element(
            "g", *drawing.elements, class_=f"{self.name} {self.name}-{number}", **visible
        )
        corners = (drawing.left, drawing.top), (drawing.right, drawing.bottom)
        self.canvas.add(group, *corners)

    def caption(self, text: str, seconds: float) -> None:
        """Add a caption for the phase that begins now, and advance the time to its end."""
        self.captions.append((text, (self.time, self.time + seconds)))
        self.time += seconds
        self.stops.append(self.time - 2 * _FADE)

    def draw_frame(self) -> None:
        """Draw what is always visible: tokens, outlines of the states and names of the rows."""
        canvas, rows = self.canvas, {**_ROWS, "encoder": _ENCODER_Y, "source": _SOURCE_Y}
        height = _CELL * self.directions + 8
        for x in self.source_x:
            canvas.box(x, _ENCODER_Y, _CELLS * _CELL + 8, height, rx=5, fill="white", stroke=FAINT)
        for x in self.target_x:
            canvas.box(x, _ROWS["decoder"], 44.0, 34.0, rx=6, fill="white", stroke=FAINT)
        for i, x in enumerate(self.source_x):
            canvas.text(x, _ENCODER_Y + height / 2 + 11, f"h{i + 1}", size=11.0, fill=GREY)
        canvas.labels(self.source_x, _SOURCE_Y, self.source, self.pitch)
        left = min(self.source_x[0], self.target_x[0]) - self.pitch / 2 - 62
        for name, y in rows.items():
            canvas.text(left, y, name, size=12.0, fill=GREY, anchor="start")

    def encode(self, states: np.ndarray) -> None:
        """Show the encoder states, one direction after the other."""
        half = states.shape[1] // self.directions
        for direction in range(self.directions):
            order = range(len(self.source))[:: 1 if direction == 0 else -1]
            for i in order:
                cells = Canvas()
                components = states[i, direction * half :][:_CELLS]
                y = _ENCODER_Y + _CELL * (direction - (self.directions - 1) / 2)
                _draw_cells(cells, self.source_x[i], y, components)
                if i != order[0]:
                    edge = (_CELLS * _CELL / 2 + 5) * (1 if direction == 0 else -1)
                    previous = self.source_x[i - 1 if direction == 0 else i + 1]
                    start, end = (previous + edge, y), (self.source_x[i] - edge, y)
                    cells.arrow(start, end, 1.0, GREY)
                self.show(cells, self.time, None)
                self.time += _ENCODE
            begin, order_name = (
                self.time - _ENCODE * len(order),
                _ORDERS[self.directions][direction],
            )
            text = f"The encoder reads the source {order_name}and stores a state for every token."
            self.captions.append((text, (begin, self.time)))
            self.stops.append(self.time - 2 * _FADE)

    def decode(self, number: int, step: ExplainedAttention) -> None:
        """Show scores, normalisation, weighted sum and token at one step."""
        start, x, scores = self.time, self.target_x[number], np.asarray(step.scores)
        is_last = number == len(self.target) - 1
        end = None if is_last else start + sum(_PHASES.values())
        current, name, token = Canvas(), f"{number + 1}", self.target[number]
        current.box(x, 0.0, 44.0, 34.0, rx=6, fill=STRONG, stroke=STRONG)
        _draw_symbol(current, x, 0.0, "s", number + 1, "white")
        self.show(current, start, end)
        pairs = Canvas()
        for source in self.source_x:
            pairs.line((x, 18.0), (source, _ROWS["score"] - 10), 0.75, GREY)
        self.show(pairs, start, start + _PHASES["score"])
        self.show(_score_drawing(self.source_x, scores), start, end)
        self.caption(
            f"Step {name}, score: one number for the decoder's query and each encoder state.",
            _PHASES["score"],
        )
        self.show(_weight_drawing(self.source_x, step.weights), self.time, end)
        self.caption(
            f"Step {name}, normalise: softmax turns the scores into weights that sum to 1.",
            _PHASES["normalise"],
        )
        half = len(step.context) // self.directions
        parts = [step.context[half * d :][:_CELLS] for d in range(self.directions)]
        self.show(
            _context_drawing(self.source_x, step.weights, x, parts, number + 1), self.time, end
        )
        largest = np.argsort(-abs(step.weights), kind="stable")[:2].tolist()
        shown = sorted(i for i in largest if i == largest[0] or abs(step.weights[i]) >= 0.01)
        terms = " + ".join(f"{step.weights[i]:.2f} h{i + 1}" for i in shown)
        rest = " + …" if len(shown) < len(self.source) else ""
        self.caption(
            f"Step {name}, weighted sum: the context c{name} = {terms}{rest}", _PHASES["sum"]
        )
        self._write_token(number, start, is_last)
        self.caption(f"Step {name}, output: from s{name} and c{name}, “{token}”.", _PHASES["token"])

    def _write_token(self, number: int, start: float, is_last: bool) -> None:
        x, written = self.target_x[number], Canvas()
        written.labels([x], _ROWS["output"], [self.target[number]], 1e9, current=0)
        self.show(written, self.time, None)
        if not is_last:  # the state stays visible when it is no longer the current one
            state = Canvas()
            state.box(x, 0.0, 44.0, 34.0, rx=6, fill="white", stroke=GREY, stroke_width=1.2)
            _draw_symbol(state, x, 0.0, "s", number + 1, INK)
            following = self.target_x[number + 1]
            state.arrow((x + 22, 0.0), (following - 22, 0.0), 1.0, GREY)
            self.show(state, start + sum(_PHASES.values()), None)

    def animation(self, content: dict[str, Any], title: str) -> Animation:
        """Return the drawing with the style sheet that shows and hides its parts."""
        duration = self.time + _HOLD
        y, left = self.canvas.top - 26, self.canvas.left
        last = len(self.captions) - 1
        for number, (text, (start, end)) in enumerate(self.captions):
            line = Canvas()
            line.text(left, y, text, size=13.0, anchor="start")
            self.show(line, start, None if number == last else end)
        self.canvas.elements.append(element("style", self._style(duration)))
        svg = self.canvas.diagram(content, title, _EXPLANATION).svg
        stops = tuple(round(stop, 3) for stop in self.stops)
        return Animation(svg, content, title, duration, stops)

    def _style(self, duration: float) -> str:
        name = self.name
        rules = [
            f".{name}{{animation:{duration:g}s linear infinite}}",
            # the last frame, which the slider of the page can change
            f"@media(prefers-reduced-motion:reduce){{.{name}{{animation-play-state:paused;"
            f"animation-delay:-{duration - 0.1:g}s}}}}",
        ]
        for (start, end), number in self.intervals.items():
            rules.append(f".{name}-{number}{{animation-name:{name}-{number}}}")
            times = [(0.0, 0), (start, 0), (start + _FADE, 1)]
            times += [(end - _FADE, 1), (end, 0), (duration, 0)] if end else [(duration, 1)]
            frames = "".join(f"{100 * t / duration:.3f}%{{opacity:{value}}}" for t, value in times)
            rules.append(f"@keyframes {name}-{number}{{{frames}}}")
        return "".join(rules)


def _score_drawing(source_x: Sequence[float], scores: np.ndarray) -> Canvas:
    drawing = Canvas()
    for x, score in zip(source_x, scores.tolist(), strict=True):
        drawing.text(x, _ROWS["score"], f"{score:.2f}".replace("-", "−"), size=13.0)
    return drawing


def _weight_drawing(source_x: Sequence[float], weights: np.ndarray) -> Canvas:
    drawing = Canvas()
    for x, weight in zip(source_x, weights.tolist(), strict=True):
        height = _bar(weight)
        y = _ROWS["weight"] - 11 - height / 2
        drawing.box(x, y, 12.0, height, fill=weight_colour(abs(weight)))
        drawing.text(x, _ROWS["weight"], f"{weight:.2f}", size=13.0, bold=True, fill=STRONG)
    return drawing


def _bar(weight: float) -> float:
    """Return the height of the bar of a weight in pixels."""
    return max(1.0, _BAR * min(1.0, abs(weight)))


def _context_drawing(
    source_x: Sequence[float],
    weights: np.ndarray,
    x: float,
    parts: Sequence[np.ndarray],
    number: int,
) -> Canvas:
    """Draw lines from the states to the context, as wide as the weights, and the context."""
    drawing, y = Canvas(), _ROWS["context"]
    for source, weight in zip(source_x, weights.tolist(), strict=True):
        width = max(0.75, 10.0 * min(1.0, abs(weight)))
        start = (source, _ROWS["weight"] - 13 - _bar(weight))
        drawing.line(start, (x, y + _CELL * len(parts) / 2 + 4), width, weight_colour(abs(weight)))
    drawing.arrow((x, y - _CELL * len(parts) / 2 - 4), (x, 18.0), 2.0, STRONG)
    width, height = _CELLS * _CELL + 8, _CELL * len(parts) + 8
    drawing.box(x, y, width, height, rx=5, fill="white", stroke=STRONG, stroke_width=1.5)
    for row, part in enumerate(parts):
        _draw_cells(drawing, x, y + _CELL * (row - (len(parts) - 1) / 2), part)
    _draw_symbol(drawing, x + width / 2 + 14, y, "c", number, STRONG)
    return drawing


def _draw_cells(canvas: Canvas, x: float, y: float, components: np.ndarray) -> None:
    left = x - _CELL * (len(components) - 1) / 2
    for i, value in enumerate(components.tolist()):
        style = {"fill": _signed_colour(value), "stroke": "white", "stroke_width": 0.5}
        canvas.box(left + i * _CELL, y, _CELL, _CELL, f"{value:.3f}", **style)


def _signed_colour(value: float) -> str:
    """Return white at 0, blue towards 1 and orange towards -1."""
    full = STRONG if value > 0 else _NEGATIVE
    share = min(1.0, abs(value))
    mixed = (round(255 + share * (int(full[i : i + 2], 16) - 255)) for i in (1, 3, 5))
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def _draw_symbol(canvas: Canvas, x: float, y: float, letter: str, index: int, colour: str) -> None:
    subscript = element("tspan", str(index), dy=4, font_size=10)
    canvas.text(x, y, letter, subscript, size=14.0, fill=colour)
