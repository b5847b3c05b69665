"""Explanations as plain text, or as Markdown with formulas in LaTeX."""

import dataclasses
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from regard.errors import ConfigError
from regard.explanation.worked_example import Explanation, Vector
from regard.score_registry import SCORES
from regard.text_table import escape_controls, left_to_right

_MAX_COLUMNS, _PREFIX = 16, 6
"""Length of the longest row printed in full, and how many numbers of a longer one are printed."""

_MOST_DIGITS = 20

_MAX_TRUNCATED = 6
"""Largest number of states for which the result with truncated weights is printed."""


def write(explanation: Explanation, digits: int, unnormalised: bool, plain: bool) -> str:
    """Return all three steps with rounded numbers, as plain text or Markdown.

    Raises:
        ConfigError: `digits` is not in the range 0 to 20.
    """
    if not 0 <= digits <= _MOST_DIGITS:
        raise ConfigError(f"digits must be from 0 to {_MOST_DIGITS}, got {digits}")
    writer = _Writer(explanation, digits, plain)
    parts = [writer.inputs(), *writer.score_and_normalise(), writer.weighted_sum()]
    if explanation.query is not None:
        row = writer.row(explanation.concatenated)
        formula = writer.formula(f"[s; c] = {row}")
        parts.append(writer.section("Concatenation with the query", formula))
    if unnormalised and explanation.unnormalised_sum is not None:
        parts.append(writer.unnormalised_sum(explanation.unnormalised_sum))
    parts.append(f"(Computed in float64, rounded to {digits} digits.)")
    return "\n\n".join(parts) + "\n"


@dataclasses.dataclass(frozen=True)
class _Writer:
    explanation: Explanation
    digits: int
    plain: bool

    def number(self, value: Any) -> str:
        value = float(value)
        is_integer = value.is_integer() and abs(value) < 1e6
        return f"{value:.0f}" if is_integer else f"{value:.{self.digits}f}"

    def numbers(self, values: Iterable[Any], separator: str = ", ") -> str:
        return separator.join(map(self.number, values))

    def row(self, values: Vector) -> str:
        if len(values) <= _MAX_COLUMNS:
            return f"[{self.numbers(values)}]"
        return f"[{self.numbers(values[:_PREFIX])}, … {len(values)} numbers]"

    def section(self, title: str, *lines: str) -> str:
        return "\n".join([title if self.plain else f"### {title}", *lines])

    def bullet(self, text: str) -> str:
        return f"  {text}" if self.plain else f"- {text}"

    def formula(self, plain: str, latex: str | None = None) -> str:
        return f"  {plain}" if self.plain else f"$${plain if latex is None else latex}$$"

    def parameter(self, letter: str, value: Vector) -> str:
        note = ""
        if letter in self.explanation.assumed:
            note = f" (default: {_default_name(value)})"
        if value.ndim == 0:
            return f"{letter} = {self.number(value)}{note}"
        if value.ndim == 1:
            return f"{letter} = {self.row(value)}{note}"
        if len(value) > _MAX_COLUMNS:
            return f"{letter}: {value.shape[0]} x {value.shape[1]} numbers{note}"
        return f"{letter} = [{', '.join(map(self.row, value))}]{note}"

    @property
    def labels(self) -> list[str]:
        labels = self.explanation.labels
        if self.plain:
            return [left_to_right(escape_controls(label)) for label in labels]
        return [*map(_in_markdown, labels)]

    def inputs(self) -> str:
        result = self.explanation
        rows = [] if result.query is None else [("s", result.query)]
        rows += zip(self.labels, result.keys, strict=True)
        if result.values is not result.keys:
            names = [f"value of {label}" for label in self.labels]
            rows += zip(names, result.values, strict=True)
        lines = [f"{name} = {self.row(row)}" for name, row in rows]
        lines += [self.parameter(*item) for item in result.parameters.items()]
        return self.section("Given", *map(self.bullet, lines))

    def table(self, name: str, values: Vector, plain_name: str | None = None) -> str:
        if self.plain:
            return f"  {plain_name or name} = [{self.numbers(values)}]"
        header = f"| | {' | '.join(self.labels)} |\n|---|{'---|' * len(values)}"
        return f"\n{header}\n| {name} | {self.numbers(values, ' | ')} |\n"

    def score_and_normalise(self) -> list[str]:
        result = self.explanation
        if result.scores is None or result.exponentials is None:
            return [self.section("Weights (given)", self.table("α", result.weights, "alpha"))]
        entry = SCORES[result.score]
        text, latex = entry.formula(result.parameters)
        formula = self.formula(f"e_i = {text}", f"e_i = {latex}")
        title, table = f"1. Score ({result.score}, {entry.source})", self.table("e", result.scores)
        sign = "-" if result.shift > 0 else "+"
        power = f"exp(e {sign} {self.number(abs(result.shift))})" if result.shift else "exp(e)"
        terms = self.numbers(result.exponentials, " + ")
        total = f"they sum to {self.number(result.weights.sum())}"
        normalise = [
            self.table(power, result.exponentials),
            self.formula(f"Z = {terms} = {self.number(result.partition)}"),
            self.table(f"alpha = {power} / Z", result.weights),
            f"  {total}" if self.plain else f"{total.capitalize()}.",
        ]
        if result.shift:
            normalise.append(
                "  (the largest score was subtracted from all scores, which changes no weight)"
            )
        return [
            self.section(title, formula, table),
            self.section("2. Normalise (softmax)", *normalise),
        ]

    def weighted_sum(self) -> str:
        result = self.explanation
        weights = [self.number(weight) for weight in result.weights]
        symbols = map(_in_latex, result.labels)
        text = " + ".join(map(" ".join, zip(weights, self.labels, strict=True)))
        latex = " + ".join(map(r"\,".join, zip(weights, symbols, strict=True)))
        products = zip(weights, result.values, result.weighted, strict=True)
        lines = [
            self.formula(f"c = {text}", f"c = {latex}"),
            *(self.bullet(f"{w} x {self.row(v)} = {self.row(wv)}") for w, v, wv in products),
        ]
        if not self.plain:
            # ends the list: otherwise, Markdown would add the formula to the last bullet
            lines.append("")
        lines.append(self.formula(f"c = {self.row(result.context)}"))
        truncated = np.trunc(result.weights * 100) / 100
        differ = not np.allclose(truncated, result.weights, atol=1e-9)
        if result.scores is not None and len(truncated) <= _MAX_TRUNCATED and differ:
            shares = ", ".join(f"{weight:.2f}" for weight in truncated)
            context = dataclasses.replace(self, digits=2).row(truncated @ result.values)
            note = (
                f"truncated to two decimal places, {shares}, as in calculations by hand: {context}"
            )
            lines.append(self.bullet(f"(with weights {note})"))
        title = "Weighted sum" if result.scores is None else "3. Weighted sum"
        return self.section(title, *lines)

    def unnormalised_sum(self, total: Vector) -> str:
        row = self.row(total)
        note = (
            f"compared with c = {self.row(self.explanation.context)}: the unnormalised sum grows "
            "with the scores and with the number of states, but the weighted average does not."
        )
        formula = self.formula(f"sum_i e_i h_i = {row}", rf"\sum_i e_i h_i = {row}")
        return self.section("Unnormalised sum", formula, f"{'  ' if self.plain else ''}{note}")


def _default_name(value: Vector) -> str:
    """Return the name of a parameter's default value."""
    if value.ndim < 2:
        return "ones" if value.ndim else "1"
    rows, columns = value.shape
    return "the identity" if rows == columns else "ones on the diagonal of each block"


def _in_markdown(label: str) -> str:
    """Return a label as Markdown that shows it: no markup, no end of a cell, no formula, no HTML."""
    escaped = re.sub(r"([\\`*_\[\]|$~#>+-])", r"\\\1", _on_one_line(label))
    escaped = re.sub(r"^(\d+)([.)])", r"\1\\\2", escaped)  # the number of a list
    return escaped.replace("&", "&amp;").replace("<", "&lt;")


def _on_one_line(label: str) -> str:
    return escape_controls(" ".join(label.splitlines()))


def _in_latex(label: str) -> str:
    """Return a label as a symbol of a formula."""
    if match := re.fullmatch(r"h(\d+)", label):
        return f"h_{{{match[1]}}}"
    if re.fullmatch(r"[\w()]+", label) and "_" not in label:
        return label
    symbols = {"\\": r"\backslash", "~": r"\sim", "^": r"\wedge"}
    parts = re.split(r"([\\~^])", _on_one_line(label))
    escaped = (re.sub(r"([#$%&_{}])", r"\\\1", part) for part in parts)
    return "".join(
        symbols.get(part, rf"\text{{{text}}}")
        for part, text in zip(parts, escaped, strict=True)
        if part
    )
