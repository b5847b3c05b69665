"""Options shared by several commands, and the environment for training."""

import contextlib
import os
import shlex
import stat
import sys
import threading
from collections import Counter
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from jsonargparse import Namespace

from regard.cli.parser import Parser
from regard.config import Device, Precision
from regard.errors import ConfigError
from regard.files import check_chart_suffix, check_parent
from regard.pairs import files_of
from regard.pretrained import FILES, find, folder_of, pretrained_models
from regard.table_files import is_table
from regard.text import unknown_tokens_message

if TYPE_CHECKING:
    from regard.translation import Translation
    from regard.translator import Translator

_SECONDS_UNTIL_LOADING_IS_REPORTED = 1.0
_INPUTS = ("file", "pairs", "gold", "compare", "dictionary")
"""Arguments that specify files to read."""
_FOLDERS = ("folder", "reverse", "compare")
"""Arguments that specify model folders to read."""
_PARTS = (*FILES, "checkpoints/*", *(f"members/*/{name}" for name in FILES))
"""Files of a model folder, and of the members of an ensemble. Others, such as a former output, may be replaced."""


def add_model(parser: Parser, default: str | None = None) -> None:
    """Add the model folder, which is required unless a pretrained model is the default, and the device."""
    add_model_folder(parser, default)
    add_device(parser)


def add_model_folder(parser: Parser, default: str | None = None) -> None:
    """Add the model folder, which is required unless a pretrained model is the default."""
    models = ", ".join(pretrained_models())
    help_text = f"model folder, or the name of a pretrained model ({models})"
    if default is None:
        parser.add_argument("folder", metavar="DIR", help=help_text)
    else:
        # not its name, which may be that of a folder here
        folder = str(folder_of(default))
        help_text += f"; default: {default}"
        parser.add_argument("folder", nargs="?", default=folder, metavar="DIR", help=help_text)


def add_device(parser: Parser) -> None:
    """Add the device."""
    parser.add_argument("--device", type=Device, default="auto", help="device to compute on")


def add_precision(parser: Parser) -> None:
    """Add the precision of matrix products."""
    parser.add_argument(
        "--precision",
        type=Precision,
        default="float32",
        help="precision of matrix products on CPUs; bfloat16 is faster with AVX512-BF16, and less exact",
    )


def add_pairs(parser: Parser) -> None:
    """Add a file of sentence pairs."""
    parser.add_argument(
        "pairs", metavar="PAIRS", help="TSV file, or two parallel files as F.src,F.tgt"
    )


def add_search(parser: Parser) -> None:
    """Add beam size and length penalty."""
    add_beam_size(parser)
    parser.add_argument(
        "--length-penalty",
        type=float,
        default=1.0,
        help="exponent of the length penalty ((5 + length) / 6)",
    )


def add_beam_size(parser: Parser, default: int = 5) -> None:
    """Add the beam size."""
    parser.add_argument(
        "--beam-size",
        type=int,
        default=default,
        help="number of hypotheses kept per source; 1 is greedy search",
    )


def add_output_folder(parser: Parser, default: str | None = None) -> None:
    """Add the output folder, which is required unless it has a default."""
    parser.add_argument(
        "--out", required=default is None, default=default, metavar="DIR", help="output folder"
    )


def add_chart_file(parser: Parser) -> None:
    """Add the file that a chart is saved to."""
    parser.add_argument(
        "-o",
        "--out",
        required=True,
        metavar="FILE",
        help="output file (.html, .png, .svg, .pdf or .json)",
    )


def check_chart_file(args: Namespace) -> None:
    """Raise a ConfigError if a chart cannot be saved to the file, before there is one."""
    check_output_files(args, "out")
    check_chart_suffix(args.out)


def check_output_files(args: Namespace, *names: str, data: Iterable[str | None] = ()) -> None:
    """Raise a ConfigError if one of these options is a folder or an input, or two are the same file.

    So does standard output, if standard input reads the file that it is redirected to.

    `data` are other inputs: the data that models were trained on.
    """
    texts = [text for text in (*data, *(args.get(name) for name in _INPUTS)) if text]
    inputs = {os.path.realpath(path) for text in texts for path in files_of(text)}
    folders = [*(args.get("folders") or []), *(args[name] for name in _FOLDERS if args.get(name))]
    parts = (find(folder).glob(part) for folder in folders for part in _PARTS)
    inputs |= {os.path.realpath(path) for paths in parts for path in paths}
    reads_standard_input = "file" in args and args.file is None
    options: dict[str, str] = {}
    for name in names:
        if args[name] is None or Path(args[name]).is_char_device():
            continue
        path = os.path.realpath(args[name])
        if str(args[name]) == "-":
            raise ConfigError(
                f"--{name} takes the path of a file, got -, which stands for no file here; a file of this name is ./-"
            )
        if os.path.isdir(path):
            raise ConfigError(f"--{name} takes an output file, got the folder {args[name]}")
        check_parent(args[name])
        is_input = path in inputs or (reads_standard_input and _is_standard_input(path))
        if is_input and os.path.exists(path):
            raise ConfigError(
                f"--{name} would overwrite the input {args[name]}; choose another file"
            )
        if options.setdefault(path, name) != name:
            raise ConfigError(
                f"--{options[path]} and --{name} are the same file; choose two different files"
            )
    if reads_standard_input and args.get("out") is None and _appends_to_standard_input():
        raise ConfigError(
            "standard output is the file that standard input reads; write to another file"
        )


def print_saved(translator: "Translator", folder: str | Path) -> None:
    """Print where a model is saved and, if it has learned something, how to use it."""
    use = f"; to use it, run: regard translate {shlex.quote(str(folder))}"
    warned = "warning" in translator.trained.metadata
    print(f"the model is saved in {folder}" + ("" if warned else use))


def require_lines(path: str, content: str = "source") -> None:
    """Raise a ConfigError for a table, whose lines are no sources and no outputs."""
    if is_table(path):
        raise ConfigError(
            f"{path} is a table, and this command reads one {content} per line: write its column of "
            f"{content}s to a text file"
        )


def _is_standard_input(path: str) -> bool:
    """Return whether standard input is redirected from this file."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(0))
    except OSError:  # there is no such file, or standard input is closed
        return False


def _appends_to_standard_input() -> bool:
    """Return whether standard input and output are redirected from and to the same file."""
    try:
        status = os.fstat(0)
        return stat.S_ISREG(status.st_mode) and os.path.samestat(status, os.fstat(1))
    except OSError:  # one of them is closed
        return False


def load_translator(folder: str, device: str, precision: Precision = "float32") -> "Translator":
    """Return `Translator.load(folder, device)`; a long wait is explained on the terminal."""
    with loading(folder):
        from regard.inference import set_precision, skip_in_garbage_collection
        from regard.translator import Translator

        translator = Translator.load(folder, device)
    set_precision(precision)
    report_precision(precision)
    skip_in_garbage_collection()
    return translator


def report_precision(precision: Precision) -> None:
    """Say that float32 replaces bfloat16, if the processor does not support it."""
    from regard.kernels.linear import has_bfloat16

    if precision == "bfloat16" and not has_bfloat16():
        print("this processor has no products in bfloat16; float32 replaces it", file=sys.stderr)


def report_missing_features(prog: str, translator: "Translator", features: str | None) -> None:
    """Say that a text has no features, if the model reads features."""
    if translator.source.features is not None and features is None:
        print(f"{prog}: the text has no features (TAB)", file=sys.stderr)


def report_unknown(
    prog: str, translator: "Translator", output: "Translation", target: str | None
) -> None:
    """Say which tokens of a source, and of a target to force, are not in the vocabularies."""
    forced = [] if target is None else translator.target.encode_batch([target])[0].unknown
    if translator.trained.config.model.copy:
        forced = [token for token in forced if token not in output.source_tokens]
    for side, tokens in (("source", output.unknown), ("target", forced)):
        if tokens:
            print(f"{prog}: {side} {unknown_tokens_message(Counter(tokens))}", file=sys.stderr)


@contextlib.contextmanager
def loading(what: str) -> Generator[None]:
    """Report on the terminal what is being loaded, if that takes longer than a second."""
    if not sys.stderr.isatty():
        yield
        return
    message = f"loading {what} …"
    timer = threading.Timer(
        _SECONDS_UNTIL_LOADING_IS_REPORTED, lambda: print(message, file=sys.stderr, flush=True)
    )
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def enable_huge_pages() -> None:
    """Let PyTorch's CPU allocator use huge pages: fewer page faults while training.

    Call it before PyTorch is imported. A value set by the user is kept.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
