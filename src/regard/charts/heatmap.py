"""Heatmap of attention weights: source on the x-axis, output on the y-axis.

The HTML page is interactive: bars show the weights of a selected step, layer and head.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from regard.arrays import to_array
from regard.charts.base import BLUES, GREY, INK
from regard.charts.labels import check_weights, token_labels
from regard.charts.text import text_width
from regard.charts.vega import VegaChart, chart_title, theme
from regard.errors import DataError, ShapeError

MOST_CELLS = 500_000
"""Weights of the largest image: the renderer ends the process at about twice as many."""

_NO_HEADS = np.empty((0, 0, 0, 0))
_HINT = "Use the slider below or point at a row to see the weights of one step."


@dataclass(frozen=True, eq=False)
class Heatmap(VegaChart):
    """Heatmap of attention weights; its attributes are the arguments of `heatmap`."""

    weights: np.ndarray
    source_tokens: Sequence[str]
    target_tokens: Sequence[str]
    title: str = ""
    heads: np.ndarray | None = None
    method: str = "attention"

    def to_json(self) -> str:
        """Return `source_tokens`, `target_tokens` and `attention` (rounded to 6 digits) as JSON.

        Attributions have the key `weights`, and `method` names their method.
        """
        weights = self.weights.astype(float).round(6).tolist()
        content = {
            "source_tokens": list(self.source_tokens),
            "target_tokens": list(self.target_tokens),
        }
        if self.method == "attention":
            content["attention"] = weights
        else:
            content |= {"method": self.method, "weights": weights}
        return json.dumps(content, ensure_ascii=False) + "\n"

    def to_svg(self) -> str:
        """Return the chart as SVG; the viewer supplies the fonts.

        Raises:
            DataError: there are more than `MOST_CELLS` weights.
        """
        if self.weights.size > MOST_CELLS:
            rows, columns = self.weights.shape
            raise DataError(
                f"an image holds at most {MOST_CELLS:,} weights, got {rows:,} x {columns:,}; save the "
                "chart as .html or .json, or divide the text"
            )
        return super().to_svg()

    def to_altair(self) -> Any:
        """Return an `altair.Chart` for further customisation."""
        import altair as alt

        layout = _Layout(self)
        cells = _marks(alt.Chart(width=layout.width, height=layout.height), layout, "rect")
        return layout.complete(cells, _records(self.weights, _NO_HEADS), self._explanation)

    def to_interactive(self) -> Any:
        """Return the heatmap above bars for the selected step, with inputs for step, layer and head."""
        import altair as alt

        layout, heads = _Layout(self), self.heads
        if heads is None or heads.shape[1] * heads.shape[2] == 1:
            heads = _NO_HEADS
        # subcharts inherit the data: Altair would copy it at every step
        chart = alt.Chart(width=layout.width)
        inputs = _inputs(*heads.shape[1:3])
        if inputs:
            chart = chart.transform_filter(
                "datum.layer == layer && (layer == 'default' || datum.head == head)"
            )
        step = alt.selection_point(
            name="step",
            fields=["row"],
            value=[{"row": 0}],
            bind=alt.binding_range(min=0, max=len(layout.target) - 1, step=1, name="output step "),
            on="pointerover",
            clear=False,
            toggle=False,
            empty=False,
        )
        values = np.append(heads.ravel(), self.weights)
        domain = [min(0.0, float(values.min())), max(1.0, float(values.max()))]
        subcharts = _grid(chart, layout, step), _bars(chart.transform_filter(step), layout, domain)
        records = _records(self.weights, heads)
        return (
            layout.complete(
                alt.vconcat(*subcharts, spacing=34), records, [*self._explanation, _HINT]
            )
            .add_params(*inputs)
            .resolve_scale(color="independent")
        )

    @property
    def _explanation(self) -> list[str]:
        if self.method == "attention":
            quantity = "attention weight of that source token."
        else:
            quantity = f"attribution ({self.method}), without its sign, as a share of its row."
        return [
            "Each row is one step of the output: the darker a cell,",
            f"the larger the {quantity}",
        ]

    def __repr__(self) -> str:
        rows, columns = self.weights.shape
        return f"Heatmap({rows} output x {columns} source tokens)"


def heatmap(
    weights: Any,
    source_tokens: Sequence[str],
    target_tokens: Sequence[str],
    *,
    title: str = "",
    heads: Any = None,
    method: str = "attention",
) -> Heatmap:
    """Draw attention weights as a heatmap: source on the x-axis, output on the y-axis.

    The colour scale is always 0 to 1, so that heatmaps can be compared; weights outside
    this range (attention that is not normalised) have the colour of the nearest limit. The HTML page
    has a slider for the step, whose weights are drawn as bars, and inputs for layer and head.

    Args:
        weights: (L, T), one row per target token: an array, a tensor or lists.
        source_tokens: T tokens.
        target_tokens: L tokens.
        title: chart title, for instance the sentence.
        heads: (L, layers, heads, T), weights of all heads, which can be selected in the HTML page.
        method: what the weights are: `attention`, or the name of an attribution method.

    Raises:
        ShapeError: the weights are not (L, T), or `heads` is not (L, layers, heads, T).
        DataError: L or T is 0, or a weight is not finite.
    """
    weights = check_weights(weights, source_tokens, target_tokens)
    if heads is not None:
        heads = to_array(heads, "weights of all heads").copy()
        length, width = weights.shape
        if heads.ndim != 4 or heads.shape[::3] != (length, width) or not heads.size:
            raise ShapeError(
                f"weights of all heads must be ({length}, layers, heads, {width}), got {heads.shape}"
            )
        if not np.isfinite(heads).all():
            raise DataError("weights of all heads must be finite numbers, but some are not")
    # copies: the caller may reuse the arrays
    return Heatmap(weights.copy(), list(source_tokens), list(target_tokens), title, heads, method)


class _Layout:
    """Labels and sizes in pixels: cells are about square, and smaller if there are many."""

    def __init__(self, heatmap: Heatmap) -> None:
        self.title = heatmap.title
        # the description of a cell, between the tokens
        self.relation = " attends to " if heatmap.method == "attention" else " from "
        self.source = token_labels(heatmap.source_tokens)
        self.target = token_labels(heatmap.target_tokens)
        count = len(self.source)
        side = min(44.0, max(11.0, 720 / max(count, len(self.target))))
        self.font = min(13.0, side - 2)
        longest = max(text_width(label, self.font) for label in self.source) + 8
        # a cell may be up to twice as wide as high if its label fits horizontally as a result
        horizontal = longest <= 2 * side and max(side, longest) * count <= 720
        self.width = count * (max(side, longest) if horizontal else side)
        self.height = side * len(self.target)
        self.gap = 1.0 if side >= 16 else 0.5
        self.label_angle = 0 if horizontal else -45 if side >= 20 else -90

    def complete(self, chart: Any, records: list[dict[str, Any]], explanation: list[str]) -> Any:
        """Return `chart` with data, title, theme and the Vega parameters of the axis labels."""
        import altair as alt

        return chart.properties(
            data=alt.InlineData(values=records),
            title=chart_title(self.title, explanation, max(480.0, self.width + 120)),
            config=theme(self.font),
        ).add_params(
            alt.param(name="source_tokens", value=self.source),
            alt.param(name="target_tokens", value=self.target),
        )

    def channels(self) -> dict[str, Any]:
        """Return the encoding: source on the x-axis, output on the y-axis, larger weights darker."""
        import altair as alt

        def axis(tokens: str, **options: Any) -> Any:
            labels = f"{tokens}[datum.value]"
            return alt.Axis(labelExpr=labels, labelOverlap=False, labelLimit=140, **options)

        source = axis("source_tokens", orient="top", labelAngle=self.label_angle)
        return {
            "x": alt.X("column:O", title="source", axis=source),
            "y": alt.Y("row:O", title="output", axis=axis("target_tokens")),
            "color": alt.Color("weight:Q", title="weight")
            .scale(domain=[0, 1], range=BLUES, clamp=True)
            .legend(values=[0, 0.5, 1], gradientLength=min(160.0, max(90.0, self.height))),
            "tooltip": ["source:N", "output:N", alt.Tooltip("weight:Q", format=".3f")],
            "description": "description:N",
        }


def _records(weights: np.ndarray, heads: np.ndarray) -> list[dict[str, Any]]:
    """Return one record per row of every layer and head: one per cell would repeat the keys L x T times."""
    maps = {("default", "average"): weights}
    for layer in range(heads.shape[1]):
        maps[str(layer), "average"] = heads[:, layer].mean(1)
        for head in range(heads.shape[2] if heads.shape[2] > 1 else 0):
            maps[str(layer), str(head)] = heads[:, layer, head]
    return [
        {"layer": layer, "head": head, "row": i, "weight": row.round(4).tolist()}
        | {"sum": round(float(row.sum()), 4)}
        for (layer, head), rows in maps.items()
        for i, row in enumerate(rows.astype(float))
    ]


def _marks(chart: Any, layout: _Layout, mark: Literal["rect", "bar"], **channels: Any) -> Any:
    """Return one mark per weight, with a description; `channels` replaces those of the layout.

    Cells are keyed by position: tokens as keys would merge the columns of equal tokens.
    """
    import altair as alt

    return (
        chart.transform_flatten(["weight"])
        .transform_window(number="row_number()", groupby=["row"])
        .transform_calculate(
            column="datum.number - 1",
            source="source_tokens[datum.number - 1]",
            output="target_tokens[datum.row]",
            description=f"datum.output + '{layout.relation}' + datum.source + ': ' + format(datum.weight, '.3f')",
        )
        .properties(mark=alt.MarkDef(mark, stroke="white", strokeWidth=layout.gap))
        .encode(**layout.channels() | channels)
    )


def _inputs(layers: int, heads: int) -> list[Any]:
    """Return the inputs for layer and head; an empty list if there are no layers."""
    import altair as alt

    if not layers:
        return []
    layer = alt.binding_select(options=["default", *map(str, range(layers))], name="layer ")
    head = alt.binding_select(options=["average", *map(str, range(heads))], name="head ")
    return [
        alt.param(name="layer", value="default", bind=layer),
        alt.param(name="head", value="average", bind=head if heads > 1 else alt.Undefined),
    ]


def _grid(chart: Any, layout: _Layout, step: Any) -> Any:
    """Return the cells, with a frame around the selected row."""
    import altair as alt

    frame = chart.transform_filter(step).mark_rect(
        filled=False, stroke=INK, strokeWidth=2, aria=False
    )
    frame = frame.encode(y=layout.channels()["y"], x=alt.value(0), x2=alt.value(layout.width))
    return alt.layer(_marks(chart, layout, "rect").add_params(step), frame).properties(
        height=layout.height
    )


def _bars(chart: Any, layout: _Layout, domain: list[float]) -> Any:
    """Return the weights in `chart`, which contains the selected step, as bars, with their sum."""
    import altair as alt

    channels = layout.channels()
    x = channels["x"].title(None)
    x["axis"]["orient"] = "bottom"
    y = alt.Y(
        "weight:Q",
        title="weight",
        scale=alt.Scale(domain=domain, nice=False),
        axis=alt.Axis(values=[0, 0.5, 1], grid=True, gridColor="#e6eaee"),
    )
    bars = _marks(chart, layout, "bar", x=x, y=y, color=channels["color"].legend(None))
    caption = (
        "'step ' + datum.row + ', “' + target_tokens[datum.row] + "
        "'”: the weights sum to ' + format(datum.sum, '.2f')"
    )
    text = chart.transform_calculate(caption=caption).mark_text(
        align="left", fontSize=13, color=GREY, aria=False
    )
    text = text.encode(x=alt.value(0), y=alt.value(-14), text="caption:N")
    return alt.layer(bars, text).properties(height=110)
