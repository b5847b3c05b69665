"""Registry of the scores: every fact about a score that other modules read, one row per score.

Settings and help texts read it too, so it imports neither PyTorch nor NumPy.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from regard.errors import ConfigError

Parameters = Mapping[str, Any]


def _no_parameters(query_dim: int, key_dim: int) -> dict[str, Any]:
    return {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoreEntry:
    """One score: its names, its class, its kind and its formula.

    In formulas s is a query and h a key; letters of parameters are those of the paper.
    """

    name: str
    aliases: tuple[str, ...] = ()
    """Other names in the literature."""
    class_name: str
    """Class in `regard.scores`."""
    head_class: str | None = None
    """Class in `regard.scores` that computes the score in multi-head attention, constructed from
    the number of heads and their width; None: `class_name`, with parameters shared by all heads."""
    equal_widths: bool = False
    """Queries and keys must have one width."""
    pairwise: bool = False
    """The score is v . tanh(a + b); otherwise it is an inner product."""
    model_options: Parameters = dataclasses.field(default_factory=dict[str, Any])
    """Constructor options used inside models."""
    text: str
    """The formula as plain text."""
    latex: str
    """The formula in LaTeX."""
    source: str
    """Paper, or what the score computes."""
    compute: Callable[[Any, Any, Parameters], Any]
    """Score of one query and one key (NumPy vectors), given the parameters by letter."""
    defaults: Callable[[int, int], dict[str, Any]] = _no_parameters
    """Default parameters by letter, given Dq and Dk: identity matrices, vectors of ones."""
    optional_parameters: tuple[str, ...] = ()
    """Letters of parameters without a default."""


def _identity(query_dim: int, key_dim: int) -> dict[str, Any]:
    import numpy as np

    return {"W": np.eye(query_dim, key_dim)}


def _additive_defaults(query_dim: int, key_dim: int) -> dict[str, Any]:
    import numpy as np

    return {"W": np.eye(query_dim), "U": np.eye(query_dim, key_dim), "v": np.ones(query_dim)}


def _concat_defaults(query_dim: int, key_dim: int) -> dict[str, Any]:
    import numpy as np

    matrix = np.concatenate([np.eye(query_dim), np.eye(query_dim, key_dim)], axis=1)
    return {"W": matrix, "v": np.ones(query_dim)}


def _unit(query_dim: int, key_dim: int) -> dict[str, Any]:
    import numpy as np

    return {"temperature": np.array(1.0)}


def _additive(query: Any, key: Any, parameters: Parameters) -> Any:
    import numpy as np

    hidden = parameters["W"] @ query + parameters["U"] @ key + parameters.get("bias", 0.0)
    return parameters["v"] @ np.tanh(hidden)


def _concat(query: Any, key: Any, parameters: Parameters) -> Any:
    import numpy as np

    hidden = parameters["W"] @ np.concatenate([query, key]) + parameters.get("bias", 0.0)
    return parameters["v"] @ np.tanh(hidden)


_ENTRIES = (
    ScoreEntry(
        name="dot",
        class_name="Dot",
        equal_widths=True,
        text="s . h",
        latex=r"s \cdot h",
        source="Luong et al. 2015",
        compute=lambda s, h, p: s @ h,
    ),
    ScoreEntry(
        name="scaled_dot",
        class_name="ScaledDot",
        equal_widths=True,
        text="s . h / sqrt(D)",
        latex=r"s \cdot h / \sqrt{D}",
        source="Vaswani et al. 2017",
        compute=lambda s, h, p: s @ h / math.sqrt(len(s)),
    ),
    ScoreEntry(
        name="cosine",
        class_name="Cosine",
        equal_widths=True,
        model_options={"learned_temperature": True},
        text="s . h / (|s| |h| temperature)",
        latex=r"s \cdot h / (|s| |h| \tau)",
        source="the cosine of the angle between them",
        compute=lambda s, h, p: s @ h / (math.sqrt(s @ s) * math.sqrt(h @ h) * p["temperature"]),
        defaults=_unit,
    ),
    ScoreEntry(
        name="bilinear",
        aliases=("general",),
        class_name="Bilinear",
        text="s W h",
        latex=r"s^\top W h",
        source="Luong et al. 2015, general",
        compute=lambda s, h, p: s @ p["W"] @ h,
        defaults=_identity,
    ),
    ScoreEntry(
        name="inner_product",
        class_name="InnerProduct",
        equal_widths=True,
        text="s W h, W positive definite",
        latex=r"s^\top W h,\ W \succ 0",
        source="a generalised dot product",
        compute=lambda s, h, p: s @ p["W"] @ h,
        defaults=_identity,
    ),
    ScoreEntry(
        name="additive",
        aliases=("bahdanau", "mlp"),
        class_name="Additive",
        head_class="AdditiveHeads",
        pairwise=True,
        text="v . tanh(W s + U h)",
        latex=r"v \cdot \tanh(W s + U h)",
        source="Bahdanau et al. 2015",
        compute=_additive,
        defaults=_additive_defaults,
        optional_parameters=("bias",),
    ),
    ScoreEntry(
        name="concat",
        class_name="Concat",
        head_class="AdditiveHeads",
        pairwise=True,
        text="v . tanh(W [s; h])",
        latex=r"v \cdot \tanh(W [s; h])",
        source="Luong et al. 2015",
        compute=_concat,
        defaults=_concat_defaults,
        optional_parameters=("bias",),
    ),
)

SCORES: dict[str, ScoreEntry] = {entry.name: entry for entry in _ENTRIES}
"""Every score by its canonical name."""

ALL_NAMES: tuple[str, ...] = (*SCORES, *(alias for row in _ENTRIES for alias in row.aliases))
"""Every name of a score: the canonical ones, then the aliases."""


def find_score(name: str) -> ScoreEntry:
    """Return the score with this name or alias.

    Raises:
        ConfigError: no score has this name.
    """
    for entry in SCORES.values():
        if name == entry.name or name in entry.aliases:
            return entry
    raise ConfigError(f"no score is named {name!r}; choose one of {', '.join(SCORES)}")


def check_rotary(score: str, pairwise: bool, head_dim: int) -> None:
    """Raise a ConfigError if rotary positions do not fit this score and width of a head."""
    if pairwise:
        raise ConfigError(
            f"rotary positions need a score that is an inner product, which {score} is not; choose "
            "sinusoidal or learned positions"
        )
    if head_dim % 2:
        raise ConfigError(
            f"rotary positions need heads of even width, got {head_dim}; choose another number of "
            "heads"
        )
