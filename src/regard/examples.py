"""The examples of a corpus: tokenised pairs without those that are too long, and synthetic ones."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from regard.batching import Example, Examples
from regard.config import Config
from regard.copy_mechanism import make_example
from regard.errors import DataError, quantity
from regard.guided_alignment import Guide
from regard.mapped_pairs import MappedExamples, MappedPairs
from regard.pairs import MAX_LISTED, BadLine, ParsedPairs, require_valid
from regard.recombination import recombine
from regard.text import UNITS, Tokenizer, unknown_tokens_message

REMEDY = "correct them, or skip them with --data.bad_lines skip"
"""What to do about lines that cannot be used."""


def encode(
    parsed: ParsedPairs,
    source: Tokenizer,
    target: Tokenizer,
    config: Config,
    notes: list[str],
    guide: Guide | None = None,
) -> tuple[ParsedPairs, list[Example]]:
    """Tokenize the pairs; leave out those that are too long, in both results."""
    sources = source.encode_batch([pair.key for pair in parsed.pairs])
    targets = target.encode_batch([pair.target for pair in parsed.pairs])
    limit = config.data.max_length
    indices: list[int] = []
    bad: list[BadLine] = []
    for index, number in enumerate(parsed.numbers):
        reason = _too_long(len(sources[index].ids), len(targets[index].ids), limit)
        if reason:
            bad.append(BadLine(number, reason))
        else:
            indices.append(index)
    parsed = parsed.select(indices)._replace(bad=bad)
    _check_long(parsed.name, parsed.unit, bad, len(bad), len(indices), config, notes)
    for side, encodings in (("source", sources), ("target", targets)):
        known = [encodings[index] for index in indices]
        unknown = Counter(token for e in known for token in (*e.unknown, *e.left_out))
        if unknown:
            notes.append(f"{parsed.name}: {side} {unknown_tokens_message(unknown)}")
    copy = config.model.copy
    examples = [make_example(sources[i], targets[i], target, copy) for i in indices]
    if guide is not None:
        for example, index in enumerate(indices):
            words = source.words_of(sources[index]), target.words_of(targets[index])
            found = guide.token_links(parsed.numbers[example], parsed.pairs[example], *words)
            examples[example] = examples[example]._replace(links=found)
    return parsed, examples


def with_synthetic_examples(
    examples: Examples, source: Tokenizer, target: Tokenizer, config: Config, notes: list[str]
) -> list[Example]:
    """Return the examples, in memory, and those that `data.recombined_pairs` asks for."""
    real = [examples[index] for index in range(len(examples))]
    ordered = [*map(_reversed, real)] if config.model.right_to_left else real
    first_feature = len(source) - len(source.features) if source.features else None
    count, seed = config.data.recombined_pairs, config.training.seed
    by_links = recombines_words(config, source, target)
    made = recombine(ordered, count, seed, len(target), first_feature, by_links)
    made = [*map(_reversed, made)] if config.model.right_to_left else made
    limit = config.data.max_length
    made = [e for e in made if not _too_long(e.size[0] - 1, e.size[1] - 1, limit)]
    notes.append(f"train: {quantity(len(made), 'synthetic pair')} recombined from these pairs")
    return real + made


def recombines_words(config: Config, source: Tokenizer, target: Tokenizer) -> bool:
    """Return whether pairs are recombined by links between words; other tokens are aligned by edit operations."""
    has_words = all(UNITS[tokenizer.unit].has_words for tokenizer in (source, target))
    return config.data.recombined_pairs > 0 and has_words


def _reversed(example: Example) -> Example:
    """Return an example with its target in the opposite order."""
    links, last = example.links, len(example.target) - 1
    if links is not None:
        links = [link._replace(target=last - link.target) for link in links]
    return example._replace(target=example.target[::-1], links=links)


def encode_mapped(
    pairs: MappedPairs, source: Tokenizer, target: Tokenizer, config: Config, notes: list[str]
) -> MappedExamples:
    """Tokenize the pairs; leave out those that are too long."""
    examples = pairs.encode(source, target, config.model.copy)
    limit = config.data.max_length
    lengths = examples.sizes - 1  # without EOS
    long = (lengths > limit).any(axis=1)
    bad = int(np.count_nonzero(long))
    listed = [
        BadLine(
            int(examples.rows[index]) + 1,
            _too_long(int(lengths[index, 0]), int(lengths[index, 1]), limit),
        )
        for index in np.flatnonzero(long)[:MAX_LISTED]
    ]
    _check_long(pairs.name, pairs.unit, listed, bad, len(examples) - bad, config, notes)
    if bad:
        examples = examples.select(np.flatnonzero(~long))
    for side, unknown in zip(("source", "target"), examples.unknown(), strict=True):
        if unknown:
            notes.append(f"{pairs.name}: {side} tokens not in the vocabulary: {unknown:,}")
    return examples


def _too_long(source: int, target: int, limit: int) -> str:
    """Return why a pair with these lengths cannot be used; "" for a valid pair."""
    for side, length in (("source", source), ("target", target)):
        if length > limit:
            return f"has a {side} of {length} tokens, above the limit of {limit}"
    return ""


def _check_long(
    name: str,
    unit: str,
    listed: Sequence[BadLine],
    bad: int,
    valid: int,
    config: Config,
    notes: list[str],
) -> None:
    """Raise a DataError or add a note if pairs are too long."""
    if bad and config.data.bad_lines == "stop":
        remedy = f"raise data.max_length, {REMEDY}"
        require_valid(name, unit, listed, bad, valid, remedy)
    if not valid:
        limit = config.data.max_length
        raise DataError(f"{name}: every pair is longer than data.max_length {limit}; raise it")
    note_skipped(listed, bad, name, unit, notes)


def note_skipped(
    listed: Sequence[BadLine], bad: int, name: str, unit: str, notes: list[str]
) -> None:
    """Add a note on the lines that are skipped, if there are any."""
    if bad:
        examples = "; ".join(f"{unit} {number} {reason}" for number, reason in listed[:5])
        more = "; …" if bad > 5 else ""
        notes.append(f"{name}: {quantity(bad, unit)} skipped ({examples}{more})")
