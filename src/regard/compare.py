"""Compare models trained on the same pairs with the same budget and seeds.

The comparison shows the effect of attention. A model without attention compresses the source into
one state, and its accuracy falls with the length of the source; the chart shows where.
"""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, compress, product
from pathlib import Path
from typing import Any, get_args

from regard import model_folder
from regard.alignment import GoldAlignment
from regard.comparison import Run, by_length, table
from regard.config import GROUPS, AttentionName, Config, from_dict, require_groups
from regard.corpus import make_corpus
from regard.curves import read_history
from regard.errors import ConfigError, DataError, RegardError, nearest, quantity
from regard.evaluation import Report, align, check_gold_links, evaluate
from regard.files import atomic_write, require_empty_folder, write_json, write_text
from regard.metrics import LengthBin, length_bins
from regard.pairs import PairLike, file_checksum, group_by_source, refuse_pipes, to_pairs
from regard.request import check_lengths
from regard.setting_checks import check_beam_size
from regard.text.normalization import may_be_too_long
from regard.training import train
from regard.translator import Translator

_SETTINGS = "settings.json"
"""File with the common settings of the models."""
_FREE = ("train", "dev", "train_links", "log_with")
"""Settings that may change: of paths, the contents of the files are compared; a tracker affects no model."""
_LONGER = ("max_minutes", "max_updates", "patience")
"""Settings that may grow: they continue the training of every model."""
MINUTES = 8.0
"""Default time budget for all training runs together."""

_MAX_DISTINCT_LENGTHS = 30
_KINDS = ("luong", "bahdanau", "posterior", "transformer")
_MODELS = (
    "none, transformer, a score, luong:SCORE, bahdanau:SCORE, posterior:SCORE or transformer:SCORE"
)


def model_settings(specification: str) -> dict[str, str | None]:
    """Return the model settings of a specification such as `luong:dot`.

    Raises:
        ConfigError: there is no such model.
    """
    kind, _, score = specification.partition(":")
    if not score and kind in get_args(AttentionName):
        return {"kind": "rnn", "encoder": None, "attention": kind}
    if not score and kind == "transformer":
        return {"kind": "transformer", "encoder": None, "attention": None}
    if kind in _KINDS and score in get_args(AttentionName):
        name = "kind" if kind == "transformer" else "decoder"
        return {"kind": "rnn", "encoder": None, "attention": score, name: kind}
    scores = get_args(AttentionName)
    pairs = [f"{kind}:{name}" for kind in _KINDS for name in scores]
    hint = nearest(specification, [*scores, *_KINDS, *pairs])
    raise ConfigError(f"unknown model {specification!r}; models: {_MODELS}{hint}")


def compare(
    settings: Mapping[str, Any],
    models: Sequence[str],
    out: str | Path,
    test: Sequence[PairLike],
    *,
    seeds: Sequence[int] = (1,),
    gold: Sequence[GoldAlignment] | None = None,
    names: Sequence[str] | None = None,
    beam_size: int = 1,
    resume: bool = False,
    log: Callable[[str], None] = print,
    command: str | None = None,
) -> list[Run]:
    """Train every model with every seed, evaluate it, and write the table and the chart.

    Args:
        settings: groups of settings by name, as for `config.from_dict`; common to all models.
        models: specifications, such as `none`, `additive`, `luong:dot`, `transformer`.
        out: output folder for the models, `settings.json`, `table.md`, `table.json` and `by_length.html`
            (and .png, .svg).
        test: pairs to evaluate on.
        seeds: training seeds; each model is trained once per seed.
        gold: gold links of the test pairs.
        names: the file and the line of each test pair, for error messages.
        beam_size: beam size of the evaluation.
        resume: reuse finished models, and continue unfinished ones.
        log: function called with one line of text before each training run.
        command: the command that started the comparison, recorded in the model cards.

    Raises:
        ConfigError: a specification is unknown, or a setting does not apply to one of the models.
        DataError: a test pair is too long, the number of lines of gold links differs from that of the test
            pairs, or a link is outside its pair.
    """
    require_groups(settings)
    from_dict({"data": settings.get("data", {})})
    out = Path(out)
    if settings.get("data", {}).get("dev") is None:
        raise ConfigError("models are compared on the same pairs: set data.dev")
    refuse_pipes(*map(settings["data"].get, ("train", "dev", "train_links")))
    _check_lists(models, seeds, test)
    check_beam_size(beam_size=beam_size)
    specifications = [*product(models, seeds)]
    common = _common_settings(settings, specifications, out, resume)
    plans = [
        (name, _config({**settings, **common}, name, seed, out)) for name, seed in specifications
    ]
    _require_different_models(plans)
    _check_test(test, names, gold, [config for _, config in plans])
    file = out / _SETTINGS
    models_before, before = _configs(out), file.read_bytes() if file.exists() else None
    write_json(file, common)
    try:
        return _run(plans, out, test, gold, beam_size, resume, log, command, {*models_before})
    except BaseException:
        if _configs(out) == models_before:  # the command can be corrected and repeated
            _restore(file, before)
            for _, config in plans:
                with contextlib.suppress(OSError):
                    Path(str(config.out)).parent.rmdir()
        raise


def _check_lists(models: Sequence[str], seeds: Sequence[int], test: Sequence[PairLike]) -> None:
    """Raise a ConfigError if one of the lists is empty, or models or seeds have a duplicate."""
    for option, values in (("models", models), ("seeds", seeds), ("test pairs", test)):
        if not len(values):
            raise ConfigError(f"there are no {option} to compare: give at least one")
    for option, values in (("models", models), ("seeds", seeds)):
        if len(set(values)) < len(values):
            raise ConfigError(f"{option} have a duplicate: {', '.join(map(str, values))}")


def _check_test(
    test: Sequence[PairLike],
    names: Sequence[str] | None,
    gold: Sequence[GoldAlignment] | None,
    configs: Sequence[Config],
) -> None:
    """Raise an error if the models cannot be evaluated on these pairs and links, before any is trained."""
    pairs = to_pairs(test)
    names = names or [f"test pair {number:,}" for number in range(1, 1 + len(pairs))]
    if gold is not None and len(gold) != len(pairs):
        raise DataError(
            f"{quantity(len(gold), 'line')} of gold links for {quantity(len(pairs), 'pair')}; one "
            "line per pair is needed"
        )
    if gold is not None and all(config.model.attention == "none" for config in configs):
        raise ConfigError("gold links need a model with attention: add one, or leave out gold")
    long = [
        may_be_too_long(*pair.key) or (gold is not None and may_be_too_long(pair.target))
        for pair in pairs
    ]
    if gold is None and not any(long):
        return
    # all models have its tokenizers
    corpus = make_corpus(configs[0], None, None, compute_links=False)
    for pair, name in compress(zip(pairs, names, strict=True), long):
        check_lengths(corpus.source.encode_batch([pair.key]), name)
        if gold is not None:
            check_lengths(corpus.target.encode_batch([pair.target]), name)
    if gold is not None:
        links_of = [f"gold links of {name}" for name in names]
        check_gold_links(gold, pairs, corpus.source, corpus.target, links_of)


def _require_different_models(plans: Sequence[tuple[str, Config]]) -> None:
    """Raise a ConfigError if two specifications name the same model."""
    for (name, config), (other, same) in combinations(plans, 2):
        if name != other and config.model.resolved() == same.model.resolved():
            raise ConfigError(f"{name} and {other} are the same model; leave out one of them")


def _configs(out: Path) -> dict[Path, bytes]:
    """Return the settings of the models whose training has begun, as written by their last checkpoint."""
    return {folder: (folder / "config.json").read_bytes() for folder in _begun(out)}


def _restore(file: Path, content: bytes | None) -> None:
    """Write the former content of a file, or remove it if it is new."""
    if content is None:
        file.unlink()
    else:
        with atomic_write(file) as temporary:
            temporary.write_bytes(content)


def _run(
    plans: Sequence[tuple[str, Config]],
    out: Path,
    test: Sequence[PairLike],
    gold: Sequence[GoldAlignment] | None,
    beam_size: int,
    resume: bool,
    log: Callable[[str], None],
    command: str | None,
    earlier: set[Path],
) -> list[Run]:
    """Train and evaluate all models; results are written when they contain the models of earlier calls."""
    command = command or "regard.compare.compare(settings, models, out, test), see settings.json"
    runs: list[Run] = []
    for number, (name, config) in enumerate(plans, start=1):
        label = f"{name}, seed {config.training.seed}"
        log(f"[{number} of {len(plans)}] {label}")
        # a finished run has no budget left: resuming it checks that its pairs and model are the same
        translator = train(config, resume=resume, command=command)
        runs.append(_evaluate(name, translator, test, gold, beam_size))
        earlier.discard(Path(str(config.out)))
        if not earlier:
            _write(out, runs)
    return runs


def _common_settings(
    settings: Mapping[str, Any], specifications: Sequence[tuple[str, int]], out: Path, resume: bool
) -> dict[str, dict[str, Any]]:
    """Return the settings of all models by group, with their time budget.

    Raises:
        ConfigError: a comparison that is resumed has other settings, or models that the table would lose.
    """
    common = {name: dict(settings.get(name, {})) for name in GROUPS}
    if not resume:
        require_empty_folder(out, "choose another folder (out), or continue (resume)")
    begun = _begun(out) if resume else []
    folders = {_folder(out, name, seed): name for name, seed in specifications}
    first = next(
        (name for folder, name in folders.items() if folder in begun), specifications[0][0]
    )
    has_checkpoints = any((each / "checkpoints").exists() for each in folders)
    if resume and not (begun or has_checkpoints or _has_only_settings(out, first)):
        require_empty_folder(out, "it has no models to resume: choose another folder (out)")
    for folder in begun:
        if folder not in folders:
            raise ConfigError(
                f"{folder} belongs to this comparison, too: include its model and its seed, move the folder "
                "elsewhere, or choose another folder (out)"
            )
    stored = _read_settings(out, first) if begun else None
    if common["training"].get("max_minutes") is None:
        minutes = MINUTES / len(specifications)
        if stored is not None:
            minutes = _with_model(stored, first).training.max_minutes
        common["training"]["max_minutes"] = minutes
    if stored is not None:
        for name in dict.fromkeys(folders.values()):
            new = _with_model(common, name)
            _require_equal_settings(new, _with_model(stored, name), out)
        _require_equal_dev_pairs(common["data"]["dev"], begun)
    return common


def _begun(out: Path) -> list[Path]:
    """Return the folders of the models whose training has begun."""
    return sorted(path.parent for path in out.glob("*/seed-*/config.json"))


def _has_only_settings(out: Path, model: str) -> bool:
    """Return whether a comparison in this folder was killed before its first training began."""
    if not out.is_dir() or [path.name for path in out.iterdir()] != [_SETTINGS]:
        return False
    try:
        _read_settings(out, model)
    except ConfigError:
        return False
    return True


def _with_model(settings: Mapping[str, Any], name: str) -> Config:
    """Return the common settings with those of a model, without which they may be invalid."""
    require_groups(settings)
    return from_dict({**settings, "model": {**settings.get("model", {}), **model_settings(name)}})


def _read_settings(out: Path, model: str) -> dict[str, Any]:
    """Return the common settings of the models; `model`, which was trained with them, must suit them."""
    try:
        settings = json.loads((out / _SETTINGS).read_text("utf-8"))
        _with_model(settings, model)
        return settings
    except (OSError, ValueError, AttributeError, RegardError):
        raise ConfigError(
            f"{out} has lost {_SETTINGS}, the settings of its models, or it is damaged; choose another folder "
            "(out)"
        ) from None


def _require_equal_settings(new: Config, old: Config, out: Path) -> None:
    """Raise a ConfigError if settings differ, except for paths and a longer training."""
    for group in GROUPS:
        for field in dataclasses.fields(getattr(new, group)):
            value, before = (getattr(getattr(each, group), field.name) for each in (new, old))
            longer = field.name in _LONGER and None not in (value, before) and value > before
            if value != before and field.name not in _FREE and not longer:
                raise ConfigError(
                    f"the models in {out} were trained with {group}.{field.name} {before}, and models that "
                    f"are compared need equal settings, got {value}: leave it as it was, or compare all models "
                    "again in another folder (out)"
                )


def _require_equal_dev_pairs(path: str, begun: Sequence[Path]) -> None:
    """Raise a ConfigError if the best weights of a model were selected on another dev file."""
    new = file_checksum(path)
    for folder in begun:
        old = model_folder.describe(folder).metadata.get("checksums", {}).get("dev")
        if None not in (old, new) and old != new:
            raise ConfigError(
                f"the best weights of {folder} were selected on a dev file other than {path} (data.dev): give "
                "the same file, or choose another folder (out)"
            )


def _config(settings: Mapping[str, Any], name: str, seed: int, out: Path) -> Config:
    training = {**settings["training"], "seed": seed}
    folder = str(_folder(out, name, seed))
    config = _with_model({**settings, "training": training, "out": folder}, name)
    config.check_groups()
    return config


def _folder(out: Path, name: str, seed: int) -> Path:
    return out / name.replace(":", "-") / f"seed-{seed}"


def _evaluate(
    name: str,
    translator: Translator,
    test: Sequence[PairLike],
    gold: Sequence[GoldAlignment] | None,
    beam_size: int,
) -> Run:
    translator.translate(group_by_source(to_pairs(test))[0][:1], beam_size)  # loads the kernels
    lowercase = translator.target.lowercase
    report = evaluate(translator, test, beam_size, lowercase=lowercase, attention=False)
    config, metadata = translator.trained.config, translator.trained.metadata
    has_attention = config.model.attention != "none"
    aligned = align(translator, test, gold)[1] if gold is not None and has_attention else None
    last = read_history(str(config.out))[-1]
    return Run(
        name,
        seed=config.training.seed,
        scores=report.metrics,
        minutes=last["minutes"],
        updates=last["update"],
        parameters=metadata["parameters"],
        sentences_per_second=report.metrics.n / report.seconds,
        longest_source=metadata["max_source_length"],
        lengths=_length_bins(report, lowercase),
        aer=None if aligned is None else aligned.aer,
        lowercase=lowercase,
    )


def _length_bins(report: Report, lowercase: bool) -> tuple[LengthBin, ...]:
    """Return a bin per length, or the bins of the metrics if there are many lengths."""
    lengths = [len(translation.source_tokens) - 1 for translation in report.translations]
    if len(set(lengths)) > _MAX_DISTINCT_LENGTHS:
        return report.metrics.by_length
    outputs = [translation.text for translation in report.translations]
    ends = range(max(lengths) + 1)
    return length_bins(outputs, report.references, lengths, ends, lowercase)


def _write(out: Path, runs: Sequence[Run]) -> None:
    write_text(out / "table.md", table(runs))
    rows: list[dict[str, Any]] = []
    for run in runs:
        lengths = [(part.low, part.high, part.n, part.exact_match) for part in run.lengths]
        rows.append({**vars(run), "scores": run.scores.to_dict(), "lengths": lengths})
    write_json(out / "table.json", rows)
    for suffix in ("html", "svg", "png"):
        by_length(runs).save(out / f"by_length.{suffix}")
