"""The starting point of a training run: new weights, a checkpoint of the run, or another model."""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from regard import checkpoints, model_folder
from regard.checkpoints import Checkpoint
from regard.config import GROUPS, Config, from_dict
from regard.errors import ConfigError
from regard.text import Tokenizer

_FIXED: dict[str, tuple[str, ...]] = {"model": (), "source": (), "target": ()}
"""Groups of which no setting can change when a model is trained further."""
_FIXED_ON_RESUME = {**_FIXED, "training": ("seed", "batch_tokens", "optimizer")}
"""The same for the state of a run, which depends on these settings of `training` too."""


class StartingPoint(NamedTuple):
    """What a training run starts with."""

    config: Config
    tokenizers: tuple[Tokenizer, Tokenizer] | None = None
    """None: they are trained on the pairs."""
    weights: dict[str, Tensor] | None = None
    """None: they are initialised at random, or those of the checkpoint."""
    checkpoint: Checkpoint | None = None
    notes: tuple[str, ...] = ()
    """Messages for the user."""


def starting_point(
    config: Config, out: Path, resume: bool, init_from: str | Path | None
) -> StartingPoint:
    """Return what a run starts with.

    Settings that the caller gave are compared with the stored ones; those not given are the stored
    ones.

    Raises:
        ConfigError: a given setting differs and cannot be changed.
        FolderError: a folder is missing or damaged.
    """
    checkpoint, notes = checkpoints.load(out) if resume else (None, [])
    if checkpoint is not None:
        stored = model_folder.describe(out)
        settings = checkpoint.state.get("config")  # not in checkpoints of format 2 and before
        old = stored.config if settings is None else from_dict(settings)
        where = f"{out} and cannot change on --resume"
        config, changes = _merge(config, old, _FIXED_ON_RESUME, where)
        return StartingPoint(
            config, (stored.source, stored.target), None, checkpoint, (*notes, *changes)
        )
    if init_from is not None:
        stored = model_folder.load(init_from)
        where = f"{init_from} and cannot change with --init-from"
        merged, _ = _merge(config, stored.config, _FIXED, where)
        groups = {name: getattr(merged, name) for name in _FIXED}
        weights = stored.model.state_dict()
        return StartingPoint(
            dataclasses.replace(config, **groups), (stored.source, stored.target), weights
        )
    return StartingPoint(config)


def _merge(
    config: Config, stored: Config, fixed: dict[str, tuple[str, ...]], where: str
) -> tuple[Config, list[str]]:
    """Return the stored settings with the given ones that may change, and notes about these.

    `fixed` names the groups with settings that cannot change, () for all of a group.
    """
    groups: dict[str, Any] = {}
    notes: list[str] = []
    for group in GROUPS:
        new, old = getattr(config, group), getattr(stored, group)
        changes: dict[str, Any] = {}
        for name in sorted(new.given):
            value, before = getattr(new, name), getattr(old, name)
            # `auto` and None stand for a value that was resolved when the run started
            if value == before or (value in (None, "auto") and name != "max_minutes"):
                continue
            if group in fixed and (name in fixed[group] or not fixed[group]):
                raise ConfigError(
                    f"{group}.{name} is {before} in {where} (to {value}); leave it out, or train "
                    "in another folder"
                )
            changes[name] = value
            notes.append(f"{group}.{name} is now {value} instead of {before}")
        groups[group] = dataclasses.replace(old, **changes)
    return dataclasses.replace(config, **groups), notes
