"""The kernels against the reference: numbers, every gradient, second derivatives, memory.

Every test of the operator runs on each backend that this machine has.
"""

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
from oracle import bound, close, double, gradients
from regard.errors import ConfigError
from regard.kernels import additive, reference
from regard.kernels.additive import autograd, dispatch, pytorch
from regard.kernels.normalizers import normalize

SIZES = [(1, 1, 1, 1, 1), (2, 3, 5, 7, 4), (3, 1, 9, 2, 1), (1, 7, 2, 5, 3)]
"""B, L, T, D and the width of the values."""
DTYPES = [torch.float64, torch.float32, torch.bfloat16]
NORMALIZERS = ["softmax", "none"]
PAIRS = [None, 1, 4, 11]
"""How many pairs a block may hold; None for the usual workspace. 1 cuts keys, rows and items."""
ROOMS = [additive.WORKSPACE, 100]
"""Workspaces with which all queries are looked at together, and one block after the other."""
BACKENDS = ["cpu", "pytorch"]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test on the backend of this device and on plain PyTorch."""
    if request.param == "pytorch":
        monkeypatch.setattr(dispatch, "load_backend", lambda device_type: None)
    return request.param


def _tolerance(dtype: torch.dtype) -> float:
    return bound(dtype, float32=16, bfloat16=8)


def _workspace(pairs: int | None, width: int, dtype: torch.dtype = torch.float64) -> int:
    if pairs is None:
        return additive.WORKSPACE
    return pairs * 3 * width * (8 if dtype == torch.float64 else 4)


def _inputs(sizes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Leaves a, b, v and values."""
    batch, length, width, dim, out = sizes
    shapes = [(batch, length, dim), (batch, width, dim), (dim,), (batch, width, out)]
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def _mask(sizes: tuple[int, ...]) -> Tensor:
    """Some keys masked in every row but the last, which has none left."""
    masked = torch.rand(sizes[:3]) < 0.4
    masked[:, :, 0] = False
    masked[-1, -1] = True
    return masked


def test_the_reference_weighs_seen_keys_only() -> None:
    scores = torch.tensor([[[1.0, 2.0, torch.nan], [3.0, torch.inf, torch.nan]]]).double()
    scores.requires_grad_()
    masked = torch.tensor([[[False, False, True], [True, True, True]]])
    weights = reference.normalize(scores, masked, "softmax")
    expected = torch.zeros(1, 2, 3, dtype=torch.float64)
    expected[0, 0, :2] = torch.softmax(torch.tensor([1.0, 2.0]).double(), 0)
    close(weights, expected, 1e-15)
    (gradient,) = gradients(weights, [scores])
    assert gradient.isfinite().all()
    assert not gradient[masked].any()


def test_the_reference_has_derivatives_that_are_right() -> None:
    a, b, v, values = _inputs((2, 2, 3, 2, 2))
    masked = _mask((2, 2, 3))

    def call(*inputs: Tensor) -> Tensor:
        return oracle.finish(reference.additive_scores(*inputs[:3]), inputs[3], masked).context

    assert torch.autograd.gradcheck(call, (a, b, v, values))


def _scores(inputs: list[Tensor], pairs: int | None = None) -> Tensor:
    """The scores of a, b and v, in blocks of so many pairs."""
    workspace = _workspace(pairs, inputs[0].shape[-1], inputs[0].dtype)
    return additive.scores(*inputs[:3], workspace=workspace)


def _context(inputs: list[Tensor], pairs: int | None = None, **how: Any) -> Tensor:
    """The context for a, b, v and values, in blocks of so many pairs."""
    workspace = _workspace(pairs, inputs[0].shape[-1], inputs[0].dtype)
    return additive.attend(*inputs[:4], workspace=workspace, **how).context


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize("sizes", [*SIZES, (2, 9, 37, 6, 1)])
def test_scores_equal_the_reference(
    sizes: tuple[int, ...], pairs: int | None, dtype: torch.dtype, backend: str, poisoned: None
) -> None:
    inputs = _inputs(sizes, dtype)[:3]
    found = _scores(inputs, pairs)
    exact = [double(tensor) for tensor in inputs]
    expected = reference.additive_scores(*exact)
    assert found.dtype == dtype
    close(found, expected, _tolerance(dtype))
    for one, other in zip(gradients(found, inputs), gradients(expected, exact), strict=True):
        close(one, other, _tolerance(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize("sizes", SIZES)
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
    found = _context(inputs, pairs, masked=masked, bias=bias, normalizer=normalizer)
    exact = [double(tensor) for tensor in inputs]
    scores = reference.additive_scores(*exact[:3])
    expected = oracle.finish(scores, exact[3], masked, exact[4], normalizer).context
    assert found.dtype == dtype
    close(found, expected, _tolerance(dtype))
    for one, other in zip(gradients(found, inputs), gradients(expected, exact), strict=True):
        close(one, other, _tolerance(dtype))


@pytest.mark.parametrize("pairs", PAIRS)
def test_the_log_of_the_partition_function(pairs: int | None, backend: str) -> None:
    sizes = (2, 3, 5, 7, 4)
    bias = torch.randn(1, *sizes[1:3], dtype=torch.float64, requires_grad=True)
    inputs, masked = [*_inputs(sizes), bias], _mask(sizes)
    how: dict[str, Any] = {"masked": masked, "bias": bias, "need_log_sum_exp": True}
    looked = additive.attend(*inputs[:4], **how, workspace=_workspace(pairs, 7))
    found = looked.log_sum_exp
    scores = (reference.additive_scores(*inputs[:3]) + bias).masked_fill(masked, -torch.inf)
    expected = scores.logsumexp(-1)
    assert found is not None
    assert found[-1, -1] == -torch.inf
    seen = ~masked.all(-1)
    close(found[seen], expected[seen], 1e-13)
    one = gradients(torch.cat([found[seen], looked.context.flatten()]), inputs)
    context = oracle.finish(scores.masked_fill(masked, 0), inputs[3], masked).context
    other = gradients(torch.cat([expected[seen], context.flatten()]), inputs)
    for left, right in zip(one, other, strict=True):
        close(left, right, 1e-13)
    with pytest.raises(ConfigError, match="'none' has no log-sum-exp"):
        additive.attend(*inputs[:4], normalizer="none", need_log_sum_exp=True)


@pytest.mark.parametrize("pairs", PAIRS)
def test_heads_are_attentions_of_their_own(pairs: int | None, backend: str) -> None:
    sizes = (2, 3, 5, 7, 4)
    heads = [_inputs(sizes) for _ in range(3)]
    together = [
        torch.stack(each, 0 if each[0].dim() == 1 else 1) for each in zip(*heads, strict=True)
    ]
    masked, bias = _mask(sizes), torch.randn(1, 3, 1, 5).double()
    every: dict[str, Any] = {"masked": masked[:, None], "bias": bias.expand(-1, -1, 3, -1)}
    scores = _scores(together, pairs)
    for head, inputs in enumerate(heads):
        found = _context(together, pairs, **every)
        each = bias[:, head].expand(-1, 3, -1)
        expected = _context(inputs, masked=masked, bias=each)
        close(found[:, head], expected, 1e-13)
        close(scores[:, head], _scores(inputs), 1e-13)
        for one, other in zip(
            gradients(found[:, head], inputs), gradients(expected, inputs), strict=True
        ):
            close(one, other, 1e-13)


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_do_not_change_the_context(
    dtype: torch.dtype, normalizer: str, backend: str
) -> None:
    sizes = (2, 3, 5, 7, 4)
    bias = torch.randn(sizes[:3], dtype=dtype, requires_grad=True)
    inputs, masked = _inputs(sizes, dtype), _mask(sizes)
    how: dict[str, Any] = {"masked": masked, "bias": bias, "normalizer": normalizer}
    looked = additive.attend(*inputs, **how, need_weights=True, workspace=64)
    alone = additive.attend(*inputs, **how, workspace=64)
    assert alone.weights is None
    assert looked.weights is not None
    assert looked.weights.dtype == dtype
    assert not looked.weights[masked].any()
    close(looked.context, alone.context, _tolerance(dtype))
    every = [*inputs, bias]
    found, expected = gradients(looked.context, every), gradients(alone.context, every)
    for one, other in zip(found, expected, strict=True):
        close(one, other, _tolerance(dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once(dtype: torch.dtype, backend: str) -> None:
    inputs = _inputs((2, 3, 5, 7, 4), dtype)
    precise = [tensor.detach().float().requires_grad_() for tensor in inputs]
    for found, expected in (
        (_scores(inputs), _scores(precise)),
        (_context(inputs), _context(precise)),
        (_context(inputs, 2), _context(precise, 2)),
    ):
        assert torch.equal(found, expected.to(dtype))
        pairs = inputs[:3], precise[:3]
        for one, other in zip(
            gradients(found, pairs[0]), gradients(expected, pairs[1]), strict=True
        ):
            assert torch.equal(one, other.to(dtype))


@given(
    sizes=st.tuples(*[st.integers(1, 5)] * 5),
    pairs=st.integers(1, 30),
    broadcast=st.tuples(st.booleans(), st.booleans()),
    normalizer=st.sampled_from(NORMALIZERS),
)
def test_blocks_do_not_change_anything(
    sizes: tuple[int, ...], pairs: int, broadcast: tuple[bool, bool], normalizer: str
) -> None:
    batch, length, width = sizes[:3]
    outer = (1 if broadcast[0] else batch, 1 if broadcast[1] else length, width)
    bias = torch.randn(outer[0], length, width).double().requires_grad_()
    masked = torch.rand(outer) < 0.5
    inputs = _inputs(sizes)

    def call(pairs: int | None) -> tuple[Tensor, ...]:
        context = _context(inputs, pairs, masked=masked, bias=bias, normalizer=normalizer)
        scores = _scores(inputs, pairs)
        every = [*inputs, bias]
        return context, scores, *gradients(context, every), *gradients(scores, inputs[:3])

    for one, other in zip(call(pairs), call(None), strict=True):
        close(one, other, 1e-13)


@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize("normalizer", NORMALIZERS)
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


def test_second_derivatives_where_one_input_comes_from_another(backend: str) -> None:
    leaf, v, values = (
        torch.randn(s).double().requires_grad_() for s in [(2, 3, 2), (2,), (2, 3, 2)]
    )

    def call(leaf: Tensor, v: Tensor, values: Tensor) -> Tensor:
        return _context([leaf, leaf * leaf, v, values], 2)

    assert torch.autograd.gradgradcheck(call, (leaf, v, values))


@pytest.mark.parametrize("frozen", range(4))
def test_inputs_without_gradient(frozen: int, backend: str) -> None:
    inputs = _inputs((2, 3, 4, 2, 2))
    inputs[frozen].requires_grad_(False)
    wanted = [tensor for tensor in inputs if tensor.requires_grad]
    whole = gradients(_context(inputs), wanted)
    for one, other in zip(gradients(_context(inputs, 3), wanted), whole, strict=True):
        close(one, other, 1e-13)
    with torch.no_grad():
        assert not _context(inputs, 3).requires_grad


def test_the_backward_pass_of_blocks_under_autocast_is_the_same(backend: str) -> None:
    inputs = _inputs((2, 3, 4, 2, 2), torch.float32)

    def call() -> tuple[Tensor, ...]:
        context = _context(inputs, 3)
        return context, *gradients(context, inputs)

    plain = call()
    with torch.autocast("cpu", torch.bfloat16):
        cast = call()
    for one, other in zip(cast, plain, strict=True):
        assert torch.equal(one, other)


def test_prepared_keys_change_nothing() -> None:
    inputs = _inputs((2, 3, 4, 5, 2), torch.float32)
    keys: Any = additive.prepare_keys(inputs[1])
    assert keys.prepared is not None
    assert not keys.prepared.requires_grad
    for pairs in (None, 2):
        found = _context([inputs[0], keys, *inputs[2:]], pairs)
        expected = _context(inputs, pairs)
        assert torch.equal(found, expected)
        for one, other in zip(gradients(found, inputs), gradients(expected, inputs), strict=True):
            assert torch.equal(one, other)
    assert additive.prepare_keys(inputs[1] + 50).prepared is None


@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_masked_scores_never_matter(normalizer: str) -> None:
    scores = torch.randn(2, 3, 5, dtype=torch.float64)
    masked = _mask((2, 3, 5))
    evil = torch.tensor([torch.nan, torch.inf, -torch.inf, 1e300], dtype=torch.float64)
    spoilt = torch.where(masked, evil.repeat(8)[:30].view(2, 3, 5), scores)
    for given_scores in (scores, spoilt):
        leaf = given_scores.clone().requires_grad_()
        with torch.autograd.set_detect_anomaly(True):
            weights = normalize(leaf, masked, normalizer)
            (gradient,) = gradients(weights, [leaf])
        close(weights, reference.normalize(scores, masked, normalizer), 1e-13)
        assert not weights[masked].any()
        assert not gradient[masked].any()
        assert gradient.isfinite().all()


@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_a_row_with_every_key_masked_gives_zeros(
    normalizer: str, pairs: int | None, backend: str
) -> None:
    inputs = _inputs((2, 3, 5, 4, 2))
    masked = torch.ones(2, 3, 5, dtype=torch.bool)
    with torch.autograd.set_detect_anomaly(True):
        context = _context(inputs, pairs, masked=masked, normalizer=normalizer)
        found = gradients(context, inputs)
    assert not context.any()
    assert not any(gradient.any() for gradient in found)


@pytest.mark.parametrize("pairs", PAIRS)
@pytest.mark.parametrize("sizes", [(0, 2, 3, 4, 2), (2, 0, 3, 4, 2), (2, 3, 0, 4, 2)])
def test_empty_inputs(sizes: tuple[int, ...], pairs: int | None, backend: str) -> None:
    inputs = _inputs(sizes)
    scores, context = _scores(inputs, pairs), _context(inputs, pairs)
    assert scores.shape == sizes[:3]
    assert context.shape == (*sizes[:2], sizes[4])
    assert not context.any()
    (context.sum() + scores.sum()).backward()
    assert all(tensor.grad is not None and not tensor.grad.any() for tensor in inputs)


@pytest.mark.parametrize("pairs", PAIRS)
def test_strides_do_not_matter_and_nothing_is_written(pairs: int | None, backend: str) -> None:
    plain = [tensor.detach() for tensor in _inputs((2, 3, 4, 2, 5))]
    plain[1] = plain[1][:1].expand(2, -1, -1)
    strange = [
        plain[0].transpose(0, 1).contiguous().transpose(0, 1),
        plain[1],
        torch.stack([plain[2], plain[2]], dim=1)[:, 0],
        plain[3].mT.contiguous().mT,
    ]
    before = [tensor.clone() for tensor in strange]
    leaves = [tensor.requires_grad_() for tensor in strange]
    compact = [tensor.clone().contiguous().detach().requires_grad_() for tensor in before]
    one, other = _context(leaves, pairs), _context(compact, pairs)
    close(one, other, 1e-13)
    for left, right in zip(gradients(one, leaves), gradients(other, compact), strict=True):
        close(left, right, 1e-13)
    assert all(torch.equal(left, right) for left, right in zip(strange, before, strict=True))


@pytest.mark.parametrize("pairs", [None, 40, 7])
def test_dropout_zeroes_its_share_and_scales_the_rest(pairs: int | None) -> None:
    a, b = torch.randn(4, 30, 2).double(), torch.randn(4, 20, 2).double()
    values = torch.eye(20).double().expand(4, -1, -1)
    # v = 0: every weight is 1 / T before dropout, and the values spell the weights out
    weights = _context([a, b, torch.zeros(2).double(), values], pairs, dropout=0.25)
    dropped = weights == 0
    close(weights[~dropped], torch.full((int((~dropped).sum()),), 1 / 20 / 0.75), 1e-7)
    assert 0.2 < dropped.double().mean() < 0.3
    assert len(torch.unique(dropped.flatten(0, 1), dim=0)) > 100  # every block draws anew


@pytest.mark.parametrize("pairs", [None, 7, 2])
def test_dropout_is_the_same_in_both_passes(pairs: int | None) -> None:
    inputs = tuple(_inputs((2, 3, 4, 2, 2)))

    def call(*inputs: Tensor) -> Tensor:
        torch.manual_seed(5)
        return _context(list(inputs), pairs, dropout=0.5)

    assert not torch.allclose(call(*inputs), _context(list(inputs)))
    assert torch.autograd.gradcheck(call, inputs)
    assert torch.autograd.gradgradcheck(call, inputs, fast_mode=True)


def test_backward_draws_nothing() -> None:
    inputs = _inputs((2, 3, 4, 2, 2))
    context = _context(inputs, 5, dropout=0.5)
    state = torch.get_rng_state()
    context.sum().backward()
    assert torch.equal(torch.get_rng_state(), state)
    again = _context(inputs, 5, dropout=0.5)
    assert not torch.equal(context, again)


def _operators() -> list[tuple[Any, tuple[Any, ...]]]:
    """Every operator with compact inputs, and with dense ones in another order."""

    def leaf(*shape: int) -> Tensor:
        return torch.randn(shape, requires_grad=True)

    def turned(*shape: int) -> Tensor:
        return torch.randn(shape).transpose(0, 1).requires_grad_()

    a, b, v = leaf(2, 3, 5), leaf(2, 4, 5), leaf(1, 5)
    of_scores = [torch.randn(2, 3, 4), *(tensor.detach() for tensor in (a, b, v))]
    masked, bias, seed = _mask((2, 3, 4))[:, None], leaf(1, 1, 3, 4), torch.tensor(3)
    others = leaf(2, 1, 4, 5), leaf(1, 5), leaf(2, 1, 4, 3)
    room = 1 << 20
    return [
        (autograd.scores_forward.operator, (a, b, v, None, room)),
        (autograd.scores_forward.operator, (turned(3, 2, 5), b, v, dispatch.prepare_keys(b), room)),
        (autograd.scores_backward.operator, (*of_scores, room)),
        (
            autograd.attention_forward.operator,
            (leaf(2, 1, 3, 5), *others, masked, bias, None, seed, "softmax", 0.3, 200),
        ),
        (
            autograd.attention_forward.operator,
            (turned(1, 2, 3, 5), *others, None, None, None, None, "none", 0.0, 200),
        ),
        (
            autograd.attention_backward.operator,
            (
                torch.randn(2, 1, 3, 3),
                None,
                *(each.detach() for each in (a[:, None], *others)),
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


@pytest.mark.parametrize("number", range(6))
def test_pytorch_finds_the_operators_in_order(number: int) -> None:
    operator, arguments = _operators()[number]
    torch.library.opcheck(operator, arguments)


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("workspace", ROOMS)
def test_compiled_in_one_piece_at_any_size(workspace: int, need_weights: bool) -> None:
    def call(*inputs: Tensor) -> Tensor:
        looked = additive.attend(*inputs, need_weights=need_weights, workspace=workspace)
        return looked.context.sin()

    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    for size in (3, 6, 4):
        inputs = _inputs((2, size, size + 1, 5, 3))
        found, expected = compiled(*inputs), call(*inputs)
        close(found, expected, 1e-13)
        for one, other in zip(gradients(found, inputs), gradients(expected, inputs), strict=True):
            close(one, other, 1e-13)


@pytest.mark.parametrize("normalizer", ["softmax", "entmax15"])
@pytest.mark.parametrize("workspace", ROOMS)
def test_called_directly_and_as_an_operator_it_is_the_same(
    workspace: int, normalizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = _inputs((2, 3, 5, 7, 4))
    bias = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    masked = torch.rand(2, 3, 5) < 0.4
    masked[:, :, 0] = False

    def found() -> list[Tensor]:
        torch.manual_seed(1)
        looked = additive.attend(
            *inputs, masked, bias, normalizer, dropout=0.3, workspace=workspace,
            need_log_sum_exp=normalizer == "softmax",
        )  # fmt: skip
        total = looked.context.sin().sum()
        if looked.log_sum_exp is not None:
            total = total + looked.log_sum_exp.cos().sum()
        leaves = [*inputs, bias]
        first = torch.autograd.grad(total, leaves, retain_graph=True)
        again = torch.autograd.grad(total, leaves, create_graph=True)
        return [looked.context, total, *first, *gradients(again[0].sin(), leaves)]

    direct = found()
    monkeypatch.setattr(autograd, "_needs_dispatcher", lambda inputs: True)
    for one, other in zip(direct, found(), strict=True):
        assert torch.equal(one, other)


def _total(workspace: int) -> Any:
    """A function of a, b, v and values that gives one number."""
    return lambda *inputs: additive.attend(*inputs, workspace=workspace).context.sin().sum()


@pytest.mark.parametrize("workspace", ROOMS)
def test_tensors_without_numbers_have_their_shapes(workspace: int) -> None:
    with FakeTensorMode():
        inputs = _inputs((2, 3, 5, 7, 4))
        for one, other in zip(gradients(_total(workspace)(*inputs), inputs), inputs, strict=True):
            assert one.shape == other.shape


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("record", ["make_fx", "trace"])
@pytest.mark.parametrize("workspace", ROOMS)
def test_what_is_recorded_computes_with_other_numbers(workspace: int, record: str) -> None:
    total, inputs = _total(workspace), _detached((2, 3, 5, 7, 4))
    recorded = make_fx(total)(*inputs) if record == "make_fx" else torch.jit.trace(total, inputs)
    inputs = _detached((2, 3, 5, 7, 4))
    close(recorded(*inputs), total(*inputs), 1e-13)
    for one, other in zip(
        _gradients_of(recorded, inputs), _gradients_of(total, inputs), strict=True
    ):
        close(one, other, 1e-13)
    if record == "make_fx":
        recorded = make_fx(torch.func.grad(total, (0, 1, 2, 3)))(*_detached((2, 3, 5, 7, 4)))
        for one, other in zip(recorded(*inputs), _gradients_of(total, inputs), strict=True):
            close(one, other, 1e-13)


def _detached(sizes: tuple[int, ...]) -> list[Tensor]:
    return [each.detach() for each in _inputs(sizes)]


def _gradients_of(total: Any, inputs: list[Tensor]) -> tuple[Tensor, ...]:
    leaves = [each.requires_grad_() for each in inputs]
    return torch.autograd.grad(total(*leaves), leaves)


@pytest.mark.parametrize("workspace", ROOMS)
def test_gradients_of_functions_are_those_of_autograd(workspace: int) -> None:
    inputs = _detached((2, 3, 5, 7, 4))
    found = torch.func.grad(_total(workspace), (0, 1, 2, 3))(*inputs)
    for one, other in zip(found, _gradients_of(_total(workspace), inputs), strict=True):
        close(one, other, 1e-13)


@pytest.mark.parametrize("workspace", ROOMS)
def test_vmap_is_a_loop(workspace: int) -> None:
    """Also over gradients, and over the gradients of one backward pass."""
    a, b, v, values = _detached((6, 3, 5, 7, 4))
    batches = a.view(3, 2, 3, 7), b[:2], v, values.view(3, 2, 5, 4)
    axes = 0, None, None, 0
    total = _total(workspace)
    for call in (total, torch.func.grad(total), torch.no_grad()(total)):
        found = torch.vmap(call, axes)(*batches)
        for number in range(3):
            pairs = zip(batches, axes, strict=True)
            items = [each if axis is None else each[number] for each, axis in pairs]
            close(found[number], call(*items), 1e-13)
    a = batches[0][0].requires_grad_()
    context = additive.attend(a, b[:2], v, values[:2], workspace=workspace).context
    given = torch.randn(3, *context.shape, dtype=a.dtype)
    (found,) = torch.autograd.grad(context, a, given, is_grads_batched=True, retain_graph=True)
    for number in range(3):
        (expected,) = torch.autograd.grad(context, a, given[number], retain_graph=True)
        close(found[number], expected, 1e-13)


@pytest.mark.parametrize("workspace", ROOMS)
def test_computed_again_for_the_backward_pass(workspace: int) -> None:
    inputs = _inputs((2, 3, 5, 7, 4))
    expected = torch.autograd.grad(_total(workspace)(*inputs), inputs)
    found = checkpoint(_total(workspace), *inputs, use_reentrant=False)
    for one, other in zip(torch.autograd.grad(found, inputs), expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("workspace", ROOMS)
def test_autocast_rounds_nothing_inside(workspace: int) -> None:
    """Neither where it is called nor in a program that was exported without autocast."""
    inputs = _inputs((2, 3, 5, 7, 4), torch.float32)

    class Module(torch.nn.Module):
        def forward(self, *inputs: Tensor) -> Tensor:
            return additive.attend(*inputs, workspace=workspace).context

    def found(call: Any, autocast: bool = True) -> list[Tensor]:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            context = call(*inputs)
        return [context, *torch.autograd.grad(context.sin().sum(), inputs)]

    exported = torch.export.export(Module(), tuple(inputs)).module()
    expected = found(Module(), autocast=False)
    for call in (Module(), exported):
        for one, other in zip(found(call), expected, strict=True):
            assert torch.equal(one, other)


def test_looking_imports_no_compiler() -> None:
    """PyTorch's takes 140 MB."""
    code = """
import sys, torch
from regard.kernels import additive
for size, workspace in ((3, additive.WORKSPACE), (9, 100)):
    a, b, values, v = (torch.randn(shape, requires_grad=True) for shape in [(1, size, 4)] * 3 + [4])
    additive.attend(a, b, v, values, workspace=workspace).context.sum().backward()
assert "sympy" not in sys.modules
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


class _Largest(TorchDispatchMode):
    """The bytes of the largest tensor that any operation gave."""

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
def test_no_tensor_is_larger_than_its_share_of_the_workspace(sizes: tuple[int, ...]) -> None:
    batch, length, width, dim, _ = sizes
    a, b, v, _ = (tensor.detach() for tensor in _inputs(sizes, torch.float32))
    gradient = torch.randn(batch, length, width)
    whole = 4 * batch * length * width * dim
    # the scores and their gradient are B x L x T, an eighth of the pairs
    share = max(whole // 8, *(4 * tensor.numel() for tensor in (a, b)))
    assert share < whole

    def largest(workspace: int) -> int:
        with _Largest() as seen:
            pytorch.scores(a, b, v[None], workspace)
            pytorch.gradients(gradient, a, b, v[None], workspace)
        return seen.size

    assert largest(3 * share) <= share
    assert largest(8 * whole) >= whole


CALLS = [
    "additive.scores(a, b, v, workspace)",
    "additive.attend(a, b, v, values, workspace=workspace).context",
]
PEAK = """
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
run(64, 2**15)  # in blocks, as below
before = peak()
run(2048, 2**24)
print((peak() - before) / 1024)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc/self/status")
@pytest.mark.parametrize("without", ["", "dispatch.load_backend = lambda device_type: None"])
@pytest.mark.parametrize("call", CALLS)
def test_memory_stays_near_the_workspace(call: str, without: str) -> None:
    """16 MiB are asked for where all pairs at once take more than 1 GiB, three times over."""
    code = PEAK.replace("CALL", call).replace("def peak", without + "\n\ndef peak", 1)
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 160
