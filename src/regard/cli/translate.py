"""regard translate DIR [FILE]: translate lines in order, optionally with attention and alignments."""

import contextlib
import json
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, TextIO

from jsonargparse import Namespace

from regard.cli.options import add_model, add_search
from regard.cli.parser import Parser
from regard.errors import ConfigError
from regard.files import atomic_write, decode_lines, read_lines
from regard.progress import Progress
from regard.text import unknown_tokens_message

if TYPE_CHECKING:
    from regard.translation import Translation
    from regard.translator import Translator

_CHUNK = 1000


def run(arguments: list[str]) -> None:
    """Translate a file or standard input to standard output."""
    args = _parser().parse_args(arguments)
    from regard.translator import Translator

    translator = Translator.load(args.folder, args.device)
    _require_attention(translator, args)
    reads_features = translator.source.features is not None
    truncated = without_features = 0
    unknown = Counter[str]()
    lines = _translate(translator, args)
    with _open(args.attention) as attention, _open(args.alignments) as alignments:
        for number, ((_, features), outputs) in enumerate(lines, start=1):
            best = outputs[0]
            truncated += not best.complete
            without_features += reads_features and bool(best.tokens) and features is None
            unknown.update(best.unknown)
            for rank, output in enumerate(outputs, start=1):
                text = output.text.replace("\n", " ")
                ranked = f"{number}\t{rank}\t{output.score:.6f}\t{text}"
                print(ranked if args.n_best > 1 else text)
                if attention:
                    attention.write(json.dumps(output.to_dict(), ensure_ascii=False) + "\n")
                if alignments:
                    alignments.write(f"{output.alignment()}\n")
                if args.heatmap:
                    _print_heatmap(output)
    for count, message in (
        (truncated, f"{truncated:,} outputs truncated at their length limit"),
        (without_features, f"{without_features:,} lines without features (TAB)"),
        (unknown, f"source {unknown_tokens_message(unknown)}"),
    ):
        if count:
            print(f"regard translate: {message}", file=sys.stderr)


def _parser() -> Parser:
    parser = Parser(prog="regard translate", description=__doc__)
    add_model(parser)
    parser.add_argument("file", nargs="?", help="lines to translate; default: standard input")
    add_search(parser)
    parser.add_argument(
        "--n-best", type=int, default=1, help="outputs per line: line TAB rank TAB score TAB text"
    )
    parser.add_argument(
        "--attention", help="write tokens and attention to this file, one JSON object per output"
    )
    parser.add_argument(
        "--alignments", help="write alignments to this file, one Pharaoh line per output"
    )
    parser.add_argument("--heatmap", action="store_true", help="draw the attention on the terminal")
    return parser


def _require_attention(translator: "Translator", args: Namespace) -> None:
    if translator.trained.config.model.attention != "none":
        return
    for option in ("attention", "alignments", "heatmap"):
        if args[option]:
            raise ConfigError(
                f"{args.folder} has no attention (model.attention none) for --{option}; omit it"
            )


def _translate(
    translator: "Translator", args: Namespace
) -> Iterator[tuple[tuple[str, str | None], list["Translation"]]]:
    """Yield each line's source and its outputs, best first; flush after each chunk."""
    from regard.request import prepare

    if args.file is None and sys.stdin.isatty():
        chunks: Iterator[list[str]] = ([line.rstrip("\r\n")] for line in sys.stdin)
        total = None
    else:
        lines = (
            decode_lines(sys.stdin.buffer.read(), "standard input")
            if args.file is None
            else read_lines(args.file)
        )
        chunks = (lines[start : start + _CHUNK] for start in range(0, len(lines), _CHUNK))
        total = len(lines)
    with Progress("translating", total, "lines") as progress:
        for chunk in chunks:
            sources = [translator.source.parse_source(line) for line in chunk]
            request = prepare(translator.trained, sources)
            outputs = translator.search(request, args.beam_size, args.n_best, args.length_penalty)
            yield from zip(sources, outputs, strict=True)
            sys.stdout.flush()
            progress.advance(len(chunk))


@contextlib.contextmanager
def _open(path: str | None) -> Generator[TextIO | None]:
    """Open a file that replaces `path` when the block ends; yield None if there is no path."""
    if path is None:
        yield None
        return
    with (
        atomic_write(path) as temporary,
        temporary.open("w", encoding="utf-8", newline="\n") as file,
    ):
        yield file


def _print_heatmap(output: "Translation") -> None:
    from rich.console import Console

    from regard.charts import terminal_heatmap

    if output.attention is not None and output.tokens:
        console = Console(stderr=True)
        console.print(
            terminal_heatmap(
                output.attention, output.source_tokens, output.tokens, width=console.width
            )
        )
