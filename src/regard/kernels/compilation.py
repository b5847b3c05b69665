"""Import of the launchers of kernels, and the time that a thread has spent on loading or compiling kernels."""

import contextlib
import functools
import importlib
import threading
import time
from collections.abc import Generator
from typing import Any


class _Spent(threading.local):
    seconds = 0.0


_spent = _Spent()


@contextlib.contextmanager
def compiling() -> Generator[None]:
    """Count the time until the block is left."""
    started = time.perf_counter()
    try:
        yield
    finally:
        _spent.seconds += time.perf_counter() - started


def compile_seconds() -> float:
    """Return the seconds that this thread has spent on compiling, or on waiting for the result."""
    return _spent.seconds


@functools.cache
def import_kernel(name: str) -> Any:
    """Return a module of `regard.kernels`; None where it cannot be imported, for example without numba."""
    try:
        return importlib.import_module(f"regard.kernels.{name}")
    except Exception:  # a broken compiler raises any exception
        return None
