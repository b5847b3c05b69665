"""Paired comparison of two systems that translated the same sources.

The paired bootstrap (Koehn 2004, "Statistical Significance Tests for Machine Translation Evaluation",
section 3): both systems are evaluated on the same resamples of the sources, `metrics.RESAMPLES` of them,
and each resample gives one difference for each metric. This removes the variation that both systems
share because some sources are more difficult than others.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from regard.errors import DataError
from regard.metrics import METRICS, MetricValue, MetricValues, percentile_interval
from regard.text_table import text_table


@dataclass(frozen=True, slots=True)
class Difference:
    """A metric of a system minus the same metric of another one, in percentage points."""

    value: float
    """The metric of the first system, in percent."""
    other: float
    """The metric of the other system, in percent."""
    difference: float
    """`value - other`."""
    low: float
    """Lower end of the 95 % interval of the difference, from the 2.5 % and 97.5 % percentiles."""
    high: float
    """Upper end of the interval."""
    p_value: float
    """Two-sided p-value. Let k be the number of the R resamples whose difference is 0 or has the opposite
    sign of the observed difference; then p = min(1, 2 (k + 1) / (R + 1)), with p = 1 for equal values."""


@dataclass(frozen=True)
class Comparison:
    """Differences of all metrics between a system and another one; `str()` returns a table."""

    name: str
    """Name of the other system."""
    differences: dict[str, Difference]
    """By the names in `regard.metrics.METRICS`."""

    def to_dict(self) -> dict[str, Any]:
        """Return the entry `comparison` of the document that `regard evaluate --json` writes."""
        metrics = {name: asdict(difference) for name, difference in self.differences.items()}
        return {"other": self.name, **metrics}

    def __str__(self) -> str:
        """Return the table that `regard evaluate --compare` prints."""
        rows = [("metric", "value", "other", "difference", "95 % interval", "p")]
        for name, part in self.differences.items():
            interval = f"{part.low:+.2f} – {part.high:+.2f}"
            values = f"{part.value:.2f}", f"{part.other:.2f}", f"{part.difference:+.2f}"
            rows.append((METRICS[name].label, *values, interval, f"{part.p_value:.3f}"))
        return (
            f"compared with {self.name}, paired bootstrap over the sources, two-sided p-values\n\n"
            f"{text_table(rows)}"
        )


def compare(metrics: MetricValues, other: MetricValues, name: str = "other") -> Comparison:
    """Compare the metrics of two systems on the same sources, in the same order.

    Args:
        metrics: the metrics of a system, for example `regard.evaluate(…).metrics`.
        other: those of the system to compare it with.
        name: name of the other system.

    Raises:
        DataError: the systems were evaluated on different numbers of sources, or metrics were computed
            with different settings or numbers of references.
    """
    if metrics.n != other.n:
        raise DataError(
            f"two systems are compared on the same sources, got {metrics.n:,} and {other.n:,} "
            "sources; evaluate both on the same pairs"
        )
    for key in METRICS:
        ours, theirs = getattr(metrics, key).signature, getattr(other, key).signature
        if ours != theirs:
            raise DataError(
                f"two systems are compared with the same metrics, got {METRICS[key].label} {ours} and "
                f"{theirs}; evaluate both on the same pairs, with the same settings"
            )
    return Comparison(
        name, {key: _difference(getattr(metrics, key), getattr(other, key)) for key in METRICS}
    )


def _difference(metric: MetricValue, other: MetricValue) -> Difference:
    assert metric.resampled is not None
    assert other.resampled is not None
    difference, resampled = metric.value - other.value, metric.resampled - other.resampled
    low, high = percentile_interval(resampled)
    opposite = int((resampled * np.sign(difference) <= 0).sum())
    p_value = min(1.0, 2 * (opposite + 1) / (len(resampled) + 1))
    return Difference(metric.value, other.value, difference, low, high, p_value)
