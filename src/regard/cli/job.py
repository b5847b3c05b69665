"""A command run in several processes by torchrun or `accelerate launch`; only one prints messages."""

import contextlib
import os
import signal
import sys
from collections.abc import Generator
from datetime import timedelta

from regard.errors import JobError

_SECONDS_UNTIL_REPORTED = 10.0


def processes() -> int:
    """Return the number of processes that run this command together."""
    size = os.environ.get("WORLD_SIZE", "1")
    return int(size) if "RANK" in os.environ and size.isdecimal() else 1


def is_main() -> bool:
    """Return whether this process writes the messages of a command that succeeds."""
    return processes() == 1 or os.environ["RANK"] == "0"


@contextlib.contextmanager
def one_output() -> Generator[None]:
    """Discard what processes other than the main one write."""
    with contextlib.ExitStack() as stack:
        if not is_main():
            nowhere = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
            stack.enter_context(contextlib.redirect_stdout(nowhere))
            stack.enter_context(contextlib.redirect_stderr(nowhere))
        yield


def is_first_error() -> bool:
    """Return whether no other process has failed before this one, which then reports its error."""
    if processes() == 1:
        return True
    from regard.distributed import store

    # the launcher ends this process as soon as another one has failed
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        return store(_SECONDS_UNTIL_REPORTED).add("errors", 1) == 1
    except (RuntimeError, JobError):  # the process that keeps the store has ended, or not started
        return True


def end(reported: bool) -> None:
    """End a command that failed: let the launcher end the others only when the error is reported."""
    if processes() == 1:
        return
    from regard.distributed import store

    sys.stderr.flush()
    # the process that keeps the store has ended, or not started
    with contextlib.suppress(RuntimeError, JobError):
        opened = store(_SECONDS_UNTIL_REPORTED)
        if reported:
            opened.set("reported", "")
        else:
            opened.wait(["reported"], timedelta(seconds=_SECONDS_UNTIL_REPORTED))
