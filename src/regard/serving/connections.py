"""HTTP connections: limited in number and in time, and refused with a JSON error.

uvicorn limits requests, but not connections: clients that connect and send nothing would use up the
file descriptors of the process, and no further connection could be accepted.
"""

import asyncio
import contextlib
import http
import json
import logging
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from regard.serving.limits import Limits

BACKLOG = 1024
"""Connections that the kernel queues until they are accepted."""
_ACCEPT_BATCH = 16
"""Connections accepted at once."""
_RESERVED_DESCRIPTORS = 128
"""Reserved for files, and for accepted, refused or closed connections that are not counted."""
_MAX_REFUSED = 32
"""Refused connections that stay open until their client has read the error."""
_MAX_CONNECTIONS = 4096
_LINGER_SECONDS = 1.0
_LOG_SECONDS = 10.0
_log = logging.getLogger("uvicorn.error")


def connection_cap() -> int:
    """Return how many connections this process can keep open, given its limit on descriptors."""
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

    Above the cap, the connection that has waited longest for its client is closed: one that waits
    for the rest of a request or for the next one or, if there is none, one whose client is reading
    the response. Connections whose request is being computed stay open. If no connection can be
    closed, the new one is refused.
    """

    def __init__(self, limits: Limits, cap: int | None = None) -> None:
        self.limits = limits
        self.cap = connection_cap() if cap is None else cap
        self._open: set[LimitedProtocol] = set()
        self._new: set[LimitedProtocol] = (
            set()
        )  # a request may have arrived, but has not been read yet
        self._waiting: dict[LimitedProtocol, None] = {}  # for a request, longest first
        self._unread: dict[LimitedProtocol, None] = {}
        self._refused: dict[LimitedProtocol, None] = {}

    def add(self, connection: "LimitedProtocol") -> bool:
        """Add a connection; return False if there is no room for it.

        New connections may exceed the cap, by two batches at most, until their first data is read.
        """
        if len(self._open) >= self.cap:
            _log.warning(
                "%d connections are open; those that have waited longest are closed", self.cap
            )
            has_new = self._new and len(self._open) < self.cap + 2 * _ACCEPT_BATCH
            if not (self._close_first(self._waiting) or has_new or self._close_first(self._unread)):
                return self._reject(connection)
        self._open.add(connection)
        self._new.add(connection)
        return True

    def wait(self, connection: "LimitedProtocol") -> None:
        """Record that a connection starts to wait for a request."""
        if connection in self._open:
            self.answer(connection)
            self._waiting[connection] = None
            if len(self._open) > self.cap:
                self._close_first(self._waiting)

    def settle(self, connection: "LimitedProtocol") -> bool:
        """Record that the data sent by a new connection has been read.

        Return False if it has sent nothing and there is no room for it.
        """
        if connection in self._new:
            if len(self._open) > self.cap and not self._waiting:
                self.remove(connection)
                return self._reject(connection)
            self.wait(connection)
        return True

    def _reject(self, connection: "LimitedProtocol") -> Literal[False]:
        """Keep a refused connection until its client has read the error, or too many are kept."""
        if len(self._refused) == _MAX_REFUSED:
            self._close_first(self._refused)
        self._refused[connection] = None
        return False

    def _close_first(self, group: dict["LimitedProtocol", None]) -> bool:
        """Close the first connection of a group; return False if there is none."""
        for connection in group:
            self.remove(connection)
            connection.transport.abort()
            return True
        return False

    def wait_for_reading(self, connection: "LimitedProtocol") -> None:
        """Record that a connection starts to wait for its client to read the response."""
        if connection in self._open:
            self.answer(connection)
            self._unread[connection] = None

    def answer(self, connection: "LimitedProtocol") -> None:
        """Record that a connection is not waiting for its client."""
        self._new.discard(connection)
        self._waiting.pop(connection, None)
        self._unread.pop(connection, None)

    def remove(self, connection: "LimitedProtocol") -> None:
        """Forget a connection."""
        self._open.discard(connection)
        self._refused.pop(connection, None)
        self.answer(connection)


class LimitedProtocol(H11Protocol):
    """uvicorn's HTTP protocol with a connection cap, time limits, and errors as JSON.

    The application passes its `Connections` as `connections` in its lifespan state.
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
        self._sending = False  # the response is complete, but not all of it is sent

    def connection_made(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, transport: asyncio.Transport
    ) -> None:
        """Admit or refuse a connection; its first request must arrive in time."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # pause_writing is called when the client reads slowly
        self._admit(self._pool.add(self))
        if not self._refused:
            self._restart_request_timer(self._pool.limits.header_seconds, self._expire)
            # the loop reads what has arrived in its next pass, after the first of these two calls
            self.loop.call_soon(self.loop.call_soon, self._settle)

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection from the pool and cancel its timers."""
        super().connection_lost(exc)
        self._pool.remove(self)
        for timer in (self._request_timer, self._send_timer):
            if timer is not None:
                timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Handle received data, unless the connection has been refused."""
        if not self._refused:
            super().data_received(data)

    def handle_events(self) -> None:
        """Handle received data; after the headers, `BodyLimit` limits the time for the body."""
        super().handle_events()
        cycle: RequestResponseCycle | None = getattr(self, "cycle", None)
        if cycle is None or cycle.response_complete or self._refused:
            return
        if self._request_timer is not None:
            self._request_timer.cancel()
        if not cycle.more_body:
            self._pool.answer(self)

    def on_response_complete(self) -> None:
        """Wait for the next request, once the response has been sent."""
        if self.transport.get_write_buffer_size():
            self._sending = True
        else:
            self._expect_next_request()
        super().on_response_complete()

    def pause_writing(self) -> None:
        """Wait for the client to read; close the connection if it stops."""
        super().pause_writing()
        self._pool.wait_for_reading(self)
        self._check_reading(self.transport.get_write_buffer_size() + 1)

    def resume_writing(self) -> None:
        """Cancel the time limit: everything has been sent."""
        super().resume_writing()
        if self._send_timer is not None:
            self._send_timer.cancel()
        if self._sending and self.cycle.response_complete:
            self._expect_next_request()
        else:  # a request that was pipelined may be in progress already
            self._pool.answer(self)
        self._sending = False

    def send_400_response(self, msg: str) -> None:
        """Respond to an invalid request; uvicorn calls this method while it handles the error."""
        error = sys.exc_info()[1]
        status = getattr(error, "error_status_hint", 400)
        cause = re.sub(r": bytearray\(.*", "", str(error or msg), flags=re.DOTALL)
        reason = f"this is not a valid HTTP request: {cause}"
        if status == http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
            reason = "the request line and the headers are too long"
        self._refuse(status, reason)

    def _settle(self) -> None:
        self._admit(self._pool.settle(self))

    def _admit(self, admitted: bool) -> None:
        if not admitted:
            self._refuse(503, "too many connections; try again in a second")

    def _expect_next_request(self) -> None:
        self._expect_request(self.timeout_keep_alive + self._pool.limits.header_seconds)

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
        """Respond with an error unless a response has begun, and close the connection.

        The connection is closed when the client closes it, or after a second: closing it while data
        arrives would reset it, and the client might not be able to read the error.
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
            is_head = cycle and not cycle.response_complete and cycle.scope["method"] == "HEAD"
            data = [] if is_head else [h11.Data(data=body)]
            for event in (start, *data, h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self._refused = True
        self.transport.write_eof()
        self._restart_request_timer(_LINGER_SECONDS, self.transport.abort)


class AcceptLoop(asyncio.SelectorEventLoop):
    """Event loop that accepts few connections at once, and closes those above the cap before the next.

    asyncio accepts as many connections at once as the backlog of the kernel can contain, which may
    exceed the number of descriptors.
    """

    async def create_server(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, *args: Any, **options: Any
    ) -> asyncio.Server:
        """Create a server as asyncio does, but accept at most `_ACCEPT_BATCH` connections at once."""
        server = await super().create_server(*args, **{**options, "backlog": _ACCEPT_BATCH})
        if options.get("sock") is not None:
            options["sock"].listen(BACKLOG)
        return server


class _RateLimit(logging.Filter):
    """Passes each kind of message once per `_LOG_SECONDS`, with the number suppressed since then."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[tuple[str, object], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return False for a message that follows one of the same kind too soon."""
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
    """Limit the rate at which errors caused by clients are logged."""
    for name in ("uvicorn.error", "asyncio"):
        logger = logging.getLogger(name)
        if not any(isinstance(entry, _RateLimit) for entry in logger.filters):
            logger.addFilter(_RateLimit())


def uvicorn_options(limits: Limits) -> dict[str, Any]:
    """Return the uvicorn settings that these limits require, for `uvicorn.Config`."""
    return {
        "http": "regard.serving.connections:LimitedProtocol",
        "loop": "regard.serving.connections:AcceptLoop",
        "ws": "none",
        "log_level": "warning",
        "access_log": False,
        "headers": [("X-Content-Type-Options", "nosniff"), ("X-Frame-Options", "DENY")],
        "timeout_keep_alive": int(limits.idle_seconds),
        "timeout_graceful_shutdown": int(limits.timeout) + 1,
    }
