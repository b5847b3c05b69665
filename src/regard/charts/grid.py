"""The cells of a map and their measures, for maps that stand still and maps that move."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.cells import cell_len

from regard.charts.base import BLUES

EXPLANATION = [
    "Each row is one step of the output: the darker a cell,",
    "the more the model looked at that part of the source.",
]


@dataclass(frozen=True, kw_only=True)
class Size:
    """Measures of a map, in pixels: cells about square, smaller where there are many."""

    width: float
    height: float
    font: float
    gap: float
    label_angle: int
    legend_length: float
    title_limit: float

    @classmethod
    def of(cls, source: Sequence[str], target: Sequence[str]) -> "Size":
        """The measures of a map with these labels."""
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


def records(weights: np.ndarray, **fields: Any) -> list[dict[str, Any]]:
    """One record per row of the map: a record per cell would repeat its keys L x T times."""
    rounded = weights.astype(float).round(4).tolist()
    return [{**fields, "row": row, "weight": values} for row, values in enumerate(rounded)]


def cells(chart: Any) -> Any:
    """`chart` of records with a record per cell: column, source, output and all of it spoken.

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
            spoken="datum.output + ' looks at ' + datum.source + ': ' + format(datum.weight, '.3f')"
        )
    )


def tokens(source: Sequence[str], target: Sequence[str]) -> list[Any]:
    """The parameters that labels are read from."""
    import altair as alt

    return [
        alt.param(name="source_tokens", value=list(source)),
        alt.param(name="target_tokens", value=list(target)),
    ]


def encoding(size: Size) -> dict[str, Any]:
    """Source across, output down, darker for more."""
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
        .scale(domain=[0, 1], range=BLUES, clamp=True)
        .legend(values=[0, 0.5, 1], gradientLength=size.legend_length),
        "tooltip": ["source:N", "output:N", alt.Tooltip("weight:Q", format=".3f")],
        "description": "spoken:N",
    }
