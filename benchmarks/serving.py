"""Load test of the server: throughput with one and many clients, checked responses, errors.

    python -P benchmarks/serving.py MODEL SOURCES [--clients 64] [--seconds 120]

SOURCES is a TSV file (plain or .gz) whose first column is translated. The expected outputs come
from `regard translate` on the same lines. All traffic stays on the loopback interface.
"""

import argparse
import asyncio
import itertools
import json
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import date

import torch

from regard.lines import read_lines

REGARD = [sys.executable, "-m", "regard.cli.main"]
ONE_CLIENT_SECONDS = 30


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("sources")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--distinct", type=int, default=2000, help="number of distinct sources")
    args = parser.parse_args()
    sources = list(dict.fromkeys(line.split("\t")[0] for line in read_lines(args.sources)))
    texts = random.Random(1).sample(sources, min(args.distinct, len(sources)))
    reference = subprocess.run(
        [*REGARD, "translate", args.model],
        input="\n".join(texts) + "\n",
        capture_output=True,
        text=True,
        check=True,
    )
    expected = dict(zip(texts, reference.stdout.splitlines(), strict=True))
    server = subprocess.Popen(
        [*REGARD, "serve", args.model, "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    address = re.search(r"http://([\d.]+):(\d+)", server.stdout.readline())
    assert address is not None
    try:
        asyncio.run(measure(address[1], int(address[2]), expected, args.clients, args.seconds))
    finally:
        server.terminate()
        server.wait(timeout=60)


async def measure(
    host: str, port: int, expected: dict[str, str], clients: int, seconds: float
) -> None:
    print(
        f"{date.today()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"torch {torch.__version__}, {torch.get_num_threads()} threads; beam 5, with attention"
    )
    await load(host, port, expected, 1, 3)
    single_client = await load(host, port, expected, 1, ONE_CLIENT_SECONDS)
    all_clients = await load(host, port, expected, clients, seconds)
    print("| clients | seconds | responses | wrong | errors | responses/s | p50, ms | p99, ms |")
    print("|---|---|---|---|---|---|---|---|")
    for count, length, row in (
        (1, ONE_CLIENT_SECONDS, single_client),
        (clients, seconds, all_clients),
    ):
        print(f"| {count} | {length:g} | {row}")
    print(f"throughput of {clients} clients over one: {all_clients.rate / single_client.rate:.1f}x")
    await invalid_requests(host, port)


class Load:
    """Latencies and errors of concurrent clients."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.times: list[float] = []
        self.wrong = 0
        self.errors: Counter[str] = Counter()

    @property
    def rate(self) -> float:
        return len(self.times) / self.seconds

    def __str__(self) -> str:
        percentiles = statistics.quantiles(self.times, n=100)
        return (
            f"{len(self.times):,} | {self.wrong} | {self.errors.total()} {dict(self.errors) or ''}| "
            f"{self.rate:.1f} | {1000 * percentiles[49]:.0f} | {1000 * percentiles[98]:.0f} |"
        )


async def load(
    host: str, port: int, expected: dict[str, str], clients: int, seconds: float
) -> Load:
    """Run clients that each send the next request as soon as the response arrives."""
    result = Load(seconds)
    until = time.perf_counter() + seconds

    async def client(texts: Iterator[str]) -> None:
        reader, writer = await asyncio.open_connection(host, port)
        while time.perf_counter() < until:
            text = next(texts)
            started = time.perf_counter()
            status, body = await post(reader, writer, json.dumps({"text": text}).encode())
            if status != 200:
                result.errors[str(status)] += 1
                continue
            result.times.append(time.perf_counter() - started)
            result.wrong += json.loads(body)["translations"][0]["text"] != expected[text]
        writer.close()

    shuffled = [random.Random(n).sample(list(expected), len(expected)) for n in range(clients)]
    await asyncio.gather(*(client(itertools.cycle(texts)) for texts in shuffled))
    return result


async def post(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes
) -> tuple[int, bytes]:
    writer.write(
        b"POST /api/translate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    await writer.drain()
    return await read_response(reader)


async def read_response(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    assert length is not None
    return int(head.split()[1]), await reader.readexactly(int(length[1]))


async def invalid_requests(host: str, port: int) -> None:
    """Print the responses to invalid requests, and to a valid request afterwards."""
    bodies = {
        "10 MB": b"x" * 10_000_000,
        "bad JSON": b'{"text": ',
        "100,000 brackets": b"[" * 100_000,
        "invalid UTF-8": b'{"text": "\xff\xfe"}',
        "a text of 100,000 letters": json.dumps({"text": "a" * 100_000}).encode(),
        "beam 1000": b'{"text": "a", "beam_size": 1000}',
    }
    for name, body in bodies.items():
        reader, writer = await asyncio.open_connection(host, port)
        print(f"{name}: {await post(reader, writer, body)}")
        writer.close()
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(
        b"POST /api/translate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Content-Length: 100\r\n\r\n"
    )
    response = asyncio.create_task(read_response(reader))
    while not response.done():  # one byte per second
        writer.write(b" ")
        await asyncio.sleep(1)
    print(f"a body of one byte per second: {response.result()}")
    writer.close()
    for _ in range(50):  # clients that disconnect
        _, writer = await asyncio.open_connection(host, port)
        body = b'{"text": "gone"}'
        writer.write(
            b"POST /api/translate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        writer.transport.abort()
    reader, writer = await asyncio.open_connection(host, port)
    status, _ = await post(reader, writer, b'{"text": "alive"}')
    print(f"afterwards: {status}")
    writer.close()


if __name__ == "__main__":
    main()
