"""The help of every command, as the command line prints it."""

import contextlib
import io
import os
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from regard.cli.main import COMMANDS, main

_LONG = (("train",), ("compare",), ("distill",), ("align",))
"""Commands whose `--help` lists the common options only."""


def help_of(*arguments: str) -> str:
    """Return the help of a command with all its options."""
    os.environ["COLUMNS"] = "98"
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        status = main([*arguments, "--help-all" if arguments in _LONG else "--help"])
    if status != 0:
        raise RuntimeError(f"regard {' '.join(arguments)} --help exited with status {status}")
    return printed.getvalue().rstrip()


class Commands(SphinxDirective):
    """`{commands}`: the help of `regard`, then a section for every command."""

    def run(self) -> list[nodes.Node]:
        """Return a literal block for `regard` and a section with one for every command."""
        sections: list[nodes.Node] = [_block(help_of())]
        for name, summary in COMMANDS.items():
            section = nodes.section(ids=[f"regard-{name}"], names=[f"regard {name}"])
            title = nodes.title("", "", nodes.literal("", f"regard {name}"))
            text = nodes.paragraph(text=summary[0].upper() + summary[1:] + ".")
            section += [title, text, _block(help_of(name))]
            self.state.document.note_explicit_target(section)
            sections.append(section)
        return sections


def _block(text: str) -> nodes.literal_block:
    block = nodes.literal_block(text, text)
    block["language"] = "text"
    return block


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive `commands`."""
    app.add_directive("commands", Commands)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
