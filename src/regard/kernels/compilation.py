"""The time that a thread has spent on compiling kernels, which happens at their first use."""

import contextlib
import threading
import time
from collections.abc import Generator


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
