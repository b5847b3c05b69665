"""The compiled path on the CPU: exact at any magnitude, and at home among threads and processes."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import pytest
import torch
from torch import Tensor

from oracle import double, gradients
from regard.kernels import additive, reference
from regard.kernels.additive import pytorch
from regard.kernels.additive.cpu import launch
from regard.kernels.additive.cpu import threads as kernel_threads

SCALES = [1e-4, 1e-2, 1, 5, 15, 40, 50, 100, 1e3, 1e4]
SHAPES = [
    (3, 9, 37, 6),
    (2, 3, 5, 33),
    (17, 1, 6, 8),
    (1, 40, 64, 5),
    (2, 10, 300, 64),
    (3, 2, 4, 48),
    (2, 11, 1100, 16),
    (1, 70, 9, 520),
    (4, 40, 30, 6),
]
"""B, L, T, D that take every kernel, with widths of whole vectors and others, and many keys or queries."""


def _inputs(
    sizes: tuple[int, ...], scale: float = 1, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    batch, length, width, dim = sizes
    shapes = [(batch, length, dim), (batch, width, dim), (dim,)]
    leaves = [torch.randn(shape, dtype=dtype) * scale for shape in shapes[:2]]
    return [leaf.requires_grad_() for leaf in [*leaves, torch.randn(shapes[2], dtype=dtype)]]


def _everything(inputs: list[Tensor]) -> tuple[Tensor, ...]:
    found = additive.scores(*inputs)
    return found, *gradients(found, inputs)


def _served(inputs: list[Tensor]) -> bool:
    """Whether the kernels compute these, forward and backward."""
    a, b, v = (tensor.detach() for tensor in inputs)
    found = launch.scores(a, b, v[None])
    if found is not None:
        assert launch.gradients(torch.ones_like(found), a, b, v[None]) is not None
        assert launch.prepare_keys(b) is not None
    else:
        pairs = torch.ones(a.shape[0], a.shape[1], b.shape[1], dtype=a.dtype)
        assert launch.gradients(pairs, a, b, v[None]) is None
    return found is not None


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sizes", SHAPES)
def test_the_kernels_serve_and_the_far_out_goes_elsewhere(
    sizes: tuple[int, ...], dtype: torch.dtype
) -> None:
    assert _served(_inputs(sizes, 5, dtype))
    far = _inputs(sizes, 1, dtype)
    for place in (0, 1):
        spoilt = [tensor.detach().clone() for tensor in far]
        for content in (-1e3, 1e3, torch.inf, -torch.inf, torch.nan):
            spoilt[place][0, 0, 0] = content
            assert not _served(spoilt)
    spoilt = [tensor.detach().clone() for tensor in far]
    for content in (1.1e10, -1e30, torch.inf, torch.nan):
        spoilt[2][-1] = content
        assert not _served(spoilt)


@pytest.mark.parametrize("shift", [0, 30, 200])
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("sizes", SHAPES)
def test_scores_are_exact_at_any_magnitude(
    sizes: tuple[int, ...], scale: float, shift: float
) -> None:
    """No further from float64 than twice plain PyTorch, and the rounding of the sum of |v|."""
    a, b, v = _inputs(sizes, scale)
    inputs = [(a + shift).detach(), (b - shift).detach(), v.detach()]
    exact = reference.additive_scores(*map(double, inputs))
    plain = (pytorch.scores(*inputs[:2], inputs[2][None]) - exact).abs().max()
    found = (additive.scores(*inputs) - exact).abs().max()
    rounding = 4 * torch.finfo(torch.float32).eps * inputs[2].abs().sum()
    assert found <= 2 * plain + rounding


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("sizes", SHAPES)
def test_gradients_are_exact_at_any_magnitude(sizes: tuple[int, ...], scale: float) -> None:
    inputs = _inputs(sizes, scale)
    exact = [double(tensor) for tensor in inputs]
    wanted = gradients(reference.additive_scores(*exact), exact)
    pairs = sizes[0] * sizes[1] * sizes[2]
    for found, expected in zip(_everything(inputs)[1:], wanted, strict=True):
        # a gradient sums at most `pairs` numbers, each of some units of rounding
        error = float((found - expected).abs().max())
        assert error <= 16 * torch.finfo(torch.float32).eps * pairs**0.5 * max(
            1.0, float(expected.abs().max())
        )


@pytest.mark.parametrize("sizes", SHAPES)
@pytest.mark.parametrize("content", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("place", [0, 1])
def test_infinities_as_plain_pytorch_and_nan_in_its_row(
    sizes: tuple[int, ...], content: float, place: int
) -> None:
    inputs = [tensor.detach() for tensor in _inputs(sizes)]
    inputs[place][0, 0, 1] = content
    found = additive.scores(*inputs)
    torch.testing.assert_close(found, pytorch.scores(*inputs[:2], inputs[2][None]), equal_nan=True)
    if content != content:
        row = (0, 0) if place == 0 else (0, slice(None), 0)
        assert found[row].isnan().all()
        assert found.isnan().sum() == found[row].numel()


@pytest.mark.parametrize("workspace", [additive.WORKSPACE, 64])
@pytest.mark.parametrize("content", [torch.inf, -torch.inf, torch.nan, 1e30])
def test_what_is_masked_never_leaks(content: float, workspace: int) -> None:
    """A key that no query may see, spoilt: they get what they got, forward and backward."""
    inputs, values = _inputs((2, 9, 40, 6)), torch.randn(2, 40, 3, requires_grad=True)
    masked = torch.zeros(2, 9, 40, dtype=torch.bool)
    masked[:, :, 7] = True
    spoilt = [tensor.detach().clone() for tensor in inputs]
    spoilt[1][:, 7] = content
    results: list[tuple[Tensor, ...]] = []
    for a, b, v in (inputs, spoilt):
        leaves = [tensor.detach().requires_grad_() for tensor in (a, b, v, values)]
        context = additive.attend(*leaves, masked, workspace=workspace).context
        results.append((context, *gradients(context, leaves)))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    assert not results[1][2][:, 7].any()


def test_the_operator_of_pytorch_leaks() -> None:
    """Why masks are kept here by selection: 0 times NaN is NaN in PyTorch's own operator."""
    query, key = torch.randn(1, 1, 2, 4), torch.randn(1, 1, 3, 4)
    key[..., 1, :] = torch.nan
    seen = torch.tensor([[True, False, True]]).expand(2, 3)
    leaked = torch.nn.functional.scaled_dot_product_attention(query, key, key, seen)
    assert leaked.isnan().any()


@pytest.mark.parametrize("sizes", SHAPES)
def test_every_number_of_threads_gives_the_same_bits(
    sizes: tuple[int, ...], threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_threads, "WORK_PER_THREAD", 1)
    # far out, some units are cut off and others are not
    for scale in (1, 5):
        inputs = _inputs(sizes, scale)
        torch.set_num_threads(1)
        expected = _everything(inputs)
        for number in (1, 2, 3, 7):
            torch.set_num_threads(number)
            for _ in range(3):
                found = _everything(inputs)
                assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))
            assert torch.get_num_threads() == number


def test_an_item_is_the_same_in_any_batch() -> None:
    inputs = [tensor.detach() for tensor in _inputs((5, 9, 37, 6))]
    whole = additive.scores(*inputs)
    for item in range(5):
        alone = additive.scores(inputs[0][item, None], inputs[1][item, None], inputs[2])
        assert torch.equal(alone[0], whole[item])


def test_a_pool_of_our_own_where_pytorch_lends_no_threads(
    threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = _inputs(SHAPES[0])
    expected = _everything(inputs)
    monkeypatch.setattr(kernel_threads, "WORK_PER_THREAD", 1)
    monkeypatch.setattr(kernel_threads.thread_pool, "openmp", lambda: None)
    torch.set_num_threads(3)
    for _ in range(3):
        found = _everything(inputs)
        assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


@pytest.mark.parametrize("own_pool", [False, True])
def test_many_python_threads_at_once(
    own_pool: bool, threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_threads, "WORK_PER_THREAD", 1)
    if own_pool:
        monkeypatch.setattr(kernel_threads.thread_pool, "openmp", lambda: None)
    torch.set_num_threads(2)
    problems = [_inputs(SHAPES[i % len(SHAPES)]) for i in range(16)]
    expected = [_everything(inputs) for inputs in problems]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            for found, wanted in zip(pool.map(_everything, problems), expected, strict=True):
                assert all(torch.equal(*pair) for pair in zip(found, wanted, strict=True))


class _Looks(torch.utils.data.Dataset[Tensor]):
    """A data set whose items are computed with attention, in the workers of a loader."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        torch.manual_seed(index)
        return additive.scores(*(tensor.detach() for tensor in _inputs(SHAPES[0])))


@pytest.mark.skipif(sys.platform != "linux", reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_after_a_fork(threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_threads, "WORK_PER_THREAD", 1)
    torch.set_num_threads(2)
    data = _Looks()
    expected = [data[i] for i in range(4)]
    loader = torch.utils.data.DataLoader(
        data, batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=60
    )
    assert all(torch.equal(*pair) for pair in zip(loader, expected, strict=True))


@pytest.mark.skipif(sys.platform != "linux", reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_the_kernels_after_a_plain_fork(threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody sets the number of threads there; PyTorch's own operators wait for ever then."""
    monkeypatch.setattr(kernel_threads, "WORK_PER_THREAD", 1)
    torch.set_num_threads(2)
    a, b, v = (tensor.detach().exp() for tensor in _inputs(SHAPES[0]))
    expected = launch.scores(a, b, v[None])
    assert expected is not None
    child = os.fork()
    if child == 0:
        found = launch.scores(a, b, v[None])
        equal = found is not None and (found.numpy() == expected.numpy()).all()
        os._exit(0 if equal else 1)
    for _ in range(600):
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        time.sleep(0.1)
    else:
        os.kill(child, signal.SIGKILL)
    assert done
    assert status == 0


def test_nowhere_to_keep_what_was_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    original, refused = numba.cfunc, []

    def cfunc(*arguments: Any, **options: Any) -> Any:
        if options.get("cache"):
            refused.append(arguments)
            raise RuntimeError("cannot cache function: no locator available")
        return original(*arguments, **options)

    monkeypatch.setattr(numba, "cfunc", cfunc)
    torch.manual_seed(0)
    expected = additive.scores(*_inputs(SHAPES[0], dtype=torch.float64))
    kernel_threads.compiled.cache_clear()
    torch.manual_seed(0)
    found = additive.scores(*_inputs(SHAPES[0], dtype=torch.float64))
    kernel_threads.compiled.cache_clear()
    assert torch.equal(found, expected)
    assert refused


WITHOUT = """
import sys
import warnings
sys.modules["numba"] = None
import torch
from regard.kernels import additive, reference
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    for _ in range(2):
        a, b, v = torch.randn(2, 3, 5), torch.randn(2, 4, 5), torch.randn(5)
        found = additive.scores(a, b, v)
        assert additive.prepare_keys(b).prepared is None
        assert torch.allclose(found, reference.additive_scores(a, b, v), atol=1e-5)
print(len(said), said[0].message)
"""


def test_without_numba_it_is_slower_and_says_so_once() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, env=os.environ, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 additive attention runs on plain PyTorch")
    assert "numba" in done.stdout
