"""One process that serves, or several worker processes on one socket, run by uvicorn."""

import contextlib
import signal
import socket
import threading
import time
from collections.abc import Callable, Generator

from uvicorn.config import Config
from uvicorn.server import Server
from uvicorn.supervisors import Multiprocess

from regard.errors import ConfigError


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
        super().__init__(config, sockets)
        self._announce = announce
        self._exit_code: int | None = None  # of a worker that ended before all accepted connections

    def init_processes(self) -> None:
        """Start the workers, and wait until they listen, one fails, or a signal arrives."""
        super().init_processes()
        for process in self.processes:
            while not process.is_ready(timeout=1):
                if self.signal_queue:
                    return  # the loop of the base class handles it
                if not process.process.is_alive():
                    self._exit_code = process.exitcode
                    self.should_exit.set()
                    return
                time.sleep(0.05)
        self._announce()

    def run(self) -> None:
        """Run the workers until a signal arrives, or until one ends before it can serve."""
        super().run()
        if self._exit_code is not None:
            raise ConfigError(
                f"a worker process ended with status {self._exit_code} before it could serve; if memory "
                "is short, reduce --workers"
            )
