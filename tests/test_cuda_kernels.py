"""The Triton kernels: on a GPU if there is one, otherwise in Triton's interpreter on the CPU.

The interpreter runs programs sequentially, so it cannot reveal races between programs. Ahead-of-time
compilation tests that the kernels compile for real devices.
"""

import itertools
import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from oracle import gradients, to_float64
from regard.kernels import reference
from regard.kernels.additive import dispatch, pytorch
from selection import covering

cuda = pytest.importorskip("regard.kernels.additive.cuda")
pytestmark = [
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),
]

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = [(1, 1, 1, 1), (3, 5, 7, 9), (2, 1, 70, 6), (1, 33, 66, 5), (1, 3, 2, 67)]
"""B, L, T, D: sizes of 1, odd widths, more than one tile of queries, keys and features."""
SCALES = [1e-4, 1, 15, 40, 100, 1e4]


def test_items_whose_offsets_exceed_32_bits_are_left_to_pytorch() -> None:
    a, b, v = torch.ones(1), torch.ones(1), torch.ones(1, 1024)
    assert cuda.scores(a.expand(1, 1, 1024), b.expand(1, 1 << 21, 1024), v) is None


def test_without_a_driver_pytorch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(cuda, "check_driver", fail)
    load = dispatch.load_backend.__wrapped__  # pyright: ignore[reportFunctionMemberAccess]
    with pytest.warns(UserWarning, match="plain PyTorch, .* Failed to find C compiler"):
        assert load("cuda") is None


def _inputs(sizes: tuple[int, ...], scale: float = 1) -> list[Tensor]:
    batch, length, width, dim = sizes
    shapes = [(batch, length, dim), (batch, width, dim), (1, dim)]
    return [torch.randn(shape) * (scale if i < 2 else 1) for i, shape in enumerate(shapes)]


def _compute(inputs: list[Tensor], gradient: Tensor | None = None) -> list[Tensor]:
    """Return the scores and, if their gradient is given, the gradients of the inputs, on the CPU."""
    inputs = [tensor.to(DEVICE) for tensor in inputs]
    actual = cuda.scores(*inputs)
    assert actual is not None
    if gradient is None:
        return [actual.cpu()]
    actual_gradients = cuda.gradients(gradient.to(DEVICE), *inputs)
    assert actual_gradients is not None
    return [actual.cpu(), *(tensor.cpu() for tensor in actual_gradients)]


@pytest.mark.parametrize(("sizes", "scale"), covering(itertools.product(SHAPES, SCALES), size=1))
def test_scores_and_gradients_at_any_magnitude(sizes: tuple[int, ...], scale: float) -> None:
    inputs = _inputs(sizes, scale)
    inputs_float64 = [to_float64(tensor).requires_grad_() for tensor in inputs]
    expected = reference.additive_scores(*inputs_float64[:2], inputs_float64[2][0])
    pytorch_scores = pytorch.scores(*inputs)
    weights = torch.linspace(-1, 2, expected.numel(), dtype=torch.float64).view_as(expected)
    weights = weights.bfloat16().float()
    actual, *actual_gradients = _compute(inputs, weights)
    eps = torch.finfo(torch.float32).eps
    rounding = 4 * eps * inputs[2].abs().sum()
    assert (actual - expected).abs().max() <= 2 * (pytorch_scores - expected).abs().max() + rounding
    pairs = sizes[0] * sizes[1] * sizes[2]
    expected_gradients = gradients(expected, inputs_float64)
    for actual_gradient, expected_gradient in zip(
        actual_gradients, expected_gradients, strict=True
    ):
        error = float((actual_gradient - expected_gradient).abs().max())
        assert error <= 16 * eps * pairs**0.5 * max(1.0, float(expected_gradient.abs().max()))


def test_every_head_uses_its_own_vector() -> None:
    a, b, v = torch.randn(6, 3, 5), torch.randn(6, 4, 5), torch.randn(2, 5)
    g = torch.randn(6, 3, 4)
    scores, _, _, grad_v = _compute([a, b, v], g)
    expected_grad_v = torch.zeros(2, 5)
    for head in range(2):
        head_scores, _, _, head_grad_v = _compute(
            [a[head::2], b[head::2], v[head, None]], g[head::2]
        )
        torch.testing.assert_close(scores[head::2], head_scores)
        expected_grad_v[head] = head_grad_v
    torch.testing.assert_close(grad_v, expected_grad_v)


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("argument", [0, 1])
def test_infinities_and_nan_equal_plain_pytorch(value: float, argument: int) -> None:
    inputs = _inputs((2, 3, 70, 5))
    inputs[argument][0, 0, 1] = value
    (actual,) = _compute(inputs)
    torch.testing.assert_close(actual, pytorch.scores(*inputs), equal_nan=True)


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_a_pair_with_gradient_0_contributes_nothing(value: float) -> None:
    inputs, gradient = _inputs((2, 3, 7, 5)), torch.randn(2, 3, 7)
    gradient[:, :, 4] = 0
    expected_gradients = _compute(inputs, gradient)[1:]
    inputs[1][:, 4] = value
    actual_gradients = _compute(inputs, gradient)[1:]
    for actual, expected in zip(actual_gradients, expected_gradients, strict=True):
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("sizes", [(0, 2, 3, 4), (2, 0, 3, 4), (2, 3, 0, 4)])
def test_empty_inputs(sizes: tuple[int, ...]) -> None:
    inputs = _inputs(sizes)
    actual, *actual_gradients = _compute(inputs, torch.zeros(sizes[:3]))
    assert actual.shape == sizes[:3]
    assert not any(tensor.any() for tensor in actual_gradients)


def test_float64_is_unsupported() -> None:
    inputs = [tensor.double() for tensor in _inputs(SHAPES[1])]
    assert cuda.scores(*inputs) is None
    assert cuda.gradients(torch.ones(3, 5, 7).double(), *inputs) is None


COMPILE_AHEAD = """
import re, subprocess, sys, tempfile
from pathlib import Path
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from regard.kernels.additive import cuda

capability = int(sys.argv[1])
pointers = dict.fromkeys(("range_a", "range_b", "in_range_b"), "*i32")
sizes = {"rows", "keys", "other_rows", "width", "heads"}
fixed = {
    cuda.score_kernel: {"tile_rows": 8, "tile_keys": 64, "compiled": True},
    cuda.gradient_kernel: {"tile": 16, "features": 32, "with_grad_v": True, "compiled": True},
}
options = {"num_warps": cuda.WARPS}
nvdisasm = next(Path(triton.__file__).parent.rglob("nvdisasm*"), None)
for kernel, constants in fixed.items():
    signature = {
        name: "constexpr" if name in constants else "i32" if name in sizes
        else pointers.get(name, "*fp32")
        for name in kernel.arg_names
    }
    constexprs = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, signature, constexprs)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        cubin.write(compiled.asm["cubin"])
        cubin.flush()
        sass = subprocess.run([nvdisasm, cubin.name], capture_output=True, text=True).stdout
    operations = ("MUFU.RCP", "MUFU.EX2", "FMNMX", "ATOM[GS]?", "RED")
    print(kernel.__name__, *(len(re.findall(rf"\\b{name}\\b", sass)) for name in operations))
"""


@pytest.mark.slow
@pytest.mark.parametrize("capability", [pytest.param(80, marks=pytest.mark.soak), 90])
def test_the_kernels_compile_ahead_of_time(capability: int) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    completed = subprocess.run(
        [sys.executable, "-c", COMPILE_AHEAD, str(capability)],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert completed.returncode == 0, completed.stderr
    counts = {
        name: list(map(int, numbers))
        for name, *numbers in map(str.split, completed.stdout.splitlines())
    }
    # 16 scores or elements of a gradient for each thread; a few more for integer division
    reciprocals, exponentials, clamps, atomics, reductions = counts["score_kernel"]
    assert 48 <= reciprocals <= 56  # 16 in each of the three loops over the features
    assert exponentials == 16
    assert clamps == 32
    assert atomics == reductions == 0
    reciprocals, exponentials, clamps, atomics, reductions = counts["gradient_kernel"]
    assert 32 <= reciprocals <= 40  # 16 in each of the two loops over the other rows
    assert exponentials == 16
    assert clamps == atomics == reductions == 0
