"""Display of one output in a notebook, as HTML without scripts."""

import html
import math
from collections.abc import Sequence

_SMALL = "opacity:0.8;font-size:13px;margin:2px 0"


def output_html(
    text: str,
    notes: Sequence[str],
    svg: str | None,
    alternatives: Sequence[tuple[str, float]] = (),
    next_tokens: Sequence[Sequence[tuple[str, float]]] = (),
) -> str:
    """Return the HTML of an output.

    Args:
        text: the output.
        notes: lines below it, such as its source and score.
        svg: its heatmap; None without attention.
        alternatives: other outputs of the same source with their scores, best first.
        next_tokens: for every step the most probable tokens with their log-probabilities.
    """
    parts = [f'<p dir="auto" style="font-size:20px;font-weight:600;margin:4px 0">{_text(text)}</p>']
    parts += [f'<p dir="auto" style="{_SMALL}">{html.escape(note)}</p>' for note in notes]
    if svg is not None:
        # heatmaps are drawn on white, in dark notebooks too
        parts.append(f'<div style="background:#fff;overflow-x:auto">{svg}</div>')
    if alternatives:
        items = [f'<li dir="auto">{_text(text)} ({score:.3f})</li>' for text, score in alternatives]
        parts.append(_details("Other outputs, with their scores", f"<ol>{''.join(items)}</ol>"))
    if next_tokens:
        rows = [
            f"<tr><th>{step}</th>{''.join(_token_cell(*token) for token in tokens)}</tr>"
            for step, tokens in enumerate(next_tokens)
        ]
        parts.append(
            _details("Most probable tokens at every step", f"<table>{''.join(rows)}</table>")
        )
    return f"<div>{''.join(parts)}</div>"


def _text(text: str) -> str:
    return html.escape(text) or "(no output)"


def _token_cell(token: str, log_prob: float) -> str:
    return f"<td><bdi>{html.escape(token)}</bdi> {100 * math.exp(log_prob):.1f} %</td>"


def _details(summary: str, content: str) -> str:
    return f'<details><summary style="{_SMALL}">{summary}</summary>{content}</details>'
