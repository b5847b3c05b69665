"""Find the verb, do it, and turn what a user got wrong into one line and a status.

Status 0: done; 1: something about the content (a RegardError); 2: something about the call.
"""

import importlib
import io
import os
import sys
import warnings
from collections.abc import Sequence

COMMANDS: dict[str, str] = {
    "demo": "train on a small built-in set and draw where the model looks",
    "data": "write a built-in set of pairs",
    "train": "learn from pairs and leave a model folder",
    "translate": "translate lines, with their attention if asked",
    "evaluate": "measure a model on pairs",
    "align": "align given pairs by the model's attention",
    "compare": "train several models on the same pairs and lay them side by side",
    "explain": "walk through one look, every move with numbers",
    "curves": "draw how training went",
    "plot": "draw where a model looks for one text",
    "serve": "open a page where attention moves and can be pushed",
}
"""Every verb and what it does; each lives in its own file."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the status to leave with."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    try:
        status = _find(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
    except BrokenPipeError:
        # whoever read the output has gone; keep Python from flushing into the closed pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status


def _find(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        from importlib.metadata import version

        print(f"regard {version('regard')}")
        return 0
    if arguments[0] not in COMMANDS:
        from regard.cli.parser import nearest

        hint = nearest(arguments[0], list(COMMANDS))
        print(f"regard: there is no verb {arguments[0]}{hint}; see regard --help", file=sys.stderr)
        return 2
    return _run(arguments[0], arguments[1:])


def _run(verb: str, arguments: list[str]) -> int:
    from regard.errors import RegardError

    warnings.showwarning = _say_warning
    try:
        importlib.import_module(f"regard.cli.{verb}").run(arguments)
    except RegardError as error:
        print(f"regard {verb}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"regard {verb}: stopped", file=sys.stderr)
        return 130
    except SystemExit as left:  # the parser has shown its help, or what is wrong with the call
        return int(left.code or 0)
    return 0


def _say_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"regard: {message}", file=sys.stderr)


def _help() -> str:
    width = max(map(len, COMMANDS))
    verbs = "\n".join(f"  {verb:<{width}}  {what}" for verb, what in COMMANDS.items())
    return (
        "usage: regard VERB …\n\nSequence models that show where they look.\n\n"
        f"{verbs}\n\nregard VERB --help shows the options of a verb."
    )


if __name__ == "__main__":
    sys.exit(main())
