"""Weights in int8 and float16: rounding, files, damaged files."""

import dataclasses
import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.torch import load_file, save_file

import regard
from regard import model_folder
from regard.errors import ConfigError, FolderError
from regard.quantization import compress, dequantize, expand, quantize, round_weights
from serving_models import make_folder

_FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
_WEIGHTS = arrays.arrays(
    np.float32, arrays.array_shapes(min_dims=2, max_dims=3, max_side=5), elements=_FLOATS
)


@pytest.fixture
def folder(folders: list[Path], tmp_path: Path) -> Path:
    return shutil.copytree(folders[0], tmp_path / "model")


@given(_WEIGHTS)
def test_a_rounded_weight_is_stored_exactly(weights: np.ndarray) -> None:
    first = quantize(torch.from_numpy(weights))
    rounded = dequantize(first)
    second = quantize(rounded)
    assert torch.equal(first.values, second.values)
    assert torch.equal(first.scale, second.scale)
    assert torch.equal(dequantize(second), rounded)


@given(_WEIGHTS)
def test_the_error_is_at_most_half_a_step(weights: np.ndarray) -> None:
    tensor = torch.from_numpy(weights)
    quantized = quantize(tensor)
    limit = tensor.double().flatten(1).abs().amax(1)
    # truncation lowers the scale by at most 2^-15 of it, and below the normal numbers by one of them
    step = (limit / 127).view(-1, *[1] * (tensor.ndim - 1))
    bound = step * (0.5 + 127 * 2**-15) + 127 * 2.0**-140
    assert bool(((dequantize(quantized).double() - tensor.double()).abs() <= bound).all())


def test_rows_have_their_own_scales() -> None:
    quantized = quantize(torch.tensor([[1.0, -127.0, 0.4], [0.0, 0.0, 0.0], [0.127, 0.05, 0.0]]))
    assert quantized.values[:2].tolist() == [[1, -127, 0], [0, 0, 0]]
    assert quantized.scale[:2].tolist() == [1, 0]
    assert quantized.values[2].tolist() == [127, 50, 0]


@pytest.mark.parametrize("dtype", ["int8", "float16", "float32"])
def test_a_folder_loads_as_the_rounded_model(
    made_once: Callable[[str, Callable[[Path], object]], Path], tmp_path: Path, dtype: Any
) -> None:
    made = made_once("tied", functools.partial(make_folder, tie_embeddings=True))
    folder = shutil.copytree(made, tmp_path / "model")
    trained = model_folder.load(folder)
    original = {name: value.clone() for name, value in trained.model.state_dict().items()}
    model_folder.save_weights(folder, trained.model, dtype=dtype)
    stored = load_file(folder / "model.safetensors")
    kinds = {(tensor.dtype, tensor.ndim > 1) for tensor in stored.values()}
    expected = {
        "int8": {(torch.int8, True), (torch.float32, False)},
        "float16": {(torch.float16, True), (torch.float16, False)},
        "float32": {(torch.float32, True), (torch.float32, False)},
    }
    assert kinds == expected[dtype]
    round_weights(trained.model, dtype)
    loaded = model_folder.load(folder).model.state_dict()
    for name, value in trained.model.state_dict().items():
        assert loaded[name].dtype == value.dtype == torch.float32
        assert torch.equal(loaded[name], value), name
        changed = dtype == "float16" or (dtype == "int8" and value.ndim > 1)
        assert not changed or value.numel() < 2 or not torch.equal(value, original[name]), name
    model_folder.save_weights(folder, trained.model, dtype=dtype)
    again = load_file(folder / "model.safetensors")
    assert all(torch.equal(again[name], stored[name]) for name in stored)


def _damage(folder: Path, change: Any) -> None:
    """Write the tensors of a folder again, changed and without a checksum."""
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name, tensor in tensors.items() if tensor.dtype == torch.int8)
    change(tensors, name)
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors, name: tensors.pop(f"{name}.scale"), r"\.scale is missing or does not fit"),
        (
            lambda tensors, name: tensors.update({f"{name}.scale": torch.ones(1, 2)}),
            r"\.scale is missing or does not fit",
        ),
        (
            lambda tensors, name: tensors.update({f"{name}.scale": tensors[name].sum()}),
            r"\.scale is missing or does not fit",
        ),
        (
            lambda tensors, name: tensors[f"{name}.scale"].fill_(torch.nan),
            "contains values that are not finite",
        ),
        (
            lambda tensors, name: tensors.update({name: tensors[name][:, :1].contiguous()}),
            "size mismatch",
        ),
        (lambda tensors, name: tensors.pop(name), "missing or unexpected tensors"),
    ],
)
def test_damaged_integers_are_reported(folder: Path, change: Any, message: str) -> None:
    model_folder.save_weights(folder, model_folder.load(folder).model, dtype="int8")
    model_folder.load(folder)
    _damage(folder, change)
    with pytest.raises(
        FolderError, match=rf"is damaged or does not fit config\.json \(.*{message}"
    ):
        model_folder.load(folder)


def test_the_checksum_covers_the_integers(folder: Path) -> None:
    model_folder.save_weights(folder, model_folder.load(folder).model, dtype="int8")
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(FolderError, match="the checksum differs"):
        model_folder.load(folder)


def test_unsuitable_types_and_weights_are_refused(unchecked: None) -> None:
    with pytest.raises(
        ConfigError, match="the type of weights takes one of float32, float16, int8"
    ):
        compress({}, "int4")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="a has weights too large for float16; use int8"):
        compress({"a": torch.tensor([1e6])}, "float16")
    assert expand({"a": torch.ones(2)})["a"].tolist() == [1, 1]


def test_training_continues_from_rounded_weights(tmp_path: Path) -> None:
    settings = regard.Config(
        model=regard.ModelConfig(embedding_dim=4, encoder_dim=4, decoder_dim=4, attention_dim=4),
        training=regard.TrainingConfig(max_updates=4, validate_every=2),
        out=str(tmp_path / "run"),
    )
    pairs = [("a b", "c"), ("b a", "d")]
    first = regard.train(settings, pairs, pairs)
    run = first.trained.metadata["run"]
    model_folder.save_weights(tmp_path / "run", first.trained.model, run, "int8")
    further = dataclasses.replace(
        settings, training=dataclasses.replace(settings.training, max_updates=6)
    )
    regard.train(further, pairs, pairs, resume=True)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["update"] == 6
    model_folder.save_weights(tmp_path / "run", first.trained.model, run, "float16")
    other = dataclasses.replace(settings, out=str(tmp_path / "other"))
    regard.train(other, pairs, pairs, init_from=tmp_path / "run")
    regard.Translator.load(tmp_path / "other")
