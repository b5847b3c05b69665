"""Train several models on the same pairs, budget and seeds, and lay them side by side.

What it is for: to see what attention does. A model without it gets the whole source through one
state, and its accuracy falls with the length of the source; the chart shows where.
"""

import dataclasses
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, get_args

from regard.alignment import Gold
from regard.charts import LineChart, Point
from regard.config import AttentionName, Config, from_dict
from regard.data import Pair
from regard.errors import ConfigError, DataError
from regard.evaluation import Report, align, evaluate
from regard.files import write_text
from regard.metrics import Scores, exact_match
from regard.training import train
from regard.translator import Translator

MINUTES = 8.0
"""Budget of all trainings together, where none is given."""

# 97.5 % points of Student's t with 1, 2, … degrees of freedom
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
_MOST_LENGTHS = 30
_MODELS = "none, transformer, a score, luong:SCORE, bahdanau:SCORE or transformer:SCORE"


class Length(NamedTuple):
    """How a model does on sources of `low` to `high` symbols."""

    low: int
    high: int
    n: int
    exact_match: float
    """In percent."""


@dataclasses.dataclass(frozen=True)
class Run:
    """One trained model and how it did."""

    name: str
    """The item it was made for, such as `luong:dot`."""
    seed: int
    scores: Scores
    minutes: float
    """Time of training."""
    updates: int
    parameters: int
    sentences_per_second: float
    """Translated on the pairs that it is measured on, one hypothesis each."""
    longest_source: int
    """Symbols of the longest training source."""
    lengths: tuple[Length, ...]
    """Accuracy by the length of the source."""
    aer: float | None
    """Alignment error rate against gold links, from 0 to 1, where there are some."""


def model_settings(item: str) -> dict[str, str | None]:
    """The model settings that an item of the list stands for.

    Raises:
        ConfigError: there is no such model.
    """
    kind, _, score = item.partition(":")
    if not score and kind in get_args(AttentionName):
        return {"kind": "rnn", "encoder": None, "attention": kind}
    if not score and kind == "transformer":
        return {"kind": "transformer", "encoder": None, "attention": None}
    if kind in ("luong", "bahdanau", "transformer") and score in get_args(AttentionName):
        name = "kind" if kind == "transformer" else "decoder"
        return {"kind": "rnn", "encoder": None, "attention": score, name: kind}
    raise ConfigError(f"no model is named {item!r}; items of --attention are {_MODELS}")


def compare(
    settings: Mapping[str, Any],
    items: Sequence[str],
    out: Path,
    test: Sequence[Pair],
    *,
    seeds: Sequence[int] = (1,),
    gold: Sequence[Gold] | None = None,
    beam_size: int = 1,
    resume: bool = False,
    say: Callable[[str], None] = print,
) -> list[Run]:
    """Train every item with every seed, measure it, and write the table and the chart.

    Args:
        settings: groups of settings by name, as `config.from_dict` takes them, for all models.
        items: what to train, such as `none`, `additive`, `luong:dot`, `transformer`.
        out: folder for the models, `table.md`, `table.json` and `by_length.html` (and .png, .svg).
        test: pairs to measure on.
        seeds: of each training.
        gold: links of these pairs, where known.
        beam_size: open hypotheses when measuring.
        resume: keep the models that are finished already.
        say: where to announce the next training.

    Raises:
        ConfigError: an item is no model, or settings do not fit one.
    """
    _check(settings, items, test, seeds, gold, beam_size)
    plans = [
        (item, seed, _config(settings, item, seed, items, seeds, out))
        for item in items
        for seed in seeds
    ]
    runs: list[Run] = []
    for number, (item, seed, config) in enumerate(plans, start=1):
        say(f"[{number} of {len(plans)}] {item}, seed {seed}")
        # a finished one has no budget left, and is held to the same pairs and model
        train(config, resume=resume, command=f"regard compare ({item}, seed {seed})")
        runs.append(_measure(item, config, test, gold, beam_size))
        _write(out, runs)
    return runs


def _check(
    settings: Mapping[str, Any],
    items: Sequence[str],
    test: Sequence[Pair],
    seeds: Sequence[int],
    gold: Sequence[Gold] | None,
    beam_size: int,
) -> None:
    """Say before anything is trained what would be found after it."""
    if settings.get("data", {}).get("dev") is None:
        raise ConfigError("models are compared on the same pairs: give --data.dev F")
    for name, values in (("--attention", items), ("--seeds", seeds)):
        if len(set(values)) < len(values):
            raise ConfigError(f"{name} names one twice: {', '.join(map(str, values))}")
    if beam_size < 1:
        raise ConfigError(f"--beam-size must be at least 1, got {beam_size}")
    if gold is not None and len(gold) != len(test):
        raise DataError(
            f"{len(gold):,} lines of gold links for {len(test):,} pairs; one line per pair is needed"
        )


def table(runs: Sequence[Run]) -> str:
    """A table in Markdown: a row per item, means over its seeds, 95 % intervals."""
    aligned = any(run.aer is not None for run in runs)
    heads = [
        "model",
        "exact match, %",
        "PER, %",
        "BLEU",
        "parameters",
        "minutes",
        "updates",
        "sentences/s",
    ]
    heads += ["alignment error, %"] if aligned else []
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name, group in _by_name(runs).items():
        cells = [
            name,
            *(_interval(group, key) for key in ("exact_match", "per", "bleu")),
            f"{group[0].parameters:,}",
            f"{_mean(run.minutes for run in group):.1f}",
            f"{_mean(run.updates for run in group):,.0f}",
            f"{_mean(run.sentences_per_second for run in group):,.0f}",
        ]
        if aligned:
            errors = [run.aer for run in group if run.aer is not None]
            cells.append(f"{100 * _mean(errors):.1f}" if errors else "no attention")
        lines.append(f"| {' | '.join(cells)} |")
    seeds = len({run.seed for run in runs})
    how = (
        "over the sources, one seed (bootstrap)"
        if seeds == 1
        else f"of the mean over {seeds} seeds (Student's t)"
    )
    return (
        "\n".join([*lines, "", f"Intervals are 95 % {how}; {runs[0].scores.n:,} sources."]) + "\n"
    )


def by_length(runs: Sequence[Run]) -> LineChart:
    """Exact match by the length of the source, a line per item."""
    points: list[Point] = []
    for name, group in _by_name(runs).items():
        for part in group[0].lengths:
            same = [each for run in group for each in run.lengths if each.low == part.low]
            value = _mean(each.exact_match for each in same)
            span = f"{part.low}" if part.low == part.high else f"{part.low}–{part.high}"
            label = f"{span} symbols: {value:.1f} % of {part.n:,}"
            points.append(Point(name, (part.low + part.high) / 2, value, label))
    return LineChart(
        points,
        x_title="length of the source, in symbols",
        y_title="right to the last symbol, %",
        title="What fits through one state, and what attention looks up",
        explanation="Same pairs, same budget; each mark is a length, or a range of lengths.",
        rule=(float(runs[0].longest_source), "longest in training"),
        y_domain=(0.0, 100.0),
    )


def _config(
    settings: Mapping[str, Any],
    item: str,
    seed: int,
    items: Sequence[str],
    seeds: Sequence[int],
    out: Path,
) -> Config:
    training = {**settings.get("training", {}), "seed": seed}
    if training.get("max_minutes") is None:
        training["max_minutes"] = MINUTES / (len(items) * len(seeds))
    model = {**settings.get("model", {}), **model_settings(item)}
    folder = out / item.replace(":", "-") / f"seed-{seed}"
    return from_dict({**settings, "model": model, "training": training, "out": str(folder)})


def _measure(
    item: str,
    config: Config,
    test: Sequence[Pair],
    gold: Sequence[Gold] | None,
    beam_size: int,
) -> Run:
    folder = Path(str(config.out))
    translator = Translator.load(folder, config.device)
    begin = time.perf_counter()
    report = evaluate(translator, test, beam_size)
    seconds = time.perf_counter() - begin
    attends = translator.trained.config.model.attention != "none"
    found = align(translator, test, gold)[1] if gold is not None and attends else None
    history = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return Run(
        item,
        config.training.seed,
        report.scores,
        history[-1]["minutes"],
        history[-1]["update"],
        translator.trained.metadata["parameters"],
        report.scores.n / seconds,
        translator.trained.metadata["max_source_length"],
        _by_length(report),
        None if found is None else found.aer,
    )


def _by_length(report: Report) -> tuple[Length, ...]:
    """A range for every length, or where there are many of them, those of the scores."""
    lengths = [len(translation.source_tokens) - 1 for translation in report.translations]
    if len(set(lengths)) > _MOST_LENGTHS:
        return tuple(Length(p.low, p.high, p.n, p.exact_match) for p in report.scores.by_length)
    parts: list[Length] = []
    for length in sorted(set(lengths)):
        chosen = [place for place, each in enumerate(lengths) if each == length]
        outputs = [report.translations[place].text for place in chosen]
        right = exact_match(outputs, [report.references[place] for place in chosen])
        parts.append(Length(length, length, len(chosen), right.value))
    return tuple(parts)


def _write(out: Path, runs: Sequence[Run]) -> None:
    write_text(out / "table.md", table(runs))
    rows = [
        {
            **{key: value for key, value in vars(run).items() if key != "scores"},
            "scores": run.scores.to_dict(),
        }
        for run in runs
    ]
    write_text(out / "table.json", json.dumps(rows, indent=2, ensure_ascii=False) + "\n")
    chart = by_length(runs)
    for suffix in ("html", "svg", "png"):
        chart.save(out / f"by_length.{suffix}")


def _by_name(runs: Sequence[Run]) -> dict[str, list[Run]]:
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.name, []).append(run)
    return groups


def _interval(group: Sequence[Run], key: str) -> str:
    """A figure and its 95 % interval: bootstrapped for one seed, else of the mean over seeds."""
    figures = [getattr(run.scores, key) for run in group]
    if len(figures) == 1:
        return f"{figures[0].value:.1f} ({figures[0].low:.1f} – {figures[0].high:.1f})"
    values = [figure.value for figure in figures]
    mean, points = statistics.fmean(values), _T[min(len(values) - 2, len(_T) - 1)]
    half = points * statistics.stdev(values) / math.sqrt(len(values))
    return f"{mean:.1f} ± {half:.1f}"


def _mean(values: Any) -> float:
    return statistics.fmean(values)
