"""Limits on requests, and the middleware that enforces those on request bodies."""

import asyncio
import contextlib
import itertools
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse

from regard.errors import ConfigError, quantity

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_CLOSE = {"connection": "close"}
_LONGEST_REASON = 300  # characters: a reason may quote the request
_COMBINING_MARKS = 30  # as in Unicode's stream-safe text format, UAX 15
_FLAGS = 500  # more than there are countries; splitting a run takes time quadratic in its length
_LONG_RUN_OF_FLAGS = re.compile(f"[\U0001f1e6-\U0001f1ff]{{{2 * _FLAGS + 1}}}")

VALUES_PER_TOKEN = 4000
"""With this value and the default `Limits.work`, a search holds less than 1 GB of weights."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Upper limits on requests, batches and queues."""

    body_bytes: int = 1_000_000
    """Bytes in a request body; a larger body gets status 413."""
    body_seconds: float = 10.0
    """Seconds for a request body to arrive; a later one gets status 408."""
    header_seconds: float = 10.0
    """Seconds for the headers of a request to arrive; later ones get status 408."""
    idle_seconds: float = 5.0
    """Seconds that a connection stays open between requests."""
    send_seconds: float = 10.0
    """Seconds after which a client that reads nothing of its response is disconnected."""
    texts: int = 256
    """Texts in one request."""
    characters: int = 20_000
    """Characters in all texts, features and prefixes of one request; those for all texts count once for each."""
    tokens: int = 500
    """Tokens in one text, prefix or target, `</s>` included."""
    beam_size: int = 20
    """`beam_size` and `n_best` in one request."""
    work: int = 60_000
    """Source tokens plus maximum target tokens, times beam size and the number of models in an
    ensemble, in one request and in one batch.

    Every `VALUES_PER_TOKEN` attention weights that the search may hold count as one token, and so do as many
    values of a posterior decoder, which predicts from every source position.
    """
    weights: int = 1_000_000
    """Attention weights in one response."""
    next_tokens: int = 300_000
    """Next tokens (`top_logprobs`) that a response may contain."""
    queue: int = 1024
    """Texts that may wait; further ones get status 503."""
    explain_queue: int = 16
    """Explanations that may wait; further ones get status 503."""
    timeout: float = 30.0
    """Seconds until a request is abandoned with status 504."""
    batch_texts: int = 256
    """Texts in one batch."""

    def check_text(self, texts: Sequence[str], characters: int) -> None:
        """Reject texts that would take too long to tokenise.

        Args:
            texts: all strings of a request.
            characters: number of characters to tokenise.

        Raises:
            ConfigError: there are too many characters, combining marks on one character, or flags in a
                row.
        """
        if characters > self.characters:
            raise ConfigError(
                f"at most {quantity(self.characters, 'character')} per request, got {characters:,}"
            )
        text = " ".join(texts)
        if _LONG_RUN_OF_FLAGS.search(text):
            raise ConfigError(f"at most {_FLAGS} flag emoji in a row; separate them with spaces")
        runs = itertools.groupby(text, lambda c: unicodedata.combining(c) > 0)
        # normalising a run takes time quadratic in its length
        if any(is_mark and len(list(run)) > _COMBINING_MARKS for is_mark, run in runs):
            raise ConfigError(f"at most {_COMBINING_MARKS} accents on one character")

    def check_length(self, tokens: int) -> None:
        """Reject a text with too many tokens.

        Raises:
            ConfigError: the text has more than `self.tokens` tokens.
        """
        if tokens > self.tokens:
            raise ConfigError(
                f"a text, prefix or target may have at most {quantity(self.tokens, 'token')}, got {tokens}"
            )


class BodyLimit:
    """ASGI middleware that reads each body completely, within the limits on its size and time.

    A request is cancelled when its client disconnects.
    """

    def __init__(self, app: "ASGIApp", limits: Limits) -> None:
        self.app = app
        self.limits = limits

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if "transfer-encoding" in headers and "content-length" in headers:
            # the length of such a body is ambiguous: RFC 9112, section 6.3
            message = "send Content-Length or Transfer-Encoding, not both"
            await error_response(400, message, _CLOSE)(scope, receive, send)
            return
        # files are small: a Range header is ignored, as RFC 9110, section 14.2, allows
        scope["headers"] = [header for header in scope["headers"] if header[0] != b"range"]
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
        disconnected = asyncio.ensure_future(receive())

        async def replay() -> "Message":
            return messages.pop() if messages else await asyncio.shield(disconnected)

        response = asyncio.ensure_future(self.app(scope, replay, send))
        try:
            await asyncio.wait((response, disconnected), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (response, disconnected):
                task.cancel()  # has no effect on the one that has ended
        with contextlib.suppress(asyncio.CancelledError):
            await response


def error_response(status: int, reason: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """Return a response with the JSON object {"error": reason}; a long reason is truncated."""
    if len(reason) > _LONGEST_REASON:
        reason = f"{reason[:_LONGEST_REASON]}…"
    return JSONResponse({"error": reason}, status, headers)
