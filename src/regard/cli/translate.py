"""regard translate DIR [FILE]: translate lines in order, optionally with attention and alignments.

Lines of standard input are translated as they arrive. --prefix, --pin and --ablate-heads apply to
every line; steps, source tokens, layers and heads are counted from 0.
"""

import contextlib
import io
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from jsonargparse import Namespace

from regard.cli.options import (
    add_model,
    add_precision,
    add_search,
    check_output_files,
    load_translator,
    require_lines,
)
from regard.cli.parser import Parser
from regard.errors import ConfigError, DataError, quantity
from regard.files import open_output
from regard.lines import arriving_lines, chunks_of, read_lines
from regard.progress import Progress
from regard.setting_checks import check_beam_size, check_length_penalty
from regard.text import SourceLike, count_message, split_source, unknown_tokens_message
from regard.text.normalization import excess_mark, may_be_too_long

if TYPE_CHECKING:
    from regard.dictionary import Dictionary
    from regard.translation import Translation
    from regard.translator import Translator

_CHUNK = 2000
_NOT_IN_COLUMNS = dict.fromkeys(map(ord, "\t\r\n"), " ")
_PIN = re.compile(r"(\d{1,9}):(\d{1,9})=((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)")
_SHARD = re.compile(r"(\d{1,9})/(\d{1,9})")
_HEAD = re.compile(r"(\d{1,9}):(\d{1,9})")


def run(arguments: list[str]) -> None:
    """Translate a file or standard input to standard output."""
    args = make_parser().parse_args(arguments)
    if args.file == "-":
        args.file = None
    check_output_files(args, "out", "attention", "alignments")
    if args.file is not None:
        require_lines(args.file)
    pins, heads = _pins(args.pin or ()), _heads(args.ablate_heads or ())
    check_beam_size(beam_size=args.beam_size, n_best=args.n_best)
    check_length_penalty(args.length_penalty)
    translator = load_translator(args.folder, args.device, args.precision)
    _require_attention(translator, args)
    _check_interventions(translator, args, pins)
    dictionary = _dictionary(translator, args)
    reads_features = translator.source.features is not None
    truncated = without_features = too_short = with_tab = second_tab = 0
    unreliable = 0
    unknown, left_out = Counter[str](), Counter[str]()
    shard = _shard(args)
    with (
        open_output(args.out) as file,
        open_output(args.attention) as attention,
        open_output(args.alignments) as alignments,
    ):
        for number, (text, features), outputs in _translate(
            translator, args, shard, pins, heads, dictionary
        ):
            best = outputs[0]
            printed = outputs[: args.n_best]
            truncated += sum(not output.complete for output in printed)
            last_pin = max(pins, default=0) if text.strip() else 0
            too_short += sum(last_pin > len(output.tokens) for output in printed)
            without_features += reads_features and bool(text.strip()) and features is None
            with_tab += "\t" in text
            second_tab += features is not None and "\t" in features
            unreliable += sum(output.warning is not None for output in printed)
            unknown.update(best.unknown)
            left_out.update(best.left_out)
            for rank, output in enumerate(printed, start=1):
                print(*_columns(output, number, rank, args), sep="\t", file=file)
                if attention:
                    attention.write(json.dumps(output.to_dict(), ensure_ascii=False) + "\n")
                if alignments:
                    alignments.write(f"{output.alignment()}\n")
                if args.heatmap:
                    _print_heatmap(output)
    for count, message in (
        (truncated, f"{quantity(truncated, 'output')} truncated at the length limit"),
        (
            too_short,
            f"{quantity(too_short, 'output')} ended before a step given with --pin, which therefore had no effect",
        ),
        (without_features, f"{quantity(without_features, 'line')} without features (TAB)"),
        (
            with_tab,
            f"{quantity(with_tab, 'line')} with TAB, which the model reads as part of the text; of a file of pairs, give "
            "the first column (cut -f 1)",
        ),
        (
            second_tab,
            f"{quantity(second_tab, 'line')} with a second TAB, which the model reads as part of the features; of a "
            "file of source, target and features, give the first and the third column (cut -f 1,3)",
        ),
        (unknown, f"source {unknown_tokens_message(unknown)}"),
        (
            unreliable,
            f"warning: {quantity(unreliable, 'output')} may be unreliable, because most source "
            "tokens are not in the model's vocabulary",
        ),
        (
            left_out,
            f"punctuation left out, because the model does not use it: {count_message(left_out)}",
        ),
    ):
        if count:
            print(f"regard translate: {message}", file=sys.stderr)


def make_parser() -> Parser:
    """Return the parser of this command."""
    parser = Parser(prog="regard translate", description=__doc__)
    add_model(parser)
    add_precision(parser)
    parser.add_argument(
        "file",
        nargs="?",
        metavar="FILE",
        help="file of lines to translate; standard input by default, and for -",
    )
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="write the translations to this file, which appears only when it is complete",
    )
    parser.add_argument(
        "--shard",
        metavar="I/N",
        help="divide FILE into N consecutive parts and translate only the I-th, such as 1/4, so that "
        "several processes or machines can share the work; the concatenated outputs of 1/N to N/N "
        "equal the output for FILE, except for the last digits of scores",
    )
    add_search(parser)
    parser.add_argument(
        "--n-best",
        type=int,
        default=1,
        help="number of outputs per line; above 1, each is printed as line TAB rank TAB score TAB text",
    )
    parser.add_argument(
        "--dictionary",
        metavar="FILE",
        help="TSV file of source TAB target (further columns are ignored; .gz is read): a line equal to a "
        "source, after the model's normalisation, gets its target from the file, or up to N in file order "
        "with --n-best N; a listed target has score 0, probability 1 and the attention of the model in "
        "forced decoding",
    )
    parser.add_argument(
        "--confidence",
        action="store_true",
        help="append TAB probability TAB margin: the probability of the whole output, and its difference "
        "from that of the best other output (which counts as 0 if the search finds only one, as greedy search does)",
    )
    parser.add_argument(
        "--prefix",
        metavar="TEXT",
        help="text that every output begins with (or ends with, for a right-to-left model)",
    )
    parser.add_argument(
        "--pin",
        action="append",
        metavar="STEP:SOURCE=WEIGHT",
        help="attention weight to impose on a source token at a step, such as 1:0=0.9; repeatable",
    )
    parser.add_argument(
        "--ablate-heads",
        action="append",
        metavar="LAYER:HEAD",
        help="head whose attention weights are set to 0, such as 2:1 (0:0 in recurrent models); repeatable",
    )
    parser.add_argument(
        "--attention",
        metavar="FILE",
        help="write tokens and attention weights to this file, one JSON object per output",
    )
    parser.add_argument(
        "--alignments",
        metavar="FILE",
        help="write alignments to this file, one Pharaoh line per output",
    )
    parser.add_argument("--heatmap", action="store_true", help="draw the attention on the terminal")
    return parser


def _columns(output: "Translation", number: int, rank: int, args: Namespace) -> list[str]:
    """Return the columns of one line of output."""
    columns = [output.text.translate(_NOT_IN_COLUMNS)]
    if args.n_best > 1:
        columns = [str(number), str(rank), f"{output.score:.6f}", *columns]
    if args.confidence:
        columns += [f"{output.probability:.6f}", f"{output.margin:.6f}"]
    return columns


def _shard(args: Namespace) -> tuple[int, int]:
    """Return the index of the shard, from 0, and the number of shards."""
    if args.shard is None:
        return 0, 1
    match = _SHARD.fullmatch(args.shard)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise ConfigError(f"--shard takes I/N with I from 1 to N, such as 1/4, got {args.shard!r}")
    if args.file is None:
        raise ConfigError("--shard needs a FILE; standard input cannot be divided")
    return int(match[1]) - 1, int(match[2])


def _pins(values: Sequence[str]) -> dict[int, dict[int, float]]:
    pins: dict[int, dict[int, float]] = {}
    for value in values:
        match = _PIN.fullmatch(value)
        if match is None:
            raise ConfigError(
                "--pin takes STEP:SOURCE=WEIGHT with steps and source tokens counted from 0, such "
                f"as 1:0=0.9, got {value!r}"
            )
        weights = pins.setdefault(int(match[1]), {})
        if int(match[2]) in weights:
            raise ConfigError(f"--pin gives two weights for the same step and token: {value}")
        weights[int(match[2])] = float(match[3])
    return pins


def _heads(values: Sequence[str]) -> list[tuple[int, int]]:
    heads: list[tuple[int, int]] = []
    for value in values:
        match = _HEAD.fullmatch(value)
        if match is None:
            raise ConfigError(
                f"--ablate-heads takes LAYER:HEAD, both counted from 0, such as 2:1, got {value!r}"
            )
        heads.append((int(match[1]), int(match[2])))
    return heads


def _require_attention(translator: "Translator", args: Namespace) -> None:
    if translator.trained.config.model.attention != "none":
        return
    for option in ("attention", "alignments", "heatmap", "pin", "ablate_heads"):
        if args[option]:
            raise ConfigError(
                f"{args.folder} has no attention (model.attention none), which "
                f"--{option.replace('_', '-')} needs; omit the option"
            )


def _check_interventions(
    translator: "Translator", args: Namespace, pins: dict[int, dict[int, float]]
) -> None:
    """Raise an error for pins or a prefix that no line could have."""
    from regard.request import check_pinned_weights, check_prefix

    for option, check in (
        ("--pin", lambda: check_pinned_weights(pins)),
        ("--prefix", lambda: check_prefix(translator.trained, args.prefix or "")),
    ):
        try:
            check()
        except ConfigError as error:
            raise ConfigError(f"{option}: {error}") from None


def _dictionary(translator: "Translator", args: Namespace) -> "Dictionary | None":
    """Return the dictionary, if one is given; print which of its lines have no effect."""
    if args.dictionary is None:
        return None
    for option in ("prefix", "pin", "ablate_heads"):
        if args[option]:
            raise ConfigError(
                f"--{option.replace('_', '-')} does not apply to the outputs of a dictionary; omit it or "
                "--dictionary"
            )
    from regard.cli.pairs import read_dictionary

    return read_dictionary(args.dictionary, translator)


def _translate(
    translator: "Translator",
    args: Namespace,
    shard: tuple[int, int],
    pins: dict[int, dict[int, float]],
    heads: list[tuple[int, int]],
    dictionary: "Dictionary | None",
) -> Iterator[tuple[int, tuple[str, str | None], list["Translation"]]]:
    """Yield each line's number, from 1, source and outputs, best first; flush after each chunk."""
    first = 1
    if args.file is None:
        if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison]
            raise DataError("standard input is closed; give a file of lines to translate")
        stream = cast(io.BufferedIOBase, sys.stdin.buffer)
        arriving = arriving_lines(stream, "standard input", _CHUNK)
        chunks = (chunk for lines in arriving for chunk in _chunks(lines, args.n_best))
        total = None
    else:
        lines, (index, count) = read_lines(args.file), shard
        begin, end = (len(lines) * part // count for part in (index, index + 1))
        lines, first = lines[begin:end], begin + 1
        _check_lines(translator, args, lines, first, pins, dictionary)
        chunks = _chunks(lines, args.n_best)
        total = len(lines)
    with _progress(total, args.out is None) as progress:
        shown, end = 0, 0

        def advance(count: int) -> None:
            nonlocal shown
            shown += count
            if progress is not None:
                progress.advance(count)

        results = _search(translator, args, chunks, first, pins, heads, dictionary, advance)
        for number, sources, outputs in results:
            for source, hypotheses in zip(sources, outputs, strict=True):
                yield number, source, hypotheses
                number += 1
            sys.stdout.flush()
            end += len(sources)
            advance(end - shown)  # blank lines, and those that a dictionary lists


def _chunks(lines: Sequence[str], n_best: int) -> Iterator[Sequence[str]]:
    """Yield parts of the lines whose outputs fit in memory."""
    return chunks_of(lines, max(1, _CHUNK // n_best), lambda line: len(line) * math.sqrt(n_best))


def _search(
    translator: "Translator",
    args: Namespace,
    chunks: Iterable[Sequence[str]],
    first: int,
    pins: dict[int, dict[int, float]],
    heads: list[tuple[int, int]],
    dictionary: "Dictionary | None",
    advance: Callable[[int], None],
) -> Iterator[tuple[int, list[tuple[str, str | None]], list[list["Translation"]]]]:
    """Yield the number of the first line of each chunk, the sources and their outputs.

    `advance` is called with the number of sources of each batch.
    """
    from regard.request import prepare

    # the margin needs a second output; a greedy search must stay greedy
    needs_second = args.confidence and args.n_best == 1 and args.beam_size > 1
    n_best = 2 if needs_second else args.n_best

    def search(sources: Sequence[SourceLike]) -> list[list["Translation"]]:
        # a blank line has an empty translation, whatever the interventions
        blank = [not split_source(source)[0].strip() for source in sources]
        prefixes = ["" if skip else args.prefix or "" for skip in blank]
        pinned: list[Any] = [{} if skip else pins for skip in blank]
        request = prepare(translator.trained, sources, prefixes, pinned, heads)
        options = args.beam_size, n_best, args.length_penalty
        return translator.search(request, *options, on_progress=advance)

    need_weights = bool(args.attention or args.alignments or args.heatmap)
    for chunk in chunks:
        sources = [translator.source.parse_source(line) for line in chunk]
        try:
            if dictionary is None:
                outputs = search(sources)
            else:
                outputs = dictionary.answer(sources, search, need_weights)
        except (ConfigError, DataError):
            _name_line(translator, sources, first, args, pins)
            raise
        yield first, sources, outputs
        first += len(chunk)


def _check_lines(
    translator: "Translator",
    args: Namespace,
    lines: Sequence[str],
    first: int,
    pins: dict[int, dict[int, float]],
    dictionary: "Dictionary | None",
) -> None:
    """Raise an error for the first line of a file that cannot be translated, before any line is."""
    for number, line in enumerate(lines, first):
        if may_be_too_long(line) or args.prefix or pins:
            source = translator.source.parse_source(line)
            if dictionary is None or excess_mark(source[0]) or not dictionary.lookup(source):
                _name_line(translator, [source], number, args, pins)


def _name_line(
    translator: "Translator",
    sources: Sequence[tuple[str, str | None]],
    first: int,
    args: Namespace,
    pins: dict[int, dict[int, float]],
) -> None:
    """Raise an error with the number of the first line that cannot be translated with the prefix and the pins."""
    from regard.request import prepare

    file = "" if args.file is None else f"{args.file}, "
    for number, source in enumerate(sources, first):
        is_blank = not source[0].strip()
        interventions: tuple[Any, Any] = ("", {}) if is_blank else (args.prefix or "", pins)
        try:
            prepare(translator.trained, [source], *interventions)
        except (ConfigError, DataError) as error:
            raise type(error)(f"{file}line {number:,}: {error}") from None


@contextlib.contextmanager
def _progress(total: int | None, to_terminal: bool) -> Generator[Progress | None]:
    """Display progress, unless the translations themselves appear on the terminal."""
    if sys.stdout.isatty() and to_terminal:
        yield None
        return
    with Progress("translating", total, "lines") as progress:
        yield progress


def _print_heatmap(output: "Translation") -> None:
    from rich.console import Console

    from regard.charts import terminal_heatmap

    if output.attention is not None and output.tokens:
        console = Console(stderr=True)
        console.print(
            terminal_heatmap(
                output.attention, output.source_labels, output.target_labels, width=console.width
            )
        )
