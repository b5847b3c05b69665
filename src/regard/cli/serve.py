"""regard serve DIR: a page where attention moves and can be pushed, and a JSON interface.

Everything stays on this machine: the page loads nothing from elsewhere, and only this machine can
open it unless --host says otherwise.
"""

import contextlib
import dataclasses
import json
import os
import socket
import tempfile
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from jsonargparse import Namespace

from regard.cli.parser import Parser
from regard.config import Device
from regard.errors import ConfigError

if TYPE_CHECKING:
    from regard.serving.app import Settings


def run(arguments: list[str]) -> None:
    """Serve until stopped."""
    parser = Parser(prog="regard serve", description=__doc__)
    parser.add_argument("folder", type=str, help="a model folder")
    parser.add_argument("--compare-with", type=str, help="another model folder, shown side by side")
    parser.add_argument("--example", type=str, help="the text that the page opens with")
    parser.add_argument("--host", type=str, default="127.0.0.1", help="address to listen at")
    parser.add_argument("--port", type=int, default=8000, help="port to listen at; 0 for any")
    parser.add_argument("--workers", type=int, default=1, help="processes that translate")
    parser.add_argument("--max-tokens", type=int, default=500, help="longest text")
    parser.add_argument("--max-beam", type=int, default=20, help="largest beam_size and n_best")
    parser.add_argument("--queue", type=int, default=1024, help="texts that may wait; past it, 503")
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds until 504")
    parser.add_argument("--device", type=Device, default="auto", help="where to compute")
    given = parser.parse_args(arguments)
    try:
        import uvicorn

        from regard.serving.app import Settings, create_app
        from regard.serving.limits import Limits
        from regard.translator import Translator
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"serving needs the package {error.name}: pip install 'regard[serve]'"
        ) from None
    _check(given)
    settings = Settings(
        folder=given.folder,
        compare_with=given.compare_with,
        example=given.example,
        host=given.host,
        device=given.device,
        limits=Limits(
            symbols=given.max_tokens,
            beam_size=given.max_beam,
            queue=given.queue,
            seconds=given.timeout,
        ),
    )
    with _listen(given.host, given.port) as listening:
        port = listening.getsockname()[1]
        common: dict[str, Any] = {
            "host": given.host,
            "port": port,
            "log_level": "warning",
            "access_log": False,
            "timeout_graceful_shutdown": int(given.timeout) + 1,
        }
        if given.workers == 1:
            server = uvicorn.Server(uvicorn.Config(create_app(settings), **common))
            listening.listen()
            _announce(given.host, port)
            server.run([listening])
            return
    for folder in filter(None, (given.folder, given.compare_with)):
        Translator.load(folder, given.device)  # what is wrong with it is said here, once
    with _workers(settings, given.workers):
        _announce(given.host, port)
        app = "regard.serving.app:from_environment"
        uvicorn.run(
            app,
            factory=True,
            workers=given.workers,
            timeout_worker_healthcheck=int(given.timeout) + 30,
            **common,
        )


def _check(given: Namespace) -> None:
    for name, low in (("workers", 1), ("max_tokens", 1), ("max_beam", 1), ("queue", 1)):
        if given[name] < low:
            raise ConfigError(f"--{name.replace('_', '-')} is at least {low}, got {given[name]}")
    if not 0 < given.timeout <= 3600:
        raise ConfigError(f"--timeout is from 0 to 3600 seconds, got {given.timeout:g}")
    if not 0 <= given.port < 65536:
        raise ConfigError(f"--port goes from 0 to 65535, got {given.port}")


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        reason = error.strerror or error
        raise ConfigError(
            f"cannot listen at {host}, port {port}: {reason}; choose another with --host or --port"
        ) from None
    return listening


def _announce(host: str, port: int) -> None:
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    print(f"regard is at {address} (interface: {address}/docs; Ctrl-C stops it)", flush=True)


@contextlib.contextmanager
def _workers(settings: "Settings", count: int) -> Generator[None]:
    """What worker processes find in their environment."""
    with tempfile.TemporaryDirectory() as figures:
        threads = max(1, (os.cpu_count() or 1) // count)
        values = {**dataclasses.asdict(settings), "threads": threads}
        os.environ["REGARD_SERVE"] = json.dumps(values)
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = figures
        yield
