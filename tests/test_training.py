"""Training: exact continuation, best and last, fine-tuning, interruption, what is said and kept."""

import dataclasses
import json
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import regard
from regard import checkpoints, training
from regard.config import Config, ModelConfig, TrainingConfig
from regard.errors import ConfigError
from regard.progress import Progress

PAIRS = [(" ".join(word), " ".join(reversed(word))) for word in (
    "abc", "bca", "cab", "abcd", "dcba", "bd", "ac", "ad", "cd", "dbca", "acbd", "a", "b", "ddd",
)]  # fmt: skip
DEV = [("a b", "b a"), ("c d a", "a d c"), ("c d a", "a d c d")]


def _config(out: Path, model: dict[str, object] | None = None, **settings: object) -> Config:
    values: dict[str, object] = {
        "batch_tokens": 40,
        "validate_every": 5,
        "max_updates": 20,
        "warmup": 5,
    }
    return Config(
        out=str(out),
        device="cpu",
        model=ModelConfig(
            **{
                "embedding_dim": 8,
                "encoder_dim": 8,
                "decoder_dim": 8,
                "attention_dim": 8,
                **(model or {}),
            }
        ),
        training=TrainingConfig(**{**values, **settings}),
    )


def _metrics(out: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_a_folder_holds_all_that_is_promised(tmp_path: Path) -> None:
    out = tmp_path / "model"
    translator = regard.train(_config(out), PAIRS, DEV, command="regard train …")
    names = {path.name for path in out.iterdir()}
    assert names == {
        "config.json", "model.safetensors", "source.json", "target.json",
        "metrics.jsonl", "README.md", "last",
    }  # fmt: skip
    config = json.loads((out / "config.json").read_text())
    assert config["source"]["unit"] == "whitespace"
    assert config["training"]["seed"] == 1
    assert config["metadata"]["max_target_length"] == 4
    assert "regard train …" in (out / "README.md").read_text()
    entries = _metrics(out)
    assert [entry["update"] for entry in entries] == [5, 10, 15, 20]
    assert {"train_loss", "dev_loss", "exact_match", "learning_rate", "minutes"} <= set(entries[0])
    again = regard.Translator.load(out)
    assert [t.text for t in again.translate(["a b"])] == [
        t.text for t in translator.translate(["a b"])
    ]
    assert not list(out.rglob("*.pt")) + list(out.rglob("*.pkl"))


@pytest.mark.parametrize(
    "model", [{}, {"decoder": "bahdanau", "cell": "gru", "tie_embeddings": True}]
)
def test_resuming_continues_exactly(tmp_path: Path, model: dict[str, object]) -> None:
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    regard.train(_config(whole, model), PAIRS, DEV)
    settings = _config(halves, model)

    class Stop(Exception):
        pass

    def stop_after_10(self: training.Trainer, progress: Progress) -> None:
        validate(self, progress)
        if self.schedule.update == 10:
            raise Stop

    validate = training.Trainer._validate
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training.Trainer, "_validate", stop_after_10)
        with pytest.raises(Stop):
            regard.train(settings, PAIRS, DEV)
    torch.manual_seed(99)
    regard.train(settings, PAIRS, DEV, resume=True)
    left = load_file(whole / "last" / "state.safetensors")
    right = load_file(halves / "last" / "state.safetensors")
    assert left.keys() == right.keys()
    assert any(name.startswith("optimizer.") for name in left)
    for name, value in left.items():
        assert torch.equal(value, right[name]), name
    timeless = ("update", "epoch", "train_loss", "dev_loss", "exact_match", "learning_rate", "best")
    assert [[entry[key] for key in timeless] for entry in _metrics(whole)] == [
        [entry[key] for key in timeless] for entry in _metrics(halves)
    ]


def test_resume_without_a_checkpoint_starts_anew_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    regard.train(_config(tmp_path / "new"), PAIRS, DEV, resume=True)
    assert "no checkpoint yet: starting anew" in capsys.readouterr().err


def test_resume_with_other_pairs_or_another_model_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "model"
    regard.train(_config(out), PAIRS, DEV)
    with pytest.raises(regard.FolderError, match="trained on other pairs"):
        regard.train(_config(out), PAIRS[1:], DEV, resume=True)
    with pytest.raises(
        regard.ConfigError, match=r"model\.decoder is luong .* cannot become bahdanau"
    ):
        regard.train(_config(out, {"decoder": "bahdanau"}), PAIRS, DEV, resume=True)


def test_a_finished_run_can_be_given_more_updates(tmp_path: Path) -> None:
    out = tmp_path / "model"
    regard.train(_config(out), PAIRS, DEV)
    before = load_file(out / "last" / "state.safetensors")["model.encoder.embedding.weight"]
    regard.train(_config(out), PAIRS, DEV, resume=True)
    assert len(_metrics(out)) == 4
    regard.train(_config(out, max_updates=30), PAIRS, DEV, resume=True)
    assert [entry["update"] for entry in _metrics(out)][-1] == 30
    after = load_file(out / "last" / "state.safetensors")["model.encoder.embedding.weight"]
    assert not torch.equal(before, after)


def test_a_filled_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(regard.ConfigError, match=r"not empty; choose another --out.*--resume"):
        regard.train(_config(tmp_path), PAIRS, DEV)


def test_fine_tuning_starts_from_the_weights_and_texts_of_a_folder(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    regard.train(_config(first), PAIRS, DEV)
    config = _config(second, max_updates=1, learning_rate=1e-9, validate_every=1)
    config = dataclasses.replace(config, model=ModelConfig())
    regard.train(config, [("a x", "x a")], DEV, init_from=first)
    left, right = (load_file(folder / "model.safetensors") for folder in (first, second))
    for name, value in left.items():
        torch.testing.assert_close(value, right[name], atol=1e-6, rtol=0)
    assert (second / "source.json").read_text() == (first / "source.json").read_text()


def test_the_best_weights_are_kept_not_the_last(tmp_path: Path) -> None:
    out = tmp_path / "model"
    regard.train(
        _config(out, metric="loss", learning_rate=0.5, warmup=0, max_updates=40), PAIRS, DEV
    )
    entries = _metrics(out)
    best = min(entries, key=lambda entry: entry["dev_loss"])
    assert [entry["best"] for entry in entries][entries.index(best)]
    saved = load_file(out / "model.safetensors")
    last = load_file(out / "last" / "state.safetensors")
    same = all(torch.equal(value, last[f"model.{name}"]) for name, value in saved.items())
    assert same == (best is entries[-1])


def test_ctrl_c_leaves_a_usable_folder_that_resumes_exactly(tmp_path: Path) -> None:
    whole, out = tmp_path / "whole", tmp_path / "model"
    regard.train(_config(whole), PAIRS, DEV)
    update = training.Trainer._update

    def interrupt_at_8(self: training.Trainer, batch: object) -> object:
        if self.schedule.update == 7:
            signal.raise_signal(signal.SIGINT)
        return update(self, batch)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training.Trainer, "_update", interrupt_at_8)
        with pytest.raises(KeyboardInterrupt):
            regard.train(_config(out), PAIRS, DEV)
    assert regard.Translator.load(out).translate(["a b"])[0].source_tokens
    regard.train(_config(out), PAIRS, DEV, resume=True)
    left, right = (load_file(folder / "last" / "state.safetensors") for folder in (whole, out))
    assert all(torch.equal(value, right[name]) for name, value in left.items())


def test_ctrl_c_before_the_first_validation_leaves_a_usable_folder(tmp_path: Path) -> None:
    out = tmp_path / "model"

    def interrupt(self: training.Trainer, batch: object) -> object:
        signal.raise_signal(signal.SIGINT)
        return update(self, batch)  # type: ignore[arg-type]

    update = training.Trainer._update
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training.Trainer, "_update", interrupt)
        with pytest.raises(KeyboardInterrupt):
            regard.train(_config(out), PAIRS, DEV)
    assert regard.Translator.load(out).translate(["a"])[0].source_tokens == ["a", "</s>"]


def test_the_same_seed_gives_the_same_weights(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        regard.train(_config(tmp_path / name, seed=seed, max_updates=5), PAIRS, DEV)
    a, b, c = (load_file(tmp_path / name / "model.safetensors") for name in "abc")
    assert all(torch.equal(value, b[name]) for name, value in a.items())
    assert not all(torch.equal(value, c[name]) for name, value in a.items())


def test_without_dev_pairs_some_are_held_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    regard.train(_config(tmp_path / "model", max_updates=5), PAIRS)
    assert "dev: 1 pairs held out" in capsys.readouterr().err


def test_what_is_said_before_and_while_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    regard.train(_config(tmp_path / "model"), PAIRS, DEV)
    said = capsys.readouterr().err
    assert "train: 14 pairs read" in said
    assert "source: unit whitespace (found from the data), vocabulary of 8" in said
    assert "parameters on cpu" in said
    assert "loss at chance ln V = 2.08" in said
    assert "update 5, " in said
    assert said.count("    a b -> ") == 4


def test_bfloat16_trains(tmp_path: Path) -> None:
    regard.train(_config(tmp_path / "a", precision="bfloat16", max_updates=5), PAIRS, DEV)
    regard.train(_config(tmp_path / "b", max_updates=5), PAIRS, DEV)
    a, b = (load_file(tmp_path / name / "model.safetensors") for name in "ab")
    assert all(value.dtype == torch.float32 for value in a.values())
    assert not all(torch.equal(value, b[name]) for name, value in a.items())


def test_a_time_budget_ends_a_run(tmp_path: Path) -> None:
    out = tmp_path / "model"
    config = _config(out, max_updates=10**6, max_minutes=0.02, validate_every=10**6, patience=10**6)
    regard.train(config, PAIRS, DEV)
    entries = _metrics(out)
    assert len(entries) == 1
    assert entries[0]["minutes"] >= 0.02
    assert entries[0]["learning_rate"] == pytest.approx(0.0, abs=1e-4)


def test_checkpoints_of_two_moments_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "model"
    regard.train(_config(out, max_updates=5), PAIRS, DEV)
    state = json.loads((out / "last" / "state.json").read_text())
    (out / "last" / "state.json").write_text(json.dumps({**state, "update": "3"}))
    with pytest.raises(regard.FolderError, match="from different updates, 5 and 3"):
        regard.train(_config(out), PAIRS, DEV, resume=True)
    checkpoints.remove(out)
    assert not (out / "last").exists()


def test_every_metric_can_choose(tmp_path: Path) -> None:
    for metric in ("loss", "exact_match", "per", "cer", "bleu", "chrf"):
        out = tmp_path / metric
        regard.train(_config(out, metric=metric, max_updates=5), PAIRS, DEV)
        assert (metric if metric != "loss" else "dev_loss") in _metrics(out)[0]


def test_a_transformer_is_told_which_of_its_layers_to_show(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "model"
    model = {"kind": "transformer", "heads": 2, "decoder_layers": 2, "feed_forward_dim": 8}
    trained = regard.train(_config(out, model), PAIRS, DEV).trained
    layer = json.loads((out / "config.json").read_text())["metadata"]["attention_layer"]
    assert layer in (0, 1)
    assert trained.metadata["attention_layer"] == layer
    assert (
        f"attention: of 2 layers, number {layer} (from 0) looks most often"
        in capsys.readouterr().err
    )
    assert regard.Translator.load(out).attention_layer(2) == layer


@pytest.mark.parametrize(
    "model",
    [
        {"kind": "transformer", "heads": 2, "feed_forward_dim": 8, "tie_embeddings": True},
        {"copy": True},
        {"coverage": True, "window": "local-p"},
    ],
    ids=str,
)
def test_every_kind_of_model_resumes_exactly(tmp_path: Path, model: dict[str, object]) -> None:
    test_resuming_continues_exactly(tmp_path, model)


@pytest.mark.parametrize(
    "model",
    [{"attention": "dot"}, {"encoder_layers": 2}, {"kind": "transformer", "heads": 2}],
    ids=str,
)
def test_resuming_needs_no_setting_twice(tmp_path: Path, model: dict[str, object]) -> None:
    out = tmp_path / "model"
    regard.train(_config(out, model), PAIRS, DEV)
    longer = _config(out, max_updates=25)
    bare = dataclasses.replace(longer, model=ModelConfig())
    regard.train(bare, PAIRS, DEV, resume=True)
    assert _metrics(out)[-1]["update"] == 25


@pytest.mark.parametrize("featured", [True, False])
def test_training_further_needs_the_features_it_was_begun_with(
    tmp_path: Path, featured: bool
) -> None:
    def config(name: str, column: int | None) -> Config:
        data = regard.DataConfig(features_column=column)
        return dataclasses.replace(_config(tmp_path / name), data=data)

    pairs = [(f"{source}\tX;Y", target) for source, target in PAIRS] if featured else PAIRS
    regard.train(config("first", 3 if featured else None), pairs, pairs[:2])
    other = config("second", None if featured else 3)
    with pytest.raises(ConfigError, match=r"features of the source, got data.features_column"):
        regard.train(other, pairs, pairs[:2], init_from=tmp_path / "first")
