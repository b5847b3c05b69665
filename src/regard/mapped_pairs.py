"""Pairs in tables that may exceed memory: checked, tokenised and read from memory-mapped files.

The files belong to the cache of Hugging Face's `datasets`. Their names contain a fingerprint of the
data and of the settings that they depend on, so that a later run finds them.
"""

import bisect
import contextlib
import dataclasses
import gc
import hashlib
import json
import random
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Int, UInt64

from regard import table_files
from regard.batching import Example
from regard.config import Config, DataConfig
from regard.copy_mechanism import make_example
from regard.errors import DataError
from regard.files import write_text
from regard.pairs import MAX_LISTED, BadLine, Pair, ParsedPairs, held_out_sources, reason_of
from regard.progress import Progress
from regard.text import UNK, Tokenizer, format_source
from regard.version import __version__

if TYPE_CHECKING:
    from datasets import Dataset

ArrowTable = Any
"""A `pyarrow.Table`; pyarrow has no type annotations."""
ArrowColumn = Any
"""A `pyarrow.ChunkedArray`."""

_ROWS_AT_ONCE = 10_000
_MANY_SOURCES = 100_000
"""Number of sources from which on the most are held out, however many of them are alike."""


class MappedPairs:
    """Valid pairs in a table, and the rows that cannot be used as pairs.

    Args:
        path: the file, or a pattern that matches several files.
        data: names of the columns.

    Raises:
        DataError: the file cannot be read.
    """

    unit = "row"

    def __init__(self, path: str, data: DataConfig) -> None:
        self.name = path
        rows = table_files.load(path, data)
        roles = (data.source_column, data.target_column, data.features_column)
        # the last part stands for the contents of the hashes in `_checked`
        self._fingerprint = _hash(rows._fingerprint, roles, "keys and folded keys of usable rows")  # pyright: ignore[reportPrivateUsage]
        self._has_features = data.features_column is not None

        def check(batch: ArrowTable) -> ArrowTable:
            return _checked(table_files.rows(batch.to_pydict(), path, data))

        self._checked = _map(rows, check, self._fingerprint, "reading", path)
        reasons = self._column("reason")
        self.selected: Bool[np.ndarray, " N"] = reasons.is_null().to_numpy()
        """Whether each row is one of the pairs; initially, whether it is valid."""
        self.bad = len(self.selected) - len(self)
        """Number of rows that cannot be used."""
        numbers = (np.flatnonzero(~self.selected)[:MAX_LISTED] + 1).tolist()
        places = table_files.places(path, data, numbers)
        self.listed = [
            BadLine(number, reasons[number - 1].as_py() + place)
            for number, place in zip(numbers, places, strict=True)
        ]
        """The first rows that cannot be used."""

    def __len__(self) -> int:
        return int(np.count_nonzero(self.selected))

    def texts(self, name: str) -> "Texts":
        """Return the `source`, the `target` or the `features` of every pair."""
        return Texts(self._column(name), self.selected)

    def hold_out(self, seed: int) -> ParsedPairs:
        """Remove pairs for validation and return them; no source is in both sets.

        Their sources are those with the smallest hashes, 5 % of all that a tokenizer can tell apart, at
        most 1,000, and those that it may read alike.
        """
        keys: UInt64[np.ndarray, " N"] = self._column("key").to_numpy()
        keys = keys ^ np.uint64(random.Random(seed).getrandbits(64))
        folded: UInt64[np.ndarray, " N"] = self._column("folded").to_numpy()
        distinct = _distinct(keys[self.selected])
        many = len(distinct) >= _MANY_SOURCES
        count = held_out_sources(len(distinct if many else _distinct(folded[self.selected])))
        alike = _distinct(folded[self.selected & (keys <= distinct[count - 1])])
        nearest = np.searchsorted(alike, folded).clip(max=len(alike) - 1)  # np.isin sorts all rows
        in_dev = self.selected & (alike[nearest] == folded)
        if (in_dev == self.selected).all():
            raise DataError(
                f"{self.name} contains only one source, so none can be held out for validation; give "
                "validation pairs (data.dev, in Python also the argument dev)"
            )
        self.selected = self.selected & ~in_dev
        return self._parsed(in_dev)

    def in_memory(self) -> ParsedPairs:
        """Return all pairs, read into memory."""
        return self._parsed(self.selected)

    def _parsed(self, selected: Bool[np.ndarray, " N"]) -> ParsedPairs:
        columns = [Texts(self._column(name), selected) for name in ("source", "target", "features")]
        pairs = [Pair(*fields) for fields in zip(*columns, strict=True)]
        numbers = (np.flatnonzero(selected) + 1).tolist()
        return ParsedPairs(self.name, pairs, numbers, [], unit=self.unit)

    def train_tokenizers(self, config: Config) -> tuple[Tokenizer, Tokenizer]:
        """Return tokenizers trained on the pairs, or the cached ones if there are any."""
        settings = (dataclasses.asdict(config.source), dataclasses.asdict(config.target))
        selected = hashlib.sha256(self.selected.tobytes()).hexdigest()
        fingerprint = _hash(self._fingerprint, selected, *settings)
        path = Path(self._checked.cache_files[0]["filename"]).with_name(
            f"tokenizers-{fingerprint}.json"
        )
        if path.exists():
            checksum, _, text = path.read_bytes().partition(b"\n")
            if (
                checksum == hashlib.sha256(text).hexdigest().encode()
            ):  # otherwise, the file is damaged
                source, target = json.loads(text)
                return Tokenizer.from_json(source), Tokenizer.from_json(target)
        features = self.texts("features") if self._has_features else None
        source = Tokenizer.train(self.texts("source"), config.source, features)
        target = Tokenizer.train(self.texts("target"), config.target)
        text = json.dumps([source.to_json(), target.to_json()])
        write_text(path, f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}")
        return source, target

    def encode(self, source: Tokenizer, target: Tokenizer, copy: bool) -> "MappedExamples":
        """Return the pairs as examples."""
        order = ["right to left"] if target.right_to_left else []
        tokenizers = source.to_json(), target.to_json()
        fingerprint = _hash(self._fingerprint, *tokenizers, copy, *order)

        def encode(batch: ArrowTable) -> ArrowTable:
            return _encoded(batch, source, target, copy)

        table = _map(self._checked, encode, fingerprint, "tokenising", self.name)
        return MappedExamples(_table(table), np.flatnonzero(self.selected))

    def _column(self, name: str) -> ArrowColumn:
        return _table(self._checked).column(name)


class Texts:
    """The texts of one column in the selected rows, read from disk each time."""

    def __init__(self, column: ArrowColumn, selected: Bool[np.ndarray, " N"]) -> None:
        self._column, self._selected = column, selected

    def __len__(self) -> int:
        return int(np.count_nonzero(self._selected))

    def __iter__(self) -> Iterator[Any]:
        import pyarrow as pa

        start = 0
        for chunk in self._column.iterchunks():
            mask = self._selected[start : start + len(chunk)]
            yield from chunk.filter(pa.array(mask)).to_pylist()
            start += len(chunk)


class MappedExamples:
    """Examples that are read from a memory-mapped table when they are used.

    Args:
        table: a list of ids per row in the columns `source`, `target` and, for a model that copies,
            `copies`.
        rows: the rows that are examples.
    """

    def __init__(self, table: ArrowTable, rows: Int[np.ndarray, " N"]) -> None:
        self.table, self.rows = table, rows
        self._columns = [_Lists(column) for column in table.columns]
        lengths = [column.lengths()[rows] for column in self._columns[:2]]
        self.sizes: Int[np.ndarray, "N 2"] = np.stack([lengths[0], lengths[1] + 1], axis=1)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int, /) -> Example:
        row = int(self.rows[index])
        source, target, *copies = (column[row] for column in self._columns)
        return Example(source, target, copies[0] if copies else ())

    def select(self, indices: Int[np.ndarray, " n"]) -> "MappedExamples":
        """Return the examples with these indices."""
        return MappedExamples(self.table, self.rows[indices])

    def unknown(self) -> tuple[int, int]:
        """Return the number of unknown tokens in the sources and in the targets."""
        source, target = (column.counts(UNK)[self.rows].sum() for column in self._columns[:2])
        return int(source), int(target)

    def fingerprint(self) -> str:
        """Return a hash of the examples."""
        digest = hashlib.sha256(self.rows.tobytes())
        for column in self._columns:
            column.update(digest)
        return digest.hexdigest()[:16]


class _Lists:
    """A column of lists of ids, as views of its memory-mapped chunks."""

    def __init__(self, column: ArrowColumn) -> None:
        chunks: list[Any] = column.chunks
        self._offsets = [chunk.offsets.to_numpy() for chunk in chunks]
        self._values = [chunk.values.to_numpy() for chunk in chunks]
        self._starts: list[int] = np.cumsum([0, *map(len, chunks)])[:-1].tolist()

    def __getitem__(self, row: int) -> list[int]:
        chunk = bisect.bisect_right(self._starts, row) - 1
        start, end = self._offsets[chunk][row - self._starts[chunk] :][:2]
        return self._values[chunk][start:end].tolist()

    def lengths(self) -> Int[np.ndarray, " N"]:
        return np.concatenate([np.diff(offsets) for offsets in self._offsets])

    def counts(self, id: int) -> Int[np.ndarray, " N"]:
        """Return how often an id occurs in each list."""
        counts: list[Int[np.ndarray, " n"]] = []
        for offsets, values in zip(self._offsets, self._values, strict=True):
            found = values == id
            before = np.zeros(len(values) + 1, dtype=np.int32)
            if found.any():
                np.cumsum(found, out=before[1:])
            counts.append(np.diff(before[offsets]))
        return np.concatenate(counts)

    def update(self, digest: Any) -> None:
        """Add the contents to a hash."""
        for arrays in zip(self._offsets, self._values, strict=True):
            for array in arrays:
                digest.update(array)


def _hash(*parts: Any) -> str:
    text = json.dumps([__version__, *parts], ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _table(dataset: "Dataset") -> ArrowTable:
    return dataset.data.table


def _map(
    dataset: "Dataset",
    function: Callable[[ArrowTable], ArrowTable],
    fingerprint: str,
    activity: str,
    path: str,
) -> "Dataset":
    """Apply a function to batches of rows and return the resulting rows, from the cache if possible."""
    progress = Progress(f"{activity} {path}", len(dataset), "rows")
    with table_files.reading(path, table_files.cache_folder(dataset)), progress:

        def advance(batch: ArrowTable) -> ArrowTable:
            with _uncollected():
                result = function(batch)
            progress.advance(len(batch))
            return result

        mapped = dataset.with_format("arrow").map(
            advance,
            batched=True,
            batch_size=_ROWS_AT_ONCE,
            writer_batch_size=_ROWS_AT_ONCE,
            remove_columns=dataset.column_names,
            load_from_cache_file=True,
            new_fingerprint=fingerprint,
        )
        table_files.verify(mapped)
        return mapped


@contextlib.contextmanager
def _uncollected() -> Generator[None]:
    """Suspend the garbage collector, which would take longer than tokenising and find nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _checked(rows: Sequence[table_files.Row]) -> ArrowTable:
    """Return the rows, the reasons why they cannot be used, and hashes of each source."""
    import pyarrow as pa

    reasons = [reason_of(row) for row in rows]
    pairs = [
        Pair("", "") if reason else Pair(row.source, "", row.features)
        for row, reason in zip(rows, reasons, strict=True)
    ]
    return pa.table(
        {
            "source": pa.array([row.source for row in rows], pa.string()),
            "target": pa.array([row.target for row in rows], pa.string()),
            "features": pa.array([row.features for row in rows], pa.string()),
            "reason": pa.array(reasons, pa.string()),
            "key": _hashes(format_source(pair.key) for pair in pairs),
            "folded": _hashes(pair.folded_key for pair in pairs),
        }
    )


def _distinct(values: UInt64[np.ndarray, " N"]) -> UInt64[np.ndarray, " n"]:
    """Return the distinct values in order; np.unique takes ten times as long."""
    ordered = np.sort(values)
    return ordered[np.concatenate([[True], ordered[1:] != ordered[:-1]])]


def _hashes(texts: Iterable[str]) -> UInt64[np.ndarray, " n"]:
    digests = (hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts)
    return np.frombuffer(b"".join(digests), dtype=np.uint64)


def _encoded(batch: ArrowTable, source: Tokenizer, target: Tokenizer, copy: bool) -> ArrowTable:
    """Return the examples for rows of `_checked`; those for unusable rows have no tokens."""
    import pyarrow as pa

    columns = [batch.column(name).to_pylist() for name in ("source", "target", "features")]
    usable = batch.column("reason").is_null().to_pylist()
    pairs = [
        Pair(*fields) if valid else Pair("", "")
        for *fields, valid in zip(*columns, usable, strict=True)
    ]
    sources = source.encode_batch([pair.key for pair in pairs])
    targets = target.encode_batch([pair.target for pair in pairs])
    examples = [
        make_example(*encodings, target, copy) for encodings in zip(sources, targets, strict=True)
    ]
    names = ("source", "target", "copies") if copy else ("source", "target")
    kind = pa.list_(pa.int32())
    return pa.table({n: pa.array([getattr(e, n) for e in examples], kind) for n in names})
