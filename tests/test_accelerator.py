"""Experiment trackers."""

import json
import signal
from pathlib import Path

import pytest

import regard
from regard.errors import Interrupted
from regard.trainer import Trainer

pytest.importorskip("tensorboard")


def _train(out: Path, updates: int, resume: bool = False, tracker: str = "tensorboard") -> None:
    config = regard.Config(
        out=str(out),
        device="cpu",
        model=regard.ModelConfig(embedding_dim=8, encoder_dim=8, decoder_dim=8, attention_dim=8),
        training=regard.TrainingConfig(max_updates=updates, validate_every=2, log_with=tracker),  # pyright: ignore[reportArgumentType]
    )
    pairs = [("a b c", "c b a"), ("a c", "c a"), ("b c", "c b")] * 4
    regard.train(config, pairs, pairs, resume=resume)


def test_the_tracker_receives_the_metrics_of_every_validation(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    _train(tmp_path / "model", 4)
    _train(tmp_path / "model", 6, resume=True)
    logs = EventAccumulator(str(tmp_path / "model" / "tracking" / "regard"))
    logs.Reload()
    lines = (tmp_path / "model" / "metrics.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    assert [entry["update"] for entry in entries] == [2, 4, 6]
    for name in ("train_loss", "dev_loss", "exact_match", "learning_rate"):
        events = logs.Scalars(name)
        assert [event.step for event in events] == [2, 4, 6]
        assert [event.value for event in events] == pytest.approx(
            [entry[name] for entry in entries]
        )


def test_a_tracker_that_is_not_installed_is_named(tmp_path: Path) -> None:
    with pytest.raises(regard.ConfigError, match="pip install comet-ml"):
        _train(tmp_path / "model", 2, tracker="comet_ml")
    assert not (tmp_path / "model").exists() or not any((tmp_path / "model").iterdir())


@pytest.mark.parametrize("method", ["store_init_configuration", "log", "finish"])
def test_a_tracker_that_fails_is_reported_and_the_run_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    from accelerate.tracking import TensorBoardTracker

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no key")

    monkeypatch.setattr(TensorBoardTracker, method, fail)
    with pytest.raises(regard.ConfigError, match=r"tensorboard failed \(no key\)"):
        _train(tmp_path / "model", 2)
    validated = method != "store_init_configuration"
    assert (tmp_path / "model" / "checkpoints" / "2.safetensors").exists() == validated
    assert (tmp_path / "model" / "model.safetensors").exists() == validated
    _train(tmp_path / "model", 4, resume=True, tracker="none")


def test_a_signal_saves_the_run_before_the_tracker_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from accelerate.tracking import TensorBoardTracker

    saved = tmp_path / "model" / "checkpoints" / "1.safetensors"
    update = Trainer._update

    def fail(_: object) -> None:
        assert saved.exists()
        raise RuntimeError("no connection")

    def stop_after(trainer: Trainer, batches: list[list[regard.batching.Example]]) -> None:
        update(trainer, batches)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(TensorBoardTracker, "finish", fail)
    monkeypatch.setattr(Trainer, "_update", stop_after)
    with pytest.raises(Interrupted):
        _train(tmp_path / "model", 4)
    assert saved.exists()
