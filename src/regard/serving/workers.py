"""One process that serves, or several worker processes on one socket, run by uvicorn."""

import contextlib
import signal
import socket
import threading
import time
from collections.abc import Callable, Generator

from prometheus_client.multiprocess import mark_process_dead
from uvicorn.config import Config
from uvicorn.server import Server
from uvicorn.supervisors import Multiprocess

from regard.errors import ConfigError

_STOPPING = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]
"""Signals that stop the server; Windows has no SIGHUP."""


class SingleServer(Server):
    """A server in one process, which completes the requests in progress after SIGHUP, too."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Handle SIGHUP as uvicorn handles SIGTERM, unless it is ignored, as under nohup."""
        number = getattr(signal, "SIGHUP", None)  # Windows has none
        with super().capture_signals():
            # only the main thread has handlers
            is_main = threading.current_thread() is threading.main_thread()
            if number is None or not is_main or signal.getsignal(number) == signal.SIG_IGN:
                yield
                return
            previous = signal.signal(number, self.handle_exit)
            try:
                yield
            finally:
                signal.signal(number, previous)


class Workers(Multiprocess):
    """Worker processes that are announced when all of them accept connections.

    Args:
        config: uvicorn settings, with `workers`.
        sockets: sockets that already listen.
        announce: called once, when every worker has started.

    Raises:
        ConfigError: raised by `run` if a worker ends before all of them accept connections. Workers
            that end later are replaced.
    """

    def __init__(
        self, config: Config, sockets: list[socket.socket], announce: Callable[[], None]
    ) -> None:
        self._previous = {number: signal.getsignal(number) for number in _STOPPING}
        super().__init__(config, sockets)
        for number, handler in self._previous.items():
            if handler == signal.SIG_IGN:
                signal.signal(number, signal.SIG_IGN)
        self._announce = announce
        self._received: int | None = None  # the signal that stopped the workers
        self._exit_code: int | None = None  # of a worker that ended before all accepted connections

    def init_processes(self) -> None:
        """Start the workers, and wait until they listen, one fails, or a signal arrives."""
        super().init_processes()
        for process in self.processes:
            while not process.is_ready(timeout=1):
                if any(number in _STOPPING for number in self.signal_queue):
                    return  # the loop of the base class handles it
                if not process.process.is_alive():
                    self._exit_code = process.exitcode
                    self.should_exit.set()
                    return
                time.sleep(0.05)
        self._announce()

    def keep_subprocess_alive(self) -> None:
        """Replace workers that have ended, whose waiting texts are no longer counted."""
        before = {process.pid for process in self.processes}
        super().keep_subprocess_alive()
        for pid in before - {process.pid for process in self.processes}:
            mark_process_dead(pid)

    def handle_signals(self) -> None:
        """Stop after SIGHUP, too, for which uvicorn restarts the workers."""
        self._received = next((n for n in self.signal_queue if n in _STOPPING), None)
        if self._received is not None:
            self.should_exit.set()
        else:
            super().handle_signals()

    def run(self) -> None:
        """Run the workers until a signal arrives, or until one ends before it can serve.

        The signal that stops them is then passed on to the handler that was installed before.
        """
        try:
            super().run()
        except BaseException:  # such as a broken pipe that the announcement was written to
            self.terminate_all()
            self.join_all()
            raise
        finally:
            for number, handler in self._previous.items():
                signal.signal(number, handler)
        if self._received is not None:
            signal.raise_signal(self._received)
        if self._exit_code is not None:
            raise ConfigError(
                f"a worker process ended with status {self._exit_code} before it could serve; if memory "
                "is short, reduce --workers"
            )
