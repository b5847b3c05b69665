"""Every score as it is written, and as it is computed by hand."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]
Parameters = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Formula:
    """A score as it is written, and as it is computed."""

    text: str
    latex: str
    source: str
    defaults: Callable[[int, int], dict[str, Vector]]
    """What parameters are where none are given, for widths Dq and Dk."""
    compute: Callable[[Vector, Vector, Parameters], Any]
    """The score of one query and one key."""


def _none(query_dim: int, key_dim: int) -> dict[str, Vector]:
    return {}


def _identity(query_dim: int, key_dim: int) -> dict[str, Vector]:
    return {"W": np.eye(query_dim, key_dim)}


def _additive(query_dim: int, key_dim: int) -> dict[str, Vector]:
    eye = np.eye(query_dim)
    return {"W": eye, "U": np.eye(query_dim, key_dim), "v": np.ones(query_dim)}


def _concat(query_dim: int, key_dim: int) -> dict[str, Vector]:
    both = np.concatenate([np.eye(query_dim), np.eye(query_dim, key_dim)], axis=1)
    return {"W": both, "v": np.ones(query_dim)}


FORMULAS: dict[str, Formula] = {
    "dot": Formula("s . h", r"s \cdot h", "Luong et al. 2015", _none, lambda s, h, p: s @ h),
    "scaled_dot": Formula(
        "s . h / sqrt(D)",
        r"s \cdot h / \sqrt{D}",
        "Vaswani et al. 2017",
        _none,
        lambda s, h, p: s @ h / np.sqrt(len(s)),
    ),
    "cosine": Formula(
        "s . h / (|s| |h| temperature)",
        r"s \cdot h / (|s| |h| \tau)",
        "the cosine of the angle between them",
        lambda query_dim, key_dim: {"temperature": np.array(1.0)},
        lambda s, h, p: s @ h / (np.linalg.norm(s) * np.linalg.norm(h) * p["temperature"]),
    ),
    "bilinear": Formula(
        "s W h",
        r"s^\top W h",
        "Luong et al. 2015, general",
        _identity,
        lambda s, h, p: s @ p["W"] @ h,
    ),
    "inner_product": Formula(
        "s W h, W positive definite",
        r"s^\top W h,\ W \succ 0",
        "a generalised dot product",
        _identity,
        lambda s, h, p: s @ p["W"] @ h,
    ),
    "additive": Formula(
        "v . tanh(W s + U h)",
        r"v \cdot \tanh(W s + U h)",
        "Bahdanau et al. 2015",
        _additive,
        lambda s, h, p: p["v"] @ np.tanh(p["W"] @ s + p["U"] @ h + p.get("bias", 0.0)),
    ),
    "concat": Formula(
        "v . tanh(W [s; h])",
        r"v \cdot \tanh(W [s; h])",
        "Luong et al. 2015",
        _concat,
        lambda s, h, p: p["v"] @ np.tanh(p["W"] @ np.concatenate([s, h])),
    ),
}
"""Every score by name, as in `regard.scores.NAMES`."""
