"""The address that the server listens on, and the Host headers that it accepts."""

import ipaddress
import re
import socket
from typing import TYPE_CHECKING

from starlette.datastructures import Headers

from regard.errors import ConfigError
from regard.serving.limits import error_response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_EVERY_INTERFACE = ("0.0.0.0", "::")
_HOST_HEADER = re.compile(r"(\[[0-9a-f:.]+\]|[^:@/\[\]\s]+)(?::\d*)?", re.IGNORECASE)


def resolve(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str | int | bytes, ...]]:
    """Return the family and the address of a host to listen on.

    Raises:
        ConfigError: the host has no address, or stands for every interface but is not 0.0.0.0 or ::.
    """
    if not host:
        raise ConfigError("--host is empty; give an address, or 0.0.0.0 for every interface")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:  # UnicodeError: not a valid domain name
        reason = error.strerror if isinstance(error, OSError) else "not a valid host name"
        raise ConfigError(
            f"cannot listen on {host}, port {port}: {reason}; choose another --host or --port"
        ) from None
    family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    if host not in _EVERY_INTERFACE and _ip(str(address[0])).is_unspecified:
        raise ConfigError(
            f"--host {host} means every interface; use --host 0.0.0.0 (or ::) if that is intended"
        )
    return family, address


def is_loopback(host: str) -> bool:
    """Return True for a loopback address, or a name that resolves to one."""
    if host in _EVERY_INTERFACE:
        return False
    return _ip(str(resolve(host, 0)[1][0])).is_loopback


class HostCheck:
    """ASGI middleware that rejects requests whose Host header specifies another machine.

    Otherwise, a website whose name resolves to a loopback address could read the responses (DNS
    rebinding). The header may contain `host` in any spelling, `localhost` or a loopback address.
    """

    def __init__(self, app: "ASGIApp", host: str) -> None:
        self.app = app
        self.host = _normalise(host)

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Handle one request."""
        if scope["type"] == "http" and not self._accepts(Headers(scope=scope).get("host", "")):
            reason = "the Host header names another machine; this server accepts only localhost"
            await error_response(400, reason)(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _accepts(self, header: str) -> bool:
        match = _HOST_HEADER.fullmatch(header.strip())
        if match is None:
            return False
        name = _normalise(match[1])
        if name in ("localhost", self.host):
            return True
        try:
            return _ip(name).is_loopback
        except ValueError:
            return False


def _normalise(host: str) -> str:
    return host.lower().removeprefix("[").removesuffix("]").removesuffix(".")


def _ip(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    ip = ipaddress.ip_address(address)
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return mapped or ip
