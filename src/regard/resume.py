"""The starting point of a training run: new weights, a checkpoint of the run, or another model."""

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from torch import Tensor

from regard import checkpoints, model_folder, pretrained
from regard.checkpoints import Checkpoint
from regard.config import GROUPS, Config, from_dict
from regard.errors import ConfigError, FolderError
from regard.model_folder import TrainedModel
from regard.text import Tokenizer

_FIXED: dict[str, tuple[str, ...]] = {"model": (), "source": (), "target": ()}
"""Groups whose settings cannot change when a model is trained further."""
_FIXED_ON_RESUME = {
    **_FIXED,
    "data": ("dev_seed", "recombined_pairs"),
    "training": ("seed", "batch_tokens", "optimizer"),
}
"""The same for a resumed run, whose state also depends on other settings."""


class StartingPoint(NamedTuple):
    """What a training run starts with."""

    config: Config
    tokenizers: tuple[Tokenizer, Tokenizer] | None = None
    """None: they are trained on the pairs."""
    weights: dict[str, Tensor] | None = None
    """None: they are initialised at random, or restored from the checkpoint."""
    checkpoint: Checkpoint | None = None
    run: str | None = None
    """Identity of the run that is resumed; None for a new run and for runs of earlier versions."""
    notes: tuple[str, ...] = ()
    """Messages for the user."""
    metadata: Mapping[str, Any] = MappingProxyType({})
    """Stored metadata that remain true: `attribution`, the origin of the data that the weights were trained
    on before, and, of a resumed run, its command and the layer whose attention is displayed."""
    notice: Path | None = None
    """The licence of these data, if it must be passed on with the model."""


def starting_point(
    config: Config,
    out: Path,
    resume: bool,
    init_from: str | Path | None,
    tokenizers_from: str | Path | None = None,
) -> StartingPoint:
    """Return what a run starts with.

    Settings that were given are compared with the stored settings; for all others, the stored ones
    are used.

    Raises:
        ConfigError: a given setting or tokenizer differs and cannot be changed.
        FolderError: a folder is missing or damaged, or contains files of different runs.
    """
    checkpoint, notes = checkpoints.load(out) if resume else (None, [])
    if checkpoint is not None:
        stored = model_folder.describe(out)
        settings = checkpoint.state.get("config")  # not in checkpoints of format 2 and before
        old = stored.config if settings is None else from_dict(settings)
        run = stored.metadata.get("run")
        _require_same_run(checkpoint, old, stored.config, run)
        _require_best_weights(checkpoint, out)
        where = f"{out} and cannot change when the run is resumed"
        config, changes = _merge(config, old, _FIXED_ON_RESUME, where, "train in another folder")
        if init_from is not None:
            notes.append(f"init_from {init_from} is not used, because the run has already begun")
        if tokenizers_from is not None:
            _require_equal_tokenizers(stored, out, tokenizers_from)
        kept = _kept(stored, "attribution", "attention_layer", "command")
        tokenizers = (stored.source, stored.target)
        return StartingPoint(config, tokenizers, None, checkpoint, run, (*notes, *changes), kept)
    if init_from is not None and tokenizers_from is not None:
        raise ConfigError(
            "init_from supplies the tokenizers; leave out tokenizers_from, or init_from"
        )
    if init_from is not None:
        stored = model_folder.load(init_from)
        config = _with_stored(config, stored, _FIXED, init_from, "init_from")
        notice = pretrained.find(init_from) / "NOTICE"
        return StartingPoint(
            config,
            (stored.source, stored.target),
            stored.model.state_dict(),
            metadata=_kept(stored, "attribution"),
            notice=notice if notice.is_file() else None,
        )
    if tokenizers_from is not None:
        stored = model_folder.describe(tokenizers_from)
        fixed: dict[str, tuple[str, ...]] = {"source": (), "target": ()}
        config = _with_stored(config, stored, fixed, tokenizers_from, "tokenizers_from")
        return StartingPoint(config, (stored.source, stored.target))
    return StartingPoint(config)


def _kept(stored: TrainedModel, *names: str) -> dict[str, Any]:
    return {name: stored.metadata[name] for name in names if name in stored.metadata}


def _with_stored(
    config: Config,
    stored: TrainedModel,
    fixed: dict[str, tuple[str, ...]],
    folder: str | Path,
    option: str,
) -> Config:
    """Return the settings, with those of the folder that an option names in the groups that are fixed."""
    where, remedy = f"{folder} and cannot change with {option}", f"train without {option}"
    return _merge(config, stored.config, fixed, where, remedy, groups=fixed)[0]


def _require_equal_tokenizers(stored: TrainedModel, out: Path, tokenizers_from: str | Path) -> None:
    other = model_folder.describe(tokenizers_from)
    if (other.source, other.target) != (stored.source, stored.target):
        raise ConfigError(
            f"{out} has begun with tokenizers other than those of {tokenizers_from}; leave out "
            "tokenizers_from, or train in another folder"
        )


def _require_same_run(
    checkpoint: Checkpoint, settings: Config, stored: Config, run: str | None
) -> None:
    """Raise a FolderError if a checkpoint belongs to a run other than that of this folder."""
    for group, names in _FIXED_ON_RESUME.items():
        here, there = dataclasses.asdict(getattr(stored, group)), getattr(settings, group)
        for name in names or here:
            if getattr(there, name) != here[name]:
                raise FolderError(
                    f"{checkpoint.path} belongs to another run: its {group}.{name} is "
                    f"{getattr(there, name)}, and {here[name]} in config.json; move it out of this "
                    "folder"
                )
    if checkpoint.state.get("run") != run:
        raise FolderError(
            f"{checkpoint.path} belongs to a run other than that of config.json; move it out of this folder"
        )


def _require_best_weights(checkpoint: Checkpoint, out: Path) -> None:
    """Raise a FolderError if the best weights so far are lost: the run may not find better ones."""
    state = checkpoint.state
    if not any(entry["best"] for entry in state["history"]):
        return
    if not (out / "model.safetensors").is_file():
        if checkpoints.holds_best_weights(state["history"], state["schedule"]["update"]):
            return  # killed before they were written
        raise FolderError(
            f"{out} has lost model.safetensors, the best weights of its run; restore that file, or "
            "train in another folder"
        )
    model_folder.load(out)


def _merge(
    config: Config,
    stored: Config,
    fixed: dict[str, tuple[str, ...]],
    where: str,
    remedy: str,
    groups: Iterable[str] = GROUPS,
) -> tuple[Config, list[str]]:
    """Return settings with the stored groups, updated with given settings, and notes about these.

    `fixed` contains the settings that cannot change, by group; () stands for the whole group. Only
    `groups` are compared and replaced.
    """
    merged: dict[str, Any] = {}
    notes: list[str] = []
    kept: list[str] = []
    for group in groups:
        new, old = getattr(config, group), getattr(stored, group)
        changes: dict[str, Any] = {}
        for name in sorted(new.given):
            value, before = getattr(new, name), getattr(old, name)
            if value == before:
                continue
            if value == "auto" or (value is None and group in fixed and not fixed[group]):
                kept.append(f"{group}.{name} {before}")  # its value when the run started
                continue
            if group in fixed and (name in fixed[group] or not fixed[group]):
                raise ConfigError(
                    f"{group}.{name} is {before} in {where} (to {value}); leave it out, or {remedy}"
                )
            changes[name] = value
            notes.append(f"{group}.{name} is now {value} instead of {before}")
        merged[group] = dataclasses.replace(old, **changes)
    if kept:
        notes.append(f"kept from the start of the run: {', '.join(kept)}")
    return dataclasses.replace(config, **merged), notes
