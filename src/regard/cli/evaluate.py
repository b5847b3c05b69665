"""regard evaluate DIR PAIRS: BLEU, chrF, exact match and error rates, with 95 % confidence intervals."""

from regard.cli.options import (
    add_model,
    add_pairs,
    add_search,
    check_output_files,
    load_translator,
)
from regard.cli.parser import Parser
from regard.files import write_json
from regard.metrics import BleuTokenizer
from regard.progress import Progress


def run(arguments: list[str]) -> None:
    """Evaluate a model, print a table, and optionally write JSON."""
    args = make_parser().parse_args(arguments)
    check_output_files(args, "json")
    translator = load_translator(args.folder, args.device)
    from regard.cli.pairs import read_valid_pairs
    from regard.evaluation import evaluate

    pairs = read_valid_pairs(args.pairs, translator.trained.config.data)
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
    if args.json:
        write_json(args.json, report.to_dict())
    print(report)


def make_parser() -> Parser:
    """Return the parser of this command."""
    parser = Parser(prog="regard evaluate", description=__doc__)
    add_model(parser)
    add_pairs(parser)
    add_search(parser)
    parser.add_argument(
        "--bleu-tokenize", type=BleuTokenizer, default="13a", help="tokenizer for BLEU"
    )
    parser.add_argument(
        "--lowercase",
        action="store_true",
        help="lower-case outputs and references before computing metrics",
    )
    parser.add_argument("--json", metavar="FILE", help="write the metrics to this JSON file")
    return parser
