"""Formatting of help texts: value names instead of types, and defaults where they are informative."""

import argparse
from typing import Any, Literal, get_args, get_origin

from jsonargparse import DefaultHelpFormatter

_MAX_CHOICES = 46
"""Maximum length, in characters, of a list of values after an option; longer lists end its help text."""

_LONG_NAME = "NAME"
_VALUE_NAMES = {int: "N", float: "X"}


class HelpFormatter(DefaultHelpFormatter):
    """jsonargparse's formatter without types, with defaults only where they are informative."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        values = choices(action)
        if value_name(action) == _LONG_NAME and not all(value in text for value in values):
            text = f"{text.rstrip('.')}. One of {', '.join(values)}"
        if action.required and action.option_strings:
            return f"{text} (required)"
        default = action.default
        if default in (None, argparse.SUPPRESS) or action.nargs == 0 or "default" in text.lower():
            return text
        default = str(default).lower() if isinstance(default, bool) else default
        return f"{text.rstrip('.')} (default: {default})"

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Fill each paragraph; lines that are indented, such as commands, stay as they are."""
        paragraphs = text.strip().split("\n\n")
        filled = [
            part if "\n  " in part else super(HelpFormatter, self)._fill_text(part, width, indent)
            for part in paragraphs
        ]
        return "\n\n".join(filled)


def choices(action: argparse.Action) -> list[str]:
    """Return the values that an argument accepts; an empty list if it accepts any value of its type."""
    if action.choices is not None:
        return [str(choice) for choice in action.choices]
    hints = [getattr(action, "_typehint", None)]
    hints += get_args(hints[0])
    if bool in hints:
        return ["true", "false"]
    literals = (hint for hint in hints if get_origin(hint) is Literal)
    return [str(value) for value in get_args(next(literals, None)) if value is not None]


def value_name(action: argparse.Action) -> str | None:
    """Return the placeholder for the value of an argument: `{a,b}`, `N`, `X`, or its own name."""
    values = choices(action)
    if values:
        return _braced(values) if len(_braced(values)) <= _MAX_CHOICES else _LONG_NAME
    hint: Any = getattr(action, "_typehint", None) or action.type
    for kind in (hint, *get_args(hint)):
        if action.metavar is None and kind in _VALUE_NAMES:
            return _VALUE_NAMES[kind]
    return action.metavar if isinstance(action.metavar, str) else None


def _braced(values: list[str]) -> str:
    return "{" + ",".join(values) + "}"
