"""What the server takes, and how it refuses the rest."""

import asyncio
import itertools
import json
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from regard.errors import ConfigError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Caps on what clients may ask for."""

    body_bytes: int = 1_000_000
    """Of a request's body; more is answered with 413."""
    body_seconds: float = 10.0
    """For a body to arrive; a slower one is answered with 408."""
    texts: int = 256
    """Of one request."""
    characters: int = 20_000
    """Of all texts of one request, and of what its outputs begin with."""
    tokens: int = 500
    """Of one text, its end symbol included."""
    beam_size: int = 20
    """Open hypotheses, and outputs, of one text."""
    work: int = 60_000
    """Symbols read and written at most, times open hypotheses: of one request, and of a batch."""
    weights: int = 1_000_000
    """Weights in one answer."""
    explain_queue: int = 16
    """Explanations that may wait."""
    queue: int = 1024
    """Texts that may wait; past it requests are answered with 503."""
    timeout: float = 30.0
    """Until an answer; later ones are given up with 504."""
    wait: float = 0.003
    """Seconds in which the texts of other requests may join a batch."""
    batch: int = 256
    """Texts of one batch."""

    def check_text(self, texts: Sequence[str]) -> None:
        """Refuse what would take long to cut into symbols.

        Raises:
            ConfigError: there are too many characters, or too many accents on one of them.
        """
        characters = sum(map(len, texts))
        if characters > self.characters:
            raise ConfigError(f"at most {self.characters:,} characters at once, got {characters:,}")
        run = 0
        for character in itertools.chain.from_iterable(texts):
            run = run + 1 if unicodedata.combining(character) else 0
            if run > _ACCENTS:  # putting a run in order takes the square of its length
                raise ConfigError(f"at most {_ACCENTS} accents on one character")


_ACCENTS = 30  # as in Unicode's stream-safe text format, UAX 15


class BodyLimit:
    """Reads whole bodies before anybody else does: at most so many bytes, in so many seconds."""

    def __init__(self, app: "ASGIApp", limits: Limits) -> None:
        self.app = app
        self.limits = limits

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                body = await self._read(receive)
        except TimeoutError:
            seconds = self.limits.body_seconds
            await _refuse(send, 408, f"the body did not arrive within {seconds:g} seconds")
            return
        if body is None:
            return
        if len(body) > self.limits.body_bytes:
            most = self.limits.body_bytes
            await _refuse(send, 413, f"the body is larger than {most:,} bytes; send fewer texts")
            return
        given = False

        async def again() -> "Message":
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self.app(scope, again, send)

    async def _read(self, receive: "Receive") -> bytes | None:
        """The body, cut a little past the limit; None if the client has gone."""
        body = bytearray()
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            # the rest of a body that is too large is read and dropped: a client that is still
            # sending does not read the answer
            if len(body) <= self.limits.body_bytes:
                body += message.get("body", b"")
            more = message.get("more_body", False)
        return bytes(body)


async def _refuse(send: "Send", status: int, reason: str) -> None:
    content = json.dumps({"error": reason}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(content)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
