"""Completion scripts for shells, from the parsers of the commands."""

import argparse
import importlib
from collections.abc import Mapping
from typing import Any

from regard.cli.help import choices
from regard.cli.parser import Parser
from regard.errors import not_one_of

SHELLS = ("bash", "zsh", "fish")


def completion_script(shell: str, commands: Mapping[str, str]) -> str:
    """Return a script that completes commands, options and their values, made by shtab.

    Args:
        shell: one of `SHELLS`.
        commands: every command and what it does.

    Raises:
        ConfigError: no script can be made for this shell.
    """
    import shtab

    if shell not in SHELLS:
        raise not_one_of("--print-completion", shell, SHELLS)
    root = argparse.ArgumentParser(prog="regard")
    root.add_argument("-V", "--version", action="store_true", help="print the version")
    root.add_argument("--print-completion", choices=SHELLS, help="print a completion script")
    subparsers = root.add_subparsers()
    for name, summary in commands.items():
        parser = importlib.import_module(f"regard.cli.{name}").make_parser()
        _copy_arguments(parser, subparsers.add_parser(name, help=summary, add_help=False))
    return shtab.complete(root, shell)


def _copy_arguments(parser: Parser, target: argparse.ArgumentParser) -> None:
    """Add the arguments of a command to a plain parser, with the values that can be completed."""
    import shtab

    files = {"FILE": shtab.FILE, "PAIRS": shtab.FILE}
    files |= {"DIR": shtab.DIRECTORY, "RUN": shtab.DIRECTORY}
    for action in parser.arguments():
        options: dict[str, Any] = {"help": str(action.help).replace("%", "%%")}
        if action.nargs == 0:
            options["action"] = "store_true"
        elif action.nargs is not None:
            options["nargs"] = action.nargs
        values = choices(action)
        if values:
            options["choices"] = values
        names = action.option_strings or [action.dest]
        copy = target.add_argument(*names, **options)
        if action.metavar in files and not values:
            copy.complete = files[action.metavar]  # type: ignore[attr-defined]
