"""Inference with products of matrices in bfloat16, against float32."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numba
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import regard
from regard.cli.main import main
from regard.config import ModelConfig, Precision
from regard.encoders import RecurrentEncoder
from regard.inference import InferenceModel, for_inference, set_precision
from regard.kernels import linear
from regard.kernels.cpu import packing, processor, products
from regard.kernels.cpu.packing import PANEL, ROWS, pack, panels_of
from regard.kernels.cpu.processor import LANES
from regard.kernels.linear import FrozenLinear
from regard.models import build
from regard.search import beam_search

pytestmark = pytest.mark.skipif(
    not processor.HAS_BFLOAT16, reason="this processor has no products in bfloat16"
)


@pytest.fixture(autouse=True)
def _bfloat16() -> Iterator[None]:
    set_precision("bfloat16")
    yield
    set_precision("float32")


@numba.njit(error_model="numpy")
def _multiply(x: Any, rows: Any, packed: Any, inputs: Any, panels: Any, y: Any) -> None:
    products.product_bfloat16(x, inputs, rows, packed, inputs, panels, y, panels * PANEL)


@given(
    seed=st.integers(0, 2**32 - 1),
    blocks=st.integers(1, 20),
    vectors=st.one_of(st.integers(1, 20), st.just(2 * packing.SCRATCH // ROWS // LANES)),
    outputs=st.integers(1, 3 * PANEL),
)
def test_products_in_bfloat16_are_summed_in_float32(
    seed: int, blocks: int, vectors: int, outputs: int
) -> None:
    torch.manual_seed(seed)
    rows, inputs = blocks * ROWS, vectors * LANES
    x, weight, bias = torch.randn(rows, inputs), torch.randn(outputs, inputs), torch.randn(outputs)
    assert packing.is_packed_in_bfloat16(inputs)
    y = np.full(rows * panels_of(outputs) * PANEL, np.nan, np.float32)
    packed = pack(weight, bias).numpy()
    _multiply(x.numpy().ravel(), rows, packed, inputs, panels_of(outputs), y)
    found = torch.from_numpy(y).view(rows, -1)[:, :outputs]
    expected = x.bfloat16().double() @ weight.bfloat16().double().T + bias
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-6 * inputs + 1e-5)


def test_other_widths_are_packed_in_float32() -> None:
    assert not packing.is_packed_in_bfloat16(LANES + 1)
    assert not packing.is_packed_in_bfloat16(2 * packing.SCRATCH // ROWS + LANES)


@pytest.mark.parametrize("bias", [True, False])
def test_a_frozen_linear_layer_rounds_to_bfloat16(bias: bool) -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(64, 48, bias=bias), torch.randn(3, 10, 64)
    found = FrozenLinear(layer.weight, layer.bias, may_round=True)(x)
    unrounded = FrozenLinear(layer.weight, layer.bias)(x)
    assert found.dtype == torch.float32
    set_precision("float32")
    torch.testing.assert_close(unrounded, layer(x), rtol=1e-5, atol=1e-5)
    expected = layer.bfloat16()(x.bfloat16()).float()
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)
    assert not torch.equal(found, unrounded)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_an_encoder_is_close_to_that_in_float32(cell: str) -> None:
    torch.manual_seed(1)
    encoder = RecurrentEncoder(30, 16, 3 * LANES, layers=2, cell=cell).eval()
    source, lengths = torch.randint(30, (70, 9)), torch.randint(1, 10, (70,))
    with torch.no_grad():
        found = for_inference(encoder)(source, lengths).states  # pyright: ignore
        set_precision("float32")
        exact = encoder(source, lengths).states
    difference = float((found - exact).norm() / exact.norm())
    assert 1e-5 < difference < 1e-2


SIZES = {"embedding_dim": 64, "encoder_dim": 64, "decoder_dim": 64, "attention_dim": 64}
CONFIGS = {
    "Bahdanau": {"decoder": "bahdanau"},
    "Luong": {"decoder": "luong", "input_feeding": True, "decoder_layers": 2},
    "Transformer": {"kind": "transformer", "heads": 2, "encoder_layers": 1, "decoder_layers": 1},
}


@pytest.mark.parametrize("name", CONFIGS)
@torch.inference_mode()
def test_the_precision_of_a_search_can_be_changed(name: str) -> None:
    torch.manual_seed(2)
    model = InferenceModel(build(ModelConfig(**(SIZES | CONFIGS[name])), 20, 20))  # pyright: ignore
    source, lengths = torch.randint(4, 20, (9, 6)), torch.randint(1, 7, (9,))

    sizes: list[int] = []

    def scores(precision: Precision) -> list[float]:
        set_precision(precision)
        prepared, decoder = model.prepared()
        sizes.append(cast("Any", decoder).kernel._weights.numbers.numel())
        memory = prepared.encode(source, lengths)
        found = beam_search(decoder, memory, torch.full((9,), 8), 3)
        return [hypotheses[0].score for hypotheses in found]

    exact, rounded, again = scores("float32"), scores("bfloat16"), scores("float32")
    assert sizes[0] == sizes[2] > 1.6 * sizes[1]
    assert exact == again
    assert exact != rounded
    np.testing.assert_allclose(rounded, exact, atol=0.05)


def test_the_command_translates_in_bfloat16(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    set_precision("float32")
    words = tmp_path / "words.txt"
    words.write_text("attention\nalignment\n", encoding="utf-8")
    translator = regard.Translator.load("english-phones")
    expected = [each.text for each in translator.translate(["attention", "alignment"])]
    command = ["translate", "english-phones", str(words)]
    for precision in ("bfloat16", "float32"):
        main([*command, "--precision", precision])
        found = capsys.readouterr()
        assert found.out.splitlines() == expected
        assert "float32 replaces" not in found.err
        assert linear.rounds_to_bfloat16() == (precision == "bfloat16")


def test_both_models_of_a_comparison_are_evaluated_in_bfloat16(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("attention\tAH T EH N SH AH N\n", encoding="utf-8")
    model = "english-phones"
    main(["evaluate", model, str(pairs), "--compare", model, "--precision", "bfloat16"])
    assert "exact match" in capsys.readouterr().out
    assert linear.rounds_to_bfloat16()


def test_pytorchs_other_settings_of_the_precision_are_no_error() -> None:
    translator = regard.Translator.load("phrasebook")
    text = "por la noche"
    expected = translator.translate(text).text
    torch.backends.cuda.matmul.fp32_precision = "tf32"  # pyright: ignore
    try:
        assert translator.translate(text).text == expected
    finally:
        torch.backends.cuda.matmul.fp32_precision = "none"  # pyright: ignore
