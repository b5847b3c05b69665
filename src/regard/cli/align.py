"""regard align DIR PAIRS: align sentence pairs using the model's attention when it is forced to output the target."""

import json
import sys
from typing import TYPE_CHECKING, Any

from regard.cli.options import add_model, add_pairs, check_output_files, load_translator
from regard.cli.parser import Parser
from regard.errors import ConfigError, DataError, quantity
from regard.files import write_json, write_text
from regard.progress import Progress

if TYPE_CHECKING:
    from regard.alignment import AlignmentMetrics
    from regard.translation import Translation


def make_parser() -> Parser:
    """Return the parser of this command."""
    parser = Parser(prog="regard align", description=__doc__)
    add_model(parser)
    add_pairs(parser)
    parser.add_argument(
        "--gold",
        metavar="FILE",
        help="gold links, one line per pair: i-j (sure) or i?j (possible), 0-based",
    )
    parser.add_argument(
        "--json",
        metavar="FILE",
        help="write alignment error rate, precision and recall to this JSON file",
    )
    parser.add_argument(
        "--attention",
        metavar="FILE",
        help="write the tokens, attention weights and log-probability of each pair to this file, one "
        "JSON object per line",
    )
    return parser


def run(arguments: list[str]) -> None:
    """Print a Pharaoh line per pair; with gold links, report the metrics on standard error."""
    args = make_parser().parse_args(arguments)
    check_output_files(args, "json", "attention")
    if args.json and not args.gold:
        raise ConfigError("--json needs gold links to compute metrics; give --gold too")
    translator = load_translator(args.folder, args.device)
    from regard.alignment import alignment_metrics, read_gold
    from regard.cli.pairs import read_valid_pairs
    from regard.evaluation import check_gold

    pairs = read_valid_pairs(args.pairs, translator.trained.config.data)
    gold = read_gold(args.gold) if args.gold else None
    if gold is not None and len(gold) != len(pairs):
        raise DataError(
            f"{args.gold} has {quantity(len(gold), 'line')} for the "
            f"{quantity(len(pairs), 'pair')} in {args.pairs}; it needs one line per pair"
        )
    with Progress("aligning", len(pairs), "pairs") as progress:
        outputs = translator.align(
            [pair.key for pair in pairs],
            [pair.target for pair in pairs],
            on_progress=progress.advance,
        )
    if gold is not None:
        check_gold(outputs, gold)
    alignments = [output.alignment() for output in outputs]
    print("".join(f"{alignment}\n" for alignment in alignments), end="")
    if args.attention:
        lines = (json.dumps(_to_dict(output), ensure_ascii=False) + "\n" for output in outputs)
        write_text(args.attention, "".join(lines))
    if gold is not None:
        _report(alignment_metrics(alignments, gold), len(pairs), args.json)


def _to_dict(output: "Translation") -> dict[str, Any]:
    """Return the object that `regard translate --attention` writes, plus the log-probability in nats."""
    return {**output.to_dict(), "log_prob": output.log_prob}


def _report(metrics: "AlignmentMetrics", n: int, path: str | None) -> None:
    print(
        f"alignment error rate {metrics.aer:.4f}, precision {metrics.precision:.4f}, "
        f"recall {metrics.recall:.4f}",
        file=sys.stderr,
    )
    if path is not None:
        values = {"aer": metrics.aer, "precision": metrics.precision, "recall": metrics.recall}
        write_json(path, {"n": n, **values})
