"""regard demo: learn a small built-in set in about a minute, and draw where the model looks."""

from regard.cli.parser import Parser


def run(arguments: list[str]) -> None:
    """Train, translate two sentences, measure, and draw."""
    parser = Parser(prog="regard demo", description=__doc__)
    parser.add_argument("--out", type=str, default="demo", help="folder to write")
    parser.add_argument("--device", type=str, default="auto", help="auto, cpu, cuda or mps")
    given = parser.parse_args(arguments)
    from regard.demo import demo

    made = demo(given.out, given.device)
    print(f"try it: echo 'me gusta el perro' | regard translate {made.folder / 'model'}")
