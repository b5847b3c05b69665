"""Formulas as MathML, which browsers draw themselves: no script, no font, nothing to load."""

from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx


def mathml(formula: str, display: str) -> str:
    """The formula as MathML; bars with a side lie close to what they enclose."""
    sided = formula.replace(r"\lvert", r"\left|").replace(r"\rvert", r"\right|")
    return convert(sided, display=display)


def visit_inline(translator: Any, node: nodes.Element) -> None:
    """A formula within a line."""
    translator.body.append(mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def visit_block(translator: Any, node: nodes.Element) -> None:
    """A formula on lines of its own."""
    translator.body.append('<div class="formula">')
    translator.body.append(mathml(node.astext(), "block"))
    translator.body.append("</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Offer the renderer `mathml`."""
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
