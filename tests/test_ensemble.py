"""Ensembles: the average of several models, in memory, as a folder and in every command."""

import dataclasses
import errno
import itertools
import json
import os
import queue
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import regard
from regard import ensemble, model_folder
from regard.attention import EnsembleMemory, Intervention
from regard.cli import train as train_command
from regard.cli.main import main
from regard.cli.members import _run as own_processes
from regard.cli.members import stop_with_parent, train_members
from regard.config import Config, TextConfig, TrainingConfig, from_dict
from regard.decoders import EnsembleDecoder, fold
from regard.decoders.ensemble import _average
from regard.errors import ConfigError, FolderError, JobError
from regard.files import exclusive

pytestmark = pytest.mark.usefixtures("unchecked")

TEXTS = ["a b c", "d", "a a b d c", "c b"]
KINDS: dict[str, dict[str, Any]] = {
    "luong": {"attention": "additive"},
    "bahdanau": {"attention": "dot", "decoder": "bahdanau", "cell": "gru"},
    "transformer": {"kind": "transformer", "encoder_layers": 1, "decoder_layers": 2},
    "fixed": {"attention": "none"},
}

Make = Callable[..., regard.Translator]


def combine(*translators: regard.Translator) -> regard.Translator:
    named = [(str(index), each.trained) for index, each in enumerate(translators)]
    return regard.Translator(ensemble.combine(named), torch.device("cpu"))


@pytest.fixture(scope="module")
def members(make_translator: Make) -> list[regard.Translator]:
    return [make_translator(**model) for model in KINDS.values()]


@pytest.fixture(scope="module")
def mixed(members: list[regard.Translator]) -> regard.Translator:
    return combine(*members)


@pytest.fixture
def folder(folders: list[Path], tmp_path: Path) -> Path:
    ensemble.save(folders, tmp_path / "all")
    return tmp_path / "all"


def encode(translator: regard.Translator, text: str) -> Any:
    ids = torch.tensor([[*translator.source.encode(text).ids, 3]])
    return translator.trained.model.encode(ids, torch.tensor([ids.shape[1]]))


@pytest.mark.parametrize("model", KINDS.values(), ids=KINDS)
def test_one_member_equals_that_member(make_translator: Make, model: dict[str, Any]) -> None:
    member = make_translator(**model)
    assert combine(member).trained is member.trained


@pytest.mark.parametrize("model", KINDS.values(), ids=KINDS)
def test_two_equal_members_equal_one(make_translator: Make, model: dict[str, Any]) -> None:
    member = make_translator(**model)
    both = combine(member, member)
    for expected, actual in zip(
        [*member.translate(TEXTS, n_best=3), member.align(TEXTS, TEXTS)],
        [*both.translate(TEXTS, n_best=3), both.align(TEXTS, TEXTS)],
        strict=True,
    ):
        assert [each.tokens for each in actual] == [each.tokens for each in expected]
        for one, two in zip(expected, actual, strict=True):
            assert two.score == pytest.approx(one.score, abs=1e-5)
            if one.attention is None:
                assert two.attention is None
            else:
                np.testing.assert_allclose(two.attention, one.attention, atol=1e-6)


@torch.inference_mode()
def test_a_step_is_the_normalised_geometric_mean(
    members: list[regard.Translator], mixed: regard.Translator
) -> None:
    decoders = [(each, each.trained.model.decoder) for each in (*members, mixed)]
    token = torch.tensor([2])
    *steps, combined = [
        decoder.step(token, decoder.start(encode(each, "a b c"))) for each, decoder in decoders
    ]
    product = torch.stack([step.log_probs.exp() for step in steps]).prod(0) ** (1 / len(steps))
    torch.testing.assert_close(combined.log_probs.exp(), product / product.sum())
    heads = [
        step.weights[:, each.attention_layer].mean(1)
        for step, each in zip(steps, members, strict=True)
        if step.weights is not None
    ]
    assert combined.weights is not None
    torch.testing.assert_close(combined.weights, torch.stack(heads, 1)[:, None])


@settings(max_examples=8)
@given(st.lists(st.text("abcd", min_size=1, max_size=6).map(" ".join), min_size=1, max_size=4))
def test_batches_equal_single_texts(mixed: regard.Translator, texts: list[str]) -> None:
    for text, output in zip(texts, mixed.translate(texts, beam_size=3), strict=True):
        alone = mixed.translate(text, beam_size=3)
        assert output.tokens == alone.tokens
        assert output.score == pytest.approx(alone.score, abs=1e-5)
        np.testing.assert_allclose(output.attention, alone.attention, atol=1e-5)  # type: ignore[arg-type]


def test_forced_targets_have_the_scores_of_the_search(mixed: regard.Translator) -> None:
    for output in mixed.translate(TEXTS):
        forced = mixed.align([output.source], [output.tokens])[0]
        assert forced.score == pytest.approx(output.score, abs=1e-5)
        np.testing.assert_allclose(forced.attention, output.attention, atol=1e-5)  # type: ignore[arg-type]


@torch.inference_mode()
def test_folded_members_compute_the_same_steps(mixed: regard.Translator) -> None:
    decoder = mixed.trained.model.decoder
    folded = fold(decoder)
    assert not isinstance(folded, EnsembleDecoder)
    memory, token = encode(mixed, "a b c"), torch.tensor([4])
    expected, actual = (each.step(token, each.start(memory)) for each in (decoder, folded))
    torch.testing.assert_close(actual.log_probs, expected.log_probs)
    torch.testing.assert_close(actual.weights, expected.weights)


@torch.inference_mode()
def test_select_reorders_the_sources_of_all_members(mixed: regard.Translator) -> None:
    ids = torch.tensor([[4, 5, 3], [6, 7, 3]])
    memory = mixed.trained.model.encode(ids, torch.tensor([3, 3]))
    assert isinstance(memory, EnsembleMemory)
    decoder, second = mixed.trained.model.decoder, torch.tensor([1])
    token = torch.tensor([2])
    selected = decoder.step(token, decoder.start(memory.select(second)))
    state = decoder.start(memory).select(second, second)
    torch.testing.assert_close(decoder.step(token, state).log_probs, selected.log_probs)
    both = decoder.step(token.expand(2), decoder.start(memory))
    torch.testing.assert_close(both.log_probs[1:], selected.log_probs)


def test_pins_apply_to_every_member_with_attention(mixed: regard.Translator) -> None:
    free, pinned = (
        mixed.translate("a b c", prefix="d", top_logprobs=1, pin=pin)
        for pin in (None, {0: {1: 1.0}})
    )
    assert pinned.attention_heads is not None
    assert pinned.attention_heads.shape[1:3] == (1, 3)
    assert pinned.attention_heads[0, 0, :, 1] == pytest.approx(1)
    assert free.top_logprobs is not None
    assert pinned.top_logprobs is not None
    assert pinned.top_logprobs[0][0].log_prob != free.top_logprobs[0][0].log_prob


@torch.inference_mode()
def test_an_ablated_head_ablates_all_heads_of_its_member(
    members: list[regard.Translator], mixed: regard.Translator
) -> None:
    decoder, memory, token = mixed.trained.model.decoder, encode(mixed, "a b"), torch.tensor([2])
    free = torch.full((1, 3), torch.nan)
    ablated = Intervention(free, torch.tensor([[False, False, True]]))
    actual = decoder.step(token, decoder.start(memory), ablated)
    assert actual.weights is not None
    assert actual.weights[0, 0].sum(-1).tolist() == pytest.approx([1, 1, 0])
    log_probs = []
    for each, intervention in zip(
        members, (None, None, Intervention(free, torch.ones(2, 2).bool()), None), strict=True
    ):
        member = each.trained.model.decoder
        log_probs.append(
            member.step(token, member.start(encode(each, "a b")), intervention).log_probs
        )
    expected = torch.stack(log_probs).mean(0).log_softmax(-1)
    torch.testing.assert_close(actual.log_probs, expected)


def test_a_prefix_is_forced(mixed: regard.Translator) -> None:
    assert mixed.translate("a b", prefix="d d").tokens[:2] == ["d", "d"]


def test_members_without_attention_give_an_ensemble_without(make_translator: Make) -> None:
    both = combine(make_translator(attention="none"), make_translator(attention="none", cell="gru"))
    assert both.translate("a b").attention is None
    with pytest.raises(ConfigError, match="no attention to pin"):
        both.translate("a b", pin={0: {0: 1.0}})


def test_members_that_copy_form_an_ensemble(make_translator: Make) -> None:
    members = [make_translator(copy=True, decoder=name) for name in ("luong", "bahdanau")]
    both = combine(*members)
    for output in both.translate(["a xyz b"]):
        forced = both.align([output.source], [output.tokens])[0]
        assert forced.score == pytest.approx(output.score, abs=1e-5)
    assert both.translate(["a xyz b"], prefix=[["xyz"]])[0].tokens[0] == "xyz"
    with pytest.raises(
        ConfigError, match="0 and 1 cannot form an ensemble, because only one of them copies"
    ):
        combine(members[0], make_translator())


def test_members_that_exclude_every_token_between_them_are_averaged() -> None:
    log_probs = [torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]).log() for _ in range(2)]
    log_probs[1][1] = torch.tensor([0.0, 0.0, 1.0]).log()
    averaged = _average(log_probs).exp()
    torch.testing.assert_close(averaged, torch.tensor([[0.5, 0.5, 0.0], [0.5, 0.0, 0.5]]))


def test_explanations_name_a_member(mixed: regard.Translator) -> None:
    from regard.explanation.from_model import explain_step

    with pytest.raises(ConfigError, match="explain a member, such as members/0"):
        explain_step(mixed, "a b", 0, target="d")


def test_a_folder_gives_the_outputs_of_its_members(folders: list[Path], folder: Path) -> None:
    loaded = regard.Translator.load(folder)
    expected = combine(*map(regard.Translator.load, folders)).translate(TEXTS)
    assert [output.score for output in loaded.translate(TEXTS)] == [each.score for each in expected]
    assert repr(loaded).startswith("Translator(ensemble of 2, attention=additive")
    assert loaded.trained.metadata["parameters"] == sum(
        regard.Translator.load(each).trained.metadata["parameters"] for each in folders
    )
    assert not any(folder.rglob("checkpoints"))
    shutil.rmtree(folder / "members" / "1")
    with pytest.raises(
        FolderError, match=r"members/1 is not a model folder: it has no config.json"
    ):
        regard.Translator.load(folder)


def test_an_ensemble_in_an_ensemble_contributes_its_members(
    folders: list[Path], folder: Path, tmp_path: Path
) -> None:
    combined = ensemble.save([folder, folders[0]], tmp_path / "more")
    assert len(combined.members) == 3
    shutil.rmtree(tmp_path / "more" / "members" / "0")
    shutil.copytree(folder, tmp_path / "more" / "members" / "0")
    with pytest.raises(FolderError, match="members/0 is an ensemble, not a single model"):
        regard.Translator.load(tmp_path / "more")


def test_an_interrupted_copy_leaves_nothing(
    folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    out = tmp_path / "all"
    monkeypatch.setattr(model_folder, "write_json", fail)
    with pytest.raises(
        ConfigError, match=r"cannot write .*all: No space left on device; free space"
    ):
        ensemble.save(folders, out)
    assert not [*tmp_path.rglob("*")]
    monkeypatch.undo()
    out.mkdir()
    monkeypatch.chdir(out)
    with pytest.raises(ConfigError, match=r"members is inside .*; choose another folder"):
        ensemble.save(folders, folders[0] / "members")
    ensemble.save(folders, ".")
    assert (out / "README.md").read_text().startswith("# all\n")
    assert len(regard.Translator.load(out).trained.members) == 2
    assert [*tmp_path.iterdir()] == [out]


def test_an_ensemble_that_another_process_has_written_is_kept(
    folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, complete = tmp_path / "all", ensemble.complete

    def write_first(*arguments: Any) -> Any:
        monkeypatch.undo()
        ensemble.save(folders[:1], out)
        return complete(*arguments)

    monkeypatch.setattr(ensemble, "complete", write_first)
    with pytest.raises(ConfigError, match=r"another process has written .*all; choose another"):
        ensemble.save(folders, out)
    assert [*tmp_path.iterdir()] == [out]
    assert len([*(out / "members").iterdir()]) == 1


@pytest.mark.parametrize("count", [0, -1, True, "2", [1, 2], 1.5])
def test_a_wrong_number_of_members_is_reported(folder: Path, count: Any) -> None:
    config = {**json.loads((folder / "config.json").read_text()), "members": count}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(FolderError, match="members must be a number from 1, got"):
        regard.Translator.load(folder)


def test_a_damaged_number_of_members_is_reported(folder: Path) -> None:
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace('"members": 2', '"members": 1'))
    with pytest.raises(
        FolderError, match=r"config\.json is damaged: the checksum differs; restore"
    ):
        regard.Translator.load(folder)


def test_more_members_than_folders_are_reported(folder: Path) -> None:
    config = {**json.loads((folder / "config.json").read_text()), "members": 10**12}
    del config["sha256"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(FolderError, match="members/2 is not a model folder"):
        regard.Translator.load(folder)


def test_an_ensemble_whose_training_has_not_ended_is_reported(folder: Path) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(FolderError, match=r"training has not ended: .*members/0$"):
        regard.Translator.load(folder)


def test_damaged_files_are_reported(folder: Path) -> None:
    weights = folder / "members" / "1" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    with pytest.raises(FolderError, match=r"members/1/model.safetensors is damaged"):
        regard.Translator.load(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(FolderError, match=r"all/config.json is damaged"):
        regard.Translator.load(folder)


def test_tokenizers_that_differ_are_named(folders: list[Path], tmp_path: Path) -> None:
    shutil.copytree(folders[0], tmp_path / "other")
    path = tmp_path / "other" / "target.json"
    tokenizer = json.loads(path.read_text())
    path.write_text(json.dumps({**tokenizer, "vocabulary": [*tokenizer["vocabulary"][:-1], "x"]}))
    config = json.loads((tmp_path / "other" / "config.json").read_text())
    del config["sha256"]
    (tmp_path / "other" / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        ConfigError,
        match=r"their target tokenizers differ in the vocabulary \(4 and 4 entries, '.' in only one "
        r"of them\); train the second with --tokenizers-from .*recurrent$",
    ):
        ensemble.save([folders[0], tmp_path / "other"], tmp_path / "all")
    assert not (tmp_path / "all").exists()


def test_a_model_without_features_differs_briefly(make_translator: Make) -> None:
    ours = make_translator().trained
    names = tuple(f"feature {index}" for index in range(100))
    theirs = dataclasses.replace(ours, source=dataclasses.replace(ours.source, features=names))
    with pytest.raises(ConfigError, match=r"features \(0 and 100 entries, 'feature 0' in only one"):
        ensemble.combine([("0", ours), ("1", theirs)])


def test_an_ensemble_cannot_be_trained(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(
        FolderError, match="is an ensemble, not a single model; give one of its members"
    ):
        regard.train(Config(out=str(tmp_path / "new")), [("a", "b")], init_from=folder)
    with pytest.raises(
        ConfigError, match="it is an ensemble: to continue the training of its members"
    ):
        regard.train(Config(out=str(folder)), [("a", "b")], resume=True)
    with pytest.raises(FolderError, match="is an ensemble"):
        model_folder.load(folder)


def test_the_server_accepts_an_ensemble(folder: Path) -> None:
    pytest.importorskip("fastapi")
    from fastapi.testclient import TestClient

    from regard.serving.app import Settings, create_app

    app = create_app(Settings(folder=str(folder)))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        model = client.get("/api/model").json()
        assert (model["kind"], model["layers"], model["heads"]) == ("ensemble", 1, 2)
        body = {"text": "a b", "heads": True}
        output = client.post("/api/translate", json=body).json()["translations"][0]
        expected = regard.Translator.load(folder).translate("a b")
        assert output["text"] == expected.text
        explained = client.post("/api/explain", json={"text": "a b", "target": "b a", "step": 0})
        assert explained.status_code == 422
        assert "explain a member" in explained.text


def test_commands_accept_an_ensemble(
    folders: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, lines, pairs = (str(tmp_path / name) for name in ("all", "lines.txt", "pairs.tsv"))
    Path(lines).write_text("a b\n\nc d a\n")
    Path(pairs).write_text("a b\tb a\nc d a\ta d c\n")
    assert main(["ensemble", *map(str, folders), "--out", out]) == 0
    assert "is an ensemble of 2 models" in capsys.readouterr().out
    assert main(["ensemble", *map(str, folders), "--out", out]) == 1
    assert "exists and is not empty" in capsys.readouterr().err
    assert main(["translate", out, lines, "--attention", str(tmp_path / "a.jsonl")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert main(["evaluate", out, pairs]) == 0
    assert main(["align", out, pairs]) == 0
    assert main(["plot", out, "a b", "-o", str(tmp_path / "map.svg")]) == 0
    capsys.readouterr()
    assert main(["explain", "--model", out, "a b", "--step", "0"]) == 1
    assert "explain a member" in capsys.readouterr().err


def pairs_file(path: Path) -> str:
    words = ["a b", "b a c", "c", "d a", "b b d", "a c d b", "c c", "d d b a"]
    path.write_text("".join(f"{word}\t{word[::-1]}\n" for word in words))
    return str(path)


def train(out: Path, *options: str) -> int:
    sizes = [f"--model.{name}=8" for name in ("embedding_dim", "encoder_dim", "decoder_dim")]
    limits = ["--training.max_updates=4", "--training.validate_every=2", "--device=cpu"]
    units = ["--source.unit=whitespace", "--target.unit=whitespace"]
    pairs = pairs_file(out.parent / "pairs.tsv")
    return main(
        ["train", "--data.train", pairs, "--out", str(out), *sizes, *limits, *units, *options]
    )


@pytest.mark.slow
@pytest.mark.usefixtures("members_in_this_process")
def test_members_are_trained_with_common_tokenizers_and_resumed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "all"
    options = ["--member=model.attention=dot model.decoder=bahdanau"]
    assert train(out, *options) == 0
    assert "\nupdate 4" in capfd.readouterr().err
    assert train(out, *options) == 1
    assert "continue its training (--resume)" in capfd.readouterr().err
    assert train(out, "--resume") == 1
    assert "repeat the command that started it" in capfd.readouterr().err
    more = ["--resume", "--members=2", "--jobs=2", "--training.max_updates=6"]
    with pytest.MonkeyPatch.context() as patch:  # these two members have their own processes
        patch.setattr("regard.cli.members._run", own_processes)
        assert train(out, *options, *more) == 0
    err = capfd.readouterr().err
    assert "[0] resumed at update 4" in err
    assert "\n[0] update 6" in err
    assert "[1] update 6" in err
    assert train(out, *options, "--resume", "--training.max_updates=6") == 1
    assert f"{out} has 2 members, and cannot be resumed with 1" in capfd.readouterr().err
    assert train(tmp_path / "new", "--config", str(out / "config.json")) == 1
    assert "config.json of an ensemble contains no settings" in capfd.readouterr().err
    members = regard.Translator.load(out).trained.members
    assert [each.config.training.seed for each in members] == [1, 2]
    assert [each.config.model.decoder for each in members] == ["bahdanau", "luong"]
    assert {each.config.data.dev_seed for each in members} == {1}
    before = (out / "members" / "1.yaml").read_bytes()
    with exclusive(out, out / "members" / ".lock"):  # as another such command does
        assert train(out, *options, "--resume", "--members=2", "--training.max_updates=9") == 1
    assert f"another process is training {out}" in capfd.readouterr().err
    assert (out / "members" / "1.yaml").read_bytes() == before
    again = ["train", "--members=2", f"--out={out}", "--resume", "--device=cpu"]
    assert main([*again, "--model.encoder_dim=24"]) == 1  # refused
    assert (out / "members" / "1.yaml").read_bytes() == before
    assert main(again) == 0
    assert (out / "members" / "1.yaml").read_bytes() == before


@pytest.mark.slow
@pytest.mark.usefixtures("members_in_this_process")
def test_members_with_dev_pairs_are_resumed_without_naming_them(tmp_path: Path) -> None:
    out, dev = tmp_path / "all", tmp_path / "dev.tsv"
    dev.write_text("a b\tb a\n")
    assert train(out, "--members=1", f"--data.dev={dev}") == 0
    assert "dev_seed" not in json.loads((out / "members" / "0.yaml").read_text())["data"]
    assert main(["train", "--members=1", f"--out={out}", "--resume", "--device=cpu"]) == 0


@pytest.mark.parametrize("option", ["--member=model.cell=gru", "--model.cell=gru"])
def test_settings_that_init_from_fixes_are_refused_before_training(
    option: str, folders: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--members=2", "--member=", option]
    assert train(tmp_path / "all", *options, f"--init-from={folders[0]}") == 1
    assert "cannot change with init_from" in capsys.readouterr().err
    assert not (tmp_path / "all").exists()


def test_members_are_resumed_with_the_seeds_that_they_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, plans = tmp_path / "all", list[dict[str, Any]]()

    def begin() -> None:
        plans.clear()
        (out / "members").mkdir(parents=True)
        for index, seed in enumerate((5, 8)):
            plan = {"training": {"seed": seed}, "data": {"dev_seed": 5}}
            (out / "members" / f"{index}.yaml").write_text(json.dumps(plan))

    def check(commands: list[list[str]], *_: object) -> None:
        files = [Path(each[0].removeprefix("--config=")) for each in commands]
        plans.extend(yaml.safe_load(file.read_text()) for file in files)
        raise JobError("checked")

    monkeypatch.setattr("regard.cli.members._run", check)
    begin()
    assert train(out, "--members=3", "--resume") == 1
    assert [plan["training"]["seed"] for plan in plans] == [5, 8, 7]
    assert [plan["data"]["dev_seed"] for plan in plans] == [5, 5, 5]
    begin()
    own = ["--member=", "--member=training.seed=8", "--member=training.seed=11"]
    assert train(out, "--resume", *own) == 1
    seeds = [plan["training"]["seed"] for plan in plans]
    assert seeds == [5, 8, 11]  # an existing member and one that is added have seeds of their own
    assert [plan["data"]["dev_seed"] for plan in plans] == [5, 5, 5]


@pytest.mark.parametrize("options", [[], ["--data.dev_seed=null"]])
def test_a_seed_of_one_member_does_not_change_the_dev_pairs(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(commands: list[list[str]], *_: object) -> None:
        files = [Path(each[0].removeprefix("--config=")) for each in commands]
        plans.extend(yaml.safe_load(file.read_text()) for file in files)
        raise JobError("checked")

    plans: list[dict[str, Any]] = []
    monkeypatch.setattr("regard.cli.members._run", check)
    given = ["--training.seed=5", "--member=training.seed=9", "--member=model.cell=gru"]
    assert train(tmp_path / "all", *given, *options) == 1
    assert [plan["training"]["seed"] for plan in plans] == [9, 6]
    assert [plan["data"]["dev_seed"] for plan in plans] == [5, 5]


def test_a_first_member_without_a_model_is_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\nprintf 'caf\\351\\n'\n")
    script.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(script))
    assert train(tmp_path / "all", "--members=2") == 1
    err = capfd.readouterr().err
    assert "[0] caf\\xe9\n" in err
    assert "member 0 saved no model" in err
    assert [*(tmp_path / "all").iterdir()] == []
    mine = tmp_path / "all" / "members" / "list.csv"
    mine.parent.mkdir()
    mine.touch()
    assert train(tmp_path / "all", "--members=2", "--resume") == 1
    assert [*mine.parent.iterdir()] == [mine]


def test_a_member_stops_when_its_parent_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGARD_PARENT", str(os.getppid()))
    monkeypatch.setattr("regard.cli.members._SECONDS_BETWEEN_CHECKS", 0.01)
    signals: queue.Queue[int] = queue.Queue()
    monkeypatch.setattr("_thread.interrupt_main", signals.put)
    stop_with_parent()
    time.sleep(0.05)
    assert signals.empty()
    monkeypatch.setattr("os.getppid", lambda: 1)
    assert signals.get(timeout=20) == signal.SIGTERM


@pytest.mark.slow
def test_a_member_that_fails_stops_the_others(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "all"
    assert train(out, "--members=2", "--jobs=2", "--data.max_length=1", "--debug") == 1
    err = capfd.readouterr().err
    assert "[0] Traceback (most recent call last)" in err
    assert "[0] regard train: " in err
    assert "member 0 ended with status 1" in err
    assert not (out / "config.json").exists()


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (["--members=0"], 1, "must be at least 1"),
        (["--members=1", "--member=model.cell=gru", "--member="], 1, "at most one --member"),
        (["--members=2", "--jobs=0"], 1, "must be at least 1"),
        (["--member=source.unit=char"], 1, "takes settings of model and training"),
        (["--member=model.decodr=luong"], 2, "did you mean --model.decoder?"),
        (["--member=model.copy=true", "--member="], 1, "need the same model.copy"),
        (
            ["--members=2", "--member=", "--member=training.coverage_loss=1"],
            1,
            "training.coverage_loss needs model.coverage true",
        ),
        (
            ["--members=2", "--training.guided_alignment=1", "--member=model.attention=none"],
            1,
            "links guide attention weights that are probabilities",
        ),
        (["--jobs=2"], 1, "--jobs needs --members"),
        (["--members=100000"], 1, "must be at most 1,000"),
        (["--members=2", "--member=training.seed=2"], 1, "members 0 and 1 have the same settings"),
        (
            ["--members=2", "--init-from=a", "--tokenizers-from=b"],
            1,
            "leave out --tokenizers-from, or --init-from",
        ),
    ],
)
def test_invalid_members_are_reported_before_training(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    status: int,
    message: str,
) -> None:
    assert train(tmp_path / "all", *options) == status
    assert message in capsys.readouterr().err
    assert not (tmp_path / "all").exists()


def test_pairs_of_several_members_from_a_pipe_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert train(tmp_path / "all", "--members=2", f"--data.train={tmp_path / 'pipe'}") == 1
    assert "pipe is a pipe, which can be read only once" in capsys.readouterr().err
    assert not (tmp_path / "all").exists()


@pytest.mark.parametrize("path", ["/dev/stdin", "pairs.tsv,/dev/fd/0"])
def test_pairs_of_members_from_a_descriptor_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], path: str
) -> None:
    assert train(tmp_path / "all", "--members=2", f"--data.train={path}") == 1
    assert f"the members cannot read {path}; give the path" in capsys.readouterr().err
    assert not (tmp_path / "all").exists()


def test_the_list_of_members_can_stand_in_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "members.yaml"
    path.write_text("members: 1\nmember: [model.cell=gru, model.cell=lstm]\n")
    assert train(tmp_path / "all", "--config", str(path)) == 1
    assert "got --members 1, --jobs 1 and 2 times --member" in capsys.readouterr().err


SIZES = {f"{name}_dim": 8 for name in ("embedding", "encoder", "decoder", "attention")}


@pytest.mark.slow
def test_tokenizers_of_another_model_are_used(folders: list[Path], tmp_path: Path) -> None:
    config = Config(out=str(tmp_path / "new"), device="cpu", training=TrainingConfig(max_updates=1))
    pairs = [("a b x", "b a"), ("b c", "c b")]
    translator = regard.train(config, pairs, pairs, tokenizers_from=folders[0])
    first = regard.Translator.load(folders[0])
    assert (translator.source, translator.target) == (first.source, first.target)
    kinds = (
        {"kind": "transformer"},
        {"attention": "none"},
        {"decoder": "posterior"},
        {"copy": True},
    )
    for origin, kind in itertools.product((None, *range(len(kinds))), range(len(kinds))):
        config_of_kind = from_dict({
            "out": str(tmp_path / f"{origin}-{kind}"), "device": "cpu",
            "training": {"max_updates": 1}, "model": SIZES | kinds[kind],
        })  # fmt: skip
        source = None if origin is None else tmp_path / f"None-{origin}"
        trained = regard.train(config_of_kind, pairs, pairs, tokenizers_from=source).trained
        assert dataclasses.asdict(trained.config.model).items() >= kinds[kind].items()
    ensemble.save([folders[0], tmp_path / "new"], tmp_path / "all")
    with pytest.raises(ConfigError, match="leave out tokenizers_from, or init_from"):
        regard.train(
            dataclasses.replace(config, out=str(tmp_path / "other")),
            pairs,
            tokenizers_from=folders[0],
            init_from=folders[0],
        )
    unit = dataclasses.replace(config, out=str(tmp_path / "other"), source=TextConfig(unit="char"))
    with pytest.raises(ConfigError, match="cannot change with tokenizers_from"):
        regard.train(unit, pairs, tokenizers_from=folders[0])


@pytest.mark.parametrize("name", ["1e3", "p\x85q", "p\x7fq", "p\uffffq", 'a"\\b \u2028 🙂'])
def test_names_that_yaml_may_read_otherwise_reach_the_members(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text("a b\tb a\nb c\tc b\n")
    pairs = [f"--data.train={name}", f"--data.dev={name}"]
    arguments = [*pairs, "--out=all", "--members=1", "--device=cpu"]
    monkeypatch.setattr("regard.cli.members._run", lambda *_: None)
    parser = train_command.make_parser()
    train_members(parser, arguments, parser.parse_args(arguments))
    member = parser.parse_args(["--config=all/members/0.yaml", "--out=x"])
    assert member.data.train == member.data.dev == name
