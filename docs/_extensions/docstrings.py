"""Convert docstrings, which are plain text with `code`, to reStructuredText.

Runs before napoleon, which turns `Args:` and similar sections into fields. Indented formulas become
literal blocks; asterisks, bars and underscores outside of `code` are escaped. Docstrings of
attributes bypass napoleon, which would parse all text before the first colon as a type.
"""

import re
from typing import Any

from sphinx.application import Sphinx

_SECTIONS = {"Args:", "Returns:", "Raises:", "Warns:", "Yields:", "Attributes:"}
_ENTRY = re.compile(r"(\s+\*{0,2}\w+: )(.*)")
_attributes: dict[str, list[str]] = {}


def plain(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Rewrite the lines of a docstring in place."""
    converted: list[str] = []
    in_section = in_block = False
    for line in lines:
        if line and not line.startswith(" "):
            in_section = line.strip() in _SECTIONS
        indented = line.startswith("    ") and not in_section
        if indented and not in_block and (not converted or not converted[-1]):
            converted += ["::", ""]
            in_block = True
        elif line and not indented:
            in_block = False
        entry = _ENTRY.fullmatch(line) if in_section else None
        if in_block:
            converted.append(line)
        elif entry:
            converted.append(entry[1] + _escaped(entry[2]))
        else:
            converted.append(_escaped(line))
    lines[:] = converted
    if what in ("attribute", "property"):
        _attributes[name] = converted


def restore(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Restore the docstring of an attribute."""
    if name in _attributes:
        lines[:] = _attributes.pop(name)


def _escaped(line: str) -> str:
    parts = re.split(r"(`[^`]*`)", line)
    return "".join(
        part if part.startswith("`") else re.sub(r"([*|_\\])", r"\\\1", part) for part in parts
    )


def setup(app: Sphinx) -> dict[str, Any]:
    """Process docstrings before napoleon and after it."""
    app.connect("autodoc-process-docstring", plain, priority=100)
    app.connect("autodoc-process-docstring", restore, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
