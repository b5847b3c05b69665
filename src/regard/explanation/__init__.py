"""The three moves of attention with numbers: for vectors, or for a trained model's look.

walk.py the moves · formulas.py scores by hand · writing.py as text and Markdown · model.py from a folder
"""

from regard.explanation.worked_example import Explanation, explain, variances

__all__ = ["Explanation", "explain", "variances"]
