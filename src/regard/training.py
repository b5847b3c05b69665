"""Training: one readable loop, watched while it runs, exact when it is resumed."""

import dataclasses
import json
import math
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import nn

from regard import checkpoints, metrics, model_card, model_folder
from regard.config import Config, TrainingConfig
from regard.copy_mechanism import hide
from regard.corpus import Corpus, make_corpus, resolved
from regard.data import Batch, Example, bucket, collate, epoch
from regard.errors import ConfigError, FolderError
from regard.evaluation import layer_agreements
from regard.files import require_empty_folder, write_text
from regard.models import Seq2Seq, build, count_parameters
from regard.progress import Progress
from regard.schedule import Schedule
from regard.text import Tokenizer
from regard.translator import Translator, find_device

_SYMBOLS_READ = 100_000
"""Symbols read, over and over with one erased, to find the layer to show."""

LOWER_IS_BETTER: frozenset[str] = frozenset({"loss", "per", "cer"})
"""Metrics that a better model has less of."""


def train(
    config: Config,
    pairs: Sequence[tuple[str, str]] | None = None,
    dev: Sequence[tuple[str, str]] | None = None,
    *,
    resume: bool = False,
    init_from: str | Path | None = None,
    command: str | None = None,
) -> Translator:
    """Train a model and leave it as a folder.

    Args:
        config: all settings; `config.out` is the folder to write.
        pairs: training pairs (source, target) in memory, instead of `config.data.train`.
        dev: validation pairs in memory, instead of `config.data.dev`.
        resume: go on from `last/` in the folder, exactly; without one, start anew and say so.
        init_from: a trained folder whose weights, tokenizers and model settings to start from.
        command: how the folder was made, for its card.

    Returns:
        A translator with the best weights.

    Raises:
        RegardError: settings, pairs or folders cannot be used.
        KeyboardInterrupt: Ctrl-C; the folder has been left usable and can be resumed.
    """
    out = _claim(config.out, resume)
    config, tokenizers, weights = _starting_point(config, out, resume, init_from)
    corpus = make_corpus(config, pairs, dev, tokenizers)
    config = resolved(config, corpus)
    torch.manual_seed(config.training.seed)
    model = build(config.model, len(corpus.source), len(corpus.target))
    if weights is not None:
        model.load_state_dict(weights)
    metadata = {
        "max_source_length": corpus.longest_source,
        "max_target_length": corpus.longest_target,
        "parameters": count_parameters(model),
        "encoder_states": _say_states(model),
        "training_fingerprint": corpus.fingerprint(),
        "example": corpus.example,
    }
    trained = model_folder.TrainedModel(config, model, corpus.source, corpus.target, metadata)
    run = Trainer(trained, corpus, out, command)
    if resume:
        run.restore()
    model_folder.save_description(out, trained)
    with Progress("training", config.training.max_updates, "updates") as progress:
        for note in [*corpus.notes, *run.notes]:
            progress.say(note)
        run.go(progress)
        return _with_layer(Translator.load(out, config.device), out, corpus, progress)


def _with_layer(
    translator: Translator, out: Path, corpus: Corpus, progress: Progress
) -> Translator:
    """Find the layer whose attention is shown, where there are several."""
    trained = translator.trained
    if trained.config.model.kind != "transformer" or trained.config.model.decoder_layers == 1:
        return translator
    examples, work = [], 0
    for example in corpus.dev:
        work += len(example.source) * sum(example.size)
        if work > _SYMBOLS_READ and examples:
            break
        examples.append(example)
    shares = layer_agreements(translator, examples)
    best = shares.index(max(shares))
    said = ", ".join(f"{100 * share:.0f} %" for share in shares)
    progress.say(
        f"attention: of {len(shares)} layers, number {best} (from 0) looks most often where erasing a "
        f"source symbol costs most (by layer {said}); its heads' average is what is shown"
    )
    trained = dataclasses.replace(trained, metadata={**trained.metadata, "attention_layer": best})
    model_folder.save_description(out, trained)
    return Translator(trained, translator.device)


class Trainer:
    """One run of training: what changes while it goes on."""

    def __init__(
        self, trained: model_folder.TrainedModel, corpus: Corpus, out: Path, command: str | None
    ) -> None:
        self.trained, self.corpus, self.out, self.command = trained, corpus, out, command
        self.settings = trained.config.training
        self.metric = _metric(self.settings, corpus.target)
        self.schedule = Schedule(self.settings)
        self.accelerator = _accelerator(trained.config)
        self.model = self.accelerator.prepare(trained.model)
        self.optimizer = self.accelerator.prepare(_optimizer(trained.model, self.settings))
        self.translator = Translator(trained, self.accelerator.device)
        self.history: list[dict[str, Any]] = []
        self.epoch = 0
        self.batches_done = 0
        self.statistics = RunningStatistics()
        chance = math.log(len(corpus.target))
        self.notes = [
            f"model: {trained.metadata['parameters']:,} parameters on {self.accelerator.device} "
            f"({trained.metadata['encoder_states']}); loss at chance ln V = {chance:.2f}",
        ]

    def go(self, progress: Progress) -> None:
        """Update the weights until the schedule is over, validating on the way."""
        progress.start_at(self.schedule.update)
        with _interrupts() as interrupted:
            for batch in self._batches():
                started = time.perf_counter()
                loss = float(self._update(batch.to(self.accelerator.device)))
                self._require_finite(loss)
                self.statistics.add(loss, batch)
                self.batches_done += 1
                self.schedule.advance(time.perf_counter() - started)
                progress.advance(1, self._note(), self.schedule.remaining())
                over = self.schedule.over()
                if over or self.schedule.update % self.settings.validate_every == 0:
                    self._validate(progress)
                if interrupted or over:
                    break
        if interrupted:
            self._save_last()
            if not self.history:
                model_folder.save_weights(self.out, self.trained.model)
            progress.say(
                f"stopped at update {self.schedule.update:,}; {self.out} can be used as it is, and "
                "--resume goes on from here"
            )
            raise KeyboardInterrupt
        model_card.write(self.out, self.trained, self.history, self.metric, self.command)

    def _batches(self) -> Iterator[Batch]:
        if self.schedule.over():
            return
        while True:
            seed, size = self.settings.seed, self.settings.batch_tokens
            train, done = self.corpus.train, self.batches_done
            yield from epoch(train, size, seed, self.epoch, done, self._hide())
            self.epoch, self.batches_done = self.epoch + 1, 0

    def _hide(self) -> Callable[[Example, random.Random], Example] | None:
        """What a copying model learns to copy unknown symbols from."""
        if not self.trained.config.model.copy:
            return None
        vocabulary = len(self.corpus.target)
        return lambda example, rng: hide(example, vocabulary, rng)

    def _update(self, batch: Batch) -> torch.Tensor:
        settings = self.settings
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule.rate()
        self.model.train()
        covering = settings.coverage_loss if self.trained.config.model.coverage else 0.0
        loss = self.model(batch, label_smoothing=settings.label_smoothing, coverage_loss=covering)
        self.accelerator.backward(loss)
        self.accelerator.clip_grad_norm_(self.model.parameters(), settings.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def _require_finite(self, loss: float) -> None:
        if not math.isfinite(loss):
            raise ConfigError(
                f"the loss became {loss} at update {self.schedule.update + 1:,}; lower "
                f"--training.learning_rate (now {self.settings.learning_rate}) and train anew"
            )

    def _validate(self, progress: Progress) -> None:
        """Measure on dev, keep the best weights, save `last/`, and show three outputs."""
        started = time.perf_counter()
        self.model.eval()
        loss = self._dev_loss()
        sources, references = self.corpus.dev_sources, self.corpus.dev_references
        if self.metric == "loss":
            outputs = self.translator.translate(sources[:3], beam_size=1)
            value = loss
        else:
            outputs = self.translator.translate(sources, beam_size=1)
            texts = [output.text for output in outputs]
            value = getattr(metrics, self.metric)(texts, references).value
        best = self.schedule.validated(-value if self.metric in LOWER_IS_BETTER else value)
        if best:
            model_folder.save_weights(self.out, self.trained.model)
        entry = {
            "update": self.schedule.update,
            "epoch": self.epoch,
            "minutes": round(self.schedule.seconds / 60, 3),
            "train_loss": self.statistics.loss(),
            "dev_loss": loss,
            self.metric: value,
            "learning_rate": self.schedule.rate(),
            "pairs_per_second": self.statistics.pairs_per_second(),
            "target_tokens_per_second": self.statistics.target_tokens_per_second(),
            "best": best,
        }
        self.history.append(entry)
        self.schedule.seconds += time.perf_counter() - started
        self.statistics = RunningStatistics()
        self._save_last()
        self._say(progress, entry, [(output.source, output.text) for output in outputs[:3]])

    def _say(self, progress: Progress, entry: dict[str, Any], shown: list[tuple[str, str]]) -> None:
        mark = " (best so far)" if entry["best"] else ""
        progress.say(
            f"update {entry['update']:,}, {entry['minutes']:.1f} min: train loss "
            f"{entry['train_loss']:.3f}, dev loss {entry['dev_loss']:.3f}, "
            f"dev {self.metric} {entry[self.metric]:.2f}{mark}, "
            f"{entry['pairs_per_second']:,.0f} pairs/s"
        )
        for source, text in shown:
            progress.say(f"    {source} -> {text}")

    @torch.inference_mode()
    def _dev_loss(self) -> float:
        examples, size = self.corpus.dev, self.settings.batch_tokens
        total, symbols = 0.0, 0
        for chosen in bucket([example.size for example in examples], size):
            batch = collate([examples[index] for index in chosen])
            count = batch.target_tokens
            total += float(self.model(batch.to(self.accelerator.device))) * count
            symbols += count
        return total / symbols

    def _note(self) -> str:
        return (
            f"loss {self.statistics.loss():.3f}, {self.statistics.pairs_per_second():,.0f} pairs/s"
        )

    def _save_last(self) -> None:
        lines = [json.dumps(entry, ensure_ascii=False) for entry in self.history]
        write_text(self.out / "metrics.jsonl", "".join(line + "\n" for line in lines))
        state = {
            "schedule": self.schedule.to_dict(),
            "epoch": self.epoch,
            "batches_done": self.batches_done,
            "training_fingerprint": self.trained.metadata["training_fingerprint"],
            "history": self.history,
            "statistics": dataclasses.asdict(self.statistics),
        }
        model = self.accelerator.unwrap_model(self.model)
        checkpoints.save(self.out, model, self.optimizer.optimizer, state)

    def restore(self) -> None:
        """Go on from `last/`, where there is one."""
        model = self.accelerator.unwrap_model(self.model)
        state = checkpoints.load(self.out, model, self.optimizer.optimizer)
        if state is None:
            self.notes.append(f"{self.out} holds no checkpoint yet: starting anew")
            return
        if state["training_fingerprint"] != self.trained.metadata["training_fingerprint"]:
            raise FolderError(
                f"{self.out} was trained on other pairs; give the same --data.train to resume, or "
                f"--init-from {self.out} to train further on new ones"
            )
        self.schedule = Schedule.from_dict(self.settings, state["schedule"])
        self.epoch, self.batches_done = state["epoch"], state["batches_done"]
        self.history = state["history"]
        self.statistics = RunningStatistics(**state["statistics"])
        self.notes.append(f"resumed at update {self.schedule.update:,}")


@dataclasses.dataclass
class RunningStatistics:
    """Training loss and throughput since the last validation."""

    total_loss: float = 0.0
    updates: int = 0
    pairs: int = 0
    target_tokens: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self._started = time.perf_counter() - self.seconds

    def add(self, loss: float, batch: Batch) -> None:
        """Count one update."""
        self.total_loss += loss
        self.updates += 1
        self.pairs += len(batch.lengths)
        self.target_tokens += batch.target_tokens
        self.seconds = time.perf_counter() - self._started

    def loss(self) -> float:
        """Mean loss per update."""
        return self.total_loss / max(1, self.updates)

    def pairs_per_second(self) -> float:
        """Training pairs per second."""
        return round(self.pairs / max(1e-9, self.seconds), 1)

    def target_tokens_per_second(self) -> float:
        """Target tokens per second, end tokens included."""
        return round(self.target_tokens / max(1e-9, self.seconds), 1)


class _interrupts:
    """While open, Ctrl-C is noted instead of raised, so that an update is never cut in half."""

    def __init__(self) -> None:
        self.noted = False

    def __enter__(self) -> "_interrupts":
        try:
            self._before = signal.signal(signal.SIGINT, self._note)
        except ValueError:  # not the main thread: leave signals alone
            self._before = None
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def __bool__(self) -> bool:
        return self.noted

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.noted:
            raise KeyboardInterrupt
        self.noted = True


def _claim(out: str | None, resume: bool) -> Path:
    if out is None:
        raise ConfigError("there is no folder to write to: give --out DIR (Config(out=...))")
    path = Path(out)
    if not path.is_dir():
        return require_empty_folder(path)
    if not resume and any(path.iterdir()):
        raise ConfigError(
            f"{path} exists and is not empty; choose another --out, or go on there with --resume"
        )
    return path


def _starting_point(
    config: Config, out: Path, resume: bool, init_from: str | Path | None
) -> tuple[Config, tuple[Tokenizer, Tokenizer] | None, dict[str, torch.Tensor] | None]:
    """Settings, tokenizers and weights to begin with: fresh, of another folder, or of this one."""
    if resume and (out / "last" / "state.json").exists():
        described = model_folder.describe(out)
        for name in ("model", "source", "target"):
            _require_same(name, getattr(config, name), getattr(described.config, name), out)
        return _like(config, described), (described.source, described.target), None
    if init_from is None:
        return config, None, None
    given = model_folder.load(init_from)
    return _like(config, given), (given.source, given.target), given.model.state_dict()


def _like(config: Config, given: model_folder.TrainedModel) -> Config:
    """The settings, with model and texts as in a folder that is trained further."""
    like = given.config
    return dataclasses.replace(config, model=like.model, source=like.source, target=like.target)


def _require_same(group: str, given: Any, stored: Any, out: Path) -> None:
    for field in dataclasses.fields(stored):
        new, old = getattr(given, field.name), getattr(stored, field.name)
        if new != old and new != field.default:
            raise ConfigError(
                f"{group}.{field.name} is {old} in {out} and cannot become {new} on --resume; leave "
                "it out, or start anew in another folder"
            )


def _accelerator(config: Config) -> Accelerator:
    # a process may train several models: each gets its own device and precision
    AcceleratorState._reset_state(reset_partial_state=True)  # pyright: ignore[reportPrivateUsage]
    device = find_device(config.device)
    precision = "bf16" if config.training.precision == "bfloat16" else "no"
    return Accelerator(mixed_precision=precision, cpu=device.type == "cpu")


def _optimizer(model: nn.Module, settings: TrainingConfig) -> torch.optim.Optimizer:
    kind = torch.optim.AdamW if settings.optimizer == "adamw" else torch.optim.Adam
    return kind(
        [p for p in model.parameters() if p.requires_grad],
        lr=settings.learning_rate,
        weight_decay=settings.weight_decay,
        betas=(0.9, 0.98),
    )


def _metric(settings: TrainingConfig, target: Tokenizer) -> str:
    if settings.metric != "auto":
        return settings.metric
    return "bleu" if target.unit in ("word", "bpe", "unigram") else "exact_match"


def _say_states(model: Seq2Seq) -> str:
    encoder = model.encoder
    if encoder.output_dim == encoder.final_dim:
        return f"encoder states of width {encoder.final_dim}"
    return f"encoder states projected from width {encoder.final_dim} to {encoder.output_dim}"
