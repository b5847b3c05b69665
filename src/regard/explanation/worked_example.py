"""Worked example: every number of the three steps of attention, for one query.

    score e_i = score(s, h_i)    normalise alpha_i = exp(e_i) / Z    sum c = sum_i alpha_i h_i

Computed in float64 from the formulas, independently of the layers.
"""

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from regard.arrays import to_array
from regard.errors import ConfigError, ShapeError
from regard.score_registry import Parameters, ScoreEntry, find_score

Vector = npt.NDArray[np.float64]

_MAX_SCORE = 600.0
"""Scores are shifted if one is further from 0: exponentials overflow above 709, sums of many of them
earlier, and they underflow below -708."""


@dataclasses.dataclass(frozen=True, eq=False)
class Explanation:
    """Every number in one attention step; `str()` returns the calculation as text."""

    query: Vector | None
    """(Dq,): the decoder's state s; None if there is no query."""
    keys: Vector
    """(T, Dk): the encoder's states h_i."""
    values: Vector
    """(T, Dv): the values."""
    score: str
    """Name of the score function; "given" if weights are given."""
    parameters: dict[str, Vector]
    """Parameters of the score function, keyed by the letters in its formula."""
    scores: Vector | None
    """(T,): e_i."""
    exponentials: Vector | None
    """(T,): exp(e_i - shift)."""
    partition: float
    """Z, the sum of the exponentials; the sum of the weights if they are given."""
    weights: Vector
    """(T,): alpha_i."""
    labels: list[str]
    """Names of the T states."""
    shift: float = 0.0
    """Number subtracted from every score before the exponential; it does not change the weights."""
    assumed: frozenset[str] = frozenset()
    """Letters of the parameters that have default values: the identity, ones or 1."""

    @property
    def weighted(self) -> Vector:
        """(T, Dv): the values times their weights."""
        return self.weights[:, None] * self.values

    @property
    def context(self) -> Vector:
        """(Dv,): c, the weighted sum of the values."""
        return self.weights @ self.values

    @property
    def unnormalised_sum(self) -> Vector | None:
        """(Dv,): sum_i e_i h_i, the sum weighted by the scores."""
        return None if self.scores is None else self.scores @ self.values

    @property
    def concatenated(self) -> Vector:
        """(Dq + Dv,): [s; c], query and context concatenated."""
        query = np.zeros(0) if self.query is None else self.query
        return np.concatenate([query, self.context])

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers at full precision."""
        names = (
            "score labels query keys values parameters scores shift exponentials partition weights "
            "weighted context concatenated unnormalised_sum"
        )
        return {name: _to_json(getattr(self, name)) for name in names.split()}

    def to_json(self) -> str:
        """Return `to_dict` as JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False, indent=2) + "\n"

    def to_text(self, digits: int = 4, unnormalised: bool = False) -> str:
        """Return the calculation as plain text, rounded to `digits` digits."""
        from regard.explanation.formatting import write

        return write(self, digits, unnormalised, plain=True)

    def to_markdown(self, digits: int = 4, unnormalised: bool = False) -> str:
        """Return the calculation as Markdown with LaTeX formulas, rounded to `digits` digits."""
        from regard.explanation.formatting import write

        return write(self, digits, unnormalised, plain=False)

    def __str__(self) -> str:
        return self.to_text()


def explain(
    query: Any,
    keys: Any,
    values: Any = None,
    score: str = "dot",
    *,
    parameters: Parameters | None = None,
    weights: Any = None,
    labels: Sequence[str] | None = None,
) -> Explanation:
    """Compute one attention step and return all its intermediate values.

    Args:
        query: (Dq,), the decoder's state; may be None if `weights` are given.
        keys: (T, Dk), the encoder's states.
        values: (T, Dv), the values; the keys by default.
        score: name or alias of a score function.
        parameters: parameters of the score function, keyed by the letters in its formula: W, U, v,
            bias, temperature. The defaults are identity matrices (ones on the diagonal if the
            widths differ), vectors of ones and temperature 1.
        weights: (T,), attention weights to use instead of computing them from scores.
        labels: names of the T states; h1, h2, … by default.

    Raises:
        ConfigError: the score function or a parameter is unknown or given with `weights`, or a number
            overflows.
        ShapeError: the shapes are incompatible; the message states them.
    """
    keys = _array(keys, "keys", 2)
    values = keys if values is None else _array(values, "values", 2)
    names = [f"h{i}" for i in range(1, len(keys) + 1)] if labels is None else list(labels)
    query = None if query is None else _array(query, "query", 1)
    weights = None if weights is None else _array(weights, "weights", 1)
    for name, rows in (("value", values), ("label", names), ("weight", weights)):
        if rows is not None and len(rows) != len(keys):
            raise ShapeError(f"expected a {name} for each of {len(keys)} keys, got {len(rows)}")
    if weights is not None:
        if parameters or score != "dot":
            raise ConfigError(
                "given weights are not computed from scores: leave out score and parameters, or weights"
            )
        total = float(weights.sum())
        return _finite(
            Explanation(query, keys, values, "given", {}, None, None, total, weights, names)
        )
    if query is None:
        raise ConfigError("scores cannot be computed without a query: give query, or weights")
    entry, parameters = find_score(score), parameters or {}
    used = _parameters(entry, parameters, len(query), keys.shape[1])
    with np.errstate(over="ignore", invalid="ignore"):  # _finite reports it
        scores = _scores(entry, query, keys, used)
        largest = float(scores.max())
        shift = largest if abs(largest) > _MAX_SCORE else 0.0
        powers = np.exp(scores - shift)
        total = float(powers.sum())
        return _finite(Explanation(
            query, keys, values, entry.name, used, scores, powers, total, powers / total, names,
            shift, frozenset(used.keys() - parameters.keys()),
        ))  # fmt: skip


def _finite(explanation: Explanation) -> Explanation:
    """Return the explanation, unless its numbers overflow."""
    with np.errstate(over="ignore", invalid="ignore"):
        results = (explanation.scores, explanation.unnormalised_sum, explanation.context)
    if not all(np.isfinite(result).all() for result in results if result is not None):
        raise ConfigError("the numbers are too large: a score or a sum overflows; scale them down")
    return explanation


def variances(
    dims: Sequence[int], samples: int = 20_000, seed: int = 1
) -> list[dict[str, int | float]]:
    """Measure the variance of s . h, s . h / sqrt(D) and s . h / D for every width D.

    The components of s and h are drawn from N(0, 1), so s . h is a sum of D products with variance 1.
    The expected variances are therefore D, 1 and 1 / D (Vaswani et al. 2017,
    arXiv:1706.03762, footnote 4). Each is measured on its own sample.
    """
    rng = np.random.default_rng(seed)
    return [
        {
            "dim": dim,
            "dot": float(_dot_products(rng, dim, samples).var()),
            "scaled_dot": float((_dot_products(rng, dim, samples) / math.sqrt(dim)).var()),
            "over_dim": float((_dot_products(rng, dim, samples) / dim).var()),
        }
        for dim in dims
    ]


def _dot_products(rng: np.random.Generator, dim: int, samples: int) -> Vector:
    """Return dot products of random vectors, drawn in chunks of bounded memory."""
    chunk = 2_000_000 // dim + 1
    sizes = (min(chunk, samples - start) for start in range(0, samples, chunk))
    products = (np.einsum("nd,nd->n", *rng.standard_normal((2, size, dim))) for size in sizes)
    return np.concatenate(list(products))


def _scores(entry: ScoreEntry, query: Vector, keys: Vector, parameters: Parameters) -> Vector:
    try:
        scores = np.array([entry.compute(query, key, parameters) for key in keys], float)
        if scores.ndim != 1:
            raise ValueError
        return scores
    except ValueError:
        shapes = ", ".join(f"{letter} {np.shape(p)}" for letter, p in parameters.items())
        raise ShapeError(
            f"{entry.name} ({entry.text}) cannot compare a query of width {len(query)} with keys "
            f"of width {keys.shape[1]}" + (f" by {shapes}" if shapes else "")
        ) from None


def _parameters(
    entry: ScoreEntry, parameters: Parameters, query_dim: int, key_dim: int
) -> dict[str, Vector]:
    if entry.equal_widths and query_dim != key_dim:
        raise ShapeError(
            f"{entry.name} ({entry.text}) cannot compare a query of width {query_dim} with keys of width "
            f"{key_dim}"
        )
    for letter in parameters:
        if letter not in entry.parameters:
            known = ", ".join(sorted(entry.parameters)) or "no parameters"
            raise ConfigError(f"{entry.name} has no parameter {letter!r}; it has {known}")
    widths = {"q": query_dim, "k": key_dim}
    axes = entry.parameters.items()
    defaults = {letter: _default(a, widths) for letter, a in axes if a is not None}
    found = defaults | {letter: _floats(value, letter) for letter, value in parameters.items()}
    if (found.get("temperature", np.array(1)) <= 0).any():
        given = parameters["temperature"]
        raise ConfigError(f"the temperature of {entry.name} must be above 0, got {given!r}")
    if entry.name == "inner_product" and not _is_positive_definite(found["W"]):
        raise ConfigError(
            "W of inner_product must be symmetric and positive definite; bilinear accepts any matrix"
        )
    rows = {letter: len(value) for letter, value in found.items() if value.ndim}
    if len({*rows.values()}) > 1:
        given = ", ".join(f"{letter} {count}" for letter, count in rows.items())
        raise ShapeError(
            f"the parameters of {entry.name} ({entry.text}) need equal numbers of rows, got {given}"
        )
    return found


def _is_positive_definite(matrix: Vector) -> bool:
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        return False
    return np.allclose(matrix, matrix.T) and bool(np.linalg.eigvalsh(matrix)[0] > 0)


def _default(axes: str, widths: dict[str, int]) -> Vector:
    """Return identity matrices side by side, a vector of ones, or 1."""
    if not axes:
        return np.array(1.0)
    rows, _, columns = axes.partition(" ")
    if not columns:
        return np.ones(widths[rows])
    return np.hstack([np.eye(widths[rows], widths[block]) for block in columns.split("+")])


def _array(values: Any, name: str, axes: int) -> Vector:
    array = _floats(values, name)
    if array.ndim != axes or not array.size:
        expected = "one row of numbers" if axes == 1 else "rows of numbers of the same length"
        raise ShapeError(f"expected {name} as {expected}, got shape {array.shape}")
    return array


def _floats(values: Any, name: str) -> Vector:
    array = to_array(values, name).astype(float)
    if not np.isfinite(array).all():
        raise ShapeError(f"expected {name} to contain only finite numbers")
    return array


def _to_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _to_json(item) for name, item in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value
