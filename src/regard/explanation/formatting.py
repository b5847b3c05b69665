"""An explanation in words: plain text, or Markdown with formulas in LaTeX."""

import dataclasses
from typing import Any

import numpy as np

from regard.explanation.worked_example import Explanation, Vector
from regard.score_registry import SCORES

_WIDEST, _SHOWN = 16, 6
"""Numbers of a row up to which all are shown, and how many of a wider one (JSON holds all)."""

_BY_HAND = 6
"""Most states of a look that one would work by hand."""


def write(of: Explanation, digits: int, without_normalising: bool, plain: bool) -> str:
    """All moves, numbers rounded to so many digits; plain text, or Markdown."""
    return _Writer(of, digits, plain).walk(without_normalising)


@dataclasses.dataclass(frozen=True)
class _Writer:
    """An explanation in words."""

    of: Explanation
    digits: int
    plain: bool

    def walk(self, without_normalising: bool) -> str:
        """All parts, a blank line between them."""
        parts = [self._given(), *self._moves(), self._average(), self._end()]
        if without_normalising and self.of.raw is not None:
            parts.append(self._raw())
        parts.append(f"(Computed in float64, shown to {self.digits} digits.)")
        return "\n\n".join(part for part in parts if part) + "\n"

    def _number(self, value: Any) -> str:
        text = f"{float(value):.{self.digits}f}"
        whole = float(value).is_integer() and abs(float(value)) < 1e6
        return f"{float(value):.0f}" if whole else text

    def _row(self, values: Vector) -> str:
        if len(values) <= _WIDEST:
            return f"[{', '.join(map(self._number, values))}]"
        shown = ", ".join(map(self._number, values[:_SHOWN]))
        return f"[{shown}, … {len(values)} numbers]"

    def _head(self, title: str) -> str:
        return title if self.plain else f"### {title}"

    def _math(self, plain: str, latex: str) -> str:
        return f"  {plain}" if self.plain else f"$${latex}$$"

    def _name(self, number: int) -> str:
        label = self.of.labels[number]
        return label if self.plain or not label.startswith("h") else f"h_{{{label[1:]}}}"

    def _given(self) -> str:
        of = self.of
        lines = [self._head("Given")]
        rows = [] if of.query is None else [("s", of.query)]
        rows += list(zip(of.labels, of.keys, strict=True))
        if of.values is not of.keys:
            rows += [
                (f"value of {name}", row) for name, row in zip(of.labels, of.values, strict=True)
            ]
        bullet = "  " if self.plain else "- "
        lines += [f"{bullet}{name} = {self._row(row)}" for name, row in rows]
        for letter, value in of.parameters.items():
            what = "ones" if letter == "v" else "the identity" if value.ndim else "1"
            how = f" (not given: {what})" if letter in of.assumed else ""
            rows_of = [self._row(row) for row in value] if value.ndim == 2 else []
            if value.ndim == 2 and len(value) > _WIDEST:
                shape = f"{value.shape[0]} x {value.shape[1]} numbers"
                lines.append(f"{bullet}{letter}: {shape}{how}")
                continue
            one = (
                self._row(value)
                if value.ndim == 1
                else self._number(value)
                if not value.ndim
                else ""
            )
            lines.append(f"{bullet}{letter} = {one or '[' + ', '.join(rows_of) + ']'}{how}")
        return "\n".join(lines)

    def _moves(self) -> list[str]:
        of = self.of
        if of.scores is None or of.exponentials is None:
            return [f"{self._head('Weights, given')}\n{self._list(of.weights, 'alpha', 'α')}"]
        formula = SCORES[of.score]
        score = [
            self._head(f"1. Score ({of.score}, {formula.source})"),
            self._math(f"e_i = {formula.text}", f"e_i = {formula.latex}"),
            self._list(of.scores, "e", "e"),
        ]
        shifted = f" - {self._number(of.shift)}" if of.shift else ""
        powers = " + ".join(map(self._number, of.exponentials))
        normalise = [
            self._head("2. Normalise (softmax)"),
            self._list(of.exponentials, f"exp(e{shifted})", f"exp(e{shifted})"),
            self._math(
                f"Z = {powers} = {self._number(of.partition)}",
                f"Z = {powers} = {self._number(of.partition)}",
            ),
            self._list(of.weights, "alpha = exp(e) / Z", "alpha = exp(e) / Z"),
            f"  they sum to {self._number(of.weights.sum())}"
            if self.plain
            else f"They sum to {self._number(of.weights.sum())}.",
        ]
        if of.shift:
            normalise.append("  (the largest score was taken off each, which changes no weight)")
        return ["\n".join(score), "\n".join(normalise)]

    def _list(self, values: Vector, plain: str, other: str) -> str:
        if self.plain:
            return f"  {plain} = [{', '.join(map(self._number, values))}]"
        heads = " | ".join(self.of.labels)
        numbers = " | ".join(map(self._number, values))
        return f"\n| | {heads} |\n|---|{'---|' * len(values)}\n| {other} | {numbers} |\n"

    def _average(self) -> str:
        of = self.of
        bullet = "  " if self.plain else "- "
        lines = [self._head("3. Average" if of.scores is not None else "Average")]
        terms = [f"{self._number(w)} {name}" for w, name in zip(of.weights, of.labels, strict=True)]
        latex = [f"{self._number(w)}\\,{self._name(i)}" for i, w in enumerate(of.weights)]
        lines.append(self._math(f"c = {' + '.join(terms)}", f"c = {' + '.join(latex)}"))
        lines += [
            f"{bullet}{self._number(w)} x {self._row(value)} = {self._row(part)}"
            for w, value, part in zip(of.weights, of.values, of.weighted, strict=True)
        ]
        if not self.plain:
            lines.append("")  # else Markdown takes the formula for a part of the last bullet
        lines.append(self._math(f"c = {self._row(of.context)}", f"c = {self._row(of.context)}"))
        cut = np.trunc(of.weights * 100) / 100
        if (
            of.scores is not None
            and len(cut) <= _BY_HAND
            and not np.allclose(cut, of.weights, atol=1e-9)
        ):
            shown = ", ".join(f"{w:.2f}" for w in cut)
            total = ", ".join(f"{x:.2f}" for x in cut @ of.values)
            lines.append(
                f"{bullet}(with weights cut to two digits, {shown}, as texts worked by hand print "
                f"them: [{total}])"
            )
        return "\n".join(lines)

    def _end(self) -> str:
        if self.of.query is None:
            return ""
        both = self._row(self.of.concatenated)
        return f"{self._head('What the decoder goes on with')}\n{self._math(f'[s; c] = {both}', f'[s; c] = {both}')}"

    def _raw(self) -> str:
        assert self.of.raw is not None
        lines = [
            self._head("Without normalising"),
            self._math(
                f"sum_i e_i h_i = {self._row(self.of.raw)}",
                rf"\sum_i e_i h_i = {self._row(self.of.raw)}",
            ),
            f"{'  ' if self.plain else ''}against c = {self._row(self.of.context)}: the raw sum grows with the "
            "scores and with the number of states, the average stays among them.",
        ]
        return "\n".join(lines)
