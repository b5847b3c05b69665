"""Limits on requests, and the middleware that enforces those on the body."""

import asyncio
import itertools
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse

from regard.errors import ConfigError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_CLOSE = {"connection": "close"}
_COMBINING_MARKS = 30  # as in Unicode's stream-safe text format, UAX 15


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Upper limits on requests, batches and queues."""

    body_bytes: int = 1_000_000
    """Bytes of a request body; status 413 above it."""
    body_seconds: float = 10.0
    """Seconds for a request body to arrive; status 408 after it."""
    header_seconds: float = 10.0
    """Seconds for the headers of a request to arrive; status 408 after it."""
    idle_seconds: float = 5.0
    """Seconds that a connection stays open without a request, after its first one."""
    send_seconds: float = 10.0
    """Seconds after which a client that reads nothing of its response is disconnected."""
    texts: int = 256
    """Texts of one request."""
    characters: int = 20_000
    """Characters of all texts and prefixes of one request."""
    tokens: int = 500
    """Tokens of one text, `</s>` included."""
    beam_size: int = 20
    """`beam_size` and `n_best` of one request."""
    work: int = 60_000
    """Source and maximum target tokens times beam size, of one request and of one batch."""
    weights: int = 1_000_000
    """Attention weights in one response."""
    queue: int = 1024
    """Texts waiting; status 503 above it."""
    explain_queue: int = 16
    """Explanations waiting; status 503 above it."""
    timeout: float = 30.0
    """Seconds until a request is abandoned with status 504."""
    batch_delay: float = 0.003
    """Seconds to wait for other requests to join a batch."""
    batch_texts: int = 256
    """Texts of one batch."""

    def check_text(self, texts: Sequence[str]) -> None:
        """Reject texts that take long to tokenise.

        Raises:
            ConfigError: too many characters, or too many combining marks on one of them.
        """
        characters = sum(map(len, texts))
        if characters > self.characters:
            raise ConfigError(
                f"at most {self.characters:,} characters per request, got {characters:,}"
            )
        runs = itertools.groupby("".join(texts), lambda c: unicodedata.combining(c) > 0)
        # normalising a run takes time quadratic in its length
        if any(is_mark and len(list(run)) > _COMBINING_MARKS for is_mark, run in runs):
            raise ConfigError(f"at most {_COMBINING_MARKS} accents on one character")

    def check_length(self, tokens: int) -> None:
        """Reject a text of too many tokens.

        Raises:
            ConfigError: there are more than `tokens`.
        """
        if tokens > self.tokens:
            raise ConfigError(f"a text has at most {self.tokens} tokens, got {tokens}")


class BodyLimit:
    """ASGI middleware that reads each body completely, within its limits of size and time."""

    def __init__(self, app: "ASGIApp", limits: Limits) -> None:
        self.app = app
        self.limits = limits

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        limits, body = self.limits, bytearray()
        try:
            async with asyncio.timeout(limits.body_seconds):
                async for chunk in Request(scope, receive).stream():
                    # the rest of an oversized body is read and dropped: a client that is still
                    # sending does not read the response
                    if len(body) <= limits.body_bytes:
                        body += chunk
        except ClientDisconnect:
            return
        except TimeoutError:
            message = f"the body did not arrive within {limits.body_seconds:g} seconds"
            await error_response(408, message, _CLOSE)(scope, receive, send)
            return
        if len(body) > limits.body_bytes:
            message = f"the body is larger than {limits.body_bytes:,} bytes; send fewer texts"
            await error_response(413, message, _CLOSE)(scope, receive, send)
            return
        messages: list[Message] = [{"type": "http.request", "body": bytes(body)}]

        async def replay() -> "Message":
            return messages.pop() if messages else await receive()

        await self.app(scope, replay, send)


def error_response(status: int, reason: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """Return a response with the JSON object {"error": reason}."""
    return JSONResponse({"error": reason}, status, headers)
