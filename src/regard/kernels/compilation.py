"""The time that this process has spent on compiling kernels, which happens at their first use."""

import contextlib
import time
from collections.abc import Generator

_seconds = [0.0]


@contextlib.contextmanager
def compiling() -> Generator[None]:
    """Count the time until the block is left."""
    started = time.perf_counter()
    try:
        yield
    finally:
        _seconds[0] += time.perf_counter() - started


def compile_seconds() -> float:
    """Return the seconds spent on compiling, or on reading compiled kernels from numba's cache."""
    return _seconds[0]
