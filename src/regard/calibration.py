"""Calibration: whether outputs of probability p are right in a share p of all cases."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

BINS = 10
"""Number of bins, of equal width."""


@dataclass(frozen=True)
class CalibrationBin:
    """The `n` outputs whose probability is above `low` (or 0) and at most `high`, in percent."""

    low: float
    high: float
    n: int
    probability: float
    """Their mean probability in percent."""
    exact_match: float
    """The percentage of them that are right."""


@dataclass(frozen=True)
class Calibration:
    """Probabilities of outputs against how often they are right."""

    value: float
    """Expected calibration error in percent: the distance between mean probability and share of right
    outputs, averaged over the outputs, each in the bin of its probability."""
    bins: tuple[CalibrationBin, ...]
    """The bins that are not empty."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary."""
        return asdict(self)

    def __str__(self) -> str:
        """Return the error in one line, with the means that tell its direction."""
        count = sum(each.n for each in self.bins) or 1
        probability = sum(each.n * each.probability for each in self.bins) / count
        right = sum(each.n * each.exact_match for each in self.bins) / count
        return (
            f"expected calibration error of the probability against exact match: {self.value:.2f} "
            f"({BINS} bins; mean probability {probability:.1f} %, exact match {right:.1f} %)"
        )


def calibrate(
    probabilities: Sequence[float], right: Sequence[bool] | npt.NDArray[np.bool_]
) -> Calibration:
    """Return the expected calibration error, with bins of equal width.

    Guo et al. 2017, arXiv:1706.04599, eq. 3: sum over bins of n_b / n |acc(b) - conf(b)|.
    """
    values, correct = np.asarray(probabilities, np.float64), np.asarray(right, np.float64)
    numbers = np.clip(np.ceil(values * BINS).astype(np.int64) - 1, 0, BINS - 1)
    bins: list[CalibrationBin] = []
    error = 0.0
    for number in np.unique(numbers).tolist():
        inside = numbers == number
        mean, share = 100 * values[inside].mean(), 100 * correct[inside].mean()
        error += abs(mean - share) * inside.mean()
        edges = 100 * number / BINS, 100 * (number + 1) / BINS
        bins.append(CalibrationBin(*edges, int(inside.sum()), float(mean), float(share)))
    return Calibration(float(error), tuple(bins))
