"""Heatmap of attention weights: source on the x-axis, output on the y-axis.

In HTML it is interactive: bars show the weights of a selected step, layer and head.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.cells import cell_len

from regard.charts.base import BLUES, GREY, INK
from regard.charts.labels import check_weights, token_labels
from regard.charts.vega import VegaChart, theme, title_params
from regard.errors import DataError, ShapeError

_EXPLANATION = [
    "Each row is one step of the output: the darker a cell,",
    "the larger the attention weight of that source token.",
]
_SHOWN, _AVERAGE = "shown", "average"
_BARS_HEIGHT = 110
_HINT = "Use the slider below or point at a row to see the weights of one step."


@dataclass(frozen=True, eq=False)
class Heatmap(VegaChart):
    """Heatmap of attention weights.

    Attributes:
        weights: (L, T), one row per target token, one column per source token.
        source_tokens: T tokens.
        target_tokens: L tokens.
        title: chart title, or "".
        heads: (L, layers, heads, T), weights of all heads, selectable in the HTML page; None: only
            `weights`.
    """

    weights: np.ndarray
    source_tokens: Sequence[str]
    target_tokens: Sequence[str]
    title: str = ""
    heads: np.ndarray | None = None

    def to_json(self) -> str:
        """Return source_tokens, target_tokens and attention (rounded to 6 digits) as JSON."""
        content = {
            "source_tokens": list(self.source_tokens),
            "target_tokens": list(self.target_tokens),
            "attention": self.weights.astype(float).round(6).tolist(),
        }
        return json.dumps(content, ensure_ascii=False) + "\n"

    def to_altair(self) -> Any:
        """Return an `altair.Chart` for further customisation."""
        import altair as alt

        source, target = token_labels(self.source_tokens), token_labels(self.target_tokens)
        layout = _Layout.for_labels(source, target)
        chart = alt.Chart(
            alt.InlineData(values=_row_records(self.weights)),
            title=alt.TitleParams(**title_params(self.title, _EXPLANATION)),
            width=layout.width,
            height=layout.height,
            config=theme(layout.font, layout.title_limit),
        )
        marks = _flatten_cells(chart).mark_rect(stroke="white", strokeWidth=layout.gap)
        return marks.encode(**_encoding(layout)).add_params(*_token_params(source, target))

    def to_interactive(self) -> Any:
        """Return the heatmap over the weights of one step, with a slider over the steps."""
        source, target = token_labels(self.source_tokens), token_labels(self.target_tokens)
        return _interactive(self.weights, self.heads, source, target, self.title)

    def __repr__(self) -> str:
        return (
            f"Heatmap({len(self.target_tokens)} output x {len(self.source_tokens)} source tokens)"
        )


def heatmap(
    weights: np.ndarray,
    source_tokens: Sequence[str],
    target_tokens: Sequence[str],
    *,
    title: str = "",
    heads: np.ndarray | None = None,
) -> Heatmap:
    """Draw attention weights as a heatmap: source on the x-axis, output on the y-axis.

    The colour scale is always 0 to 1, so that heatmaps can be compared; weights outside it
    (attention that is not normalised) take the colour of the nearer end. The HTML page has a slider
    over the steps, with the weights of one step as bars, and a choice of layers and heads.

    Args:
        weights: (L, T), one row per target token.
        source_tokens: T tokens.
        target_tokens: L tokens.
        title: chart title, for instance the sentence.
        heads: (L, layers, heads, T), weights of all heads, selectable in the HTML page.

    Raises:
        ShapeError: the weights are not (L, T), or those of the heads not (L, layers, heads, T).
        DataError: L or T is 0, or a weight is not finite.
    """
    weights = check_weights(weights, source_tokens, target_tokens)
    if heads is not None:
        heads = _check_heads(heads, weights)
    return Heatmap(weights, list(source_tokens), list(target_tokens), title, heads)


def _check_heads(heads: np.ndarray, weights: np.ndarray) -> np.ndarray:
    heads = np.asarray(heads)
    length, width = weights.shape
    if heads.ndim != 4 or heads.shape[::3] != (length, width) or not heads.size:
        raise ShapeError(
            f"weights of all heads must be ({length}, layers, heads, {width}), got {heads.shape}"
        )
    if not np.isfinite(heads).all():
        raise DataError("weights of all heads must be finite numbers, some are not")
    return heads


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """Sizes of a heatmap in pixels: cells are about square, and smaller the more there are."""

    width: float
    height: float
    font: float
    gap: float
    label_angle: int
    legend_length: float
    title_limit: float

    @classmethod
    def for_labels(cls, source: Sequence[str], target: Sequence[str]) -> "_Layout":
        """Return the layout of a heatmap with these labels."""
        side = min(44.0, max(11.0, 720 / max(len(source), len(target))))
        font = min(13.0, side - 2)
        longest = max(map(cell_len, source)) * font * 0.6 + 6
        # a cell may be up to twice as wide as high if its label then fits horizontally
        horizontal = longest <= 2 * side and max(side, longest) * len(source) <= 720
        cell_width = max(side, longest) if horizontal else side
        height = side * len(target)
        return cls(
            width=cell_width * len(source),
            height=height,
            font=font,
            gap=1.0 if side >= 16 else 0.5,
            label_angle=0 if horizontal else -45 if side >= 20 else -90,
            legend_length=min(160.0, max(90.0, height)),
            title_limit=max(480.0, cell_width * len(source) + 120),
        )


def _row_records(weights: np.ndarray, **fields: Any) -> list[dict[str, Any]]:
    """Return a record per row: one per cell would repeat its keys L x T times."""
    rounded = weights.astype(float).round(4).tolist()
    return [{**fields, "row": row, "weight": values} for row, values in enumerate(rounded)]


def _flatten_cells(chart: Any) -> Any:
    """Return `chart` with a record per cell instead of per row, and its description.

    Cells are keyed by position: a token as key would merge the columns of equal tokens.
    """
    return (
        chart.transform_flatten(["weight"])
        .transform_window(number="row_number()", groupby=["row"])
        .transform_calculate(
            column="datum.number - 1",
            source="source_tokens[datum.number - 1]",
            output="target_tokens[datum.row]",
        )
        .transform_calculate(
            description="datum.output + ' attends to ' + datum.source + ': ' + format(datum.weight, '.3f')"
        )
    )


def _token_params(source: Sequence[str], target: Sequence[str]) -> list[Any]:
    """Return the Vega parameters that hold the axis labels."""
    import altair as alt

    return [
        alt.param(name="source_tokens", value=list(source)),
        alt.param(name="target_tokens", value=list(target)),
    ]


def _encoding(layout: _Layout) -> dict[str, Any]:
    """Return the encoding: source on the x-axis, output on the y-axis, darker for larger weights."""
    import altair as alt

    labels: dict[str, Any] = {"labelOverlap": False, "labelLimit": 140}
    source = alt.Axis(
        orient="top",
        labelExpr="source_tokens[datum.value]",
        labelAngle=layout.label_angle,
        **labels,
    )
    target = alt.Axis(labelExpr="target_tokens[datum.value]", **labels)
    return {
        "x": alt.X("column:O", title="source", axis=source),
        "y": alt.Y("row:O", title="output", axis=target),
        "color": alt.Color("weight:Q", title="weight")
        .scale(domain=[0, 1], range=BLUES, clamp=True)
        .legend(values=[0, 0.5, 1], gradientLength=layout.legend_length),
        "tooltip": ["source:N", "output:N", alt.Tooltip("weight:Q", format=".3f")],
        "description": "description:N",
    }


def _interactive(
    weights: np.ndarray,
    heads: np.ndarray | None,
    source: Sequence[str],
    target: Sequence[str],
    title: str,
) -> Any:
    """Return the heatmap over the bars of the selected step, with inputs for step, layer and head.

    Args:
        weights: (L, T), displayed at first.
        heads: (L, layers, heads, T), selectable; None: no choice of layers and heads.
        source: T labels.
        target: L labels.
        title: chart title, or "".
    """
    import altair as alt

    layout = _Layout.for_labels(source, target)
    inputs = _inputs(heads)
    data = alt.InlineData(values=_all_records(weights, heads if inputs else None))
    # subcharts inherit the data: Altair would copy it at every step
    chart = alt.Chart(width=layout.width).transform_calculate(output_step="datum.row + 1")
    if inputs:
        chart = chart.transform_filter(
            "datum.layer == layer && (layer == 'shown' || datum.head == head)"
        )
    values = weights if heads is None else np.append(heads.ravel(), weights)
    domain = min(0.0, float(values.min())), max(1.0, float(values.max()))
    step = _step_selection(len(target))
    return (
        alt.vconcat(_grid(chart, layout, step), _bars(chart, layout, step, domain), spacing=34)
        .add_params(*_token_params(source, target), *inputs)
        .resolve_scale(color="independent")
        .properties(
            data=data,
            title=alt.TitleParams(**title_params(title, [*_EXPLANATION, _HINT])),
            config=theme(layout.font, layout.title_limit),
        )
    )


def _all_records(weights: np.ndarray, heads: np.ndarray | None) -> list[dict[str, Any]]:
    """Return a record per row of every layer and head, with the sum of its weights."""
    maps = {(_SHOWN, _AVERAGE): weights}
    for layer in range(heads.shape[1] if heads is not None else 0):
        assert heads is not None
        maps[str(layer), _AVERAGE] = heads[:, layer].mean(1)
        for head in range(heads.shape[2] if heads.shape[2] > 1 else 0):
            maps[str(layer), str(head)] = heads[:, layer, head]
    return [
        {**record, "sum": round(float(total), 4)}
        for (layer, head), rows in maps.items()
        for record, total in zip(
            _row_records(rows, layer=layer, head=head), rows.astype(float).sum(1), strict=True
        )
    ]


def _inputs(heads: np.ndarray | None) -> list[Any]:
    """Return the inputs for layer and head; none if there is a single head."""
    import altair as alt

    if heads is None or heads.shape[1] * heads.shape[2] == 1:
        return []
    _, layers, count, _ = heads.shape
    layer = alt.binding_select(options=[_SHOWN, *map(str, range(layers))], name="layer ")
    head = alt.binding_select(options=[_AVERAGE, *map(str, range(count))], name="head of it ")
    return [
        alt.param(name="layer", value=_SHOWN, bind=layer),
        alt.param(name="head", value=_AVERAGE, bind=head if count > 1 else alt.Undefined),
    ]


def _step_selection(length: int) -> Any:
    """Return the selection of a step, from 1: by slider, or by pointing at a row."""
    import altair as alt

    slider = alt.binding_range(min=1, max=length, step=1, name="output step ")
    return alt.selection_point(
        name="step",
        fields=["output_step"],
        value=[{"output_step": 1}],
        bind=slider,
        on="pointerover",
        clear=False,
        toggle=False,
        empty=False,
    )


def _grid(chart: Any, layout: _Layout, step: Any) -> Any:
    """Return the cells, with a frame around the selected row."""
    import altair as alt

    channels = _encoding(layout)
    marks = _flatten_cells(chart).mark_rect(stroke="white", strokeWidth=layout.gap)
    marks = marks.encode(**channels).add_params(step)
    frame = chart.transform_filter(step).mark_rect(
        filled=False, stroke=INK, strokeWidth=2, aria=False
    )
    frame = frame.encode(y=channels["y"], x=alt.value(0), x2=alt.value(layout.width))
    return alt.layer(marks, frame).properties(width=layout.width, height=layout.height)


def _bars(chart: Any, layout: _Layout, step: Any, domain: tuple[float, float]) -> Any:
    """Return the weights of the selected step as bars, with their sum."""
    import altair as alt

    channels = _encoding(layout)
    axis = alt.Axis(
        labelExpr="source_tokens[datum.value]",
        labelAngle=layout.label_angle,
        labelOverlap=False,
        labelLimit=140,
    )
    y = alt.Y(
        "weight:Q",
        title="weight",
        scale=alt.Scale(domain=list(domain), nice=False),
        axis=alt.Axis(values=[0, 0.5, 1], grid=True, gridColor="#e6eaee"),
    )
    selected = chart.transform_filter(step)
    bars = _flatten_cells(selected).mark_bar(stroke="white", strokeWidth=layout.gap)
    bars = bars.encode(
        x=alt.X("column:O", title=None, axis=axis),
        y=y,
        color=channels["color"].legend(None),
        **{name: channels[name] for name in ("tooltip", "description")},
    )
    caption = (
        "'step ' + datum.output_step + ', “' + target_tokens[datum.row] + "
        "'”: the weights sum to ' + format(datum.sum, '.2f')"
    )
    text = selected.transform_calculate(caption=caption).mark_text(
        align="left", fontSize=13, color=GREY, aria=False
    )
    text = text.encode(x=alt.value(0), y=alt.value(-14), text="caption:N")
    return alt.layer(bars, text).properties(width=layout.width, height=_BARS_HEIGHT)
