"""Kernels of recurrent cells against their equations in float64."""

import functools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regard.cells import CELLS
from regard.kernels.cells import cpu
from regard.kernels.cpu import simd
from regard.kernels.linear import FrozenLinear

LANES = simd.BYTES // 4


@pytest.mark.parametrize("name", CELLS)
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(0, 40),
    vectors=st.integers(1, 3),
    extra=st.sampled_from([None, 0, 5]),
    scale=st.sampled_from([0.1, 3.0, 30.0, 1e4]),
)
def test_a_kernel_equals_the_equations(
    name: str, seed: int, count: int, vectors: int, extra: int | None, scale: float
) -> None:
    generator = torch.Generator().manual_seed(seed)

    def numbers(*shape: int) -> torch.Tensor:
        return scale * torch.randn(shape, generator=generator)

    width = vectors * LANES
    gates = {"lstm": 4, "gru": 3}[name] * width
    inputs, recurrent = numbers(7, gates), numbers(count, gates)
    rows = torch.randint(7, (count,), generator=generator)
    added = None if extra is None else numbers(count, gates + extra)
    state = [torch.tanh(numbers(count, width)) for _ in range(CELLS[name].state_tensors)]
    new = cpu.step(name, inputs, rows, added, recurrent, state[-1])
    assert new is not None
    chosen = inputs[rows] if added is None else inputs[rows] + added[:, :gates]
    exact = CELLS[name].step(chosen.double(), recurrent.double(), [t.double() for t in state])
    for found, expected in zip(new, exact, strict=True):
        # a rounding of a sum of three terms in the gates, times the slope of at most 1
        np.testing.assert_allclose(found.double(), expected, rtol=1e-6, atol=1e-6 * max(1, scale))


@pytest.mark.parametrize("name", CELLS)
def test_infinite_gates_saturate_and_nan_stays_in_its_row(name: str) -> None:
    gates = {"lstm": 4, "gru": 3}[name] * LANES
    inputs = torch.zeros(3, gates)
    inputs[0, :LANES] = torch.inf
    inputs[1] = -torch.inf
    inputs[2, 3] = torch.nan
    state = [torch.full((3, LANES), 0.5) for _ in range(CELLS[name].state_tensors)]
    new = cpu.step(name, inputs, torch.arange(3), None, torch.zeros(3, gates), state[-1])
    assert new is not None
    expected = CELLS[name].step(inputs, torch.zeros(3, gates), state)
    torch.testing.assert_close(new, expected, equal_nan=True)
    assert new[0][2].isnan().sum() == 1


def test_widths_that_do_not_fill_vectors_are_left_to_pytorch() -> None:
    width = LANES + 1
    step = CELLS["gru"].step
    inputs, state = torch.randn(2, 3 * width), [torch.randn(2, width)]
    assert cpu.step("gru", inputs, torch.arange(2), None, inputs, state[0]) is None
    cell = frozen(inputs, state)
    torch.testing.assert_close(cell, step(inputs, inputs, state))


def test_a_kernel_stays_within_its_inputs() -> None:
    gates, state = torch.randn(2, 3 * LANES), torch.randn(2, LANES)
    step = functools.partial(cpu.step, "gru", gates)
    rows = torch.tensor([0, 1])
    expected = step(rows, None, gates, state)
    assert expected is not None
    outside = step(torch.tensor([-5, 10**9]), None, gates, state)
    torch.testing.assert_close(outside, expected)  # the nearest rows
    transposed = step(rows, None, gates, state.T.contiguous().T)
    torch.testing.assert_close(transposed, expected)
    assert step(rows.int(), None, gates, state) is None
    assert step(rows[:1], None, gates, state) is None
    assert step(rows, None, gates.double(), state) is None
    assert step(rows, gates[:, :-1], gates, state) is None
    assert step(rows, None, gates[:, :-1], state) is None


def frozen(inputs: torch.Tensor, state: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    from regard.kernels.cells.op import frozen_step

    return frozen_step("gru", CELLS["gru"].step, inputs, torch.arange(2), None, inputs, state)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("rows", [(), (0,), (1,), (7,), (3, 5)])
def test_a_frozen_linear_layer_equals_a_linear_layer(
    rows: tuple[int, ...], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(17, 9).to(dtype)
    x = torch.randn(*rows, 17).to(dtype)
    for bias in (None, layer.bias):
        expected = torch.nn.functional.linear(x, layer.weight, bias)
        torch.testing.assert_close(FrozenLinear(layer.weight, bias)(x), expected.detach())
