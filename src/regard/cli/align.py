"""regard align DIR PAIRS: alignments of given pairs, from the attention of their forced targets."""

import json
import sys

from regard.cli.parser import Parser
from regard.config import Device
from regard.errors import ConfigError, DataError
from regard.files import write_text
from regard.progress import Progress


def run(arguments: list[str]) -> None:
    """Print a Pharaoh line per pair; with gold links also how good they are, on standard error."""
    parser = Parser(prog="regard align", description=__doc__)
    parser.add_argument("folder", type=str, help="a model folder")
    parser.add_argument("pairs", type=str, help="a TSV file, or two parallel files as F.src,F.tgt")
    parser.add_argument(
        "--gold", type=str, help="gold links, a line per pair: i-j sure, i?j possible, from 0"
    )
    parser.add_argument(
        "--json", type=str, help="write alignment error rate, precision and recall here"
    )
    parser.add_argument("--device", type=Device, default="auto", help="where to compute")
    given = parser.parse_args(arguments)
    if given.json and not given.gold:
        raise ConfigError("--json writes how well the links agree with gold ones; give --gold too")
    from regard.alignment import read_gold
    from regard.cli.pairs import good_pairs
    from regard.evaluation import align
    from regard.translator import Translator

    translator = Translator.load(given.folder, given.device)
    pairs = good_pairs(given.pairs, translator.trained.config.data.features_column)
    gold = read_gold(given.gold) if given.gold else None
    if gold is not None and len(gold) != len(pairs):
        raise DataError(
            f"{given.gold} has {len(gold):,} lines for the {len(pairs):,} pairs of {given.pairs}; it "
            "needs one line per pair"
        )
    with Progress("aligning", len(pairs), "pairs") as progress:
        found, scores = align(translator, pairs, gold, progress.advance)
    print("".join(f"{alignment}\n" for alignment in found), end="")
    if scores is None:
        return
    figures = {"aer": scores.aer, "precision": scores.precision, "recall": scores.recall}
    print(
        "alignment error rate {aer:.4f}, precision {precision:.4f}, recall {recall:.4f}".format(
            **figures
        ),
        file=sys.stderr,
    )
    if given.json:
        write_text(given.json, json.dumps({"n": len(pairs), **figures}, indent=2) + "\n")
