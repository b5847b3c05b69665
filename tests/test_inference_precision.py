"""Inference with products of matrices in bfloat16, against float32."""

from collections.abc import Iterator
from typing import Any

import numba
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import regard
from regard.cli.main import main
from regard.config import ModelConfig
from regard.encoders import RecurrentEncoder
from regard.inference import InferenceModel, for_inference
from regard.kernels import linear
from regard.kernels.cpu import products, simd
from regard.kernels.cpu.products import LANES, PANEL, ROWS, pack, panels_of
from regard.kernels.linear import FrozenLinear
from regard.models import build
from regard.search import beam_search

pytestmark = pytest.mark.skipif(
    not simd.HAS_BFLOAT16, reason="this processor has no products in bfloat16"
)


@pytest.fixture(autouse=True)
def _medium() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision(before)


@numba.njit(error_model="numpy")
def _multiply(x: Any, rows: Any, packed: Any, inputs: Any, panels: Any, y: Any) -> None:
    products.product_bfloat16(x, inputs, rows, packed, inputs, panels, y, panels * PANEL)


@given(
    seed=st.integers(0, 2**32 - 1),
    blocks=st.integers(1, 20),
    vectors=st.one_of(st.integers(1, 20), st.just(2 * products._SCRATCH // ROWS // LANES)),
    outputs=st.integers(1, 3 * PANEL),
)
def test_products_in_bfloat16_are_summed_in_float32(
    seed: int, blocks: int, vectors: int, outputs: int
) -> None:
    torch.manual_seed(seed)
    rows, inputs = blocks * ROWS, vectors * LANES
    x, weight, bias = torch.randn(rows, inputs), torch.randn(outputs, inputs), torch.randn(outputs)
    assert products.is_packed_in_bfloat16(inputs)
    y = np.full(rows * panels_of(outputs) * PANEL, np.nan, np.float32)
    packed = pack(weight, bias).numpy()
    _multiply(x.numpy().ravel(), rows, packed, inputs, panels_of(outputs), y)
    found = torch.from_numpy(y).view(rows, -1)[:, :outputs]
    expected = x.bfloat16().double() @ weight.bfloat16().double().T + bias
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-6 * inputs + 1e-5)


def test_other_widths_are_packed_in_float32() -> None:
    assert not products.is_packed_in_bfloat16(LANES + 1)
    assert not products.is_packed_in_bfloat16(2 * products._SCRATCH // ROWS + LANES)


@pytest.mark.parametrize("bias", [True, False])
def test_a_frozen_linear_layer_rounds_to_bfloat16(bias: bool) -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(64, 48, bias=bias), torch.randn(3, 10, 64)
    found = FrozenLinear(layer.weight, layer.bias)(x)
    expected = layer.bfloat16()(x.bfloat16()).float()
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)
    torch.set_float32_matmul_precision("highest")
    exact = FrozenLinear(layer.weight.float(), None if layer.bias is None else layer.bias.float())(
        x
    )
    assert not torch.equal(found, exact)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_an_encoder_is_close_to_that_in_float32(cell: str) -> None:
    torch.manual_seed(1)
    encoder = RecurrentEncoder(30, 16, 3 * LANES, layers=2, cell=cell).eval()
    source, lengths = torch.randint(30, (70, 9)), torch.randint(1, 10, (70,))
    with torch.no_grad():
        found = for_inference(encoder)(source, lengths).states  # pyright: ignore
        exact = encoder(source, lengths).states
    difference = float((found - exact).norm() / exact.norm())
    assert 1e-5 < difference < 1e-2


CONFIGS = {
    "Bahdanau": {"decoder": "bahdanau"},
    "Luong": {"decoder": "luong", "input_feeding": True, "decoder_layers": 2},
    "Transformer": {"kind": "transformer", "heads": 2, "encoder_layers": 1, "decoder_layers": 1},
}


@pytest.mark.parametrize("name", CONFIGS)
@torch.inference_mode()
def test_the_precision_of_a_search_can_be_changed(name: str) -> None:
    torch.manual_seed(2)
    sizes = {"embedding_dim": 64, "encoder_dim": 64, "decoder_dim": 64, "attention_dim": 64}
    model = InferenceModel(build(ModelConfig(**(sizes | CONFIGS[name])), 20, 20))  # pyright: ignore
    source, lengths = torch.randint(4, 20, (9, 6)), torch.randint(1, 7, (9,))

    def scores(precision: str) -> list[float]:
        torch.set_float32_matmul_precision(precision)
        prepared, decoder = model.prepared()
        memory = prepared.encode(source, lengths)
        found = beam_search(decoder, memory, torch.full((9,), 8), 3)
        return [hypotheses[0].score for hypotheses in found]

    exact, rounded, again = scores("highest"), scores("medium"), scores("highest")
    assert exact == again
    assert exact != rounded
    np.testing.assert_allclose(rounded, exact, atol=0.05)


def test_the_command_translates_in_bfloat16(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    torch.set_float32_matmul_precision("highest")
    words = tmp_path / "words.txt"
    words.write_text("attention\nalignment\n", encoding="utf-8")
    expected = [each.text for each in regard.Translator.load("english-phones").translate(
        ["attention", "alignment"]
    )]  # fmt: skip
    command = ["translate", "english-phones", str(words), "--precision", "bfloat16"]
    main(command)
    found = capsys.readouterr()
    assert found.out.splitlines() == expected
    assert torch.get_float32_matmul_precision() == "medium"
    assert "float32 replaces" not in found.err
    monkeypatch.setattr(linear.torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    main(command)
    found = capsys.readouterr()
    assert found.out.splitlines() == expected
    assert "this device has no fast products in bfloat16; float32 replaces it" in found.err
