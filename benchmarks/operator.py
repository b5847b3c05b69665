"""Time and peak memory of additive attention (projections, scores, softmax, average), compared.

    python benchmarks/operator.py [--threads 2] [--rounds 15] [--chart operator.svg]

One process times all implementations in several rounds (five, if these take more than 30 seconds), in random order,
and prints the median times and the medians of the ratios to the time of regard in the same round. Peak memory is
measured in a new process per implementation. Nothing is printed unless the tests of the kernels pass. Keras, JAX and KeOps are
included if they are installed. THP_MEM_ALLOC_ENABLE=1 turns huge pages on.
"""

import sys

# this file would shadow the standard module `operator`
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
MEMORY_LIMIT = 12e9
"""Bytes of memory; implementations that need more are skipped, and the table states how much."""
TEST_FILES = [f"tests/test_{name}.py" for name in ("simd", "kernels", "cpu_kernels", "attention")]


class Concat(nn.Module):
    """v . tanh(W [s; h]) on repeated and concatenated queries and keys."""

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
    """Lower bound: PyTorch's dot-product operator with the same projections and values."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key = (nn.Linear(width, width, bias=False) for _ in range(2))

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        rows = self.query(query)[:, None], self.key(key)[:, None], key[:, None]
        return functional.scaled_dot_product_attention(*rows)[:, 0]


class KeOps(nn.Module):
    """KeOps: pairs are computed and reduced in one compiled loop.

    KeOps has no tanh; it is written as 1 - 2 / (1 + e^2x).
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


class Regard(nn.Module):
    """regard.Attention with the additive score function."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = regard.Attention(regard.Additive(width, width, width))

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return self.attention(query, key).context


IMPLEMENTATIONS: dict[str, Callable[[int], Any]] = {
    "regard": Regard,
    "dot product (SDPA)": DotProduct,
    "torch.compile of the broadcast": lambda width: torch.compile(Broadcast(width), dynamic=False),
    "eager broadcast": Broadcast,
    "eager concat": Concat,
}
MAX_ELEMENTS = {"KeOps": 3e8}
"""B x L x T x D above which a call takes minutes."""
LIVE_TENSORS = {  # live B x L x T x D tensors, forward and backward
    "torch.compile of the broadcast": 2, "eager broadcast": 3, "eager concat": 5,
}  # fmt: skip


def make_call(name: str, sizes: tuple[int, ...], backward: bool) -> Callable[[], None]:
    """Return a function that calls an implementation, forward or forward and backward."""
    batch, length, keys, width = sizes
    torch.manual_seed(0)
    query, key = torch.randn(batch, length, width), torch.randn(batch, keys, width)
    if name.startswith("Keras") or name == "jax.jit":
        return make_jax_call(name, query, key, backward)
    module = IMPLEMENTATIONS[name](width)

    def call() -> None:
        if not backward:
            with torch.no_grad():
                module(query, key)
            return
        query.requires_grad_().grad = key.requires_grad_().grad = None
        module.zero_grad()
        module(query, key).sum().backward()

    return call


def make_jax_call(name: str, query: Tensor, key: Tensor, backward: bool) -> Callable[[], None]:
    """Return a function that calls Keras' layer with added projections, or the broadcast in jax.jit."""
    import jax

    jnp = jax.numpy
    width = query.shape[-1]
    rows = jnp.asarray(query.numpy()), jnp.asarray(key.numpy())
    weights = [jnp.asarray(torch.randn(width, width).numpy()) / width**0.5 for _ in range(2)]
    if name == "jax.jit":
        weights.append(jnp.asarray(torch.randn(width).numpy()) / width**0.5)

        def forward(weights: Any, query: Any, key: Any) -> Any:
            pairs = jnp.tanh((query @ weights[0])[:, :, None] + (key @ weights[1])[:, None])
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
        total = jax.value_and_grad(lambda *arguments: forward(*arguments).sum(), argnums=(0, 1, 2))
        compiled = jax.jit(total)
    else:
        compiled = jax.jit(forward)

    def call() -> None:
        jax.block_until_ready(compiled(weights, *rows))

    return call


def required_bytes(name: str, sizes: tuple[int, ...]) -> float:
    """Return the size in bytes of the live B x L x T x D tensors in an implementation."""
    return 4.0 * math.prod(sizes) * LIVE_TENSORS.get(name, 4 if name not in IMPLEMENTATIONS else 0)


def reason_to_skip(name: str, sizes: tuple[int, ...]) -> str:
    """Return why an implementation is not run with a size, or an empty string."""
    if required_bytes(name, sizes) > MEMORY_LIMIT:
        return f"needs {required_bytes(name, sizes) / 1e9:.0f} GB"
    return "takes minutes" if math.prod(sizes) > MAX_ELEMENTS.get(name, math.inf) else ""


def milliseconds(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - start)


def repeated_milliseconds(call: Callable[[], None], seconds: float) -> list[float]:
    """Return the times of calls, started until `seconds` have passed."""
    end = time.perf_counter() + seconds
    times = [milliseconds(call)]
    while time.perf_counter() < end:
        times.append(milliseconds(call))
    return times


def measure_rounds(
    sizes: tuple[int, ...], names: list[str], backward: bool, count: int
) -> dict[str, list[float]]:
    """Return the milliseconds per implementation and round; the order is random in each round."""
    calls = {
        name: make_call(name, sizes, backward) for name in names if not reason_to_skip(name, sizes)
    }
    for call in calls.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    start = time.perf_counter()
    for round_index in range(count):
        order = list(calls.items())
        random.Random(round_index).shuffle(order)
        for name, call in order:
            # warm-up: caches, the allocator and sleeping threads depend on the previous implementation
            repeated_milliseconds(call, 0.4)
            times[name].append(statistics.median(repeated_milliseconds(call, 0.2)))
        if round_index >= 4 and time.perf_counter() - start > 30:
            break
    return times


def memory(field: str) -> float:
    """Return the memory of this process in MB: VmRSS now, VmHWM at its peak."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(rf"{field}:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]


def peak(name: str, sizes: tuple[int, ...]) -> float:
    """Return the peak of forward and backward in MB, above the resident size before the call."""
    make_call(name, (1, 9, 40, 8), True)()
    call = make_call(name, sizes, True)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    call()
    return memory("VmHWM") - before


def peak_in_new_process(name: str, sizes: tuple[int, ...], threads: int) -> float:
    arguments = ["--threads", str(threads), "--peak", json.dumps([name, sizes])]
    command = [sys.executable, __file__, *arguments]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def roofline_loops() -> list[Callable[[int], Any]]:
    """Return the inner loops of the kernels on registers only, as functions of B x L x T x D."""
    import numba
    import numpy as np

    from regard.kernels.cpu import compiler, simd
    from regard.kernels.cpu.processor import LANES

    real, count = np.float32, LANES
    flags: Any = {"error_model": "numpy", "fastmath": compiler.FLAGS}
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

    return [run_on_threads(loop, torch.linspace(0.1, 1, 4 * count)) for loop in (scores, gradients)]


def run_on_threads(loop: Any, numbers: Tensor, count: int = 64) -> Callable[[int], Any]:
    """Return a loop that runs on the threads of the kernels, as a function of B x L x T x D."""
    import numpy as np

    from regard.kernels.cpu import compiler, machine_code, tasks, threads

    one, size, sums = np.float32(1), numbers.numel(), torch.empty(count)

    def kernel(arguments: Any) -> None:
        x = tasks.array(arguments, 0, (size,), one)
        out = tasks.array(arguments, 1, (count,), one)
        while True:
            task = tasks.fetch_add(arguments, threads.NEXT_TASK)
            if task >= count:
                return
            out[task] = loop(arguments[threads.KEYS] // count, x)

    compiled = compiler.compile_kernel(kernel)
    function, tensors = machine_code.c_function(compiled.address, compiled), [numbers, sums]
    return lambda n: threads.run_kernel(function, count, threads.Sizes(1, 1, n, 1), tensors, n)


def roofline_percentages(sizes: tuple[int, ...]) -> list[float]:
    """Return the percentages of the rooflines that scores and gradients reach, timed alternately."""
    from regard.kernels.additive.cpu import launch

    batch, length, keys, width = sizes
    a, b = torch.randn(batch, length, width), torch.randn(batch, keys, width)
    v, g = torch.randn(1, width), torch.randn(batch, length, keys)
    kernels: list[Callable[[], Any]] = [
        lambda: launch.scores(a, b, v), lambda: launch.gradients(g, a, b, v),
    ]  # fmt: skip
    percentages = []
    for kernel, loop in zip(kernels, roofline_loops(), strict=True):
        calls = [kernel, lambda: loop(math.prod(sizes))]  # noqa: B023
        for call in calls:
            call()
        times = [[milliseconds(call) for call in calls] for _ in range(31)]
        percentages.append(
            100 * statistics.median(roofline_time / time for time, roofline_time in times)
        )
    return percentages


def print_table(title: str, rows: dict[str, list[str]]) -> None:
    print(f"\n{title}\n")
    print("| implementation | " + " | ".join(str(size) for size in SIZES) + " |")
    print("|---|" + "---|" * len(SIZES))
    for name, cells in rows.items():
        print(f"| {name} | " + " | ".join(cells) + " |")


def print_times(names: list[str], count: int) -> list[tuple[str, str, str, float]]:
    """Print the tables of times and return (pass, size, implementation, ratio) for the chart."""
    ratios = []
    for backward, title in ((False, "Forward"), (True, "Forward and backward")):
        cells: dict[str, list[str]] = {name: [] for name in names}
        for sizes in SIZES:
            times = measure_rounds(sizes, names, backward, count)
            for name in names:
                if name not in times:
                    cells[name].append(reason_to_skip(name, sizes))
                    continue
                pairs = zip(times[name], times["regard"], strict=True)
                ratio = statistics.median(time / baseline for time, baseline in pairs)
                cells[name].append(f"{statistics.median(times[name]):.4g} ({ratio:.3g}x)")
                ratios.append((title, str(sizes), name, ratio))
        print_table(f"{title}, median ms (multiple of regard's time within a round)", cells)
    return ratios


def print_peaks(names: list[str], threads: int) -> None:
    """Print the table of peak memory."""
    cells: dict[str, list[str]] = {name: [] for name in names}
    for sizes in SIZES:
        for name in names:
            reason = reason_to_skip(name, sizes)
            cells[name].append(reason or f"{peak_in_new_process(name, sizes, threads):.0f}")
    print_table(
        "Peak memory of forward and backward, MB above the resident size just before", cells
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--chart", help="file for a chart of the ratios")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if importlib.util.find_spec("pykeops"):
        IMPLEMENTATIONS["KeOps"] = KeOps
    if arguments.peak:
        name, sizes = json.loads(arguments.peak)
        print(peak(name, tuple(sizes)))
        return
    tests = subprocess.run([sys.executable, "-m", "pytest", "-q", *TEST_FILES], capture_output=True)
    if tests.returncode:
        sys.exit(f"the tests of the kernels fail, nothing is measured:\n{tests.stdout.decode()}")
    names = list(IMPLEMENTATIONS)
    if importlib.util.find_spec("jax"):
        names.append("jax.jit")
        if importlib.util.find_spec("keras"):
            names.append("Keras AdditiveAttention (jax)")
    huge = "on" if os.environ.get("THP_MEM_ALLOC_ENABLE") == "1" else "off"
    print(
        f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}, "
        f"{arguments.threads} threads, float32, huge pages {huge}; sizes are (B, L, T, D)"
    )
    ratios = print_times(names, arguments.rounds)
    print_peaks(names, arguments.threads)
    for sizes in SIZES[1:4]:
        scores, gradients = roofline_percentages(sizes)
        print(
            f"\n{sizes}: {scores:.0f} % of the roofline in scores, {gradients:.0f} % in gradients"
        )
    if arguments.chart:
        save_chart(ratios, arguments.chart)


def save_chart(rows: list[tuple[str, str, str, float]], path: str) -> None:
    """Save a chart of the ratios: bars from 1, the time of regard, on a logarithmic scale."""
    import altair

    from regard.charts.base import BLUES, GREY
    from regard.charts.vega import chart_title, theme

    title = "Multiple of the time of regard: bars to the left are faster, bars to the right slower."
    rows = [
        (name, f"(B, L, T, D) = {size}", *rest) for name, size, *rest in rows if rest[0] != "regard"
    ]
    implementations = list(dict.fromkeys(row[2] for row in rows))
    names = ("pass", "size", "implementation", "ratio")
    values = [
        {**dict(zip(names, row, strict=True)), "label": f"{row[3]:.3g}x", "end": max(1.0, row[3])}
        for row in rows
    ]
    scale = altair.Scale(type="log", domain=[0.2, 1000])
    axis = altair.Axis(values=[0.2, 1, 10, 100, 1000], format="~g", title=None, gridColor="#e6eaee")
    chart = altair.Chart().encode(
        altair.Y("implementation:N", sort=implementations, title=None),
        altair.X("ratio:Q", scale=scale, axis=axis),
    )
    is_bound = altair.datum.implementation == "dot product (SDPA)"
    colour = altair.when(is_bound).then(altair.value(GREY)).otherwise(altair.value(BLUES[4]))
    bars = chart.mark_bar(height=11).encode(x2=altair.datum(1), color=colour)
    # the label of a bar to the left of 1 is on the right of 1
    labels = chart.mark_text(align="left", dx=4).encode(x="end:Q", text="label:N")
    order = [f"(B, L, T, D) = {size}" for size in SIZES]
    sizes = altair.Row("size:N", sort=order, title=None)
    passes = altair.Column("pass:N", title=None).header(labelFontSize=12, labelFontWeight="bold")
    faceted = altair.layer(bars, labels, data=altair.InlineData(values=values)).properties(
        width=290, height=altair.Step(17)
    )
    faceted.facet(
        row=sizes.header(labelOrient="top", labelAngle=0, labelAnchor="start", labelPadding=4),
        column=passes,
    ).resolve_scale(y="independent").properties(
        title=chart_title("Additive attention: time relative to regard", [title], 700.0),
        config=theme(),
    ).save(path)


if __name__ == "__main__":
    main()
