"""regard export DIR -o OUT: export a model for ONNX Runtime, or as a static web page."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from regard.cli.options import add_model_folder, load_translator
from regard.cli.parser import Parser
from regard.errors import ConfigError, DataError, quantity
from regard.progress import Progress
from regard.quantization import WeightType

if TYPE_CHECKING:
    from regard.translator import Translator


def run(arguments: list[str]) -> None:
    """Export a model, and print the size and the quality of the result."""
    args = make_parser().parse_args(arguments)
    if args.onnxruntime_web and not args.web:
        raise ConfigError("--onnxruntime-web is for the static page: add --web, or omit it")
    if args.dictionary and args.web:
        raise ConfigError("the static page has no dictionary: omit --dictionary or --web")
    from regard import pretrained
    from regard.export.conversion import require_packages
    from regard.export.folder import check_decoder, export
    from regard.export.runtime import runtime_files
    from regard.export.site import export_site
    from regard.files import require_empty_folder
    from regard.quantization import round_weights

    require_packages()
    require_empty_folder(Path(args.out))
    runtime = runtime_files(args.onnxruntime_web) if args.web else None
    translator = load_translator(args.folder, "cpu")
    check_decoder(translator)
    folder = pretrained.find(args.folder)
    if (only_member := folder / "members" / "0").is_dir():  # an ensemble of one model
        folder = only_member
    dictionary = _read_dictionary(args.dictionary, translator)
    pairs = args.dev or translator.trained.training_file("dev")
    skip = args.dev is None and translator.trained.config.data.bad_lines == "skip"
    round_weights(translator.trained.model, args.weights)
    if pairs is None:
        figures = _recorded_figures(folder, args.weights)
        _warn(
            "the dev pairs of the training run are missing or have changed, so the exported model is not "
            "evaluated; to evaluate it, add --dev PAIRS"
        )
        quality = "".join(f"{line}\n" for line in figures)
    else:
        quality, figures = _quality(translator, pairs, args.weights, skip)
    options: dict[str, Any] = {
        "weights": args.weights,
        "dictionary": dictionary,
        "notice": folder / "NOTICE",
        "figures": figures,
        "on_stage": _warn,
    }
    if runtime is None:
        exported = export(translator, args.out, **options)
        example = next(iter(translator.trained.metadata.get("examples", ())), "some text")
        advice = f"echo {shlex.quote(example)} | python {shlex.quote(str(Path(args.out, 'translate.py')))}"
    else:
        name = pretrained.find(args.folder).resolve().name
        exported = export_site(translator, args.out, runtime, name, **options)
        advice = f"python -m http.server --directory {shlex.quote(args.out)}"
    parity = exported.parity
    # after the export, because the reader of standard output may have gone
    print(quality, end="")
    print(f"{exported.folder}: {exported.size / 1e6:.1f} MB, weights in {args.weights}")
    print(
        f"same outputs as PyTorch for {parity.sources} sources; attention weights differ by at most "
        f"{parity.weights:.1g}, log-probabilities by {parity.log_probs:.1g}"
    )
    print(f"try: {advice}")


def _warn(message: str) -> None:
    print(f"regard export: {message}", file=sys.stderr)


def _read_dictionary(path: str | None, translator: "Translator") -> dict[str, list[str]]:
    if path is None:
        return {}
    from regard.cli.pairs import read_dictionary

    return read_dictionary(path, translator).targets


def _recorded_figures(folder: Path, weights: str) -> list[str]:
    """Return the dev figures of the model card as lines; empty if it has none."""
    from regard.model_card import dev_figures

    figures = dev_figures(folder)
    if not figures:
        return []
    introduction = [
        f"Dev figures from the model card; not measured again for this folder (weights in {weights}).",
        "The best weights are those of the training run, before any rounding.",
        "",
    ]
    return [*introduction, *figures]


def _quality(
    translator: "Translator", pairs: str, weights: str, skip: bool
) -> tuple[str, list[str]]:
    """Return the metrics of the model on pairs: as tables, and as lines of the exported README."""
    from regard.cli.pairs import read_valid_pairs
    from regard.evaluation import evaluate

    try:
        dev = read_valid_pairs(pairs, translator.trained.config.data, skip=skip).pairs
    except DataError as error:
        raise DataError(f"{error} (dev pairs; give others with --dev)") from None
    sources = len({pair.key for pair in dev})
    lowercase = translator.target.lowercase
    measured = f"weights in {weights}{', targets lower-cased' if lowercase else ''}"
    with Progress("translating", sources, "sources") as progress:
        report = evaluate(
            translator, dev, lowercase=lowercase, attention=False, on_progress=progress.advance
        )
    figures = [
        "Dev figures, measured at export:",
        "",
        f"- {measured}, dev pairs ({quantity(sources, 'source')}), beam size 5: {report.summary()}",
    ]
    return f"dev, {pairs}, {measured}:\n{report}\n", figures


def make_parser() -> Parser:
    """Return the parser of this command."""
    parser = Parser(prog="regard export", description=__doc__)
    add_model_folder(parser)
    parser.add_argument("-o", "--out", required=True, metavar="OUT", help="folder to write")
    parser.add_argument(
        "--weights",
        type=WeightType,
        default="float32",
        help=f"how the weights are stored: {', '.join(get_args(WeightType))}",
    )
    parser.add_argument(
        "--web",
        action="store_true",
        help="write a static web page with the model inside, for any web server",
    )
    parser.add_argument(
        "--onnxruntime-web",
        metavar="DIR",
        help="with --web: the unpacked npm package onnxruntime-web (default: npm downloads it)",
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
