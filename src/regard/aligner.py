"""Alignment of parallel text by two models, which are trained on it in opposite directions.

Links of hidden Markov models, which need no neural network, guide the attention of both models.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from regard import checkpoints
from regard.alignment import Alignment, Link, read_gold
from regard.config import Config, Symmetrization, Unit, from_dict, require_groups
from regard.errors import ConfigError, DataError
from regard.examples import REMEDY, encode
from regard.files import atomic_write, remove_temporary_files, require_empty_folder
from regard.lines import chunks_of
from regard.pairs import (
    Pair,
    PairLike,
    ParsedPairs,
    pairs_from,
    read_pairs,
    refuse_pipes,
    require_named_columns,
    to_pairs,
)
from regard.setting_checks import check_positive
from regard.symmetrization import symmetrize
from regard.text import Tokenizer
from regard.training import train
from regard.translator import Translator
from regard.word_links import hidden_markov_links

GUIDE, LINKS = "guide.pharaoh", "links.pharaoh"
"""Files with the links of hidden Markov models, and with those that result."""
_NO_FEATURES = "features of the source cannot be aligned"
_CHUNK = 1000
"""Maximum number of pairs that two models align between two writes."""


def train_both(
    out: str | Path,
    pairs: Iterable[PairLike] | ParsedPairs,
    dev: Iterable[PairLike] | ParsedPairs | None = None,
    *,
    max_minutes: float | None = None,
    resume: bool = False,
    device: str = "auto",
    command: str | None = None,
    **settings: Mapping[str, Any],
) -> tuple[Translator, Translator]:
    """Train a model from source to target in `OUT/forward`, and its reverse in `OUT/reverse`.

    Unless `training.guided_alignment` is 0, the attention of both is guided by the links in
    `data.train_links` or, by default, by those of hidden Markov models that are trained on the same pairs
    (`HiddenMarkovAligner`), which are written to `OUT/guide.pharaoh`.

    Args:
        out: the folder.
        pairs: training pairs, (source, target), or the result of `read_pairs`; those that are too long are
            skipped unless `data.bad_lines` is given as `stop`.
        dev: validation pairs; if None, some of the training pairs are held out.
        max_minutes: time budget for both models, of which each has half; if None, that of the settings
            for each.
        resume: continue, as `train` does.
        device: `auto`, `cpu`, `cuda` or `mps`.
        command: the command that started the training, recorded in the model cards.
        settings: groups of settings, as for `fit`, for the model from source to target; in the reverse,
            the settings of source and target are exchanged, as are the links of `data.train_links`.

    Raises:
        RegardError: settings, pairs or folders cannot be used.
    """
    require_groups(settings)
    from_dict({"data": settings.get("data", {})})
    data: dict[str, Any] = {"bad_lines": "skip", **settings.get("data", {})}
    _check(data, settings.get("model", {}))
    guide = guide_of(out, settings)
    if guide is not None:
        data["train_links"] = str(guide)
    groups: dict[str, Mapping[str, Any]] = {**settings, "data": data}
    if max_minutes is not None:
        groups["training"] = {**settings.get("training", {}), "max_minutes": _half(max_minutes)}

    def run(name: str, swap: bool, links: Iterable[Iterable[Link]] | None = None) -> Translator:
        config = from_dict({**groups, "out": str(Path(out) / name), "device": device})
        ordered = [None if each is None else _ordered(each, swap) for each in (checked, dev_pairs)]
        return train(config, *ordered, resume=resume, command=command, links=links)

    checked = pairs if isinstance(pairs, ParsedPairs) else to_pairs(pairs)
    dev_pairs = dev if dev is None or isinstance(dev, ParsedPairs) else to_pairs(dev)
    _refuse_features(checked, dev_pairs)
    config = from_dict({**groups, "device": device})
    config.check_groups()
    if dev_pairs is None and config.data.dev is not None:
        require_named_columns(config.data, config.data.dev)
        dev_pairs = read_pairs(config.data.dev, config.data)
    if _has_begun(out) and not resume:
        remedy = "choose another folder (out), or continue its training (resume)"
        require_empty_folder(Path(out) / "forward", remedy)
    # held until the reverse model is trained: another command would replace or remove the guide
    with checkpoints.locked(Path(out) / "reverse"):
        remove_temporary_files(Path(out), (GUIDE, LINKS))
        if guide is not None and not _has_begun(out):
            parsed = _parsed(checked, "train")
            parsed.require_valid(None)
            # without the held-out pairs, the model could choose others
            for side, unit in _write_guide(guide, parsed, dev_pairs, config).items():
                groups[side] = {**settings.get(side, {}), "unit": unit}
        try:
            forward = run("forward", swap=False)
        except BaseException:  # also a signal: the command can be repeated
            if guide is not None and not _has_begun(out):
                guide.unlink(missing_ok=True)
            raise
    # both models split a text into the same words
    units = forward.trained.config.source.unit, forward.trained.config.target.unit
    source, target = {**settings.get("source", {})}, settings.get("target", {})
    source.pop("match_vocabulary", None)
    groups |= {"source": {**target, "unit": units[1]}, "target": {**source, "unit": units[0]}}
    columns = config.data.source_column, config.data.target_column
    data |= {"source_column": columns[1], "target_column": columns[0]}
    # a model that is resumed has its budget from its checkpoint, from which the other one begins
    budget = forward.trained.config.training
    limits = {"max_minutes": budget.max_minutes, "max_updates": budget.max_updates}
    groups["training"] = {**limits, **groups.get("training", {})}
    links = data.pop("train_links", None)
    return forward, run("reverse", swap=True, links=None if links is None else _swapped(links))


def _check(data: Mapping[str, Any], model: Mapping[str, Any]) -> None:
    """Raise a ConfigError for settings with which no links can be found."""
    if data.get("features_column") is not None:
        raise ConfigError(f"{_NO_FEATURES}: leave out data.features_column")
    if model.get("attention") == "none":
        raise ConfigError("alignments need attention: choose another model.attention")
    refuse_pipes(data.get("train_links"))


def _parsed(pairs: Sequence[Pair] | ParsedPairs, name: str) -> ParsedPairs:
    return pairs if isinstance(pairs, ParsedPairs) else pairs_from(pairs, name)


def _refuse_features(*sets: Sequence[Pair] | ParsedPairs | None) -> None:
    """Raise a ConfigError if a pair has features."""
    for pairs in sets:
        listed = pairs.pairs if isinstance(pairs, ParsedPairs) else pairs or ()
        if any(pair.features is not None for pair in listed):
            raise ConfigError(f"{_NO_FEATURES}: pass pairs of two strings")


def _half(max_minutes: float) -> float:
    """Return the time budget of one of two models."""
    check_positive("max_minutes", max_minutes)
    return max_minutes / 2


def guide_of(out: str | Path, settings: Mapping[str, Mapping[str, Any]]) -> Path | None:
    """Return the file with the links of hidden Markov models that a run is given; None if it is given none.

    A run that has begun without such a file goes on without it.
    """
    data, model = settings.get("data", {}), settings.get("model", {})
    given = data.get("train_links") is not None
    path = Path(out) / GUIDE
    absent = _has_begun(out) and not path.exists()
    return None if given or model.get("normalizer") == "none" or absent else path


def _has_begun(out: str | Path) -> bool:
    return (Path(out) / "forward" / "config.json").exists()


def _ordered(pairs: Sequence[Pair] | ParsedPairs, swap: bool) -> list[Pair] | ParsedPairs:
    if isinstance(pairs, ParsedPairs):
        file = None if swap else pairs.file
        return pairs._replace(pairs=[*_ordered(pairs.pairs, swap)], file=file)
    return [Pair(target, source) if swap else Pair(source, target) for source, target, _ in pairs]


def _swapped(path: str) -> Iterator[Alignment]:
    """Yield the links of a file from target to source."""
    for pair in read_gold(path):
        yield Alignment((target, source) for source, target in pair.possible)


def write_links(
    path: str | Path,
    forward: Translator,
    reverse: Translator,
    parsed: ParsedPairs,
    method: Symmetrization = "soft",
    threshold: float = 0.0,
    on_progress: Callable[[int], None] | None = None,
) -> int:
    """Write the links of every line of a file of pairs in Pharaoh format, and return the number of failures.

    A line that is no pair, a pair that is longer than the `data.max_length` of the models, and a pair that
    the models split into different words have an empty line.

    Args:
        path: the file to write.
        forward: a model from source to target.
        reverse: a model from target to source.
        parsed: the pairs of a file.
        method: how to combine the directions.
        threshold: minimum weight of a link, as for `symmetrize`.
        on_progress: called with the number of pairs just completed.
    """
    parts = chunks_of(parsed.pairs, _CHUNK, lambda pair: pair.length)
    chunks = (_alignments(forward, reverse, part, method, threshold) for part in parts)
    return _write(path, parsed, chunks, on_progress)


def _write_guide(
    path: Path, parsed: ParsedPairs, dev: list[Pair] | ParsedPairs | None, config: Config
) -> dict[str, Unit]:
    """Write the links of hidden Markov models, which are trained on these pairs, in Pharaoh format.

    Args:
        path: the file to write.
        parsed: the training pairs.
        dev: the validation pairs, which are only checked; None if they are held out from the
            training pairs.
        config: the settings of the models that the links guide.

    Returns:
        The units of source and target whose words the links count.

    Raises:
        DataError: a line is no pair, or a pair is too long, and `data.bad_lines` is `stop`.
    """
    texts_of = {"source": parsed.texts("source"), "target": parsed.texts("target")}
    tokenizers = {side: Tokenizer.train(texts_of[side], getattr(config, side)) for side in texts_of}
    sets = [parsed] if dev is None else [parsed, _parsed(dev, "dev")]
    for pairs in sets if config.data.bad_lines == "stop" else ():
        pairs.require_valid(REMEDY)
        encode(pairs, tokenizers["source"], tokenizers["target"], config, [])
    _write(
        path, parsed, hidden_markov_links(parsed, **tokenizers, max_length=config.data.max_length)
    )
    return {side: tokenizer.unit for side, tokenizer in tokenizers.items()}


def _write(
    path: str | Path,
    parsed: ParsedPairs,
    chunks: Iterable[list[Alignment | None]],
    on_progress: Callable[[int], None] | None = None,
) -> int:
    """Write a line of links for every line of the pairs, and return the number of failures."""
    lines, failures, numbers = 0, len(parsed.bad), iter(parsed.numbers)
    with atomic_write(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for alignments in chunks:
            for alignment, number in zip(alignments, numbers, strict=False):
                failures += not alignment
                file.write("\n" * (number - 1 - lines) + f"{alignment or ''}\n")
                lines = number
            if on_progress is not None:
                on_progress(len(alignments))
        file.write("\n" * (len(parsed.pairs) + len(parsed.bad) - lines))
    return failures


def _alignments(
    forward: Translator,
    reverse: Translator,
    pairs: Sequence[Pair],
    method: Symmetrization,
    threshold: float,
) -> list[Alignment | None]:
    """Return the alignment of each pair; None for a pair that cannot be aligned."""
    limit = forward.trained.config.data.max_length
    sources = forward.source.encode_batch([pair.source for pair in pairs])
    targets = forward.target.encode_batch([pair.target for pair in pairs])
    short = [
        index
        for index, encodings in enumerate(zip(sources, targets, strict=True))
        if max(len(encoding.ids) for encoding in encodings) <= limit
    ]
    texts = [pairs[index].source for index in short], [pairs[index].target for index in short]
    there, back = forward.align(*texts), reverse.align(*reversed(texts))
    alignments: list[Alignment | None] = [None] * len(pairs)
    for index, output, other in zip(short, there, back, strict=True):
        try:
            alignments[index] = symmetrize(output, other, method, threshold)
        except DataError:  # other words
            continue
    return alignments
