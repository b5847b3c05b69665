"""regard plot DIR TEXT -o map.html: draw where a model looks when it translates a text."""

from regard.cli.parser import Parser
from regard.config import Device
from regard.errors import DataError


def run(arguments: list[str]) -> None:
    """Translate one text (or force a target) and save its heatmap."""
    parser = Parser(prog="regard plot", description=__doc__)
    parser.add_argument("folder", type=str, help="a model folder")
    parser.add_argument("text", type=str, help="what to translate")
    parser.add_argument(
        "-o", "--out", type=str, required=True, help="a .html, .png, .svg or .json file"
    )
    parser.add_argument(
        "--target", type=str, help="the output to force, instead of the model's own"
    )
    parser.add_argument(
        "--beam-size", type=int, default=5, help="open hypotheses; 1 is greedy search"
    )
    parser.add_argument("--layer", type=int, help="of a transformer, from 0; else what is shown")
    parser.add_argument("--head", type=int, help="of that layer, from 0; else their average")
    parser.add_argument("--device", type=Device, default="auto", help="where to compute")
    given = parser.parse_args(arguments)
    if not given.text.strip():
        raise DataError("there is nothing to draw: the text is empty")
    from regard.translator import Translator

    translator = Translator.load(given.folder, given.device)
    if given.target is None:
        output = translator.translate([given.text], given.beam_size)[0]
    else:
        output = translator.align([given.text], [given.target])[0]
    title = f"{given.text} → {output.text}"
    output.chart(title, given.layer, given.head).save(given.out)
    print(f"{given.text} -> {output.text}, drawn in {given.out}")
