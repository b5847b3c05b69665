"""Faithfulness of attributions: the effect of removing the source tokens that they rank highest.

DeYoung et al. 2020, "ERASER: A Benchmark to Evaluate Rationalized NLP Models" (arXiv:1911.03429), section
4: with p(x) the probability of an output token given the source x, and r the k source tokens with the
largest signed attributions,

    comprehensiveness = p(x) - p(x without r)        sufficiency = p(x) - p(r alone)

Tokens are removed by replacing them with UNK (`regard.attribution.erase`), so that positions do not change;
EOS always stays. A random order of the tokens is the baseline.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Any, get_args

import numpy as np
from jaxtyping import Float

from regard.attribution import Method, attribute, copies_tokens, erase, target_log_probs
from regard.batching import Example
from regard.errors import quantity
from regard.models import Seq2Seq
from regard.text_table import text_table
from regard.translation import Translation

_SEED = 1
_COUNTS: dict[str, Callable[[int], int]] = {
    "1": lambda length: 1,
    "2": lambda length: min(2, length),
    "20 %": lambda length: math.ceil(length / 5),
}
"""Number of tokens to remove or to keep, by the number of source tokens."""


@dataclass(frozen=True)
class MethodFaithfulness:
    """Decreases of the probability, in percentage points, by number of source tokens: 1, 2 and 20 %."""

    comprehensiveness: dict[str, float]
    """Without the highest-ranked tokens; higher values are better."""
    sufficiency: dict[str, float]
    """With only the highest-ranked tokens; lower values are better."""


@dataclass(frozen=True)
class Faithfulness:
    """Faithfulness of attribution methods, averaged over output tokens; `str()` returns a table."""

    n: int
    """Number of sources."""
    tokens: int
    """Number of output tokens, EOS excluded."""
    methods: dict[str, MethodFaithfulness]
    """By name of the method; `random` is the baseline."""

    def to_dict(self) -> dict[str, Any]:
        """Return the entry `faithfulness` of the document that `regard evaluate --json` writes."""
        return asdict(self)

    def __str__(self) -> str:
        """Return the table that `regard evaluate --faithfulness` prints."""
        names = [f"without top {count}" for count in _COUNTS]
        names += [f"only top {count}" for count in _COUNTS]
        rows = [("attribution", *names)]
        for method, part in self.methods.items():
            values = [*part.comprehensiveness.values(), *part.sufficiency.values()]
            rows.append((method, *(f"{value:.2f}" for value in values)))
        caption = (
            f"decrease of the probability of {quantity(self.tokens, 'output token')} of "
            f"{quantity(self.n, 'source')}, in percentage points\n"
            "  without the source tokens that are ranked highest: comprehensiveness, higher is better\n"
            "  with only these tokens: sufficiency, lower is better"
        )
        return f"{caption}\n\n{text_table(rows)}"


def available_methods(model: Seq2Seq) -> list[Method]:
    """Return the methods that can be computed for a model with the installed packages."""
    copying = copies_tokens(model)
    missing = {
        "attention": not model.decoder.attention_layers,
        "gradient": copying,
        "integrated_gradients": copying or find_spec("captum") is None,
    }
    return [method for method in get_args(Method) if not missing.get(method)]


def faithfulness(
    model: Seq2Seq,
    pairs: Sequence[tuple[Example, Translation]],
    methods: Sequence[Method],
    on_progress: Callable[[int], None] | None = None,
) -> Faithfulness:
    """Return the faithfulness of attribution methods, and of a random order of the source tokens.

    Args:
        model: the model.
        pairs: outputs of the model, each with its source and target as ids. Pairs without a source
            token or an output token are ignored.
        methods: the methods to compare.
        on_progress: called with the number of pairs just completed.
    """
    rng = np.random.default_rng(_SEED)
    decreases: dict[str, list[np.ndarray]] = {name: [] for name in (*methods, "random")}
    used = [pair for pair in pairs if len(pair[0].source) > 1 and pair[0].target]
    for example, translation in used:
        length = len(example.source) - 1
        for name in methods:
            attributed = attribute(model, example, translation, name)
            rows = attributed.attention if name == "attention" else attributed.attributions
            assert rows is not None
            order = np.argsort(-rows[:, :length], axis=1, kind="stable")
            decreases[name].append(_decreases(model, example, order))
        order = rng.permuted(np.tile(np.arange(length), (len(example.target), 1)), axis=1)
        decreases["random"].append(_decreases(model, example, order))
        if on_progress is not None:
            on_progress(1)
    means = {
        name: 100 * np.concatenate(parts).mean(0) for name, parts in decreases.items() if parts
    }
    return Faithfulness(
        len(used),
        sum(len(example.target) for example, _ in used),
        {
            name: MethodFaithfulness(
                *(dict(zip(_COUNTS, part.tolist(), strict=True)) for part in mean)
            )
            for name, mean in means.items()
        },
    )


def _decreases(
    model: Seq2Seq, example: Example, order: np.ndarray
) -> Float[np.ndarray, "L 2 counts"]:
    """Return the decreases without and with only the first tokens of each row of `order` (L, T - 1)."""
    length = order.shape[1]
    variants: dict[frozenset[int], int] = {frozenset(): 0}
    removed = [
        [
            [row[: count(length)] for count in _COUNTS.values()],
            [row[count(length) :] for count in _COUNTS.values()],
        ]
        for row in order.tolist()
    ]
    indices = np.array(
        [
            [
                [variants.setdefault(frozenset(tokens), len(variants)) for tokens in part]
                for part in parts
            ]
            for parts in removed
        ]
    )
    log_probs = target_log_probs(model, [erase(example, tokens) for tokens in variants])
    probabilities = np.exp(log_probs.astype(np.float64))
    targets = np.arange(len(order))[:, None, None]
    return probabilities[0, :, None, None] - probabilities[indices, targets]
