"""regard align DIR PAIRS: align sentence pairs by the model's attention over forced targets."""

import sys

from regard.cli.options import add_model, add_pairs
from regard.cli.parser import Parser
from regard.errors import ConfigError, DataError
from regard.files import write_json
from regard.progress import Progress


def run(arguments: list[str]) -> None:
    """Print a Pharaoh line per pair; with gold links, report the metrics on standard error."""
    parser = Parser(prog="regard align", description=__doc__)
    add_model(parser)
    add_pairs(parser)
    parser.add_argument(
        "--gold", help="gold links, one line per pair: i-j sure, i?j possible, 0-based"
    )
    parser.add_argument(
        "--json", help="write alignment error rate, precision and recall to this file"
    )
    args = parser.parse_args(arguments)
    if args.json and not args.gold:
        raise ConfigError("--json writes metrics against gold links; give --gold too")
    from regard.alignment import read_gold
    from regard.cli.pairs import read_valid_pairs
    from regard.evaluation import align
    from regard.translator import Translator

    translator = Translator.load(args.folder, args.device)
    pairs = read_valid_pairs(args.pairs, translator.trained.config.data.features_column)
    gold = read_gold(args.gold) if args.gold else None
    if gold is not None and len(gold) != len(pairs):
        raise DataError(
            f"{args.gold} has {len(gold):,} lines for the {len(pairs):,} pairs of {args.pairs}; it "
            "needs one line per pair"
        )
    with Progress("aligning", len(pairs), "pairs") as progress:
        alignments, scores = align(translator, pairs, gold, progress.advance)
    print("".join(f"{alignment}\n" for alignment in alignments), end="")
    if scores is None:
        return
    print(
        f"alignment error rate {scores.aer:.4f}, precision {scores.precision:.4f}, "
        f"recall {scores.recall:.4f}",
        file=sys.stderr,
    )
    if args.json:
        metrics = {"aer": scores.aer, "precision": scores.precision, "recall": scores.recall}
        write_json(args.json, {"n": len(pairs), **metrics})
