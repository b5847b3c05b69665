"""The Triton kernels: on a GPU where there is one, else through Triton's interpreter on the CPU.

The interpreter runs programs one after the other, so it shows no races between programs. Ahead-of-time
compilation tests that the kernels compile for real devices.
"""

import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from oracle import double, gradients
from regard.kernels import reference
from regard.kernels.additive import pytorch

cuda = pytest.importorskip("regard.kernels.additive.cuda")
pytestmark = [
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),
]

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = [(1, 1, 1, 1), (3, 5, 7, 9), (2, 1, 70, 6), (1, 33, 66, 5), (1, 3, 2, 67)]
"""B, L, T, D: single numbers, odd widths, more than a tile of everything."""
SCALES = [1e-4, 1, 15, 40, 100, 1e4]


def _inputs(sizes: tuple[int, ...], scale: float = 1) -> list[Tensor]:
    batch, length, width, dim = sizes
    shapes = [(batch, length, dim), (batch, width, dim), (1, dim)]
    return [torch.randn(shape) * (scale if i < 2 else 1) for i, shape in enumerate(shapes)]


def _compute(inputs: list[Tensor], gradient: Tensor | None = None) -> list[Tensor]:
    """The scores, and where their gradient is given those of the inputs, on the CPU."""
    inputs = [tensor.to(DEVICE) for tensor in inputs]
    found = cuda.scores(*inputs)
    assert found is not None
    if gradient is None:
        return [found.cpu()]
    shares = cuda.gradients(gradient.to(DEVICE), *inputs)
    assert shares is not None
    return [found.cpu(), *(share.cpu() for share in shares)]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("sizes", SHAPES)
def test_scores_and_gradients_at_any_magnitude(sizes: tuple[int, ...], scale: float) -> None:
    inputs = _inputs(sizes, scale)
    exact = [double(tensor).requires_grad_() for tensor in inputs]
    expected = reference.additive_scores(*exact[:2], exact[2][0])
    plain = pytorch.scores(*inputs)
    weights = torch.linspace(-1, 2, expected.numel(), dtype=torch.float64).view_as(expected)
    weights = weights.bfloat16().float()
    found, *shares = _compute(inputs, weights)
    eps = torch.finfo(torch.float32).eps
    rounding = 4 * eps * inputs[2].abs().sum()
    assert (found - expected).abs().max() <= 2 * (plain - expected).abs().max() + rounding
    pairs = sizes[0] * sizes[1] * sizes[2]
    for share, wanted in zip(shares, gradients(expected, exact), strict=True):
        error = float((share - wanted).abs().max())
        assert error <= 16 * eps * pairs**0.5 * max(1.0, float(wanted.abs().max()))


def test_heads_take_their_own_vector() -> None:
    a, b, v = torch.randn(6, 3, 5), torch.randn(6, 4, 5), torch.randn(2, 5)
    g = torch.randn(6, 3, 4)
    found, _, _, of_v = _compute([a, b, v], g)
    wanted = torch.zeros(2, 5)
    for head in range(2):
        alone, _, _, share = _compute([a[head::2], b[head::2], v[head, None]], g[head::2])
        torch.testing.assert_close(found[head::2], alone)
        wanted[head] = share
    torch.testing.assert_close(of_v, wanted)


@pytest.mark.parametrize("content", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("place", [0, 1])
def test_infinities_as_plain_pytorch_and_nan_in_its_row(content: float, place: int) -> None:
    inputs = _inputs((2, 3, 70, 5))
    inputs[place][0, 0, 1] = content
    (found,) = _compute(inputs)
    torch.testing.assert_close(found, pytorch.scores(*inputs), equal_nan=True)


@pytest.mark.parametrize("content", [torch.inf, torch.nan])
def test_a_pair_with_gradient_0_contributes_nothing(content: float) -> None:
    inputs, gradient = _inputs((2, 3, 7, 5)), torch.randn(2, 3, 7)
    gradient[:, :, 4] = 0
    expected = _compute(inputs, gradient)[1:]
    inputs[1][:, 4] = content
    for found, wanted in zip(_compute(inputs, gradient)[1:], expected, strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("sizes", [(0, 2, 3, 4), (2, 0, 3, 4), (2, 3, 0, 4)])
def test_empty_inputs(sizes: tuple[int, ...]) -> None:
    inputs = _inputs(sizes)
    found, *shares = _compute(inputs, torch.zeros(sizes[:3]))
    assert found.shape == sizes[:3]
    assert not any(share.any() for share in shares)


def test_float64_is_unsupported() -> None:
    inputs = [tensor.double() for tensor in _inputs(SHAPES[1])]
    assert cuda.scores(*inputs) is None
    assert cuda.gradients(torch.ones(3, 5, 7).double(), *inputs) is None


AHEAD = """
import re, subprocess, sys, tempfile
from pathlib import Path
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from regard.kernels.additive import cuda

capability = int(sys.argv[1])
pointers = {"range_a": "*i32", "range_b": "*i32"}
sizes = {"rows", "keys", "other_rows", "width", "heads"}
fixed = {
    cuda.score_kernel: {"tile_rows": 64, "tile_keys": 64, "compiled": True},
    cuda.gradient_kernel: {"tile": 32, "features": 64, "compiled": True},
}
nvdisasm = next(Path(triton.__file__).parent.rglob("nvdisasm*"), None)
for kernel, constants in fixed.items():
    signature = {
        name: "constexpr" if name in constants else "i32" if name in sizes
        else pointers.get(name, "*fp32")
        for name in kernel.arg_names
    }
    places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, signature, places)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32))
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        cubin.write(compiled.asm["cubin"])
        cubin.flush()
        sass = subprocess.run([nvdisasm, cubin.name], capture_output=True, text=True).stdout
    operations = ("MUFU.RCP", "MUFU.EX2", "FMNMX", "ATOM[GS]?", "RED")
    print(kernel.__name__, *(len(re.findall(rf"\\b{name}\\b", sass)) for name in operations))
"""


@pytest.mark.parametrize("capability", [80, 90])
def test_the_kernels_compile_ahead_of_time(capability: int) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", AHEAD, str(capability)],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    counts = {
        name: list(map(int, rest)) for name, *rest in map(str.split, done.stdout.splitlines())
    }
    # 64 x 64 scores, or 32 x 64 numbers of a gradient, on 128 threads; a few more for whole numbers
    reciprocals, exponentials, clamps, atomics, reductions = counts["score_kernel"]
    assert 96 <= reciprocals <= 104  # one for two features, twice, and one for each far-out pair
    assert exponentials == 32
    assert clamps == 64
    assert atomics == reductions == 0
    reciprocals, exponentials, clamps, atomics, reductions = counts["gradient_kernel"]
    assert 32 <= reciprocals <= 40
    assert exponentials == 16
    assert clamps == atomics == reductions == 0
