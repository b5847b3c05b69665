"""Sigmoid, tanh, GELU and exponentials of SIMD vectors, float32.

Exponents are bounded where sigmoid is 1 or below 2e-35, and tanh is 1 or -1.
"""

from typing import Any

import numpy as np

from regard.kernels.cpu import simd

_BOUND = np.float32(40)
"""|x| up to which e^{2x} is computed."""

_ZERO, _ONE, _HALF, _MINUS_HALF = (np.float32(number) for number in (0, 1, 0.5, -0.5))
_ROOT_HALF = np.float32(0.5**0.5)


@simd.inlined
def exp_2x_bounded(x: Any) -> Any:
    """Return e^{2x} of a vector, with x limited to [-40, 40]."""
    bound = simd.splat(_BOUND)
    zeros = bound - bound
    return simd.exp_2x(zeros - simd.minimum(zeros - simd.minimum(x, bound), bound))


@simd.inlined
def sigmoid(x: Any) -> Any:
    """Return 1 / (1 + e^{-x}) of a vector."""
    return simd.reciprocal(simd.splat(_ONE) + exp_2x_bounded(simd.splat(_MINUS_HALF) * x))


@simd.inlined
def tanh(x: Any) -> Any:
    """Return tanh of a vector."""
    ones = simd.splat(_ONE)
    quotient = simd.reciprocal(ones + exp_2x_bounded(x))
    return ones - (quotient + quotient)


@simd.inlined
def maximum_with_zero(x: Any) -> Any:
    """Return the larger of x and 0; NaN where x is NaN."""
    zeros = simd.splat(_ZERO)
    return zeros - simd.minimum(zeros - x, zeros)


@simd.inlined
def gelu(x: Any) -> Any:
    """Return x P(X <= x) for a standard normal X, to 3e-7 |x|.

    P is 1 - q / 2 for positive numbers and q / 2 for negative ones, where q = erfc(|x| / sqrt(2)) is
    approximated as by Abramowitz and Stegun 1964, equation 7.1.26.
    """
    ones, half = simd.splat(_ONE), simd.splat(_HALF)
    size = simd.max_abs(x, x)
    z = size * simd.splat(_ROOT_HALF)
    t = simd.reciprocal(ones + simd.splat(np.float32(0.3275911)) * z)
    p = simd.splat(np.float32(1.061405429)) * t - simd.splat(np.float32(1.453152027))
    p = p * t + simd.splat(np.float32(1.421413741))
    p = p * t - simd.splat(np.float32(0.284496736))
    p = p * t + simd.splat(np.float32(0.254829592))
    q = p * t * exp_2x_bounded(simd.splat(_MINUS_HALF) * z * z)
    return maximum_with_zero(x) - size * half * q
