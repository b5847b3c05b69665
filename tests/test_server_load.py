"""The server under load: every answer is the translator's own, beside hostile clients.

`make soak` sends 100,000 requests of 64 clients; REGARD_LOAD_ANSWERS sets another number. Run it
alone for the latencies that docs/reliability.md states: clients and server share the processors.
"""

import asyncio
import contextlib
import itertools
import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import regard
from regard.cli.main import main

ANSWERS = int(os.environ.get("REGARD_LOAD_ANSWERS", "100000"))
CLIENTS = 64
DESCRIPTORS = 512
HEALTH_SECONDS = 0.05
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

PROBE = """
import socket, sys, time
host, port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
request = b"GET /health HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n"
while True:
    start = time.perf_counter()
    with socket.create_connection((host, port)) as connection:
        connection.sendall(request)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.endswith(b'{"status":"ok"}'), answer
    print(time.perf_counter() - start, flush=True)
    time.sleep(seconds)
"""
"""Measures /health in a process of its own, on a new connection each time."""


@dataclass
class Load:
    """The server's address, what the clients send and expect, and what they counted."""

    port: int
    pid: int
    requests: Iterator[tuple[bytes, str]]
    answers: int = 0
    reconnections: int = 0
    hostile: int = 0
    wrong: list[str] = field(default_factory=list[str])
    memory: list[int] = field(default_factory=list[int])

    def connect(self) -> Awaitable[Streams]:
        return asyncio.open_connection("127.0.0.1", self.port)

    def resident(self) -> int:
        """Return the resident memory of the server in MiB."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        (kilobytes,) = re.findall(r"VmRSS:\s+(\d+) kB", status)
        return int(kilobytes) >> 10


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of the demo."""
    out = tmp_path_factory.mktemp("demo") / "demo"
    assert main(["demo", "--out", str(out)]) == 0
    return out / "model"


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[tuple[int, int]]:
    """Run the server with few descriptors; yield its port and process."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "regard.cli.main", "serve", str(folder), "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, hard)),
    )
    try:
        assert process.stdout is not None
        found = re.search(r"127\.0\.0\.1:(\d+)", process.stdout.readline())
        assert found
        yield int(found[1]), process.pid
    finally:
        process.terminate()
        process.communicate()


@contextlib.contextmanager
def probing(port: int) -> Iterator[list[float]]:
    """Measure /health; the list holds the latencies in seconds when the block has ended."""
    latencies: list[float] = []
    process = subprocess.Popen(
        [sys.executable, "-c", PROBE, "127.0.0.1", str(port), str(HEALTH_SECONDS)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield latencies
        assert process.poll() is None, process.communicate()[1]
    finally:
        process.terminate()
        lines = process.communicate()[0].splitlines()
        latencies += map(float, lines)


def make_requests(folder: Path) -> Iterator[tuple[bytes, str]]:
    """Yield requests with the translator's own outputs, for greedy and beam search in turn."""
    lines = (folder.parent / "data" / "test.tsv").read_text("utf-8").splitlines()
    texts = [line.split("\t")[0] for line in lines][:500]
    translator = regard.Translator.load(folder)
    requests: list[tuple[bytes, str]] = []
    for beam_size in (1, 5):
        outputs = translator.translate(texts, beam_size=beam_size)
        for text, output in zip(texts, outputs, strict=True):
            content = {"text": text, "beam_size": beam_size, "attention": False}
            body = json.dumps(content).encode()
            head = (
                "POST /api/translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
                f"\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            requests.append((head.encode() + body, output.text))
    # nine of ten with greedy search
    return itertools.cycle(requests[: len(texts)] * 9 + requests[len(texts) :])


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Return the status and the body of the next response; b"" if the connection was closed."""
    head = await reader.readuntil(b"\r\n\r\n")
    (length,) = re.findall(rb"content-length: (\d+)", head)
    return int(head.split()[1]), await reader.readexactly(int(length))


async def client(load: Load, total: int) -> None:
    """Send requests and compare their answers, on one connection as long as it stays open."""
    streams: Streams | None = None
    while load.answers < total:
        load.answers += 1
        if load.answers % (total // 20) == 0:
            load.memory.append(load.resident())
        request, expected = next(load.requests)
        while True:
            fresh = streams is None
            reader, writer = streams = streams or await load.connect()
            try:
                writer.write(request)
                status, body = await read_answer(reader)
                break
            except (ConnectionError, asyncio.IncompleteReadError):
                # the server may close a connection that waits, also while a request is on its way
                writer.close()
                streams, load.reconnections = None, load.reconnections + 1
                assert not fresh, "a new connection was closed without an answer"
        if status != 200 or json.loads(body)["translations"][0]["text"] != expected:
            load.wrong.append(f"{status} {body!r}, expected {expected!r}")
    if streams is not None:
        streams[1].close()


async def repeatedly(load: Load, act: Callable[[Streams], Awaitable[object]]) -> None:
    """Connect and act again and again, whatever the server does."""
    while True:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            streams = await load.connect()
            load.hostile += 1
            with contextlib.closing(streams[1]):
                await act(streams)


async def send_slowly(start: bytes, streams: Streams) -> None:
    """Send the start of a request, then a byte twice a second."""
    reader, writer = streams
    writer.write(start)
    while not reader.at_eof():
        writer.write(b"a")
        await writer.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.5):
                await reader.read(1000)


async def send_malformed(streams: Streams) -> None:
    """Send what is no request, and read the refusal."""
    streams[1].write(b"\xff\xfe nonsense\r\n\r\n")
    await streams[0].read()


async def send_nothing(streams: Streams) -> None:
    """Wait until the server closes the connection, and a second more."""
    try:
        await streams[0].read()
    finally:
        await asyncio.sleep(1)


SLOW_HEADERS = b"POST /api/translate HTTP/1.1\r\nHost: localhost\r\nA: "
SLOW_BODY = b"POST /api/translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{"


@contextlib.asynccontextmanager
async def attacking(load: Load) -> AsyncIterator[None]:
    """Run the hostile clients: more idle connections than the server has descriptors."""
    kinds: list[tuple[int, Callable[[Streams], Awaitable[object]]]] = [
        (16, lambda streams: send_slowly(SLOW_HEADERS, streams)),
        (16, lambda streams: send_slowly(SLOW_BODY, streams)),
        (DESCRIPTORS + 100, send_nothing),
        (4, send_malformed),
    ]
    tasks = [
        asyncio.create_task(repeatedly(load, act)) for count, act in kinds for _ in range(count)
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def run_load(load: Load, total: int) -> None:
    """Send all requests beside the hostile clients."""
    async with attacking(load):
        await asyncio.gather(*(client(load, total) for _ in range(CLIENTS)))


@pytest.mark.soak
def test_every_answer_is_the_translators_beside_hostile_clients(folder: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(4096, hard)), hard))
    requests = make_requests(folder)
    with serving(folder) as (port, pid), probing(port) as latencies:
        load = Load(port, pid, requests)
        asyncio.run(run_load(load, ANSWERS))
    latencies.sort()
    median, p99 = (latencies[int(share * len(latencies))] for share in (0.5, 0.99))
    sys.stdout.write(
        f"{load.answers:,} answers, {len(load.wrong)} wrong, {load.reconnections:,} reconnections, "
        f"{load.hostile:,} hostile connections; /health {len(latencies):,} times: median "
        f"{1000 * median:.0f} ms, p99 {1000 * p99:.0f} ms, longest {1000 * latencies[-1]:.0f} ms; "
        f"memory {load.memory} MiB\n"
    )
    assert not load.wrong, load.wrong[:3]
    assert p99 < 0.25
    settled = load.memory[len(load.memory) // 5 :]
    assert max(settled) <= 1.05 * settled[0]
