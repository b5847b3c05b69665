"""Model folders of earlier formats: loading, identical outputs, resumed training."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import regard
from regard import migrations, model_folder
from regard.cli.main import main
from regard.migrations import FORMAT

pytestmark = pytest.mark.usefixtures("unchecked")

FORMATS = sorted((Path(__file__).parent / "data").glob("format-*"))
FOLDERS = [
    pytest.param(form, name, id=f"{form.name}/{name}")
    for form in FORMATS
    for name in json.loads((form / "expected.json").read_text(encoding="utf-8"))
]


def expected(form: Path, name: str) -> dict[str, Any]:
    return json.loads((form / "expected.json").read_text(encoding="utf-8"))[name]


@pytest.mark.parametrize(("form", "name"), FOLDERS)
def test_a_folder_of_an_earlier_format_gives_the_recorded_outputs(form: Path, name: str) -> None:
    record = expected(form, name)
    translator = regard.Translator.load(form / name)
    sources = [translator.source.parse_source(line) for line in record["sources"]]
    translations = translator.align(sources, record["targets"])
    assert [translation.score for translation in translations] == pytest.approx(
        record["forced_scores"], abs=1e-4
    )
    if record["attention"] is None:
        assert translations[0].attention is None
    else:
        for translation, weights in zip(translations, record["attention"], strict=False):
            assert translation.attention is not None
            np.testing.assert_allclose(translation.attention, np.array(weights), atol=2e-4)
    assert [translation.text for translation in translator.translate(sources)] == record["texts"]


@pytest.mark.parametrize("name", ["luong", "transformer"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_a_folder_gives_the_recorded_outputs_under_another_default_dtype(
    name: str, dtype: torch.dtype, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(lambda: torch.set_default_dtype(torch.float32))
    torch.set_default_dtype(dtype)
    test_a_folder_of_an_earlier_format_gives_the_recorded_outputs(FORMATS[-1], name)


def resume(form: Path, name: str, out: Path) -> None:
    """Continue the training of a copy of a stored model."""
    record = expected(form, name)
    config = model_folder.describe(out).config
    budget = dataclasses.replace(config.training, max_updates=record["resumed"]["update"])
    data = dataclasses.replace(
        config.data,
        train=str(form / f"{record['data']}.train.tsv"),
        dev=str(form / f"{record['data']}.dev.tsv"),
    )
    config = dataclasses.replace(config, out=str(out), data=data, training=budget, device="cpu")
    regard.train(config, resume=True)


@pytest.mark.parametrize(("form", "name"), FOLDERS)
def test_a_folder_of_an_earlier_format_resumes_and_gets_the_current_format(
    form: Path, name: str, tmp_path: Path
) -> None:
    out = tmp_path / name
    shutil.copytree(form / name, out)
    resume(form, name, out)
    last = json.loads((out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    for key, value in expected(form, name)["resumed"].items():
        assert last[key] == pytest.approx(value, rel=1e-3), key
    weights = out / "model.safetensors"
    state = out / "checkpoints" / f"{last['update']}.safetensors"
    assert json.loads((out / "config.json").read_text())["format"] == FORMAT
    assert not (out / "last").exists()
    with safe_open(str(state), framework="pt") as stored:
        assert json.loads(stored.metadata()["state"])["format"] == FORMAT
    names = {name.removeprefix("model.") for name in load_file(state) if name.startswith("model.")}
    assert names == set(migrations.convert_tensors(load_file(weights)))
    assert names == set(migrations.convert_tensors(dict.fromkeys(names)))
    translator = regard.Translator.load(out)
    assert names == set(model_folder.unshared_tensors(translator.trained.model))


@pytest.mark.parametrize("change", ["missing", "unexpected", "shape"])
@pytest.mark.parametrize("file", ["model.safetensors", "last/state.safetensors"])
@pytest.mark.parametrize(("form", "name"), FOLDERS)
def test_wrong_tensors_are_refused(
    form: Path, name: str, file: str, change: str, tmp_path: Path
) -> None:
    out = tmp_path / name
    shutil.copytree(form / name, out)
    with safe_open(str(out / file), framework="pt") as stored:
        metadata = stored.metadata()
    tensors = load_file(out / file)
    key = next(key for key in tensors if "encoder" in key)
    if change == "missing":
        del tensors[key]
    elif change == "unexpected":
        tensors[f"{key}.more"] = tensors[key].clone()
    else:
        tensors[key] = tensors[key][:-1].clone()
    save_file(tensors, out / file, metadata)
    message = "size mismatch" if change == "shape" else "missing or unexpected tensors: "
    with pytest.raises(regard.FolderError, match=message):
        regard.Translator.load(out) if file == "model.safetensors" else resume(form, name, out)


@pytest.mark.parametrize(("form", "name"), FOLDERS)
def test_checkpoint_files_from_different_updates_are_refused(
    form: Path, name: str, tmp_path: Path
) -> None:
    out = tmp_path / name
    shutil.copytree(form / name, out)
    state = json.loads((out / "last" / "state.json").read_text())
    (out / "last" / "state.json").write_text(json.dumps({**state, "update": "3"}))
    with pytest.raises(
        regard.FolderError, match=f"from different updates, {state['update']} and 3"
    ):
        resume(form, name, out)


@pytest.mark.parametrize(("form", "name"), FOLDERS)
def test_the_settings_of_an_earlier_format_train_a_new_model(
    form: Path, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = form / name / "config.json"
    options = [f"--config={file}", f"--out={tmp_path / 'new'}", "--print-config"]
    assert main(["train", "--data.train=pairs.tsv", *options]) == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    stored = model_folder.describe(form / name).config
    assert printed["source"] == dataclasses.asdict(stored.source)
    assert printed["model"] == dataclasses.asdict(stored.model)
