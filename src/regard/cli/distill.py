"""Train one model on the outputs of another, such as an ensemble, and on the original targets.

Sequence-level distillation (Kim and Rush 2016): the teacher translates the sources of --data.train and
the lines of --unlabelled. OUT/outputs.tsv contains its outputs, and OUT/model the trained model. Pairs that
are longer than data.max_length are skipped and counted.
"""

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import Namespace

from regard.cli.options import (
    add_beam_size,
    add_model,
    add_output_folder,
    enable_huge_pages,
    load_translator,
    print_saved,
    require_lines,
)
from regard.cli.parser import Parser, add_settings, recipe_first, settings
from regard.config import DataConfig, from_dict
from regard.errors import ConfigError, DataError, quantity
from regard.files import require_empty_folder
from regard.lines import read_lines
from regard.pairs import require_named_columns
from regard.progress import Progress
from regard.setting_checks import MAX_LENGTH, check_beam_size
from regard.text.normalization import MOST_MARKS, excess_mark

if TYPE_CHECKING:
    from regard.distillation import SourceWithFeatures
    from regard.pairs import Pair
    from regard.translator import Translator

_OUTPUTS = "outputs.tsv"
_STUDENT = "model"
_COMMON = (
    *("--data.train", "--data.dev", "--out", "--config", "--unlabelled", "--beam-size"),
    *("--model.kind", "--model.attention", "--training.max_minutes", "--resume", "--device"),
)

_EXAMPLES = """
examples:
  regard distill all --data.train train.tsv --data.dev dev.tsv --out student
  regard distill all --data.train train.tsv --data.dev dev.tsv --unlabelled lines.txt --out student
"""


def run(arguments: list[str]) -> None:
    """Translate with the teacher, then train the student."""
    parser, expanded = make_parser(), recipe_first(arguments)
    args = parser.parse_args(expanded)
    values = settings(parser.parse_args(expanded, defaults=False))
    data, out = DataConfig(**values["data"]), Path(args.out)
    if data.train is None or data.dev is None:
        raise ConfigError(
            "distillation needs pairs to train and to validate on: give --data.train F --data.dev F"
        )
    require_named_columns(data, data.train, data.dev)
    if args.unlabelled is not None:
        require_lines(args.unlabelled)
    # outputs may be longer than data.max_length; the pairs of the user are checked below
    values["data"]["bad_lines"] = "skip"
    config = from_dict({**values, "out": str(out / _STUDENT), "device": args.device})
    check_beam_size(beam_size=args.beam_size)
    if data.train_links is not None:
        raise ConfigError(
            "the teacher's outputs have no links: leave out data.train_links; without it, "
            "training.guided_alignment computes links, also for the outputs"
        )
    if not args.resume:
        require_empty_folder(out, "choose another folder (--out), or continue (--resume)")
        config.check_groups()
    elif not _has_begun(out):
        require_empty_folder(out, "it has no distillation to resume: choose another folder (--out)")
    enable_huge_pages()
    from regard.corpus import make_corpus
    from regard.pairs import concatenated, pairs_from, read_pairs

    parsed, dev = read_pairs(data.train, data), read_pairs(data.dev, data)
    for each in (parsed, dev):
        each.require_valid("correct or skip them" if data.bad_lines == "stop" else None)
    adapt = args.config is None

    def check() -> None:
        """Raise an error for settings that do not suit the pairs."""
        if not args.resume:  # when a run is resumed, its settings complete those that are given
            make_corpus(config, parsed, dev, adapt=adapt, compute_links=False)

    outputs = _outputs(args, data, [pair.key for pair in parsed.pairs], out, check)
    from regard.training import train

    more = pairs_from(outputs, str(out / _OUTPUTS), data.features_column)
    student = train(
        config,
        concatenated(parsed, more),
        dev,
        resume=args.resume,
        adapt=adapt,
        command=shlex.join(["regard", "distill", *arguments]),
    )
    print_saved(student, out / _STUDENT)


def outputs_for(student: Path) -> Path | None:
    """Return the file of the teacher's outputs that a student was trained on; None if there is none.

    Its columns are source, output and, if the student reads them, features.
    """
    student = student.resolve()
    outputs = student.parent / _OUTPUTS
    description = outputs.with_suffix(".json")  # other files may have the name of the outputs
    is_student = student.name == _STUDENT and outputs.is_file() and description.is_file()
    return outputs if is_student else None


def _has_begun(out: Path) -> bool:
    """Return whether a folder contains a distillation, if only one that was killed at its start."""
    was_killed_early = (out / _STUDENT / "checkpoints" / ".lock").exists()
    return (out / _OUTPUTS).with_suffix(".json").exists() or (
        was_killed_early and not (out / _STUDENT / "config.json").exists()
    )


def _outputs(
    args: Namespace,
    data: DataConfig,
    sources: list[tuple[str, str | None]],
    out: Path,
    check: Callable[[], None],
) -> "list[Pair]":
    """Translate with the teacher, which is not in memory any more when the student is trained.

    `check` is called before the teacher translates.
    """
    teacher, path = load_translator(args.folder, args.device), out / _OUTPUTS
    from regard import checkpoints
    from regard.distillation import distinct_sources, translatable, write_outputs

    lines = [] if args.unlabelled is None else read_lines(args.unlabelled)
    unlabelled = [teacher.source.parse_source(line) for line in lines]
    if blank := sum(not text.strip() for text, _ in unlabelled):
        print(
            f"regard distill: {quantity(blank, 'line')} of {args.unlabelled} left out, without a source",
            file=sys.stderr,
        )
    _check_features(args, data, teacher, sources, unlabelled)
    distinct = distinct_sources([*sources, *unlabelled])
    sources, truncated = translatable(teacher, distinct), 0
    if left_out := len(distinct) - len(sources):
        print(
            f"regard distill: {quantity(left_out, 'source')} left out, with more than {MAX_LENGTH:,} tokens",
            file=sys.stderr,
        )
    check()

    def advance(count: int, new_truncated: int) -> None:
        nonlocal truncated
        truncated += new_truncated
        progress.advance(count)

    with (
        checkpoints.locked(out / _STUDENT),  # two processes would mix their outputs
        Progress("translating", len(sources), "sources") as progress,
    ):
        try:
            outputs = write_outputs(teacher, sources, path, args.beam_size, advance)
        finally:  # a resumed call does not count those again
            if truncated:
                progress.print(f"{quantity(truncated, 'output')} truncated at the length limit")
        progress.print(f"{path} contains the outputs for {quantity(len(sources), 'source')}")
        if empty := len(sources) - len(outputs):
            left_out = f"{quantity(empty, 'output')} left out"
            progress.print(f"{left_out}, because nothing or unknown tokens were written")
    return outputs


def _check_features(
    args: Namespace,
    data: DataConfig,
    teacher: "Translator",
    sources: "list[SourceWithFeatures]",
    unlabelled: "list[SourceWithFeatures]",
) -> None:
    """Raise an error for lines without the columns that the teacher reads, with others, or with too many marks."""
    reads, has = teacher.source.features is not None, sources[0][1] is not None
    if reads and not has:
        raise ConfigError(
            f"{args.folder} reads source features: give their column with --data.features_column"
        )
    if has and not reads:
        raise ConfigError(
            f"{args.folder} reads no source features: leave out --data.features_column"
        )
    own, given = teacher.trained.config.data.features_column, data.features_column
    if reads and own != given:
        print(
            f"regard distill: {args.folder} was trained with the features of column {own}, and reads "
            f"those of column {given} here",
            file=sys.stderr,
        )
    for number, (text, features) in enumerate(unlabelled, start=1):
        if excess_mark(text):
            raise DataError(
                f"{args.unlabelled}, line {number}: more than {MOST_MARKS:,} combining characters in a "
                "row; correct the text"
            )
        if reads and features is None and text.strip():
            raise DataError(
                f"{args.unlabelled}, line {number}: no features, which {args.folder} reads; write "
                "source TAB features"
            )
        if "\t" in (features or "" if reads else text):
            fields = "source TAB features" if reads else "one source per line, without TAB"
            raise DataError(
                f"{args.unlabelled}, line {number}: more columns than {args.folder} reads; write {fields}"
            )


def make_parser() -> Parser:
    """Return the parser of this command."""
    parser = Parser(
        prog="regard distill",
        usage="regard distill DIR --data.train FILE --data.dev FILE --out DIR [options]",
        description=__doc__,
        epilog=_EXAMPLES,
        common=_COMMON,
    )
    add_settings(parser, adapts=True)
    parser.options()["--data.dev"].help = "Validation pairs"
    add_model(parser)
    add_output_folder(parser)
    parser.add_argument(
        "--unlabelled",
        metavar="FILE",
        help="additional sources without targets, one per line",
    )
    add_beam_size(parser)
    parser.add_argument(
        "--resume",
        action="store_true",
        help="keep the outputs in the output folder, and continue from the last checkpoint",
    )
    return parser
