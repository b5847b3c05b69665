"""Progress: a bar in notebooks and terminals, plain lines on standard error elsewhere."""

import contextlib
import html
import sys
import time
from typing import Any

_SECONDS_BETWEEN_LINES = 10.0
_SECONDS_BETWEEN_UPDATES = 0.5


class Progress:
    """Display the progress, rate and remaining time of a task.

    In a terminal, rich redraws one line; a notebook redraws one output; elsewhere, a plain line is
    printed every 10 seconds.

    Args:
        label: name of the task.
        total: number of units; None if unknown.
        unit: name of the unit, in the plural.
        initial: units done earlier, which are not included in the rate.
        silent: display nothing.
    """

    def __init__(
        self, label: str, total: int | None, unit: str, initial: int = 0, silent: bool = False
    ) -> None:
        self.label, self.total, self.unit, self.silent = label, total, unit, silent
        self.done = self._initial = initial
        self._started = self._printed = time.monotonic()
        self._bar = None
        self._output: Any = None

    def __enter__(self) -> "Progress":
        if self.silent:
            return self
        if _in_notebook():
            from IPython.display import HTML, display  # pyright: ignore

            self._output = display(HTML(self._html("", "")), display_id=True)
        elif _is_terminal(sys.stderr):
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                TextColumn("{task.fields[left]}"),
                TextColumn("{task.fields[note]}"),
                console=Console(stderr=True),
                transient=True,
                expand=True,
                redirect_stdout=False,  # rich would write it to standard error
            )
            self._task = self._bar.add_task(self.label, total=self.total, note="", left="")
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._output is not None:
            self._redraw("", "")

    def advance(self, count: int = 1, note: str = "", remaining: float | None = None) -> None:
        """Record that `count` more units are done.

        Args:
            count: units done since the last call.
            note: further text to display, such as a loss.
            remaining: seconds left; estimated from the rate by default.
        """
        self.done += count
        if self.silent:
            return
        left = self._left(remaining)
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done, note=note, left=left)
        elif self._output is not None:
            if time.monotonic() - self._printed >= _SECONDS_BETWEEN_UPDATES:
                self._printed = time.monotonic()
                self._redraw(left, note)
        elif time.monotonic() - self._printed >= _SECONDS_BETWEEN_LINES:
            self._printed = time.monotonic()
            _write(self._line(left, note))

    def print(self, text: str) -> None:
        """Print a line above the bar."""
        if self.silent:
            return
        if self._output is not None:
            print(text, flush=True)  # noqa: T201  (notebooks colour standard error as an error)
        elif self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False, emoji=False)
        else:
            _write(text)

    def _redraw(self, left: str, note: str) -> None:
        from IPython.display import HTML  # pyright: ignore

        self._output.update(HTML(self._html(left, note)))

    def _html(self, left: str, note: str) -> str:
        bar = f'<progress max="{self.total}" value="{self.done}"></progress> ' if self.total else ""
        return f"<div>{bar}{html.escape(self._line(left, note))}</div>"

    def _line(self, left: str, note: str) -> str:
        total = "" if self.total is None else f"/{self.total:,}"
        rate = (self.done - self._initial) / max(1e-9, time.monotonic() - self._started)
        parts = [f"{self.label}: {self.done:,}{total} {self.unit}", f"{rate:,.1f} {self.unit}/s"]
        return ", ".join([*parts, *filter(None, (left, note))])

    def _left(self, seconds: float | None) -> str:
        if seconds is None:
            done = self.done - self._initial
            if not self.total or not done:
                return ""
            seconds = (time.monotonic() - self._started) / done * (self.total - self.done)
        minutes, seconds = divmod(round(max(0.0, seconds)), 60)
        return f"{minutes}:{seconds:02d} left"


def _is_terminal(stream: Any) -> bool:
    """Return whether a stream, which need not have all methods of a file, is a terminal."""
    return hasattr(stream, "isatty") and stream.isatty()


def _write(line: str) -> None:
    """Write a line to standard error, unless it is closed, absent, or no longer read."""
    if sys.stderr is not None:  # pyright: ignore[reportUnnecessaryComparison]
        with contextlib.suppress(OSError, ValueError):
            print(line, file=sys.stderr, flush=True)  # noqa: T201


def _in_notebook() -> bool:
    """Return True in a notebook, whose front end displays HTML."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None
