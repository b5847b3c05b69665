"""Pretrained models: loading by name, commands, cards, and the script that makes them."""

import contextlib
import dataclasses
import gzip
import json
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import make_models
import regard
from regard import datasets, model_folder, pretrained
from regard.cli.main import main
from regard.cli.serve import make_parser
from regard.config import Config, TrainingConfig
from regard.curves import read_history
from regard.errors import FolderError
from regard.metrics import METRICS
from regard.serving.app import Settings, create_app

pytestmark = pytest.mark.usefixtures("unchecked")

MODELS = regard.pretrained_models()


def test_the_phrasebook_is_pretrained_and_the_first_model_is_the_default() -> None:
    assert "phrasebook" in MODELS
    assert set(MODELS) <= set(make_models.RECIPES)
    (folder,) = (action for action in make_parser().arguments() if action.dest == "folder")
    default = "english-phones" if "english-phones" in MODELS else "phrasebook"
    assert folder.default == str(pretrained.folder_of(default))
    assert f"default: {default}" in str(folder.help)


@pytest.mark.parametrize("name", MODELS)
def test_every_pretrained_model_is_small_and_states_its_data(name: str) -> None:
    folder = pretrained.find(name)
    assert sum(path.stat().st_size for path in folder.iterdir()) < 8_000_000
    trained = model_folder.load(name)
    assert trained.metadata["attribution"] in (folder / "README.md").read_text("utf-8")
    notice = make_models.RECIPES[name].notice
    assert (folder / "NOTICE").is_file() == (notice is not None)
    if notice is not None:
        text = (make_models.NOTICES / notice).read_text("utf-8")
        assert (folder / "NOTICE").read_text("utf-8") == text
        assert text in (folder / "README.md").read_text("utf-8")
    assert not os.path.isabs(trained.config.data.train or "")
    translator = regard.Translator.load(name)
    for output in translator.translate(trained.metadata["examples"]):
        assert output.complete
        assert not output.unknown
        assert output.text
    assert read_history(name)[-1]["update"] > 0


@pytest.mark.parametrize("name", MODELS)
def test_the_command_of_the_card_has_the_settings_of_the_model(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, *command = [*make_models.train_command(name, []), "--out", name]
    folder = pretrained.folder_of(name)
    assert f"regard {shlex.join(command)}\n" in (folder / "README.md").read_text("utf-8")
    assert main([*command, "--print-config"]) == 0
    given = _fields(yaml.safe_load(capsys.readouterr().out))
    stored = _fields(json.loads((folder / "config.json").read_text("utf-8")))
    assert given["training.max_updates"] == stored["training.max_updates"]
    # fields that are null follow from others; those that are not stored are newer than the model
    common = {name for name in given.keys() & stored.keys() if given[name] is not None}
    assert {name: given[name] for name in common} == {name: stored[name] for name in common}


def _fields(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return settings with dotted names."""
    fields: dict[str, Any] = {}
    for name, value in settings.items():
        nested = isinstance(value, dict)
        fields |= _fields(value, f"{prefix}{name}.") if nested else {f"{prefix}{name}": value}
    return fields


def test_the_phrasebook_translates_unseen_sentences() -> None:
    outputs = regard.Translator.load("phrasebook").translate(["我 爱 机器 学习", "te quiero"])
    assert [output.text for output in outputs] == ["i love machine learning", "i love you"]
    assert str(outputs[0].alignment()) == "0-0 1-1 2-2 3-3"


def test_the_training_files_of_the_phrasebook_are_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = model_folder.load(pretrained.find("phrasebook"))
    monkeypatch.chdir(tmp_path)
    assert trained.training_file("train") is None
    datasets.write(datasets.make("phrasebook"), Path("phrasebook"))
    assert trained.training_file("train") == "phrasebook/train.tsv"
    assert trained.training_file("dev") == "phrasebook/dev.tsv"


def test_a_folder_takes_precedence_over_a_pretrained_model(
    folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(model_folder.load("phrasebook").target) > 200
    shutil.copytree(folders[0], "phrasebook")
    assert len(model_folder.load("phrasebook").target) < 20
    Path("phrasebook", "config.json").unlink()
    with pytest.raises(
        FolderError,
        match=r"^phrasebook is not a model folder: it has no config\.json; give the output folder of "
        r"a training run, or rename phrasebook to use the pretrained model of that name$",
    ):
        regard.Translator.load("phrasebook")


def test_an_unknown_name_is_reported_with_the_pretrained_models() -> None:
    listed = ", ".join(MODELS)
    with pytest.raises(FolderError) as caught:
        regard.Translator.load("phrasbook")
    assert str(caught.value) == (
        "phrasbook is not a model folder: it has no config.json; give the output folder of a "
        f"training run or a pretrained model ({listed}); did you mean phrasebook?"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        "translate phrasebook {lines}",
        "evaluate phrasebook {pairs} --compare phrasebook",
        "align phrasebook {pairs}",
        "plot phrasebook tequiero -o {out}.html",
        "explain --model phrasebook quiero --step 0",
        "ensemble phrasebook phrasebook --out {out}",
        "curves phrasebook -o {out}.html",
    ],
)
def test_commands_take_the_name_of_a_pretrained_model(
    arguments: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {name: tmp_path / name for name in ("lines", "pairs", "out")}
    files["lines"].write_text("te quiero\n")
    files["pairs"].write_text("te quiero\ti love you\n")
    assert main(arguments.format(**files).split()) == 0, capsys.readouterr().err


def test_training_starts_from_a_pretrained_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = tmp_path / "pairs"
    pairs.write_text("te quiero\ti love you\n")
    arguments = ["--data.train", pairs, "--data.dev", pairs, "--out", tmp_path / "out"]
    few = ["--init-from", "phrasebook", "--training.max_updates", "2"]
    assert main(["train", *map(str, arguments), *few]) == 0, capsys.readouterr().err
    assert len(model_folder.load(tmp_path / "out").target) == len(
        model_folder.load("phrasebook").target
    )


def test_the_page_states_the_origin_of_the_data() -> None:
    content = create_app(Settings(folder="phrasebook")).state.page
    assert make_models.RECIPES["phrasebook"].attribution in content
    assert "pretrained/phrasebook" in content


@pytest.mark.parametrize("command", ["translate", "serve"])
def test_help_and_completion_name_the_pretrained_models(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--help"]) == 0
    assert "phrasebook" in capsys.readouterr().out
    for shell in ("bash", "zsh", "fish"):
        assert main(["--print-completion", shell]) == 0
        assert " ".join(MODELS) in capsys.readouterr().out


@pytest.mark.slow
def test_the_script_trains_rounds_and_describes_a_model(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: list[str], check: bool, cwd: Path) -> None:
        assert (command[:3], check) == ([sys.executable, "-m", "regard"], True)
        with contextlib.chdir(cwd):
            assert main(command[3:]) == 0

    monkeypatch.setattr(make_models.subprocess, "run", run)
    data, out = tmp_path / "data", tmp_path / "out"
    for folder, pairs in (
        ("cmudict", "ab\tAE B\nba\tB AE\n"),
        ("tatoeba-es-en", "sí\tyes\nno\tno\n"),
    ):
        (data / folder).mkdir(parents=True)
        for part in ("train", "dev"):
            (data / folder / f"{part}.tsv.gz").write_bytes(gzip.compress(pairs.encode()))
    common = ["--data", str(data), "--out", str(out), "--work", str(tmp_path / "work")]
    few = ["--training.max_updates=2", "--model.encoder_dim=8", "--model.decoder_dim=8"]
    make_models.main([*common, "--only", "english-phones", *few])
    folder = out / "english-phones"
    card = (folder / "README.md").read_text("utf-8")
    assert (make_models.NOTICES / "cmudict.txt").read_text("utf-8") in card
    figures = f"dev pairs (2 sources), beam size 5: {METRICS['wer'].label} "
    assert figures in card
    assert "--config g2p" in card
    assert str(tmp_path) not in card + (folder / "config.json").read_text("utf-8")
    trained = model_folder.load(folder)
    assert trained.metadata["attribution"] in card
    assert trained.config.data.train == "cmudict/train.tsv.gz"
    # a model that is already trained is taken as it is, and its card replaces the earlier one
    other = f"spanish-english={tmp_path / 'work' / 'english-phones'}"
    make_models.main([*common, "--only", "spanish-english", "--trained", other])
    assert "tatoeba.org" in (out / "spanish-english" / "README.md").read_text("utf-8")
    weights = (out / name / "model.safetensors" for name in ("english-phones", "spanish-english"))
    assert len({path.read_bytes() for path in weights}) == 1
    with pytest.raises(SystemExit):
        make_models.main([*common, "--trained", "french=x"])
    assert "--trained takes NAME=DIR with a name of" in capfd.readouterr().err


def test_a_model_that_is_trained_further_passes_the_licence_of_its_data_on(tmp_path: Path) -> None:
    folder = pretrained.folder_of("spanish-english")
    stored = model_folder.load(folder)
    training = TrainingConfig(max_updates=1)
    pairs = [("te quiero", "i love you"), ("hola", "hello")]
    config = Config(training=training, out=str(tmp_path / "new"), device="cpu")
    regard.train(config, pairs, pairs, init_from="spanish-english")
    more = dataclasses.replace(config, training=TrainingConfig(max_updates=2))
    for resumed in (False, True):
        if resumed:
            regard.train(more, pairs, pairs, resume=True)
        found = model_folder.load(tmp_path / "new")
        assert found.metadata["attribution"] == stored.metadata["attribution"]
        notice = (tmp_path / "new" / "NOTICE").read_text("utf-8")
        assert notice == (folder / "NOTICE").read_text("utf-8")
        assert notice in (tmp_path / "new" / "README.md").read_text("utf-8")
