"""The corpus of a training run: checked pairs, tokenizers, examples, and messages about them."""

import hashlib
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from regard.batching import Example
from regard.config import Config, TextConfig
from regard.copy_mechanism import copies_of, extended_ids
from regard.errors import ConfigError, DataError
from regard.metrics import group_by_source
from regard.pairs import BadLine, PairLike, ParsedPairs, pairs_from, read_pairs
from regard.text import EOS, Tokenizer, format_source, unknown_tokens_message

_REMEDY = "correct them, or skip them with --data.bad_lines skip"


@dataclass(frozen=True)
class Corpus:
    """Training and validation examples, and the tokenizers of both sides."""

    train: list[Example]
    dev: list[Example]
    dev_sources: list[tuple[str, str | None]]
    """Distinct sources of the dev set and their features, in order."""
    dev_references: list[list[str]]
    """Distinct targets of each of them."""
    source: Tokenizer
    target: Tokenizer
    notes: list[str]
    """Messages for the user, printed before training starts."""

    @property
    def max_source_length(self) -> int:
        """Number of tokens of the longest training source, without EOS."""
        return max(len(example.source) for example in self.train) - 1

    @property
    def max_target_length(self) -> int:
        """Number of tokens of the longest training target."""
        return max(len(example.target) for example in self.train)

    @property
    def examples(self) -> list[str]:
        """Up to four dev sources, with their features: of median length first, then shorter and longer."""
        lines = sorted({format_source(source) for source in self.dev_sources}, key=_by_length)
        chosen = [lines[len(lines) * eighth // 8] for eighth in (4, 2, 6, 7)]
        return list(dict.fromkeys(chosen))

    def fingerprint(self) -> str:
        """Return a hash of the training examples, by which a resumed run recognises them."""
        text = repr([(example.source, example.target) for example in self.train])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def make_corpus(
    config: Config,
    pairs: Sequence[PairLike] | None,
    dev: Sequence[PairLike] | None,
    tokenizers: tuple[Tokenizer, Tokenizer] | None = None,
) -> Corpus:
    """Read and check the pairs, train the tokenizers (unless given) and encode.

    Args:
        config: all settings; its files are read where no list is given.
        pairs: training pairs in memory, instead of `config.data.train`.
        dev: validation pairs in memory, instead of `config.data.dev`.
        tokenizers: source and target tokenizers of a model that is trained further.

    Raises:
        ConfigError: there are no training pairs, or the settings are not suitable for them.
        DataError: lines cannot be used (and `data.bad_lines` is stop), or no pair is left.
    """
    notes: list[str] = []
    train_pairs = _read(pairs, config.data.train, "train", config, notes)
    if train_pairs is None:
        raise ConfigError("there is nothing to train on: give --data.train F, or a list of pairs")
    dev_pairs = _read(dev, config.data.dev, "dev", config, notes)
    if dev_pairs is None:
        train_pairs, dev_pairs = _hold_out(train_pairs, config.training.seed, notes)
    source, target = tokenizers or _train_tokenizers(train_pairs, config)
    _check_tokenizers(source, target, config)
    for side, tokenizer in (("source", source), ("target", target)):
        auto = getattr(config, side).unit == "auto" and not tokenizers
        chosen = " (chosen from the data)" if auto else ""
        features = f", {len(tokenizer.features)} of them features" if tokenizer.features else ""
        notes.append(
            f"{side}: unit {tokenizer.unit}{chosen}, vocabulary of {len(tokenizer):,}{features}"
        )
    _, train_examples = _encode(train_pairs, source, target, config, notes)
    dev_pairs, dev_examples = _encode(dev_pairs, source, target, config, notes)
    sources, references = group_by_source((pair.key, pair.target) for pair in dev_pairs.pairs)
    return Corpus(train_examples, dev_examples, sources, references, source, target, notes)


def _train_tokenizers(parsed: ParsedPairs, config: Config) -> tuple[Tokenizer, Tokenizer]:
    sources, targets, features = zip(*parsed.pairs, strict=True)
    has_features = config.data.features_column is not None
    return (
        Tokenizer.train(sources, config.source, features if has_features else None),
        Tokenizer.train(targets, config.target),
    )


def _check_tokenizers(source: Tokenizer, target: Tokenizer, config: Config) -> None:
    column = config.data.features_column
    if (column is None) != (source.features is None):
        has, remedy = ("has", "set it") if column is None else ("has no", "leave it out")
        raise ConfigError(
            f"the model that is trained further {has} features of the source, got "
            f"data.features_column {column}: {remedy}"
        )
    if config.model.copy and source.unit != target.unit:
        raise ConfigError(
            f"model.copy needs one unit of text on both sides, found {source.unit} and "
            f"{target.unit}: set --source.unit and --target.unit"
        )


def resolve_config(config: Config, corpus: Corpus) -> Config:
    """Return the settings with every value that depends on the data or on other settings."""

    def resolve(settings: TextConfig, tokenizer: Tokenizer) -> TextConfig:
        names = ("unit", "normal_form", "lowercase", "match_vocabulary")
        return replace(settings, **{name: getattr(tokenizer, name) for name in names})

    return replace(
        config,
        model=config.model.resolved(),
        source=resolve(config.source, corpus.source),
        target=resolve(config.target, corpus.target),
    )


def _read(
    items: Sequence[PairLike] | None,
    path: str | None,
    name: str,
    config: Config,
    notes: list[str],
) -> ParsedPairs | None:
    if items is not None:
        parsed = pairs_from(items, name)
    elif path is not None:
        parsed = read_pairs(path, config.data.features_column)
    else:
        return None
    parsed.require_valid(_REMEDY if config.data.bad_lines == "stop" else None)
    notes.append(f"{name}: {len(parsed.pairs):,} pairs read from {parsed.name}")
    if parsed.extra_columns:
        notes.append(f"{name}: further columns ignored on {parsed.extra_columns:,} lines")
    _note_skipped(parsed.bad, name, notes)
    return parsed


def _note_skipped(bad: Sequence[BadLine], name: str, notes: list[str]) -> None:
    if bad:
        examples = "; ".join(f"line {number} {reason}" for number, reason in bad[:5])
        more = "; …" if len(bad) > 5 else ""
        notes.append(f"{name}: {len(bad):,} lines skipped ({examples}{more})")


def _hold_out(parsed: ParsedPairs, seed: int, notes: list[str]) -> tuple[ParsedPairs, ParsedPairs]:
    """Hold out sources for validation; no source is in both sets."""
    sources = sorted({format_source(pair.key) for pair in parsed.pairs})
    if len(sources) < 2:
        raise DataError(
            f"{parsed.name} holds one source only, so none can be held out for validation; give "
            "--data.dev F"
        )
    random.Random(seed).shuffle(sources)
    held_out = set(sources[: min(1000, max(1, len(sources) // 20))])
    in_dev = [format_source(pair.key) in held_out for pair in parsed.pairs]
    notes.append(f"dev: {sum(in_dev):,} pairs held out from the training pairs")
    train = [index for index, dev in enumerate(in_dev) if not dev]
    return parsed.select(train), parsed.select([index for index, dev in enumerate(in_dev) if dev])


def _encode(
    parsed: ParsedPairs, source: Tokenizer, target: Tokenizer, config: Config, notes: list[str]
) -> tuple[ParsedPairs, list[Example]]:
    """Tokenize the pairs; leave out those that are too long."""
    sources = source.encode_batch([pair.key for pair in parsed.pairs])
    targets = target.encode_batch([pair.target for pair in parsed.pairs])
    limit = config.data.max_length
    indices: list[int] = []
    bad: list[BadLine] = []
    for index, number in enumerate(parsed.numbers):
        lengths = {"source": len(sources[index].ids), "target": len(targets[index].ids)}
        too_long = [f"{side} of {length}" for side, length in lengths.items() if length > limit]
        if too_long:
            bad.append(BadLine(number, f"has a {too_long[0]} tokens, limit {limit}"))
        else:
            indices.append(index)
    parsed = parsed.select(indices)._replace(bad=bad)
    if config.data.bad_lines == "stop":
        parsed.require_valid(f"raise --data.max_length, {_REMEDY}")
    if not indices:
        raise DataError(f"{parsed.name}: every pair is longer than --data.max_length {limit}")
    _note_skipped(bad, parsed.name, notes)
    for side, encodings in (("source", sources), ("target", targets)):
        unknown = Counter(token for index in indices for token in encodings[index].unknown)
        if unknown:
            notes.append(f"{parsed.name}: {side} {unknown_tokens_message(unknown)}")
    examples: list[Example] = []
    for index in indices:
        example = Example([*sources[index].ids, EOS], targets[index].ids)
        if config.model.copy:
            copies = copies_of(sources[index], target)
            target_ids = extended_ids(targets[index], copies, len(target))
            example = example._replace(target=target_ids, copies=copies.ids)
        examples.append(example)
    return parsed, examples


def _by_length(line: str) -> tuple[int, str]:
    return len(line), line
