"""Additive attention on a CUDA device: against torch.compile of the broadcast, and a modelled limit.

    python -P benchmarks/operator_gpu.py [--sizes 16,1024,1024,256]

Forward and backward of the scores, softmax and average (no projections), float32 and bfloat16. The
limit counts the clocks that a multiprocessor needs for a pair and feature when nothing but the
reciprocals (16 a clock) and the other arithmetic (128 a clock) takes time: 0.031 for the scores,
2 x 0.0625 for the gradients. Checked against float64 on a slice before anything is timed.
"""

import argparse
import functools
import math
import statistics
from collections.abc import Callable

import torch
from torch import Tensor

from regard.kernels import additive, reference

FORWARD, BACKWARD = 0.031, 0.031 + 2 * 0.0625


def broadcast(a: Tensor, b: Tensor, v: Tensor, values: Tensor) -> Tensor:
    return torch.softmax(torch.tanh(a[:, :, None] + b[:, None]) @ v, -1) @ values


def ours(a: Tensor, b: Tensor, v: Tensor, values: Tensor) -> Tensor:
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


def both(way: Callable[..., Tensor], inputs: list[Tensor]) -> Callable[[], object]:
    def call() -> None:
        torch.autograd.grad(way(*inputs).sum(), inputs)

    return call


def check(inputs: list[Tensor]) -> float:
    """The largest error of the scores of the first queries of the first item, against float64."""
    a, b, v = (tensor.detach() for tensor in inputs[:3])
    found = additive.scores(a[:1, :64], b[:1], v)
    expected = reference.additive_scores(a[:1, :64].double(), b[:1].double(), v.double())
    return float((found - expected).abs().max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="16,1024,1024,256")
    batch, length, keys, width = map(int, parser.parse_args().sizes.split(","))
    device = torch.cuda.get_device_properties(0)
    clock = torch.cuda.clock_rate() / 1000
    pairs = batch * length * keys * width
    per_clock = pairs / device.multi_processor_count / (clock * 1e6)
    print(
        f"{device.name}, {clock:.2f} GHz, torch {torch.__version__}, {(batch, length, keys, width)}"
    )
    print("\n| dtype | pass | regard ms | torch.compile ms | ratio | modelled limit ms | share |")
    print("|---|---|---|---|---|---|---|")
    for dtype in (torch.float32, torch.bfloat16):
        shapes = [(batch, length, width), (batch, keys, width), (width,), (batch, keys, width)]
        inputs = [torch.randn(shape, device="cuda", dtype=dtype) for shape in shapes]
        inputs[2] /= math.sqrt(width)
        inputs = [tensor.requires_grad_() for tensor in inputs]
        error = check([tensor.float() for tensor in inputs])
        assert error < 1e-4, error
        compiled = torch.compile(broadcast, dynamic=False)
        for title, clocks, calls in (
            ("forward", FORWARD, [functools.partial(w, *inputs) for w in (ours, compiled)]),
            ("both", FORWARD + BACKWARD, [both(w, inputs) for w in (ours, compiled)]),
        ):
            with torch.set_grad_enabled(title == "both"):
                mine, other = (milliseconds(call) for call in calls)
            limit = per_clock * clocks
            print(
                f"| {str(dtype)[6:]} | {title} | {mine:.3f} | {other:.3f} | {other / mine:.1f}x "
                f"| {limit:.3f} | {100 * limit / mine:.0f} % |"
            )


if __name__ == "__main__":
    main()
