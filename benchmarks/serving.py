"""The server under load: many clients against one, every answer checked, and what it refuses.

    python -P benchmarks/serving.py MODEL SOURCES [--clients 64] [--seconds 120]

SOURCES is a TSV file whose first column is translated (.gz is read). The right answers come from
`regard translate` on the same lines. All traffic stays on the loopback interface.
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

from regard.files import read_lines

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
    parser.add_argument("--distinct", type=int, default=2000, help="sources that are asked for")
    given = parser.parse_args()
    sources = list(dict.fromkeys(line.split("\t")[0] for line in read_lines(given.sources)))
    texts = random.Random(1).sample(sources, min(given.distinct, len(sources)))
    done = subprocess.run(
        [*REGARD, "translate", given.model],
        input="\n".join(texts) + "\n",
        capture_output=True,
        text=True,
        check=True,
    )
    right = dict(zip(texts, done.stdout.splitlines(), strict=True))
    server = subprocess.Popen(
        [*REGARD, "serve", given.model, "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    found = re.search(r"http://([\d.]+):(\d+)", server.stdout.readline())
    assert found is not None
    try:
        asyncio.run(measure(found[1], int(found[2]), right, given.clients, given.seconds))
    finally:
        server.terminate()
        server.wait(timeout=60)


async def measure(
    host: str, port: int, right: dict[str, str], clients: int, seconds: float
) -> None:
    print(
        f"{date.today()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"torch {torch.__version__}, {torch.get_num_threads()} threads; beam 5, with attention"
    )
    await load(host, port, right, 1, 3)
    alone = await load(host, port, right, 1, ONE_CLIENT_SECONDS)
    many = await load(host, port, right, clients, seconds)
    print("| clients | seconds | answers | wrong | errors | answers/s | p50, ms | p99, ms |")
    print("|---|---|---|---|---|---|---|---|")
    for count, length, row in ((1, ONE_CLIENT_SECONDS, alone), (clients, seconds, many)):
        print(f"| {count} | {length:g} | {row}")
    print(f"throughput of {clients} clients over one: {many.rate / alone.rate:.1f}x")
    await refusals(host, port)


class Load:
    """What some clients met."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.times: list[float] = []
        self.wrong = 0
        self.errors: Counter[str] = Counter()

    @property
    def rate(self) -> float:
        return len(self.times) / self.seconds

    def __str__(self) -> str:
        cuts = statistics.quantiles(self.times, n=100)
        return (
            f"{len(self.times):,} | {self.wrong} | {self.errors.total()} {dict(self.errors) or ''}| "
            f"{self.rate:.1f} | {1000 * cuts[49]:.0f} | {1000 * cuts[98]:.0f} |"
        )


async def load(host: str, port: int, right: dict[str, str], clients: int, seconds: float) -> Load:
    """So many clients, each asking again as soon as it is answered."""
    found = Load(seconds)
    until = time.perf_counter() + seconds

    async def client(texts: Iterator[str]) -> None:
        reader, writer = await asyncio.open_connection(host, port)
        while time.perf_counter() < until:
            text = next(texts)
            started = time.perf_counter()
            status, answer = await ask(reader, writer, json.dumps({"text": text}).encode())
            if status != 200:
                found.errors[str(status)] += 1
                continue
            found.times.append(time.perf_counter() - started)
            found.wrong += json.loads(answer)["translations"][0]["text"] != right[text]
        writer.close()

    shuffled = [random.Random(n).sample(list(right), len(right)) for n in range(clients)]
    await asyncio.gather(*(client(itertools.cycle(texts)) for texts in shuffled))
    return found


async def ask(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes
) -> tuple[int, bytes]:
    writer.write(
        b"POST /api/translate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    await writer.drain()
    return await answered(reader)


async def answered(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    assert length is not None
    return int(head.split()[1]), await reader.readexactly(int(length[1]))


async def refusals(host: str, port: int) -> None:
    """What hostile clients get, and that the server is there afterwards."""
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
        print(f"{name}: {await ask(reader, writer, body)}")
        writer.close()
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(
        b"POST /api/translate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        b"Content-Length: 100\r\n\r\n"
    )
    with_body = asyncio.create_task(answered(reader))
    while not with_body.done():  # a byte a second
        writer.write(b" ")
        await asyncio.sleep(1)
    print(f"a body of a byte a second: {with_body.result()}")
    writer.close()
    for _ in range(50):  # clients that ask and go
        _, writer = await asyncio.open_connection(host, port)
        body = b'{"text": "gone"}'
        writer.write(
            b"POST /api/translate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        writer.transport.abort()
    reader, writer = await asyncio.open_connection(host, port)
    status, _ = await ask(reader, writer, b'{"text": "alive"}')
    print(f"afterwards: {status}")
    writer.close()


if __name__ == "__main__":
    main()
