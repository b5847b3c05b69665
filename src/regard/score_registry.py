"""Registry of the score functions: one entry per score, with all facts that other modules read.

Settings and help texts read it too, so this module imports neither PyTorch nor NumPy.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from regard.errors import ConfigError, not_one_of

Parameters = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoreEntry:
    """One score: its names, its class, its kind and its formula.

    In formulas, s is a query and h is a key; the letters of the parameters are those of the paper.
    """

    name: str
    aliases: tuple[str, ...] = ()
    """Other names in the literature."""
    class_name: str
    """Class in `regard.scores`."""
    head_class: str | None = None
    """Class in `regard.scores` that computes the score in multi-head attention, constructed from
    the number of heads and their width; None for `class_name`, with parameters shared by all heads."""
    equal_widths: bool = False
    """Whether queries and keys must have equal width."""
    pairwise: bool = False
    """Whether the score is v . tanh(a + b); otherwise, it is an inner product."""
    model_options: Parameters = dataclasses.field(default_factory=dict[str, Any])
    """Constructor options used inside models."""
    text: str
    """The formula as plain text."""
    latex: str
    """The formula in LaTeX."""
    source: str
    """Paper, or what the score computes."""
    compute: Callable[[Any, Any, Parameters], Any]
    """Computes the score of one query and one key (NumPy vectors), given the parameters by letter."""
    parameters: Mapping[str, str | None] = dataclasses.field(default_factory=dict[str, str | None])
    """Axes of each parameter, by letter: the widths q and k, q+k for blocks of columns, "" for a
    number; None for an optional parameter."""

    def formula(self, parameters: Parameters) -> tuple[str, str]:
        """Return the formula with these parameters, as plain text and in LaTeX."""
        if parameters.get("bias") is None:
            return self.text, self.latex
        inner, latex = self.text.removesuffix(")"), self.latex.removesuffix(")")
        return f"{inner} + bias)", rf"{latex} + \mathrm{{bias}})"


def _tanh(vector: Any) -> Any:
    import numpy as np

    return np.tanh(vector)


def _direction(vector: Any) -> Any:
    """Return the vector with norm 1; zeros stay zeros."""
    largest = abs(vector).max()
    if largest == 0:
        return vector
    vector = vector / largest  # squares of elements of any magnitude stay in range
    return vector / math.sqrt(vector @ vector)


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
        source="the cosine of the angle between query and key",
        compute=lambda s, h, p: _direction(s) @ _direction(h) / p["temperature"],
        parameters={"temperature": ""},
    ),
    ScoreEntry(
        name="bilinear",
        aliases=("general",),
        class_name="Bilinear",
        text="s W h",
        latex=r"s^\top W h",
        source="Luong et al. 2015, general",
        compute=lambda s, h, p: s @ p["W"] @ h,
        parameters={"W": "q k"},
    ),
    ScoreEntry(
        name="inner_product",
        class_name="InnerProduct",
        equal_widths=True,
        text="s W h, W positive definite",
        latex=r"s^\top W h,\ W \succ 0",
        source="a generalised dot product",
        compute=lambda s, h, p: s @ p["W"] @ h,
        parameters={"W": "q k"},
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
        compute=lambda s, h, p: p["v"] @ _tanh(p["W"] @ s + p["U"] @ h + p.get("bias", 0.0)),
        parameters={"W": "q q", "U": "q k", "v": "q", "bias": None},
    ),
    ScoreEntry(
        name="concat",
        class_name="Concat",
        head_class="AdditiveHeads",
        pairwise=True,
        text="v . tanh(W [s; h])",
        latex=r"v \cdot \tanh(W [s; h])",
        source="Luong et al. 2015",
        compute=lambda s, h, p: p["v"] @ _tanh(p["W"] @ [*s, *h] + p.get("bias", 0.0)),
        parameters={"W": "q q+k", "v": "q", "bias": None},
    ),
)

SCORES = {entry.name: entry for entry in _ENTRIES}
"""The entry of every score, by canonical name."""

ALL_NAMES = (*SCORES, *(alias for entry in _ENTRIES for alias in entry.aliases))
"""All names of scores: the canonical names, then the aliases."""


def find_score(name: str) -> ScoreEntry:
    """Return the entry of the score with this name or alias.

    Raises:
        ConfigError: no score has this name.
    """
    for entry in SCORES.values():
        if name == entry.name or name in entry.aliases:
            return entry
    raise not_one_of("score", name, ALL_NAMES)


def check_rotary(score: str, pairwise: bool, head_dim: int) -> None:
    """Raise a ConfigError if this score, or a head of this width, cannot use rotary positions."""
    if pairwise:
        raise ConfigError(
            f"rotary positions need a score that is an inner product, which {score} is not; choose "
            "sinusoidal or learned positions"
        )
    if head_dim % 2:
        raise ConfigError(
            f"rotary positions need heads of even width, got {head_dim}; choose a different number "
            "of heads"
        )
