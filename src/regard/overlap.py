"""Test sources that are also in the training data."""

import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from regard import table_files
from regard.config import DataConfig
from regard.errors import RegardError, quantity, shortened
from regard.lines import iterate_lines
from regard.pairs import can_be_read_again, fault_of, files_of, reason_of, split_line

_Key = tuple[str, str | None]


@dataclass(frozen=True, slots=True)
class TrainingOverlap:
    """Test sources that are also sources of training pairs."""

    n: int
    """Number of distinct test sources, with their features, that are in the training data."""
    example: str
    """The first of them in the test data."""
    train: str
    """Path of the training data."""
    held_out: bool = False
    """Whether some of the sources may have been held out for validation, because the settings name no dev data."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary."""
        return asdict(self)

    def message(self, total: int) -> str:
        """Return a warning about these sources, of `total` distinct test sources."""
        unless = "unless training held them out for validation, " if self.held_out else ""
        return (
            f"{self.n:,} of {quantity(total, 'distinct source')} "
            f"{'is' if self.n == 1 else 'are'} in the training data ({self.train}), for example "
            f"{shortened(self.example)!r}; {unless}"
            "the metrics do not measure performance on unseen data"
        )


def training_overlap(
    sources: Collection[_Key], data: DataConfig, normalize: Callable[[str], str] = str
) -> TrainingOverlap | None:
    """Return the test sources that are in the training data of a model.

    The training data are read as a stream; only the test sources are held in memory.

    Args:
        sources: the test sources, each with its features or None.
        data: the settings of the model, which name the training data.
        normalize: applied to both sides, such as `translator.source.normalize`; they are then compared
            up to whitespace.

    Returns:
        None if there are no common sources, or if the training data are unknown, cannot be read, or
        are larger than 1 GiB.
    """
    if data.train is None:
        return None

    def key(source: _Key) -> _Key:
        text, features = source
        return " ".join(normalize(text).split()), features

    wanted = {key(source) for source in sources}
    try:
        if not can_be_read_again(data.train):
            return None
        keys = map(key, _training_sources(data.train, data))
        found = {source for source in keys if source in wanted}
    except (RegardError, OSError):
        return None
    common = [source[0] for source in sources if key(source) in found]
    if not common:
        return None
    return TrainingOverlap(len(common), common[0], data.train, held_out=data.dev is None)


def _training_sources(path: str, data: DataConfig) -> Iterator[_Key]:
    """Yield the sources of all pairs but those that training skips, except for their lengths."""
    if table_files.is_table(path):
        rows = table_files.iterate(path, data)
        yield from ((row.source, row.features) for row in rows if reason_of(row) is None)
        return
    column = data.features_column if isinstance(data.features_column, int) else None
    if not os.path.exists(path):  # parallel files
        sides = map(iterate_lines, files_of(path))
        lines = ((source, target, None) for source, target in zip(*sides, strict=False))
    else:
        lines = (split_line(line, column) for line in iterate_lines(path))
    for source, target, features in lines:
        if fault_of(source, target, features, column) is None:
            yield source, features
