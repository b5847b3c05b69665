"""Everything that can go wrong because of what a user gave us.

    RegardError
    ├── ConfigError    a setting has a value we cannot use
    ├── DataError      a file of pairs, a text or a gold alignment is not as it should be
    ├── FolderError    a model folder is missing, incomplete or of another format
    ├── ExtraError     an optional package is not installed
    └── ShapeError     a tensor has another shape than the call needs (also a ValueError)

Each message says what was expected, what was found, and the way out, in one sentence: the command
prints it on one line and leaves with status 1.
"""


class RegardError(Exception):
    """Base of all errors about what the user gave; the command prints it without a traceback."""


class ConfigError(RegardError):
    """A setting has a value that cannot be used."""


class DataError(RegardError):
    """A file or text that was given is not as it should be."""


class FolderError(RegardError):
    """A model folder is missing, incomplete or of another format."""


class ExtraError(RegardError):
    """An optional package is needed and not installed."""


class ShapeError(RegardError, ValueError):
    """A tensor has another shape or dtype than the call needs."""
