"""Charts drawn as plain SVG on a canvas that grows with its elements.

Coordinates are in pixels; x increases to the right and y downwards.
"""

import html
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from regard.charts.base import BLUES, GREY, INK, Chart
from regard.charts.fonts import FONT
from regard.charts.text import text_width, title_lines, truncate
from regard.text_table import escape_controls

FAINT, STRONG = "#c3cad2", "#08519c"
_PADDING = 16.0
_SLANTED_LIMIT = 105.0
"""Length in pixels to which slanted labels are truncated."""
Position = tuple[float, float]


@dataclass(frozen=True, eq=False)
class Diagram(Chart):
    """Chart drawn as plain SVG; `content` is the data saved to `.json`."""

    svg: str
    content: dict[str, Any]
    title: str = ""

    def to_svg(self) -> str:
        """Return the chart as SVG; the viewer supplies the fonts."""
        return self.svg

    def to_json(self) -> str:
        """Return the data as JSON."""
        text = json.dumps(self.content, ensure_ascii=False, default=np.ndarray.tolist)
        return text + "\n"

    def __repr__(self) -> str:
        return f"Diagram({self.title!r})"


class Canvas:
    """SVG elements and the rectangle that they cover.

    An underscore in the name of an attribute stands for a hyphen; a trailing one is removed.
    """

    def __init__(self) -> None:
        self.elements: list[str] = []
        self.left = self.top = math.inf
        self.right = self.bottom = -math.inf

    def add(self, element: str, *corners: Position) -> None:
        """Add an element that covers the rectangle spanned by `corners`."""
        self.elements.append(element)
        for x, y in corners:
            self.left, self.right = min(self.left, x), max(self.right, x)
            self.top, self.bottom = min(self.top, y), max(self.bottom, y)

    def paste(self, other: "Canvas", x: float) -> None:
        """Add another canvas with its left edge at `x`."""
        shift = x - other.left
        group = element("g", *other.elements, transform=f"translate({shift:.2f},0)")
        self.add(group, (x, other.top), (other.right + shift, other.bottom))

    def line(
        self, start: Position, end: Position, width: float, colour: str, tooltip: str = ""
    ) -> None:
        """Add a straight line."""
        style = {"stroke": colour, "stroke_width": width, "stroke_linecap": "round"}
        (x1, y1), (x2, y2) = start, end
        line = element("line", tooltip=tooltip, x1=x1, y1=y1, x2=x2, y2=y2, **style)
        self.add(line, start, end)

    def arrow(self, start: Position, end: Position, width: float, colour: str) -> None:
        """Add a straight arrow."""
        across, down = end[0] - start[0], end[1] - start[1]
        length, head = math.hypot(across, down), 5 + 2 * width
        shaft = element("path", d=f"M0,0H{length - head:.2f}", stroke=colour, stroke_width=width)
        tip = f"M{length:.2f},0l{-head:g},{0.4 * head:g}v{-0.8 * head:g}Z"
        move = f"translate({start[0]:.2f},{start[1]:.2f})"
        move += f" rotate({math.degrees(math.atan2(down, across)):.2f})"
        parts = shaft, element("path", d=tip, fill=colour)
        self.add(element("g", *parts, class_="arrow", transform=move), start, end)

    def box(
        self, x: float, y: float, width: float, height: float, tooltip: str = "", **attributes: Any
    ) -> None:
        """Add a rectangle around its centre."""
        left, top = x - width / 2, y - height / 2
        attributes |= {"x": left, "y": top, "width": width, "height": height}
        box = element("rect", tooltip=tooltip, **attributes)
        self.add(box, (left, top), (left + width, top + height))

    def text(
        self,
        x: float,
        y: float,
        content: str,
        *children: str,
        size: float = 13.0,
        fill: str = INK,
        anchor: str = "middle",
        bold: bool = False,
        slanted: bool = False,
    ) -> None:
        """Add text that is vertically centred on `y`; slanted text rises to the right."""
        attributes: dict[str, Any] = {"font_weight": "bold"} if bold else {}
        if slanted:
            attributes["transform"] = f"rotate(-45 {x:.2f} {y:.2f})"
        text = element(
            "text", _escape(content), *children, x=x, y=y + 0.32 * size,
            font_size=size, fill=fill, text_anchor=anchor, **attributes,
        )  # fmt: skip
        width, (cos, sin) = text_width(content, size, bold), (0.71, 0.71) if slanted else (1.0, 0.0)
        start = -{"start": 0.0, "middle": 0.5, "end": 1.0}[anchor] * width
        end, half = start + width, size / 2
        self.add(
            text, (x + cos * start, y - sin * start + half), (x + cos * end, y - sin * end - half)
        )

    def labels(
        self,
        centres: Sequence[float],
        y: float,
        tokens: Sequence[str],
        pitch: float,
        *,
        above: bool = False,
        current: int | None = None,
        size: float = 13.0,
        fill: str = INK,
    ) -> None:
        """Add tokens as labels of columns, slanted if one of them is wider than its column.

        The columns are `pitch` wide and centred at `centres`; `y` is the centre of the row. Slanted
        labels extend downwards from it, or upwards if `above`. The label at index `current` is
        emphasised; the others have the colour `fill`.
        """
        slanted = max(text_width(token, size) for token in tokens) + 6 > pitch
        style: dict[str, Any] = {"size": size, "slanted": slanted}
        if slanted:
            # the distance between slanted labels is 0.71 of the pitch
            size = max(6.0, min(size, 12.0, 0.75 * pitch))
            style |= {"size": size, "anchor": "start" if above else "end"}
        for i, (x, token) in enumerate(zip(centres, tokens, strict=False)):
            label = truncate(token, style["size"], _SLANTED_LIMIT) if slanted else token
            colour = INK if i == current else fill
            self.text(x, y, label, fill=colour, bold=i == current, **style)

    def diagram(
        self, content: dict[str, Any], title: str, explanation: Sequence[str] = ()
    ) -> Diagram:
        """Return the image with its title, as a chart with `content` as data."""
        x, y, limit = self.left, self.top - 24, max(640.0, self.right - self.left)
        for line in reversed(explanation):
            self.text(x, y, truncate(line, 12.0, limit), size=12.0, fill=GREY, anchor="start")
            y -= 17
        for line in reversed(title_lines(title, 16.0, limit) if title else []):
            self.text(x, y - 3, line, size=16.0, anchor="start", bold=True)
            y -= 20
        left, top = self.left - _PADDING, self.top - _PADDING
        size: dict[str, Any] = {"width": math.ceil(self.right + _PADDING - left)}
        size["height"] = math.ceil(self.bottom + _PADDING - top)
        svg = element(
            "svg",
            element("rect", x=left, y=top, fill="white", **size),
            *self.elements,
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"{left:.2f} {top:.2f} {size['width']} {size['height']}",
            font_family=FONT,
            role="graphics-document",
            aria_label=title or " ".join(explanation),
            **size,
        )
        return Diagram(svg, content, title)


def element(name: str, *children: str, tooltip: str = "", **attributes: str | int | float) -> str:
    """Return an SVG element; `children` are elements or escaped text."""
    if tooltip:
        children = element("title", _escape(tooltip)), *children
    written = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{_escape(value)}"'
        for name, value in attributes.items()
    )
    return f"<{name}{written}>{''.join(children)}</{name}>"


def weight_colour(weight: float) -> str:
    """Return the colour for a weight: visible on white at 0, and darkest at 1 and above."""
    ramp = np.array([[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in BLUES[2:]])
    stops = np.linspace(0, 1, len(ramp))
    return "#" + "".join(f"{round(np.interp(weight, stops, channel)):02x}" for channel in ramp.T)


def _escape(value: str | int | float) -> str:
    if isinstance(value, str):
        return html.escape(escape_controls(value))
    return f"{round(value, 2):.10g}"
