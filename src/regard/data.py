"""Pairs from files, and batches of about equal work from pairs."""

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from regard.errors import DataError
from regard.files import read_lines
from regard.text import BOS, EOS, PAD

_SHOWN = 20


class Pair(NamedTuple):
    """One source and its target."""

    source: str
    target: str


class BadLine(NamedTuple):
    """A line that cannot be used."""

    number: int
    reason: str


class Pairs(NamedTuple):
    """What a file of pairs holds."""

    name: str
    """The file, or `pairs` for a list in memory."""
    pairs: list[Pair]
    numbers: list[int]
    """The line of each pair, from 1."""
    bad: list[BadLine]
    extra_columns: int = 0
    """Lines with further columns, which are ignored."""

    def require_good(self, mend: str) -> None:
        """Raise a DataError that lists the bad lines, if there are any."""
        if self.bad:
            lines = [f"line {number} {reason}" for number, reason in self.bad[:_SHOWN]]
            more = f"; and {len(self.bad) - _SHOWN:,} more" if len(self.bad) > _SHOWN else ""
            total = len(self.bad) + len(self.pairs)
            raise DataError(
                f"{self.name}: {len(self.bad):,} of {total:,} lines cannot be used: "
                f"{'; '.join(lines)}{more}; {mend}"
            )


def read_pairs(path: str, features_column: int | None = None) -> Pairs:
    """Read a TSV file (source TAB target), or two parallel files named `F.src,F.tgt`.

    `.gz` is read as it is; UTF-8 with or without byte order mark, LF or CRLF. A line whose source
    or target is missing or blank is listed in `bad`; it is never part of the pairs.

    Args:
        path: the file, or two files with a comma between them.
        features_column: column, from 1, with features of the source. The first of the other
            columns is the source and the second the target; the pair's source is then source TAB
            features.

    Raises:
        DataError: a file cannot be read, or parallel files differ in length.
    """
    parts = path.split(",")
    if len(parts) == 2 and not Path(path).exists():
        if features_column is not None:
            raise DataError(
                f"{path}: parallel files have no columns, so features_column {features_column} has "
                "nothing to name; give a TSV file"
            )
        return _read_parallel(path, *parts)
    rows = [line.split("\t") for line in read_lines(path)]
    if features_column is not None:
        return _read_featured(path, rows, features_column - 1)
    extra = sum(len(row) > 2 for row in rows)
    return _sort_out(path, [(row[0], row[1] if len(row) > 1 else None) for row in rows], extra)


def _read_featured(path: str, rows: Sequence[list[str]], column: int) -> Pairs:
    """The pairs of rows with features in a column, counted from 0; without it a row is bad."""
    good: list[tuple[str, str | None]] = []
    lacking: list[BadLine] = []
    numbers: list[int] = []
    for number, row in enumerate(rows, start=1):
        source, target, *_ = [*row[:column], *row[column + 1 :], None, None]
        blank = not (source or "").strip()
        if blank and len(row) > column and row[column].strip():
            lacking.append(BadLine(number, "has features and no source"))
            continue
        if not blank and len(row) <= column:
            lacking.append(BadLine(number, f"has no column {column + 1} with features"))
            continue
        numbers.append(number)
        features = row[column] if len(row) > column else ""
        # a blank source stays blank, whatever its features
        good.append((f"{source}\t{features}" if not blank else "", target))
    found = _sort_out(path, good, sum(len(row) > 3 for row in rows))
    return found._replace(
        numbers=[numbers[place - 1] for place in found.numbers],
        bad=sorted(
            [*lacking, *(each._replace(number=numbers[each.number - 1]) for each in found.bad)]
        ),
    )


def pairs_from(items: Sequence[tuple[str, str]], name: str = "pairs") -> Pairs:
    """The same for a list in memory; a number is a place in the list, from 1."""
    return _sort_out(name, [(source, target) for source, target in items], 0)


def _read_parallel(path: str, source: str, target: str) -> Pairs:
    sources, targets = read_lines(source), read_lines(target)
    if len(sources) != len(targets):
        raise DataError(
            f"{source} has {len(sources):,} lines and {target} {len(targets):,}; parallel files "
            "need one line each per pair"
        )
    return _sort_out(path, list(zip(sources, targets, strict=True)), 0)


def _sort_out(name: str, rows: Sequence[tuple[str, str | None]], extra: int) -> Pairs:
    found = Pairs(name, [], [], [], extra)
    for number, (source, target) in enumerate(rows, start=1):
        if target is None:
            reason = "has no second column (TAB)" if source.strip() else "is empty"
        elif not source.strip():
            reason = "has an empty source" if target.strip() else "is empty"
        elif not target.strip():
            reason = "has an empty target"
        else:
            found.pairs.append(Pair(source, target))
            found.numbers.append(number)
            continue
        found.bad.append(BadLine(number, reason))
    return found


class Example(NamedTuple):
    """A pair as ids."""

    source: list[int]
    """Ends with the end symbol."""
    target: list[int]
    """Without start and end symbols."""
    copies: Sequence[int] = ()
    """Of every source symbol its id on the target side, where it may be copied (copying.py)."""

    @property
    def size(self) -> tuple[int, int]:
        """Symbols that the encoder and the decoder read."""
        return len(self.source), len(self.target) + 1


class Batch(NamedTuple):
    """Examples side by side, padded to the longest."""

    source: Tensor
    """(B, T)."""
    lengths: Tensor
    """(B,): real symbols of each source."""
    inputs: Tensor
    """(B, L): start symbol, then the target."""
    targets: Tensor
    """(B, L): the target, then the end symbol."""
    copies: Tensor | None = None
    """(B, T): of every source symbol its id on the target side, where it may be copied."""

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on another device."""
        copies = None if self.copies is None else self.copies.to(device)
        tensors = self.source, self.lengths, self.inputs, self.targets
        source, lengths, inputs, targets = (tensor.to(device) for tensor in tensors)
        return Batch(source, lengths, inputs, targets, copies)

    @property
    def target_tokens(self) -> int:
        """Number of target tokens, EOS included, padding excluded."""
        return int((self.targets != PAD).sum())


def pad(rows: Sequence[Sequence[int]]) -> Tensor:
    """Ids side by side, (B, longest), padded at the end."""
    width = max(map(len, rows), default=0)
    return torch.tensor([[*row, *[PAD] * (width - len(row))] for row in rows], dtype=torch.long)


def collate(examples: Sequence[Example]) -> Batch:
    """Put examples side by side."""
    return Batch(
        pad([example.source for example in examples]),
        torch.tensor([len(example.source) for example in examples]),
        pad([[BOS, *example.target] for example in examples]),
        pad([[*example.target, EOS] for example in examples]),
        pad([example.copies for example in examples]) if examples and examples[0].copies else None,
    )


def bucket(
    sizes: Sequence[tuple[int, int]], batch_tokens: int, rng: random.Random | None = None
) -> list[list[int]]:
    """Cut examples into batches of like length; the indices of each batch.

    A batch holds at most `batch_tokens` source plus target symbols, padding included (a longer
    example is a batch alone).

    Args:
        sizes: source and target length of each example.
        batch_tokens: bound on a batch.
        rng: shuffles examples of one size and the order of batches; None keeps the order of sizes.
    """
    order = list(range(len(sizes)))
    if rng is not None:
        rng.shuffle(order)
    order.sort(key=lambda index: sizes[index])
    batches: list[list[int]] = []
    widest = (0, 0)
    for index in order:
        source, target = sizes[index]
        wider = (max(widest[0], source), max(widest[1], target))
        if batches and (len(batches[-1]) + 1) * sum(wider) <= batch_tokens:
            batches[-1].append(index)
            widest = wider
        else:
            batches.append([index])
            widest = (source, target)
    if rng is not None:
        rng.shuffle(batches)
    return batches


def epoch(
    examples: Sequence[Example],
    batch_tokens: int,
    seed: int,
    number: int,
    skip: int = 0,
    change: Callable[[Example, random.Random], Example] | None = None,
) -> Iterator[Batch]:
    """The batches of one pass over the examples, in an order that `seed` and `number` fix.

    Args:
        examples: what to learn from.
        batch_tokens: bound on a batch.
        seed: of the run.
        number: of the pass.
        skip: batches to leave out at the start, done before an interruption.
        change: what to make of each example in this pass; sizes must stay.
    """
    rng = random.Random(f"{seed}:{number}")
    batches = bucket([example.size for example in examples], batch_tokens, rng)
    for place, batch in enumerate(batches[skip:], start=skip):
        chosen = [examples[index] for index in batch]
        if change is not None:
            # of its own, so that a pass that goes on in the middle changes what is left alike
            draws = random.Random(f"{seed}:{number}:{place}")
            chosen = [change(example, draws) for example in chosen]
        yield collate(chosen)
