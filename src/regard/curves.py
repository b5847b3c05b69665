"""Training curves: one metric for several model folders in one chart."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard import pretrained
from regard.charts import LineChart, Point
from regard.errors import ConfigError, FolderError, not_one_of
from regard.lines import read_lines
from regard.metrics import METRICS

_AXES = {"minutes": "minutes of training", "update": "updates"}
_LARGEST = 1e100
_NOT_METRICS = {"update", "epoch", "minutes", "best"}


def curves(
    folders: Sequence[str | Path], metric: str | None = None, by: str = "minutes"
) -> LineChart:
    """Return a chart of one metric, with one line per model.

    Args:
        folders: model folders, whose metrics.jsonl files are read; an ensemble stands for its members.
        metric: key in metrics.jsonl; the metric that selects the first folder's best weights by default.
        by: quantity on the x axis, `minutes` or `update`.

    Raises:
        FolderError: a folder has no metrics yet, or they are damaged.
        ConfigError: there is no folder, no folder has the metric, or `by` is unknown.
    """
    if by not in _AXES:
        raise not_one_of("the x axis of curves", by, _AXES)
    if not folders:
        raise ConfigError("there are no folders to draw curves of; give at least one")
    runs = [run for folder in folders for run in _runs(folder)]
    distinct = {pretrained.find(run).resolve(): str(run) for run in runs}
    histories = {folder: read_history(folder) for folder in distinct.values()}
    names = _run_names(list(histories))
    keys = dict.fromkeys(key for history in histories.values() for key in history[0])
    metrics = [key for key in keys if key not in _NOT_METRICS]
    losses_and_speed = {"train_loss", "dev_loss", "learning_rate", "pairs_per_second"}
    name = metric or next((key for key in metrics if key not in losses_and_speed), "dev_loss")
    if name not in metrics:
        raise not_one_of("metric", name, metrics)
    points = [
        Point(
            names[folder], float(entry[by]), float(entry[name]),
            f"update {entry['update']:,}, {entry['minutes']:.1f} min: {entry[name]:.4g}",
        )
        for folder, history in histories.items()
        for entry in history
        if name in entry
    ]  # fmt: skip
    without = [names[folder] for folder, history in histories.items() if name not in history[0]]
    if without:
        raise ConfigError(
            f"{', '.join(without)} has no metric {name}; leave it out, or choose a metric that all "
            "runs have, such as dev_loss"
        )
    label = METRICS[name].label if name in METRICS else name.replace("_", " ")
    title = label[0].upper() + label[1:] if label.islower() else label
    return LineChart(points, _AXES[by], label, title=f"{title} during training")


def _runs(folder: str | Path) -> Sequence[str | Path]:
    """Return a model folder, or the members of an ensemble."""
    members = pretrained.find(folder) / "members"
    numbers = sorted(int(path.name) for path in members.glob("*/") if path.name.isdecimal())
    return [members / str(number) for number in numbers] or [folder]


def _run_names(folders: list[str]) -> dict[str, str]:
    """Return the last part of each path, with as many parts before it as needed to make the names unique."""
    parts = {folder: Path(folder).resolve().parts for folder in folders}
    names = {folder: str(Path(*path)) for folder, path in parts.items()}
    for length in range(1, max(map(len, parts.values()))):
        short = {folder: "/".join(path[-length:]) for folder, path in parts.items()}
        if len(set(short.values())) == len({path for path in parts.values()}):
            return short
    return names


def read_history(folder: str | Path) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl in a model folder, one per validation.

    Raises:
        FolderError: the file is missing or damaged.
    """
    path = pretrained.find(folder) / "metrics.jsonl"
    if not path.parent.is_dir():
        raise FolderError(f"{folder} is no folder; choose the folder of a training run")
    # it is empty after a checkpoint without a validation
    if not path.exists() or path.stat().st_size == 0:
        raise FolderError(
            f"{folder} has no metrics yet (metrics.jsonl); choose the folder of a training run, after its "
            "first validation"
        )
    try:
        entries = [json.loads(line) for line in read_lines(path)]
        if not all({"update", "minutes"} <= entry.keys() for entry in entries):
            raise ValueError("a line has no update or minutes")
        for number, entry in enumerate(entries, start=1):
            for key, value in entry.items():
                if not key.isprintable():
                    raise ValueError(f"line {number}: {key!r} is not a name")
                if type(value) not in (int, float, bool) or not abs(value) <= _LARGEST:
                    raise ValueError(f"line {number}: {key} is not a number")
    except (ValueError, AttributeError) as error:
        raise FolderError(f"{path} is damaged ({error}); train again") from None
    return entries
