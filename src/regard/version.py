"""The version of the installed package."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("regard")
except PackageNotFoundError:  # imported from a source tree that is not installed
    __version__ = "unknown"
