"""Errors caused by settings, files or arguments.

Each message states what was expected, what was received and how to correct it, in one sentence: the
command prints it on one line and exits with status 1.
"""

import difflib
import re
from collections.abc import Iterable

_OUT_OF_MEMORY = re.compile(
    "not enough memory|out of memory|can't allocate memory|failed to map segment"
    "|could not create a primitive(?! descriptor)",  # oneDNN, which has no descriptor of what it cannot compute
    re.IGNORECASE,
)


class RegardError(Exception):
    """Base class of all errors in this module; the command prints them without a traceback."""


class ConfigError(RegardError):
    """A setting has a value that cannot be used."""


class UsageError(RegardError):
    """A command is called with arguments that it does not accept; its exit status is 2."""


class DataError(RegardError):
    """A file of pairs, a text or a gold alignment is invalid."""


class FolderError(RegardError):
    """A model folder is missing, incomplete, damaged or in another format."""


class ExtraError(RegardError):
    """An optional package is needed but not installed."""


class JobError(RegardError):
    """Another process of a training job has ended."""


class ShapeError(RegardError, ValueError):
    """A tensor does not have the shape or dtype that the call needs."""


def is_utf8(text: str) -> bool:
    """Return whether text can be encoded in UTF-8, that is, contains no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error from Python or PyTorch means that memory cannot be allocated."""
    if isinstance(error, MemoryError):
        return True
    # PyTorch's CPU allocator raises a plain RuntimeError; loading a library raises the other two
    kinds = RuntimeError | ImportError | OSError
    return isinstance(error, kinds) and bool(_OUT_OF_MEMORY.search(str(error)))


class Interrupted(KeyboardInterrupt):
    """A signal ended training after its state was saved."""

    def __init__(self, signal_number: int) -> None:
        super().__init__()
        self.signal_number = signal_number


def shortened(text: str, length: int = 60) -> str:
    """Return a string for quoting in a message, truncated to `length` characters."""
    return text if len(text) <= length else f"{text[:length]}…"


def quantity(number: int, unit: str) -> str:
    """Return a number with its unit, which is given in the singular."""
    return f"{number:,} {unit}{'' if number == 1 else 's'}"


def nearest(name: object, known: Iterable[str]) -> str:
    """Return a hint with the known name closest to a misspelt one, or an empty string.

    Typing errors rarely change the first letter: gpu is not a misspelling of cpu.
    """
    if not isinstance(name, str):
        return ""
    word = name.lstrip("-")
    by_word = {option.lstrip("-"): option for option in known}
    alike = [option for option in by_word if option[:1] == word[:1]]
    matches = difflib.get_close_matches(word, alike, n=1)
    return f"; did you mean {by_word[matches[0]]}?" if matches else ""


def not_one_of(what: str, value: object, choices: Iterable[str]) -> ConfigError:
    """Return the error for a value that is not one of the choices, with the closest choice."""
    names = list(choices)
    text = f"{what} takes one of {', '.join(names)}, got {value!r}"
    return ConfigError(text + nearest(value, names))
