"""regard demo: use a pretrained model, then train on a small built-in dataset in about a minute and plot the attention weights.

What an earlier demo has written to the output folder is replaced.
"""

import shlex
import shutil
import sys
from pathlib import Path

from regard.cli.options import add_device, add_output_folder, loading
from regard.cli.parser import Parser


def run(arguments: list[str]) -> None:
    """Use a pretrained model, train, translate two sentences, evaluate and draw a heatmap."""
    args = make_parser().parse_args(arguments)
    with loading("PyTorch"):
        from regard.demo import MAP_SENTENCE, demo

    model = shlex.quote(str(demo(args.out, args.device).folder / "model"))
    print(f"try it: echo 'Me gusta mi casa.' | {_command()} translate {model}")
    print(f"edit its attention: {_command()} serve {model} --example '{MAP_SENTENCE}'")


def make_parser() -> Parser:
    """Return the parser of this command."""
    parser = Parser(prog="regard demo", description=__doc__)
    add_output_folder(parser, "demo")
    add_device(parser)
    return parser


def _command() -> str:
    """Return how to call this command: its path where the shell would not find it."""
    program = Path(sys.argv[0])
    if program.name == "__main__.py":
        return "python -m regard"
    return "regard" if shutil.which("regard") or program.name != "regard" else str(program)
