"""Checkpoints for an exact resume: `checkpoints/UPDATE.safetensors`, without executable content.

Each file contains the tensors (weights, state of the optimiser and of the random generators) and, as
metadata, the state of the run with all its settings, and a checksum. It is written under another
name and then renamed, so that a killed process never leaves an incomplete checkpoint. The two
checkpoints before the latest are kept: if the latest is damaged, training resumes from the one before.
"""

import contextlib
import json
import os
import re
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.optim import Optimizer

from regard.errors import FolderError
from regard.files import (
    atomic_write,
    exclusive,
    parse_json,
    remove_temporary_files,
    replace_links,
    write_errors_reported,
)
from regard.migrations import FORMAT, convert_tensors, convert_training_state
from regard.model_folder import checksum, load_tensors, unshared_tensors, write_tensors

_KEPT = 3

_NAME = re.compile(r"[0-9]+\.safetensors")
_OLD = "last/state.safetensors"
"""The checkpoint in formats 1 and 2, whose state is in a separate file beside it."""

_held: dict[Path, os.stat_result] = {}
"""The lock files that this process holds."""

WRITTEN = (
    "config.json",
    "source.json",
    "target.json",
    "model.safetensors",
    "metrics.jsonl",
    "README.md",
)
"""Files of a model folder that a run writes."""


class Checkpoint(NamedTuple):
    """The content of a checkpoint file."""

    path: Path
    tensors: dict[str, Tensor]
    state: dict[str, Any]


@contextlib.contextmanager
def locked(folder: Path) -> Generator[None]:
    """Hold the exclusive lock on a training folder, which is created if it is missing.

    The operating system releases the lock when the process ends, however it ends. Unfinished files left
    by a killed process are removed, and symbolic links to the files that the run writes become files.

    Raises:
        ConfigError: another process holds the lock, or the folder cannot be written.
    """
    path, is_new = _lock_file(folder), not folder.exists()
    with exclusive(folder, path):
        try:
            with write_errors_reported(folder):
                _held[path] = path.stat()
                remove_temporary_files(folder, (*WRITTEN, "NOTICE"))
                remove_temporary_files(path.parent)
                replace_links(folder / name for name in WRITTEN)
                replace_links(path.parent.glob("*.safetensors"))
            yield
        finally:
            if _is_held(path) and holds_only_lock(folder):  # nothing was saved
                with contextlib.suppress(OSError):  # another process may begin to use the folder
                    path.unlink()
                    path.parent.rmdir()
                    if is_new:
                        folder.rmdir()
            _held.pop(path, None)


def require_lock(folder: Path) -> None:
    """Raise a FolderError unless the folder is still the one that this process has locked."""
    if not _is_held(_lock_file(folder)):
        raise FolderError(
            f"{folder} was removed or moved during its training; train again, or resume in the folder "
            "that contains its checkpoints now (out, resume)"
        )


def holds_only_lock(folder: Path) -> bool:
    """Return whether a folder contains nothing but the lock of a run that has saved nothing."""
    path = _lock_file(folder)
    try:
        return [*folder.iterdir()] == [path.parent] and [*path.parent.iterdir()] == [path]
    except OSError:
        return False


def foreign_paths(folder: Path) -> list[Path]:
    """Return the paths in a training folder that no run writes."""
    lock = _lock_file(folder)
    return [
        *(path for path in folder.iterdir() if path.name not in WRITTEN and path != lock.parent),
        *(
            path
            for path in lock.parent.iterdir()
            if path != lock and not _NAME.fullmatch(path.name)
        ),
    ]


def _lock_file(folder: Path) -> Path:
    return folder / "checkpoints" / ".lock"


def _is_held(path: Path) -> bool:
    """Return whether this process holds this lock file, and not another one with the same path."""
    try:
        return os.path.samestat(path.stat(), _held[path])
    except OSError:
        return False


def has_training(folder: Path) -> bool:
    """Return whether this folder contains a run that can be resumed, if only from its beginning."""
    if not folder.is_dir():
        return False
    names = {path.name for path in folder.iterdir()}
    if _files(folder) or (folder / _OLD).exists():
        return True
    metrics = folder / "metrics.jsonl"
    if metrics.exists() and metrics.stat().st_size:  # written after a checkpoint, which is gone
        return False
    has_begun = names <= {"checkpoints"} or _lock_file(folder).exists()
    return has_begun and "README.md" not in names  # the model card of a complete run


def holds_best_weights(history: Sequence[Mapping[str, Any]], update: int) -> bool:
    """Return whether the weights after this update are the best of all validations."""
    return bool(history) and history[-1]["best"] and history[-1]["update"] == update


def generator_states(device: torch.device) -> dict[str, Tensor]:
    """Return the states of the random generators of this process: that of the CPU and of its device."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    if device.type == "mps":
        states["mps"] = torch.mps.get_rng_state()
    return states


def save(
    folder: str | Path,
    model: nn.Module,
    optimizer: Optimizer,
    state: dict[str, Any],
    generators: Sequence[dict[str, Tensor]],
) -> None:
    """Write a checkpoint: weights, state of the optimiser, `state`, and the generators by rank.

    Of the earlier checkpoints, only the latest two are kept. Those of later updates are removed: they
    are damaged, or belong to a run that was not continued.
    """
    tensors = {f"model.{name}": value for name, value in unshared_tensors(model).items()}
    for index, values in optimizer.state_dict()["state"].items():
        for name, value in values.items():
            tensors[f"optimizer.{index}.{name}"] = torch.as_tensor(value)
    for rank, states in enumerate(generators):
        tensors |= {_generators(rank) + device: value for device, value in states.items()}
    update = state["schedule"]["update"]
    path = Path(folder) / "checkpoints" / f"{update}.safetensors"
    text = json.dumps({"format": FORMAT, **state})
    with atomic_write(path) as temporary:
        write_tensors(temporary, tensors, {"state": text, "sha256": checksum(tensors, text)})
    earlier = [other for other in _files(folder) if int(other.stem) <= update]
    for other in set(_files(folder)) - set(earlier[:_KEPT]):
        other.unlink()
    _remove_old_checkpoint(Path(folder) / _OLD)


def load(folder: str | Path) -> tuple[Checkpoint | None, list[str]]:
    """Return the latest undamaged checkpoint, or None if there is none, and notes for the user.

    Raises:
        FolderError: all checkpoints are damaged.
    """
    notes: list[str] = []
    for path in [*_files(folder), Path(folder) / _OLD]:
        if not path.exists():
            continue
        try:
            checkpoint = _read(path)
        except (OSError, ValueError, KeyError, TypeError, SafetensorError, RecursionError) as error:
            notes.append(f"{path} is damaged ({error})")
            continue
        return checkpoint, [f"{note}; resuming from {path.stem}" for note in notes]
    if notes:
        raise FolderError(f"{'; '.join(notes)}; train in another folder")
    return None, []


def restore(
    checkpoint: Checkpoint,
    model: nn.Module,
    optimizer: Optimizer,
    rank: int | None,
    device: torch.device,
) -> None:
    """Restore model, optimiser and the generators of process `rank`, or no generators if it is None.

    Of the generators of accelerators, only that of `device` is restored.

    Raises:
        FolderError: the tensors do not match the model and the optimiser.
    """
    tensors = checkpoint.tensors
    try:
        load_tensors(model, convert_tensors(_part(tensors, "model.")))
        moments: dict[int, dict[str, Tensor]] = {}
        for name, value in _part(tensors, "optimizer.").items():
            index, key = name.split(".", 1)
            moments.setdefault(int(index), {})[key] = value
        _check_moments(moments, optimizer)
        optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})
        if rank is not None:
            torch.set_rng_state(tensors[_generators(rank) + "cpu"])
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        raise FolderError(f"{checkpoint.path} is damaged ({error}); train again") from None
    if rank is None:
        return
    state = tensors.get(_generators(rank) + device.type)
    if state is not None and device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    if state is not None and device.type == "mps":
        torch.mps.set_rng_state(state)


def _generators(rank: int) -> str:
    """Return the prefix of the names of the generator states of a process."""
    return f"random.{rank}." if rank else "random."


def _remove_old_checkpoint(path: Path) -> None:
    if path.exists():
        path.with_suffix(".json").unlink(missing_ok=True)
        path.unlink()
        with contextlib.suppress(OSError):  # it contains other files
            path.parent.rmdir()


def _files(folder: str | Path) -> list[Path]:
    """Return the checkpoint files, the latest first."""
    paths = (Path(folder) / "checkpoints").glob("*.safetensors")
    files = [path for path in paths if _NAME.fullmatch(path.name) and path.is_file()]
    return sorted(files, key=_update, reverse=True)


def _update(path: Path) -> int:
    return int(path.stem)


def _read(path: Path) -> Checkpoint:
    """Read a checkpoint and verify its checksum; in `last/`, the state is in a separate file."""
    with safe_open(str(path), framework="pt") as stored:
        metadata: dict[str, str] = stored.metadata() or {}
        tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    if _NAME.fullmatch(path.name):
        if metadata["sha256"] != checksum(tensors, metadata["state"]):
            raise ValueError("the checksum differs")
        return Checkpoint(path, tensors, parse_json(metadata["state"]))
    state = parse_json(path.with_suffix(".json").read_text(encoding="utf-8"))
    if metadata.get("update") != state["update"]:
        raise ValueError(
            f"checkpoint files from different updates, {metadata.get('update')} and {state['update']}"
        )
    return Checkpoint(path, tensors, convert_training_state(state))


def _check_moments(moments: dict[int, dict[str, Tensor]], optimizer: Optimizer) -> None:
    """Raise a ValueError unless the state of the optimiser matches its parameters."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if moments and moments.keys() != set(range(len(parameters))):
        raise ValueError("the state of the optimiser does not match the model's parameters")
    for index, values in moments.items():
        shapes = {tuple(value.shape) for name, value in values.items() if name != "step"}
        if shapes != {tuple(parameters[index].shape)}:
            raise ValueError(
                "the shapes in the state of the optimiser differ from those of the parameters"
            )


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }
