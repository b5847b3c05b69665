"""Connections: at most as many as there are descriptors, with time limits, and every refusal JSON.

uvicorn limits requests, but not connections: clients that connect and send nothing would use up the
descriptors of the process, after which no connection can be accepted.
"""

import asyncio
import contextlib
import http
import json
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from regard.serving.limits import Limits

BACKLOG = 1024
"""Connections that the kernel holds until they are accepted."""
_ACCEPT_BATCH = 16
"""Connections accepted at once."""
_RESERVED_DESCRIPTORS = 96
"""Kept for files, and for connections that are accepted or closed but not counted: 4 batches."""
_MAX_CONNECTIONS = 4096
_LINGER_SECONDS = 1.0
_LOG_SECONDS = 10.0
_log = logging.getLogger("uvicorn.error")


def connection_cap() -> int:
    """Return how many connections this process can hold with the descriptors that it may open."""
    try:
        import resource
    except ImportError:  # Windows
        return 256
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if descriptors == resource.RLIM_INFINITY:
        return _MAX_CONNECTIONS
    used = 64
    with contextlib.suppress(OSError):
        used = len(list(Path("/dev/fd").iterdir()))
    return max(8, min(_MAX_CONNECTIONS, descriptors - used - _RESERVED_DESCRIPTORS))


class Connections:
    """The open connections of a process.

    Above the cap, the connection is closed that has waited longest for its client: for the rest of
    a request, or for the next one. Connections whose request is being answered stay.
    """

    def __init__(self, limits: Limits, cap: int | None = None) -> None:
        self.limits = limits
        self.cap = connection_cap() if cap is None else cap
        self._open: set[LimitedProtocol] = set()
        self._waiting: dict[LimitedProtocol, None] = {}  # longest first

    def add(self, connection: "LimitedProtocol") -> bool:
        """Add a connection; return False if there is no room for it."""
        if len(self._open) >= self.cap:
            _log.warning("%d connections are open; those that wait longest are closed", self.cap)
            longest = next(iter(self._waiting), None)
            if longest is None:
                return False
            self.remove(longest)
            longest.transport.abort()
        self._open.add(connection)
        self._waiting[connection] = None
        return True

    def wait(self, connection: "LimitedProtocol") -> None:
        """Record that a connection begins to wait for its client."""
        if connection in self._open:
            self._waiting.pop(connection, None)
            self._waiting[connection] = None

    def answer(self, connection: "LimitedProtocol") -> None:
        """Record that a request has arrived completely."""
        self._waiting.pop(connection, None)

    def remove(self, connection: "LimitedProtocol") -> None:
        """Forget a connection."""
        self._open.discard(connection)
        self._waiting.pop(connection, None)


class LimitedProtocol(H11Protocol):
    """uvicorn's HTTP protocol with a connection cap, time limits, and errors as JSON.

    The application passes its `Connections` as `connections` in the state of its lifespan.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._pool: Connections = app_state["connections"]
        self._request_timer: asyncio.TimerHandle | None = None
        self._send_timer: asyncio.TimerHandle | None = None
        self._refused = False

    def connection_made(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, transport: asyncio.Transport
    ) -> None:
        """Admit or refuse a connection; its first request must arrive in time."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # pause_writing is called when the client reads slowly
        if self._pool.add(self):
            self._expect_request(self._pool.limits.header_seconds)
        else:
            self._refuse(503, "too many connections; try again in a second")
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Release what the connection holds."""
        super().connection_lost(exc)
        self._pool.remove(self)
        for timer in (self._request_timer, self._send_timer):
            if timer is not None:
                timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Handle received data, unless the connection is only open until its error is read."""
        if not self._refused:
            super().data_received(data)

    def handle_events(self) -> None:
        """Handle received data; after the headers, the application limits the time of the body."""
        super().handle_events()
        cycle: RequestResponseCycle | None = getattr(self, "cycle", None)
        if cycle is None or cycle.response_complete or self._refused:
            return
        if self._request_timer is not None:
            self._request_timer.cancel()
        if not cycle.more_body:
            self._pool.answer(self)

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._expect_request(self.timeout_keep_alive + self._pool.limits.header_seconds)
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Close the connection if its client stops reading."""
        super().pause_writing()
        self._check_reading(self.transport.get_write_buffer_size() + 1)

    def resume_writing(self) -> None:
        """Stop the time limit: all is sent."""
        super().resume_writing()
        if self._send_timer is not None:
            self._send_timer.cancel()

    def send_400_response(self, msg: str) -> None:
        """Answer an invalid request; uvicorn calls this while it handles the error."""
        error = sys.exc_info()[1]
        status = getattr(error, "error_status_hint", 400)
        reason = f"this is no valid HTTP request: {error or msg}"
        if status == http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
            reason = "the request line and the headers are too long"
        self._refuse(status, reason)

    def _expect_request(self, seconds: float) -> None:
        self._pool.wait(self)
        self._restart_request_timer(seconds, self._expire)

    def _restart_request_timer(self, seconds: float, action: Callable[[], None]) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
        self._request_timer = self.loop.call_later(seconds, action)

    def _expire(self) -> None:
        if self.transport.is_closing() or not self.conn.trailing_data[0]:
            self.transport.abort()
            return
        seconds = self._pool.limits.header_seconds
        self._refuse(408, f"the headers did not arrive within {seconds:g} seconds")

    def _check_reading(self, unsent_before: int) -> None:
        unsent = self.transport.get_write_buffer_size()
        if unsent >= unsent_before:
            self.transport.abort()
            return
        seconds = self._pool.limits.send_seconds
        self._send_timer = self.loop.call_later(seconds, self._check_reading, unsent)

    def _refuse(self, status: int, reason: str) -> None:
        """Answer with an error unless a response has begun, and close the connection.

        It is closed when the client closes it, or after a second: to close it while data arrives
        would reset it, and the client might not read the error.
        """
        cycle: RequestResponseCycle | None = getattr(self, "cycle", None)
        if cycle is not None:
            cycle.disconnected = True  # the application sends nothing more
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps({"error": reason}).encode()
            headers = {
                "content-type": "application/json",
                "content-length": str(len(body)),
                "connection": "close",
            }
            phrase = http.HTTPStatus(status).phrase
            start = h11.Response(status_code=status, headers=[*headers.items()], reason=phrase)
            for event in (start, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self._refused = True
        self.transport.write_eof()
        self._restart_request_timer(_LINGER_SECONDS, self.transport.abort)


class AcceptLoop(asyncio.SelectorEventLoop):
    """Event loop that accepts few connections at once, so that those above the cap are closed first.

    asyncio accepts as many as the backlog of the kernel, which may be more than there are
    descriptors.
    """

    async def create_server(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, *args: Any, **options: Any
    ) -> asyncio.Server:
        """Listen as asyncio does."""
        server = await super().create_server(*args, **{**options, "backlog": _ACCEPT_BATCH})
        if options.get("sock") is not None:
            options["sock"].listen(BACKLOG)
        return server


class _RateLimit(logging.Filter):
    """Lets a message of one kind pass once in `_LOG_SECONDS`, with the number left out since."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[tuple[str, object], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return False for a message that came too soon after an equal one."""
        if record.levelno < logging.WARNING:
            return True
        kind = str(record.msg).partition("\n")[0], record.exc_info and record.exc_info[0]
        now = time.monotonic()
        last, left_out = self._last.get(kind, (-_LOG_SECONDS, 0))
        if now - last < _LOG_SECONDS:
            self._last[kind] = last, left_out + 1
            return False
        if len(self._last) > 100:
            self._last.clear()
        self._last[kind] = now, 0
        if left_out:
            record.msg = f"{record.msg} ({left_out} more since the last message)"
        return True


def limit_log_rate() -> None:
    """Let clients that cause errors write to the log at a bounded rate."""
    for name in ("uvicorn.error", "asyncio"):
        logger = logging.getLogger(name)
        if not any(isinstance(entry, _RateLimit) for entry in logger.filters):
            logger.addFilter(_RateLimit())


def uvicorn_options(limits: Limits) -> dict[str, Any]:
    """Return the settings of uvicorn that these limits need, for `uvicorn.Config`."""
    return {
        "http": "regard.serving.connections:LimitedProtocol",
        "loop": "regard.serving.connections:AcceptLoop",
        "ws": "none",
        "log_level": "warning",
        "access_log": False,
        "timeout_keep_alive": int(limits.idle_seconds),
        "timeout_graceful_shutdown": int(limits.timeout) + 1,
    }
