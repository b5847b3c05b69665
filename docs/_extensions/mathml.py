"""Render formulas as MathML, which browsers display without scripts or fonts."""

from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx


def mathml(formula: str, display: str) -> str:
    """Return the formula as MathML; bars with a side are set as delimiters."""
    delimited = formula.replace(r"\lvert", r"\left|").replace(r"\rvert", r"\right|")
    return convert(delimited, display=display)


def visit_inline(translator: Any, node: nodes.Element) -> None:
    """Render an inline formula."""
    translator.body.append(mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def visit_block(translator: Any, node: nodes.Element) -> None:
    """Render a displayed formula."""
    translator.body.append('<div class="formula">')
    translator.body.append(mathml(node.astext(), "block"))
    translator.body.append("</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the renderer `mathml`."""
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
