"""regard demo: learn a small built-in set in about a minute, and draw where the model looks."""

import shutil
import sys
from pathlib import Path

from regard.cli.parser import Parser


def run(arguments: list[str]) -> None:
    """Train, translate two sentences, measure, and draw."""
    parser = Parser(prog="regard demo", description=__doc__)
    parser.add_argument("--out", type=str, default="demo", help="folder to write")
    parser.add_argument("--device", type=str, default="auto", help="auto, cpu, cuda or mps")
    given = parser.parse_args(arguments)
    from regard.demo import PICTURE, demo

    made = demo(given.out, given.device)
    model = made.folder / "model"
    print(f"try it: echo 'me gusta el perro' | {_command()} translate {model}")
    print(f"move it: {_command()} serve {model} --example '{PICTURE}'")


def _command() -> str:
    """What to type for this command: its path where the shell would not find it."""
    called = Path(sys.argv[0])
    return "regard" if shutil.which("regard") or called.name != "regard" else str(called)
