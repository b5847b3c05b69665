"""Several worker processes on one socket, run by uvicorn."""

import socket
import time
from collections.abc import Callable

from uvicorn.config import Config
from uvicorn.supervisors import Multiprocess

from regard.errors import ConfigError


class Workers(Multiprocess):
    """Worker processes that are announced when all of them accept connections.

    Args:
        config: settings of uvicorn, with `workers`.
        sockets: sockets that already listen.
        announce: called once, when every worker has started.

    Raises:
        ConfigError: by `run`: a worker ended before all of them accepted connections. Later ones are
            replaced.
    """

    def __init__(
        self, config: Config, sockets: list[socket.socket], announce: Callable[[], None]
    ) -> None:
        super().__init__(config, sockets)
        self._announce = announce
        self._exit_code: int | None = None  # of a worker that ended before

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
        """Run the workers until a signal arrives, or one ends before it serves."""
        super().run()
        if self._exit_code is not None:
            raise ConfigError(
                f"a worker process ended with status {self._exit_code} before it could serve; if memory "
                "is short, start fewer --workers"
            )
