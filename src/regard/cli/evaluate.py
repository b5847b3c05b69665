"""regard evaluate DIR PAIRS: BLEU, chrF, exact match and error rates, with 95 % confidence intervals."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from jsonargparse import Namespace

from regard import pretrained
from regard.cli.options import (
    add_model,
    add_pairs,
    add_precision,
    add_search,
    check_output_files,
    load_translator,
    require_lines,
)
from regard.cli.parser import Parser
from regard.config import DataConfig
from regard.errors import ConfigError, quantity
from regard.files import write_json
from regard.metrics import BleuTokenizer
from regard.pairs import ParsedPairs
from regard.progress import Progress

if TYPE_CHECKING:
    from regard.evaluation import Report
    from regard.faithfulness import Faithfulness
    from regard.metrics import MetricValues
    from regard.model_folder import TrainedModel
    from regard.overlap import TrainingOverlap
    from regard.pairs import Pair
    from regard.translator import Translator


_FAITHFULNESS_SOURCES = 100
"""Maximum number of sources for which faithfulness is measured."""


def run(arguments: list[str]) -> None:
    """Evaluate a model, print tables, and optionally write JSON."""
    args = make_parser().parse_args(arguments)
    check_output_files(args, "json")
    if args.confusions < 0:
        raise ConfigError(f"--confusions must be at least 0, got {args.confusions}")
    translator = load_translator(args.folder, args.device, args.precision)
    from regard.cli.pairs import check_long_texts, read_valid_pairs
    from regard.request import prepare
    from regard.significance import compare

    config = translator.trained.config.data
    data = [each.config.data.train for each in _models(translator)]
    check_output_files(args, "json", data=data)  # read again, for the overlap
    parsed = read_valid_pairs(args.pairs, config)
    pairs = parsed.pairs
    other = None if args.compare is None else _other_system(args, parsed, config)
    if not args.lowercase:
        _note_upper_case(args.folder, translator, pairs)
        if isinstance(other, tuple):
            _note_upper_case(str(args.compare), other[0], other[1].pairs)
    check_long_texts(parsed, lambda pair: prepare(translator.trained, [pair.key]))
    if isinstance(other, tuple):
        model, others = other
        check_long_texts(others, lambda pair: prepare(model.trained, [pair.key]))
    report = _evaluate(translator, parsed, args)
    if other is not None:
        metrics = _metrics(other, report, args)
        report = replace(report, comparison=compare(report.metrics, metrics, str(args.compare)))
    if args.faithfulness:
        report = replace(report, faithfulness=_faithfulness(translator, report))
    sources = list(dict.fromkeys(pair.key for pair in pairs))
    report = replace(report, training_overlap=_training_overlap(translator, args.folder, sources))
    if args.json:
        write_json(args.json, report.to_dict())
    print(report)
    _warn_of_overlap(report.training_overlap, len(sources))
    if isinstance(other, tuple):
        sources = list(dict.fromkeys(pair.key for pair in other[1].pairs))
        overlap = _training_overlap(other[0], str(args.compare), sources)
        _warn_of_overlap(overlap, len(sources), f"{args.compare}: ")


def _warn_of_overlap(overlap: "TrainingOverlap | None", sources: int, model: str = "") -> None:
    if overlap is not None:
        print(f"regard evaluate: warning: {model}{overlap.message(sources)}", file=sys.stderr)


def _note_upper_case(folder: str, translator: "Translator", pairs: "Sequence[Pair]") -> None:
    """Print how many targets a model that writes lower case cannot match, if there are any."""
    if not translator.target.lowercase:
        return
    count = sum(pair.target != pair.target.lower() for pair in pairs)
    if count:
        print(
            f"regard evaluate: {folder} writes lower case, and {quantity(count, 'target')} {'contains' if count == 1 else 'contain'} upper case; "
            "--lowercase compares in lower case, as training did",
            file=sys.stderr,
        )


def _evaluate(translator: "Translator", parsed: ParsedPairs, args: Namespace) -> "Report":
    from regard.cli.pairs import naming_lines
    from regard.evaluation import evaluate
    from regard.request import prepare

    sources = len({pair.key for pair in parsed.pairs})
    with (
        Progress("translating", sources, "sources") as progress,
        naming_lines(parsed, lambda pair: prepare(translator.trained, [pair.key])),
    ):
        return evaluate(
            translator,
            parsed.pairs,
            args.beam_size,
            length_penalty=args.length_penalty,
            bleu_tokenize=args.bleu_tokenize,
            lowercase=args.lowercase,
            confusions=args.confusions,
            attention=args.faithfulness,
            on_progress=progress.advance,
        )


def _models(translator: "Translator") -> "Sequence[TrainedModel]":
    """Return the model, or the members of an ensemble."""
    return translator.trained.members or (translator.trained,)


def _training_overlap(
    translator: "Translator", folder: str, sources: "Sequence[tuple[str, str | None]]"
) -> "TrainingOverlap | None":
    """Return the test sources in the training file that has most of them.

    An ensemble was trained on the files of its members, a student also on the outputs of its teacher.
    """
    from regard.cli.distill import outputs_for
    from regard.overlap import training_overlap

    known = {
        file: each.config.data
        for each in _models(translator)
        if (file := each.training_file("train")) is not None
    }
    if (outputs := outputs_for(pretrained.find(folder))) is not None:
        column = None if translator.source.features is None else 3
        dev = translator.trained.config.data.dev
        known[str(outputs)] = DataConfig(train=str(outputs), dev=dev, features_column=column)
    found = [
        training_overlap(sources, data, translator.source.normalize) for data in known.values()
    ]
    return max((each for each in found if each), key=lambda each: each.n, default=None)


def _faithfulness(translator: "Translator", report: "Report") -> "Faithfulness":
    """Return the faithfulness of attributions of some outputs, at equal distances."""
    from regard.evaluation import measure_faithfulness
    from regard.faithfulness import available_methods

    methods = available_methods(translator.trained.model)
    if "gradient" not in methods:
        print(
            "regard evaluate: gradients are left out, because the model copies tokens, which these do not follow",
            file=sys.stderr,
        )
    elif "integrated_gradients" not in methods:
        print(
            "regard evaluate: integrated gradients are left out, because captum is not installed: "
            "pip install 'regard[attribution]'",
            file=sys.stderr,
        )
    outputs = [output for output in report.translations if output.tokens]
    chosen = outputs[:: -(-len(outputs) // _FAITHFULNESS_SOURCES) or 1]
    with Progress("attributing", len(chosen), "sources") as progress:
        return measure_faithfulness(translator, chosen, progress.advance)


def _other_system(
    args: Namespace, parsed: ParsedPairs, data: DataConfig
) -> "tuple[Translator, ParsedPairs] | list[str]":
    """Return the model to compare with and the pairs as it reads them, or the outputs of a system.

    Raises:
        ConfigError: the columns that the model reads give other sources or targets.
    """
    from regard.cli.pairs import pairs_for_model, read_outputs
    from regard.pairs import group_by_source

    pairs = parsed.pairs
    if not pretrained.find(args.compare).is_dir():
        require_lines(args.compare, "output")
        return read_outputs(args.compare, pairs, args.pairs)
    other = load_translator(args.compare, args.device, args.precision)
    own = pairs_for_model(args.pairs, pairs, data, other.trained.config.data)
    if group_by_source(own)[1] != group_by_source(pairs)[1]:
        raise ConfigError(
            f"{args.folder} and {args.compare} read different source features (data.features_column), "
            f"by which equal sources of {args.pairs} differ for one of them only; compare models that "
            "read the same features, or give the outputs of one as a file"
        )
    return other, parsed._replace(pairs=own)


def _metrics(
    other: "tuple[Translator, ParsedPairs] | list[str]", report: "Report", args: Namespace
) -> "MetricValues":
    """Return the metrics of a model, or of the outputs of a system, for the sources of a report."""
    from regard import metrics

    if not isinstance(other, list):
        return _evaluate(*other, args).metrics
    return metrics.report(
        other,
        report.references,
        [0] * len(other),
        bleu_tokenize=args.bleu_tokenize,
        lowercase=args.lowercase,
    )


def make_parser() -> Parser:
    """Return the parser of this command."""
    parser = Parser(prog="regard evaluate", description=__doc__)
    add_model(parser)
    add_precision(parser)
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
    parser.add_argument(
        "--compare",
        metavar="OTHER",
        help="another model folder or pretrained model, or a file with the output of another system for each pair, one per "
        "line: test the differences of all metrics with the paired bootstrap",
    )
    parser.add_argument(
        "--confusions",
        type=int,
        default=10,
        metavar="N",
        help="list the N most frequent confusions of target tokens; 0 lists none",
    )
    parser.add_argument(
        "--faithfulness",
        action="store_true",
        help="for at most 100 sources, measure how much the probability of the output decreases without "
        "the source tokens that attention, erasure, gradients and integrated gradients rank highest",
    )
    parser.add_argument("--json", metavar="FILE", help="write the metrics to this JSON file")
    return parser
