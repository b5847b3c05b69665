"""The corpus of a training run: checked pairs, tokenizers, examples, and messages about them."""

import functools
import hashlib
import random
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from regard import adaptation, table_files
from regard.alignment import Link
from regard.batching import Example, Examples, sizes_of
from regard.config import Config, TextConfig
from regard.errors import ConfigError, DataError, quantity
from regard.examples import (
    REMEDY,
    encode,
    encode_mapped,
    note_skipped,
    recombines_words,
    with_synthetic_examples,
)
from regard.guided_alignment import DEFAULT_WEIGHT, Guide
from regard.mapped_pairs import MappedExamples, MappedPairs
from regard.pairs import (
    PairLike,
    ParsedPairs,
    group_by_source,
    held_out_sources,
    pairs_from,
    read_pairs,
    require_named_columns,
    require_valid,
)
from regard.text import UNITS, Tokenizer, format_source
from regard.text.words import split_words

_BLEU_ORDER = 4
"""BLEU is 0 without a common sequence of this many words, even where every output is right."""


@dataclass(frozen=True)
class Corpus:
    """Training and validation examples, and the tokenizers of both sides."""

    train: Examples
    dev: list[Example]
    dev_sources: list[tuple[str, str | None]]
    """Distinct sources of the dev set and their features, in order."""
    dev_references: list[list[str]]
    """Distinct targets of each of these sources."""
    source: Tokenizer
    target: Tokenizer
    config: Config
    """The settings, with values that depend on the pairs or on other settings resolved."""
    notes: list[str]
    """Messages for the user, printed before training starts."""
    several_links: bool | None = None
    """Whether the links that guide the attention join a target word to several source words; None if no
    links do."""
    has_given_links: bool = False
    """Whether these links were given, and are not those of hidden Markov models."""
    varying: int = 0
    """Number of synthetic examples, at the end of `train`, that depend on links of hidden Markov models."""

    @property
    def max_source_length(self) -> int:
        """Number of tokens in the longest training source, without EOS."""
        return int(sizes_of(self.train)[:, 0].max()) - 1

    @property
    def max_target_length(self) -> int:
        """Number of tokens in the longest training target, without EOS."""
        return int(sizes_of(self.train)[:, 1].max()) - 1

    @property
    def metric(self) -> str:
        """Metric that `training.metric auto` stands for."""
        if not UNITS[self.target.unit].has_words:
            return "exact_match"
        lengths = [len(split_words(text)) for texts in self.dev_references for text in texts]
        return "bleu" if statistics.median(lengths) >= _BLEU_ORDER else "chrf"

    @functools.cached_property
    def normalized_references(self) -> list[list[str]]:
        """The references as the target tokenizer writes them, in its normal form and spacing."""
        detokenize = self.target.detokenize
        encodings = map(self.target.encode_batch, self.dev_references)
        return [[detokenize(encoding.tokens) for encoding in texts] for texts in encodings]

    @property
    def examples(self) -> list[str]:
        """Up to four dev sources with their features: one of median length, then shorter and longer ones."""
        lines = sorted({format_source(source) for source in self.dev_sources}, key=_by_length)
        chosen = [lines[len(lines) * eighth // 8] for eighth in (4, 2, 6, 7)]
        return list(dict.fromkeys(chosen))

    def fingerprint(self, copies: bool = True) -> str:
        """Return a hash of the training examples, with which a resumed run recognises them.

        Links and what depends on them are included only if they were given: those of hidden Markov models
        follow from the pairs, and may differ by rounding errors. Earlier versions, which store no
        fingerprint of the dev set, computed it without `copies`.
        """
        if isinstance(self.train, MappedExamples):
            return self.train.fingerprint()
        examples = (self.train[index] for index in range(len(self.train) - self.varying))
        if not self.has_given_links:
            examples = (example._replace(links=None) for example in examples)
        return _hash(_ids(examples if copies else (e._replace(copies=()) for e in examples)))

    def varying_fingerprint(self) -> str:
        """Return a hash of the training examples that depend on links of hidden Markov models."""
        last = range(len(self.train) - self.varying, len(self.train))
        return _hash(_ids(self.train[index] for index in last))

    def dev_fingerprint(self) -> str:
        """Return a hash of the validation examples: metrics on other examples cannot be compared."""
        return _hash([*_ids(self.dev), self.dev_sources, self.dev_references])


def make_corpus(
    config: Config,
    pairs: Iterable[PairLike] | ParsedPairs | None,
    dev: Iterable[PairLike] | ParsedPairs | None,
    tokenizers: tuple[Tokenizer, Tokenizer] | None = None,
    links: Iterable[Iterable[Link]] | None = None,
    adapt: bool = False,
    compute_links: bool = True,
) -> Corpus:
    """Read and check the pairs, train the tokenizers (unless given) and encode the pairs.

    Args:
        config: all settings; its files are read if no list is given.
        pairs: training pairs in memory, instead of `config.data.train`.
        dev: validation pairs in memory, instead of `config.data.dev`.
        tokenizers: source and target tokenizers of a model that is trained further.
        links: links of the training pairs in memory, instead of `config.data.train_links`.
        adapt: choose the settings that were not given from the pairs and the time budget.
        compute_links: compute the links that guide the attention if none are given; not needed for a check.

    Raises:
        ConfigError: there are no training pairs, or the settings are not suitable for them.
        DataError: lines cannot be used (and `data.bad_lines` is `stop`), or no pair is left.
    """
    notes: list[str] = []
    files = zip((pairs, dev), (config.data.train, config.data.dev), strict=True)
    require_named_columns(config.data, *(path for items, path in files if items is None))
    given_links = config.data.train_links if links is None else links
    is_guided = _check_links(pairs, config, given_links is not None)
    train_pairs = _read_train(pairs, config, notes)
    dev_pairs = _read(dev, config.data.dev, "dev", config, notes)
    _note_overlap(train_pairs, dev_pairs, notes)
    guide = None
    if given_links is not None:
        assert isinstance(train_pairs, ParsedPairs)  # _check_links has refused a table
        guide = Guide.of(given_links, train_pairs)
    if dev_pairs is None:
        seed = config.training.seed if config.data.dev_seed is None else config.data.dev_seed
        train_pairs, dev_pairs = _hold_out(train_pairs, seed)
        notes.append(
            f"dev: {quantity(len(dev_pairs.pairs), 'pair')} held out from the training pairs"
        )
    if adapt:
        texts = train_pairs.texts("source"), train_pairs.texts("target")
        found = adaptation.describe(*texts, config)
        config, reasons = adaptation.adapt(config, found)
        notes += reasons
    source, target = tokenizers or _train_tokenizers(train_pairs, config)
    target = target.in_order(config.model.right_to_left)
    _check_tokenizers(source, target, config)
    recombines = recombines_words(config, source, target)
    if recombines and isinstance(train_pairs, MappedPairs):
        train_pairs = train_pairs.in_memory()
    for side, tokenizer in (("source", source), ("target", target)):
        auto = getattr(config, side).unit == "auto" and not tokenizers
        notes.append(_describe_tokenizer(side, tokenizer, auto))
    has_given_links = guide is not None
    if (is_guided or recombines) and guide is None and compute_links:
        assert isinstance(train_pairs, ParsedPairs)  # _check_links has refused a table
        guide = _computed_guide(train_pairs, dev_pairs, source, target, config)
    if guide is not None and (is_guided or recombines):
        notes.append(_describe_links(guide, is_guided, recombines))
    train_examples, made = _train_examples(train_pairs, source, target, config, notes, guide)
    varying = made if recombines and not has_given_links else 0
    if guide is not None and not (is_guided or has_given_links):
        train_examples = [example._replace(links=None) for example in train_examples]
    dev_pairs, dev_examples = encode(dev_pairs, source, target, config, notes)
    sources, references = group_by_source(dev_pairs.pairs)
    config = _resolved(config, source, target, is_guided)
    # the links themselves take much memory
    several = guide.several if guide is not None and is_guided else None
    return Corpus(
        train_examples, dev_examples, sources, references, source, target, config, notes, several,
        has_given_links, varying,
    )  # fmt: skip


def _describe_tokenizer(side: str, tokenizer: Tokenizer, auto: bool) -> str:
    chosen = " (chosen from the data)" if auto else ""
    features = f", {len(tokenizer.features)} of them features" if tokenizer.features else ""
    return f"{side}: unit {tokenizer.unit}{chosen}, vocabulary of {len(tokenizer):,}{features}"


def _describe_links(guide: Guide, is_guided: bool, recombines: bool) -> str:
    count = sum(len(pair.possible) for pair in guide.lines)
    purposes = ["guide the attention"] * is_guided + ["recombine the pairs"] * recombines
    return f"{guide.name}: {quantity(count, 'link')} to {' and '.join(purposes)}"


def _train_examples(
    pairs: ParsedPairs | MappedPairs,
    source: Tokenizer,
    target: Tokenizer,
    config: Config,
    notes: list[str],
    guide: Guide | None,
) -> tuple[Examples, int]:
    """Return the training examples, and the number of the last ones that are synthetic.

    Sentences are not recombined without links, which a check of the pairs does not compute.
    """
    examples: Examples
    if isinstance(pairs, MappedPairs):
        examples = encode_mapped(pairs, source, target, config, notes)
    else:
        _, examples = encode(pairs, source, target, config, notes, guide)
    if not config.data.recombined_pairs:
        return examples, 0
    if guide is None and recombines_words(config, source, target):
        return examples, 0
    made = with_synthetic_examples(examples, source, target, config, notes)
    return made, len(made) - len(examples)


def _check_links(pairs: Any, config: Config, has_links: bool) -> bool:
    """Return whether links guide the attention; `has_links` means that there are given ones.

    Raises:
        ConfigError: no links can guide it, or the training pairs, of which `pairs` are those in memory,
            cannot have links.
    """
    is_guided = config.training.is_guided(has_links)
    if is_guided:
        config.model.require_probabilities()
    path, uses_links = config.data.train, is_guided or has_links
    if uses_links and pairs is None and path is not None and table_files.is_table(path):
        raise ConfigError(
            f"attention cannot be guided for a table, got {path}; give the pairs as a TSV file or as two "
            "parallel files, or leave out data.train_links and set training.guided_alignment 0"
        )
    return is_guided


def _computed_guide(
    parsed: ParsedPairs, dev: ParsedPairs, source: Tokenizer, target: Tokenizer, config: Config
) -> Guide:
    """Return the links of hidden Markov models.

    Raises:
        DataError: a pair is too long, which is found before the models are trained.
    """
    for pairs in (parsed, dev):
        encode(pairs, source, target, config, [])
    # the order of the target does not change its words, but probable jumps
    return Guide.computed(parsed, source, target.in_order(False), config.data.max_length)


def _train_tokenizers(
    parsed: ParsedPairs | MappedPairs, config: Config
) -> tuple[Tokenizer, Tokenizer]:
    if isinstance(parsed, MappedPairs):
        return parsed.train_tokenizers(config)
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
            f"the model to train further {has} source features, got "
            f"data.features_column {column}: {remedy}"
        )
    if config.model.copy and source.unit != target.unit:
        raise ConfigError(
            f"model.copy needs the same unit of text on both sides, found {source.unit} and "
            f"{target.unit}: set source.unit and target.unit"
        )


def _resolved(config: Config, source: Tokenizer, target: Tokenizer, is_guided: bool) -> Config:
    def resolve(settings: TextConfig, tokenizer: Tokenizer) -> TextConfig:
        names = ("unit", "normal_form", "lowercase", "match_vocabulary")
        return replace(settings, **{name: getattr(tokenizer, name) for name in names})

    training = config.training
    if is_guided and training.guided_alignment is None:
        training = replace(training, guided_alignment=DEFAULT_WEIGHT)
    return replace(
        config,
        training=training,
        model=config.model.resolved(),
        source=resolve(config.source, source),
        target=resolve(config.target, target),
    )


def _read_train(
    pairs: Iterable[PairLike] | ParsedPairs | None, config: Config, notes: list[str]
) -> ParsedPairs | MappedPairs:
    """Return the training pairs, memory-mapped if they are a table."""
    path = config.data.train
    if pairs is not None or path is None or not table_files.is_table(path):
        parsed = _read(pairs, path, "train", config, notes)
        if parsed is None:
            raise ConfigError(
                "there are no training pairs: set data.train, or pass a list of pairs"
            )
        return parsed
    mapped = MappedPairs(path, config.data)
    remedy = REMEDY if config.data.bad_lines == "stop" else None
    require_valid(path, mapped.unit, mapped.listed, mapped.bad, len(mapped), remedy)
    notes.append(f"train: {quantity(len(mapped), 'pair')} read from {path}")
    note_skipped(mapped.listed, mapped.bad, "train", mapped.unit, notes)
    return mapped


def _read(
    items: Iterable[PairLike] | ParsedPairs | None,
    path: str | None,
    name: str,
    config: Config,
    notes: list[str],
) -> ParsedPairs | None:
    in_memory = items is not None and not isinstance(items, ParsedPairs)
    if isinstance(items, ParsedPairs):
        parsed = items
    elif items is not None:
        parsed = pairs_from(items, name, config.data.features_column)
    elif path is not None:
        parsed = read_pairs(path, config.data)
    else:
        return None
    parsed.require_valid(REMEDY if config.data.bad_lines == "stop" else None)
    origin = "given in memory" if in_memory else f"read from {parsed.name}"
    notes.append(f"{name}: {quantity(len(parsed.pairs), 'pair')} {origin}")
    if parsed.extra_columns:
        lines = quantity(parsed.extra_columns, "line")
        notes.append(
            f"{name}: further columns ignored on {lines} (--data.features_column reads features)"
        )
    note_skipped(parsed.bad, len(parsed.bad), name, parsed.unit, notes)
    return parsed


def _hold_out(
    parsed: ParsedPairs | MappedPairs, seed: int
) -> tuple[ParsedPairs | MappedPairs, ParsedPairs]:
    """Hold out sources for validation, with all that a tokenizer may read alike; none is in both sets."""
    name, rest = f"{parsed.name} (held-out pairs)", f"{parsed.name} (pairs that are not held out)"
    if isinstance(parsed, MappedPairs):
        held_out = parsed.hold_out(seed)._replace(name=name)
        parsed.name = rest
        return parsed, held_out
    keys = {format_source(pair.key): pair.folded_key for pair in parsed.pairs}
    sources = sorted(keys)
    random.Random(seed).shuffle(sources)
    folded = [*dict.fromkeys(keys[source] for source in sources)]
    if len(folded) < 2:
        raise DataError(
            f"{parsed.name} contains only one source, so none can be held out for validation; give "
            "validation pairs (data.dev, in Python also the argument dev)"
        )
    chosen = set(folded[: held_out_sources(len(folded))])
    in_dev = [keys[format_source(pair.key)] in chosen for pair in parsed.pairs]
    train = [index for index, held in enumerate(in_dev) if not held]
    dev = [index for index, held in enumerate(in_dev) if held]
    return parsed.select(train)._replace(name=rest), parsed.select(dev)._replace(name=name)


def _note_overlap(
    train: ParsedPairs | MappedPairs, dev: ParsedPairs | None, notes: list[str]
) -> None:
    """Add a note on dev sources that are also in the training pairs, if these are in memory."""
    if dev is None or isinstance(train, MappedPairs):
        return
    sources = {pair.key for pair in dev.pairs}
    common = len(sources & {pair.key for pair in train.pairs})
    if common:
        notes.append(
            f"dev: {common:,} of {quantity(len(sources), 'distinct source')} "
            f"{'is' if common == 1 else 'are'} in the training pairs; results for "
            f"{'it' if common == 1 else 'them'} do not measure performance on unseen data"
        )


def _ids(examples: Iterable[Example]) -> Iterator[tuple[Any, ...]]:
    """Yield the ids of every example, with `copies` and `links` only where there are any."""
    return (tuple(part for part in e if part not in ((), None)) for e in examples)


def _hash(values: Iterable[Any]) -> str:
    """Return a hash of the list of these values, without holding its text in memory."""
    digest = hashlib.sha256(b"[")
    for index, value in enumerate(values):
        digest.update(f"{', ' if index else ''}{value!r}".encode())
    digest.update(b"]")
    return digest.hexdigest()[:16]


def _by_length(line: str) -> tuple[int, str]:
    return len(line), line
