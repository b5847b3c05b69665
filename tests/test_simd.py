"""SIMD vectors in numba: every operation against NumPy, NaN and infinities included."""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from regard.kernels.cpu import simd
from regard.kernels.cpu.activations import sigmoid, tanh
from regard.kernels.cpu.simd import (
    exp,
    exp2_integer,
    floor,
    fma,
    lane_count,
    load,
    load_bfloat16,
    load_splat,
    max_abs,
    maximum,
    minimum,
    pointer_at,
    prefetch,
    reciprocal,
    reduce_max_abs,
    reduce_sum,
    splat,
    store,
    store_bfloat16,
)

REALS = [np.float32, np.float64]


def _lanes(real: Any) -> int:
    return simd.BYTES // np.dtype(real).itemsize


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return numba.njit(error_model="numpy")(function)


@_compiled
def _arithmetic(x: Any, y: Any, out: Any) -> None:
    a, b = load(x, 0), load(y, 0)
    c = a * b
    c += a
    c -= b
    store(out, 0, c + a - b)


@_compiled
def _reciprocals(x: Any, out: Any) -> None:
    for i in range(0, len(x), len(out) // 4):
        store(out, i, reciprocal(load(x, i)))


@_compiled
def _round_to_bfloat16(x: Any, halves: Any, out: Any) -> None:
    store_bfloat16(halves, 0, load(x, 0))
    store(out, 0, load_bfloat16(halves, 0))


@_compiled
def _minimum_and_max_abs(x: Any, y: Any, out: Any) -> Any:
    store(out, 0, minimum(load(x, 0), load(y, 0)))
    return reduce_max_abs(max_abs(load(x, 0), load(y, 0)))


@_compiled
def _maximum(x: Any, y: Any, out: Any) -> None:
    store(out, 0, maximum(load(x, 0), load(y, 0)))


@_compiled
def _sigmoid_and_tanh(x: Any, out: Any) -> None:
    size = lane_count(load(x, 0))
    store(out, 0, sigmoid(load(x, 0)))
    store(out, size, tanh(load(x, 0)))


@_compiled
def _sum(x: Any) -> Any:
    return reduce_sum(load(x, 0))


@_compiled
def _floors(x: Any, out: Any) -> None:
    store(out, 0, floor(load(x, 0)))


@_compiled
def _powers(x: Any, out: Any) -> None:
    store(out, 0, exp2_integer(load(x, 0)))


@_compiled
def _exps(x: Any, out: Any) -> None:
    store(out, 0, exp(load(x, 0)))


@_compiled
def _splat(x: Any, out: Any) -> None:
    store(out, 0, splat(x))


@_compiled
def _products(x: Any, y: Any, out: Any) -> Any:
    # x[size - 2] times the vector at y[1], plus the vector at x[0]
    size = lane_count(load(x, 0))
    prefetch(y, len(y))
    store(out, 0, fma(load_splat(x, size - 2), load(pointer_at(y, 1), 0), load(x, 0)))
    return size


@pytest.mark.parametrize("real", REALS)
def test_pointers_and_products(real: Any) -> None:
    size = _lanes(real)
    x, y = np.random.default_rng(2).normal(size=(2, size + 1)).astype(real)
    out = np.empty_like(x[:size])
    assert _products(x, y, out) == size
    expected = x[size - 2].astype(np.longdouble) * y[1:] + x[:size]
    assert np.abs(out - expected).max() <= 4 * np.finfo(real).eps


@pytest.mark.parametrize("real", REALS)
def test_arithmetic(real: Any) -> None:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(2, _lanes(real))).astype(real)
    out = np.empty_like(x)
    _arithmetic(x, y, out)
    expected = x.astype(np.longdouble) * y + 2 * x.astype(np.longdouble) - 2 * y
    assert np.abs(out - expected).max() <= 8 * np.finfo(real).eps
    _splat(x[0], out)
    assert (out == x[0]).all()


@pytest.mark.parametrize("real", REALS)
def test_reciprocals_are_accurate_to_two_units_of_rounding(real: Any) -> None:
    exponent = 37 if real is np.float32 else 300
    count = 4 * _lanes(real)
    x = np.logspace(-exponent, exponent, 1000 * count, dtype=np.float64).astype(real)
    x[0], x[-1] = real(10.0) ** -exponent, real(10.0) ** exponent
    for part in x.reshape(-1, count):
        out = np.empty_like(part)
        _reciprocals(part, out)
        error = np.abs(out * part.astype(np.longdouble) - 1).max()
        assert error <= 2 * np.finfo(real).eps
    part[1] = np.nan
    _reciprocals(part, out)
    assert np.isnan(out[1])
    assert not np.isnan(np.delete(out, 1)).any()


@pytest.mark.parametrize("real", REALS)
def test_nan_propagates_through_max_abs_minimum_and_maximum(real: Any) -> None:
    count = _lanes(real)
    numbers = st.floats(width=32 if real is np.float32 else 64)

    @settings(max_examples=60, deadline=None)
    @given(arrays(real, count, elements=numbers), arrays(real, count, elements=numbers))
    def holds(x: Any, y: Any) -> None:
        out = np.empty_like(x)
        largest = _minimum_and_max_abs(x, y, out)
        # the maximum of NumPy is NaN if either element is NaN
        assert np.array_equal(largest, np.abs(np.concatenate([x, y])).max(), equal_nan=True)
        assert np.array_equal(out, np.where(x > y, y, x), equal_nan=True)
        _maximum(x, y, out)
        assert np.array_equal(out, np.where(x < y, y, x), equal_nan=True)

    holds()


@pytest.mark.parametrize("real", REALS)
def test_floor_sum_and_exponentials(real: Any) -> None:
    count = _lanes(real)
    x = np.linspace(-3.5, 3.25, count, dtype=real)
    out = np.empty_like(x)
    _floors(x, out)
    assert (out == np.floor(x)).all()
    assert abs(_sum(x) - x.astype(np.longdouble).sum()) <= count * np.finfo(real).eps
    _exps(x, out)
    assert np.allclose(out, np.exp(x), rtol=4 * np.finfo(real).eps, atol=0)


def test_sigmoid_and_tanh_are_accurate_for_all_numbers() -> None:
    count = _lanes(np.float32)
    near, far = np.linspace(-12, 12, 10_000 * count), np.geomspace(1e-38, 3e38, 1000 * count)
    numbers = np.concatenate([near, far, -far, [np.inf] * count, [-np.inf] * count])
    for x in numbers.astype(np.float32).reshape(-1, count):
        out = np.empty(2 * count, np.float32)
        _sigmoid_and_tanh(x, out)
        exact = x.astype(np.float64)
        assert np.abs(out[:count] - (1 + np.tanh(exact / 2)) / 2).max() <= 2e-7
        assert np.abs(out[count:] - np.tanh(exact)).max() <= 4e-7
        # small numbers keep their digits
        assert np.abs(out[count:] - np.tanh(exact)).max() <= 5e-7 * np.abs(exact).max()
        assert np.abs(out).max() <= 1 + 2 * np.finfo(np.float32).eps
    _sigmoid_and_tanh(np.full(count, np.nan, np.float32), out)
    assert np.isnan(out).all()


def test_powers_of_two() -> None:
    count = _lanes(np.float32)
    for start in range(-126, 128 - count, count):
        x = np.arange(start, start + count, dtype=np.float32)
        out = np.empty_like(x)
        _powers(x, out)
        assert (out == np.exp2(x)).all()


@given(
    bits=arrays(np.uint32, _lanes(np.float32), elements=st.integers(0, 2**32 - 1)),
    half=st.booleans(),
)
def test_numbers_are_rounded_to_bfloat16_as_pytorch_does(bits: Any, half: bool) -> None:
    if half:  # halfway between two numbers of bfloat16
        bits = bits & np.uint32(0xFFFF0000) | np.uint32(0x8000)
    x = bits.view(np.float32)
    halves, out = np.zeros(len(x), np.int16), np.zeros_like(x)
    _round_to_bfloat16(x, halves, out)
    expected = torch.from_numpy(x).bfloat16()
    np.testing.assert_array_equal(out, expected.float().numpy())
    stored = torch.from_numpy(halves).view(torch.bfloat16)
    assert torch.equal(stored[~expected.isnan()], expected[~expected.isnan()])
