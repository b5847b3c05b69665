"""Additive attention, whole (projections, scores, softmax, average), side by side with other ways.

    python benchmarks/operator.py [--threads 2] [--rounds 15] [--chart operator.svg]

One process times all ways round after round, in an order that changes, and prints medians, and those
of the ratios to regard in the same round; a fresh process each measures peak memory. Nothing is
printed unless the tests of the kernels pass. Keras, JAX and KeOps take part where they are installed.
THP_MEM_ALLOC_ENABLE=1 turns huge pages on.
"""

import sys

# this file's name is that of a standard module, which must not be looked for beside it
sys.path = [path for path in sys.path if not path.endswith("benchmarks")]

import argparse
import gc
import importlib.util
import json
import math
import os
import platform
import random
import re
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import regard

SIZES = [
    (64, 1, 40, 512), (32, 32, 32, 256), (8, 128, 128, 256), (1, 1024, 1024, 256),
    (1, 8192, 8192, 256),
]  # fmt: skip
ROOM = 12e9
"""Bytes that a way may take; where it needs more, the table says how much."""
TESTS = [f"tests/test_{name}.py" for name in ("simd", "kernels", "cpu_kernels", "attention")]


class Concat(nn.Module):
    """The textbook form: v . tanh(W [s; h]) over every pair, repeated and concatenated."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden, self.vector = nn.Linear(2 * width, width), nn.Linear(width, 1, bias=False)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        length, keys = query.shape[1], key.shape[1]
        both = torch.cat([query.repeat_interleave(keys, 1), key.repeat(1, length, 1)], -1)
        scores = self.vector(torch.tanh(self.hidden(both))).view(-1, length, keys)
        return torch.softmax(scores, -1) @ key


class Broadcast(nn.Module):
    """v . tanh(W s + U h) on a broadcast of B x L x T x D."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.vector = nn.Parameter(torch.randn(width) / math.sqrt(width))

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        pairs = torch.tanh(self.query(query)[:, :, None] + self.key(key)[:, None])
        return torch.softmax(pairs @ self.vector, -1) @ key


class DotProduct(nn.Module):
    """The floor: PyTorch's own dot-product operator with the same projections and values."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key = (nn.Linear(width, width, bias=False) for _ in range(2))

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        rows = self.query(query)[:, None], self.key(key)[:, None], key[:, None]
        return functional.scaled_dot_product_attention(*rows)[:, 0]


class Streamed(nn.Module):
    """KeOps: the pairs are made and summed up in one loop, compiled for the formula.

    It knows no tanh: 1 - 2 / (1 + e^2x) stands for it.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.vector = nn.Parameter(torch.randn(width) / math.sqrt(width))

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        from pykeops.torch import LazyTensor

        a, b = LazyTensor(self.query(query)[:, :, None]), LazyTensor(self.key(key)[:, None])
        scores = (
            LazyTensor(self.vector[None, None, None]) * (1 - 2 / (1 + (2 * (a + b)).exp()))
        ).sum(-1)
        return scores.sumsoftmaxweight(LazyTensor(key[:, None].contiguous()), axis=2)


class Ours(nn.Module):
    """regard.Attention with the additive score."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = regard.Attention(regard.Additive(width, width, width))

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return self.attention(query, key).context


WAYS: dict[str, Callable[[int], Any]] = {
    "regard": Ours,
    "dot product (SDPA)": DotProduct,
    "torch.compile of the broadcast": lambda width: torch.compile(Broadcast(width), dynamic=False),
    "eager broadcast": Broadcast,
    "eager concat": Concat,
}
LONGEST = {"KeOps": 3e8}
"""Pairs times features from which on a way takes minutes for a call."""
PAIRWISE = {  # live B x L x T x D tensors, forward and backward
    "torch.compile of the broadcast": 2, "eager broadcast": 3, "eager concat": 5,
}  # fmt: skip


def step(way: str, sizes: tuple[int, ...], backward: bool) -> Callable[[], None]:
    """One call of a way, forward or forward and backward."""
    batch, length, keys, width = sizes
    torch.manual_seed(0)
    query, key = torch.randn(batch, length, width), torch.randn(batch, keys, width)
    if way.startswith("Keras") or way == "jax.jit":
        return foreign_step(way, query, key, backward)
    module = WAYS[way](width)

    def call() -> None:
        if not backward:
            with torch.no_grad():
                module(query, key)
            return
        query.requires_grad_().grad = key.requires_grad_().grad = None
        module.zero_grad()
        module(query, key).sum().backward()

    return call


def foreign_step(way: str, query: Tensor, key: Tensor, backward: bool) -> Callable[[], None]:
    """Keras' layer (it has no projections: they are added) or the broadcast in jax.jit."""
    import jax

    numpy = jax.numpy
    width = query.shape[-1]
    rows = numpy.asarray(query.numpy()), numpy.asarray(key.numpy())
    weights = [numpy.asarray(torch.randn(width, width).numpy()) / width**0.5 for _ in range(2)]
    if way == "jax.jit":
        weights.append(numpy.asarray(torch.randn(width).numpy()) / width**0.5)

        def forward(weights: Any, query: Any, key: Any) -> Any:
            pairs = numpy.tanh((query @ weights[0])[:, :, None] + (key @ weights[1])[:, None])
            return jax.nn.softmax(pairs @ weights[2], -1) @ key
    else:
        os.environ["KERAS_BACKEND"] = "jax"
        import keras

        layer = keras.layers.AdditiveAttention()
        layer.build([query.shape, key.shape, key.shape])
        weights.append(layer.trainable_variables[0].value)

        def forward(weights: Any, query: Any, key: Any) -> Any:
            inputs = [query @ weights[0], key, key @ weights[1]]
            return layer.stateless_call([weights[2]], [], inputs)[0]

    if backward:
        total = jax.value_and_grad(lambda *given: forward(*given).sum(), argnums=(0, 1, 2))
        compiled = jax.jit(total)
    else:
        compiled = jax.jit(forward)

    def call() -> None:
        jax.block_until_ready(compiled(weights, *rows))

    return call


def fits(way: str, sizes: tuple[int, ...]) -> float:
    """Bytes of pairs that a way would take."""
    return 4.0 * math.prod(sizes) * PAIRWISE.get(way, 4 if way not in WAYS else 0)


def left_out(way: str, sizes: tuple[int, ...]) -> str:
    """Why a way is not run at a size; nothing where it is."""
    if fits(way, sizes) > ROOM:
        return f"needs {fits(way, sizes) / 1e9:.0f} GB"
    return "takes minutes" if math.prod(sizes) > LONGEST.get(way, math.inf) else ""


def timed(call: Callable[[], None]) -> float:
    begin = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - begin)


def repeated(call: Callable[[], None], seconds: float) -> list[float]:
    """Times of calls, as many as begin within so many seconds."""
    end = time.perf_counter() + seconds
    times = [timed(call)]
    while time.perf_counter() < end:
        times.append(timed(call))
    return times


def rounds(
    sizes: tuple[int, ...], ways: list[str], backward: bool, count: int
) -> dict[str, list[float]]:
    """Milliseconds of every way in every round: all of them one after the other, in another order."""
    calls = {way: step(way, sizes, backward) for way in ways if not left_out(way, sizes)}
    for call in calls.values():
        call()
    seen: dict[str, list[float]] = {way: [] for way in calls}
    begin = time.perf_counter()
    for done in range(count):
        order = list(calls.items())
        random.Random(done).shuffle(order)
        for way, call in order:
            # untimed at first: the one before may have left caches, allocator and the other threads,
            # asleep after some seconds, to its own liking
            repeated(call, 0.4)
            seen[way].append(statistics.median(repeated(call, 0.2)))
        if done >= 4 and time.perf_counter() - begin > 30:
            break
    return seen


def memory(field: str) -> float:
    """Megabytes of this process: VmRSS now, VmHWM at most."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"{field}:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]


def peak(way: str, sizes: tuple[int, ...]) -> float:
    """Megabytes that forward and backward took over the resident size just before, at most."""
    step(way, (1, 9, 40, 8), True)()
    call = step(way, sizes, True)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    call()
    return memory("VmHWM") - before


def peak_elsewhere(way: str, sizes: tuple[int, ...], threads: int) -> float:
    arguments = ["--threads", str(threads), "--peak", json.dumps([way, sizes])]
    command = [sys.executable, __file__, *arguments]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def rooflines() -> list[Callable[[int], Any]]:
    """Return the inner loops of the kernels on registers only, for a number of (pair, feature)s."""
    import numba
    import numpy as np

    from regard.kernels.additive.cpu import simd, threads

    real, count = np.float32, simd.BYTES // 4
    flags: Any = {"error_model": "numpy", "fastmath": threads.FLAGS}
    load, reciprocal, splat, fma = simd.load, simd.reciprocal, simd.splat, simd.fma

    @numba.njit(**flags)
    def scores(n: int, a: Any) -> Any:
        ones, f, step = splat(real(1)), splat(real(1)), splat(real(1e-6))
        a0, a1, a2, a3 = load(a, 0), load(a, count), load(a, 2 * count), load(a, 3 * count)
        s, t = ones - ones, ones - ones
        for _ in range(n // (8 * count)):
            x, y, z, w = ones + a0 * f, ones + a1 * f, ones + a2 * f, ones + a3 * f
            p, q = x * y, z * w
            s += ((a0 * y + a1 * x) * q + (a2 * w + a3 * z) * p) * reciprocal(p * q)
            f += step
            x, y, z, w = ones + a0 * f, ones + a1 * f, ones + a2 * f, ones + a3 * f
            p, q = x * y, z * w
            t += ((a1 * y + a0 * x) * q + (a3 * w + a2 * z) * p) * reciprocal(p * q)
            f += step
        return simd.reduce_sum(s + t)

    @numba.njit(**flags)
    def gradients(n: int, a: Any) -> Any:
        half, f, step = splat(real(0.5)), splat(real(1)), splat(real(1e-6))
        a0, a1, a2, a3 = load(a, 0), load(a, count), load(a, 2 * count), load(a, 3 * count)
        one, zeros = half + half, half - half
        s, t, p, q, u, v, d, e = zeros, zeros, zeros, zeros, zeros, zeros, zeros, zeros
        for _ in range(n // (4 * count)):
            x, y, z, w = half + a0 * f, half + a1 * f, half + a2 * f, half + a3 * f
            g, h = reciprocal(x * y), reciprocal(z * w)
            x, y, z, w = one - y * g, one - x * g, one - w * h, one - z * h
            s, t = fma(a1, y, fma(a0, x, s)), fma(a3, w, fma(a2, z, t))
            x, y, z, w = one - x * x, one - y * y, one - z * z, one - w * w
            d, e = fma(a1, y, fma(a0, x, d)), fma(a3, w, fma(a2, z, e))
            p, q, u, v = fma(a0, x, p), fma(a1, y, q), fma(a2, z, u), fma(a3, w, v)
            f += step
        return simd.reduce_sum(s + t + p + q + u + v + d + e)

    return [on_threads(loop, torch.linspace(0.1, 1, 4 * count)) for loop in (scores, gradients)]


def on_threads(loop: Any, numbers: Tensor, tasks: int = 64) -> Callable[[int], Any]:
    """Return the loop over a number of (pair, feature)s, on the threads of the kernels."""
    from regard.kernels.additive.cpu import job, threads

    count, sums = numbers.numel(), torch.empty(tasks)

    def make(real: Any) -> Callable[[Any], None]:
        def kernel(arguments: Any) -> None:
            x = job.array(arguments, 0, (count,), real(1))
            out = job.array(arguments, 1, (tasks,), real(1))
            while True:
                task = job.fetch_add(arguments, job.NEXT_TASK)
                if task >= tasks:
                    return
                out[task] = loop(arguments[job.KEYS] // tasks, x)

        return kernel

    return lambda n: threads.run_kernel(make, tasks, job.Sizes(1, 1, n, 1), [numbers, sums], n)


def shares_of_rooflines(sizes: tuple[int, ...]) -> list[float]:
    """Return the percentage of the rooflines that scores and gradients reach, timed in turn."""
    from regard.kernels.additive.cpu import launch

    batch, length, keys, width = sizes
    a, b = torch.randn(batch, length, width), torch.randn(batch, keys, width)
    v, g = torch.randn(1, width), torch.randn(batch, length, keys)
    kernels: list[Callable[[], Any]] = [
        lambda: launch.scores(a, b, v), lambda: launch.gradients(g, a, b, v),
    ]  # fmt: skip
    shares = []
    for kernel, loop in zip(kernels, rooflines(), strict=True):
        calls = [kernel, lambda: loop(math.prod(sizes))]  # noqa: B023
        for call in calls:
            call()
        rounds = [[timed(call) for call in calls] for _ in range(31)]
        shares.append(100 * statistics.median(roof / time for time, roof in rounds))
    return shares


def table(title: str, rows: dict[str, list[str]]) -> None:
    print(f"\n{title}\n")
    print("| way | " + " | ".join(str(size) for size in SIZES) + " |")
    print("|---|" + "---|" * len(SIZES))
    for way, cells in rows.items():
        print(f"| {way} | " + " | ".join(cells) + " |")


def speed(ways: list[str], count: int) -> list[tuple[str, str, str, float]]:
    """Print the tables of times; give (pass, size, way, ratio) for the chart."""
    ratios = []
    for backward, title in ((False, "Forward"), (True, "Forward and backward")):
        cells: dict[str, list[str]] = {way: [] for way in ways}
        for sizes in SIZES:
            found = rounds(sizes, ways, backward, count)
            for way in ways:
                if way not in found:
                    cells[way].append(left_out(way, sizes))
                    continue
                pairs = zip(found[way], found["regard"], strict=True)
                ratio = statistics.median(time / ours for time, ours in pairs)
                cells[way].append(f"{statistics.median(found[way]):.4g} ({ratio:.3g}x)")
                ratios.append((title, str(sizes), way, ratio))
        table(f"{title}, median ms (times the time of regard in a round)", cells)
    return ratios


def peaks(ways: list[str], threads: int) -> None:
    """Print the table of peak memory."""
    cells: dict[str, list[str]] = {way: [] for way in ways}
    for sizes in SIZES:
        for way in ways:
            reason = left_out(way, sizes)
            cells[way].append(reason or f"{peak_elsewhere(way, sizes, threads):.0f}")
    table("Peak of forward and backward, MB over the resident size just before", cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--chart", help="write a chart of the ratios here")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if importlib.util.find_spec("pykeops"):
        WAYS["KeOps"] = Streamed
    if arguments.peak:
        way, sizes = json.loads(arguments.peak)
        print(peak(way, tuple(sizes)))
        return
    gate = subprocess.run([sys.executable, "-m", "pytest", "-q", *TESTS], capture_output=True)
    if gate.returncode:
        sys.exit(f"the tests of the kernels fail, no figure is printed:\n{gate.stdout.decode()}")
    ways = list(WAYS)
    if importlib.util.find_spec("jax"):
        ways.append("jax.jit")
        if importlib.util.find_spec("keras"):
            ways.append("Keras AdditiveAttention (jax)")
    huge = "on" if os.environ.get("THP_MEM_ALLOC_ENABLE") == "1" else "off"
    print(
        f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}, "
        f"{arguments.threads} threads, float32, huge pages {huge}; sizes are (B, L, T, D)"
    )
    ratios = speed(ways, arguments.rounds)
    peaks(ways, arguments.threads)
    for sizes in SIZES[1:4]:
        scores, gradients = shares_of_rooflines(sizes)
        print(
            f"\n{sizes}: {scores:.0f} % of the roofline in scores, {gradients:.0f} % in gradients"
        )
    if arguments.chart:
        draw(ratios, arguments.chart)


def draw(rows: list[tuple[str, str, str, float]], path: str) -> None:
    """Bars from 1, the time of regard, to the times that the others take."""
    import altair

    ways = list(dict.fromkeys(row[2] for row in rows if row[2] != "regard"))
    names = ("pass", "size", "way", "ratio", "label")
    values = [(*row, f"{row[3]:.3g}x") for row in rows if row[2] in ways]
    data = altair.Data(values=[dict(zip(names, row, strict=True)) for row in values])
    scale = altair.Scale(type="log", domain=[0.2, 1000])
    ratio = altair.X("ratio:Q", scale=scale, title="times the time of regard")
    way = altair.Y("way:N", sort=ways, title=None)
    bars = (
        altair.Chart()
        .mark_bar()
        .encode(
            x=ratio, x2=altair.datum(1), y=way, color=altair.Color("way:N", sort=ways, legend=None)
        )
    )
    # a bar that runs to the left of 1 has its label on the other side
    labels = (
        altair.Chart()
        .mark_text(align="left", dx=4)
        .encode(
            x=altair.X("end:Q", scale=scale, title="times the time of regard"),
            y=way,
            text="label:N",
        )
    )
    chart = altair.layer(bars, labels, data=data).transform_calculate(end="max(1, datum.ratio)")
    chart.properties(width=300, height=90).facet(
        row=altair.Row("size:N", sort=[str(size) for size in SIZES], title="(B, L, T, D)"),
        column=altair.Column("pass:N", title=None),
    ).save(path)


if __name__ == "__main__":
    main()
