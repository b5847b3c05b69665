"""Sigmoid, tanh, GELU and exponentials of SIMD vectors, float32.

Exponents are bounded where sigmoid is 1 or below 2e-35.
"""

from typing import Any

import numpy as np

from regard.kernels.cpu import simd

_BOUND = np.float32(40)
"""|x| up to which e^{2x} is computed."""

_TANH_BOUND = np.float32(7.9)
_TANH_P = tuple(
    np.float32(number)
    for number in (1.542795164e-08, 2.202323004e-05, 3.578991115e-03, 1.345061981e-01, 1)
)
_TANH_Q = tuple(
    np.float32(number)
    for number in (8.598771496e-07, 3.423649059e-04, 2.619223448e-02, 4.678394781e-01, 1)
)

_ZERO, _ONE, _HALF, _MINUS_HALF = (np.float32(number) for number in (0, 1, 0.5, -0.5))
_ROOT_HALF = np.float32(0.5**0.5)


@simd.inlined
def exp_2x_bounded(x: Any) -> Any:
    """Return e^{2x} of a vector, with x limited to [-40, 40]."""
    return simd.exp_2x(simd.maximum(simd.minimum(x, simd.splat(_BOUND)), simd.splat(-_BOUND)))


@simd.inlined
def sigmoid(x: Any) -> Any:
    """Return 1 / (1 + e^{-x}) of a vector."""
    return simd.reciprocal(simd.splat(_ONE) + exp_2x_bounded(simd.splat(_MINUS_HALF) * x))


@simd.inlined
def tanh(x: Any) -> Any:
    """Return tanh of a vector, to 4e-7: x P(x^2) / Q(x^2), with x limited to [-7.9, 7.9].

    The coefficients are those of a minimax fit, whose relative error is 6e-9.
    """
    x = simd.maximum(simd.minimum(x, simd.splat(_TANH_BOUND)), simd.splat(-_TANH_BOUND))
    y = x * x
    p, q = simd.splat(_TANH_P[0]), simd.splat(_TANH_Q[0])
    for i in range(1, 5):
        p, q = simd.fma(p, y, simd.splat(_TANH_P[i])), simd.fma(q, y, simd.splat(_TANH_Q[i]))
    return x * p * simd.reciprocal(q)


@simd.inlined
def maximum_with_zero(x: Any) -> Any:
    """Return the larger of x and 0; NaN where x is NaN."""
    return simd.maximum(x, simd.splat(_ZERO))


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
