"""How training went: the figures of metrics.jsonl of several folders, in one chart."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.charts import LineChart, Point
from regard.errors import ConfigError, FolderError
from regard.files import read_lines

_AXES = {"minutes": "minutes of training", "update": "updates"}
_NOT_DRAWN = {"update", "epoch", "minutes", "best"}


def curves(
    folders: Sequence[str | Path], metric: str | None = None, by: str = "minutes"
) -> LineChart:
    """A line per folder, from its metrics.jsonl.

    Args:
        folders: what `regard train --out` made.
        metric: a key of metrics.jsonl; by default what the first folder's best model was chosen by.
        by: what runs across, `minutes` or `update`.

    Raises:
        FolderError: a folder has no metrics yet, or they are damaged.
        ConfigError: the metric is in none of them, or `by` is neither of the two.
    """
    if by not in _AXES:
        raise ConfigError(f"curves run by minutes or by update, got {by!r}")
    found = {str(folder): _history(Path(folder)) for folder in folders}
    known = list(dict.fromkeys(key for entries in found.values() for key in entries[0]))
    drawn = [key for key in known if key not in _NOT_DRAWN]
    # what the best model is chosen by stands right behind the losses
    name = metric or next((key for key in drawn if not key.endswith("loss")), "dev_loss")
    if name in ("learning_rate", "pairs_per_second") and metric is None:
        name = "dev_loss"
    if name not in drawn:
        raise ConfigError(f"no folder has a metric {name!r}; they have {', '.join(drawn)}")
    points = [
        Point(
            folder, float(entry[by]), float(entry[name]),
            f"update {entry['update']:,}, {entry['minutes']:.1f} min: {entry[name]:.4g}",
        )
        for folder, entries in found.items()
        for entry in entries
        if name in entry
    ]  # fmt: skip
    return LineChart(
        points, _AXES[by], name.replace("_", " "), title=f"{name.replace('_', ' ')} on the way"
    )


def _history(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    if not path.exists():
        raise FolderError(
            f"{folder} has no metrics.jsonl yet; give a folder that `regard train --out` made, after "
            "its first validation"
        )
    try:
        entries = [json.loads(line) for line in read_lines(path)]
        if not entries or not all({"update", "minutes"} <= entry.keys() for entry in entries):
            raise ValueError("a line lacks its update or minutes")
    except (ValueError, AttributeError) as error:
        raise FolderError(f"{path} is damaged ({error}); train anew") from None
    return entries
