"""Attention weights as a map: source across, output down, darker for more attention."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from regard.charts.base import Chart, heading, style
from regard.charts.grid import EXPLANATION, Size, cells, encoding, records, tokens
from regard.charts.labels import check, spelled
from regard.errors import DataError, ShapeError


@dataclass(frozen=True, eq=False)
class Heatmap(Chart):
    """A heat map of attention weights.

    Attributes:
        weights: (L, T), one row per output symbol, one column per source symbol.
        source_tokens: the T symbols the model read.
        target_tokens: the L symbols it wrote.
        title: a line above the map, or "".
        heads: (L, layers, heads, T), every head's weights, for its page to choose from; None: only
            what `weights` holds.
    """

    weights: np.ndarray
    source_tokens: Sequence[str]
    target_tokens: Sequence[str]
    title: str = ""
    heads: np.ndarray | None = None

    def to_json(self) -> str:
        """The data of the map: source_tokens, target_tokens, attention (rounded to 6 digits)."""
        content = {
            "source_tokens": list(self.source_tokens),
            "target_tokens": list(self.target_tokens),
            "attention": self.weights.astype(float).round(6).tolist(),
        }
        return json.dumps(content, ensure_ascii=False) + "\n"

    def to_altair(self) -> Any:
        """The map as an `altair.Chart`, for changes of your own."""
        import altair as alt

        source, target = spelled(self.source_tokens), spelled(self.target_tokens)
        size = Size.of(source, target)
        chart = alt.Chart(
            alt.InlineData(values=records(self.weights)),
            title=alt.TitleParams(**heading(self.title, EXPLANATION)),
            width=size.width,
            height=size.height,
            config=style(size.font, size.title_limit),
        )
        marks = cells(chart).mark_rect(stroke="white", strokeWidth=size.gap)
        return marks.encode(**encoding(size)).add_params(*tokens(source, target))

    def to_page(self) -> Any:
        """The map, and below it the weights of one step, to be moved through step by step."""
        from regard.charts.slider import page

        return page(
            self.weights,
            self.heads,
            spelled(self.source_tokens),
            spelled(self.target_tokens),
            self.title,
        )

    @property
    def labels(self) -> list[str]:
        """The tokens of both sides."""
        return [*spelled(self.source_tokens), *spelled(self.target_tokens)]

    def __repr__(self) -> str:
        return (
            f"Heatmap({len(self.target_tokens)} output x {len(self.source_tokens)} source symbols)"
        )


def heatmap(
    weights: np.ndarray,
    source_tokens: Sequence[str],
    target_tokens: Sequence[str],
    *,
    title: str = "",
    heads: np.ndarray | None = None,
) -> Heatmap:
    """Draw attention weights as a map: source across, output down, darker for more attention.

    The scale of the colours is always 0 to 1, so that maps can be compared; weights outside it
    (attention that is not normalised) take the colour of its nearer end. Saved as a page it has a
    slider over the steps, with the weights of one step as bars, and a choice of layers and heads.

    Args:
        weights: (L, T), one row per output symbol.
        source_tokens: the T symbols the model read.
        target_tokens: the L symbols it wrote.
        title: a line above the map, for instance the sentence.
        heads: (L, layers, heads, T), every head's weights, for the page to choose from.

    Raises:
        ShapeError: the weights, or every head's, are not one row per output and one column per
            source symbol.
        DataError: there is no row or no column, or a weight is not a finite number.
    """
    weights = check(weights, source_tokens, target_tokens)
    if heads is not None:
        heads = _checked(heads, weights)
    return Heatmap(weights, list(source_tokens), list(target_tokens), title, heads)


def _checked(heads: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The weights of every head as an array that fits those of the map."""
    heads = np.asarray(heads)
    length, width = weights.shape
    if heads.ndim != 4 or heads.shape[::3] != (length, width) or not heads.size:
        raise ShapeError(
            f"weights of every head must be ({length}, layers, heads, {width}), got {heads.shape}"
        )
    if not np.isfinite(heads).all():
        raise DataError("weights of every head must be finite numbers, some are not")
    return heads
