"""The walk: every move of attention for one query, in numbers.

    score e_i = score(s, h_i)    normalise alpha_i = exp(e_i) / Z    average c = sum_i alpha_i h_i

Worked in float64 straight from the formulas, apart from the layers that it explains.
"""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from regard.errors import ConfigError, ShapeError
from regard.score_registry import Parameters, ScoreEntry, find_score

Vector = npt.NDArray[np.float64]

_LARGEST = 700.0
"""Scores above it have exponentials that float64 cannot hold."""


@dataclasses.dataclass(frozen=True, eq=False)
class Explanation:
    """Every number of one look; `str()` is the walk."""

    query: Vector | None
    """(Dq,): the decoder's state s; None where weights were given."""
    keys: Vector
    """(T, Dk): the encoder's states h_i."""
    values: Vector
    """(T, Dv): what is averaged."""
    score: str
    """Name of the score; "given" where weights were."""
    parameters: dict[str, Vector]
    """Of the score, by the letters of its formula."""
    scores: Vector | None
    """(T,): e_i."""
    exponentials: Vector | None
    """(T,): exp(e_i - shift)."""
    partition: float
    """Z, the sum of the exponentials; of given weights their sum."""
    weights: Vector
    """(T,): alpha_i."""
    labels: list[str]
    """Names of the T states."""
    shift: float = 0.0
    """What was taken off every score before the exponential; weights do not feel it."""
    assumed: frozenset[str] = frozenset()
    """Letters of the parameters that were not given: the identity, and ones."""

    @property
    def weighted(self) -> Vector:
        """(T, Dv): every value times its weight."""
        return self.weights[:, None] * self.values

    @property
    def context(self) -> Vector:
        """(Dv,): c, the sum of them."""
        return self.weights @ self.values

    @property
    def raw(self) -> Vector | None:
        """(Dv,): the average without normalising: sum_i e_i h_i."""
        return None if self.scores is None else self.scores @ self.values

    @property
    def concatenated(self) -> Vector:
        """(Dq + Dv,): [s; c], what a decoder goes on with."""
        query = np.zeros(0) if self.query is None else self.query
        return np.concatenate([query, self.context])

    def to_dict(self) -> dict[str, Any]:
        """Everything, at full precision."""
        fields = {
            "score": self.score, "labels": self.labels, "query": self.query, "keys": self.keys,
            "values": self.values, "parameters": self.parameters, "scores": self.scores,
            "shift": self.shift, "exponentials": self.exponentials, "partition": self.partition,
            "weights": self.weights, "weighted": self.weighted, "context": self.context,
            "concatenated": self.concatenated, "without_normalising": self.raw,
        }  # fmt: skip
        return {name: _plain(value) for name, value in fields.items()}

    def to_json(self) -> str:
        """The same as JSON."""
        return json.dumps(self.to_dict(), ensure_ascii=False, indent=2) + "\n"

    def to_text(self, digits: int = 4, without_normalising: bool = False) -> str:
        """The walk as plain text, numbers rounded to so many digits."""
        from regard.explanation.formatting import write

        return write(self, digits, without_normalising, plain=True)

    def to_markdown(self, digits: int = 4, without_normalising: bool = False) -> str:
        """The walk as Markdown with formulas in LaTeX."""
        from regard.explanation.formatting import write

        return write(self, digits, without_normalising, plain=False)

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
    """Walk through one look at the keys, move by move.

    Args:
        query: (Dq,), the decoder's state; None where `weights` are given.
        keys: (T, Dk), the encoder's states.
        values: (T, Dv), what is averaged; the keys by default.
        score: name or alias of a score.
        parameters: of the score, by the letters of its formula: W, U, v, bias, temperature. Those
            that are missing are W = U = I and v = 1.
        weights: (T,), to average with these instead of scoring.
        labels: names of the T states; h1, h2, … by default.

    Raises:
        ConfigError: there is no such score, or parameter of it.
        ShapeError: shapes do not fit; the message names them.
    """
    states = _matrix(keys, "keys")
    means = states if values is None else _matrix(values, "values")
    if len(means) != len(states):
        raise ShapeError(f"expected a value for each of {len(states)} keys, got {len(means)}")
    names = [f"h{i}" for i in range(1, len(states) + 1)] if labels is None else list(labels)
    if len(names) != len(states):
        raise ShapeError(f"expected a label for each of {len(states)} keys, got {len(names)}")
    if weights is not None:
        shares = _vector(weights, "weights")
        if len(shares) != len(states):
            raise ShapeError(f"expected a weight for each of {len(states)} keys, got {len(shares)}")
        state = None if query is None else _vector(query, "query")
        return Explanation(
            state, states, means, "given", {}, None, None, float(shares.sum()), shares, names
        )
    if query is None:
        raise ConfigError("there is no query to score the keys with: give one, or weights")
    state = _vector(query, "query")
    entry = find_score(score)
    used = _parameters(entry, parameters or {}, len(state), states.shape[1])
    found = _scores(entry, state, states, used)
    shift = float(found.max()) if found.max() > _LARGEST else 0.0
    powers = np.exp(found - shift)
    total = float(powers.sum())
    return Explanation(
        state, states, means, entry.name, used, found, powers, total, powers / total, names, shift,
        frozenset(used.keys() - (parameters or {}).keys()),
    )  # fmt: skip


def variances(
    dims: Sequence[int], samples: int = 20_000, seed: int = 1
) -> list[dict[str, int | float]]:
    """Variance of s . h, of s . h / sqrt(D) and of s . h / D, measured, for every width D.

    The components of s and h are drawn from N(0, 1), so s . h is a sum of D products of variance 1:
    the derivation gives D, 1 and 1 / D (Vaswani et al. 2017, arXiv:1706.03762, footnote 4).
    """
    rng = np.random.default_rng(seed)
    rows: list[dict[str, int | float]] = []
    for dim in dims:
        products = np.concatenate([
            np.einsum("nd,nd->n", *rng.standard_normal((2, part, dim)))
            for part in _parts(samples, 2_000_000 // dim + 1)
        ])  # fmt: skip
        variance = float(products.var())
        rows.append({
            "dim": dim, "dot": variance, "scaled_dot": variance / dim, "over_dim": variance / dim**2,
        })  # fmt: skip
    return rows


def _parts(total: int, most: int) -> list[int]:
    return [min(most, total - start) for start in range(0, total, most)]


def _scores(entry: ScoreEntry, query: Vector, keys: Vector, parameters: Parameters) -> Vector:
    try:
        return np.array([entry.compute(query, key, parameters) for key in keys], float)
    except ValueError:
        shapes = ", ".join(f"{letter} {np.shape(p)}" for letter, p in parameters.items())
        raise ShapeError(
            f"{entry.name} ({entry.text}) cannot compare a query of width {len(query)} with keys "
            f"of width {keys.shape[1]}" + (f" by {shapes}" if shapes else "")
        ) from None


def _parameters(
    entry: ScoreEntry, given: Parameters, query_dim: int, key_dim: int
) -> dict[str, Vector]:
    defaults = entry.defaults(query_dim, key_dim)
    allowed = {*defaults, *entry.optional_parameters}
    for letter in given:
        if letter not in allowed:
            known = ", ".join(sorted(allowed)) or "no parameters"
            raise ConfigError(f"{entry.name} has no parameter {letter!r}; it has {known}")
    arrays = {letter: np.asarray(value, dtype=float) for letter, value in given.items()}
    return {**defaults, **arrays}


def _vector(values: Any, name: str) -> Vector:
    found = _array(values, name)
    if found.ndim != 1 or not found.size:
        raise ShapeError(f"expected {name} as one row of numbers, got shape {found.shape}")
    return found


def _matrix(values: Any, name: str) -> Vector:
    found = _array(values, name)
    if found.ndim != 2 or not found.size:
        raise ShapeError(
            f"expected {name} as rows of numbers, all as long, got shape {found.shape}"
        )
    return found


def _array(values: Any, name: str) -> Vector:
    try:
        found = np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        raise ShapeError(f"expected {name} as numbers in rows of one length") from None
    if not np.isfinite(found).all():
        raise ShapeError(f"expected {name} of finite numbers")
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value
