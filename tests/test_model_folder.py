import errno
import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

import regard
from regard import model_folder
from regard.config import Config, ModelConfig, TextConfig
from regard.errors import FolderError
from regard.migrations import FORMAT
from regard.model_folder import TrainedModel
from regard.models import build
from regard.text import Tokenizer

SMALL: dict[str, Any] = {
    "embedding_dim": 4,
    "encoder_dim": 3,
    "decoder_dim": 5,
    "attention_dim": 2,
}


def make(path: Path, **model: Any) -> TrainedModel:
    config = Config(out=str(path), model=ModelConfig(**{**SMALL, **model}))
    source, target = (Tokenizer.train([text], TextConfig(unit="char")) for text in ("abé", "AB"))
    network = build(config.model, len(source), len(target))
    trained = TrainedModel(
        config, network, source, target, {"max_target_length": 3, "parameters": 1}
    )
    model_folder.save_description(path, trained)
    model_folder.save_weights(path, network)
    return trained


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "model",
    [
        {},
        {"attention": "none"},
        {"attention": "dot", "decoder": "bahdanau", "cell": "gru"},
        {"tie_embeddings": True, "encoder_layers": 2, "decoder_layers": 2},
        {"attention": "cosine", "input_feeding": True, "bidirectional": False},
    ],
    ids=str,
)
def test_loading_restores_what_was_saved(tmp_path: Path, model: dict[str, Any]) -> None:
    trained = make(tmp_path, **model)
    loaded = model_folder.load(tmp_path)
    assert loaded.config == trained.config
    assert (loaded.source, loaded.target) == (trained.source, trained.target)
    assert loaded.metadata == trained.metadata
    assert not loaded.model.training
    state = loaded.model.state_dict()
    for name, value in trained.model.state_dict().items():
        assert torch.equal(state[name], value), name


def test_files_with_equal_contents_are_equal(tmp_path: Path) -> None:
    tensors = {"b": torch.ones(3), "a": torch.zeros(2, 2)}
    metadata = {name: f'"é" {name}\n\x1f' for name in "hgfedcba"}  # in no order by chance
    model_folder.write_tensors(tmp_path / "x", tensors, metadata)
    content = (tmp_path / "x").read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    assert list(header["__metadata__"].items()) == sorted(metadata.items())
    with safe_open(str(tmp_path / "x"), framework="pt") as stored:
        assert stored.metadata() == metadata
        assert all(torch.equal(stored.get_tensor(name), tensors[name]) for name in tensors)


def test_a_folder_has_these_files_and_states_its_versions(folder: Path) -> None:
    names = ["config.json", "model.safetensors", "source.json", "target.json"]
    assert sorted(os.listdir(folder)) == names
    config = json.loads((folder / "config.json").read_text())
    assert config["format"] == FORMAT == 3
    assert config["regard"] == regard.__version__
    assert config["model"]["embedding_dim"] == 4


def test_describe_does_not_need_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert model_folder.describe(folder).config.model.encoder_dim == 3
    with pytest.raises(FolderError, match=r"has no model\.safetensors yet; train until the first"):
        model_folder.load(folder)


def test_files_that_cannot_be_opened_are_not_called_damaged(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Path.open

    def deny(path: Path, *args: Any, **options: Any) -> Any:
        if path.name == denied:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, *args, **options)

    monkeypatch.setattr(Path, "open", deny)
    for denied in ("model.safetensors", "source.json", "config.json"):
        with pytest.raises(FolderError, match=f"cannot read {folder / denied}: Permission denied$"):
            model_folder.load(folder)


def test_a_folder_without_config_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "nowhere", tmp_path / "file"):
        with pytest.raises(FolderError, match=r"is not a model folder: it has no config\.json"):
            model_folder.load(path)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"3", b"{}", b'{"format": "1"}', b'{"format": null}', b"\xff\xfe"],
)
def test_a_damaged_config_is_reported(folder: Path, content: bytes) -> None:
    (folder / "config.json").write_bytes(content)
    with pytest.raises(
        FolderError, match=r"config\.json is damaged( \(|: it does not state its format)"
    ):
        model_folder.load(folder)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model", 3, "model takes settings by name, got 3"),
        ("model", {"atention": "dot"}, r"unknown setting model\.atention"),
        ("model", {"encoder_dim": "wide"}, r"model\.encoder_dim takes a whole number, got 'wide'"),
        ("model", {"attention": "magic"}, r"model\.attention takes one of"),
        ("surprise", 1, "unknown setting surprise"),
    ],
)
def test_invalid_settings_are_reported_as_damage(
    folder: Path, key: str, value: Any, message: str, unchecked: None
) -> None:
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, key: value}))
    with pytest.raises(FolderError, match=rf"config\.json is damaged \({message}"):
        model_folder.load(folder)


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("config.json", '"normalizer": "softmax"', '"normalizer": "entmax15"'),
        ("config.json", '"max_target_length"', '"mcx_target_length"'),
        ("source.json", '"b"', '"x"'),
        ("target.json", '"B"', '"x"'),
    ],
)
def test_damage_that_leaves_valid_settings_is_reported(
    folder: Path, name: str, before: str, after: str, unchecked: None
) -> None:
    text = (folder / name).read_text()
    assert before in text
    (folder / name).write_text(text.replace(before, after))
    with pytest.raises(
        FolderError, match=r"target\.json is damaged: the checksum differs; restore"
    ):
        model_folder.load(folder)
    lines = (folder / "config.json").read_text().splitlines()
    kept = [line for line in lines if not line.startswith('  "sha256":')]
    assert len(kept) == len(lines) - 1
    (folder / "config.json").write_text("\n".join(kept))
    model_folder.load(folder)  # an intended change


def test_a_newer_format_is_refused(folder: Path) -> None:
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, "format": 4, "regard": "9.9"}))
    with pytest.raises(
        FolderError,
        match=r"written by a newer version of regard \(9\.9\); upgrade regard to read it",
    ):
        model_folder.load(folder)


@pytest.mark.parametrize("name", ["source.json", "target.json"])
def test_missing_and_damaged_tokenizers_are_reported(folder: Path, name: str) -> None:
    (folder / name).write_bytes(b"\xff")
    with pytest.raises(FolderError, match=f"{name} is missing or damaged"):
        model_folder.load(folder)
    (folder / name).write_text("{}")
    with pytest.raises(FolderError, match=f"{name}: the tokenizer cannot be read"):
        model_folder.load(folder)
    (folder / name).unlink()
    with pytest.raises(FolderError, match=f"{name} is missing or damaged"):
        model_folder.load(folder)


@pytest.mark.parametrize(
    ("name", "key"), [("source.json", "vocabulary"), ("config.json", "metadata")]
)
def test_lone_surrogates_are_reported_as_damage(folder: Path, name: str, key: str) -> None:
    values = json.loads((folder / name).read_text("utf-8"))
    if key == "vocabulary":
        values[key][0] = "\ud800"
    else:
        values[key]["attribution"] = "x\ud800"
    (folder / name).write_text(json.dumps(values))
    with pytest.raises(FolderError, match=rf"{name}.*surrogates not allowed"):
        model_folder.load(folder)


@pytest.mark.parametrize("kind", ["rnn", "transformer"])
def test_weights_are_not_initialised_before_they_are_read(tmp_path: Path, kind: str) -> None:
    make(tmp_path, kind=kind, encoder_dim=4, decoder_dim=4)
    before = torch.get_rng_state()
    loaded = model_folder.load(tmp_path)
    assert torch.equal(torch.get_rng_state(), before)
    build(loaded.config.model, len(loaded.source), len(loaded.target))
    assert not torch.equal(torch.get_rng_state(), before)  # which a new model needs


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc/self/statm")
def test_sizes_in_the_settings_occupy_no_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An LSTM of width 4,000 has 256 MB in one of its matrices."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def load_tensors(model: torch.nn.Module, _: object) -> None:
        weights.append(sum(parameter.nbytes for parameter in model.parameters()))
        occupied.append(resident() - before)

    weights, occupied = list[int](), list[int]()
    values = json.loads((folder / "config.json").read_text())
    values["model"]["encoder_dim"] = 4000
    del values["sha256"]
    (folder / "config.json").write_text(json.dumps(values))
    monkeypatch.setattr(model_folder, "load_tensors", load_tensors)
    before = resident()
    model_folder.load(folder)
    assert weights[0] > 500_000_000
    assert occupied[0] < 50_000_000


def test_weights_of_another_model_are_refused(folder: Path, tmp_path: Path) -> None:
    other_folder = tmp_path / "other"
    make(other_folder, encoder_dim=7)
    (other_folder / "model.safetensors").replace(folder / "model.safetensors")
    with pytest.raises(
        FolderError, match=r"model\.safetensors is damaged or does not fit config\.json"
    ):
        model_folder.load(folder)


def test_damaged_weights_are_reported(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-5])
    with pytest.raises(FolderError, match="does not fit"):
        model_folder.load(folder)
    weights.write_bytes(b"")
    with pytest.raises(FolderError, match="does not fit"):
        model_folder.load(folder)


class Trap:
    """Unpickling an instance creates a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_nothing_in_a_folder_is_executed(folder: Path, tmp_path: Path) -> None:
    created = tmp_path / "created"
    pickle.loads(pickle.dumps(Trap(created)))
    assert created.exists()
    created.rmdir()
    for name in ("model.safetensors", "source.json", "config.json"):
        original = (folder / name).read_bytes()
        (folder / name).write_bytes(pickle.dumps(Trap(created)))
        with pytest.raises(FolderError):
            model_folder.load(folder)
        (folder / name).write_bytes(original)
    torch.save({"a": Trap(created)}, folder / "model.safetensors")
    with pytest.raises(FolderError):
        model_folder.load(folder)
    assert not created.exists()
