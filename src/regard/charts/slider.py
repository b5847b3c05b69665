"""The page of a map: one step after the other, its weights as bars, of any layer and head."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from regard.charts.base import GREY, INK, heading, style
from regard.charts.grid import EXPLANATION, Size, cells, encoding, records, tokens

_SHOWN, _AVERAGE = "shown", "average"
_HEIGHT = 110
"""Of the bars, in pixels."""
_HINT = "Move the slider below, or the pointer over the map, to see the weights of one step."


def page(
    weights: np.ndarray,
    heads: np.ndarray | None,
    source: Sequence[str],
    target: Sequence[str],
    title: str,
) -> Any:
    """The map above the bars of its chosen step, and inputs for the step, the layer and the head.

    Args:
        weights: (L, T), what is shown at first.
        heads: (L, layers, heads, T), what can be chosen; None: nothing.
        source: T labels.
        target: L labels.
        title: a line above the map, or "".
    """
    import altair as alt

    size = Size.of(source, target)
    choices = _choices(heads)
    data = alt.InlineData(values=_all_records(weights, heads if choices else None))
    # the parts take their data from the whole: Altair would copy it at every step
    chart = alt.Chart(width=size.width).transform_calculate(output_step="datum.row + 1")
    if choices:
        chart = chart.transform_filter(
            "datum.layer == layer && (layer == 'shown' || datum.head == head)"
        )
    every = weights if heads is None else np.append(heads.ravel(), weights)
    ends = min(0.0, float(every.min())), max(1.0, float(every.max()))
    step = _step(len(target))
    return (
        alt.vconcat(_map(chart, size, step), _bars(chart, size, step, ends), spacing=34)
        .add_params(*tokens(source, target), *choices)
        .resolve_scale(color="independent")
        .properties(
            data=data,
            title=alt.TitleParams(**heading(title, [*EXPLANATION, _HINT])),
            config=style(size.font, size.title_limit),
        )
    )


def _all_records(weights: np.ndarray, heads: np.ndarray | None) -> list[dict[str, Any]]:
    """One record for every row of every map, with the sum of its weights."""
    maps = {(_SHOWN, _AVERAGE): weights}
    for layer in range(heads.shape[1] if heads is not None else 0):
        assert heads is not None
        maps[str(layer), _AVERAGE] = heads[:, layer].mean(1)
        for head in range(heads.shape[2] if heads.shape[2] > 1 else 0):
            maps[str(layer), str(head)] = heads[:, layer, head]
    return [
        {**record, "sum": round(float(total), 4)}
        for (layer, head), each in maps.items()
        for record, total in zip(
            records(each, layer=layer, head=head), each.astype(float).sum(1), strict=True
        )
    ]


def _choices(heads: np.ndarray | None) -> list[Any]:
    """The inputs for layer and head; none where there is but one."""
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


def _step(length: int) -> Any:
    """The chosen step, counted from 1: by a slider, and by the pointer over the map."""
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


def _map(chart: Any, size: Size, step: Any) -> Any:
    """The cells, and a frame around the chosen row."""
    import altair as alt

    channels = encoding(size)
    marks = cells(chart).mark_rect(stroke="white", strokeWidth=size.gap).encode(**channels)
    frame = chart.transform_filter(step).mark_rect(
        filled=False, stroke=INK, strokeWidth=2, aria=False
    )
    frame = frame.encode(y=channels["y"], x=alt.value(0), x2=alt.value(size.width))
    return alt.layer(marks.add_params(step), frame).properties(width=size.width, height=size.height)


def _bars(chart: Any, size: Size, step: Any, ends: tuple[float, float]) -> Any:
    """The weights of the chosen step, and their sum."""
    import altair as alt

    channels = encoding(size)
    axis = alt.Axis(
        labelExpr="source_tokens[datum.value]",
        labelAngle=size.label_angle,
        labelOverlap=False,
        labelLimit=140,
    )
    across = alt.X("column:O", title=None, axis=axis)
    up = alt.Y(
        "weight:Q",
        title="weight",
        scale=alt.Scale(domain=list(ends), nice=False),
        axis=alt.Axis(values=[0, 0.5, 1], grid=True, gridColor="#e6eaee"),
    )
    chosen = chart.transform_filter(step)
    marks = cells(chosen).mark_bar(stroke="white", strokeWidth=size.gap)
    bars = marks.encode(
        x=across,
        y=up,
        color=channels["color"].legend(None),
        **{name: channels[name] for name in ("tooltip", "description")},
    )
    said = (
        "'step ' + datum.output_step + ', “' + target_tokens[datum.row] + "
        "'”: the weights sum to ' + format(datum.sum, '.2f')"
    )
    words = chosen.transform_calculate(said=said).mark_text(
        align="left", fontSize=13, color=GREY, aria=False
    )
    words = words.encode(x=alt.value(0), y=alt.value(-14), text="said:N")
    return alt.layer(bars, words).properties(width=size.width, height=_HEIGHT)
