"""regard serve [DIR]: serve a JSON API and a web page for inspecting and editing attention.

The page does not load anything from other hosts. The server accepts connections only from this
machine unless --host is given.
"""

import dataclasses
import json
import os
import socket
import tempfile

from jsonargparse import Namespace

from regard.cli.options import (
    add_model,
    add_precision,
    load_translator,
    loading,
    report_precision,
)
from regard.cli.parser import Parser
from regard.errors import ConfigError
from regard.pretrained import pretrained_models

_MOST_WORKERS = 256


def run(arguments: list[str]) -> None:
    """Serve until stopped."""
    args = make_parser().parse_args(arguments)
    try:
        with loading("PyTorch"):
            import uvicorn

            from regard.serving.app import Settings, create_app
            from regard.serving.connections import uvicorn_options
            from regard.serving.limits import Limits
            from regard.serving.workers import SingleServer, Workers
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"serving needs the package {error.name}: pip install 'regard[serve]'"
        ) from None
    _check(args)
    report_precision(args.precision)
    settings = Settings(
        folder=args.folder,
        compare_with=args.compare_with,
        example=args.example,
        host=args.host,
        device=args.device,
        precision=args.precision,
        limits=Limits(
            tokens=args.max_tokens,
            beam_size=args.max_beam,
            queue=args.queue,
            timeout=args.timeout,
        ),
    )
    options = {"port": args.port, **uvicorn_options(settings.limits)}
    with _listen(args.host, args.port) as listener:
        if args.workers == 1:
            with loading(args.folder):
                app = create_app(settings)
            _announce(args.host, listener)
            SingleServer(uvicorn.Config(app, **options)).run([listener])
            return
        for folder in filter(None, (args.folder, args.compare_with)):
            load_translator(folder, args.device)  # report an error once, not from every worker
        with tempfile.TemporaryDirectory() as metrics_folder:
            threads = max(1, (os.cpu_count() or 1) // args.workers)
            values = {**dataclasses.asdict(settings), "threads": threads}
            os.environ["REGARD_SERVE"] = json.dumps(values)
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = metrics_folder
            config = uvicorn.Config(
                "regard.serving.app:from_environment",
                factory=True,
                workers=args.workers,
                timeout_worker_healthcheck=int(args.timeout) + 30,
                **options,
            )
            Workers(config, [listener], lambda: _announce(args.host, listener)).run()


def make_parser() -> Parser:
    """Return the parser of this command."""
    parser = Parser(prog="regard serve", description=__doc__)
    add_model(parser, default=pretrained_models()[0])
    add_precision(parser)
    parser.add_argument(
        "--compare-with",
        metavar="DIR",
        help="second model folder or pretrained model; the page shows both models side by side",
    )
    parser.add_argument(
        "--example", metavar="TEXT", help="text that is already translated when the page opens"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument(
        "--port", type=int, default=8000, help="port to listen on; 0 selects a free port"
    )
    parser.add_argument("--workers", type=int, default=1, help="number of worker processes")
    parser.add_argument(
        "--max-tokens", type=int, default=500, help="maximum number of tokens in a text"
    )
    parser.add_argument(
        "--max-beam", type=int, default=20, help="maximum value of beam_size and n_best"
    )
    parser.add_argument(
        "--queue",
        type=int,
        default=1024,
        help="maximum number of waiting texts; beyond it, requests receive status 503",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=30.0,
        help="seconds after which a request receives status 504",
    )
    return parser


def _check(args: Namespace) -> None:
    for name in ("workers", "max_tokens", "max_beam", "queue"):
        if args[name] < 1:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least 1, got {args[name]}")
    if args.workers > _MOST_WORKERS:
        raise ConfigError(f"--workers must be at most {_MOST_WORKERS}, got {args.workers:,}")
    from regard.setting_checks import MAX_BEAM_SIZE

    if args.max_beam > MAX_BEAM_SIZE:
        raise ConfigError(f"--max-beam must be at most {MAX_BEAM_SIZE:,}, got {args.max_beam:,}")
    if not 0 < args.timeout <= 3600:
        raise ConfigError(f"--timeout must lie in (0, 3600] seconds, got {args.timeout:g}")
    if not 0 <= args.port < 65536:
        raise ConfigError(f"--port must be between 0 and 65535, got {args.port}")


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; a second server on the same port fails before it announces itself."""
    from regard.serving.connections import BACKLOG
    from regard.serving.hosts import resolve

    family, address = resolve(host, port)
    # asyncio disables Nagle's algorithm, which delays responses by 40 ms, only for this protocol
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        reason = error.strerror or error
        raise ConfigError(
            f"cannot listen on {host}, port {port}: {reason}; choose another --host or --port"
        ) from None
    return listener


def _announce(host: str, listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    print(f"regard is running at {address} (API: {address}/docs; press Ctrl-C to stop)", flush=True)
