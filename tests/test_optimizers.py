"""Muon: PyTorch's own, the iteration in float64 and the singular values are the references."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import regard
from regard.config import ModelConfig, TrainingConfig, from_dict
from regard.models import build
from regard.optimizers import _COEFFICIENTS, Muon, make_optimizer, orthogonalized
from regard.training import train


def _iterated(matrix: Tensor) -> Tensor:
    """Return the orthogonalised matrix by the iteration itself."""
    x = matrix / torch.linalg.svdvals(matrix).pow(4).sum().pow(0.25)
    for a, b, c in _COEFFICIENTS:
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


def _of_pytorch(matrix: Tensor) -> Tensor:
    """Return the orthogonalised matrix as `torch.optim.Muon` computes it, but in float32."""
    x = (matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T) / matrix.norm()
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x if matrix.shape[0] <= matrix.shape[1] else x.T


@given(rows=st.integers(1, 40), columns=st.integers(1, 40), exponent=st.floats(-5, 18))
def test_the_iteration_in_float64_is_the_reference(
    rows: int, columns: int, exponent: float
) -> None:
    torch.manual_seed(rows)
    matrix = torch.randn(rows, columns, dtype=torch.float64) * 10**exponent
    expected = _iterated(matrix if rows <= columns else matrix.T)
    expected = expected if rows <= columns else expected.T
    torch.testing.assert_close(orthogonalized(matrix), expected, atol=1e-9, rtol=0)
    # singular values near 0 grow 296 times, and so do the errors of their vectors
    actual = orthogonalized(matrix.float()).double()
    torch.testing.assert_close(actual, expected, atol=2e-3, rtol=0)


@pytest.mark.parametrize("shape", [(8, 40), (40, 8), (256, 1024)])
def test_singular_values_become_nearly_equal(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, dtype=torch.float64)
    result = orthogonalized(matrix)
    values = torch.linalg.svdvals(result)
    assert 0.79 < values.min() < values.max() < 1.21
    u, _, v = torch.linalg.svd(matrix, full_matrices=False)
    strengths = (u.T @ result @ v.T).diagonal()  # the vectors are those of the matrix
    torch.testing.assert_close(strengths.sort().values, values.sort().values)


@pytest.mark.parametrize("start", [0.003, 0.05])
def test_small_singular_values_grow_to_almost_one(start: float) -> None:
    values = torch.linspace(start, 1, 200, dtype=torch.float64)
    for a, b, c in _COEFFICIENTS:
        values = a * values + b * values**3 + c * values**5
    assert 0.79 < values.min() < values.max() < 1.21


@pytest.mark.parametrize("exponent", [-14, -24, -36, -44])
def test_a_tiny_momentum_is_a_tiny_update(exponent: int) -> None:
    assert orthogonalized(torch.randn(30, 50) * 10.0**exponent).abs().max() < 1e-2
    assert torch.equal(orthogonalized(torch.zeros(3, 5)), torch.zeros(3, 5))


def test_without_a_gradient_updates_end() -> None:
    matrix, vector, unused = (nn.Parameter(torch.ones(size)) for size in ((6, 4), (3,), (4, 4)))
    optimizer = Muon([matrix, unused], [vector], lr=0.01)
    matrix.grad = torch.randn(6, 4)
    optimizer.step()
    for _ in range(1000):
        matrix.grad = torch.zeros(6, 4)
        before = matrix.clone()
        optimizer.step()
    assert torch.equal(matrix, before)
    assert matrix.isfinite().all()
    assert torch.equal(unused, torch.ones(4, 4))


def test_steps_are_those_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.optimizers.orthogonalized", _of_pytorch)
    ours, theirs = (nn.Parameter(torch.ones(24, 16)) for _ in range(2))
    vector, other = nn.Parameter(torch.ones(7)), nn.Parameter(torch.ones(7))
    muon = Muon([ours], [vector], lr=0.1, weight_decay=0.1, betas=(0.9, 0.98))
    references = (
        torch.optim.Muon([theirs], lr=0.1, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW([other], lr=0.1, weight_decay=0.1, betas=(0.9, 0.98), fused=True),
    )
    for _ in range(4):
        ours.grad = torch.randn(24, 16)
        vector.grad = torch.randn(7)
        theirs.grad, other.grad = ours.grad.clone(), vector.grad.clone()
        muon.step()
        for reference in references:
            reference.step()
    assert torch.equal(vector, other)
    assert (ours - 1).abs().mean() > 0.05
    torch.testing.assert_close(ours, theirs, atol=0.005, rtol=0)  # the reference is in bfloat16


@pytest.mark.parametrize(
    "model",
    [
        {"attention": "additive", "copy": True, "coverage": True},
        {"attention": "bilinear", "window": "local-p", "tie_embeddings": True},
        {"kind": "transformer", "attention": "additive", "positions": "learned"},
        {"kind": "transformer", "activation": "swiglu", "tie_embeddings": True},
    ],
    ids=str,
)
def test_weight_matrices_of_hidden_layers_are_orthogonalised(model: dict[str, Any]) -> None:
    module = build(ModelConfig(**model), 50, 40)
    optimizer = make_optimizer(module, TrainingConfig(optimizer="muon"))
    names = {parameter: name for name, parameter in module.named_parameters()}
    matrices, others = (
        {names[parameter] for parameter in group["params"]} for group in optimizer.param_groups
    )
    assert matrices | others == set(names.values())
    assert not matrices & others
    for name in matrices:
        assert not {"embedding", "output", "vector", "bias"} & set(name.split(".")), name
        assert "weight" in name or name.endswith("factor")
    for name in others:
        vectors = (
            "bias",
            "embedding",
            "output",
            "vector",
            "norm",
            "coverage",
            "position_predictor.2",
        )
        assert any(part in name for part in vectors), name


def _train(out: Path, updates: int, resume: bool = False) -> regard.Translator:
    pairs = [("a b c", "x y"), ("b c", "y"), ("c a", "x"), ("b", "y y")] * 8
    sizes = ("embedding_dim", "encoder_dim", "decoder_dim", "attention_dim")
    training = {"max_updates": updates, "batch_tokens": 40, "optimizer": "muon", "cooldown": 0.0}
    model = dict.fromkeys(sizes, 8)
    config = from_dict({"out": str(out), "model": model, "training": training})
    return train(config, pairs, pairs[:4], resume=resume)


def test_training_resumes_exactly(tmp_path: Path) -> None:
    whole = _train(tmp_path / "whole", 9)
    parts = _train(tmp_path / "parts", 4)
    before, expected = (
        torch.cat([p.flatten() for p in each.trained.model.parameters()]) for each in (parts, whole)
    )
    resumed = _train(tmp_path / "parts", 9, resume=True)
    actual = torch.cat([p.flatten() for p in resumed.trained.model.parameters()])
    assert torch.equal(actual, expected)
    assert not torch.equal(before, expected)
