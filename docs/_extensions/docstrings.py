"""Docstrings are plain text with `code` in it: keep reStructuredText from reading more into them.

Runs before napoleon, which turns `Args:` and its kin into fields. Indented formulas become literal
blocks; asterisks, bars and underscores outside of `code` stay what they are. What stands below an
attribute is kept from napoleon, which would take all up to its first colon for a type.
"""

import re
from typing import Any

from sphinx.application import Sphinx

_SECTIONS = {"Args:", "Returns:", "Raises:", "Warns:", "Yields:", "Attributes:"}
_NAMED = re.compile(r"(\s+\*{0,2}\w+: )(.*)")
_attributes: dict[str, list[str]] = {}


def plain(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Rewrite the lines of a docstring in place."""
    found: list[str] = []
    in_section = in_block = False
    for line in lines:
        if line and not line.startswith(" "):
            in_section = line.strip() in _SECTIONS
        indented = line.startswith("    ") and not in_section
        if indented and not in_block and (not found or not found[-1]):
            found += ["::", ""]
            in_block = True
        elif line and not indented:
            in_block = False
        named = _NAMED.fullmatch(line) if in_section else None
        if in_block:
            found.append(line)
        elif named:
            found.append(named[1] + _escaped(named[2]))
        else:
            found.append(_escaped(line))
    lines[:] = found
    if what in ("attribute", "property"):
        _attributes[name] = found


def restore(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Put back the text of an attribute."""
    if name in _attributes:
        lines[:] = _attributes.pop(name)


def _escaped(line: str) -> str:
    parts = re.split(r"(`[^`]*`)", line)
    return "".join(
        part if part.startswith("`") else re.sub(r"([*|_\\])", r"\\\1", part) for part in parts
    )


def setup(app: Sphinx) -> dict[str, Any]:
    """Listen to autodoc before napoleon does, and after it."""
    app.connect("autodoc-process-docstring", plain, priority=100)
    app.connect("autodoc-process-docstring", restore, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
