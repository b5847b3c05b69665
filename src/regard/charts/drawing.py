"""Boxes, lines and words at places of their own: what diagrams are drawn with.

Places are pixels from the top left corner, x to the right, y down.
"""

import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from regard.charts.base import BLUES, GREY, INK, Chart, heading, style

SLANTED = 100.0
"""Pixels after which a word that is written aslant is cut."""
_HEAD = "M0,0L-2,0.8L-2,-0.8Z"  # an arrow's head, its tip where the line ends


@dataclass(frozen=True, kw_only=True)
class Box:
    """A box around a place."""

    x: float
    y: float
    width: float
    height: float
    fill: str = "white"
    stroke: str = GREY
    corner: float = 6.0
    """Radius of its corners."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """A straight line from a place to another."""

    x: float
    y: float
    x2: float
    y2: float
    width: float = 1.0
    colour: str = GREY
    arrow: bool = False
    """Whether it ends in a head."""
    spoken: str = ""
    """What is shown under the pointer and read aloud."""


@dataclass(frozen=True, kw_only=True)
class Word:
    """A piece of text at a place, its middle there."""

    x: float
    y: float
    text: str
    size: float = 13.0
    colour: str = INK
    bold: bool = False
    align: str = "center"
    angle: float = 0.0
    """Degrees, clockwise."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Diagram(Chart):
    """A drawing: lines below, boxes on them, words on top.

    Attributes:
        width: of the drawing, in pixels.
        height: of the drawing, in pixels.
        lines: what is drawn first.
        boxes: what stands on the lines.
        words: what stands on both.
        content: the data of the drawing.
        title: a line above it, or "".
        explanation: smaller lines below the title.
    """

    width: float
    height: float
    lines: Sequence[Line]
    boxes: Sequence[Box]
    words: Sequence[Word]
    content: dict[str, Any]
    title: str = ""
    explanation: Sequence[str] = ()

    @property
    def labels(self) -> list[str]:
        """All that is written."""
        return [*(word.text for word in self.words), *self.explanation]

    def to_json(self) -> str:
        """The data of the drawing."""
        return json.dumps(self.content, ensure_ascii=False) + "\n"

    def to_altair(self) -> Any:
        """The drawing as an `altair.LayerChart`, for changes of your own."""
        import altair as alt

        layers = [*_lines(self.lines), *_boxes(self.boxes), *_words(self.words)]
        return alt.layer(*layers).properties(
            width=self.width,
            height=self.height,
            title=alt.TitleParams(**heading(self.title, self.explanation)),
            config=style(title_limit=max(640.0, self.width + 60)),
        )

    def __repr__(self) -> str:
        return f"Diagram({self.width:.0f} x {self.height:.0f})"


def blue(share: float) -> str:
    """The colour of a weight: a hue that still shows on white at 0, ever darker up to 1."""
    ramp = [[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in BLUES[2:]]
    place = min(1.0, max(0.0, share)) * (len(ramp) - 1)
    low = min(int(place), len(ramp) - 2)
    pairs = zip(ramp[low], ramp[low + 1], strict=True)
    return "#" + "".join(f"{round(a + (b - a) * (place - low)):02x}" for a, b in pairs)


_Record = TypeVar("_Record", Box, Line, Word)


def _grouped(
    records: Iterable[_Record], key: Callable[[_Record], Any]
) -> list[tuple[Any, list[_Record]]]:
    """The records by what one layer draws alike, in the order of the keys."""
    found = itertools.groupby(sorted(records, key=key), key)
    return [(name, list(group)) for name, group in found]


def _lines(lines: Sequence[Line]) -> list[Any]:
    layers: list[Any] = []
    for told, group in _grouped(lines, lambda line: bool(line.spoken)):
        fields = _fields("x", "y", "x2", "y2", size="width", color="colour")
        if told:
            fields |= {"tooltip": "spoken:N", "description": "spoken:N"}
        layers.append(_chart(group).mark_rule(aria=told, strokeCap="round").encode(**fields))
    heads = [line for line in lines if line.arrow]
    for width, group in _grouped(heads, lambda line: line.width):
        fields = _fields("x2", "y2", angle="degrees", color="colour")
        mark = {"shape": _HEAD, "size": (5 + 2 * width) ** 2, "opacity": 1, "filled": True}
        layers.append(_chart(group).mark_point(**mark, aria=False).encode(**fields))
    return layers


def _boxes(boxes: Sequence[Box]) -> list[Any]:
    fields = _fields("left", "top", "right", "bottom", fill="fill", stroke="stroke")
    return [
        _chart(group).mark_rect(cornerRadius=corner, strokeWidth=1.2, aria=False).encode(**fields)
        for corner, group in _grouped(boxes, lambda box: box.corner)
    ]


def _words(words: Sequence[Word]) -> list[Any]:
    fields = _fields("x", "y", size="size", angle="angle", color="colour") | {"text": "text:N"}
    layers: list[Any] = []
    for (align, bold, aslant), group in _grouped(
        words, lambda word: (word.align, word.bold, word.angle != 0)
    ):
        mark: dict[str, Any] = {"align": align, "baseline": "middle"}
        mark |= {"fontWeight": "bold"} if bold else {}
        mark |= {"limit": SLANTED} if aslant else {}
        layers.append(_chart(group).mark_text(**mark).encode(**fields))
    return layers


def _chart(records: Sequence[Any]) -> Any:
    import altair as alt

    return alt.Chart(alt.InlineData(values=[_row(record) for record in records]))


def _row(record: Box | Line | Word) -> dict[str, Any]:
    """The record's fields, and what follows from them."""
    row = dataclasses.asdict(record)
    if isinstance(record, Box):
        across, down = record.width / 2, record.height / 2
        row |= {"left": record.x - across, "right": record.x + across}
        row |= {"top": record.y - down, "bottom": record.y + down}
    if isinstance(record, Line):
        row["degrees"] = math.degrees(math.atan2(record.y2 - record.y, record.x2 - record.x))
    return row


def _fields(*places: str, **channels: str) -> dict[str, Any]:
    """Encodings that take fields as they are, with no scale between: pixels, colours, degrees."""
    import altair as alt

    ends = dict(zip(("x", "y", "x2", "y2"), places, strict=False))
    encoding: dict[str, Any] = {}
    for name, field in ends.items():
        if name in ("x2", "y2"):
            encoding[name] = alt.X2(field) if name == "x2" else alt.Y2(field)
        else:
            channel = alt.X if name == "x" else alt.Y
            encoding[name] = channel(field, type="quantitative", scale=None, axis=None)
    classes: dict[str, Any] = {
        "size": alt.Size, "angle": alt.Angle, "color": alt.Color, "fill": alt.Fill, "stroke": alt.Stroke,
    }  # fmt: skip
    for name, field in channels.items():
        kind = "quantitative" if name in ("size", "angle") else "nominal"
        encoding[name] = classes[name](field, type=kind, scale=None)
    return encoding
