"""LSTM layers in bfloat16, computed by the kernel, against PyTorch's in float64."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.utils import parametrize

from regard import cells
from regard.cells import run_layer
from regard.encoders import RecurrentEncoder, reversal_indices
from regard.kernels.cpu.processor import LANES

lstm: Any = pytest.importorskip("regard.kernels.recurrent.lstm")

pytestmark = pytest.mark.skipif(
    not torch.backends.cpu.get_cpu_capability().startswith("AVX512"),
    reason="float32 replaces bfloat16 on this processor",
)

INPUTS = 5


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the kernel compute layers of any size."""
    monkeypatch.setattr(lstm, "_MIN_PRODUCT", 0)


def layers(directions: int, width: int) -> list[nn.RNNBase]:
    return [nn.LSTM(INPUTS, width, batch_first=True) for _ in range(directions)]


def tensors_of(
    directions: Sequence[nn.RNNBase],
    inputs: Tensor,
    orders: Sequence[Tensor | None],
    state: Sequence[Tensor] | None,
    weights: Tensor,
) -> list[Tensor]:
    """Return the outputs, and the gradients of their weighted sum for inputs, first state and parameters."""
    outputs = run_layer(directions, inputs, orders, state)
    leaves = [inputs, *(state or []), *(p for layer in directions for p in layer.parameters())]
    total = (outputs * weights.to(outputs.dtype)).sum()
    return [outputs.detach(), *torch.autograd.grad(total, leaves)]


def in_bfloat16(*arguments: Any, use_kernel: bool = True) -> list[Tensor]:
    with pytest.MonkeyPatch.context() as patch, torch.autocast("cpu", torch.bfloat16):
        if not use_kernel:
            patch.setattr(cells, "faster_kernel", lambda *_: None)
        return tensors_of(*arguments)


def in_float64(
    directions: Sequence[nn.RNNBase], inputs: Tensor, orders: Any, state: Any, weights: Tensor
) -> list[Tensor]:
    doubles = [
        nn.LSTM(INPUTS, layer.hidden_size, batch_first=True).double() for layer in directions
    ]
    for double, layer in zip(doubles, directions, strict=True):
        double.load_state_dict(layer.state_dict())
    given = [each.detach().double().requires_grad_() for each in (inputs, *(state or []))]
    return tensors_of(doubles, given[0], orders, given[1:] or None, weights)


def error(found: Tensor, exact: Tensor) -> float:
    """Return the norm of the difference, relative to that of the exact numbers."""
    return float((found - exact).norm()) / max(1e-6, float(exact.norm()))


@given(
    seed=st.integers(0, 2**32 - 1),
    directions=st.integers(1, 2),
    vectors=st.integers(1, 3),
    batch=st.integers(1, 40),
    length=st.integers(1, 6),
    has_state=st.booleans(),
)
def test_outputs_and_gradients_are_as_exact_as_those_of_pytorch(
    seed: int, directions: int, vectors: int, batch: int, length: int, has_state: bool
) -> None:
    torch.manual_seed(seed)
    width = vectors * LANES
    inputs = torch.randn(batch, length, INPUTS, requires_grad=True)
    lengths = torch.randint(1, length + 1, (batch,))
    orders = [None, reversal_indices(lengths, length)][:directions]
    state = None
    if has_state and directions == 1:
        state = [torch.randn(batch, width, requires_grad=True) for _ in range(2)]
    weights = torch.randn(batch, length, directions * width)
    arguments = layers(directions, width), inputs, orders, state, weights
    exact, found = in_float64(*arguments), in_bfloat16(*arguments)
    others = in_bfloat16(*arguments, use_kernel=False)
    assert found[0].dtype == torch.bfloat16
    for computed, other, reference in zip(found, others, exact, strict=True):
        assert computed.shape == reference.shape
        # PyTorch rounds at other places, so that one of the two can be luckier
        assert error(computed, reference) <= 2 * error(other, reference) + 4e-3


@torch.no_grad()
def test_a_layer_reads_every_sequence_in_its_order() -> None:
    torch.manual_seed(1)
    inputs, lengths = torch.randn(3, 5, INPUTS), torch.tensor([5, 2, 4])
    order = reversal_indices(lengths, 5)
    [layer] = layers(1, LANES)
    with torch.autocast("cpu", torch.bfloat16):
        found = run_layer([layer], inputs, [order])
        for item, length in enumerate(lengths.tolist()):
            alone = run_layer([layer], inputs[item : item + 1, :length].flip(1), [None])
            assert error(found[item, :length], alone[0].flip(0)) < 1e-2


def test_padding_affects_no_state_before_it() -> None:
    torch.manual_seed(2)
    encoder = RecurrentEncoder(9, 8, LANES, layers=2)
    source, lengths = torch.randint(1, 9, (6, 7)), torch.tensor([7, 1, 3, 6, 2, 4])
    padding = torch.arange(7) >= lengths[:, None]
    found: list[tuple[Tensor, ...]] = []
    for filler in (0, 8):
        encoder.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            memory = encoder(source.masked_fill(padding, filler), lengths)
        memory.states.float().square().sum().backward()
        gradients = [p.grad for p in encoder.parameters() if p is not encoder.embedding.weight]
        found.append((memory.states, memory.final, *gradients))
    for first, second in zip(*found, strict=True):
        assert torch.equal(first, second)


def test_the_backward_pass_can_be_repeated() -> None:
    torch.manual_seed(3)
    inputs = torch.randn(4, 3, INPUTS, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        total = run_layer(layers(1, LANES), inputs, [None]).sum()
    first, second = (torch.autograd.grad(total, inputs, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)
    assert first.any()


@pytest.mark.parametrize("power", [1, 2])
def test_a_derivative_of_second_order_is_an_error(power: int) -> None:
    inputs = torch.randn(4, 3, INPUTS, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        total = (run_layer(layers(1, LANES), inputs, [None]) ** power).sum()
    with pytest.raises(RuntimeError, match="second order; compute them in float32"):
        torch.autograd.grad(total, inputs, create_graph=True)


@torch.no_grad()
def test_the_layout_of_the_state_does_not_matter() -> None:
    inputs, [layer] = torch.randn(6, 3, INPUTS), layers(1, LANES)
    state = [torch.randn(LANES, 6).T for _ in range(2)]
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = (
            run_layer([layer], inputs, [None], each)
            for each in (state, [tensor.contiguous() for tensor in state])
        )
    assert torch.equal(found, expected)


def test_memory_beyond_the_tensors_is_not_touched(unchecked: None) -> None:
    inputs, [layer] = torch.randn(6, 3, INPUTS), layers(1, LANES)
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(IndexError, match="longer than its 3 positions"):
            run_layer([layer], inputs, [reversal_indices(torch.tensor([3, 3, 3, 3, 3, 4]), 3)])
        with pytest.raises(RuntimeError, match="shape"):
            run_layer([layer], inputs, [None], [torch.randn(1, LANES)] * 2)


def test_uninitialised_memory_is_not_read(poisoned: None) -> None:
    torch.manual_seed(4)
    inputs = torch.randn(5, 4, INPUTS, requires_grad=True)
    lengths = torch.tensor([4, 1, 2, 3, 4])
    orders = [None, reversal_indices(lengths, 4)]
    for tensor in in_bfloat16(layers(2, LANES), inputs, orders, None, torch.randn(5, 4, 2 * LANES)):
        assert tensor.isfinite().all()


def _uses_kernel(layer: nn.Module, inputs: Tensor) -> bool:
    return cells.faster_kernel("lstm", [layer], [inputs]) is not None


def test_the_kernel_computes_only_layers_that_it_supports() -> None:
    inputs = torch.randn(4, 3, INPUTS)
    [plain] = layers(1, LANES)
    assert not _uses_kernel(plain, inputs)  # float32
    hooked, replaced, double, parametrized = layers(1, LANES) + layers(1, LANES) + layers(2, LANES)
    hooked.register_forward_hook(lambda *_: None)
    vars(replaced)["forward"] = plain.forward
    double.double()
    parametrize.register_parametrization(parametrized, "weight_hh_l0", nn.Identity())

    def other(width: int = LANES, kind: Any = nn.LSTM, **options: Any) -> nn.Module:
        return kind(INPUTS, width, batch_first=options.pop("batch_first", True), **options)

    others = [hooked, replaced, double, parametrized, other(kind=nn.GRU), other(LANES + 1)]
    others += [other(num_layers=2), other(proj_size=3), other(bidirectional=True)]
    others += [other(bias=False), other(batch_first=False)]
    with torch.autocast("cpu", torch.bfloat16):
        assert _uses_kernel(plain, inputs)
        assert [_uses_kernel(layer, inputs) for layer in others] == [False] * len(others)
        assert not _uses_kernel(plain, inputs[:0])
        assert not _uses_kernel(plain, inputs.to("meta"))
        with forward_ad.dual_level():
            assert not _uses_kernel(plain, inputs)
        used: list[bool] = []
        torch.func.vmap(lambda x: used.append(_uses_kernel(plain, inputs)) or x)(inputs)
        assert used == [False]
    with torch.autocast("cpu", torch.float16):
        assert not _uses_kernel(plain, inputs)


def test_small_layers_are_those_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with torch.autocast("cpu", torch.bfloat16):
        assert not _uses_kernel(layers(1, 64)[0], torch.randn(64, 3, INPUTS))
        assert _uses_kernel(layers(1, 256)[0], torch.randn(256, 3, INPUTS))
