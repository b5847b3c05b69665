"""regard export DIR -o OUT: write a folder that translates in ONNX Runtime, without regard and PyTorch."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from regard.cli.options import load_translator
from regard.cli.parser import Parser
from regard.errors import DataError
from regard.progress import Progress
from regard.quantization import WeightType

if TYPE_CHECKING:
    from regard.translator import Translator


def run(arguments: list[str]) -> None:
    """Export a model, and print the size and the quality of the result."""
    args = make_parser().parse_args(arguments)
    from regard import pretrained
    from regard.export.conversion import require_packages
    from regard.export.folder import export
    from regard.files import require_empty_folder
    from regard.quantization import round_weights

    require_packages()
    require_empty_folder(Path(args.out))
    translator = load_translator(args.folder, "cpu")
    pairs = args.dev or _recorded_pairs(translator)
    if args.dev is None and pairs is None:
        print(
            "regard export: the quality is not measured, because the dev pairs of the training run are "
            "not here; give them with --dev",
            file=sys.stderr,
        )
    round_weights(translator.trained.model, args.weights)
    if pairs is not None:
        _print_quality(translator, pairs, args.weights)
    exported = export(
        translator,
        args.out,
        args.weights,
        _read_dictionary(args.dictionary, translator),
        notice=pretrained.find(args.folder) / "NOTICE",
        on_stage=lambda stage: print(f"{stage} …", file=sys.stderr),
    )
    parity = exported.parity
    print(f"{exported.folder}: {exported.size / 1e6:.1f} MB, weights in {args.weights}")
    print(
        f"same outputs as PyTorch for {parity.sources} sources; attention weights differ by at most "
        f"{parity.weights:.1g}, log-probabilities by {parity.log_probs:.1g}"
    )
    print(f"try: echo 'some text' | python {exported.folder / 'translate.py'}")


def _read_dictionary(path: str | None, translator: "Translator") -> dict[str, list[str]]:
    if path is None:
        return {}
    from regard.dictionary import Dictionary

    return Dictionary.read(path, translator).targets


def _recorded_pairs(translator: "Translator") -> str | None:
    """Return the dev pairs with which the model was trained, if they are still there."""
    dev = translator.trained.config.data.dev
    return dev if dev is not None and all(map(Path.is_file, map(Path, dev.split(",")))) else None


def _print_quality(translator: "Translator", pairs: str, weights: str) -> None:
    from regard.cli.pairs import read_valid_pairs
    from regard.evaluation import evaluate

    try:
        dev = read_valid_pairs(pairs, translator.trained.config.data)
    except DataError as error:
        raise DataError(f"{error} (dev pairs; give others with --dev)") from None
    sources = len({pair.source for pair in dev})
    with Progress("translating", sources, "sources") as progress:
        report = evaluate(translator, dev, on_progress=progress.advance)
    print(f"dev, {pairs}, weights in {weights}:\n{report}")


def make_parser() -> Parser:
    """Return the parser of this command."""
    parser = Parser(prog="regard export", description=__doc__)
    parser.add_argument("folder", metavar="DIR", help="model folder, or the name of a ready model")
    parser.add_argument("-o", "--out", required=True, metavar="OUT", help="folder to write")
    parser.add_argument(
        "--weights",
        type=WeightType,
        default="float32",
        help=f"how the weights are stored: {', '.join(get_args(WeightType))}",
    )
    parser.add_argument(
        "--dictionary",
        metavar="FILE",
        help="TSV file of source TAB target; the runners answer these sources from it",
    )
    parser.add_argument(
        "--dev",
        metavar="PAIRS",
        help="pairs on which the quality is measured (default: the dev pairs of the training run)",
    )
    return parser
