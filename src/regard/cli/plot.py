"""regard plot DIR TEXT -o map.html: draw an attention heatmap for one text."""

from regard.cli.options import add_beam_size, add_chart_file, add_model
from regard.cli.parser import Parser
from regard.errors import DataError


def run(arguments: list[str]) -> None:
    """Translate one text (or force a target) and save its heatmap."""
    parser = Parser(prog="regard plot", description=__doc__)
    add_model(parser)
    parser.add_argument("text", help="text to translate")
    add_chart_file(parser)
    parser.add_argument("--target", help="output to force, instead of the model's own")
    add_beam_size(parser)
    parser.add_argument(
        "--layer", type=int, help="layer of a Transformer, from 0; default: the selected layer"
    )
    parser.add_argument("--head", type=int, help="head of that layer, from 0; default: the average")
    args = parser.parse_args(arguments)
    if not args.text.strip():
        raise DataError("there is nothing to draw: the text is empty")
    from regard.translator import Translator

    translator = Translator.load(args.folder, args.device)
    source = translator.source.parse_source(args.text)
    if args.target is None:
        output = translator.translate([source], args.beam_size)[0]
    else:
        output = translator.align([source], [args.target])[0]
    title = f"{args.text} → {output.text}"
    output.chart(title, args.layer, args.head).save(args.out)
    print(f"{args.text} -> {output.text}, drawn in {args.out}")
