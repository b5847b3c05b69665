"""Align sentence pairs using the attention of a model, or of two models in opposite directions.

`regard align DIR PAIRS` uses the attention of DIR in forced decoding of the targets. `regard align
--train PAIRS --out OUT` aligns the pairs with hidden Markov models, writes their links to
OUT/links.pharaoh, one line per pair, and trains a model in each direction, OUT/forward and OUT/reverse,
whose attention is guided by these links.
"""

import json
import shlex
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsonargparse import Namespace

from regard.cli.options import (
    add_device,
    check_output_files,
    enable_huge_pages,
    load_translator,
    loading,
)
from regard.cli.parser import Parser, add_settings, recipe_first, settings
from regard.config import DataConfig, Symmetrization
from regard.errors import ConfigError, DataError, quantity
from regard.files import (
    is_temporary,
    open_output,
    require_empty_folder,
    write_json,
    write_text,
)
from regard.lines import chunks_of, read_lines
from regard.pairs import Pair, ParsedPairs, require_named_columns
from regard.progress import Progress
from regard.text import unknown_tokens_message

if TYPE_CHECKING:
    from regard.alignment import Alignment, AlignmentMetrics
    from regard.translation import Translation
    from regard.translator import Translator

_POSITIONAL = {"folder": "DIR", "pairs": "PAIRS"}
_WITH_MODELS = (*_POSITIONAL, "gold", "reverse", "json", "attention")
_WITH_TRAINING = ("out", "max_minutes", "resume")

_CHUNK = 1000
"""Maximum number of pairs whose attention weights are in memory at the same time."""

_MINUTES = 30.0
"""Time budget of --train if none is given."""

_COMMON = (
    *("--gold", "--reverse", "--symmetrize", "--threshold", "--json", "--attention", "--device"),
    *("--train", "--out", "--max-minutes", "--config", "--resume"),
)

_EXAMPLES = """
examples:
  regard align run pairs.tsv > links.pharaoh
  regard align es-en pairs.tsv --reverse en-es --gold pairs.align
  regard align --train pairs.tsv --out aligned --max-minutes 20
  regard align --train train.es,train.en --out aligned --config translation
"""


def make_parser() -> Parser:
    """Return the parser of this command."""
    parser = Parser(
        prog="regard align",
        usage="regard align DIR PAIRS [options], or regard align --train PAIRS --out OUT [options]",
        description=__doc__,
        epilog=_EXAMPLES,
        common=_COMMON,
    )
    add_settings(parser)
    options = parser.options()
    options["--training.max_minutes"].help = (
        "Time budget of each direction, in minutes, instead of --max-minutes; the learning rate reaches 0 at "
        "its end."
    )
    options["--data.bad_lines"].help = (
        "How to handle lines that are empty, are too long or lack a column: stop and list them, or skip and "
        "count them (default: skip)"
    )
    option = parser.add_argument
    option(
        "folder", nargs="?", metavar="DIR", help="model folder, or the name of a pretrained model"
    )
    option(
        "pairs", nargs="?", metavar="PAIRS", help="TSV file, or two parallel files as F.src,F.tgt"
    )
    add_device(parser)
    option(
        "--gold",
        metavar="FILE",
        help="gold links, one line per pair: i-j (sure) or i?j (possible), 0-based",
    )
    option(
        "--reverse",
        metavar="DIR",
        help="model that translates from target to source; its alignments are combined with those of DIR",
    )
    option(
        "--symmetrize",
        type=Symmetrization | None,
        help="how to combine the alignments of both directions; default: soft, or with --train the links of "
        "hidden Markov models instead of those of the trained models",
    )
    option("--threshold", type=float, default=0.0, help="minimum weight of a link, from 0 to 1")
    option(
        "--json",
        metavar="FILE",
        help="write alignment error rate, precision and recall to this JSON file",
    )
    option(
        "--attention",
        metavar="FILE",
        help="write the tokens, attention weights and log-probability of each pair to this file, one "
        "JSON object per line",
    )
    option("--train", metavar="PAIRS", help="pairs to train both directions on, and to align")
    option("--out", metavar="OUT", help="output folder of --train")
    option(
        "--max-minutes",
        type=float | None,
        metavar="M",
        help=f"time budget of --train, in minutes, for both directions together; default: {_MINUTES:g}, unless "
        "options or --config limit the minutes (of each direction) or the updates",
    )
    option(
        "--resume",
        action="store_true",
        help="continue --train from the last checkpoints in the output folder",
    )
    return parser


def run(arguments: list[str]) -> None:
    """Align with models that exist, or train them first."""
    parser, expanded = make_parser(), recipe_first(arguments)
    args = parser.parse_args(expanded)
    groups = settings(parser.parse_args(expanded, defaults=False))
    if args.train is None:
        _require_positional(parser, args)
        given = ["--config"] if args.config is not None else []
        given += [f"--{name.replace('_', '-')}" for name in _WITH_TRAINING if args[name]]
        given += [f"--{group}.{name}" for group, values in groups.items() for name in values]
        if given:
            raise ConfigError(f"{given[0]} belongs to --train PAIRS, which is not given")
        _align_with_models(args)
    else:
        given = [name for name in _WITH_MODELS if args[name] is not None]
        if given:
            raise ConfigError(
                f"--train trains its own models, which leaves no use for "
                f"{_POSITIONAL.get(given[0], f'--{given[0]}')}: leave it out; afterwards, regard align "
                "OUT/forward PAIRS --reverse OUT/reverse aligns other pairs"
            )
        # the time of a recipe or a settings file is replaced, as by any option
        names = {argument.partition("=")[0] for argument in arguments}
        if {"--max-minutes", "--training.max_minutes"} <= names:
            raise ConfigError(
                "--max-minutes is the time budget of both directions together, and --training.max_minutes "
                "that of each: give one of them"
            )
        _train(args, groups, shlex.join(["regard", "align", *arguments]))


def _require_positional(parser: Parser, args: Namespace) -> None:
    missing = [name for name in _POSITIONAL if args[name] is None]
    if missing:
        parser.error(f"the following arguments are required: {', '.join(missing)}")


def _train(args: Namespace, groups: dict[str, Any], command: str) -> None:
    """Train both directions and write the links of all pairs."""
    if args.out is None:
        raise ConfigError("--train needs an output folder: give --out OUT")
    if groups["data"].get("train") is not None:
        raise ConfigError("the pairs of --train are the training pairs; leave out data.train")
    out, data = Path(args.out), DataConfig(**groups["data"])
    if data.features_column is not None:
        raise ConfigError(
            "features of the source cannot be aligned; leave out --data.features_column"
        )
    require_named_columns(data, args.train, data.dev)
    has_begun = args.resume and (out / "forward" / "config.json").exists()
    if not has_begun and not _was_killed_early(out):
        other = "choose another folder (--out)"
        remedy = (
            f"it has no models to resume: {other}"
            if args.resume
            else f"{other}, or continue (--resume)"
        )
        require_empty_folder(out, remedy)
    enable_huge_pages()
    with loading("PyTorch"):
        from regard.aligner import LINKS, guide_of, train_both, write_links
        from regard.alignment import check_threshold
        from regard.examples import REMEDY
        from regard.pairs import read_pairs

    check_threshold(args.threshold)
    guide = None if args.symmetrize else guide_of(out, groups)
    if args.threshold and guide is not None:
        raise ConfigError(
            "--threshold is the minimum weight of a link of the trained models: give --symmetrize too"
        )
    parsed = read_pairs(args.train, data)
    dev = None if data.dev is None else read_pairs(data.dev, data)
    for each in (parsed, dev):
        if each is not None:
            each.require_valid(REMEDY if groups["data"].get("bad_lines") == "stop" else None)
    budget = {"max_minutes", "max_updates"} & groups["training"].keys()
    minutes = args.max_minutes
    if minutes is None and not (budget or has_begun):
        minutes = _MINUTES
    forward, reverse = train_both(
        out, parsed, dev, max_minutes=minutes, resume=args.resume,
        device=args.device, command=command, **groups,
    )  # fmt: skip
    path, method = out / LINKS, args.symmetrize or "soft"
    if guide is None:
        with Progress("aligning", len(parsed.pairs), "pairs") as progress:
            failures = write_links(
                path, forward, reverse, parsed, method, args.threshold, progress.advance
            )
    else:
        links = read_lines(guide)
        write_text(path, "".join(f"{line}\n" for line in links))
        failures = sum(not line for line in links)
    total = len(parsed.pairs) + len(parsed.bad)
    print(
        f"the links of {quantity(total, 'pair')} are saved in {path}"
        + (f"; {failures:,} have an empty line, without links" if failures else "")
    )


def _was_killed_early(out: Path) -> bool:
    """Return whether a folder contains only what a command leaves that is killed before its models are saved."""
    locks = [out / name / "checkpoints" / ".lock" for name in ("forward", "reverse")]
    return any(lock.exists() for lock in locks) and all(
        path.is_dir() or path in locks or path == out / "guide.pharaoh" or is_temporary(path)
        for path in out.rglob("*")
    )


def _align_with_models(args: Namespace) -> None:
    """Print a Pharaoh line per pair; with gold links, report the metrics on standard error."""
    check_output_files(args, "json", "attention")
    if args.json and not args.gold:
        raise ConfigError("--json needs gold links to compute metrics; give --gold too")
    if args.symmetrize and not args.reverse:
        raise ConfigError(
            "--symmetrize combines two directions: give --reverse DIR, a model that translates from "
            "target to source"
        )
    translator = load_translator(args.folder, args.device)
    from regard.alignment import alignment_metrics, check_threshold
    from regard.cli.pairs import check_long_texts, read_gold_links, read_valid_pairs
    from regard.evaluation import check_gold_links

    check_threshold(args.threshold)
    reverse = load_translator(args.reverse, args.device) if args.reverse else None
    for folder, model in ((args.folder, translator), (args.reverse, reverse)):
        if reverse is not None and model is not None and model.source.features is not None:
            raise ConfigError(
                f"{folder} reads source features (data.features_column), which have no links; leave out "
                "--reverse, or train a model without features"
            )

    parsed = read_valid_pairs(args.pairs, translator.trained.config.data)
    gold = read_gold_links(args.gold, parsed) if args.gold else None
    check_long_texts(parsed, _checks(translator))
    if reverse is not None:
        check_long_texts(_reversed(parsed), _checks(reverse))
    if gold is not None:
        names = [f"{args.gold}, line {number:,}" for number in parsed.numbers]
        check_gold_links(gold, parsed.pairs, translator.source, translator.target, names)
    alignments = _align_in_parts(args, parsed, translator, reverse)
    if gold is not None:
        _report(alignment_metrics(alignments, gold), len(alignments), args.json)
    print("".join(f"{alignment}\n" for alignment in alignments), end="")


def _align_in_parts(
    args: Namespace,
    parsed: ParsedPairs,
    translator: "Translator",
    reverse: "Translator | None",
) -> "list[Alignment]":
    """Return the alignments of all pairs, and write the attention weights if a file is given."""
    from regard.symmetrization import symmetrize

    alignments: list[Alignment] = []
    unknown = defaultdict[str, Counter[str]](Counter)
    lengths = [pair.length for pair in parsed.pairs]
    total = len(lengths)
    with open_output(args.attention) as file, Progress("aligning", total, "pairs") as progress:
        for indices in chunks_of(range(total), _CHUNK, lengths.__getitem__):
            part = parsed.select(indices)
            on_progress = progress.advance if reverse is None else None
            outputs = _align(translator, part, "aligning", unknown, on_progress)
            if file is not None:
                lines = (json.dumps(_to_dict(output), ensure_ascii=False) for output in outputs)
                file.writelines(f"{line}\n" for line in lines)
            if reverse is None:
                alignments += [output.alignment(args.threshold) for output in outputs]
                continue
            others = _align(
                reverse, _reversed(part), "aligning in reverse", unknown, progress.advance
            )
            method = args.symmetrize or "soft"
            for number, output, other in zip(part.numbers, outputs, others, strict=True):
                try:
                    links = symmetrize(output, other, method, args.threshold)
                except DataError as error:
                    where = f"{parsed.name}, {parsed.unit} {number:,}"
                    raise DataError(f"{where}: {error}") from None
                alignments.append(links)
    for side, tokens in unknown.items():
        print(f"regard align: {side} {unknown_tokens_message(tokens)}", file=sys.stderr)
    return alignments


def _reversed(parsed: ParsedPairs) -> ParsedPairs:
    """Return the pairs from target to source."""
    return parsed._replace(pairs=[Pair(pair.target, pair.source) for pair in parsed.pairs])


def _checks(translator: "Translator") -> Callable[[Pair], object]:
    """Return a function that raises a DataError for a pair that the model cannot align."""
    from regard.request import prepare

    return lambda pair: prepare(translator.trained, [pair.key], [pair.target], forced=True)


def _align(
    translator: "Translator",
    parsed: ParsedPairs,
    label: str,
    unknown: defaultdict[str, Counter[str]],
    on_progress: Callable[[int], None] | None,
) -> "list[Translation]":
    """Return the forced outputs of the pairs, and count their tokens that are not in the vocabulary."""
    from regard.cli.pairs import naming_lines

    targets = [pair.target for pair in parsed.pairs]
    with naming_lines(parsed, _checks(translator)):
        outputs = translator.align(
            [pair.key for pair in parsed.pairs], targets, on_progress=on_progress
        )
    of_targets = (encoding.unknown for encoding in translator.target.encode_batch(targets))
    for side, texts in (("source", [output.unknown for output in outputs]), ("target", of_targets)):
        if tokens := [token for each in texts for token in each]:
            unknown[f"{label}: {side}"].update(tokens)
    return outputs


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
