"""Diagrams of encoder-decoder attention and self-attention; line width represents weight."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from regard.charts.base import GREY, INK
from regard.charts.labels import check_weights, token_labels
from regard.charts.svg import FAINT, STRONG, Canvas, Diagram, element, weight_colour
from regard.charts.text import text_width
from regard.errors import ConfigError, quantity

_LINE_WIDTH = 12.0
"""Width in pixels of a line for weight 1."""
_PRINTED = 0.05
"""Minimum weight that is printed."""
_STATE = 34.0
"""Height of a state."""
_CONTEXT_Y = 67.0
"""Vertical position of the context; the decoder states are at 0."""


_BOTTLENECK = [
    "Without attention, the last state of the encoder is all that the decoder receives from",
    "the source, whatever its length: the bottleneck.",
]


def encoder_decoder(
    weights: np.ndarray | None,
    source_tokens: Sequence[str],
    target_tokens: Sequence[str],
    step: int = 0,
    *,
    title: str = "",
) -> Diagram:
    """Draw encoder and decoder at one decoding step, with one line per attention weight.

    Args:
        weights: (L, T), one row per target token; None: no attention, with a single line from the
            last encoder state, which represents the whole source.
        source_tokens: T tokens.
        target_tokens: L tokens; those after `step` are not drawn.
        step: decoding step, from 0.
        title: chart title.

    Raises:
        ShapeError: the weights are not (L, T).
        DataError: L or T is 0, or a weight is not finite.
        ConfigError: `step` is out of range.
    """
    attends = weights is not None
    if weights is None:
        weights = np.zeros((len(target_tokens), len(source_tokens)))
        weights[:, -1:] = 1
    weights = check_weights(weights, source_tokens, target_tokens).astype(float)
    if not 0 <= step < len(target_tokens):
        raise ConfigError(
            f"there is no step {step}: the output has {quantity(len(target_tokens), 'step')}, "
            "counted from 0"
        )
    source, target = token_labels(source_tokens), token_labels(target_tokens)
    pitch, (source_x, target_x) = _columns(source, target)
    encoder_y = _CONTEXT_Y + min(170.0, max(110.0, 0.27 * pitch * max(len(source), len(target))))
    x, output = target_x[step], target[step] if attends else ""
    canvas = Canvas()
    _draw_attention(canvas, weights[step], source, source_x, encoder_y, output, x)
    canvas.arrow((x, _CONTEXT_Y), (x, _STATE / 2 + 1), 2.0, STRONG)
    _draw_states(canvas, "h", source_x, encoder_y, pitch)
    _draw_states(canvas, "s", target_x, 0.0, pitch, step)
    canvas.box(x, _CONTEXT_Y, 32.0, 32.0, rx=16, fill="white", stroke=STRONG, stroke_width=1.2)
    _draw_symbol(canvas, x, _CONTEXT_Y, "c", step + 1 if attends else None, STRONG)
    canvas.labels(source_x, encoder_y + 33, source, pitch)
    canvas.labels(target_x[: step + 1], -33.0, target, pitch, above=True, current=step)
    rows = {"output": -33.0, "decoder": 0.0, "context": _CONTEXT_Y, "encoder": encoder_y}
    _draw_row_names(canvas, {**rows, "source": encoder_y + 33})
    content = {
        "source_tokens": list(source_tokens),
        "target_tokens": list(target_tokens),
        "step": step,
        "attention": weights.round(6).tolist() if attends else None,
    }
    return canvas.diagram(content, title, _explanation(output) if attends else _BOTTLENECK)


def _explanation(output: str) -> list[str]:
    return [
        f"Before it predicts “{output}”, the decoder attends to all states of the encoder;",
        "the thicker a line, the larger the weight of that state in the context.",
    ]


def self_attention(
    weights: np.ndarray, tokens: Sequence[str], position: int | None = None, *, title: str = ""
) -> Diagram:
    """Draw self-attention between two copies of a sequence: queries above, keys below.

    Weights below 0.005, or half of 1 / T if that is smaller, have no line.

    Args:
        weights: (T, T), one row per query.
        tokens: T tokens.
        position: query to highlight, from 0, whose weights are printed; None: no query.
        title: chart title.

    Raises:
        ShapeError: the weights are not (T, T).
        DataError: T is 0, or a weight is not finite.
        ConfigError: `position` is out of range.
    """
    weights = check_weights(weights, tokens, tokens).astype(float)
    if position is not None and not 0 <= position < len(tokens):
        raise ConfigError(
            f"there is no position {position}: the sequence has {quantity(len(tokens), 'token')}, "
            "counted from 0"
        )
    labels = token_labels(tokens)
    pitch, (centres, _) = _columns(labels, labels)
    canvas, keys_y = Canvas(), min(190.0, max(110.0, 0.35 * pitch * len(tokens)))
    smallest = min(0.005, 0.5 / len(tokens))
    # wide lines are drawn over narrow ones, and those of the highlighted query on top
    lines = sorted(
        (i == position, abs(weight), weight, i, j)
        for i, row in enumerate(weights.tolist())
        for j, weight in enumerate(row)
        if abs(weight) >= smallest
    )
    for highlighted, size, weight, i, j in lines:
        share = min(1.0, size) * (1.0 if highlighted else 0.6)
        colour = weight_colour(share) if highlighted or position is None else "#e6eaee"
        tooltip = f"{labels[i]} attends to {labels[j]}: {weight:.3f}"
        width = max(0.5, _LINE_WIDTH * share)
        canvas.line((centres[i], 14.0), (centres[j], keys_y - 14), width, colour, tooltip)
    fill = INK if position is None else GREY
    canvas.labels(centres, 0.0, labels, pitch, above=True, current=position, fill=fill)
    canvas.labels(centres, keys_y, labels, pitch)
    rows = {"query": 0.0, "key": keys_y}
    if position is not None:
        rows["weight"] = canvas.bottom + 14
        for x, weight in zip(centres, weights[position], strict=True):
            if abs(weight) >= _PRINTED:
                canvas.text(x, rows["weight"], f"{weight:.2f}", size=12.0, fill=STRONG)
    _draw_row_names(canvas, rows)
    explanation = [
        "Each token in the upper row attends to the tokens in the lower row, itself included;",
        "the thicker a line, the larger the weight.",
    ]
    content = {"tokens": list(tokens), "position": position}
    return canvas.diagram({**content, "attention": weights.round(6).tolist()}, title, explanation)


def _columns(*rows: Sequence[str]) -> tuple[float, list[list[float]]]:
    """Return the width of a column and the x of the tokens of each row, rows centred at 0."""
    longest = max(text_width(token, 13.0) for row in rows for token in row)
    pitch = min(max(62.0, longest + 14), max(42.0, 660 / max(map(len, rows))))
    return pitch, [[pitch * (i - (len(row) - 1) / 2) for i in range(len(row))] for row in rows]


def _draw_row_names(canvas: Canvas, rows: dict[str, float]) -> None:
    x = canvas.left - 72
    for name, y in rows.items():
        canvas.text(x, y, name, size=12.0, fill=GREY, anchor="start")


def _draw_attention(
    canvas: Canvas,
    weights: np.ndarray,
    source: Sequence[str],
    source_x: Sequence[float],
    encoder_y: float,
    output: str,
    context_x: float,
) -> None:
    """Draw lines from encoder states to the context; without `output`, only one from the last state."""
    top, printed = encoder_y - _STATE / 2 + 8, []
    for i in np.argsort(abs(weights)).tolist():
        x, weight = source_x[i], float(weights[i])
        tooltip = f"{output} attends to {source[i]}: {weight:.3f}" if output else "the whole source"
        if output or weight:
            width = max(0.75, _LINE_WIDTH * min(1.0, abs(weight)))
            colour = weight_colour(abs(weight))
            canvas.line((x, top), (context_x, _CONTEXT_Y), width, colour, tooltip)
        if output and abs(weight) >= _PRINTED:
            printed.append((x + 0.3 * (context_x - x), f"{weight:.2f}"))
    y = top + 0.3 * (_CONTEXT_Y - top)
    for x, text in sorted(printed):
        canvas.box(x, y, 30.0, 18.0, rx=3, fill="white")
        canvas.text(x, y, text, size=12.0)


def _draw_states(
    canvas: Canvas,
    letter: str,
    centres: Sequence[float],
    y: float,
    pitch: float,
    current: int | None = None,
) -> None:
    """Draw a row of states, with arrows up to the current state or, if it is None, to the last."""
    width, last = min(44.0, pitch - 14), len(centres) - 1 if current is None else current
    for x, following in pairwise(centres[: last + 1]):
        canvas.arrow((x + width / 2, y), (following - width / 2, y), 1.0, GREY)
    for i, x in enumerate(centres):
        fill, stroke, colour = ("white", GREY, INK) if i <= last else ("white", FAINT, FAINT)
        if i == current:
            fill, stroke, colour = STRONG, STRONG, "white"
        canvas.box(
            x, y, width, _STATE, class_="state", rx=6, fill=fill, stroke=stroke, stroke_width=1.2
        )
        _draw_symbol(canvas, x, y, letter, i + 1, colour)


def _draw_symbol(
    canvas: Canvas, x: float, y: float, letter: str, index: int | None, colour: str
) -> None:
    """Draw a letter with a subscript."""
    subscript = [] if index is None else [element("tspan", str(index), dy=4, font_size=10)]
    canvas.text(x, y, letter, *subscript, size=14.0, fill=colour)
