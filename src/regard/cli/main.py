"""The command `regard`: run a subcommand and turn errors into one line and an exit status.

Status 0: success; 1: an error in the content (a RegardError); 2: an error in the call.
"""

import importlib
import io
import os
import sys
import warnings
from collections.abc import Sequence

from regard.errors import RegardError, nearest

COMMANDS: dict[str, str] = {
    "demo": "train on a small built-in dataset and draw an attention heatmap",
    "data": "write a built-in dataset as TSV files",
    "train": "train a model on sentence pairs and save a model folder",
    "translate": "translate lines, optionally with attention and alignments",
    "evaluate": "evaluate a model on sentence pairs",
    "align": "align sentence pairs by the model's attention",
    "compare": "train several models on the same pairs and compare them",
    "explain": "show every value of one attention step",
    "curves": "plot training curves",
    "plot": "draw an attention heatmap for one text",
    "serve": "serve a web page to inspect and edit attention, and a JSON API",
}
"""Every command and what it does; `run` of the module of the same name executes it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    try:
        status = _dispatch(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
    except BrokenPipeError:
        # the reader of the output has gone; keep Python from flushing into the closed pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        width = max(map(len, COMMANDS))
        commands = "\n".join(f"  {name:<{width}}  {text}" for name, text in COMMANDS.items())
        print(
            "usage: regard COMMAND …\n\n"
            "Train sequence-to-sequence models and inspect or edit their attention.\n\n"
            f"{commands}\n\nregard COMMAND --help shows the options of a command.\n"
            "regard --version prints the version, regard --print-completion bash|zsh|fish a script\n"
            "that completes commands and options in that shell."
        )
        return 0 if arguments else 2
    name, *rest = arguments
    if name in ("-V", "--version"):
        from importlib.metadata import version

        print(f"regard {version('regard')}")
        return 0
    if name.startswith("--print-completion"):
        return _print_completion(name.partition("=")[2] or "".join(rest[:1]))
    if name not in COMMANDS:
        hint = nearest(name, COMMANDS)
        print(f"regard: unknown command {name}{hint}; see regard --help", file=sys.stderr)
        return 2
    with warnings.catch_warnings():
        warnings.showwarning = _print_warning
        return _run(name, rest)


def _print_completion(shell: str) -> int:
    from regard.cli.completion import completion_script

    try:
        print(completion_script(shell, COMMANDS))
    except RegardError as error:
        print(f"regard: {error}", file=sys.stderr)
        return 2
    return 0


def _run(name: str, arguments: list[str]) -> int:
    try:
        importlib.import_module(f"regard.cli.{name}").run(arguments)
    except RegardError as error:
        print(f"regard {name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"regard {name}: stopped", file=sys.stderr)
        return 130
    except SystemExit as exit_request:  # the parser has printed its help or an error
        return int(exit_request.code or 0)
    return 0


def _print_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"regard: {message}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
