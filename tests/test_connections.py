"""The server against hostile clients: connections, time limits, Host headers, refusals as JSON."""

import asyncio
import contextlib
import dataclasses
import json
import logging
import re
import resource
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Generator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import uvicorn
from fastapi.testclient import TestClient

import regard
from regard.cli.main import main
from regard.cli.serve import _listen  # pyright: ignore[reportPrivateUsage]
from regard.errors import ConfigError
from regard.serving import connections
from regard.serving.app import Settings, create_app
from regard.serving.connections import (
    Connections,
    LimitedProtocol,
    connection_cap,
    limit_log_rate,
    uvicorn_options,
)
from regard.serving.hosts import HostCheck, is_loopback, resolve
from regard.serving.limits import Limits

CAP = 6
LIMITS = Limits(header_seconds=0.5, idle_seconds=1.0, send_seconds=0.3, body_seconds=20.0)
Address = tuple[str, int]
SLOW_REQUESTS = threading.Semaphore(0)
"""Counts the requests that `/slow` begins to answer."""


@contextlib.contextmanager
def _running(folder: Path, limits: Limits, cap: int) -> Generator[tuple[uvicorn.Server, Address]]:
    with pytest.MonkeyPatch.context() as patch, _listen("127.0.0.1", 0) as listener:
        patch.setattr(connections, "connection_cap", lambda: cap)
        app = create_app(Settings(folder=str(folder), limits=limits))

        @app.get("/large")
        async def large() -> str:
            return "x" * 30_000_000

        @app.get("/slow")
        async def slow() -> str:
            SLOW_REQUESTS.release()
            await asyncio.sleep(1)
            return "slow"

        @app.get("/slower")
        async def slower() -> str:
            await asyncio.sleep(2)
            return "slower"

        server = uvicorn.Server(uvicorn.Config(app, **uvicorn_options(limits)))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield server, listener.getsockname()
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="module")
def running(folders: list[Path]) -> Iterator[tuple[uvicorn.Server, Address]]:
    with _running(folders[0], LIMITS, CAP) as running:
        yield running


@pytest.fixture
def address(running: tuple[uvicorn.Server, Address]) -> Address:
    return running[1]


def test_a_pipelined_request_is_answered_after_a_response_that_is_read_slowly(
    address: Address,
) -> None:
    get = "GET {} HTTP/1.1\r\nHost: localhost\r\n{}\r\n"
    sent = get.format("/large", "") + get.format("/slower", "Connection: close\r\n")
    with socket.create_connection(address, timeout=20) as connection:
        connection.sendall(sent.encode())
        received = b""
        while chunk := connection.recv(1 << 20):
            received += chunk
    assert received.endswith(b'"slower"')


def _exchange(address: Address, sent: bytes) -> tuple[int, dict[str, str]]:
    """Return the status and the JSON body of what the server says to these bytes."""
    with socket.create_connection(address, timeout=20) as connection:
        connection.sendall(sent)
        response = b""
        while chunk := connection.recv(65536):
            response += chunk
    head, _, body = response.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head.lower(), response[:500]
    return int(head.split()[1]), json.loads(body)


def _healthy(address: Address) -> bool:
    with urllib.request.urlopen("http://{}:{}/health".format(*address), timeout=20) as response:
        return json.load(response) == {"status": "ok"}


def _request(line: str, *headers: str) -> bytes:
    return "\r\n".join([f"{line} HTTP/1.1", *headers, "Connection: close", "", ""]).encode()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"\xff\xff nonsense\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\n\r\n", 400),  # no Host header
        (_request("GET /health", "Host: 127.0.0.1", "Host: 127.0.0.1"), 400),
        (_request("GET /health", "Host: elsewhere.example"), 400),
        (_request("GET /nothing", "Host: localhost"), 404),
        (_request("GET /page/nothing", "Host: localhost"), 404),
        (_request("POST /page/style.css", "Host: localhost"), 405),
        (_request("DELETE /health", "Host: localhost"), 405),
        (b"GET /health HTTP/1.1\r\nHost: local", 408),
        (_request("GET /health", "Host: localhost", "A: " + "a" * 600_000), 431),
        (_request("POST /api/translate", "Host: localhost", "Transfer-Encoding: other"), 501),
        (
            b"POST /api/translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /health HTTP/1.1\r\n\r\n",
            400,
        ),
    ],
    ids=[
        "no HTTP",
        "no host",
        "two hosts",
        "other host",
        "path",
        "page",
        "method of a file",
        "method",
        "slow headers",
        "long headers",
        "transfer encoding",
        "two lengths",
    ],
)
def test_every_refusal_is_json(address: Address, sent: bytes, status: int) -> None:
    answered, body = _exchange(address, sent)
    assert answered == status
    assert list(body) == ["error"]
    assert body["error"]
    assert "\n" not in body["error"]
    assert _healthy(address)


def test_an_invalid_chunk_after_the_headers_is_refused(address: Address) -> None:
    start = b"POST /api/translate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert _exchange(address, start + b"zz\r\n")[0] == 400


def test_a_refused_head_request_gets_no_body(address: Address) -> None:
    start = b"HEAD / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    with socket.create_connection(address) as connection:
        connection.sendall(start + b"zz\r\n")
        received = b"".join(iter(lambda: connection.recv(1000), b""))
    assert received.startswith(b"HTTP/1.1 400 ")
    assert received.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"GET /health HTTP/1.1\r\nA: b",
        b"POST /api/translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
    ids=["idle", "slow headers", "slow body", "keep-alive"],
)
def test_connections_above_the_cap_replace_the_longest_waiting(
    address: Address, first: bytes
) -> None:
    with contextlib.ExitStack() as stack:
        hostile = [stack.enter_context(socket.create_connection(address)) for _ in range(CAP)]
        for connection in hostile:
            connection.sendall(first)
            if first.endswith(
                b"\r\n\r\n"
            ):  # a complete request: the connection waits for the next one
                assert connection.recv(1000)
        assert all(_healthy(address) for _ in range(3 * CAP))


def test_connections_that_do_not_read_their_answers_are_replaced_after_idle_ones(
    folders: list[Path],
) -> None:
    limits = dataclasses.replace(LIMITS, send_seconds=20.0, header_seconds=20.0)
    with _running(folders[0], limits, CAP) as (_, address), contextlib.ExitStack() as stack:
        hostile = [stack.enter_context(socket.create_connection(address)) for _ in range(CAP)]
        for connection in hostile:
            connection.sendall(9 * _request("GET /large", "Host: localhost"))
            assert connection.recv(1)
        assert all(_healthy(address) for _ in range(CAP // 2))
        connection = hostile[-1]  # whose slot nobody needed
        for _ in range(2 * CAP):
            stack.enter_context(socket.create_connection(address))
        assert _healthy(address)
        received = 0
        while received < 30_000_000:
            part = connection.recv(1 << 20)
            assert part
            received += len(part)


def test_a_request_that_is_being_answered_keeps_its_connection(address: Address) -> None:
    while SLOW_REQUESTS.acquire(blocking=False):  # those of other tests
        pass
    with contextlib.ExitStack() as stack:
        busy = [stack.enter_context(socket.create_connection(address)) for _ in range(CAP)]
        for connection in busy:
            connection.sendall(_request("GET /slow", "Host: localhost"))
        assert all(SLOW_REQUESTS.acquire(timeout=20) for _ in busy)
        assert _exchange(address, b"") == (
            503,
            {"error": "too many connections; try again in a second"},
        )
        for connection in busy:
            assert b"200 OK" in connection.recv(1000)


def test_complete_requests_above_the_cap_are_answered_or_refused(
    running: tuple[uvicorn.Server, Address],
) -> None:
    server, address = running
    arrived = threading.Event()
    with contextlib.ExitStack() as stack:
        # the server accepts nothing before all requests have arrived
        server.servers[0].get_loop().call_soon_threadsafe(arrived.wait)
        stack.callback(arrived.set)
        clients = [stack.enter_context(socket.create_connection(address)) for _ in range(5 * CAP)]
        for client in clients:
            client.sendall(_request("GET /slow", "Host: localhost"))
        arrived.set()
        answers = [b"".join(iter(lambda c=client: c.recv(65536), b"")) for client in clients]
    statuses = [answer.split()[1] for answer in answers]
    assert statuses.count(b"200") >= CAP
    assert set(statuses) <= {b"200", b"503"}
    assert all(b'{"error":' in answer for answer in answers if b" 503 " in answer)


def test_a_silent_connection_above_the_cap_is_refused_while_all_others_are_answered() -> None:
    pool = Connections(LIMITS, cap=1)
    busy, silent, other = (cast("LimitedProtocol", object()) for _ in range(3))
    assert pool.add(busy)
    assert pool.add(silent)  # the first may turn out to wait
    pool.answer(busy)
    assert pool.settle(busy)
    assert not pool.settle(silent)
    pool.remove(busy)
    assert pool.add(other)


@pytest.mark.parametrize("first", [b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"])
def test_an_idle_connection_is_closed(address: Address, first: bytes) -> None:
    with socket.create_connection(address, timeout=20) as connection:
        connection.sendall(first)
        with contextlib.suppress(ConnectionResetError):
            while connection.recv(1000):
                pass


def test_a_client_that_does_not_read_is_disconnected(
    running: tuple[uvicorn.Server, Address],
) -> None:
    server, address = running
    with socket.create_connection(address) as connection:
        connection.sendall(_request("GET /large", "Host: localhost"))
        while not server.server_state.connections:
            time.sleep(0.01)
        deadline = time.monotonic() + 20
        while server.server_state.connections and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not server.server_state.connections
    with urllib.request.urlopen("http://{}:{}/large".format(*address)) as response:
        assert len(response.read()) > 30_000_000


def test_a_client_that_reads_slowly_gets_the_whole_answer(address: Address) -> None:
    with socket.create_connection(address, timeout=20) as connection:
        connection.sendall(_request("GET /large", "Host: localhost", "Connection: close"))
        started, received = time.monotonic(), 0
        while part := connection.recv(1 << 20):
            received += len(part)
            # steadily, over twice the time that a connection may be idle
            time.sleep(max(0, started + received / 1e7 - time.monotonic()))
    assert received > 30_000_000


@pytest.mark.slow
def test_idle_connections_beyond_the_descriptors_do_not_stop_the_server(
    folders: list[Path],
) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "regard.cli.main", "serve", str(folders[0]), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard)),
    )
    assert process.stdout is not None
    found = re.search(r"127\.0\.0\.1:(\d+)", process.stdout.readline())
    assert found
    address = "127.0.0.1", int(found[1])
    try:
        with contextlib.ExitStack() as stack:
            for _ in range(400):
                stack.enter_context(socket.create_connection(address))
            assert all(_healthy(address) for _ in range(20))
    finally:
        process.terminate()
        _, log = process.communicate()
    assert log.count("\n") <= 2
    assert "those that have waited longest are closed" in log


def test_messages_are_logged_at_a_bounded_rate(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(connections, "time", SimpleNamespace(monotonic=lambda: now))
    limit_log_rate()
    logger = logging.getLogger("asyncio")
    filters = [entry for entry in logger.filters if type(entry).__name__ == "_RateLimit"]
    assert len(filters) == 1
    for _ in range(2000):
        logger.error("socket.accept() out of system resource\nsocket: %d", 1)
        logger.error("another error")
    now += 11
    logger.error("socket.accept() out of system resource\nsocket: %d", 2)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 3
    assert messages[-1].endswith("(1999 more since the last message)")


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "LOCALHOST", "localhost.", "127.1", "::1", "::ffff:127.0.0.1"],
)
def test_every_spelling_of_this_machine_has_its_hosts_checked(
    folders: list[Path], host: str
) -> None:
    try:
        resolve(host, 0)
    except ConfigError:
        if ":" not in host and not host.endswith("."):
            raise
        pytest.skip("this machine does not know the address")
    assert is_loopback(host)
    app = create_app(Settings(folder=str(folders[0]), host=host))
    assert any(entry.cls is HostCheck for entry in app.user_middleware)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_all_interfaces_accept_any_host(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        ("localhost", True),
        ("LocalHost:8000", True),
        ("localhost.:80", True),
        ("127.0.0.1", True),
        ("127.0.0.2:1", True),
        ("[::1]:8000", True),
        ("machine:80", True),
        ("elsewhere.example", False),
        ("localhost.elsewhere.example", False),
        ("elsewhere.example:80", False),
        ("127.0.0.1.elsewhere.example", False),
        ("localhost@elsewhere.example", False),
        ("192.168.0.1", False),
        ("[::2]", False),
        ("::1", False),
        ("", False),
    ],
)
def test_host_headers(folders: list[Path], header: str, accepted: bool) -> None:
    async def app(scope: object, receive: object, send: object) -> None:
        reached.append(True)

    async def receive() -> dict[str, object]:
        return {}

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    reached: list[bool] = []
    sent: list[dict[str, object]] = []
    scope = {"type": "http", "headers": [(b"host", header.encode())]}
    check = HostCheck(app, "Machine")  # type: ignore[arg-type]
    asyncio.run(check(scope, receive, send))  # type: ignore[arg-type]
    assert bool(reached) == accepted
    assert [message.get("status") for message in sent[:1]] == ([] if accepted else [400])


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("", "0.0.0.0"),
        ("0", "every interface"),
        ("a" * 70, "not a valid host name"),
        ("a b", "cannot listen"),
    ],
)
def test_an_invalid_host_prints_one_line(
    folders: list[Path], host: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", str(folders[0]), "--host", host, "--port", "0"]) == 1
    errors = capsys.readouterr().err
    assert said in errors
    assert errors.count("\n") == 1


def test_nagles_algorithm_does_not_delay_responses() -> None:
    with _listen("127.0.0.1", 0) as listener:
        # the condition under which asyncio sets TCP_NODELAY
        assert listener.proto == socket.IPPROTO_TCP


def test_a_second_server_on_a_port_fails_before_it_loads_a_model() -> None:
    with _listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        socket.create_connection(("127.0.0.1", port)).close()
        with pytest.raises(ConfigError, match=r"cannot listen on .*: Address already in use"):
            _listen("127.0.0.1", port)


def test_a_full_queue_is_alive_but_not_ready(folders: list[Path]) -> None:
    for limits, status in ((Limits(), 200), (Limits(queue=0), 503)):
        app = create_app(Settings(folder=str(folders[0]), limits=limits))
        with TestClient(app, base_url="http://localhost") as client:
            response = client.get("/ready")
            assert response.status_code == status
            assert client.get("/health").json() == {"status": "ok"}
    assert response.json() == {"error": "the queue is full; try again in a second"}


@pytest.mark.parametrize("model", [0, 1], ids=["recurrent", "transformer"])
def test_an_impossible_layer_or_head_is_refused(folders: list[Path], model: int) -> None:
    app = create_app(Settings(folder=str(folders[model])))
    with TestClient(app, base_url="http://localhost") as client:
        body = {"text": "a b", "target": "b", "step": 0}
        assert client.post("/api/explain", json=body).status_code == 200
        for wrong in ({"layer": 9}, {"head": 9}, {"layer": 10**30}, {"layer": 0, "head": 2}):
            response = client.post("/api/explain", json={**body, **wrong})
            assert response.status_code == 422
            assert "there is no layer" in response.json()["error"]
        for wrong in ([[9, 0]], [[0, 9]], [[10**30, 0]]):
            body = {"text": "a b", "target": "b", "ablate_heads": wrong}
            response = client.post("/api/self-attention", json=body)
            assert response.status_code == 422
            assert "there is no head" in response.json()["error"]


@pytest.mark.parametrize("option", ["--beam-size", "--n-best"])
def test_a_huge_beam_is_refused(
    folders: list[Path], tmp_path: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = option.removeprefix("--").replace("-", "_")
    said = f"{name} must be at most 1,000, got 999,999,999"
    translator = regard.Translator.load(folders[0], "cpu")
    for texts in ("a b", "", ["a", "b"]):
        with pytest.raises(ConfigError, match=said):
            translator.translate(texts, **{name: 999_999_999})
    text = tmp_path / "text"
    text.write_text("a b\n", encoding="utf-8")
    assert main(["translate", str(folders[0]), str(text), option, "999999999"]) == 1
    assert said in capsys.readouterr().err


def test_a_large_beam_gives_the_best_outputs_in_small_batches(folders: list[Path]) -> None:
    translator = regard.Translator.load(folders[0], "cpu")
    texts = ["a b", "c", "d a", "b b"]
    outputs = translator.translate(texts, 200, 3, batch_tokens=40)
    for text, best in zip(texts, outputs, strict=True):
        alone = translator.translate([text], 200, 3)[0]
        assert [output.tokens for output in best] == [output.tokens for output in alone]


def test_the_cap_leaves_descriptors_free() -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert 8 <= connection_cap() < limit or limit == resource.RLIM_INFINITY
    assert Connections(Limits(), 3).cap == 3
