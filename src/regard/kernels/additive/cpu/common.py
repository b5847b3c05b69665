"""What the compiled loops of additive scores and their gradients have in common, and exponentials.

    e_ti = v . tanh(a_t + b_i),    tanh(a + b) = 1 - 2 r,    r = 1 / (1 + e^{2a} e^{2b})

The exponentials are taken once per row; what is left for every pair and feature is a
multiplication, an addition and a share of a reciprocal, in the gradient too. Results do not depend
on the number of threads, see `threads.py`. Every function here and in `score_kernels.py` and
`gradient_kernels.py` that takes a type of floats gives a kernel for it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload, register_jitable
from numba.np.numpy_support import carray

from regard.kernels.additive.cpu import threads
from regard.kernels.additive.cpu.simd import (
    BYTES,
    count,
    exp,
    floor,
    load,
    max_abs,
    power,
    reduce_max_abs,
    splat,
    store,
    total,
)
from regard.kernels.additive.cpu.threads import NEXT, REFUSALS, SCRATCH, SEATS, at, take

# places in the list that every kernel gets; the addresses follow the sizes
UNITS, HEADS, ROWS, KEYS, WIDTH, TOGETHER, POWERS, FIRST = range(threads.FIRST, threads.FIRST + 8)
PLACES = FIRST + 7
# TOGETHER: queries of a unit of scores, vectors of features of a unit of gradients

RANGES = {np.float32: (4, 43.0, 1e9), np.float64: (8, 353.0, 1e75)}
"""Bytes of a number; |x| up to which half of e^{2x} is a normal number and the product of two e^{2x}
not 0 x infinity; 1 + e^{2x} from which on tanh is 1 and the product of four of them still finite."""

LARGEST_VECTOR = 1e10
"""|v| up to which the sum of four products with three of the latter is finite."""

NUMBERS_PER_UNIT = 1 << 14
"""Numbers of a unit of exponentials."""

inlined: Any = register_jitable(forceinline=True)
"""A part of a kernel, written into it wherever it is used."""


def exp_2x(x: Any) -> Any:
    """e^{2x} of a vector."""
    raise NotImplementedError("compiled by numba alone")


@overload(exp_2x)
def _overload_exp_2x(x: Any) -> Any:
    return _exp_2x_doubles if x.real == types.float64 else _exp_2x_floats


def _exp_2x_doubles(x: Any) -> Any:
    return exp(x + x)


def _exp_2x_floats(x: Any) -> Any:
    """To a unit of rounding.

    2x = n ln 2 + f with |f| <= ln 2 / 2: a polynomial in f times 2^n. The coefficients are those of
    expf in the Cephes library.
    """
    real = np.float32
    z = x + x
    n = floor(z * splat(real(1.44269504088896341)) + splat(real(0.5)))
    f = z - n * splat(real(0.693359375))
    f = f - n * splat(real(-2.12194440e-4))
    p = splat(real(1.9875691500e-4)) * f + splat(real(1.3981999507e-3))
    p = p * f + splat(real(8.3334519073e-3))
    p = p * f + splat(real(4.1665795894e-2))
    p = p * f + splat(real(1.6666665459e-1))
    p = p * f + splat(real(5.0000001201e-1))
    return (p * f * f + f + splat(real(1))) * power(n)


@inlined
def exp_2x_row(x: Any, y: Any, spare: Any) -> Any:
    """Write e^{2x} of a row to y; the largest |x|, or NaN. `spare` is room for a vector."""
    size = len(spare)
    end = len(x) // size * size
    spare[:] = 0
    far = load(spare, 0)
    for i in range(0, end, size):
        part = load(x, i)
        far = max_abs(far, part)
        store(y, i, exp_2x(part))
    if end < len(x):
        for i in range(end, len(x)):
            spare[i - end] = x[i]
        part = load(spare, 0)
        far = max_abs(far, part)
        store(spare, 0, exp_2x(part))
        for i in range(end, len(x)):
            y[i] = spare[i - end]
    return reduce_max_abs(far)


@inlined
def larger_or_nan(one: Any, other: Any) -> Any:
    """The larger of two sizes, or NaN."""
    return one if one > other or one != one else other


@inlined
def measured(v: Any, zeros: Any) -> Any:
    """The sum of a row of whole vectors, and its largest size, or NaN."""
    s, far = zeros, zeros
    for d in range(0, len(v), count(zeros)):
        s += load(v, d)
        far = max_abs(far, load(v, d))
    return total(s), reduce_max_abs(far)


@inlined
def give_columns(columns: Any, rows: Any, low: Any, filled: Any, size: Any) -> None:
    """Write a vector of numbers to every row, or as many as it has from there on."""
    for row in range(len(rows)):
        if filled == size:
            store(rows[row], low, load(columns, row * size))
        else:
            for d in range(filled):
                rows[row, low + d] = columns[row * size + d]


def exponentials(real: Any) -> Callable[[Any], None]:
    """A unit is some numbers."""
    real_bytes, reach, _ = RANGES[real]
    size = BYTES // real_bytes

    def kernel(job: Any) -> None:
        h, one = carray(job, (PLACES,)), real(1)
        numbers = carray(at(h[FIRST], one), (h[KEYS],))
        out = carray(at(h[FIRST + 1], one), (h[KEYS],))
        spare = carray(at(h[SCRATCH] + take(job, SEATS) * size * real_bytes, one), (size,))
        while True:
            unit = take(job, NEXT)
            if unit >= h[UNITS]:
                return
            start = unit * NUMBERS_PER_UNIT
            stop = min(h[KEYS], start + NUMBERS_PER_UNIT)
            if not exp_2x_row(numbers[start:stop], out[start:stop], spare) <= reach:
                take(job, REFUSALS)

    return kernel
