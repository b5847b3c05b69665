"""Signals that end a program, kept until they can be handled."""

import contextlib
import signal
import threading
from collections.abc import Generator
from typing import Any

from regard.errors import Interrupted


@contextlib.contextmanager
def collected(repeat_raises: bool) -> Generator[list[int]]:
    """Collect Ctrl-C, SIGTERM and SIGHUP in a list.

    Args:
        repeat_raises: whether Ctrl-C after a first signal raises `Interrupted` at once. SIGTERM and SIGHUP
            do not: a terminal that closes and a system that shuts down send several.
    """
    received: list[int] = []

    def handle(number: int, _: object) -> None:
        if received and repeat_raises and number == signal.SIGINT:
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
    with contextlib.ExitStack() as stack:
        for number, handler in previous.items():
            stack.callback(_restore, number, handler, handle)
        yield received


@contextlib.contextmanager
def handled_afterwards() -> Generator[None]:
    """Call the handlers of signals that arrive inside only at the end."""
    if not _can_handle():
        yield
        return
    numbers = [number for number in signal.valid_signals() if callable(signal.getsignal(number))]
    received = list[int]()

    def handle(number: int, _: object) -> None:
        received.append(number)

    previous = {number: signal.signal(number, handle) for number in numbers}
    with contextlib.ExitStack() as stack:
        stack.callback(_raise_all, received)
        for number, handler in previous.items():
            stack.callback(_restore, number, handler, handle)
        yield


def _restore(number: int, handler: Any, replaced_by: Any) -> None:
    """Set the handler of a signal unless another one has been set since.

    It is a callback of an `ExitStack`, which calls the others even if a handler that is back raises
    `KeyboardInterrupt` at once.
    """
    if signal.getsignal(number) is replaced_by:
        signal.signal(number, handler)


def _raise_all(numbers: list[int]) -> None:
    """Raise the signals, all of them even if the handler of one raises an exception."""
    with contextlib.ExitStack() as stack:
        for number in reversed(numbers):
            stack.callback(signal.raise_signal, number)


def _can_handle() -> bool:
    """Return whether this is the main thread, the only one that sets and calls handlers."""
    return threading.current_thread() is threading.main_thread()
