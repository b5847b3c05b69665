"""The help of every verb, as the command itself prints it."""

import contextlib
import io
import os
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from regard.cli.main import COMMANDS, main


def help_of(*arguments: str) -> str:
    """What `regard ARGUMENTS --help` prints."""
    os.environ["COLUMNS"] = "98"
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        status = main([*arguments, "--help"])
    if status != 0:
        raise RuntimeError(f"regard {' '.join(arguments)} --help left with status {status}")
    return printed.getvalue().replace(" \b", "").rstrip()


class Verbs(SphinxDirective):
    """`{verbs}`: the help of `regard`, then a section for every verb."""

    def run(self) -> list[nodes.Node]:
        """A literal block for the command, a section with one for every verb."""
        found: list[nodes.Node] = [_block(help_of())]
        for verb, what in COMMANDS.items():
            section = nodes.section(ids=[f"regard-{verb}"], names=[f"regard {verb}"])
            title = nodes.title("", "", nodes.literal("", f"regard {verb}"))
            text = nodes.paragraph(text=what[0].upper() + what[1:] + ".")
            section += [title, text, _block(help_of(verb))]
            self.state.document.note_explicit_target(section)
            found.append(section)
        return found


def _block(text: str) -> nodes.literal_block:
    block = nodes.literal_block(text, text)
    block["language"] = "text"
    return block


def setup(app: Sphinx) -> dict[str, Any]:
    """Offer the directive `verbs`."""
    app.add_directive("verbs", Verbs)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
