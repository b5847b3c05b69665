"""The command `regard`: run a subcommand and turn errors into one line and an exit status.

Status 0: success; 1: invalid content (a RegardError) or a system error, such as a full disk;
2: invalid arguments.
"""

import contextlib
import importlib
import io
import logging
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Generator, Sequence
from types import FrameType

from regard.cli import job
from regard.errors import (
    ConfigError,
    Interrupted,
    RegardError,
    UsageError,
    is_out_of_memory,
    is_utf8,
    nearest,
)

COMMANDS: dict[str, str] = {
    "demo": "train on a small built-in dataset and plot an attention heatmap",
    "data": "write a built-in dataset as TSV files",
    "train": "train a model on sentence pairs and save it as a model folder",
    "ensemble": "combine several models into one",
    "distill": "train one model on the outputs of another, such as an ensemble",
    "translate": "translate lines, optionally with attention and alignments",
    "evaluate": "evaluate a model on sentence pairs",
    "align": "align sentence pairs with the attention of a model or hidden Markov models",
    "compare": "train several models on the same pairs and compare them",
    "explain": "show every number in one attention step",
    "curves": "plot training curves",
    "plot": "plot an attention heatmap for a text",
    "export": "export a model to run in ONNX Runtime, without regard",
    "serve": "serve a JSON API and a web page for inspecting and editing attention",
}
"""Every command and what it does; `run` of the module of the same name executes it."""

_SECONDS_UNTIL_REPEATED = 0.05
"""Time after which a signal that arrived during an import is raised again."""

_LONGEST = 2000
"""Maximum number of characters in a message, which may quote a line of a file."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status.

    Errors that the user or the system causes are printed as one sentence, after their traceback with
    `--debug`; any other exception is a defect of this package, and is raised.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    _let_waiting_threads_sleep()
    try:
        _prepare_streams()
        if "--debug" in arguments:
            logging.basicConfig(format="%(name)s: %(message)s")
            logging.getLogger("regard").setLevel(logging.INFO)
        with job.one_output():
            status = _dispatch(arguments)
        sys.stdout.flush()
        if status:
            job.end(reported=job.is_main())
        return status
    except BrokenPipeError:  # the reader of the output has gone
        _discard_output()
        return 0
    except Exception as error:
        sentence = _sentence(error)
        if sentence is None:
            raise
        reported = job.is_first_error()
        if reported:
            _report(sentence, arguments)
        job.end(reported)
        _discard_output()
        return 2 if isinstance(error, UsageError) else 1


def _let_waiting_threads_sleep() -> None:
    """Let PyTorch's threads sleep after tens of microseconds without work; call it before PyTorch is imported.

    By default, they spin while they wait for one whose core is in use. If they slept at once, waking them would
    take longer than many operators of a small model.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def _report(sentence: str, arguments: list[str]) -> None:
    command = ["regard", *(name for name in arguments[:1] if name in COMMANDS)]
    with contextlib.suppress(OSError):
        if "--debug" in arguments:
            traceback.print_exc()
        sentence = " ".join(sentence.splitlines())  # a name may have several lines
        shown = sentence if len(sentence) <= _LONGEST else f"{sentence[:_LONGEST]} …"
        print(f"{' '.join(command)}: {shown}", file=sys.stderr)


def _prepare_streams() -> None:
    """Write UTF-8, and ignore a standard error that is closed or no longer read.

    Raises:
        ConfigError: standard output is closed.
    """
    if sys.stderr is None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    elif sys.stderr is sys.__stderr__:
        sys.stderr = _Messages(sys.stderr.buffer, "utf-8", "backslashreplace", line_buffering=True)
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison]
        raise ConfigError("standard output is closed; redirect it to a file or to /dev/null")
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")


class _Messages(io.TextIOWrapper):
    """Standard error; messages that cannot be written are dropped and do not end the command."""

    def write(self, text: str) -> int:
        """Write a message."""
        with contextlib.suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        """Flush the messages."""
        with contextlib.suppress(OSError):
            super().flush()


def _discard_output() -> None:
    """Prevent Python from flushing the remaining output, at exit, to a stream that rejects it."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
        return
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _sentence(error: Exception) -> str | None:
    """Return the message of an error that the user or the system causes, None for others."""
    if isinstance(error, RegardError):
        return str(error)
    if is_out_of_memory(error):
        return "there is not enough memory; use less data, smaller batches or a smaller model"
    if isinstance(error, OSError):
        from regard.files import reason_of  # not needed to print the help

        why = reason_of(error)
        return f"{error.filename}: {why}" if error.filename else f"cannot continue: {why}"
    if isinstance(error, RecursionError):
        return "the input is nested too deeply"
    if isinstance(error, UnicodeError) or type(error).__name__ == "SafetensorError":
        return " ".join(str(error).split())
    return None


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        width = max(map(len, COMMANDS))
        commands = "\n".join(f"  {name:<{width}}  {text}" for name, text in COMMANDS.items())
        print(
            "usage: regard COMMAND …\n\n"
            "Train sequence-to-sequence models and inspect or edit their attention.\n\n"
            f"{commands}\n\n"
            "Run `regard COMMAND --help` for the options of a command, `regard --version` for the version,\n"
            "and `regard --print-completion bash|zsh|fish` for a shell completion script."
        )
        return 0 if arguments else 2
    name, *rest = arguments
    for argument in arguments:
        if not is_utf8(argument):
            print(f"regard: the argument {argument!r} is not UTF-8", file=sys.stderr)
            return 2
    if name in ("-V", "--version"):
        from regard.version import __version__

        print(f"regard {__version__}")
        return 0
    if name.partition("=")[0] == "--print-completion":
        shell = name.partition("=")[2]
        return _print_completion(" ".join([shell, *rest] if shell else rest))
    if name not in COMMANDS:
        hint = nearest(name, COMMANDS)
        print(f"regard: unknown command {name}{hint}; see regard --help", file=sys.stderr)
        return 2
    if name != "train" and job.processes() > 1:
        print(f"regard {name}: runs in one process; start it without a launcher", file=sys.stderr)
        return 2
    with warnings.catch_warnings():
        warnings.showwarning = _print_warning
        return _run(name, rest)


def _print_completion(shell: str) -> int:
    from regard.cli.completion import completion_script

    try:
        print(completion_script(shell, COMMANDS))
    except RegardError as error:
        print(f"regard: {error}", file=sys.stderr)
        return 2
    return 0


def _run(name: str, arguments: list[str]) -> int:
    try:
        with _signals_as_exceptions():
            importlib.import_module(f"regard.cli.{name}").run(arguments)
    except KeyboardInterrupt as error:
        print(f"regard {name}: stopped", file=sys.stderr)
        return 128 + (error.signal_number if isinstance(error, Interrupted) else signal.SIGINT)
    except SystemExit as exit_request:  # the parser has printed its help
        return int(exit_request.code or 0)
    return 0


@contextlib.contextmanager
def _signals_as_exceptions() -> Generator[None]:
    """Raise `Interrupted` for SIGTERM and SIGHUP, so that unfinished files are removed.

    A signal that arrives during an import comes again afterwards: modules in C that import others, such
    as PyTorch's, may ignore an exception, and leave them incomplete.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        if not _is_importing(frame):
            raise KeyboardInterrupt if number == signal.SIGINT else Interrupted(number)
        again = threading.Timer(_SECONDS_UNTIL_REPEATED, _signal_main_thread, [number])
        again.daemon = True
        again.start()

    if threading.current_thread() is not threading.main_thread():  # only that one has handlers
        yield
        return
    names = ("SIGINT", "SIGTERM", "SIGHUP")  # Windows has no SIGHUP
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    # a signal that is ignored, as under nohup, stays ignored
    defaults = signal.SIG_DFL, signal.default_int_handler
    taken = {
        number: signal.signal(number, interrupt)
        for number in numbers
        if signal.getsignal(number) in defaults
    }
    try:
        yield
    finally:
        for number, default in taken.items():
            if signal.getsignal(number) is interrupt:
                signal.signal(number, default)


def _signal_main_thread(number: int) -> None:
    if hasattr(signal, "pthread_kill"):  # raise_signal would not wake the main thread
        signal.pthread_kill(threading.main_thread().ident or 0, number)
    else:
        signal.raise_signal(number)


def _is_importing(frame: FrameType | None) -> bool:
    """Return whether a module is being imported in a frame or in one of its callers."""
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame is not None


def _print_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"regard: {message}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
