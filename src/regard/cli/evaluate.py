"""regard evaluate DIR PAIRS: BLEU, chrF, exact match and error rates, with 95 % intervals."""

from typing import Any

from regard.cli.options import add_model, add_pairs, add_search, load_translator
from regard.cli.parser import Parser
from regard.files import write_json
from regard.metrics import METRICS, BleuTokenizer
from regard.progress import Progress


def run(arguments: list[str]) -> None:
    """Evaluate a model, print a table, and optionally write JSON."""
    args = make_parser().parse_args(arguments)
    translator = load_translator(args.folder, args.device)
    from regard.cli.pairs import read_valid_pairs
    from regard.evaluation import evaluate

    pairs = read_valid_pairs(args.pairs, translator.trained.config.data.features_column)
    with Progress("translating", len({pair.source for pair in pairs}), "sources") as progress:
        report = evaluate(
            translator,
            pairs,
            args.beam_size,
            length_penalty=args.length_penalty,
            bleu_tokenize=args.bleu_tokenize,
            lowercase=args.lowercase,
            on_progress=progress.advance,
        )
    metrics = report.to_dict()
    if args.json:
        write_json(args.json, metrics)
    _print_tables(metrics, sum(not output.complete for output in report.translations))


def make_parser() -> Parser:
    """Return the parser of this command."""
    parser = Parser(prog="regard evaluate", description=__doc__)
    add_model(parser)
    add_pairs(parser)
    add_search(parser)
    parser.add_argument(
        "--bleu-tokenize", type=BleuTokenizer, default="13a", help="tokenizer of BLEU"
    )
    parser.add_argument(
        "--lowercase", action="store_true", help="lower-case outputs and references first"
    )
    parser.add_argument("--json", metavar="FILE", help="write the metrics to this file")
    return parser


def _print_tables(metrics: dict[str, Any], truncated: int) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    table = Table("metric", "value", "95 % interval", box=box.SIMPLE)
    signatures: list[str] = []
    for name, definition in METRICS.items():
        metric = metrics[name]
        interval = f"{metric['low']:.2f} – {metric['high']:.2f}"
        table.add_row(definition.label, f"{metric['value']:.2f}", interval)
        if "signature" in metric:
            signatures.append(f"{definition.label}: {metric['signature']}")
    console.print(f"{metrics['n']:,} distinct sources, percent")
    console.print(table)
    console.print("\n".join(signatures), soft_wrap=True)
    lengths = Table("source length", "sources", "exact match", "PER", "CER", box=box.SIMPLE)
    for part in metrics["by_length"]:
        values = [f"{part[name]:.2f}" for name in ("exact_match", "per", "cer")]
        lengths.add_row(f"{part['low']}–{part['high']}", f"{part['n']:,}", *values)
    console.print(lengths)
    if truncated:
        console.print(f"{truncated:,} outputs were truncated at their length limit")
