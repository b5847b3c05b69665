"""Signals that end a program, kept until they can be handled."""

import contextlib
import signal
import threading
from collections.abc import Generator

from regard.errors import Interrupted


@contextlib.contextmanager
def collected(repeat_raises: bool) -> Generator[list[int]]:
    """Collect Ctrl-C, SIGTERM and SIGHUP in a list.

    Args:
        repeat_raises: whether a second signal raises `Interrupted` at once.
    """
    received: list[int] = []

    def handle(number: int, _: object) -> None:
        if received and repeat_raises:
            raise Interrupted(number)
        received.append(number)

    if not _can_handle():
        yield received
        return
    names = ("SIGINT", "SIGTERM", "SIGHUP")  # Windows has no SIGHUP
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    # a signal that is ignored, as under nohup, stays ignored
    previous = {
        number: signal.signal(number, handle)
        for number in numbers
        if signal.getsignal(number) not in (signal.SIG_IGN, None)
    }
    try:
        yield received
    finally:
        for number, handler in previous.items():
            if signal.getsignal(number) is handle:
                signal.signal(number, handler)


@contextlib.contextmanager
def handled_afterwards() -> Generator[None]:
    """Call the handlers of signals that arrive inside only at the end."""
    if not _can_handle():
        yield
        return
    numbers = [number for number in signal.valid_signals() if callable(signal.getsignal(number))]
    received = list[int]()
    previous = {
        number: signal.signal(number, lambda number, _: received.append(number))
        for number in numbers
    }
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        for number in received:
            signal.raise_signal(number)


def _can_handle() -> bool:
    """Return whether this is the main thread, the only one that sets and calls handlers."""
    return threading.current_thread() is threading.main_thread()
