"""Several worker processes on one socket, run by uvicorn."""

import socket
import time
from collections.abc import Callable

from uvicorn.config import Config
from uvicorn.supervisors import Multiprocess


class Workers(Multiprocess):
    """Worker processes that are announced when all of them accept connections.

    Args:
        config: settings of uvicorn, with `workers`.
        sockets: sockets that already listen.
        announce: called once, when every worker has started.
    """

    def __init__(
        self, config: Config, sockets: list[socket.socket], announce: Callable[[], None]
    ) -> None:
        super().__init__(config, sockets)
        self._announce = announce

    def init_processes(self) -> None:
        """Start the workers, and wait until they listen, one fails, or a signal arrives."""
        super().init_processes()
        for process in self.processes:
            while not process.is_ready(timeout=1):
                if self.signal_queue or not process.process.is_alive():
                    return  # the loop of the base class handles both
                time.sleep(0.05)
        self._announce()
