"""regard plot DIR TEXT -o map.html: plot an attention heatmap for a text."""

import sys
from typing import TYPE_CHECKING, Literal

from jsonargparse import Namespace

from regard.cli.options import (
    add_beam_size,
    add_chart_file,
    add_model,
    check_chart_file,
    load_translator,
    report_missing_features,
    report_unknown,
)
from regard.cli.parser import Parser
from regard.errors import ConfigError, DataError

if TYPE_CHECKING:
    from regard.translation import Translation
    from regard.translator import Translator


def run(arguments: list[str]) -> None:
    """Translate a text (or force a target) and save its heatmap."""
    parser = make_parser()
    args = parser.parse_args(arguments)
    check_chart_file(args)
    if not args.text.strip():
        raise DataError("there is nothing to draw: the text is empty")
    if args.method != "attention" and (args.layer, args.head) != (None, None):
        raise ConfigError(
            f"--layer and --head select attention weights; leave them out with --method {args.method}"
        )
    if args.target is not None and args.beam_size != parser.get_default("beam_size"):
        raise ConfigError("--beam-size has no effect with --target, which is not searched; omit it")
    translator = load_translator(args.folder, args.device)
    output = _output(translator, args)
    if not output.tokens:
        raise DataError(_nothing_to_draw(translator, args.target is not None))
    title = f"{args.text} → {output.text}"
    output.chart(title, args.layer, args.head).save(args.out)
    print(f"{args.text} -> {output.text}, saved to {args.out}")
    for warning in (translator.trained.metadata.get("warning"), output.warning):
        if warning:
            print(f"regard plot: {warning}", file=sys.stderr)
    report_unknown("regard plot", translator, output, args.target)


def _output(translator: "Translator", args: Namespace) -> "Translation":
    """Return the output to plot, with its attention weights or attributions."""
    source, target = translator.source.parse_source(args.text), args.target
    report_missing_features("regard plot", translator, source[1])
    if target is None:
        output = translator.translate([source], args.beam_size)[0]
        if args.method == "attention":
            return output
        target = output.tokens
    return translator.attribute([source], [target], args.method)[0]


def _nothing_to_draw(translator: "Translator", forced: bool) -> str:
    if forced:
        return "there is nothing to draw: --target is empty"
    text = "there is nothing to draw: the model's output for this text is empty"
    warning = translator.trained.metadata.get("warning")
    if warning:
        return f"{text}; {warning}"
    return f"{text}; give another text, or an output to force with --target"


def make_parser() -> Parser:
    """Return the parser of this command."""
    parser = Parser(prog="regard plot", description=__doc__)
    add_model(parser)
    parser.add_argument("text", metavar="TEXT", help="text to translate")
    add_chart_file(parser)
    parser.add_argument(
        "--target", metavar="TEXT", help="output to force, instead of the model's own"
    )
    add_beam_size(parser)
    parser.add_argument(
        "--method",
        type=Literal["attention", "erasure", "gradient", "integrated_gradients"],
        default="attention",
        help="what to plot: attention weights, or the contribution of each source token to the "
        "log-probability of each output token",
    )
    parser.add_argument(
        "--layer",
        type=int,
        help="layer of a Transformer, counted from 0 (default: the layer that the model displays)",
    )
    parser.add_argument(
        "--head",
        type=int,
        help="head in that layer, counted from 0 (default: the average over heads)",
    )
    return parser
