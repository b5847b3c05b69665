"""Additive attention on a CUDA device compared with torch.compile and with a modelled lower bound.

    python -P benchmarks/operator_gpu.py [--sizes 16,1024,1024,256]

Forward and backward of the scores, softmax and average (no projections), float32 and bfloat16. The
lower bound is the number of clock cycles of a multiprocessor per pair and feature if only the reciprocals
(16 per clock) and the other arithmetic (128 per clock) take time: 0.031 for the scores, 2 x 0.0625 for
the gradients. Before the measurement, the scores of a slice are compared with float64.
"""

import argparse
import functools
import math
import statistics
from collections.abc import Callable

import torch
from torch import Tensor

from regard.kernels import additive, reference

FORWARD, BACKWARD = 0.031, 2 * 0.0625
"""Clock cycles of a multiprocessor per pair and feature."""


def broadcast(a: Tensor, b: Tensor, v: Tensor, values: Tensor) -> Tensor:
    return torch.softmax(torch.tanh(a[:, :, None] + b[:, None]) @ v, -1) @ values


def regard_attention(a: Tensor, b: Tensor, v: Tensor, values: Tensor) -> Tensor:
    return additive.attend(a, b, v, values).context


def milliseconds(call: Callable[[], object], count: int = 20) -> float:
    for _ in range(3):
        call()
    times = []
    for _ in range(count):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def forward_and_backward(
    attention: Callable[..., Tensor], inputs: list[Tensor]
) -> Callable[[], object]:
    def call() -> None:
        torch.autograd.grad(attention(*inputs).sum(), inputs)

    return call


def max_error(inputs: list[Tensor]) -> float:
    """Return the largest error in the scores of the first queries in the first batch item."""
    a, b, v = (tensor.detach() for tensor in inputs[:3])
    actual = additive.scores(a[:1, :64], b[:1], v)
    expected = reference.additive_scores(a[:1, :64].double(), b[:1].double(), v.double())
    return float((actual - expected).abs().max())


def clock_in_use(call: Callable[[], object]) -> float:
    """Return the clock rate in GHz while the device computes; it is lower when the device is idle."""
    for _ in range(20):
        call()
    rate = torch.cuda.clock_rate() / 1000
    torch.cuda.synchronize()
    return rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="16,1024,1024,256")
    batch, length, keys, width = map(int, parser.parse_args().sizes.split(","))
    device = torch.cuda.get_device_properties(0)
    busy = torch.randn(4096, 4096, device="cuda")
    clock = clock_in_use(lambda: busy @ busy)
    pairs = batch * length * keys * width
    per_clock = pairs / device.multi_processor_count / (clock * 1e6)
    print(
        f"{device.name}, {clock:.2f} GHz, torch {torch.__version__}, {(batch, length, keys, width)}"
    )
    print(
        "\n| dtype | pass | regard ms | torch.compile ms | ratio | lower bound ms | share of the bound |"
    )
    print("|---|---|---|---|---|---|---|")
    for dtype in (torch.float32, torch.bfloat16):
        shapes = [(batch, length, width), (batch, keys, width), (width,), (batch, keys, width)]
        inputs = [torch.randn(shape, device="cuda", dtype=dtype) for shape in shapes]
        inputs[2] /= math.sqrt(width)
        inputs = [tensor.requires_grad_() for tensor in inputs]
        error = max_error([tensor.float() for tensor in inputs])
        assert error < 1e-4, error
        compiled = torch.compile(broadcast, dynamic=False)
        implementations = regard_attention, compiled
        forward = [functools.partial(attention, *inputs) for attention in implementations]
        both = [forward_and_backward(attention, inputs) for attention in implementations]
        for title, clocks, calls in (
            ("forward", FORWARD, forward),
            ("both", FORWARD + BACKWARD, both),
        ):
            with torch.set_grad_enabled(title == "both"):
                regard_ms, compiled_ms = (milliseconds(call) for call in calls)
            bound_ms = per_clock * clocks
            print(
                f"| {str(dtype)[6:]} | {title} | {regard_ms:.3f} | {compiled_ms:.3f} "
                f"| {compiled_ms / regard_ms:.1f}x | {bound_ms:.3f} | {100 * bound_ms / regard_ms:.0f} % |"
            )


if __name__ == "__main__":
    main()
