"""Checkpoints: kills at any moment, damaged files, full disks, locks, signals, settings on resume."""

import dataclasses
import errno
import itertools
import json
import os
import shutil
import signal
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import filelock
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import regard
from regard import checkpoints, model_folder
from regard.cli.main import main
from regard.config import Config, DataConfig, ModelConfig, TextConfig, TrainingConfig
from regard.curves import read_history
from regard.errors import ConfigError, FolderError, Interrupted
from regard.files import atomic_write
from selection import covering
from test_training import DEV, PAIRS, _config, at_update, latest

pytestmark = pytest.mark.usefixtures("unchecked")
CLOCK = ("minutes", "pairs_per_second", "target_tokens_per_second")
OPERATIONS = [(os, "replace"), (os, "fsync"), (Path, "touch"), (Path, "write_bytes"),
              (Path, "unlink"), (Path, "mkdir")]  # fmt: skip


def result(out: Path) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], list[Any]]:
    """Return what a run leaves: weights, the tensors of its latest checkpoint, metrics."""
    entries = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    timeless = [{k: v for k, v in entry.items() if k not in CLOCK} for entry in entries]
    return load_file(out / "model.safetensors"), load_file(latest(out)), timeless


def assert_same_result(out: Path, complete: Path) -> None:
    assert {path.name for path in out.rglob(".*")} == {".lock"}
    for actual, expected in zip(result(out), result(complete), strict=True):
        if isinstance(expected, list):
            assert actual == expected
            continue
        assert actual.keys() == expected.keys()
        for name, value in expected.items():
            assert torch.equal(actual[name], value), name


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an undisturbed run."""
    out = tmp_path_factory.mktemp("complete") / "model"
    regard.train(_config(out), PAIRS, DEV)
    return out


def in_child(function: Callable[[], object]) -> int:
    """Run a function in a forked process and return its wait status."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            function()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]


def train_until_operation(out: Path, number: int) -> bool:
    """Train in another process that dies after a file operation; return False if it ends before."""

    def train() -> None:
        done = 0
        for owner, name in OPERATIONS:
            operation = getattr(owner, name)

            def killed(*args: Any, operation: Any = operation, **kwargs: Any) -> Any:
                nonlocal done
                value = operation(*args, **kwargs)
                done += 1
                if done == number:
                    os.kill(os.getpid(), signal.SIGKILL)
                return value

            setattr(owner, name, killed)
        regard.train(_config(out), PAIRS, DEV, resume=True)

    status = in_child(train)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


@pytest.mark.parametrize("number", [3, 14, 33, 52])
def test_a_kill_after_a_file_operation_changes_nothing(
    number: int, complete: Path, tmp_path: Path
) -> None:
    out = tmp_path / "model"
    assert train_until_operation(out, number)
    regard.train(_config(out), PAIRS, DEV, resume=True)
    assert_same_result(out, complete)


@pytest.mark.soak
def test_200_kills_change_nothing(complete: Path, tmp_path: Path) -> None:
    kills, number = 0, 1
    while train_until_operation(tmp_path / f"at-{number}", number):
        regard.train(_config(tmp_path / f"at-{number}"), PAIRS, DEV, resume=True)
        assert_same_result(tmp_path / f"at-{number}", complete)
        kills, number = kills + 1, number + 1
    generator = torch.Generator().manual_seed(1)
    while kills < 200:
        out = tmp_path / f"random-{kills}"
        child = os.fork()
        if child == 0:
            regard.train(_config(out), PAIRS, DEV)
            os._exit(0)
        time.sleep(float(torch.rand((), generator=generator)) * 0.8)
        os.kill(child, signal.SIGKILL)
        if not os.WIFSIGNALED(os.waitpid(child, 0)[1]):  # it had ended before
            shutil.rmtree(out)
            continue
        regard.train(_config(out), PAIRS, DEV, resume=True)
        assert_same_result(out, complete)
        kills += 1


def _flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def _empty_tensors(path: Path) -> None:
    with safe_open(str(path), framework="pt") as stored:
        metadata = stored.metadata()
    save_file({}, path, metadata)


def _edit_state(path: Path) -> None:
    with safe_open(str(path), framework="pt") as stored:
        metadata = stored.metadata()
    state = json.loads(metadata["state"])
    save_file(load_file(path), path, {**metadata, "state": json.dumps({**state, "epoch": 7})})


DAMAGES = {
    "flipped bit": _flip_bit,
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-100]),
    "empty": lambda path: path.write_bytes(b""),
    "no tensors": _empty_tensors,
    "another state": _edit_state,
    "no safetensors": lambda path: path.write_text("weights"),
}


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was interrupted after update 17."""
    out = tmp_path_factory.mktemp("interrupted") / "model"
    with at_update(17, interrupt), pytest.raises(Interrupted):
        regard.train(_config(out), PAIRS, DEV)
    return out


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    damage: str,
    complete: Path,
    interrupted: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = shutil.copytree(interrupted, tmp_path / "model")
    assert sorted(path.stem for path in latest(out).parent.glob("[0-9]*")) == ["10", "15", "17"]
    DAMAGES[damage](latest(out))
    capsys.readouterr()
    regard.train(_config(out), PAIRS, DEV, resume=True)
    message = capsys.readouterr().err
    assert "17.safetensors is damaged (" in message
    assert "; resuming from 15" in message
    assert_same_result(out, complete)


def test_a_run_whose_checkpoints_are_all_damaged_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "model"
    regard.train(_config(out, max_updates=10), PAIRS, DEV)
    for path in (out / "checkpoints").glob("*.safetensors"):
        _flip_bit(path)
    with pytest.raises(
        regard.FolderError, match=r"10\.safetensors is damaged .*; train in another"
    ):
        regard.train(_config(out), PAIRS, DEV, resume=True)


@pytest.mark.parametrize("damage", ["not finite", "type", "flipped bit"])
def test_damaged_weights_are_refused(damage: str, complete: Path, tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    for name in ("config.json", "source.json", "target.json", "model.safetensors"):
        (tmp_path / name).write_bytes((complete / name).read_bytes())
    if damage == "flipped bit":
        _flip_bit(weights)
        message = "the checksum differs"
    else:
        tensors = load_file(weights)
        name = "encoder.embedding.weight"
        if damage == "type":
            tensors[name] = tensors[name].long()
        else:
            tensors[name][0, 0] = torch.nan
        save_file(tensors, weights)
        message = f"{name} (is torch.int64 instead of|contains values that are not finite)"
    with pytest.raises(
        regard.FolderError,
        match=rf"model\.safetensors is damaged or does not fit config\.json \({message}",
    ):
        regard.Translator.load(tmp_path)


FAILURES = [(os, "fsync", 9), (os, "fsync", 23), (model_folder, "_with_sorted_metadata", 3)]
"""Functions called by writing, and the number of the first call that fails."""


@pytest.mark.parametrize(
    ("code", "failure"),
    covering(itertools.product([errno.ENOSPC, errno.EIO, errno.EROFS], FAILURES), size=1),
)
def test_a_failed_write_leaves_the_last_good_checkpoint(
    code: int, failure: tuple[types.ModuleType, str, int], complete: Path, tmp_path: Path
) -> None:
    module, name, number = failure
    out, writes = tmp_path / "model", 0
    write = getattr(module, name)

    def failing(content: Any) -> Any:
        nonlocal writes
        writes += 1
        if writes >= number:
            raise OSError(code, os.strerror(code))
        return write(content)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, failing)
        with pytest.raises(regard.DataError, match=f"cannot write .*: {os.strerror(code)}; "):
            regard.train(_config(out), PAIRS, DEV)
    regard.train(_config(out), PAIRS, DEV, resume=True)
    assert_same_result(out, complete)


def test_only_a_folder_of_a_training_run_is_resumed(tmp_path: Path) -> None:
    config = _config(tmp_path / "m")
    regard.train(config, PAIRS, DEV)
    for path in (tmp_path / "m" / "checkpoints").glob("*.safetensors"):
        path.unlink()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "README.md").write_text("mine")
    for name in ("m", "notes"):
        before = {path: path.read_bytes() for path in (tmp_path / name).glob("*.*")}
        with pytest.raises(
            ConfigError, match=r"contains no checkpoint to resume from: .*init_from"
        ):
            regard.train(_config(tmp_path / name), PAIRS, DEV, resume=True)
        assert {path: path.read_bytes() for path in (tmp_path / name).glob("*.*")} == before


def test_only_old_checkpoints_are_removed_from_a_folder_named_last(tmp_path: Path) -> None:
    last = tmp_path / "last"
    last.mkdir()
    (last / "mine.txt").touch()
    with pytest.raises(ConfigError, match="contains no checkpoint to resume from"):
        regard.train(_config(tmp_path), PAIRS, DEV, resume=True)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / ".lock").touch()  # of a run that was killed early
    for name in ("state.json", "state.safetensors"):
        (last / name).touch()
    checkpoints._remove_old_checkpoint(last / "state.safetensors")
    assert [*last.iterdir()] == [last / "mine.txt"]
    regard.train(_config(tmp_path), PAIRS, DEV, resume=True)
    assert [*last.iterdir()] == [last / "mine.txt"]


def test_a_second_run_in_one_folder_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "model"
    regard.train(_config(out, max_updates=5), PAIRS, DEV)
    with (
        filelock.FileLock(out / "checkpoints" / ".lock"),
        pytest.raises(ConfigError, match=f"another process is training {out}"),
    ):
        regard.train(_config(out), PAIRS, DEV, resume=True)
    regard.train(_config(out), PAIRS, DEV, resume=True)  # the lock has been released


def test_a_run_that_fails_early_leaves_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(regard.RegardError):
        regard.train(_config(tmp_path / "model"), [("a", " ")], DEV)
    regard.train(_config(tmp_path / "model", max_updates=5), PAIRS, DEV)


def test_a_run_that_was_killed_while_it_read_its_pairs_is_started_again(tmp_path: Path) -> None:
    out = tmp_path / "model"

    def train() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("regard.training.make_corpus", lambda *_: os.kill(os.getpid(), 9))
            regard.train(_config(out), PAIRS, DEV)

    assert os.WIFSIGNALED(in_child(train))
    assert (out / "checkpoints" / ".lock").exists()
    regard.train(_config(out, max_updates=5), PAIRS, DEV)


def test_a_run_that_has_lost_its_checkpoints_is_not_started_again(tmp_path: Path) -> None:
    out = tmp_path / "model"
    interrupted = _config(out, max_updates=5)
    regard.train(interrupted, PAIRS, DEV)
    (out / "README.md").unlink()  # written when a run is complete
    weights = (out / "model.safetensors").read_bytes()
    for path in (out / "checkpoints").glob("*.safetensors"):
        path.unlink()
    with pytest.raises(ConfigError, match="contains no checkpoint to resume from"):
        regard.train(interrupted, PAIRS, DEV, resume=True)
    assert (out / "model.safetensors").read_bytes() == weights


def test_a_resumed_run_writes_only_files_of_its_folder(tmp_path: Path) -> None:
    out, elsewhere = tmp_path / "model", tmp_path / "elsewhere"
    regard.train(_config(out, max_updates=5), PAIRS, DEV)
    elsewhere.mkdir()
    files = [path for path in (*out.iterdir(), *(out / "checkpoints").iterdir()) if path.is_file()]
    for path in files:
        if path.name != ".lock":  # a lock is never opened through a link
            path.rename(elsewhere / path.name)
            path.symlink_to(elsewhere / path.name)
    (out / "note.txt").symlink_to(elsewhere / "missing")
    before = {path.name: path.read_bytes() for path in elsewhere.iterdir()}
    regard.train(_config(out, max_updates=10), PAIRS, DEV, resume=True)
    assert {path.name: path.read_bytes() for path in elsewhere.iterdir()} == before
    assert [path.name for path in out.rglob("*") if path.is_symlink()] == ["note.txt"]


def test_a_full_disk_is_reported_when_links_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoints, "replace_links", fail)
    with pytest.raises(ConfigError, match=r"cannot write .*: No space left on device"):
        regard.train(_config(tmp_path / "model", max_updates=5), PAIRS, DEV)


@pytest.mark.parametrize(
    ("again", "update"), covering(itertools.product([False, True], [2, 12]), size=1)
)
def test_a_run_whose_folder_is_moved_ends_without_a_new_one(
    update: int, again: bool, tmp_path: Path
) -> None:
    out, moved = tmp_path / "model", tmp_path / "moved"

    def move() -> None:
        out.rename(moved)
        if again:  # another run has begun in a folder of this name
            (out / "checkpoints").mkdir(parents=True)
            (out / "checkpoints" / ".lock").touch()

    with (
        at_update(update, move),
        pytest.raises(regard.FolderError, match=f"{out} was removed or moved during its training;"),
    ):
        regard.train(_config(out), PAIRS, DEV)
    assert [path.name for path in out.rglob("*")] == ["checkpoints", ".lock"] * again
    regard.train(_config(moved), PAIRS, DEV, resume=True)


def test_only_files_named_by_an_update_are_checkpoints(tmp_path: Path) -> None:
    out = tmp_path / "model"
    regard.train(_config(out, max_updates=10), PAIRS, DEV)
    (out / "checkpoints" / "\N{SUPERSCRIPT TWO}0.safetensors").write_text("")
    (out / "checkpoints" / "100.safetensors").mkdir()
    regard.train(_config(out), PAIRS, DEV, resume=True)


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("names", ["SIGTERM SIGHUP", "SIGHUP SIGHUP", "SIGINT"])
def test_signals_save_and_resume_exactly(names: str, complete: Path, tmp_path: Path) -> None:
    out, numbers = tmp_path / "model", [signal.Signals[name] for name in names.split()]

    def interrupt() -> None:
        for number in numbers:
            signal.raise_signal(number)

    with at_update(3, interrupt), pytest.raises(Interrupted) as interrupted:
        regard.train(_config(out), PAIRS, DEV)
    assert interrupted.value.signal_number == numbers[0]
    assert latest(out).stem == "3"
    assert regard.Translator.load(out).translate("a b").source_tokens
    regard.train(_config(out), PAIRS, DEV, resume=True)
    assert_same_result(out, complete)


def test_a_run_that_is_over_before_its_first_validation_is_validated(tmp_path: Path) -> None:
    with at_update(3, interrupt), pytest.raises(Interrupted):
        regard.train(_config(tmp_path / "model"), PAIRS, DEV)
    with pytest.raises(FolderError, match="after its first validation"):
        read_history(tmp_path / "model")
    regard.train(_config(tmp_path / "model", max_updates=2), PAIRS, DEV, resume=True)
    (entry,) = read_history(tmp_path / "model")
    assert entry["update"] == 3


def test_the_command_exits_with_the_status_of_the_signal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS))
    arguments = ["train", f"--data.train={pairs}", f"--data.dev={pairs}"]
    for name, status in (("SIGTERM", 143), ("SIGHUP", 129), ("SIGINT", 130)):
        with at_update(2, lambda name=name: signal.raise_signal(signal.Signals[name])):
            assert main([*arguments, f"--out={tmp_path / name}"]) == status
        assert "is usable; to continue its training, give --resume" in capsys.readouterr().err


def test_checkpoints_are_saved_by_time_too(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("regard.trainer._SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    saved: list[int] = []
    save = checkpoints.save

    def record(*arguments: Any) -> None:
        saved.append(arguments[3]["schedule"]["update"])
        save(*arguments)

    monkeypatch.setattr(checkpoints, "save", record)
    regard.train(_config(tmp_path / "model", max_updates=7), PAIRS, DEV)
    assert saved == [1, 2, 3, 4, 5, 6, 7]


def test_settings_that_are_not_given_are_those_of_the_run(tmp_path: Path) -> None:
    out = tmp_path / "model"
    regard.train(_config(out, learning_rate=0.004), PAIRS, DEV)
    longer = Config(out=str(out), device="cpu", training=TrainingConfig(max_updates=25))
    settings = regard.train(longer, PAIRS, DEV, resume=True).trained.config
    assert settings.training == dataclasses.replace(
        _config(out, learning_rate=0.004).training, max_updates=25
    )
    assert settings.model.encoder_dim == 8


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"training": TrainingConfig(seed=2)}, r"training\.seed is 1 in .* \(to 2\)"),
        ({"training": TrainingConfig(batch_tokens=50)}, r"training\.batch_tokens is 40"),
        ({"training": TrainingConfig(optimizer="adamw")}, r"training\.optimizer is adam in"),
        ({"training": TrainingConfig(metric="per")}, "selected its best weights by a metric other"),
        # a default, but given
        ({"model": ModelConfig(encoder_dim=256)}, r"model\.encoder_dim is 8 in .* \(to 256\)"),
    ],
    ids=str,
)
def test_settings_that_cannot_change_are_refused_on_resume(
    settings: dict[str, Any], message: str, complete: Path, tmp_path: Path
) -> None:
    out = tmp_path / "model"
    regard.train(_config(out, max_updates=5), PAIRS, DEV)
    with pytest.raises(regard.ConfigError, match=message):
        regard.train(Config(out=str(out), **settings), PAIRS, DEV, resume=True)


def test_settings_that_change_on_resume_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "model"
    regard.train(_config(out, max_updates=5), PAIRS, DEV)
    changed = Config(out=str(out), training=TrainingConfig(max_updates=6, learning_rate=0.5))
    regard.train(changed, PAIRS, DEV, resume=True)
    message = capsys.readouterr().err
    assert "training.learning_rate is now 0.5 instead of 0.001" in message
    assert "training.max_updates is now 6 instead of 5" in message


def test_a_checkpoint_of_another_run_is_refused(complete: Path, tmp_path: Path) -> None:
    out = tmp_path / "model"
    regard.train(_config(out, {"cell": "gru"}, max_updates=5), PAIRS, DEV)
    shutil.copy(latest(complete), out / "checkpoints")
    before = (out / "config.json").read_bytes()
    with pytest.raises(
        regard.FolderError,
        match=r"20\.safetensors belongs to another run: its model\.cell is lstm, and gru in config",
    ):
        regard.train(Config(out=str(out)), PAIRS, DEV, resume=True)
    assert (out / "config.json").read_bytes() == before
    latest(out).unlink()
    regard.train(Config(out=str(out)), PAIRS, DEV, resume=True)


def test_files_of_another_run_with_equal_shapes_are_refused(complete: Path, tmp_path: Path) -> None:
    out, other = tmp_path / "model", tmp_path / "other"
    regard.train(_config(other, max_updates=10, learning_rate=0.01), PAIRS, DEV)
    shutil.copytree(complete, out)
    shutil.copy(other / "model.safetensors", out)
    message = r"model\.safetensors is damaged .* \(it was written by another training run\)"
    with pytest.raises(regard.FolderError, match=message):
        regard.Translator.load(out)
    with pytest.raises(regard.FolderError, match=message):
        regard.train(Config(out=str(out)), PAIRS, DEV, resume=True)
    shutil.copy(complete / "model.safetensors", out)
    shutil.copy(latest(other), out / "checkpoints" / "30.safetensors")
    with pytest.raises(
        regard.FolderError, match=r"30\.safetensors belongs to a run other than that of conf"
    ):
        regard.train(Config(out=str(out)), PAIRS, DEV, resume=True)


def test_training_on_the_cpu_asks_no_gpu_for_its_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise AssertionError("a GPU was initialised")

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_rng_state", refuse)
    assert [*checkpoints.generator_states(torch.device("cpu"))] == ["cpu"]


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        ({}, "its budget is used up: to train further, raise training.max_updates"),
        ({"patience": 1, "validate_every": 1, "max_updates": 200, "learning_rate": 1e-9},
         "its validation metric stopped improving: to train further, raise training.patience above"),
    ],
    ids=["budget", "early stopping"],
)  # fmt: skip
def test_a_run_that_has_ended_says_how_to_train_further(
    settings: dict[str, Any], cause: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "model"
    regard.train(_config(out, **settings), PAIRS, DEV)
    assert "the run has ended there" not in capsys.readouterr().err
    regard.train(Config(out=str(out)), PAIRS, DEV, resume=True)
    assert f"the run has ended there, because {cause}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (Path.unlink, r"has lost model\.safetensors, the best weights of its run; restore"),
        (DAMAGES["empty"], r"model\.safetensors is damaged or does not fit config\.json"),
    ],
    ids=["missing", "empty"],
)
def test_a_run_without_its_best_weights_is_not_resumed(
    damage: Callable[[Path], object],
    message: str,
    complete: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkpoints, "holds_best_weights", lambda *_: False)
    out = tmp_path / "model"
    shutil.copytree(complete, out)
    damage(out / "model.safetensors")
    with pytest.raises(regard.FolderError, match=message):
        regard.train(_config(out, max_updates=25), PAIRS, DEV, resume=True)
    assert latest(out).stem == "20"


def test_best_weights_that_a_checkpoint_contains_are_written_on_resume(tmp_path: Path) -> None:
    out = tmp_path / "model"
    regard.train(_config(out, max_updates=5, validate_every=5), PAIRS, DEV)
    weights = (out / "model.safetensors").read_bytes()
    (out / "model.safetensors").unlink()  # killed before they were written
    regard.train(_config(out, max_updates=5, validate_every=5), PAIRS, DEV, resume=True)
    assert (out / "model.safetensors").read_bytes() == weights


def test_a_run_leaves_unfinished_files_of_other_commands(complete: Path, tmp_path: Path) -> None:
    out = tmp_path / "model"
    shutil.copytree(complete, out)
    with atomic_write(out / "outputs.md") as temporary:
        temporary.write_text("x")
        regard.train(_config(out), PAIRS, DEV, resume=True)
    assert (out / "outputs.md").read_text() == "x"


def test_other_dev_pairs_are_reported_on_resume(
    complete: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for dev, reported in ((DEV, False), ([("a b", "b b")], True)):
        out = tmp_path / str(reported)
        shutil.copytree(complete, out)
        regard.train(_config(out, max_updates=21), PAIRS, dev, resume=True)
        assert (
            "the dev pairs differ from those used so far" in capsys.readouterr().err
        ) == reported


def test_automatic_settings_are_kept_on_resume_and_reported(
    complete: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "model"
    regard.train(
        dataclasses.replace(_config(out, max_updates=5), data=DataConfig(dev="dev.tsv")), PAIRS, DEV
    )
    automatic = Config(
        out=str(out),
        data=DataConfig(dev=None),
        source=TextConfig(unit="auto"),
        model=ModelConfig(attention=None),
    )
    regard.train(automatic, PAIRS, DEV, resume=True)
    message = capsys.readouterr().err
    assert (
        "kept from the start of the run: source.unit whitespace, model.attention additive\n"
        in message
    )
    assert "data.dev is now None instead of dev.tsv\n" in message


def test_settings_of_two_groups_are_compared_once_they_are_merged(tmp_path: Path) -> None:
    weighted = Config(out=str(tmp_path / "m"), training=TrainingConfig(coverage_loss=0.5))
    with pytest.raises(ConfigError, match=r"coverage_loss needs model\.coverage true"):
        regard.train(weighted, PAIRS, DEV)
    regard.train(_config(tmp_path / "m", {"coverage": True}, max_updates=5), PAIRS, DEV)
    regard.train(weighted, PAIRS, DEV, resume=True)


def test_fine_tuning_refuses_settings_of_another_model(complete: Path, tmp_path: Path) -> None:
    other = Config(out=str(tmp_path / "model"), model=ModelConfig(attention="dot"))
    with pytest.raises(
        regard.ConfigError,
        match=r"model\.attention is additive in .* cannot change with init_from \(to dot\); leave it out, or train without init_from",
    ):
        regard.train(other, PAIRS, DEV, init_from=complete)


def test_a_model_to_start_from_is_not_used_on_resume(
    complete: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(complete, tmp_path / "m")
    other = _config(tmp_path / "m")
    regard.train(other, PAIRS, DEV, resume=True, init_from="base")
    assert (
        "init_from base is not used, because the run has already begun" in capsys.readouterr().err
    )


def test_values_that_are_not_finite_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("regard.schedule.Schedule.rate", lambda _: 1e37)
    with pytest.raises(
        regard.ConfigError,
        match=r"(the (weights|gradient) of \S+ became infinite or NaN|the loss became (inf|nan)) at update \d; train",
    ):
        regard.train(_config(tmp_path / "a", validate_every=20), PAIRS, DEV)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.nan, r"the weights of \S+ became infinite or NaN"),
        (1e38, "the dev loss became (inf|nan)"),
    ],
)
def test_weights_are_checked_before_a_validation(
    value: float, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = torch.optim.Adam.step

    def overflowing(self: torch.optim.Adam, *arguments: Any) -> None:
        step(self, *arguments)
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.fill_(value)

    monkeypatch.setattr(torch.optim.Adam, "step", overflowing)
    with pytest.raises(ConfigError, match=rf"^{message} at update 1; train again with a lower"):
        regard.train(_config(tmp_path / "model", validate_every=1), PAIRS, DEV)


def test_a_norm_of_the_gradient_that_overflows_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backward = torch.Tensor.backward
    monkeypatch.setattr(torch.Tensor, "backward", lambda loss: backward(loss * 1e30))
    with pytest.raises(
        ConfigError, match=r"^the norm of the gradient became inf at update 1; train"
    ):
        regard.train(_config(tmp_path / "model"), PAIRS, DEV)


def test_the_generator_of_an_apple_gpu_is_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, restored = torch.arange(44, dtype=torch.uint8), list[torch.Tensor]()
    monkeypatch.setattr("torch.mps.get_rng_state", lambda: state)
    monkeypatch.setattr("torch.mps.set_rng_state", restored.append)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    description = {"schedule": {"update": 1}}
    gpu, cpu = torch.device("mps"), torch.device("cpu")
    states = [checkpoints.generator_states(gpu)]
    checkpoints.save(tmp_path, model, optimizer, description, states)
    checkpoint, _ = checkpoints.load(tmp_path)
    assert checkpoint is not None
    checkpoints.restore(checkpoint, model, optimizer, None, gpu)
    checkpoints.restore(checkpoint, model, optimizer, 0, cpu)
    assert not restored
    checkpoints.restore(checkpoint, model, optimizer, 0, gpu)
    assert [tensor.tolist() for tensor in restored] == [state.tolist()]
