"""regard align DIR PAIRS: align sentence pairs using the model's attention when it is forced to output the target."""

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from regard.cli.options import add_model, add_pairs, check_output_files, load_translator
from regard.cli.parser import Parser
from regard.config import Symmetrization
from regard.errors import ConfigError, DataError, quantity
from regard.files import write_json, write_text
from regard.progress import Progress

if TYPE_CHECKING:
    from regard.alignment import AlignmentMetrics
    from regard.text.features import SourceLike
    from regard.translation import Translation
    from regard.translator import Translator


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
        "--reverse",
        metavar="DIR",
        help="model that translates from target to source; its alignments are combined with those of DIR",
    )
    parser.add_argument(
        "--symmetrize",
        type=Symmetrization | None,
        help="how to combine the alignments of both directions; default: soft",
    )
    parser.add_argument(
        "--threshold",
        type=float,
        default=0.0,
        help="minimum weight of a link, from 0 to 1",
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
    if args.symmetrize and not args.reverse:
        raise ConfigError(
            "--symmetrize combines two directions: give --reverse DIR, a model that translates from "
            "target to source"
        )
    translator = load_translator(args.folder, args.device)
    from regard.alignment import alignment_metrics, check_threshold, read_gold
    from regard.cli.pairs import read_valid_pairs
    from regard.evaluation import check_gold
    from regard.symmetrization import symmetrize

    check_threshold(args.threshold)
    reverse = load_translator(args.reverse, args.device) if args.reverse else None

    pairs = read_valid_pairs(args.pairs, translator.trained.config.data)
    gold = read_gold(args.gold) if args.gold else None
    if gold is not None and len(gold) != len(pairs):
        raise DataError(
            f"{args.gold} has {quantity(len(gold), 'line')} for the "
            f"{quantity(len(pairs), 'pair')} in {args.pairs}; it needs one line per pair"
        )
    sources, targets = [pair.key for pair in pairs], [pair.target for pair in pairs]
    sources, targets = [pair.key for pair in pairs], [pair.target for pair in pairs]
    outputs = _align(translator, sources, targets, "aligning")
    if gold is not None:
        check_gold(outputs, gold)
    if reverse is None:
        alignments = [output.alignment(args.threshold) for output in outputs]
    else:
        texts = [pair.source for pair in pairs]
        others = _align(reverse, targets, texts, "aligning in reverse")
        method = args.symmetrize or "soft"
        alignments = [
            symmetrize(output, other, method, args.threshold)
            for output, other in zip(outputs, others, strict=True)
        ]
    print("".join(f"{alignment}\n" for alignment in alignments), end="")
    if args.attention:
        lines = (json.dumps(_to_dict(output), ensure_ascii=False) + "\n" for output in outputs)
        write_text(args.attention, "".join(lines))
    if gold is not None:
        _report(alignment_metrics(alignments, gold), len(pairs), args.json)


def _align(
    translator: "Translator", sources: Sequence["SourceLike"], targets: Sequence[str], label: str
) -> "list[Translation]":
    with Progress(label, len(sources), "pairs") as progress:
        return translator.align(sources, targets, on_progress=progress.advance)


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
