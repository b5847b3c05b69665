"""Factors of dropout on the CPU: the same elements are dropped in every dtype, and expectations are exact."""

import pytest
import torch

from regard.kernels.dropout import dropout, dropout_mask

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]


@pytest.mark.parametrize("share", [0.0, 1e-6, 0.1, 0.3, 0.999, 1.0])
def test_factors_are_those_of_the_rounded_share_in_every_dtype(share: float) -> None:
    dropped = min(65535, round(share * 65536))
    draws = torch.empty(250, dtype=torch.int64)
    draws.random_(-(2**63), None, generator=torch.Generator().manual_seed(1))
    kept = (draws.view(torch.int16).int() + 32768 >= dropped)[:999].view(27, 37)
    for dtype in DTYPES:
        like = torch.empty(27, 37, dtype=dtype)
        factors = dropout_mask(like, share, torch.Generator().manual_seed(1))
        exact = kept.double() * 65536 / (65536 - dropped)
        assert factors.dtype == dtype
        assert torch.equal(factors, exact.to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_multiplied_by_the_factors(dtype: torch.dtype) -> None:
    rows = torch.randn(3, 5, 7, dtype=dtype, requires_grad=True)
    torch.manual_seed(2)
    outputs = dropout(rows, 0.4, training=True)
    torch.manual_seed(2)
    factors = dropout_mask(rows, 0.4)
    assert torch.equal(outputs, rows * factors)
    outputs.sum().backward()
    assert rows.grad is not None
    assert torch.equal(rows.grad, factors)
    assert dropout(rows, 0.4, training=False) is rows
    assert dropout(rows, 0.0, training=True) is rows
