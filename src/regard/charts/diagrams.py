"""How the parts of a model hang together, with lines as thick as the weights."""

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.cells import cell_len

from regard.charts.base import GREY, INK
from regard.charts.drawing import Box, Diagram, Line, Word, blue
from regard.charts.labels import check, spelled
from regard.errors import ConfigError

_THICK = 12.0
"""Pixels of a line of weight 1."""
_PRINTED = 0.05
"""The least weight that is printed."""
_FAINT, _STRONG, _VEIL = "#c3cad2", "#08519c", "#e6eaee"
_MARGIN = 84.0
"""Pixels left of the first state, for the names of the rows."""
_BOX = 34.0
"""Height of a state."""


def encoder_decoder(
    weights: np.ndarray | None,
    source_tokens: Sequence[str],
    target_tokens: Sequence[str],
    step: int = 0,
    *,
    title: str = "",
) -> Diagram:
    """Draw encoder and decoder at one step, with a line from every state as thick as its weight.

    Args:
        weights: (L, T), one row per output symbol; None: no attention, so that one line, from the
            last state of the encoder, carries the whole source.
        source_tokens: the T symbols the model read.
        target_tokens: the L symbols it wrote; those after the step are left out.
        step: the one of the L steps to draw, from 0.
        title: a line above the drawing.

    Raises:
        ShapeError: the weights are not one row per output and one column per source symbol.
        DataError: there is no row or no column, or a weight is not a finite number.
        ConfigError: there is no such step.
    """
    attends = weights is not None
    if weights is None:
        weights = np.zeros((len(target_tokens), len(source_tokens)))
        weights[:, -1:] = 1
    weights = check(weights, source_tokens, target_tokens).astype(float)
    if not 0 <= step < len(target_tokens):
        raise ConfigError(
            f"there is no step {step}: the output has {len(target_tokens)} steps, counted from 0"
        )
    plan = _Plan(spelled(source_tokens), spelled(target_tokens), step)
    boxes, words = _shares(plan, weights[step]) if attends else ([], [])
    return Diagram(
        width=plan.width,
        height=plan.height,
        lines=[*_chains(plan), *_looks(plan, weights[step], attends)],
        boxes=[*_states(plan), *boxes],
        words=[*_names(plan, attends), *words],
        content={
            "source_tokens": list(source_tokens),
            "target_tokens": list(target_tokens),
            "step": step,
            "attention": weights.round(6).tolist() if attends else None,
        },
        title=title,
        explanation=_explained(plan, attends),
    )


def self_attention(
    weights: np.ndarray, tokens: Sequence[str], position: int | None = None, *, title: str = ""
) -> Diagram:
    """Draw one sequence twice: above it looks, below it is looked at, lines as thick as weights.

    Args:
        weights: (T, T), row i what the i-th symbol looks at.
        tokens: the T symbols.
        position: the one symbol whose look is set off, with its weights, from 0; None: none.
        title: a line above the drawing.

    Raises:
        ShapeError: the weights are not one row and one column per symbol.
        DataError: there is no symbol, or a weight is not a finite number.
        ConfigError: there is no such position.
    """
    weights = check(weights, tokens, tokens).astype(float)
    if position is not None and not 0 <= position < len(tokens):
        raise ConfigError(
            f"there is no position {position}: the sequence has {len(tokens)} symbols, counted from 0"
        )
    rows = _Rows(spelled(tokens))
    looks = "Each symbol above looks at the whole sequence below, itself among it;"
    return Diagram(
        width=rows.width,
        height=(rows.bottom if position is None and not rows.rise else rows.below) + 12,
        lines=_webs(rows, weights, position),
        boxes=[],
        words=_sequence(rows, weights, position),
        content={
            "tokens": list(tokens),
            "position": position,
            "attention": weights.round(6).tolist(),
        },
        title=title,
        explanation=[looks, "the thicker a line, the more it looks there."],
    )


def _pitch(labels: Sequence[str], columns: int) -> tuple[float, float]:
    """Pixels from a column to the next, and those that its labels rise; 0: they lie flat."""
    longest = max(map(cell_len, labels)) * 6.8 + 6
    pitch = min(max(62.0, longest + 8), max(42.0, 660 / columns))
    return pitch, 0.0 if longest <= pitch else min(84.0, 12 + 0.72 * longest)


@dataclass(frozen=True)
class _Plan:
    """Where the states stand: the encoder's below, the context above them, the decoder's on top."""

    source: list[str]
    target: list[str]
    step: int

    @property
    def columns(self) -> int:
        return max(len(self.source), len(self.target))

    @property
    def pitch(self) -> float:
        return _pitch([*self.source, *self.target], self.columns)[0]

    @property
    def rise(self) -> float:
        """Pixels that its symbols rise, written aslant where they are too long to lie flat."""
        return _pitch([*self.source, *self.target], self.columns)[1]

    @property
    def width(self) -> float:
        return _MARGIN + self.pitch * self.columns

    @property
    def box(self) -> float:
        """Width of a state."""
        return min(44.0, self.pitch - 14)

    @property
    def decoder(self) -> float:
        """Where the decoder's states stand, from the top."""
        return (self.rise or 30.0) + _BOX / 2

    @property
    def context(self) -> float:
        return self.decoder + _BOX / 2 + 50

    @property
    def encoder(self) -> float:
        return self.context + min(170.0, max(110.0, 0.27 * self.width))

    @property
    def height(self) -> float:
        return self.encoder + _BOX / 2 + (self.rise or 30)

    def across(self, position: int, length: int) -> float:
        """Where the state at `position` of so many stands, from the left."""
        return _MARGIN + self.pitch * ((self.columns - length) / 2 + position + 0.5)

    @property
    def sources(self) -> list[float]:
        return [self.across(i, len(self.source)) for i in range(len(self.source))]

    @property
    def targets(self) -> list[float]:
        return [self.across(t, len(self.target)) for t in range(len(self.target))]


def _chains(plan: _Plan) -> list[Line]:
    """The arrows from each state to the next."""
    rows = [
        (plan.sources, plan.encoder, len(plan.source)),
        (plan.targets, plan.decoder, plan.step + 1),
    ]
    side = plan.box / 2
    return [
        Line(x=here + side, y=y, x2=there - side - 1, y2=y, arrow=True)
        for places, y, made in rows
        for here, there in itertools.pairwise(places[:made])
    ]


def _looks(plan: _Plan, weights: np.ndarray, attends: bool) -> list[Line]:
    """The lines from the encoder's states to the context, and the arrow from there to the decoder."""
    here = plan.targets[plan.step]
    output = plan.target[plan.step]
    lines = [
        Line(
            x=x,
            y=plan.encoder - _BOX / 2 + 8,
            x2=here,
            y2=plan.context,
            width=max(0.75, _THICK * min(1.0, abs(weight))),
            colour=blue(abs(weight)),
            spoken=f"{output} looks at {token}: {weight:.3f}" if attends else "all of the source",
        )
        for x, token, weight in zip(plan.sources, plan.source, weights, strict=True)
        if attends or weight
    ]
    top = plan.decoder + _BOX / 2 + 1
    arrow = Line(x=here, y=plan.context, x2=here, y2=top, width=2.0, colour=_STRONG, arrow=True)
    return [*sorted(lines, key=lambda line: line.width), arrow]


def _states(plan: _Plan) -> list[Box]:
    encoder = [
        Box(x=x, y=plan.encoder, width=plan.box, height=_BOX, fill="white") for x in plan.sources
    ]
    decoder = [
        Box(
            x=x,
            y=plan.decoder,
            width=plan.box,
            height=_BOX,
            fill=_STRONG if t == plan.step else "white",
            stroke=_STRONG if t == plan.step else GREY if t < plan.step else _FAINT,
        )
        for t, x in enumerate(plan.targets)
    ]
    context = Box(
        x=plan.targets[plan.step],
        y=plan.context,
        width=32.0,
        height=32.0,
        stroke=_STRONG,
        corner=16.0,
    )
    return [*encoder, *decoder, context]


def _names(plan: _Plan, attends: bool) -> list[Word]:
    """The names of rows, states and symbols."""
    step = plan.step
    below, above = plan.encoder + _BOX / 2 + 16, plan.decoder - _BOX / 2 - 16
    rows = {"output": above, "decoder": plan.decoder, "context": plan.context}
    rows |= {"encoder": plan.encoder, "source": below}
    words = [
        Word(x=0.0, y=y, text=name, size=12.0, colour=GREY, align="left")
        for name, y in rows.items()
    ]
    for i, (x, token) in enumerate(zip(plan.sources, plan.source, strict=True), start=1):
        words += _indexed(x, plan.encoder, "h", i)
        words.append(_label(x, below, token, plan.rise, -1))
    for t, (x, token) in enumerate(zip(plan.targets, plan.target, strict=True)):
        colour = "white" if t == step else INK if t < step else _FAINT
        words += _indexed(x, plan.decoder, "s", t + 1, colour)
        if t <= step:
            words.append(_label(x, above, token, plan.rise, 1, bold=t == step))
    here = plan.targets[step]
    if attends:
        return [*words, *_indexed(here, plan.context, "c", step + 1, _STRONG)]
    return [*words, Word(x=here, y=plan.context, text="c", size=14.0, colour=_STRONG)]


def _shares(plan: _Plan, weights: np.ndarray) -> tuple[list[Box], list[Word]]:
    """The weights that are large enough, each on its line, in white."""
    here, low, high = plan.targets[plan.step], plan.encoder - _BOX / 2, plan.context
    y = low + 0.28 * (high - low)
    places = [
        (x + 0.28 * (here - x), weight)
        for x, weight in zip(plan.sources, weights, strict=True)
        if abs(weight) >= _PRINTED
    ]
    boxes = [Box(x=x, y=y, width=30.0, height=17.0, stroke="white", corner=3.0) for x, _ in places]
    return boxes, [Word(x=x, y=y, text=f"{weight:.2f}", size=12.0) for x, weight in places]


def _explained(plan: _Plan, attends: bool) -> list[str]:
    number, token = plan.step + 1, plan.target[plan.step]
    if not attends:
        return [
            "Without attention all that the decoder knows of the source is the encoder's last state,",
            "however long the source is: the bottleneck.",
        ]
    return [
        f"Step {number}: to write “{token}” the decoder looks at every state of the encoder;",
        "the thicker a line, the more of that state goes into the context.",
    ]


def _label(x: float, y: float, text: str, rise: float, up: int, bold: bool = False) -> Word:
    if not rise:
        return Word(x=x, y=y, text=text, bold=bold)
    return Word(
        x=x, y=y, text=text, size=12.0, bold=bold, angle=-45.0, align="left" if up > 0 else "right"
    )


def _indexed(x: float, y: float, letter: str, number: int, colour: str = INK) -> list[Word]:
    """A letter with an index, in two words: few fonts have every small digit."""
    digits = str(number)
    start = x - 3 * len(digits)
    small = Word(x=start + 4, y=y + 4, text=digits, size=10.0, colour=colour, align="left")
    return [Word(x=start, y=y, text=letter, size=14.0, colour=colour), small]


@dataclass(frozen=True)
class _Rows:
    """Where the symbols of a sequence stand that is drawn twice."""

    tokens: list[str]

    @property
    def pitch(self) -> float:
        return _pitch(self.tokens, len(self.tokens))[0]

    @property
    def rise(self) -> float:
        """Pixels that its symbols rise, written aslant where they are too long to lie flat."""
        return _pitch(self.tokens, len(self.tokens))[1]

    @property
    def width(self) -> float:
        return _MARGIN + self.pitch * len(self.tokens)

    @property
    def top(self) -> float:
        return self.rise or 18.0

    @property
    def bottom(self) -> float:
        return self.top + min(190.0, max(110.0, 0.3 * self.width))

    @property
    def below(self) -> float:
        """Where the weights are printed."""
        return self.bottom + (self.rise or 20)

    @property
    def places(self) -> list[float]:
        return [_MARGIN + self.pitch * (i + 0.5) for i in range(len(self.tokens))]


def _webs(rows: _Rows, weights: np.ndarray, position: int | None) -> list[Line]:
    """The lines from the row above to the row below, those of `position` on top."""
    lines: list[tuple[bool, Line]] = []
    for (i, j), weight in np.ndenumerate(weights):
        chosen = i == position
        share = min(1.0, abs(weight))
        if share < 0.005:
            continue
        line = Line(
            x=rows.places[i],
            y=rows.top + 14,
            x2=rows.places[j],
            y2=rows.bottom - 14,
            width=max(0.5, _THICK * share * (1.0 if chosen else 0.6)),
            colour=blue(share) if chosen else blue(0.6 * share) if position is None else _VEIL,
            spoken=f"{rows.tokens[i]} looks at {rows.tokens[j]}: {weight:.3f}",
        )
        lines.append((chosen, line))
    return [line for _, line in sorted(lines, key=lambda pair: (pair[0], pair[1].width))]


def _sequence(rows: _Rows, weights: np.ndarray, position: int | None) -> list[Word]:
    """The symbols, twice, the names of the rows, and the weights of the chosen position."""
    names = [("looks", rows.top), ("looked at", rows.bottom)]
    words = [Word(x=0.0, y=y, text=name, size=12.0, colour=GREY, align="left") for name, y in names]
    for i, (x, token) in enumerate(zip(rows.places, rows.tokens, strict=True)):
        faded = position is not None and i != position
        above = _label(x, rows.top, token, rows.rise, 1, bold=i == position)
        words += [dataclasses.replace(above, colour=GREY) if faded else above]
        words += [_label(x, rows.bottom, token, rows.rise, -1)]
        if position is not None and abs(share := weights[position, i]) >= _PRINTED:
            words.append(Word(x=x, y=rows.below, text=f"{share:.2f}", size=12.0, colour=_STRONG))
    if position is not None:
        words.append(Word(x=0.0, y=rows.below, text="weight", size=12.0, colour=GREY, align="left"))
    return words
