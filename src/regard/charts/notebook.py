"""Display of one output in a notebook, as HTML without scripts."""

import html
import math
from collections.abc import Sequence

_WARNING = "border-left:3px solid #d9730d;padding-left:8px;font-weight:600;margin:4px 0"
_CHART = "display:inline-block;max-width:100%;overflow-x:auto;background:#fff;border-radius:6px"
_CELL = "text-align:left;white-space:nowrap;padding:1px 12px 1px 0"
_SMALL = "opacity:0.8;font-size:13px;margin:2px 0"


def output_html(
    text: str,
    warning: str | None,
    notes: Sequence[str],
    svg: str | None,
    alternatives: Sequence[tuple[str, float]] = (),
    next_tokens: Sequence[Sequence[tuple[str, float]]] = (),
) -> str:
    """Return the HTML of an output.

    Args:
        text: the output.
        warning: a bold line below the output, if any.
        notes: lines below the warning, such as the source and the score.
        svg: the heatmap of the output; None if there is no attention.
        alternatives: other outputs of the same source with their scores, best first.
        next_tokens: the most probable tokens at every step, with their log-probabilities.
    """
    parts = [f'<p dir="auto" style="font-size:20px;font-weight:600;margin:4px 0">{_text(text)}</p>']
    if warning is not None:
        parts.append(f'<p style="{_WARNING}">⚠ {html.escape(warning)}</p>')
    parts += [f'<p dir="auto" style="{_SMALL}">{html.escape(note)}</p>' for note in notes]
    if svg is not None:
        # heatmaps are drawn on white, in dark notebooks too
        parts.append(f'<div style="{_CHART}">{svg}</div>')
    if alternatives:
        items = [f'<li dir="auto">{_text(text)} ({score:.3f})</li>' for text, score in alternatives]
        parts.append(_details("Other outputs, with their scores", f"<ol>{''.join(items)}</ol>"))
    if next_tokens:
        rows = [
            f'<tr><th style="{_CELL}">{step}</th>{"".join(_token_cell(*token) for token in tokens)}</tr>'
            for step, tokens in enumerate(next_tokens)
        ]
        table = f'<table style="font-size:13px">{"".join(rows)}</table>'
        box = f'<div style="overflow-x:auto">{table}</div>'
        parts.append(_details("Most probable tokens at every step (counted from 0)", box))
    return f"<div>{''.join(parts)}</div>"


def _text(text: str) -> str:
    return html.escape(text) or "(no output)"


def _token_cell(token: str, log_prob: float) -> str:
    probability = f"{100 * math.exp(log_prob):.1f} %"
    return f'<td style="{_CELL}"><bdi>{html.escape(token)}</bdi> {probability}</td>'


def _details(summary: str, content: str) -> str:
    return f'<details><summary style="{_SMALL}">{summary}</summary>{content}</details>'
