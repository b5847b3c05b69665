"""Training: exact resume, best and last weights, fine-tuning, interruption, messages."""

import concurrent.futures
import contextlib
import dataclasses
import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from safetensors.torch import load_file

import regard
from regard import checkpoints, trainer
from regard.config import Config, ModelConfig, TextConfig, TrainingConfig
from regard.errors import ConfigError, Interrupted
from regard.kernels.compilation import _spent, compile_seconds, compiling
from regard.progress import Progress
from regard.trainer import Trainer

pytestmark = pytest.mark.usefixtures("unchecked")

PAIRS = [(" ".join(word), " ".join(reversed(word))) for word in (
    "abc", "bca", "cab", "abcd", "dcba", "bd", "ac", "ad", "cd", "dbca", "acbd", "a", "b", "ddd",
)]  # fmt: skip
DEV = [("a b", "b a"), ("c d a", "a d c"), ("c d a", "a d c d")]
TRANSFORMER = {
    "kind": "transformer", "heads": 2, "feed_forward_dim": 8, "encoder_layers": 1, "decoder_layers": 2
}  # fmt: skip
"""A small one, whose displayed layer is one of two."""


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


def test_a_resumed_run_keeps_its_command_and_its_displayed_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "model"
    monkeypatch.setattr("regard.training.layer_agreements", lambda *_: [0.9, 0.1])
    regard.train(_config(out, TRANSFORMER), PAIRS, DEV, command="regard train …")
    assert regard.Translator.load(out, "cpu").attention_layer == 0
    monkeypatch.setattr("regard.trainer.Trainer._update", _interrupt)
    with pytest.raises(KeyboardInterrupt):
        regard.train(_config(out, max_updates=40), PAIRS, DEV, resume=True, command="other")
    assert regard.Translator.load(out, "cpu").attention_layer == 0
    monkeypatch.undo()
    regard.train(Config(out=str(out)), PAIRS, DEV, resume=True, command="regard train --resume")
    assert "    regard train …\n" in (out / "README.md").read_text()
    assert "--resume" not in (out / "README.md").read_text()


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_signal_after_the_last_update_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, tracking = tmp_path / "model", trainer.tracking

    @contextlib.contextmanager
    def slow(*arguments: Any) -> Generator[None]:
        with tracking(*arguments):
            yield
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(trainer, "tracking", slow)
    with pytest.raises(Interrupted):
        regard.train(_config(out), PAIRS, DEV)
    monkeypatch.undo()
    assert not (out / "README.md").exists()
    regard.train(Config(out=str(out)), PAIRS, DEV, resume=True)
    assert (out / "README.md").exists()


def test_a_folder_holds_every_documented_file(tmp_path: Path) -> None:
    out = tmp_path / "model"
    translator = regard.train(_config(out), PAIRS, DEV, command="regard train …")
    names = {path.name for path in out.iterdir()}
    assert names == {
        "config.json", "model.safetensors", "source.json", "target.json",
        "metrics.jsonl", "README.md", "checkpoints",
    }  # fmt: skip
    config = json.loads((out / "config.json").read_text())
    assert config["source"]["unit"] == "whitespace"
    assert config["training"]["seed"] == 1
    assert config["metadata"]["max_target_length"] == 4
    assert "regard train …" in (out / "README.md").read_text()
    entries = _metrics(out)
    assert [entry["update"] for entry in entries] == [5, 10, 15, 20]
    assert {"train_loss", "dev_loss", "exact_match", "learning_rate", "minutes"} <= set(entries[0])
    loaded = regard.Translator.load(out)
    assert [t.text for t in loaded.translate(["a b"])] == [
        t.text for t in translator.translate(["a b"])
    ]
    assert not list(out.rglob("*.pt")) + list(out.rglob("*.pkl"))


class Stop(Exception):
    pass


def stop() -> None:
    raise Stop


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def at_update(number: int, action: Callable[[], None]) -> Generator[None]:
    """Run `action` when training reports that update `number` is done."""
    advance = Progress.advance

    def act(self: Progress, *arguments: Any) -> None:
        advance(self, *arguments)
        if self.done == number:
            action()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Progress, "advance", act)
        yield


def latest(out: Path) -> Path:
    """Return the latest checkpoint."""
    return max((out / "checkpoints").glob("*.safetensors"), key=lambda path: int(path.stem))


@pytest.mark.parametrize(
    "model", [{}, {"decoder": "bahdanau", "cell": "gru", "tie_embeddings": True}]
)
def test_resuming_continues_exactly(tmp_path: Path, model: dict[str, object]) -> None:
    complete, halves = tmp_path / "complete", tmp_path / "halves"
    regard.train(_config(complete, model), PAIRS, DEV)
    settings = _config(halves, model)
    with at_update(11, stop), pytest.raises(Stop):
        regard.train(settings, PAIRS, DEV)
    torch.manual_seed(99)
    regard.train(settings, PAIRS, DEV, resume=True)
    actual = load_file(latest(complete))
    expected = load_file(latest(halves))
    assert actual.keys() == expected.keys()
    assert any(name.startswith("optimizer.") for name in actual)
    for name, value in actual.items():
        assert torch.equal(value, expected[name]), name
    timeless = ("update", "epoch", "train_loss", "dev_loss", "exact_match", "learning_rate", "best")
    assert [[entry[key] for key in timeless] for entry in _metrics(complete)] == [
        [entry[key] for key in timeless] for entry in _metrics(halves)
    ]


def test_resume_without_a_checkpoint_starts_from_scratch_and_reports_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    regard.train(_config(tmp_path / "new"), PAIRS, DEV, resume=True)
    assert "no checkpoint yet: training starts from scratch" in capsys.readouterr().err


def test_resume_with_other_pairs_or_another_model_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "model"
    regard.train(_config(out), PAIRS, DEV)
    with pytest.raises(regard.FolderError, match="trained on other pairs"):
        regard.train(_config(out), PAIRS[1:], DEV, resume=True)
    with pytest.raises(
        regard.ConfigError,
        match=r"model\.decoder is luong .* cannot change when the run is resumed \(to bahdanau\)",
    ):
        regard.train(_config(out, {"decoder": "bahdanau"}), PAIRS, DEV, resume=True)
    other = dataclasses.replace(_config(out), data=regard.DataConfig(recombined_pairs=5))
    with pytest.raises(regard.ConfigError, match=r"data\.recombined_pairs is 0 .* \(to 5\)"):
        regard.train(other, PAIRS, DEV, resume=True)
    other = dataclasses.replace(_config(out), data=regard.DataConfig(dev_seed=5))
    with pytest.raises(regard.ConfigError, match=r"data\.dev_seed is None .* \(to 5\)"):
        regard.train(other, PAIRS, DEV, resume=True)


def test_a_finished_run_can_be_extended(tmp_path: Path) -> None:
    out = tmp_path / "model"
    regard.train(_config(out), PAIRS, DEV)
    before = load_file(latest(out))["model.encoder.embedding.weight"]
    regard.train(_config(out), PAIRS, DEV, resume=True)
    assert len(_metrics(out)) == 4
    regard.train(_config(out, max_updates=30), PAIRS, DEV, resume=True)
    assert [entry["update"] for entry in _metrics(out)][-1] == 30
    after = load_file(latest(out))["model.encoder.embedding.weight"]
    assert not torch.equal(before, after)


def test_a_non_empty_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(
        regard.ConfigError, match=r"not empty; choose another folder \(out\), or .* \(resume\)"
    ):
        regard.train(_config(tmp_path), PAIRS, DEV)


def test_fine_tuning_starts_from_the_weights_and_tokenizers_of_a_folder(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    regard.train(_config(first), PAIRS, DEV)
    config = _config(second, max_updates=1, learning_rate=1e-9, validate_every=1)
    config = dataclasses.replace(config, model=ModelConfig())
    regard.train(config, [("a x", "x a")], DEV, init_from=first)
    actual, expected = (load_file(folder / "model.safetensors") for folder in (first, second))
    for name, value in actual.items():
        torch.testing.assert_close(value, expected[name], atol=1e-6, rtol=0)
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
    last = load_file(latest(out))
    same = all(torch.equal(value, last[f"model.{name}"]) for name, value in saved.items())
    assert same == (best is entries[-1])


def test_ctrl_c_leaves_a_usable_folder_that_resumes_exactly(tmp_path: Path) -> None:
    complete, out = tmp_path / "complete", tmp_path / "model"
    regard.train(_config(complete), PAIRS, DEV)
    with at_update(8, interrupt), pytest.raises(KeyboardInterrupt):
        regard.train(_config(out), PAIRS, DEV)
    assert latest(out).stem == "8"
    assert regard.Translator.load(out).translate(["a b"])[0].source_tokens
    regard.train(_config(out), PAIRS, DEV, resume=True)
    actual, expected = (load_file(latest(folder)) for folder in (complete, out))
    assert all(torch.equal(value, expected[name]) for name, value in actual.items())


def test_ctrl_c_before_the_first_validation_leaves_a_usable_folder(tmp_path: Path) -> None:
    out = tmp_path / "model"
    with at_update(1, interrupt), pytest.raises(KeyboardInterrupt):
        regard.train(_config(out), PAIRS, DEV)
    assert regard.Translator.load(out).translate(["a"])[0].source_tokens == ["a", "</s>"]


def test_the_same_seed_gives_the_same_weights(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        regard.train(_config(tmp_path / name, seed=seed, max_updates=5), PAIRS, DEV)
    a, b, c = (load_file(tmp_path / name / "model.safetensors") for name in "abc")
    assert all(torch.equal(value, b[name]) for name, value in a.items())
    assert not all(torch.equal(value, c[name]) for name, value in a.items())


def test_runs_in_several_threads_are_those_of_one(tmp_path: Path) -> None:
    def train(name: str) -> None:
        regard.train(_config(tmp_path / name, max_updates=5), PAIRS, DEV)

    train("alone")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        list(pool.map(train, ("a", "b", "c")))
    alone, *others = (
        load_file(tmp_path / name / "model.safetensors") for name in ("alone", *"abc")
    )
    for other in others:
        assert all(torch.equal(value, other[name]) for name, value in alone.items())


def test_without_dev_pairs_some_are_held_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    regard.train(_config(tmp_path / "model", max_updates=5), PAIRS)
    assert "dev: 1 pair held out" in capsys.readouterr().err


def test_messages_before_and_during_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    regard.train(_config(tmp_path / "model"), PAIRS, DEV)
    messages = capsys.readouterr().err
    assert "train: 14 pairs given in memory" in messages
    assert "source: unit whitespace (chosen from the data), vocabulary of 8" in messages
    assert "parameters on cpu" in messages
    assert "loss at chance ln V = 2.08" in messages
    assert "update 5, " in messages
    assert messages.count("    a b -> ") == 4
    assert "without effect" not in messages
    regard.train(_config(tmp_path / "other", {"heads": 2}, max_updates=1), PAIRS, DEV)
    assert "without effect with the other settings: model.heads\n" in capsys.readouterr().err
    config = _config(tmp_path / "third", max_updates=1, schedule="constant", plateau_patience=2)
    (tmp_path / "dev.tsv").write_text("a b\tb a\n")
    data = regard.DataConfig(dev=str(tmp_path / "dev.tsv"), dev_seed=1)
    source = TextConfig(match_vocabulary=True)
    regard.train(dataclasses.replace(config, source=source, data=data), PAIRS)
    third = capsys.readouterr().err
    config = _config(tmp_path / "fourth", max_updates=1, schedule="constant", plateau_patience=3)
    regard.train(config, PAIRS, DEV)
    assert "without effect" not in capsys.readouterr().err  # 3 is the default
    expected = "settings: training.plateau_patience, data.dev_seed, source.match_vocabulary\n"
    assert expected in third


def test_a_run_goes_on_while_no_output_is_exact_and_the_loss_falls(tmp_path: Path) -> None:
    settings = {"metric": "exact_match", "patience": 1, "validate_every": 1, "max_updates": 8}
    regard.train(_config(tmp_path / "run", learning_rate=1e-4, **settings), PAIRS, DEV)
    history = _metrics(tmp_path / "run")
    losses = [entry["dev_loss"] for entry in history]
    assert losses == sorted(losses, reverse=True)
    assert {entry["exact_match"] for entry in history} == {0.0}
    assert history[-1]["update"] == 8


def test_a_loss_of_coverage_needs_probabilities(tmp_path: Path) -> None:
    model = {"coverage": True, "normalizer": "none", "attention": "additive"}
    with pytest.raises(ConfigError, match="coverage_loss compares attention weights"):
        regard.train(_config(tmp_path / "model", model, coverage_loss=1.0), PAIRS, DEV)


@pytest.mark.skipif(
    not torch.backends.cpu.get_cpu_capability().startswith("AVX512"),
    reason="float32 replaces bfloat16 on this processor",
)
def test_bfloat16_trains(tmp_path: Path) -> None:
    regard.train(_config(tmp_path / "a", precision="bfloat16", max_updates=5), PAIRS, DEV)
    regard.train(_config(tmp_path / "b", max_updates=5), PAIRS, DEV)
    a, b = (load_file(tmp_path / name / "model.safetensors") for name in "ab")
    assert all(value.dtype == torch.float32 for value in a.values())
    assert not all(torch.equal(value, b[name]) for name, value in a.items())


def test_float32_replaces_bfloat16_on_a_device_that_computes_it_slowly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    for name in ("bfloat16", "float32"):
        regard.train(_config(tmp_path / name, precision=name, max_updates=5), PAIRS, DEV)
        said = "training.precision: float32 instead of bfloat16" in capsys.readouterr().err
        assert said == (name == "bfloat16")
    a, b = (load_file(tmp_path / name / "model.safetensors") for name in ("bfloat16", "float32"))
    assert all(torch.equal(value, b[name]) for name, value in a.items())
    config = json.loads((tmp_path / "bfloat16" / "config.json").read_text())
    assert config["training"]["precision"] == "bfloat16"  # for a resumed run on another device


def test_an_accelerator_of_the_caller_that_accumulates_gradients_stops_no_step(
    tmp_path: Path,
) -> None:
    caller, model = Accelerator(gradient_accumulation_steps=4, cpu=True), torch.nn.Linear(1, 1)
    try:
        with caller.accumulate(model):
            pass
        regard.train(_config(tmp_path / "model", max_updates=10), PAIRS, DEV)
    finally:
        caller.gradient_state._reset_state()
    first, second = (entry["dev_loss"] for entry in _metrics(tmp_path / "model"))
    assert first != second


def test_training_leaves_the_state_of_the_caller_unchanged(tmp_path: Path) -> None:
    AcceleratorState._reset_state(reset_partial_state=True)
    caller = Accelerator(mixed_precision="bf16", cpu=True, gradient_accumulation_steps=4)
    try:
        torch.manual_seed(3)
        expected = torch.rand(2)
        torch.manual_seed(3)
        regard.train(_config(tmp_path / "model", max_updates=1), PAIRS, DEV)
        assert torch.equal(torch.rand(2), expected)
        assert caller.gradient_state.num_steps == 4
        assert caller.mixed_precision == Accelerator().mixed_precision == "bf16"
    finally:
        caller.gradient_state._reset_state()
        AcceleratorState._reset_state(reset_partial_state=True)


def test_a_time_budget_ends_training(tmp_path: Path) -> None:
    out = tmp_path / "model"
    config = _config(out, max_updates=10**6, max_minutes=0.02, validate_every=10**6, patience=10**6)
    regard.train(config, PAIRS, DEV)
    entries = _metrics(out)
    assert len(entries) == 1
    assert entries[0]["minutes"] >= 0.02
    assert entries[0]["learning_rate"] == pytest.approx(0.0, abs=1e-4)


def test_every_metric_can_select_the_best_weights(tmp_path: Path) -> None:
    for metric in ("loss", "exact_match", "per", "cer", "bleu", "chrf"):
        out = tmp_path / metric
        regard.train(_config(out, metric=metric, max_updates=5), PAIRS, DEV)
        assert (metric if metric != "loss" else "dev_loss") in _metrics(out)[0]


def test_bleu_does_not_select_the_weights_of_targets_that_are_too_short_for_it(
    tmp_path: Path,
) -> None:
    short = [("rojo gato", "red cat"), ("perro azul", "blue dog"), ("casa", "house")]
    long = [(source, f"I see the {target}") for source, target in short]
    for name, pairs, metric in (("a", short, "chrf"), ("b", long, "bleu")):
        config = _config(tmp_path / name, max_updates=5)
        config = dataclasses.replace(config, target=regard.TextConfig(unit="word"))
        regard.train(config, pairs, pairs)
        assert metric in _metrics(tmp_path / name)[0]
    # with other dev pairs the metric of a run stays what it was
    more = dataclasses.replace(config, training=TrainingConfig(max_updates=10))
    regard.train(more, long, short, resume=True)
    assert [*map(set, _metrics(tmp_path / "b"))] == [{*_metrics(tmp_path / "b")[0]}] * 2


def test_references_are_normalised_as_the_outputs_are(tmp_path: Path) -> None:
    config = _config(tmp_path / "model", metric="exact_match", max_updates=40, learning_rate=0.05)
    config = dataclasses.replace(config, target=regard.TextConfig(lowercase=True))
    regard.train(config, [(source, "Yes  no ") for source, _ in PAIRS], [("a b", "Yes  no ")])
    assert _metrics(tmp_path / "model")[-1]["exact_match"] == 100


def test_the_displayed_layer_of_a_transformer_is_chosen_and_stored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "model"
    trained = regard.train(_config(out, TRANSFORMER), PAIRS, DEV).trained
    layer = json.loads((out / "config.json").read_text())["metadata"]["attention_layer"]
    assert layer in (0, 1)
    assert trained.metadata["attention_layer"] == layer
    assert (
        f"attention: layer {layer} of 2 (counted from 0) agrees most often"
        in capsys.readouterr().err
    )
    assert regard.Translator.load(out).attention_layer == layer


@pytest.mark.parametrize(
    "model",
    [
        {**TRANSFORMER, "tie_embeddings": True},
        {"copy": True},
        {"coverage": True, "window": "local-p"},
    ],
    ids=str,
)
def test_every_kind_of_model_resumes_exactly(tmp_path: Path, model: dict[str, object]) -> None:
    test_resuming_continues_exactly(tmp_path, model)


@pytest.mark.parametrize(
    "model",
    [{"attention": "dot"}, {"encoder_layers": 2}, TRANSFORMER],
    ids=str,
)
def test_resuming_does_not_need_the_model_settings_again(
    tmp_path: Path, model: dict[str, object]
) -> None:
    out = tmp_path / "model"
    regard.train(_config(out, model), PAIRS, DEV)
    longer = _config(out, max_updates=25)
    bare = dataclasses.replace(longer, model=ModelConfig())
    regard.train(bare, PAIRS, DEV, resume=True)
    assert _metrics(out)[-1]["update"] == 25


@pytest.mark.parametrize("featured", [True, False])
def test_continued_training_needs_features_exactly_as_before(
    tmp_path: Path, featured: bool
) -> None:
    def config(name: str, column: int | None) -> Config:
        data = regard.DataConfig(features_column=column)
        return dataclasses.replace(_config(tmp_path / name), data=data)

    triples = [(source, target, "X;Y") for source, target in PAIRS]
    pairs = triples if featured else PAIRS
    regard.train(config("first", 3 if featured else None), pairs, pairs[:2])
    continued = config("second", None if featured else 3)
    with pytest.raises(ConfigError, match=r"source features, got data.features_column"):
        regard.train(continued, triples, triples[:2], init_from=tmp_path / "first")


@pytest.mark.parametrize(
    ("model", "line"),
    [
        ({}, "- model: rnn, encoder rnn, lstm, decoder luong, attention additive; "),
        ({"attention": "none"}, "- model: rnn, encoder rnn, lstm, attention none; "),
        (
            TRANSFORMER,
            "- model: transformer, 2 heads, attention scaled_dot; ",
        ),
    ],
    ids=str,
)
def test_the_model_card_states_the_settings_that_apply(
    tmp_path: Path, model: dict[str, object], line: str
) -> None:
    regard.train(_config(tmp_path / "model", model, max_updates=1), PAIRS, DEV)
    assert line in (tmp_path / "model" / "README.md").read_text()


def test_fit_trains_on_pairs_with_a_time_budget(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    settings = _config(tmp_path)
    groups = {
        "model": dataclasses.asdict(settings.model),
        "training": dataclasses.asdict(settings.training),
    }
    del groups["training"]["max_minutes"]
    translator = regard.fit(zip(*zip(*PAIRS, strict=True), strict=True), DEV, **groups)
    assert translator.trained.config.training.max_minutes == 5
    (folder,) = tmp_path.glob("regard-*")
    assert f"model folder: {folder} (temporary)" in capfd.readouterr().err
    assert regard.Translator.load(folder).translate("a b").text == translator.translate("a b").text
    named = regard.fit(PAIRS, out=tmp_path / "named", max_minutes=None, **groups)
    assert (tmp_path / "named" / "config.json").exists()
    assert named.trained.config.training.max_minutes is None
    with pytest.raises(regard.DataError, match="train contains no pair"):
        regard.fit([], DEV)
    assert [*tmp_path.glob("regard-*")] == [folder]
    with pytest.raises(ConfigError, match=r"unknown setting model\.atention; did you mean"):
        regard.fit(PAIRS, model={"atention": "dot"})
    with pytest.raises(
        ConfigError, match=r"unknown setting max_minuts; did you mean max_minutes\?"
    ):
        regard.fit(PAIRS, max_minuts={})


@pytest.mark.slow
def test_training_in_a_notebook_needs_no_widgets() -> None:
    """Accelerate imports tqdm, which would warn without them."""
    notebook = """
import sys, types
shell = types.SimpleNamespace(get_ipython=lambda: None)
sys.modules |= {"IPython": shell, "ipykernel.zmqshell": None, "ipywidgets": None}
import regard.trainer
"""
    result = subprocess.run(
        [sys.executable, "-c", notebook],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stderr == ""


def test_progress_in_a_notebook_redraws_one_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn: list[str] = []
    display = types.SimpleNamespace(
        HTML=str,
        display=lambda text, display_id: (
            drawn.append(text) or types.SimpleNamespace(update=drawn.append)
        ),
    )
    shell = types.SimpleNamespace(kernel=object())
    ipython = types.SimpleNamespace(get_ipython=lambda: shell, display=display)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    with Progress("training <x>", 4, "updates") as progress:
        progress.advance(3)
        progress.print("update 3")
    assert len(drawn) == 2
    assert 'max="4" value="3"' in drawn[-1]
    assert "training &lt;x&gt;: 3/4 updates" in drawn[-1]
    assert capsys.readouterr() == ("update 3\n", "")


@pytest.mark.parametrize("stream", [None, types.SimpleNamespace(write=len, flush=list)])
def test_progress_needs_no_standard_error(
    stream: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr("regard.progress._SECONDS_BETWEEN_LINES", 0)
    with Progress("training", 4, "updates") as progress:
        progress.advance(3)
        progress.print("update 3")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "mode",
    [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)],
    ids=["no_grad", "inference_mode", "autocast"],
)
def test_training_is_the_same_in_every_mode_of_the_caller(
    mode: Callable[[], contextlib.AbstractContextManager[None]], tmp_path: Path
) -> None:
    regard.train(_config(tmp_path / "a", max_updates=5), PAIRS, DEV)
    with mode():
        regard.train(_config(tmp_path / "b", max_updates=5), PAIRS, DEV)
    weights = [load_file(tmp_path / name / "model.safetensors") for name in "ab"]
    assert all(torch.equal(weights[1][name], value) for name, value in weights[0].items())


def test_another_default_device_is_refused(tmp_path: Path) -> None:
    with (
        torch.device("meta"),
        pytest.raises(
            ConfigError, match=r"default is meta: call torch\.set_default_device\('cpu'\)"
        ),
    ):
        regard.train(_config(tmp_path / "model"), PAIRS, DEV)
    assert not (tmp_path / "model").exists()


def test_a_loss_far_above_chance_is_not_called_close_to_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    regard.train(_config(tmp_path / "model", learning_rate=1e15), PAIRS, DEV)
    message = "is far above ln V = 2.08, that of guessing; train again with a lower training.learning_rate"
    assert message in capsys.readouterr().err


def test_the_time_budget_does_not_include_the_compilation_of_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def compile_something() -> None:
        with compiling():
            time.sleep(0.01)

    monkeypatch.setattr(_spent, "seconds", 0.0)
    elsewhere = threading.Thread(target=compile_something)
    elsewhere.start()
    elsewhere.join()
    assert compile_seconds() == 0  # this thread has not waited for it
    compile_something()
    assert compile_seconds() >= 0.01
    update = Trainer._update

    def update_and_compile(self: Trainer, batches: Any) -> None:
        update(self, batches)
        _spent.seconds += 1000  # more than this test takes

    monkeypatch.setattr(Trainer, "_update", update_and_compile)
    regard.train(_config(tmp_path / "m", max_updates=1), PAIRS, DEV)
    checkpoint, _ = checkpoints.load(tmp_path / "m")
    assert checkpoint is not None
    assert checkpoint.state["schedule"]["seconds"] < 0
    message = r"kernels compiled in 1\d\d\d s, which the time budget does not"
    assert re.search(message, capsys.readouterr().err)  # some may have been compiled indeed


def test_the_throughput_includes_neither_compilation_nor_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("regard.trainer.time.perf_counter", lambda: now)
    update, save = Trainer._update, checkpoints.save

    def one_second(self: Trainer, batches: Any) -> None:
        nonlocal now
        now += 1.0
        _spent.seconds += 1000.0
        now += 1000.0
        update(self, batches)

    def slow_save(*arguments: Any) -> None:
        nonlocal now
        now += 100.0
        save(*arguments)

    monkeypatch.setattr(Trainer, "_update", one_second)
    monkeypatch.setattr(checkpoints, "save", slow_save)
    monkeypatch.setattr("regard.trainer._SECONDS_BETWEEN_CHECKPOINTS", 0.0)  # after every update
    regard.train(_config(tmp_path / "m", max_updates=4, validate_every=2), PAIRS, DEV)
    entries = (tmp_path / "m" / "metrics.jsonl").read_text().splitlines()
    rates = [json.loads(entry)["pairs_per_second"] for entry in entries]
    assert len(rates) == 2
    assert all(0 < rate <= len(PAIRS) for rate in rates)
    assert rates[1] > len(PAIRS) / 10
