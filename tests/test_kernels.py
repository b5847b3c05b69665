"""Additive kernels against the reference: values, gradients, second derivatives, memory, tracing.

Tests that take `backend` run on the backend of the CPU and on plain PyTorch.
"""

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

import oracle
from oracle import (
    assert_all_close,
    assert_all_equal,
    assert_close,
    gradients,
    to_float64,
    tolerance_for,
)
from regard.errors import ConfigError, ShapeError
from regard.kernels import additive, reference
from regard.kernels.additive import autograd, dispatch, pytorch
from regard.kernels.normalizers import apply_normalizer, normalize
from selection import covering

SIZES = [(1, 1, 1, 1, 1), (2, 3, 5, 7, 4), (3, 1, 9, 2, 1), (1, 7, 2, 5, 3)]
"""B, L, T, D and the width of the values."""
DTYPES = [torch.float64, torch.float32, torch.bfloat16]
NORMALIZERS = ["softmax", "none"]
PAIRS = [None, 1, 4, 11]
"""Pairs of query and key per block; None for the default workspace. 1 splits keys, rows and items."""
WORKSPACES = [additive.WORKSPACE, 100]
"""Workspaces in bytes: all queries in one block, and several blocks."""
BACKENDS = ["cpu", "pytorch"]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test on the backend of the CPU and on plain PyTorch."""
    if request.param == "pytorch":
        monkeypatch.setattr(dispatch, "load_backend", lambda device_type: None)
    return request.param


def _tolerance(dtype: torch.dtype) -> float:
    return tolerance_for(dtype, float32=16, bfloat16=8)


def _workspace(pairs: int | None, width: int, dtype: torch.dtype = torch.float64) -> int:
    if pairs is None:
        return additive.WORKSPACE
    return pairs * 3 * width * (8 if dtype == torch.float64 else 4)


def _inputs(sizes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Return the leaves a, b, v and values."""
    batch, length, width, dim, out = sizes
    shapes = [(batch, length, dim), (batch, width, dim), (dim,), (batch, width, out)]
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def _mask(sizes: tuple[int, ...]) -> Tensor:
    """Return a random mask: the first key is never masked, but the last row is masked entirely."""
    masked = torch.rand(sizes[:3]) < 0.4
    masked[:, :, 0] = False
    masked[-1, -1] = True
    return masked


def test_the_reference_gives_masked_keys_no_weight_or_gradient() -> None:
    scores = torch.tensor([[[1.0, 2.0, torch.nan], [3.0, torch.inf, torch.nan]]]).double()
    scores.requires_grad_()
    masked = torch.tensor([[[False, False, True], [True, True, True]]])
    weights = reference.normalize(scores, masked, "softmax")
    expected = torch.zeros(1, 2, 3, dtype=torch.float64)
    expected[0, 0, :2] = torch.softmax(torch.tensor([1.0, 2.0]).double(), 0)
    assert_close(weights, expected, 1e-15)
    (gradient,) = gradients(weights, [scores])
    assert gradient.isfinite().all()
    assert not gradient[masked].any()


def test_gradients_of_the_reference() -> None:
    a, b, v, values = _inputs((2, 2, 3, 2, 2))
    masked = _mask((2, 2, 3))

    def call(*inputs: Tensor) -> Tensor:
        return oracle.reference_attention(
            reference.additive_scores(*inputs[:3]), inputs[3], masked
        ).context

    assert torch.autograd.gradcheck(call, (a, b, v, values))


def _scores(inputs: list[Tensor], pairs: int | None = None) -> Tensor:
    """Return the scores of a, b and v, computed in blocks of `pairs` pairs."""
    workspace = _workspace(pairs, inputs[0].shape[-1], inputs[0].dtype)
    return additive.scores(*inputs[:3], workspace=workspace)


def _context(inputs: list[Tensor], pairs: int | None = None, **options: Any) -> Tensor:
    """Return the context of a, b, v and values, computed in blocks of `pairs` pairs."""
    workspace = _workspace(pairs, inputs[0].shape[-1], inputs[0].dtype)
    return additive.attend(*inputs[:4], workspace=workspace, **options).context


@pytest.mark.parametrize(
    ("sizes", "pairs", "dtype", "backend"),
    covering(itertools.product([*SIZES, (2, 9, 37, 6, 1)], PAIRS, DTYPES, BACKENDS)),
    indirect=["backend"],
)
def test_scores_equal_the_reference(
    sizes: tuple[int, ...], pairs: int | None, dtype: torch.dtype, backend: str, poisoned: None
) -> None:
    inputs = _inputs(sizes, dtype)[:3]
    actual = _scores(inputs, pairs)
    inputs_float64 = [to_float64(tensor) for tensor in inputs]
    expected = reference.additive_scores(*inputs_float64)
    assert actual.dtype == dtype
    assert_close(actual, expected, _tolerance(dtype))
    assert_all_close(
        gradients(actual, inputs), gradients(expected, inputs_float64), _tolerance(dtype)
    )


@pytest.mark.parametrize(
    ("sizes", "pairs", "normalizer", "dtype", "backend"),
    covering(itertools.product(SIZES, PAIRS, NORMALIZERS, DTYPES, BACKENDS)),
    indirect=["backend"],
)
def test_attention_equals_the_reference(
    sizes: tuple[int, ...],
    pairs: int | None,
    normalizer: str,
    dtype: torch.dtype,
    backend: str,
    poisoned: None,
) -> None:
    bias = torch.randn(sizes[:3], dtype=dtype, requires_grad=True)
    inputs = [*_inputs(sizes, dtype), bias]
    masked = _mask(sizes)
    actual = _context(inputs, pairs, masked=masked, bias=bias, normalizer=normalizer)
    inputs_float64 = [to_float64(tensor) for tensor in inputs]
    scores = reference.additive_scores(*inputs_float64[:3])
    expected = oracle.reference_attention(
        scores, inputs_float64[3], masked, inputs_float64[4], normalizer
    ).context
    assert actual.dtype == dtype
    assert_close(actual, expected, _tolerance(dtype))
    assert_all_close(
        gradients(actual, inputs), gradients(expected, inputs_float64), _tolerance(dtype)
    )


@pytest.mark.parametrize("pairs", PAIRS)
def test_log_sum_exp_equals_the_reference(pairs: int | None, backend: str) -> None:
    sizes = (2, 3, 5, 7, 4)
    bias = torch.randn(1, *sizes[1:3], dtype=torch.float64, requires_grad=True)
    inputs, masked = [*_inputs(sizes), bias], _mask(sizes)
    options: dict[str, Any] = {"masked": masked, "bias": bias, "need_log_sum_exp": True}
    result = additive.attend(*inputs[:4], **options, workspace=_workspace(pairs, 7))
    actual = result.log_sum_exp
    scores = (reference.additive_scores(*inputs[:3]) + bias).masked_fill(masked, -torch.inf)
    expected = scores.logsumexp(-1)
    assert actual is not None
    assert actual[-1, -1] == -torch.inf
    unmasked = ~masked.all(-1)
    assert_close(actual[unmasked], expected[unmasked], 1e-13)
    actual_gradients = gradients(torch.cat([actual[unmasked], result.context.flatten()]), inputs)
    context = oracle.reference_attention(scores.masked_fill(masked, 0), inputs[3], masked).context
    expected_gradients = gradients(torch.cat([expected[unmasked], context.flatten()]), inputs)
    assert_all_close(actual_gradients, expected_gradients, 1e-13)
    with pytest.raises(ConfigError, match="requires the normaliser softmax, got 'none'"):
        additive.attend(*inputs[:4], normalizer="none", need_log_sum_exp=True)


@pytest.mark.parametrize("pairs", PAIRS)
def test_heads_equal_separate_attentions(pairs: int | None, backend: str) -> None:
    sizes = (2, 3, 5, 7, 4)
    heads = [_inputs(sizes) for _ in range(3)]
    stacked = [
        torch.stack(tensors, 0 if tensors[0].dim() == 1 else 1)
        for tensors in zip(*heads, strict=True)
    ]
    masked, bias = _mask(sizes), torch.randn(1, 3, 1, 5).double()
    options: dict[str, Any] = {"masked": masked[:, None], "bias": bias.expand(-1, -1, 3, -1)}
    scores = _scores(stacked, pairs)
    for head, inputs in enumerate(heads):
        actual = _context(stacked, pairs, **options)
        expected = _context(inputs, masked=masked, bias=bias[:, head].expand(-1, 3, -1))
        assert_close(actual[:, head], expected, 1e-13)
        assert_close(scores[:, head], _scores(inputs), 1e-13)
        assert_all_close(gradients(actual[:, head], inputs), gradients(expected, inputs), 1e-13)


@pytest.mark.parametrize(
    ("dtype", "normalizer", "backend"),
    covering(itertools.product(DTYPES, NORMALIZERS, BACKENDS)),
    indirect=["backend"],
)
def test_need_weights_does_not_change_the_context(
    dtype: torch.dtype, normalizer: str, backend: str
) -> None:
    sizes = (2, 3, 5, 7, 4)
    bias = torch.randn(sizes[:3], dtype=dtype, requires_grad=True)
    inputs, masked = _inputs(sizes, dtype), _mask(sizes)
    options: dict[str, Any] = {"masked": masked, "bias": bias, "normalizer": normalizer}
    result = additive.attend(*inputs, **options, need_weights=True, workspace=64)
    context_only = additive.attend(*inputs, **options, workspace=64)
    assert context_only.weights is None
    assert result.weights is not None
    assert result.weights.dtype == dtype
    assert not result.weights[masked].any()
    assert_close(result.context, context_only.context, _tolerance(dtype))
    leaves = [*inputs, bias]
    assert_all_close(
        gradients(result.context, leaves),
        gradients(context_only.context, leaves),
        _tolerance(dtype),
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_equals_rounded_float32(dtype: torch.dtype, backend: str) -> None:
    inputs = _inputs((2, 3, 5, 7, 4), dtype)
    precise = [tensor.detach().float().requires_grad_() for tensor in inputs]
    for actual, expected in (
        (_scores(inputs), _scores(precise)),
        (_context(inputs), _context(precise)),
        (_context(inputs, 2), _context(precise, 2)),
    ):
        assert torch.equal(actual, expected.to(dtype))
        assert_all_equal(
            gradients(actual, inputs[:3]),
            [gradient.to(dtype) for gradient in gradients(expected, precise[:3])],
        )


@given(
    sizes=st.tuples(*[st.integers(1, 5)] * 5),
    pairs=st.integers(1, 30),
    broadcast=st.tuples(st.booleans(), st.booleans()),
    normalizer=st.sampled_from(NORMALIZERS),
)
def test_results_do_not_depend_on_the_block_size(
    sizes: tuple[int, ...], pairs: int, broadcast: tuple[bool, bool], normalizer: str
) -> None:
    batch, length, width = sizes[:3]
    mask_shape = (1 if broadcast[0] else batch, 1 if broadcast[1] else length, width)
    bias = torch.randn(mask_shape[0], length, width).double().requires_grad_()
    masked = torch.rand(mask_shape) < 0.5
    inputs = _inputs(sizes)

    def call(pairs: int | None) -> tuple[Tensor, ...]:
        context = _context(inputs, pairs, masked=masked, bias=bias, normalizer=normalizer)
        scores = _scores(inputs, pairs)
        leaves = [*inputs, bias]
        return context, scores, *gradients(context, leaves), *gradients(scores, inputs[:3])

    assert_all_close(call(pairs), call(None), 1e-13)


@pytest.mark.parametrize(
    ("normalizer", "pairs", "backend"),
    covering(itertools.product(NORMALIZERS, PAIRS, BACKENDS)),
    indirect=["backend"],
)
def test_first_and_second_derivatives(normalizer: str, pairs: int | None, backend: str) -> None:
    sizes = (2, 2, 3, 2, 2)
    bias = torch.randn(sizes[:3]).double().requires_grad_()
    inputs, masked = _inputs(sizes), _mask(sizes)

    def call(a: Tensor, b: Tensor, v: Tensor, values: Tensor, bias: Tensor) -> Tensor:
        return _context([a, b, v, values], pairs, masked=masked, bias=bias, normalizer=normalizer)

    assert torch.autograd.gradcheck(call, (*inputs, bias))
    assert torch.autograd.gradgradcheck(call, (*inputs, bias), fast_mode=True)


@pytest.mark.parametrize("pairs", PAIRS)
def test_first_and_second_derivatives_of_scores(pairs: int | None, backend: str) -> None:
    def call(a: Tensor, b: Tensor, v: Tensor) -> Tensor:
        return _scores([a, b, v], pairs)

    inputs = tuple(_inputs((2, 2, 3, 2, 2))[:3])
    assert torch.autograd.gradcheck(call, inputs)
    assert torch.autograd.gradgradcheck(call, inputs, fast_mode=True)


def test_second_derivatives_where_one_input_depends_on_another(backend: str) -> None:
    leaf, v, values = (
        torch.randn(s).double().requires_grad_() for s in [(2, 3, 2), (2,), (2, 3, 2)]
    )

    def call(leaf: Tensor, v: Tensor, values: Tensor) -> Tensor:
        return _context([leaf, leaf * leaf, v, values], 2)

    assert torch.autograd.gradgradcheck(call, (leaf, v, values))


@pytest.mark.parametrize("frozen", range(4))
def test_inputs_that_do_not_require_gradients(frozen: int, backend: str) -> None:
    inputs = _inputs((2, 3, 4, 2, 2))
    inputs[frozen].requires_grad_(False)
    leaves = [tensor for tensor in inputs if tensor.requires_grad]
    expected = gradients(_context(inputs), leaves)
    assert_all_close(gradients(_context(inputs, 3), leaves), expected, 1e-13)
    with torch.no_grad():
        assert not _context(inputs, 3).requires_grad


def test_autocast_does_not_change_the_backward_pass_of_blocks(backend: str) -> None:
    inputs = _inputs((2, 3, 4, 2, 2), torch.float32)

    def call() -> tuple[Tensor, ...]:
        context = _context(inputs, 3)
        return context, *gradients(context, inputs)

    expected = call()
    with torch.autocast("cpu", torch.bfloat16):
        actual = call()
    assert_all_equal(actual, expected)


def test_prepared_keys_give_equal_results() -> None:
    inputs = _inputs((2, 3, 4, 5, 2), torch.float32)
    keys: Any = additive.prepare_keys(inputs[1])
    assert keys.prepared is not None
    assert not keys.prepared.requires_grad
    for pairs in (None, 2):
        actual = _context([inputs[0], keys, *inputs[2:]], pairs)
        expected = _context(inputs, pairs)
        assert torch.equal(actual, expected)
        assert_all_equal(gradients(actual, inputs), gradients(expected, inputs))
    assert additive.prepare_keys(inputs[1] + 50).prepared is None


@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_masked_scores_have_no_effect(normalizer: str) -> None:
    scores = torch.randn(2, 3, 5, dtype=torch.float64)
    masked = _mask((2, 3, 5))
    extreme = torch.tensor([torch.nan, torch.inf, -torch.inf, 1e300], dtype=torch.float64)
    corrupted = torch.where(masked, extreme.repeat(8)[:30].view(2, 3, 5), scores)
    for raw_scores in (scores, corrupted):
        leaf = raw_scores.clone().requires_grad_()
        with torch.autograd.set_detect_anomaly(True):
            weights = normalize(leaf, masked, normalizer)
            (gradient,) = gradients(weights, [leaf])
        assert_close(weights, reference.normalize(scores, masked, normalizer), 1e-13)
        assert not weights[masked].any()
        assert not gradient[masked].any()
        assert gradient.isfinite().all()


@pytest.mark.parametrize(
    ("normalizer", "pairs", "backend"),
    covering(itertools.product(NORMALIZERS, PAIRS, BACKENDS)),
    indirect=["backend"],
)
def test_a_row_with_every_key_masked_gives_zeros(
    normalizer: str, pairs: int | None, backend: str
) -> None:
    inputs = _inputs((2, 3, 5, 4, 2))
    masked = torch.ones(2, 3, 5, dtype=torch.bool)
    with torch.autograd.set_detect_anomaly(True):
        context = _context(inputs, pairs, masked=masked, normalizer=normalizer)
        actual = gradients(context, inputs)
    assert not context.any()
    assert not any(gradient.any() for gradient in actual)


@pytest.mark.parametrize(
    ("sizes", "pairs", "backend"),
    covering(
        itertools.product([(0, 2, 3, 4, 2), (2, 0, 3, 4, 2), (2, 3, 0, 4, 2)], PAIRS, BACKENDS)
    ),
    indirect=["backend"],
)
def test_empty_inputs(sizes: tuple[int, ...], pairs: int | None, backend: str) -> None:
    inputs = _inputs(sizes)
    scores, context = _scores(inputs, pairs), _context(inputs, pairs)
    assert scores.shape == sizes[:3]
    assert context.shape == (*sizes[:2], sizes[4])
    assert not context.any()
    (context.sum() + scores.sum()).backward()
    assert all(tensor.grad is not None and not tensor.grad.any() for tensor in inputs)


@pytest.mark.parametrize("pairs", PAIRS)
def test_strides_have_no_effect_and_inputs_are_not_modified(
    pairs: int | None, backend: str
) -> None:
    plain = [tensor.detach() for tensor in _inputs((2, 3, 4, 2, 5))]
    plain[1] = plain[1][:1].expand(2, -1, -1)
    strided = [
        plain[0].transpose(0, 1).contiguous().transpose(0, 1),
        plain[1],
        torch.stack([plain[2], plain[2]], dim=1)[:, 0],
        plain[3].mT.contiguous().mT,
    ]
    before = [tensor.clone() for tensor in strided]
    leaves = [tensor.requires_grad_() for tensor in strided]
    contiguous = [tensor.clone().contiguous().detach().requires_grad_() for tensor in before]
    actual, expected = _context(leaves, pairs), _context(contiguous, pairs)
    assert_close(actual, expected, 1e-13)
    assert_all_close(gradients(actual, leaves), gradients(expected, contiguous), 1e-13)
    assert_all_equal(strided, before)


@pytest.mark.parametrize("pairs", [None, 40, 7])
def test_dropout_zeroes_weights_at_its_rate_and_scales_the_others(pairs: int | None) -> None:
    a, b = torch.randn(4, 30, 2).double(), torch.randn(4, 20, 2).double()
    values = torch.eye(20).double().expand(4, -1, -1)
    # v = 0: every weight is 1 / T before dropout; with identity values the context is the weights
    weights = _context([a, b, torch.zeros(2).double(), values], pairs, dropout=0.25)
    dropped = weights == 0
    assert_close(weights[~dropped], torch.full((int((~dropped).sum()),), 1 / 20 / 0.75), 1e-7)
    assert 0.2 < dropped.double().mean() < 0.3
    assert len(torch.unique(dropped.flatten(0, 1), dim=0)) > 100  # blocks have different masks


@pytest.mark.parametrize("pairs", [None, 7, 2])
def test_dropout_is_the_same_in_both_passes(pairs: int | None) -> None:
    inputs = tuple(_inputs((2, 3, 4, 2, 2)))

    def call(*inputs: Tensor) -> Tensor:
        torch.manual_seed(5)
        return _context(list(inputs), pairs, dropout=0.5)

    assert not torch.allclose(call(*inputs), _context(list(inputs)))
    assert torch.autograd.gradcheck(call, inputs)
    assert torch.autograd.gradgradcheck(call, inputs, fast_mode=True)


def test_backward_does_not_advance_the_random_generator() -> None:
    inputs = _inputs((2, 3, 4, 2, 2))
    context = _context(inputs, 5, dropout=0.5)
    state = torch.get_rng_state()
    context.sum().backward()
    assert torch.equal(torch.get_rng_state(), state)
    second = _context(inputs, 5, dropout=0.5)
    assert not torch.equal(context, second)


def _operators() -> list[tuple[Any, tuple[Any, ...]]]:
    """Return every operator with example arguments, contiguous and permuted."""

    def leaf(*shape: int) -> Tensor:
        return torch.randn(shape, requires_grad=True)

    def permuted(*shape: int) -> Tensor:
        return torch.randn(shape).transpose(0, 1).requires_grad_()

    a, b, v = leaf(2, 3, 5), leaf(2, 4, 5), leaf(1, 5)
    backward_inputs = [torch.randn(2, 3, 4), *(tensor.detach() for tensor in (a, b, v))]
    masked, bias, seed = _mask((2, 3, 4))[:, None], leaf(1, 1, 3, 4), torch.tensor(3)
    b_v_values = leaf(2, 1, 4, 5), leaf(1, 5), leaf(2, 1, 4, 3)
    workspace = 1 << 20
    return [
        (autograd.scores_forward.operator, (a, b, v, None, workspace)),
        (
            autograd.scores_forward.operator,
            (permuted(3, 2, 5), b, v, dispatch.prepare_keys(b), workspace),
        ),
        (autograd.scores_backward.operator, (*backward_inputs, workspace)),
        (
            autograd.attention_forward.operator,
            (leaf(2, 1, 3, 5), *b_v_values, masked, bias, None, seed, "softmax", 0.3, 200),
        ),
        (
            autograd.attention_forward.operator,
            (permuted(1, 2, 3, 5), *b_v_values, None, None, None, None, "none", 0.0, 200),
        ),
        (
            autograd.attention_backward.operator,
            (
                torch.randn(2, 1, 3, 3),
                None,
                *(tensor.detach() for tensor in (a[:, None], *b_v_values)),
                masked,
                bias.detach(),
                None,
                seed,
                "softmax",
                0.3,
                200,
            ),
        ),
    ]


@pytest.mark.parametrize("index", range(6))
def test_operators_pass_opcheck(index: int) -> None:
    operator, arguments = _operators()[index]
    torch.library.opcheck(operator, arguments)


@pytest.mark.parametrize(
    ("workspace", "need_weights"),
    covering(itertools.product(WORKSPACES, [False, True]), size=1),
)
def test_compile_with_fullgraph_and_dynamic_shapes(
    workspace: int, need_weights: bool, unchecked: None
) -> None:
    def call(*inputs: Tensor) -> Tensor:
        result = additive.attend(*inputs, need_weights=need_weights, workspace=workspace)
        return result.context.sin()

    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    for size in (3, 6, 4):
        inputs = _inputs((2, size, size + 1, 5, 3))
        actual, expected = compiled(*inputs), call(*inputs)
        assert_close(actual, expected, 1e-13)
        assert_all_close(gradients(actual, inputs), gradients(expected, inputs), 1e-13)


@pytest.mark.parametrize("normalizer", ["softmax", "entmax15"])
@pytest.mark.parametrize("workspace", WORKSPACES)
def test_direct_calls_equal_calls_through_the_dispatcher(
    workspace: int, normalizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = _inputs((2, 3, 5, 7, 4))
    bias = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    masked = torch.rand(2, 3, 5) < 0.4
    masked[:, :, 0] = False

    def compute() -> list[Tensor]:
        torch.manual_seed(1)
        result = additive.attend(
            *inputs, masked, bias, normalizer, dropout=0.3, workspace=workspace,
            need_log_sum_exp=normalizer == "softmax",
        )  # fmt: skip
        total = result.context.sin().sum()
        if result.log_sum_exp is not None:
            total = total + result.log_sum_exp.cos().sum()
        leaves = [*inputs, bias]
        first_order = torch.autograd.grad(total, leaves, retain_graph=True)
        with_graph = torch.autograd.grad(total, leaves, create_graph=True)
        return [result.context, total, *first_order, *gradients(with_graph[0].sin(), leaves)]

    direct = compute()
    monkeypatch.setattr(autograd, "needs_dispatcher", lambda inputs: True)
    assert_all_equal(direct, compute())


def _total(workspace: int) -> Any:
    """Return a function of a, b, v and values that returns a scalar."""
    return lambda *inputs: additive.attend(*inputs, workspace=workspace).context.sin().sum()


@pytest.mark.parametrize("workspace", WORKSPACES)
def test_fake_tensors_give_gradients_of_the_right_shapes(workspace: int) -> None:
    with FakeTensorMode():
        inputs = _inputs((2, 3, 5, 7, 4))
        leaf_gradients = gradients(_total(workspace)(*inputs), inputs)
        for gradient, leaf in zip(leaf_gradients, inputs, strict=True):
            assert gradient.shape == leaf.shape


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("tracer", ["make_fx", "trace"])
@pytest.mark.parametrize("workspace", WORKSPACES)
def test_a_traced_graph_computes_with_other_inputs(workspace: int, tracer: str) -> None:
    total, inputs = _total(workspace), _detached((2, 3, 5, 7, 4))
    traced = make_fx(total)(*inputs) if tracer == "make_fx" else torch.jit.trace(total, inputs)
    inputs = _detached((2, 3, 5, 7, 4))
    assert_close(traced(*inputs), total(*inputs), 1e-13)
    assert_all_close(_gradients_of(traced, inputs), _gradients_of(total, inputs), 1e-13)
    if tracer == "make_fx":
        traced = make_fx(torch.func.grad(total, (0, 1, 2, 3)))(*_detached((2, 3, 5, 7, 4)))
        assert_all_close(traced(*inputs), _gradients_of(total, inputs), 1e-13)


def _prepared(a: Tensor, b: Tensor, v: Tensor, values: Tensor) -> Tensor:
    return additive.attend(a, additive.prepare_keys(b), v, values).context


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("tracer", [make_fx, lambda call: lambda *x: torch.jit.trace(call, x)])
def test_prepared_keys_are_traced(tracer: Any) -> None:
    traced = tracer(_prepared)(*_detached((2, 3, 5, 7, 4)))
    inputs = _detached((2, 3, 5, 7, 4))
    assert_close(traced(*inputs), _prepared(*inputs), 1e-13)


def test_prepared_keys_are_transformed() -> None:
    inputs = _detached((2, 3, 5, 7, 4))
    single = torch.vmap(_prepared, in_dims=(0, 0, None, 0))(
        inputs[0][:, None], inputs[1][:, None], inputs[2], inputs[3][:, None]
    )
    assert_close(single[:, 0], _prepared(*inputs), 1e-13)
    grad = torch.func.grad(lambda *x: _prepared(*x).sin().sum(), (0, 1, 2, 3))
    assert_all_close(grad(*inputs), _gradients_of(_total(1 << 24), inputs), 1e-13)
    with FakeTensorMode():
        assert _prepared(*_detached((2, 3, 5, 7, 4))).shape == (2, 3, 4)


def _detached(sizes: tuple[int, ...]) -> list[Tensor]:
    return [tensor.detach() for tensor in _inputs(sizes)]


def _gradients_of(total: Any, inputs: list[Tensor]) -> tuple[Tensor, ...]:
    leaves = [tensor.requires_grad_() for tensor in inputs]
    return torch.autograd.grad(total(*leaves), leaves)


@pytest.mark.parametrize("workspace", WORKSPACES)
def test_func_grad_equals_autograd(workspace: int) -> None:
    inputs = _detached((2, 3, 5, 7, 4))
    actual = torch.func.grad(_total(workspace), (0, 1, 2, 3))(*inputs)
    assert_all_close(actual, _gradients_of(_total(workspace), inputs), 1e-13)


@pytest.mark.parametrize("workspace", WORKSPACES)
def test_func_vjp_and_jacrev_with_inputs_that_require_no_gradient(workspace: int) -> None:
    inputs = _detached((2, 3, 5, 7, 4))
    total, pull_back = torch.func.vjp(_total(workspace), *inputs)
    actual = pull_back(torch.ones_like(total))
    jacobians = torch.func.jacrev(_total(workspace), (0, 1, 2, 3))(*inputs)
    expected = _gradients_of(_total(workspace), inputs)
    assert_all_close(actual, expected, 1e-13)
    assert_all_close(jacobians, expected, 1e-13)


@pytest.mark.parametrize("workspace", WORKSPACES)
def test_vmap_equals_a_loop(workspace: int) -> None:
    """Also over `torch.func.grad`, and over batched gradients of one backward pass."""
    a, b, v, values = _detached((6, 3, 5, 7, 4))
    batches = a.view(3, 2, 3, 7), b[:2], v, values.view(3, 2, 5, 4)
    axes = 0, None, None, 0
    total = _total(workspace)
    for call in (total, torch.func.grad(total), torch.no_grad()(total)):
        actual = torch.vmap(call, axes)(*batches)
        for number in range(3):
            pairs = zip(batches, axes, strict=True)
            items = [batch if axis is None else batch[number] for batch, axis in pairs]
            assert_close(actual[number], call(*items), 1e-13)
    a = batches[0][0].requires_grad_()
    context = additive.attend(a, b[:2], v, values[:2], workspace=workspace).context
    grad_outputs = torch.randn(3, *context.shape, dtype=a.dtype)
    (actual,) = torch.autograd.grad(
        context, a, grad_outputs, is_grads_batched=True, retain_graph=True
    )
    for number in range(3):
        (expected,) = torch.autograd.grad(context, a, grad_outputs[number], retain_graph=True)
        assert_close(actual[number], expected, 1e-13)


@pytest.mark.parametrize("workspace", WORKSPACES)
def test_activation_checkpointing_gives_equal_gradients(workspace: int) -> None:
    inputs = _inputs((2, 3, 5, 7, 4))
    expected = torch.autograd.grad(_total(workspace)(*inputs), inputs)
    actual = checkpoint(_total(workspace), *inputs, use_reentrant=False)
    assert_all_equal(torch.autograd.grad(actual, inputs), expected)


@pytest.mark.parametrize("workspace", WORKSPACES)
def test_autocast_does_not_change_float32_results(workspace: int) -> None:
    """Neither in a direct call nor in a program that was exported without autocast."""
    inputs = _inputs((2, 3, 5, 7, 4), torch.float32)

    class Module(torch.nn.Module):
        def forward(self, *inputs: Tensor) -> Tensor:
            return additive.attend(*inputs, workspace=workspace).context

    def compute(call: Any, autocast: bool = True) -> list[Tensor]:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            context = call(*inputs)
        return [context, *torch.autograd.grad(context.sin().sum(), inputs)]

    exported = torch.export.export(Module(), tuple(inputs)).module()
    expected = compute(Module(), autocast=False)
    for call in (Module(), exported):
        assert_all_equal(compute(call), expected)


class _LargestTensor(TorchDispatchMode):
    """Records the size in bytes of the largest tensor that any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.size = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.size = max(self.size, leaf.untyped_storage().nbytes())
        return result


@pytest.mark.parametrize("sizes", [(2, 40, 40, 8, 4), (64, 5, 5, 8, 4), (1, 2, 300, 8, 4)])
def test_no_tensor_is_larger_than_a_third_of_the_workspace(sizes: tuple[int, ...]) -> None:
    batch, length, width, dim, _ = sizes
    a, b, v, _ = (tensor.detach() for tensor in _inputs(sizes, torch.float32))
    gradient = torch.randn(batch, length, width)
    full_size = 4 * batch * length * width * dim
    # the scores and their gradient are B x L x T, an eighth of B x L x T x D
    limit = max(full_size // 8, *(4 * tensor.numel() for tensor in (a, b)))
    assert limit < full_size

    def largest(workspace: int) -> int:
        with _LargestTensor() as recorder:
            pytorch.scores(a, b, v[None], workspace)
            pytorch.gradients(gradient, a, b, v[None], workspace)
        return recorder.size

    assert largest(3 * limit) <= limit
    assert largest(8 * full_size) >= full_size


CALLS = [
    "additive.scores(a, b, v, workspace)",
    "additive.attend(a, b, v, values, workspace=workspace).context",
]
PEAK_MEMORY = """
import re
from pathlib import Path
import torch
from regard.kernels import additive
from regard.kernels.additive import dispatch

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

def run(size, workspace):
    a, b, values = (torch.randn(1, size, 64, requires_grad=True) for _ in range(3))
    v = torch.randn(64, requires_grad=True)
    CALL.sum().backward()

torch.set_num_threads(1)
run(64, 2**15)  # in several blocks, as the call below
before = peak()
run(1024, 2**24)
print((peak() - before) / 1024)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc/self/status")
@pytest.mark.parametrize(
    ("call", "setup"),
    covering(
        itertools.product(CALLS, ["", "dispatch.load_backend = lambda device_type: None"]), size=1
    ),
)
def test_memory_stays_near_the_workspace(call: str, setup: str) -> None:
    """The workspace is 16 MiB; three tensors of all pairs would take 256 MiB each."""
    code = PEAK_MEMORY.replace("CALL", call).replace("def peak", setup + "\n\ndef peak", 1)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 160


@pytest.mark.parametrize(
    ("b", "v", "message"),
    [
        (torch.zeros(2, 4, 3), torch.zeros(2), "expected projected queries"),
        (torch.zeros(3, 4, 3), torch.zeros(3), "expected projected queries"),
        (torch.zeros(2, 4, 3), torch.zeros(2, 3), "expected projected queries"),
        (torch.zeros(2, 4, 3), torch.zeros(3, device="meta"), "same device, got cpu, cpu, meta"),
        (torch.zeros(2, 4, 3, device="meta"), torch.zeros(3), "same device, got cpu, meta, cpu"),
        (
            torch.zeros(2, 4, 3).double(),
            torch.zeros(3),
            "the same dtype, got torch.float32, torch.flo",
        ),
    ],
)
def test_operands_that_do_not_fit_are_refused(b: Tensor, v: Tensor, message: str) -> None:
    a = torch.zeros(2, 5, 3)
    with pytest.raises(ShapeError, match=message):
        additive.scores(a, b, v)
    with pytest.raises(ShapeError, match=message):
        additive.attend(a, b, v, torch.zeros(2, 4, 6))


@pytest.mark.parametrize("normalizer", ["sparsemax", "entmax15"])
def test_sparse_weights_of_many_similar_scores_sum_to_1(normalizer: str) -> None:
    similar = torch.full((1, 9999), -1.8) + torch.randn(1, 9999) * 1e-3
    scores = torch.cat([torch.zeros(1, 1), similar], 1)
    weights = apply_normalizer(scores, normalizer)
    assert float(weights.double().sum()) == pytest.approx(1, abs=1e-5)
    expected = apply_normalizer(scores.double(), normalizer)
    torch.testing.assert_close(weights.double(), expected, atol=1e-6, rtol=0)
