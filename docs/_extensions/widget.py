"""`{attention-widget}`: one attention step over vectors that the reader changes (attention_widget.js)."""

import html
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

MARKUP = """<div class="attention-widget" data-query="{query}" data-keys="{keys}" data-score="{score}">
<p>This figure needs JavaScript; <code>regard explain</code> computes the same numbers.</p></div>"""


class AttentionWidget(SphinxDirective):
    """`:query: 1, 2`, `:keys: 1, 0; 0, 1` and `:score: dot` are the initial state."""

    option_spec: ClassVar[dict[str, Any]] = dict.fromkeys(
        ("query", "keys", "score"), directives.unchanged_required
    )

    def run(self) -> list[nodes.Node]:
        """Return the element that the script fills."""
        options = {name: html.escape(self.options[name]) for name in self.option_spec}
        return [nodes.raw("", MARKUP.format(**options), format="html")]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive and load its script in every page."""
    app.add_directive("attention-widget", AttentionWidget)
    app.add_js_file("attention_widget.js", loading_method="defer")
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
