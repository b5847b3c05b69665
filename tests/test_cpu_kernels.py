"""The numba kernels: accuracy at any magnitude, threads and processes."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from oracle import gradients, to_float64
from regard.kernels import additive, reference
from regard.kernels.additive import pytorch
from regard.kernels.additive.cpu import launch
from regard.kernels.compilation import import_kernel
from regard.kernels.cpu import compiler, machine_code
from regard.kernels.cpu import threads as kernel_threads
from regard.kernels.cpu.machine_code import Kernel
from regard.kernels.cpu.processor import HAS_BFLOAT16
from regard.kernels.recurrent import attention_steps, lstm, sequence
from regard.kernels.recurrent import launch as recurrent_launch
from regard.kernels.transformer import launch as transformer_launch

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
"""B, L, T, D that reach every kernel: multiples of the SIMD width and others, many keys or queries."""


def _inputs(
    sizes: tuple[int, ...], scale: float = 1, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    batch, length, width, dim = sizes
    shapes = [(batch, length, dim), (batch, width, dim), (dim,)]
    leaves = [torch.randn(shape, dtype=dtype) * scale for shape in shapes[:2]]
    return [leaf.requires_grad_() for leaf in [*leaves, torch.randn(shapes[2], dtype=dtype)]]


def _scores_and_gradients(inputs: list[Tensor]) -> tuple[Tensor, ...]:
    scores = additive.scores(*inputs)
    return scores, *gradients(scores, inputs)


def _is_supported(inputs: list[Tensor]) -> bool:
    """Return whether the kernels support these inputs, forward and backward alike."""
    a, b, v = (tensor.detach() for tensor in inputs)
    scores = launch.scores(a, b, v[None])
    if scores is not None:
        assert launch.gradients(torch.ones_like(scores), a, b, v[None]) is not None
        assert launch.prepare_keys(b) is not None
    else:
        pairs = torch.ones(a.shape[0], a.shape[1], b.shape[1], dtype=a.dtype)
        assert launch.gradients(pairs, a, b, v[None]) is None
    return scores is not None


@pytest.fixture
def restore_num_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sizes", SHAPES)
def test_inputs_outside_the_supported_range_are_left_to_pytorch(
    sizes: tuple[int, ...], dtype: torch.dtype
) -> None:
    assert _is_supported(_inputs(sizes, 5, dtype))
    unmodified = _inputs(sizes, 1, dtype)
    for argument in (0, 1):
        corrupted = [tensor.detach().clone() for tensor in unmodified]
        for value in (-1e3, 1e3, torch.inf, -torch.inf, torch.nan):
            corrupted[argument][0, 0, 0] = value
            assert not _is_supported(corrupted)
    corrupted = [tensor.detach().clone() for tensor in unmodified]
    for value in (1.1e10, -1e30, torch.inf, torch.nan):
        corrupted[2][-1] = value
        assert not _is_supported(corrupted)


@pytest.mark.parametrize("shift", [0, 30, 200])
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("sizes", SHAPES)
def test_scores_are_accurate_at_any_magnitude(
    sizes: tuple[int, ...], scale: float, shift: float
) -> None:
    """The error is at most twice that of plain PyTorch plus the rounding of the sum of |v|."""
    a, b, v = _inputs(sizes, scale)
    inputs = [(a + shift).detach(), (b - shift).detach(), v.detach()]
    expected = reference.additive_scores(*map(to_float64, inputs))
    pytorch_error = (pytorch.scores(*inputs[:2], inputs[2][None]) - expected).abs().max()
    error = (additive.scores(*inputs) - expected).abs().max()
    rounding = 4 * torch.finfo(torch.float32).eps * inputs[2].abs().sum()
    assert error <= 2 * pytorch_error + rounding


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("sizes", SHAPES)
def test_gradients_are_accurate_at_any_magnitude(sizes: tuple[int, ...], scale: float) -> None:
    inputs = _inputs(sizes, scale)
    inputs_float64 = [to_float64(tensor) for tensor in inputs]
    expected_gradients = gradients(reference.additive_scores(*inputs_float64), inputs_float64)
    pairs = sizes[0] * sizes[1] * sizes[2]
    for actual, expected in zip(_scores_and_gradients(inputs)[1:], expected_gradients, strict=True):
        # a gradient sums at most `pairs` terms, each with an error of a few units in the last place
        error = float((actual - expected).abs().max())
        assert error <= 16 * torch.finfo(torch.float32).eps * pairs**0.5 * max(
            1.0, float(expected.abs().max())
        )


@pytest.mark.parametrize("shift", [0, 30])
@pytest.mark.parametrize("scale", [1e-8, 1e-5, 1e-3, 0.1, 1, 3, 10, 100, 1000])
@pytest.mark.parametrize("width", [1, 8, 64, 256, 512])
def test_the_error_is_bounded_in_units_of_the_sum_of_v(
    width: int, scale: float, shift: float
) -> None:
    """At most 4 units of eps sum |v| by the kernels, 16 by PyTorch's operators."""
    a, b, v = (x.detach() for x in _inputs((2, 24, 40, width), scale))
    eps = torch.finfo(torch.float32).eps
    grad_scores = torch.randn(2, 24, 40)
    for sign in (v, v.abs()):
        inputs = [a + shift, b - shift, sign]
        units = 4 if _is_supported(inputs) else 16
        leaves = [x.clone().requires_grad_() for x in inputs]
        leaves_float64 = [x.double().requires_grad_() for x in inputs]
        actual = additive.scores(*leaves)
        expected = reference.additive_scores(*leaves_float64)
        assert (actual - expected).abs().max() <= units * eps * v.abs().sum()
        pairs = zip(
            torch.autograd.grad(actual, leaves[:2], grad_scores),
            torch.autograd.grad(expected, leaves_float64[:2], grad_scores.double()),
            strict=True,
        )
        for (grad, right), axis in zip(pairs, (2, 1), strict=True):
            sums = grad_scores.abs().sum(axis)[..., None] * v.abs()
            assert ((grad - right).abs() <= 4 * eps * sums).all()


@pytest.mark.parametrize("sizes", SHAPES)
@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("argument", [0, 1])
def test_infinities_equal_plain_pytorch_and_nan_stays_in_its_row(
    sizes: tuple[int, ...], value: float, argument: int
) -> None:
    inputs = [tensor.detach() for tensor in _inputs(sizes)]
    inputs[argument][0, 0, 1] = value
    actual = additive.scores(*inputs)
    torch.testing.assert_close(actual, pytorch.scores(*inputs[:2], inputs[2][None]), equal_nan=True)
    if value != value:
        row = (0, 0) if argument == 0 else (0, slice(None), 0)
        assert actual[row].isnan().all()
        assert actual.isnan().sum() == actual[row].numel()


@pytest.mark.parametrize("workspace", [additive.WORKSPACE, 64])
@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan, 1e30])
def test_a_masked_key_has_no_effect_whatever_its_values(value: float, workspace: int) -> None:
    """Neither on the context nor on any gradient."""
    inputs, values = _inputs((2, 9, 40, 6)), torch.randn(2, 40, 3, requires_grad=True)
    masked = torch.zeros(2, 9, 40, dtype=torch.bool)
    masked[:, :, 7] = True
    corrupted = [tensor.detach().clone() for tensor in inputs]
    corrupted[1][:, 7] = value
    results: list[tuple[Tensor, ...]] = []
    for a, b, v in (inputs, corrupted):
        leaves = [tensor.detach().requires_grad_() for tensor in (a, b, v, values)]
        context = additive.attend(*leaves, masked, workspace=workspace).context
        results.append((context, *gradients(context, leaves)))
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(expected, actual, rtol=1e-5, atol=1e-5)
    assert not results[1][2][:, 7].any()


def test_a_masked_nan_reaches_the_output_of_pytorchs_operator() -> None:
    """The reason why masks are applied by selection here: a weight of 0 times NaN is NaN."""
    query, key = torch.randn(1, 1, 2, 4), torch.randn(1, 1, 3, 4)
    key[..., 1, :] = torch.nan
    unmasked = torch.tensor([[True, False, True]]).expand(2, 3)
    context = torch.nn.functional.scaled_dot_product_attention(query, key, key, unmasked)
    assert context.isnan().any()


@pytest.mark.parametrize("sizes", SHAPES)
def test_results_do_not_depend_on_the_number_of_threads(
    sizes: tuple[int, ...], restore_num_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_threads, "WORK_PER_THREAD", 1)
    # at the larger scale some features are clamped and others are not
    for scale in (1, 5):
        inputs = _inputs(sizes, scale)
        torch.set_num_threads(1)
        expected = _scores_and_gradients(inputs)
        for num_threads in (1, 2, 3, 7):
            torch.set_num_threads(num_threads)
            for _ in range(3):
                actual = _scores_and_gradients(inputs)
                assert all(torch.equal(*pair) for pair in zip(actual, expected, strict=True))
            assert torch.get_num_threads() == num_threads


def test_a_batch_equals_its_items() -> None:
    inputs = [tensor.detach() for tensor in _inputs((5, 9, 37, 6))]
    batch_scores = additive.scores(*inputs)
    for item in range(5):
        single = additive.scores(inputs[0][item, None], inputs[1][item, None], inputs[2])
        assert torch.equal(single[0], batch_scores[item])


def test_the_fallback_thread_pool_gives_equal_results(
    restore_num_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = _inputs(SHAPES[0])
    expected = _scores_and_gradients(inputs)
    monkeypatch.setattr(kernel_threads, "WORK_PER_THREAD", 1)
    monkeypatch.setattr(kernel_threads, "openmp", lambda: None)
    torch.set_num_threads(3)
    for _ in range(3):
        actual = _scores_and_gradients(inputs)
        assert all(torch.equal(*pair) for pair in zip(actual, expected, strict=True))


@pytest.mark.parametrize("fallback_pool", [False, True])
def test_concurrent_calls_from_python_threads(
    fallback_pool: bool, restore_num_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_threads, "WORK_PER_THREAD", 1)
    if fallback_pool:
        monkeypatch.setattr(kernel_threads, "openmp", lambda: None)
    torch.set_num_threads(2)
    problems = [_inputs(SHAPES[i % len(SHAPES)]) for i in range(16)]
    expected_results = [_scores_and_gradients(inputs) for inputs in problems]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            for actual, expected in zip(
                pool.map(_scores_and_gradients, problems), expected_results, strict=True
            ):
                assert all(torch.equal(*pair) for pair in zip(actual, expected, strict=True))


class _ScoreDataset(torch.utils.data.Dataset[Tensor]):
    """A dataset that computes scores in the worker processes of a `DataLoader`."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        torch.manual_seed(index)
        return additive.scores(*(tensor.detach() for tensor in _inputs(SHAPES[0])))


@pytest.mark.skipif(sys.platform != "linux", reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:This DataLoader will create 2 worker processes:UserWarning")
def test_scores_in_forked_data_loader_workers(
    restore_num_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_threads, "WORK_PER_THREAD", 1)
    torch.set_num_threads(2)
    data = _ScoreDataset()
    expected = [data[i] for i in range(4)]
    loader = torch.utils.data.DataLoader(
        data, batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=60
    )
    assert all(torch.equal(*pair) for pair in zip(loader, expected, strict=True))


@pytest.mark.skipif(sys.platform != "linux", reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_scores_after_os_fork(restore_num_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child does not set the number of threads, with which PyTorch's own operators deadlock."""
    monkeypatch.setattr(kernel_threads, "WORK_PER_THREAD", 1)
    torch.set_num_threads(2)
    a, b, v = (tensor.detach().exp() for tensor in _inputs(SHAPES[0]))
    expected = launch.scores(a, b, v[None])
    assert expected is not None
    child = os.fork()
    if child == 0:
        actual = launch.scores(a, b, v[None])
        equal = actual is not None and (actual.numpy() == expected.numpy()).all()
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


def _kernels() -> list[tuple[Kernel, torch.dtype]]:
    """Return all kernels, with the types for which they are compiled."""
    additive_kernels = [launch.EXPONENTIALS, launch.SCORES, launch.BY_KEYS, launch.BY_FEATURES]
    others = [
        recurrent_launch._KERNEL, transformer_launch._KERNEL, lstm.FORWARD, lstm.BACKWARD,
        attention_steps.ATTEND, attention_steps.GRADIENTS, attention_steps.SOURCE_GRADIENTS,
        *sequence._KERNELS.values(),
    ]  # fmt: skip
    pairs = [
        (kernel, dtype) for kernel in additive_kernels for dtype in (torch.float32, torch.float64)
    ]
    return pairs + [(kernel, torch.float32) for kernel in others]


@pytest.mark.slow
def test_every_kernel_is_kept_in_a_file_that_needs_no_other_code() -> None:
    for kernel, dtype in _kernels():
        assert machine_code.load(kernel, dtype) is not None
        kind = str(dtype).removeprefix("torch.")
        name = f"{kernel.module}.{kernel.factory}.{kind}.{machine_code._KEY}.o"
        assert machine_code._stored(name) is not None


@pytest.fixture
def other_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The empty folder in which kernels are kept during the test."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    cached = (
        machine_code.load, machine_code._folders, machine_code._folder_to_write,
        machine_code._compiler, machine_code._can_execute,
    )  # fmt: skip
    for function in cached:
        function.cache_clear()
    yield tmp_path
    for function in cached:
        function.cache_clear()


@pytest.mark.slow
def test_kernels_are_compiled_again_if_their_file_is_damaged(
    monkeypatch: pytest.MonkeyPatch, other_folder: Path
) -> None:
    x = torch.linspace(-1, 1, 40)[None, None]
    expected = launch.prepare_keys(x)
    (file,) = other_folder.glob("*.o")
    content = file.read_bytes()
    compiled, compile_kernel = list[Any](), compiler.compile_kernel

    def counted(kernel: Any) -> Any:
        compiled.append(kernel)
        return compile_kernel(kernel)

    monkeypatch.setattr(compiler, "compile_kernel", counted)
    for damaged in (content, b"", content[:-1], content[:100] + b"?" + content[101:]):
        file.write_bytes(damaged)
        machine_code.load.cache_clear()
        before = len(compiled)
        assert torch.equal(launch.prepare_keys(x), expected)
        assert len(compiled) == before + (damaged != content)
        assert machine_code._stored(file.name) is not None


@pytest.mark.slow
@pytest.mark.parametrize("writable", [True, False])
def test_kernels_compile_without_a_file(
    monkeypatch: pytest.MonkeyPatch, other_folder: Path, writable: bool
) -> None:
    torch.manual_seed(0)
    expected = additive.scores(*_inputs(SHAPES[0]))
    machine_code.load.cache_clear()
    if writable:  # no object file, because the kernel calls other code
        for file in other_folder.iterdir():
            file.unlink()
        monkeypatch.setattr(compiler, "object_file", lambda *_: None)
    else:
        monkeypatch.setattr(machine_code, "_folders", list)
        monkeypatch.setattr(machine_code, "_folder_to_write", lambda: None)
    torch.manual_seed(0)
    assert torch.equal(additive.scores(*_inputs(SHAPES[0])), expected)
    assert not (writable and [*other_folder.glob("*.o")])


def test_a_kernel_that_calls_python_has_no_object_file() -> None:
    def kernel(arguments: Any) -> None:
        arguments[0] = len(str(arguments[1]))

    compiled = compiler.compile_kernel(kernel)
    assert compiler.object_file(compiled, "entry") is None
    job = np.array([0, 12345], dtype=np.int64)
    compiled.ctypes(job.ctypes.data_as(ctypes.POINTER(ctypes.c_int64)))
    assert job[0] == 5


COMPILES_WHEN_TOLD = """
import sys
import torch
from regard.kernels.additive.cpu import launch
from regard.kernels.cpu import compiler, machine_code
compile_kernel = compiler.compile_kernel
def told(kernel):
    print("compiled", end=" ")
    return compile_kernel(kernel)
compiler.compile_kernel = told
print("ready", flush=True)
sys.stdin.readline()
machine_code.load(launch.EXPONENTIALS)
print("loaded")
"""


@pytest.mark.slow
def test_one_of_several_processes_compiles_a_kernel(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", COMPILES_WHEN_TOLD],
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    outputs = [process.communicate()[0] for process in processes]
    assert sorted(outputs) == ["compiled loaded\n", "loaded\n"]
    assert len([*tmp_path.glob("*.o")]) == 1


WITH_STORED_KERNELS = """
import sys
import torch
from regard.kernels import additive, reference
a, b, v = torch.randn(2, 3, 5), torch.randn(2, 4, 5), torch.randn(5)
assert torch.allclose(additive.scores(a, b, v), reference.additive_scores(a, b, v), atol=1e-5)
assert additive.prepare_keys(b).prepared is not None
print("numba" in sys.modules)
"""


def test_stored_kernels_are_loaded_without_numba() -> None:
    outputs = [
        subprocess.run(
            [sys.executable, "-c", WITH_STORED_KERNELS], capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    ]
    assert outputs[1] == "False\n"


WITHOUT_NUMBA = """
import sys
import warnings
%s
import torch
from regard.kernels import additive, reference
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        a, b, v = torch.randn(2, 3, 5), torch.randn(2, 4, 5), torch.randn(5)
        actual = additive.scores(a, b, v)
        assert additive.prepare_keys(b).prepared is None
        assert torch.allclose(actual, reference.additive_scores(a, b, v), atol=1e-5)
print(len(caught), caught[0].message)
"""


@pytest.mark.usefixtures("other_folder")
def test_a_signal_during_compilation_is_handled_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compile_kernel, finished = compiler.compile_kernel, list[bool]()

    def interrupted(kernel: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        compiled = compile_kernel(kernel)
        finished.append(True)
        return compiled

    monkeypatch.setattr(compiler, "compile_kernel", interrupted)
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        launch.prepare_keys(torch.zeros(1, 1, 40))
    assert finished == [True]
    assert signal.getsignal(signal.SIGINT) is handler


@pytest.mark.slow
@pytest.mark.parametrize(
    "setup",
    [
        'sys.modules["numba"] = None',
        pytest.param('import os; os.environ["NUMBA_DISABLE_JIT"] = "1"', marks=pytest.mark.soak),
        'sys.modules["numba"] = type("Broken", (), {"__getattr__": lambda *_: {}["numba"]})()',
    ],
    ids=["missing", "disabled", "broken"],
)
def test_without_numba_pytorch_computes_and_one_warning_is_issued(
    setup: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_NUMBA % setup],
        capture_output=True,
        text=True,
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 plain PyTorch computes what kernels would compute")
    assert "numba" in done.stdout.lower()


SOME_KERNELS = """
import sys
import warnings
import torch
%s
from regard.kernels import additive, reference
from regard.kernels.additive.cpu import launch
from regard.kernels.cpu import machine_code
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    print(machine_code.load(launch.EXPONENTIALS) is not None, end=" ")
    for dtype in (torch.float32, torch.float64):
        shapes = (2, 3, 5), (2, 4, 5), (5,)
        a, b, v = (torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes)
        actual, expected = additive.scores(a, b, v), reference.additive_scores(a, b, v)
        assert torch.allclose(actual, expected, atol=1e-5)
        gradients = (torch.autograd.grad(e.sum(), (a, b, v)) for e in (actual, expected))
        for pair in zip(*gradients):
            assert torch.allclose(*pair, atol=1e-4)
    from regard.kernels.recurrent import attending, attention_steps, lstm, sequence
    print(sequence.supports("lstm", 64), lstm.is_faster(10_000, 64), attending.is_faster(10, 64), end=" ")
    print(attention_steps.has_attention_kernels(), end=" ")
print(len(caught), *(each.message for each in caught))
"""

DENY_EXECUTION = "import ctypes; assert ctypes.CDLL(None).prctl(65, 1, 0, 0, 0) == 0"
"""PR_SET_MDWE: no memory of this process becomes executable from here on (Linux 6.3)."""


@pytest.mark.parametrize(
    ("setup", "message"),
    [
        ('sys.modules["numba"] = None', "True False False False False 1 plain PyTorch computes"),
        (DENY_EXECUTION, "False False False False False 1 plain PyTorch computes"),
    ],
    ids=["numba missing", "execution denied"],
)
def test_pytorch_computes_where_kernels_cannot_be_compiled_or_run(
    setup: str, message: str, tmp_path: Path
) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    store = "from regard.kernels.additive.cpu import launch; from regard.kernels.cpu.machine_code import load"
    command = [sys.executable, "-c", f"{store}; load(launch.EXPONENTIALS)"]
    subprocess.run(command, check=True, env=environment)
    done = subprocess.run(
        [sys.executable, "-c", SOME_KERNELS % setup],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    if setup == DENY_EXECUTION and "assert ctypes" in done.stderr:
        pytest.skip("this system cannot deny execution")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(message)


def test_kernels_of_changed_sources_are_not_kept(
    monkeypatch: pytest.MonkeyPatch, other_folder: Path
) -> None:
    monkeypatch.setattr(machine_code, "_sources", lambda: b"others")
    x = torch.linspace(-1, 1, 40)[None, None]
    with pytest.warns(UserWarning, match="the package has been changed since"):
        assert launch.prepare_keys(x) is None
    assert not [*other_folder.glob("*.o")]


def test_kernels_compiled_with_a_settings_file_of_numba_are_not_kept(
    monkeypatch: pytest.MonkeyPatch, other_folder: Path
) -> None:
    monkeypatch.setattr(compiler, "HAS_SETTINGS_FILE", True)
    assert launch.prepare_keys(torch.zeros(1, 1, 40)) is not None
    assert not [*other_folder.glob("*.o")]


@pytest.mark.skipif(not HAS_BFLOAT16, reason="the kernels need no such instructions here")
def test_settings_of_numba_that_exclude_instructions_are_noticed(tmp_path: Path) -> None:
    (tmp_path / ".numba_config.yaml").write_text("cpu_name: generic\n")
    done = subprocess.run(
        [sys.executable, "-c", SOME_KERNELS % ""],
        capture_output=True, text=True, cwd=tmp_path, check=False,
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("False False False False False 1 plain PyTorch computes")


def test_kernels_are_read_from_folders_that_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch, other_folder: Path
) -> None:
    x = torch.linspace(-1, 1, 40)[None, None]
    expected = launch.prepare_keys(x)
    folders = [other_folder / "none", other_folder]
    monkeypatch.setattr(machine_code, "_folders", lambda: folders)
    monkeypatch.setattr(machine_code, "_folder_to_write", lambda: None)
    monkeypatch.setattr(compiler, "compile_kernel", None)
    machine_code.load.cache_clear()
    assert torch.equal(launch.prepare_keys(x), expected)


def test_the_name_of_an_object_file_depends_on_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, sources = machine_code._key(), machine_code._sources()
    monkeypatch.setenv("NUMBA_CACHE_DIR", "elsewhere")
    assert machine_code._key() == before
    monkeypatch.setenv("NUMBA_OPT", "0")
    assert machine_code._key() != before
    monkeypatch.delenv("NUMBA_OPT")
    monkeypatch.setattr(machine_code, "_SOURCES", b"others")
    assert machine_code._key() != before
    monkeypatch.setattr(Path, "read_bytes", lambda path: b"another source")
    assert machine_code._sources() != sources


def test_every_kernel_can_be_imported() -> None:
    modules = ("attending", "launch", "lstm", "sequence")
    names = ("transformer.launch", *(f"recurrent.{name}" for name in modules))
    assert all(import_kernel(name) is not None for name in names)
    assert import_kernel("recurrent.none") is None
