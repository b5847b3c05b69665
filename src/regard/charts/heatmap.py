"""Attention weights as a map: source across, output down, darker for more attention."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.cells import cell_len

from regard.charts.labels import check, spelled
from regard.charts.picture import GREY, Picture, shown, style

# One hue, ever darker (ColorBrewer "Blues"): still in order for colour-blind eyes and in grey print.
_BLUES = [
    "#f7fbff", "#deebf7", "#c6dbef", "#9ecae1", "#6baed6", "#4292c6", "#2171b5", "#08519c", "#08306b",
]  # fmt: skip
_EXPLANATION = [
    "Each row is one step of the output: the darker a cell,",
    "the more the model looked at that part of the source.",
]


@dataclass(frozen=True, eq=False)
class Chart(Picture):
    """A heat map of attention weights.

    Attributes:
        weights: (L, T), one row per output symbol, one column per source symbol.
        source_tokens: the T symbols the model read.
        target_tokens: the L symbols it wrote.
        title: a line above the map, or "".
    """

    weights: np.ndarray
    source_tokens: Sequence[str]
    target_tokens: Sequence[str]
    title: str = ""

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
        size = _Size.of(source, target)
        # Cells are keyed by position: a token as key would merge the columns of equal tokens.
        return (
            alt.Chart(
                alt.InlineData(values=_rows(self.weights)),
                title=alt.TitleParams(**_title(self.title)),
                width=size.width,
                height=size.height,
                config=style(size.font, size.title_limit),
            )
            .transform_flatten(["weight"])
            .transform_window(number="row_number()", groupby=["row"])
            .transform_calculate(
                column="datum.number - 1",
                source="source_tokens[datum.number - 1]",
                output="target_tokens[datum.row]",
            )
            .transform_calculate(
                spoken="datum.output + ' looks at ' + datum.source + ': ' + format(datum.weight, '.3f')"
            )
            .mark_rect(stroke="white", strokeWidth=size.gap)
            .encode(**_encoding(size))
            .add_params(
                alt.param(name="source_tokens", value=source),
                alt.param(name="target_tokens", value=target),
            )
        )

    @property
    def labels(self) -> list[str]:
        """The tokens of both sides."""
        return [*spelled(self.source_tokens), *spelled(self.target_tokens)]

    def __repr__(self) -> str:
        return f"Chart({len(self.target_tokens)} output x {len(self.source_tokens)} source symbols)"


def heatmap(
    weights: np.ndarray,
    source_tokens: Sequence[str],
    target_tokens: Sequence[str],
    *,
    title: str = "",
) -> Chart:
    """Draw attention weights as a map: source across, output down, darker for more attention.

    The scale of the colours is always 0 to 1, so that maps can be compared; weights outside it
    (attention that is not normalised) take the colour of its nearer end.

    Args:
        weights: (L, T), one row per output symbol.
        source_tokens: the T symbols the model read.
        target_tokens: the L symbols it wrote.
        title: a line above the map, for instance the sentence.

    Raises:
        ShapeError: the weights are not one row per output and one column per source symbol.
        DataError: there is no row or no column, or a weight is not a finite number.
    """
    weights = check(weights, source_tokens, target_tokens)
    return Chart(weights, list(source_tokens), list(target_tokens), title)


def _rows(weights: np.ndarray) -> list[dict[str, Any]]:
    """One record per row of the map: a record per cell would repeat its keys L x T times."""
    rounded = weights.astype(float).round(4).tolist()
    return [{"row": row, "weight": values} for row, values in enumerate(rounded)]


@dataclass(frozen=True, kw_only=True)
class _Size:
    """Measures of a map, in pixels: cells about square, smaller where there are many."""

    width: float
    height: float
    font: float
    gap: float
    label_angle: int
    legend_length: float
    title_limit: float

    @classmethod
    def of(cls, source: Sequence[str], target: Sequence[str]) -> "_Size":
        side = min(44.0, max(11.0, 720 / max(len(source), len(target))))
        font = min(13.0, side - 2)
        longest = max(map(cell_len, source)) * font * 0.6 + 6
        # a cell may be up to twice as wide as high when that lets its label lie flat
        flat = longest <= 2 * side and max(side, longest) * len(source) <= 720
        cell_width = max(side, longest) if flat else side
        height = side * len(target)
        return cls(
            width=cell_width * len(source),
            height=height,
            font=font,
            gap=1.0 if side >= 16 else 0.5,
            label_angle=0 if flat else -45 if side >= 20 else -90,
            legend_length=min(160.0, max(90.0, height)),
            title_limit=max(480.0, cell_width * len(source) + 120),
        )


def _title(title: str) -> dict[str, Any]:
    if not title:
        return {"text": _EXPLANATION, "fontSize": 12, "fontWeight": "normal", "color": GREY}
    return {"text": shown(title), "subtitle": _EXPLANATION}


def _encoding(size: _Size) -> dict[str, Any]:
    import altair as alt

    labels: dict[str, Any] = {"labelOverlap": False, "labelLimit": 140}
    source = alt.Axis(
        orient="top", labelExpr="source_tokens[datum.value]", labelAngle=size.label_angle, **labels
    )
    target = alt.Axis(labelExpr="target_tokens[datum.value]", **labels)
    return {
        "x": alt.X("column:O", title="source", axis=source),
        "y": alt.Y("row:O", title="output", axis=target),
        "color": alt.Color("weight:Q", title="weight")
        .scale(domain=[0, 1], range=_BLUES, clamp=True)
        .legend(values=[0, 0.5, 1], gradientLength=size.legend_length),
        "tooltip": ["source:N", "output:N", alt.Tooltip("weight:Q", format=".3f")],
        "description": "spoken:N",
    }
