"""Training a model folder: settings and pairs in, a translator out."""

import contextlib
import dataclasses
import hashlib
import math
import tempfile
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from regard import checkpoints, distributed, model_card, model_folder
from regard.accelerator import precision, separate_state
from regard.alignment import Link
from regard.checkpoints import Checkpoint
from regard.config import Config, DataConfig, TrainingConfig, from_dict
from regard.corpus import Corpus, make_corpus
from regard.distributed import Job
from regard.errors import ConfigError, nearest
from regard.evaluation import layer_agreements
from regard.examples import recombines_words
from regard.files import require_empty_folder, write_text
from regard.guided_alignment import guided_layer
from regard.kernels.weighted_sum import without_autocast
from regard.lines import read_lines
from regard.metrics import METRICS
from regard.model_folder import TrainedModel
from regard.models import Seq2Seq, build, count_parameters
from regard.pairs import PairLike, ParsedPairs, file_checksum
from regard.progress import Progress
from regard.resume import StartingPoint, starting_point
from regard.trainer import Trainer
from regard.translator import Translator, find_device

_NEAR_CHANCE = 0.9
"""Fraction of ln V above which a dev loss counts as no better than guessing."""

_MOST_OUTPUTS = 100

_one_at_a_time = threading.RLock()
"""Held while a model is trained: the random generators of PyTorch belong to the whole process."""

_ERASURE_TOKENS = 100_000
"""Bound on the tokens processed to choose the displayed attention layer."""


def fit(
    pairs: Iterable[PairLike],
    dev: Iterable[PairLike] | None = None,
    *,
    out: str | Path | None = None,
    max_minutes: float | None = 5.0,
    **settings: Mapping[str, Any],
) -> Translator:
    """Train on pairs in memory and return a translator.

    Settings that are not given follow from the pairs and the time budget.

        translator = regard.fit([("te quiero", "i love you"), …])
        translator = regard.fit(pairs, max_minutes=1, model={"attention": "dot"})

    Args:
        pairs: training pairs, (source, target) or (source, target, features).
        dev: validation pairs; if None, some of the training pairs are held out.
        out: output model folder; if None, a temporary folder is created and its path is printed.
        max_minutes: time budget, in minutes; if None, no limit. Training stops earlier when the
            validation metric no longer improves.
        settings: groups of settings, named as in `Config`: `model`, `training`, `source`, `target` or
            `data`.

    Raises:
        RegardError: settings or pairs cannot be used.
    """
    groups = {field.name for field in dataclasses.fields(Config)}
    for name in sorted(settings.keys() - groups):
        if hint := nearest(name, ("dev", "out", "max_minutes")):
            raise ConfigError(f"unknown setting {name}{hint}")
    training = settings.pop("training", {})
    if isinstance(training, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        training = {"max_minutes": max_minutes, **training}
    config = from_dict({"out": None if out is None else str(out), "training": training, **settings})
    return train(config, pairs, dev, adapt=True)


def train(
    config: Config,
    pairs: Iterable[PairLike] | ParsedPairs | None = None,
    dev: Iterable[PairLike] | ParsedPairs | None = None,
    *,
    resume: bool = False,
    init_from: str | Path | None = None,
    tokenizers_from: str | Path | None = None,
    adapt: bool = False,
    command: str | None = None,
    links: Iterable[Iterable[Link]] | None = None,
) -> Translator:
    """Train a model, write its folder and return a translator with the best weights.

    Under torchrun or `accelerate launch`, every process makes this call with the same arguments. The
    first process prints the messages and writes the folder, which every process must be able to read.
    Calls in several threads of one process take turns, because they share PyTorch's random generators;
    those of the CPU and of CUDA devices in use have their former states at the end.

    Args:
        config: all settings; `config.out` is the output folder, or None for a temporary one.
        pairs: training pairs in memory, (source, target) or (source, target, features), instead of
            `config.data.train`; or the result of `regard.pairs.read_pairs`.
        dev: validation pairs in memory, instead of `config.data.dev`.
        resume: continue from the latest checkpoint in the output folder, exactly as if training had
            not stopped. The settings of the run are kept unless `config` overrides them. A run that
            has saved nothing starts from scratch.
        init_from: a model folder that supplies the initial weights, tokenizers and model settings.
        tokenizers_from: a model folder that supplies the tokenizers only, so that both models can form
            an ensemble.
        adapt: choose every setting that was not passed by name to `Config` or its groups, from the
            pairs and the time budget, and print the reasons. A resumed run keeps its settings.
        command: the command that started the training, recorded in the model card.
        links: links (source word, target word) of each of the training pairs, which guide the
            attention, instead of `config.data.train_links`, unless `training.guided_alignment` is 0.
            Without either, a weight above 0 uses those of hidden Markov models.

    Raises:
        RegardError: settings, pairs or folders cannot be used.
        KeyboardInterrupt: on Ctrl-C, SIGTERM or SIGHUP; the folder is usable and training can be resumed.
    """
    if not isinstance(config, Config):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(
            f"the first argument of train must be a Config, got a {type(config).__name__}; to train "
            "without a Config, call regard.fit(pairs)"
        )
    if torch.get_default_dtype() != torch.float32:
        raise ConfigError(
            f"models have float32 weights, but PyTorch's default is {torch.get_default_dtype()}: call "
            "torch.set_default_dtype(torch.float32) first"
        )
    if torch.get_default_device().type != "cpu":
        raise ConfigError(
            f"models are built on the CPU and then moved to the device in the settings, but PyTorch's "
            f"default is {torch.get_default_device()}: call torch.set_default_device('cpu') first"
        )
    with contextlib.ExitStack() as stack:
        stack.enter_context(_one_at_a_time)
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        device = find_device(config.device)
        stack.enter_context(without_autocast(device))  # the precision is that of the settings
        stack.enter_context(separate_state())
        job = distributed.join(device)
        stack.enter_context(torch.random.fork_rng(_gpus(device)))
        out = None
        if job.is_main:
            out = _output_folder(config.out, resume)
            if config.out is None:
                stack.callback(_remove_if_empty, out)
            stack.enter_context(checkpoints.locked(out))
        out = job.gather(out)[0]
        assert out is not None
        start = starting_point(config, out, resume, init_from, tokenizers_from)
        start.config.check_groups()
        corpus = make_corpus(start.config, pairs, dev, start.tokenizers, links, adapt)
        if unused := _unused(config, start, corpus, has_dev=dev is not None):
            note = f"without effect with the other settings: {', '.join(unused)}"
            start = start._replace(notes=(*start.notes, note))
        files = _checksums(corpus.config.data, pairs, dev) if job.is_main else {}
        return _train(start, out, corpus, files, command, resume, job)


def _gpus(device: torch.device) -> list[int]:
    """Return the GPUs that the process uses, whose random generators training changes."""
    used = device.type == "cuda" or torch.cuda.is_initialized()
    return [*range(torch.cuda.device_count())] if used else []


def _unused(config: Config, start: StartingPoint, corpus: Corpus, has_dev: bool) -> list[str]:
    """Return the names of settings of `config` that have no effect with the others."""
    names = [f"model.{name}" for name in start.config.model.unused(vars(config.model)["given"])]
    training = config.training
    is_default = training.plateau_patience == TrainingConfig().plateau_patience
    if not is_default and corpus.config.training.schedule != "plateau":
        names.append("training.plateau_patience")
    if config.data.dev_seed is not None and (has_dev or config.data.dev is not None):
        names.append("data.dev_seed")
    is_used = corpus.config.training.is_guided(True) or recombines_words(
        corpus.config, corpus.source, corpus.target
    )
    if config.data.train_links is not None and not is_used:
        names.append("data.train_links")
    if config.source.match_vocabulary and corpus.source.unit != "word":
        names.append("source.match_vocabulary")
    return names


def _train(
    start: StartingPoint,
    out: Path,
    corpus: Corpus,
    files: dict[str, str],
    command: str | None,
    resume: bool,
    job: Job,
) -> Translator:
    config = corpus.config
    torch.manual_seed(config.training.seed)
    model = build(config.model, len(corpus.source), len(corpus.target))
    if start.weights is not None:
        model.load_state_dict(start.weights)
    metadata = _metadata(start, corpus, model, files, command)
    trained = TrainedModel(config, model, corpus.source, corpus.target, metadata)
    trainer = Trainer(trained, corpus, out, job)
    wanted, used = config.training.precision, precision(config)
    notes = [
        *([f"model folder: {out} (temporary)"] if config.out is None else []),
        *([f"{job.processes} processes share each batch"] if job.processes > 1 else []),
        *start.notes,
        *corpus.notes,
        *(
            []
            if used == wanted
            else [
                f"training.precision: {used} instead of {wanted}, which this device computes slowly"
            ]
        ),
        f"model: {metadata['parameters']:,} parameters on {trainer.device.type} "
        f"({metadata['encoder_states']}); loss at chance ln V = {math.log(len(corpus.target)):.2f}",
    ]
    if start.checkpoint is not None:
        trainer.restore(start.checkpoint)
        notes += _resumed(trainer, start.checkpoint)
    elif resume:
        notes.append(f"{out} contains no checkpoint yet: training starts from scratch")
    _require_agreement(trainer)
    if job.is_main:
        checkpoints.require_lock(out)
        model_folder.save_description(out, trained)
        if start.notice is not None:
            write_text(out / "NOTICE", "\n".join(read_lines(start.notice)) + "\n")
        if trainer.history:
            trainer.write_results()  # a run that was killed after the checkpoint may not have written them
    updates, done = config.training.max_updates, trainer.schedule.update
    with Progress("training", updates, "updates", done, not job.is_main) as progress:
        for note in notes:
            progress.print(note)
        trainer.train(progress)
        if job.is_main:
            checkpoints.require_lock(out)
            model_card.write(out, trained, trainer.history, trainer.metric)
            _complete(trainer, progress)
    job.wait()
    return Translator.load(out, config.device)


def _metadata(
    start: StartingPoint,
    corpus: Corpus,
    model: Seq2Seq,
    files: dict[str, str],
    command: str | None,
) -> dict[str, Any]:
    """Return the properties of the data and the model that its folder stores."""
    fingerprint = corpus.fingerprint()
    metadata = {
        "max_source_length": corpus.max_source_length,
        "max_target_length": corpus.max_target_length,
        "parameters": count_parameters(model),
        "encoder_states": _describe_encoder_states(model),
        "training_fingerprint": fingerprint,
        "checksums": files,
        "examples": corpus.examples,
        "several_links": bool(corpus.several_links),
        "command": command or "regard.train(config), see config.json",
        **start.metadata,
    }
    if corpus.several_links is not None:
        metadata["attention_layer"] = guided_layer(model.decoder.attention_layers)
    if run := _identity(start, corpus.config, (fingerprint, corpus.dev_fingerprint())):
        metadata["run"] = run
    return metadata


def _checksums(data: DataConfig, pairs: Any, dev: Any) -> dict[str, str]:
    """Return the checksums of the training and dev files, by which they are recognised later.

    Pairs in memory, which replace those of a file, have none.
    """
    found: dict[str, str] = {}
    for name, path, items in (("train", data.train, pairs), ("dev", data.dev, dev)):
        read = items is None or (isinstance(items, ParsedPairs) and items.file == path)
        if path is not None and read and (value := file_checksum(path)) is not None:
            found[name] = value
    return found


def _identity(start: StartingPoint, config: Config, pairs: tuple[str, str]) -> str | None:
    """Return the identity of a run: a hash of all that its initial weights and updates depend on.

    The result is None for a run that was started by an earlier version.
    """
    if start.checkpoint is not None:
        return start.run
    settings = [getattr(config, group) for group in ("model", "source", "target", "training")]
    settings.append(config.data.recombined_pairs)
    weights = model_folder.checksum(start.weights or {})
    return hashlib.sha256(repr((settings, pairs, weights)).encode()).hexdigest()[:16]


def _complete(trainer: Trainer, progress: Progress) -> None:
    """Add the metadata that depend on the best weights to the model folder."""
    out, corpus = trainer.out, trainer.corpus
    translator = Translator.load(out, trainer.trained.config.device)
    translator = _choose_attention_layer(translator, out, corpus, progress)
    warning = _warning(translator, corpus, trainer)
    if warning is not None:
        progress.print(warning)
        _add_metadata(translator, out, warning=warning)


def _resumed(trainer: Trainer, checkpoint: Checkpoint) -> list[str]:
    """Return messages about the checkpoint that training continues from."""
    processes, before = trainer.job.processes, checkpoint.state.get("processes", 1)
    notes = [f"resumed at update {trainer.schedule.update:,}"]
    early = trainer.schedule.ends_early
    why = "its validation metric stopped improving" if early else "its budget is used up"
    remedy = f"raise {trainer.schedule.ending()}"
    if trainer.schedule.over():
        notes.append(f"the run has ended there, because {why}: to train further, {remedy}")
    elif early:
        notes.append(f"the learning rate is decreasing to 0, because {why}: to undo this, {remedy}")
    if processes != before:
        notes.append(
            f"{processes} processes continue a run of {before}: its dropout masks differ from now on"
        )
    # not in checkpoints of earlier versions
    if checkpoint.state.get("dev_fingerprint") not in (None, trainer.dev_fingerprint):
        notes.append(
            "the dev pairs differ from those used so far: metrics before and after this update "
            "cannot be compared, but the best weights are selected by them"
        )
    if checkpoint.state.get("varying_fingerprint") not in (None, trainer.varying_fingerprint):
        notes.append(
            "the synthetic pairs differ from those used so far, because links computed on another machine, or "
            "by another number of threads, differ by rounding errors"
        )
    return notes


def _require_agreement(trainer: Trainer) -> None:
    """Raise a ConfigError unless all processes train the same model on the same training and dev pairs."""
    trained = trainer.trained
    basis = (
        trained.metadata["training_fingerprint"],
        trainer.dev_fingerprint,
        trainer.schedule.update,
        repr(trained.config),
    )
    if differing := _differing(trainer.job, basis):
        raise ConfigError(
            f"the pairs, settings or checkpoints of process {differing} differ from those of "
            "process 0; start all processes with the same arguments and files, and with a model "
            "folder that all can read"
        )
    if differing := _differing(trainer.job, trainer.varying_fingerprint):
        raise ConfigError(
            f"the synthetic pairs of process {differing} differ from those of process 0, because "
            "the links that each computes differ by rounding errors; set OMP_NUM_THREADS alike, or give "
            "links (data.train_links), such as the output of regard align"
        )


def _differing(job: Job, value: Any) -> str:
    """Return the ranks of the processes whose value differs from that of the first one."""
    values = job.gather(value)
    return ", ".join(str(rank) for rank, other in enumerate(values) if other != values[0])


def _remove_if_empty(folder: Path) -> None:
    """Remove a folder in which training that failed at its start has saved nothing."""
    with contextlib.suppress(OSError):  # it is not empty
        folder.rmdir()


def _output_folder(out: str | None, resume: bool) -> Path:
    if out is None:
        return Path(tempfile.mkdtemp(prefix="regard-"))
    path = Path(out)
    if checkpoints.holds_only_lock(path):  # left by a run that was killed before it saved anything
        return path
    if not resume:
        remedy = "choose another folder (out), or continue its training (resume)"
    elif (path / "members").is_dir():
        remedy = (
            "it is an ensemble: to continue the training of its members, repeat the command that "
            "started it (regard train --members) with --resume"
        )
    elif checkpoints.has_training(path):
        return path
    else:
        remedy = (
            "it contains no checkpoint to resume from: choose another folder (out), or continue from a "
            "trained model (init_from)"
        )
    return require_empty_folder(path, remedy)


def _choose_attention_layer(
    translator: Translator, out: Path, corpus: Corpus, progress: Progress
) -> Translator:
    """Store the layer whose attention is displayed, if there are several and none is guided."""
    trained = translator.trained
    if trained.model.decoder.attention_layers < 2 or corpus.several_links is not None:
        return translator
    examples, tokens = [], 0
    for example in corpus.dev:
        tokens += len(example.source) * sum(example.size)
        if tokens > _ERASURE_TOKENS and examples:
            break
        examples.append(example)
    shares = layer_agreements(translator, examples)
    best = shares.index(max(shares))
    by_layer = ", ".join(f"{100 * share:.0f} %" for share in shares)
    progress.print(
        f"attention: layer {best} of {len(shares)} (counted from 0) agrees most often with the "
        f"erasure of source tokens (by layer {by_layer}); the average of its heads is displayed"
    )
    return _add_metadata(translator, out, attention_layer=best)


def _add_metadata(translator: Translator, out: Path, **values: Any) -> Translator:
    """Add metadata to a translator and its folder."""
    trained = translator.trained
    trained = dataclasses.replace(trained, metadata={**trained.metadata, **values})
    model_folder.save_description(out, trained)
    return Translator(trained, translator.device)


def _warning(translator: Translator, corpus: Corpus, trainer: Trainer) -> str | None:
    """Return a warning if the model has learned nothing yet, otherwise None."""
    best = next((entry for entry in reversed(trainer.history) if entry["best"]), None)
    if best is None:
        return None
    remedy = f"raise {trainer.schedule.ending()} and resume the training, or train on more pairs"
    chance = math.log(len(corpus.target))
    if best["dev_loss"] > _NEAR_CHANCE * chance:
        close = best["dev_loss"] < 2 * chance
        lower = f"train again with a lower training.learning_rate (now {trainer.settings.learning_rate})"
        return (
            f"the model has learned nothing yet: its dev loss {best['dev_loss']:.2f} is "
            f"{'close to' if close else 'far above'} ln V = {chance:.2f}, that of guessing; "
            f"{remedy if close else lower}"
        )
    metric = trainer.metric
    if metric == "loss" or METRICS[metric].lower_is_better or best[metric] > 0:
        return None
    outputs = translator.translate(corpus.dev_sources[:_MOST_OUTPUTS], beam_size=1)
    if not any(output.tokens for output in outputs):
        return (
            "the model has learned nothing yet: its outputs for the dev sources are empty; "
            f"{remedy}"
        )
    label = METRICS[metric].label
    return f"the model translates no dev source correctly yet ({label} 0); {remedy}"


def _describe_encoder_states(model: Seq2Seq) -> str:
    encoder = model.encoder
    if encoder.output_dim == encoder.final_dim:
        return f"encoder states of width {encoder.final_dim}"
    return f"encoder states projected from width {encoder.final_dim} to {encoder.output_dim}"
