"""Table and chart of a comparison of models."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from itertools import groupby
from statistics import fmean, stdev

from regard.charts import LineChart, Point
from regard.errors import quantity
from regard.metrics import LengthBin, MetricValues

# 97.5 % quantiles of Student's t with 1, 2, … degrees of freedom
_T_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


@dataclasses.dataclass(frozen=True)
class Run:
    """A trained model and its results."""

    name: str
    """Its specification, such as `luong:dot`."""
    seed: int
    scores: MetricValues
    minutes: float
    """Training time."""
    updates: int
    parameters: int
    sentences_per_second: float
    """Translation speed on the test pairs."""
    longest_source: int
    """Number of tokens in the longest training source."""
    lengths: tuple[LengthBin, ...]
    """Metrics by source length."""
    aer: float | None
    """Alignment error rate against gold links, from 0 to 1; None without gold links or attention."""
    lowercase: bool = False
    """Whether outputs and references were lower-cased, as the model's targets are."""


def table(runs: Sequence[Run]) -> str:
    """Return a Markdown table: a row per model, means over its seeds, 95 % intervals."""
    columns: dict[str, Callable[[list[Run]], str]] = {
        "exact match, %": lambda group: _interval(group, "exact_match"),
        "PER, %": lambda group: _interval(group, "per"),
        "BLEU": lambda group: _interval(group, "bleu"),
        "parameters": lambda group: f"{group[0].parameters:,}",
        "minutes": lambda group: f"{fmean(run.minutes for run in group):.1f}",
        "updates": lambda group: f"{fmean(run.updates for run in group):,.0f}",
        "sentences/s": lambda group: f"{fmean(run.sentences_per_second for run in group):,.0f}",
    }
    if any(run.aer is not None for run in runs):
        columns["alignment error, %"] = _mean_aer
    rows = [["model", *columns], ["---"] * (1 + len(columns))]
    for name, group in _by_name(runs).items():
        rows.append([name, *(column(group) for column in columns.values())])
    sizes = [len(group) for group in _by_name(runs).values()]
    most, fewest = max(sizes), min(sizes)
    kind = f"of the mean over {most} seeds (Student's t)"
    if most == 1:
        kind = "over the sources, one seed (bootstrap)"
    elif fewest < most:
        kind = f"of the mean over up to {most} seeds (Student's t), or over the sources for one seed (bootstrap)"
    lines = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    lowercase = "; targets lower-cased" if runs[0].lowercase else ""
    return (
        f"{lines}\nIntervals are 95 % {kind}; {quantity(runs[0].scores.n, 'source')}{lowercase}.\n"
    )


def by_length(runs: Sequence[Run]) -> LineChart:
    """Return a chart of exact match by source length, one line per model."""
    points: list[Point] = []
    for name, group in _by_name(runs).items():
        for parts in zip(*(run.lengths for run in group), strict=True):
            low, high = parts[0].low, parts[0].high
            value = fmean(part.exact_match for part in parts)
            span = f"{low}" if low == high else f"{low}–{high}"
            tooltip = f"{span} tokens: {value:.1f} % of {parts[0].n:,}"
            points.append(Point(name, (low + high) / 2, value, tooltip))
    return LineChart(
        points,
        x_title="source length, tokens",
        y_title="exact match, %",
        title="Exact match by source length",
        explanation="Same pairs, same budget; each point is one length or a range of lengths.",
        rule=(float(runs[0].longest_source), "longest in training"),
        y_domain=(0.0, 100.0),
        notes={run.name: f"{run.parameters:,} parameters" for run in runs},
    )


def _by_name(runs: Sequence[Run]) -> dict[str, list[Run]]:
    return {name: list(group) for name, group in groupby(runs, key=lambda run: run.name)}


def _t_quantile(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t, beyond the table by Fisher's expansion."""
    if freedom <= len(_T_QUANTILES):
        return _T_QUANTILES[freedom - 1]
    z = 1.959964
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, start=1))


def _interval(group: Sequence[Run], metric: str) -> str:
    """Format a metric and its 95 % interval: from the bootstrap for one seed, else of the mean."""
    metrics = [getattr(run.scores, metric) for run in group]
    if len(metrics) == 1:
        return f"{metrics[0].value:.1f} ({metrics[0].low:.1f} – {metrics[0].high:.1f})"
    values = [metric_value.value for metric_value in metrics]
    quantile = _t_quantile(len(values) - 1)
    return f"{fmean(values):.1f} ± {quantile * stdev(values) / math.sqrt(len(values)):.1f}"


def _mean_aer(group: Sequence[Run]) -> str:
    errors = [run.aer for run in group if run.aer is not None]
    return f"{100 * fmean(errors):.1f}" if errors else "no attention"
