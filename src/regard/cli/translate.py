"""regard translate DIR [FILE]: a line in, a line out, in order; attention and alignments if asked."""

import contextlib
import json
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from jsonargparse import Namespace

from regard.cli.parser import Parser
from regard.config import Device
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
    parser = Parser(prog="regard translate", description=__doc__)
    parser.add_argument("folder", type=str, help="a model folder")
    parser.add_argument(
        "file", type=str, nargs="?", help="lines to translate; standard input by default"
    )
    parser.add_argument(
        "--beam-size", type=int, default=5, help="open hypotheses; 1 is greedy search"
    )
    parser.add_argument(
        "--n-best", type=int, default=1, help="outputs per line: line TAB rank TAB score TAB text"
    )
    parser.add_argument(
        "--length-penalty", type=float, default=1.0, help="exponent of ((5 + length) / 6)"
    )
    parser.add_argument(
        "--attention", type=str, help="write tokens and attention here, a JSON object per output"
    )
    parser.add_argument(
        "--alignments", type=str, help="write alignments here, a Pharaoh line per output"
    )
    parser.add_argument("--heatmap", action="store_true", help="draw the attention on the terminal")
    parser.add_argument("--device", type=Device, default="auto", help="where to compute")
    given = parser.parse_args(arguments)
    from regard.translator import Translator

    translator = Translator.load(given.folder, given.device)
    _require_attention(translator, given)
    cut, bare, unknown = 0, 0, Counter[str]()
    featured = translator.source.features is not None
    with _sinks(given.attention, given.alignments) as (attention, alignments):
        for first, outputs in _translate(translator, given):
            for number, candidates in enumerate(outputs, start=first):
                cut += not candidates[0].complete
                bare += featured and bool(candidates[0].tokens) and "\t" not in candidates[0].source
                unknown.update(candidates[0].unknown)
                for rank, output in enumerate(candidates, start=1):
                    text = output.text.replace("\n", " ")
                    print(
                        f"{number}\t{rank}\t{output.score:.6f}\t{text}"
                        if given.n_best > 1
                        else text
                    )
                    if attention:
                        attention.write(json.dumps(output.to_dict(), ensure_ascii=False) + "\n")
                    if alignments:
                        alignments.write(f"{output.alignment()}\n")
                    if given.heatmap:
                        _draw(output)
            sys.stdout.flush()
    if cut:
        print(f"regard translate: {cut:,} outputs cut at their length limit", file=sys.stderr)
    if bare:
        print(f"regard translate: {bare:,} lines without features (TAB)", file=sys.stderr)
    if unknown:
        print(f"regard translate: source {unknown_tokens_message(unknown)}", file=sys.stderr)


def _require_attention(translator: "Translator", given: Namespace) -> None:
    if translator.trained.config.model.attention != "none":
        return
    for option in ("attention", "alignments", "heatmap"):
        if getattr(given, option):
            raise ConfigError(
                f"{given.folder} has no attention (model.attention none), so --{option} has nothing "
                "to show; leave it out"
            )


def _translate(
    translator: "Translator", given: Namespace
) -> Iterator[tuple[int, list[list["Translation"]]]]:
    """The number of a chunk's first line, and for each of its lines the outputs, best first."""
    if given.file is None and sys.stdin.isatty():
        chunks: Iterator[list[str]] = ([line.rstrip("\r\n")] for line in sys.stdin)
        total = None
    else:
        lines = (
            decode_lines(sys.stdin.buffer.read(), "standard input")
            if given.file is None
            else read_lines(given.file)
        )
        chunks = (lines[at : at + _CHUNK] for at in range(0, len(lines), _CHUNK))
        total = len(lines)
    first = 1
    with Progress("translating", total, "lines") as progress:
        for chunk in chunks:
            found = translator.translate(chunk, given.beam_size, given.n_best, given.length_penalty)
            yield first, found if given.n_best > 1 else [[one] for one in found]
            first += len(chunk)
            progress.advance(len(chunk))


@contextlib.contextmanager
def _sinks(*paths: str | None) -> Generator[list[TextIO | None]]:
    """Files that appear whole when the block ends; None for a path that was not given."""
    with contextlib.ExitStack() as stack:
        files: list[TextIO | None] = []
        for path in paths:
            if path is None:
                files.append(None)
                continue
            temporary = stack.enter_context(atomic_write(Path(path)))
            files.append(stack.enter_context(temporary.open("w", encoding="utf-8", newline="\n")))
        yield files


def _draw(output: "Translation") -> None:
    from rich.console import Console

    from regard.charts import terminal_heatmap

    if output.attention is not None and output.tokens:
        console = Console(stderr=True)
        console.print(
            terminal_heatmap(
                output.attention, output.source_tokens, output.tokens, width=console.width
            )
        )
