"""From pairs to a corpus: lines checked, tokenizers learned, everything counted and said."""

import hashlib
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from regard.config import Config, TextConfig
from regard.copy_mechanism import copies_of, extended_ids
from regard.data import BadLine, Example, Pairs, pairs_from, read_pairs
from regard.errors import ConfigError, DataError
from regard.text import EOS, Encoding, Tokenizer, unknown_tokens_message

_MEND = "mend them, or leave them out with --data.bad_lines skip"


@dataclass(frozen=True)
class Corpus:
    """What a model learns from and is chosen by."""

    train: list[Example]
    dev: list[Example]
    dev_sources: list[str]
    """Distinct sources of dev, in order."""
    dev_references: list[list[str]]
    """The targets of each of them."""
    source: Tokenizer
    target: Tokenizer
    notes: list[str]
    """What a person should know before training starts, a line each."""

    @property
    def longest_source(self) -> int:
        """Symbols of the longest training source, without its end symbol."""
        return max(len(example.source) for example in self.train) - 1

    @property
    def longest_target(self) -> int:
        """Symbols of the longest training target."""
        return max(len(example.target) for example in self.train)

    @property
    def example(self) -> str:
        """A dev source of middling length."""
        sources = sorted(self.dev_sources, key=len)
        return sources[len(sources) // 2]

    def fingerprint(self) -> str:
        """A hash of the training examples, to know them again."""
        text = repr([(example.source, example.target) for example in self.train])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def make_corpus(
    config: Config,
    pairs: Sequence[tuple[str, str]] | None,
    dev: Sequence[tuple[str, str]] | None,
    tokenizers: tuple[Tokenizer, Tokenizer] | None = None,
) -> Corpus:
    """Read and check the pairs, learn the tokenizers (unless given) and encode.

    Args:
        config: the settings; its files are read where no list is given.
        pairs: training pairs in memory, instead of `config.data.train`.
        dev: validation pairs in memory, instead of `config.data.dev`.
        tokenizers: of source and target, from a folder that is trained further.

    Raises:
        ConfigError: there is nothing to train on.
        DataError: lines cannot be used (and `data.bad_lines` is stop), or none is left.
    """
    notes: list[str] = []
    train_pairs = _read(pairs, config.data.train, "train", config, notes)
    if train_pairs is None:
        raise ConfigError("there is nothing to train on: give --data.train F, or a list of pairs")
    dev_pairs = _read(dev, config.data.dev, "dev", config, notes)
    if dev_pairs is None:
        train_pairs, dev_pairs = _hold_out(train_pairs, config.training.seed, notes)
    source, target = tokenizers or (
        Tokenizer.train(
            [pair.source for pair in train_pairs.pairs],
            config.source,
            features=config.data.features_column is not None,
        ),
        Tokenizer.train([pair.target for pair in train_pairs.pairs], config.target),
    )
    _check_tokenizers(source, target, config)
    for side, tokenizer, settings in (
        ("source", source, config.source),
        ("target", target, config.target),
    ):
        found = " (found from the data)" if settings.unit == "auto" and not tokenizers else ""
        tags = f", {len(tokenizer.features)} of them features" if tokenizer.features else ""
        notes.append(
            f"{side}: unit {tokenizer.unit}{found}, vocabulary of {len(tokenizer):,}{tags}"
        )
    train_pairs, train_examples = _encode(train_pairs, source, target, config, notes)
    dev_pairs, dev_examples = _encode(dev_pairs, source, target, config, notes)
    references: dict[str, list[str]] = {}
    for pair in dev_pairs.pairs:
        references.setdefault(pair.source, []).append(pair.target)
    return Corpus(
        train_examples,
        dev_examples,
        list(references),
        list(references.values()),
        source,
        target,
        notes,
    )


def _check_tokenizers(source: Tokenizer, target: Tokenizer, config: Config) -> None:
    column = config.data.features_column
    if (column is None) != (source.features is None):
        have, give = ("has", "give it") if column is None else ("has no", "leave it out")
        raise ConfigError(
            f"the model that is trained further {have} features of the source, got "
            f"data.features_column {column}: {give}"
        )
    if config.model.copy and source.unit != target.unit:
        raise ConfigError(
            f"model.copy needs one unit of text on both sides, found {source.unit} and "
            f"{target.unit}: set --source.unit and --target.unit"
        )


def resolved(config: Config, corpus: Corpus) -> Config:
    """The settings with what was found from the data filled in."""

    def settle(settings: TextConfig, tokenizer: Tokenizer) -> TextConfig:
        return replace(
            settings,
            unit=tokenizer.unit,
            normal_form=tokenizer.normal_form,
            lowercase=tokenizer.lowercase,
        )

    return replace(
        config,
        model=config.model.resolved(),
        source=settle(config.source, corpus.source),
        target=settle(config.target, corpus.target),
    )


def _read(
    items: Sequence[tuple[str, str]] | None,
    path: str | None,
    name: str,
    config: Config,
    notes: list[str],
) -> Pairs | None:
    if items is None and path is None:
        return None
    found = (
        pairs_from(items, name)
        if items is not None
        else read_pairs(str(path), config.data.features_column)
    )
    if config.data.bad_lines == "stop":
        found.require_good(_MEND)
    if not found.pairs:
        raise DataError(f"{found.name} holds no pair; expected lines of source TAB target")
    notes.append(f"{name}: {len(found.pairs):,} pairs read from {found.name}")
    if found.extra_columns:
        notes.append(f"{name}: further columns ignored on {found.extra_columns:,} lines")
    _say_skipped(found.bad, name, notes)
    return found


def _say_skipped(bad: Sequence[BadLine], name: str, notes: list[str]) -> None:
    if bad:
        shown = "; ".join(f"line {number} {reason}" for number, reason in bad[:5])
        more = "; …" if len(bad) > 5 else ""
        notes.append(f"{name}: {len(bad):,} lines skipped ({shown}{more})")


def _hold_out(found: Pairs, seed: int, notes: list[str]) -> tuple[Pairs, Pairs]:
    """Split off sources for validation; no source stands in both parts."""
    sources = sorted({pair.source for pair in found.pairs})
    if len(sources) < 2:
        raise DataError(
            f"{found.name} holds one source only, so none can be held out for validation; give "
            "--data.dev F"
        )
    random.Random(seed).shuffle(sources)
    held = set(sources[: min(1000, max(1, len(sources) // 20))])
    parts = []
    for inside in (False, True):
        chosen = [i for i, pair in enumerate(found.pairs) if (pair.source in held) == inside]
        parts.append(
            found._replace(
                pairs=[found.pairs[i] for i in chosen], numbers=[found.numbers[i] for i in chosen]
            )
        )
    notes.append(f"dev: {len(parts[1].pairs):,} pairs held out from the training pairs")
    return parts[0], parts[1]


def _encode(
    found: Pairs, source: Tokenizer, target: Tokenizer, config: Config, notes: list[str]
) -> tuple[Pairs, list[Example]]:
    sources = source.encode_batch([pair.source for pair in found.pairs])
    targets = target.encode_batch([pair.target for pair in found.pairs])
    limit, bad = config.data.max_length, []
    for number, left, right in zip(found.numbers, sources, targets, strict=True):
        for side, length in (("source", len(left.ids)), ("target", len(right.ids))):
            if length > limit:
                bad.append(BadLine(number, f"has a {side} of {length} symbols, limit {limit}"))
                break
    long = {number for number, _ in bad}
    kept = [place for place, number in enumerate(found.numbers) if number not in long]
    good = found._replace(pairs=[found.pairs[i] for i in kept], bad=bad)
    if bad and config.data.bad_lines == "stop":
        good.require_good(f"raise --data.max_length, {_MEND}")
    if not kept:
        raise DataError(f"{found.name}: every pair is longer than --data.max_length {limit}")
    _say_skipped(bad, found.name, notes)
    for side, encodings in (("source", sources), ("target", targets)):
        _say_unknown(found.name, side, [encodings[place] for place in kept], notes)
    if not config.model.copy:
        return good, [Example([*sources[place].ids, EOS], targets[place].ids) for place in kept]
    examples: list[Example] = []
    for place in kept:
        copies = copies_of(sources[place], target)
        ids = extended_ids(targets[place], copies, len(target))
        examples.append(Example([*sources[place].ids, EOS], ids, copies.ids))
    return good, examples


def _say_unknown(name: str, side: str, encodings: Sequence[Encoding], notes: list[str]) -> None:
    unknown = Counter(symbol for encoding in encodings for symbol in encoding.unknown)
    if unknown:
        notes.append(f"{name}: {side} {unknown_tokens_message(unknown)}")
