"""Settings that follow from the pairs and the time budget, each with its reason."""

import dataclasses
import math
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import torch

from regard.config import GROUPS, Config, Unit
from regard.edit_alignment import in_same_order
from regard.errors import quantity
from regard.text import UNITS, choose_unit
from regard.text.units import SizedIterable, sample
from regard.text.words import split_words

_T = TypeVar("_T")

_MINUTES = 30.0
"""Time budget if none is given."""
_VALIDATIONS = 20
"""Validations in a run, roughly."""
_BATCHES = 20
"""Minimum number of batches in an epoch, unless they would be smaller than `_SMALLEST_BATCH` tokens."""
_SMALLEST_BATCH = 512


class _Size(NamedTuple):
    """Sizes of a recurrent model, and what goes with them."""

    embedding_dim: int
    encoder_dim: int
    encoder_layers: int
    decoder_dim: int
    optimizer: str
    adam_rate: float
    """Learning rate of Adam."""
    muon_rate: float
    batch_tokens: int
    """Maximum; with few pairs, batches are smaller."""
    tokens_per_second: float
    """Rough speed of training on one core."""


_SMALL = _Size(64, 128, 1, 128, "adam", 0.003, 0.003, 1500, 30_000)
_LARGE = _Size(128, 256, 2, 384, "adam", 0.0015, 0.006, 4096, 12_000)
_SUBWORDS = _Size(256, 256, 1, 384, "muon", 0.001, 0.004, 1500, 12_000)
_TRANSFORMER_SUBWORDS = _SUBWORDS._replace(batch_tokens=3000)
_FEWEST_PAIRS = 5000
"""Number of pairs below which a model is small, except for recurrent models for subwords."""
_FEWEST_MINUTES = 5.0
"""Time budget below which a model is small."""

_LEARNED = {"bpe", "unigram"}
"""Units of text that are learned from the pairs."""

_FEW_PAIRS = 1000
"""Number of pairs below which synthetic pairs are added, for words and their pronunciations."""
_SYNTHETIC_PAIRS = 3000
_FEW_SENTENCES = 20_000
"""The same for sentences, whose tokens are subwords on both sides."""
_SYNTHETIC_SENTENCES = 10_000

_MIXED_CASE = 0.05
"""Share of words in mixed case above which case distinguishes letters, as in transliterations."""

_DROPOUTS = ((5, 0.1), (10, 0.2), (30, 0.3), (300, 0.4))
"""Values below a number of epochs."""
_VOCABULARY_SIZES = ((5000, 2000), (50_000, 4000), (500_000, 8000))
"""Values below a number of pairs."""


class Statistics(NamedTuple):
    """What is counted in the training pairs; all but their number is counted in a sample of them."""

    pairs: int
    source_unit: Unit
    target_unit: Unit
    tokens: float
    """Mean number of source and target tokens of a pair, both EOS included; words for subwords."""
    characters: int
    """Number of different characters of the sources in NFC."""
    decomposed: int
    """The same in NFD."""
    mixed_case: float = 0.0
    """Share of the source words that are not in lower case, in upper case or capitalised."""
    same_order: bool = True
    """Whether few spellings and their phones are in the same order; not examined in other pairs."""


class Choice(NamedTuple):
    """Settings and the reason for their values."""

    values: dict[str, Any]
    """Values by name, such as `model.dropout`."""
    reason: str


def describe(sources: SizedIterable, targets: SizedIterable, config: Config) -> Statistics:
    """Return the statistics of the training pairs, from about 5,000 of them."""
    texts = sample(sources), sample(targets)
    given = config.source.unit, config.target.unit
    units: list[Unit] = [
        choose_unit(side) if unit == "auto" else unit
        for side, unit in zip(texts, given, strict=True)
    ]
    lengths = [
        len((UNITS[unit].split or split_words)(text)) + 1
        for side, unit in zip(texts, units, strict=True)
        for text in side
    ]
    forms = (unicodedata.normalize(form, "".join(texts[0])) for form in ("NFC", "NFD"))
    characters, decomposed = (len(set(form)) for form in forms)
    tokens = sum(lengths) / len(texts[0])
    words = [word for text in texts[0] for word in split_words(text)]
    mixed = sum(not _is_ordinary(word) for word in words) / max(1, len(words))
    source, target = units
    few = (source, target) == ("char", "whitespace") and len(sources) < _FEW_PAIRS
    same_order = not few or in_same_order(
        [unicodedata.normalize("NFD", text) for text in texts[0]],
        [text.split() for text in texts[1]],
    )
    return Statistics(
        len(sources), source, target, tokens, characters, decomposed, mixed, same_order
    )


def _is_ordinary(word: str) -> bool:
    """Return whether the case of a word can follow from its place in a text."""
    return word in (word.lower(), word.upper(), word.capitalize(), word.title())


def adapt(config: Config, statistics: Statistics) -> tuple[Config, list[str]]:
    """Return the settings, with those that were not given chosen for the pairs, and their reasons.

    A setting counts as given if its name was passed to the constructor of its group.
    """
    given = {f"{group}.{name}" for group in GROUPS for name in getattr(config, group).given}
    if "training.max_updates" in given:  # that is a budget, too
        given.add("training.max_minutes")
    if "training.learning_rate" in given:  # it is for the default optimiser
        given.add("training.optimizer")
    notes: list[str] = []
    for choose in (_budget, _text, _model, _optimizer, _training, _length):
        for values, reason in choose(config, statistics):
            chosen = {name: value for name, value in values.items() if name not in given}
            if chosen:
                config = _with(config, chosen)
                text = ", ".join(f"{name} {_format(value)}" for name, value in chosen.items())
                notes.append(f"{text}: {reason}")
    return config, notes


def _format(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value}".removesuffix(".0")


def _with(config: Config, values: dict[str, Any]) -> Config:
    for name, value in values.items():
        group, field = name.split(".")
        changed = dataclasses.replace(getattr(config, group), **{field: value})
        config = dataclasses.replace(config, **{group: changed})
    return config


def _budget(config: Config, statistics: Statistics) -> Iterator[Choice]:
    yield Choice({"training.max_minutes": _MINUTES}, "no budget is given")
    updates = max(1500, round(35 * math.sqrt(statistics.pairs)))
    yield Choice({"training.max_updates": updates}, _pairs(statistics))


def _text(config: Config, statistics: Statistics) -> Iterator[Choice]:
    source, target = statistics.source_unit, statistics.target_unit
    if (source, target) == ("char", "whitespace"):
        if statistics.mixed_case <= _MIXED_CASE:
            reason = "spellings in lower case, in upper case or capitalised"
            yield Choice({"source.lowercase": True}, reason)
        if statistics.pairs < _FEW_PAIRS and statistics.same_order:
            reason = f"{_pairs(statistics)} in the same order"
            yield Choice({"data.recombined_pairs": _SYNTHETIC_PAIRS}, reason)
    if {source, target} <= _LEARNED and statistics.pairs < _FEW_SENTENCES:
        reason = f"{_pairs(statistics)} of sentences"
        yield Choice({"data.recombined_pairs": _SYNTHETIC_SENTENCES}, reason)
    characters, decomposed = statistics.characters, statistics.decomposed
    if source == "char" and not config.model.copy and 2 * decomposed <= characters:
        reason = f"the sources have {characters:,} different characters, {decomposed:,} decomposed"
        yield Choice({"source.normal_form": "NFD"}, reason)
    for side, unit in (("source", source), ("target", target)):
        if unit in _LEARNED:
            size = _step(_VOCABULARY_SIZES, statistics.pairs, 16_000)
            yield Choice({f"{side}.vocabulary_size": size}, _pairs(statistics))


def _model(config: Config, statistics: Statistics) -> Iterator[Choice]:
    model = config.model.resolved()
    if model.kind == model.encoder == "rnn":
        size = _size(config, statistics)
        names = ("embedding_dim", "encoder_dim", "encoder_layers", "decoder_dim")
        values = {f"model.{name}": getattr(size, name) for name in names}
        yield Choice(
            {**values, "model.attention_dim": size.encoder_dim}, _scale(config, statistics)
        )
        if size is _SUBWORDS and statistics.target_unit in _LEARNED:
            yield Choice({"model.tie_embeddings": True}, f"target unit {statistics.target_unit}")


def _optimizer(config: Config, statistics: Statistics) -> Iterator[Choice]:
    if config.model.kind == "rnn":
        size, reason = _size_of_model(config, statistics)
        yield Choice({"training.optimizer": size.optimizer}, reason)


def _training(config: Config, statistics: Statistics) -> Iterator[Choice]:
    size, reason = _size_of_model(config, statistics)
    epoch = _tokens(config, statistics)
    tokens = max(_SMALLEST_BATCH, min(size.batch_tokens, int(epoch / _BATCHES) // 100 * 100))
    yield Choice({"training.batch_tokens": tokens}, f"about {epoch:,.0f} tokens")
    if config.model.kind == "rnn":
        rate = size.muon_rate if config.training.optimizer == "muon" else size.adam_rate
        yield Choice({"training.learning_rate": rate}, reason)
    if size is _SMALL:
        schedule = {"training.schedule": "constant", "training.cooldown": 0.4}
        yield Choice(schedule, reason)
    if size in (_LARGE, _SUBWORDS):
        yield Choice({"training.cooldown": 0.4}, reason)
    if has_fast_bfloat16(config):
        yield Choice({"training.precision": "bfloat16"}, "this device computes it faster")


def _length(config: Config, statistics: Statistics) -> Iterator[Choice]:
    """Choose what depends on the number of updates that the budget allows."""
    training = config.training
    speed = _size_of_model(config, statistics)[0].tokens_per_second
    tokens = training.batch_tokens * training.gradient_accumulation_steps
    updates = min(training.max_updates, 60 * _minutes(config) * speed / tokens)
    epochs = updates * tokens / _tokens(config, statistics)
    yield Choice(
        {"model.dropout": _step(_DROPOUTS, epochs, 0.5)},
        f"about {quantity(round(epochs), 'epoch')}",
    )
    every = min(500, max(50, round(updates / _VALIDATIONS / 50) * 50))
    yield Choice({"training.validate_every": every}, f"about {quantity(round(updates), 'update')}")


def _size(config: Config, statistics: Statistics) -> _Size:
    if _minutes(config) < _FEWEST_MINUTES:
        return _SMALL
    has_subwords = _has_subwords(statistics)
    if has_subwords and config.model.kind == "rnn":
        return _SUBWORDS
    if statistics.pairs < _FEWEST_PAIRS:
        return _SMALL
    return _TRANSFORMER_SUBWORDS if has_subwords else _LARGE


def _size_of_model(config: Config, statistics: Statistics) -> tuple[_Size, str]:
    """Return the size that a model has, and the reason.

    The sizes of a recurrent model may be given, also by `--init-from`: then it is the nearest one.
    """
    size, model = _size(config, statistics), config.model.resolved()
    larger = _SUBWORDS if _has_subwords(statistics) else _LARGE

    def distance(other: _Size) -> float:
        encoder = abs(math.log(model.encoder_dim / other.encoder_dim))
        return encoder + abs(math.log(model.decoder_dim / other.decoder_dim))

    nearest = min((size, _SMALL, larger), key=distance)
    if nearest is size or not model.kind == model.encoder == "rnn":
        return size, _scale(config, statistics)
    return nearest, f"encoder_dim {model.encoder_dim} and decoder_dim {model.decoder_dim}"


def _has_subwords(statistics: Statistics) -> bool:
    return bool({statistics.source_unit, statistics.target_unit} & _LEARNED)


def _tokens(config: Config, statistics: Statistics) -> float:
    """Return the number of tokens of an epoch, including those of synthetic pairs."""
    return (statistics.pairs + config.data.recombined_pairs) * statistics.tokens


def _minutes(config: Config) -> float:
    return config.training.max_minutes or math.inf


def _scale(config: Config, statistics: Statistics) -> str:
    minutes = config.training.max_minutes
    budget = "" if minutes is None else f" and {minutes:g} minute{'' if minutes == 1 else 's'}"
    return f"{_pairs(statistics)}{budget}"


def _pairs(statistics: Statistics) -> str:
    return quantity(statistics.pairs, "pair")


def _step(steps: Sequence[tuple[int, _T]], number: int | float, otherwise: _T) -> _T:
    """Return the value of the first step above the number."""
    return next((value for limit, value in steps if number < limit), otherwise)


def has_fast_bfloat16(config: Config) -> bool:
    """Return whether the device is a GPU with bfloat16, or a CPU whose vectors have 512 bits."""
    if config.device in ("auto", "cuda") and torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    is_cpu = config.device == "cpu" or not torch.backends.mps.is_available()
    return is_cpu and torch.backends.cpu.get_cpu_capability().startswith("AVX512")
