"""Explanations: every number of one attention step, for given vectors or a trained model."""

from regard.explanation.worked_example import Explanation, explain, variances

__all__ = ["Explanation", "explain", "variances"]
