"""The training loop: updates, validations, checkpoints."""

import contextlib
import dataclasses
import json
import math
import random
import signal
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import nn

from regard import checkpoints, model_folder
from regard.batching import Batch, Example, bucket, collate, epoch
from regard.config import Config, TrainingConfig
from regard.copy_mechanism import hide_tokens
from regard.corpus import Corpus
from regard.errors import ConfigError, FolderError, Interrupted
from regard.files import write_text
from regard.metrics import METRICS
from regard.progress import Progress
from regard.schedule import Schedule
from regard.text import UNITS, Tokenizer
from regard.translator import Translator, find_device

_SECONDS_BETWEEN_CHECKPOINTS = 300.0
"""A run whose validations are further apart loses at most this much time."""


@dataclasses.dataclass
class RunningStatistics:
    """Training loss and throughput since the last validation."""

    total_loss: float = 0.0
    updates: int = 0
    pairs: int = 0
    target_tokens: int = 0
    """EOS included."""
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
        """Return the mean loss per update."""
        return self.total_loss / max(1, self.updates)

    def per_second(self, count: int) -> float:
        """Return the throughput of `count` pairs or tokens."""
        return round(count / max(1e-9, self.seconds), 1)


class Trainer:
    """Train a model, validate it and write its folder.

    Args:
        trained: the model with its settings, tokenizers and metadata; it is trained in place.
        corpus: training and validation examples.
        out: the model folder.
    """

    def __init__(self, trained: model_folder.TrainedModel, corpus: Corpus, out: Path) -> None:
        self.trained, self.corpus, self.out = trained, corpus, out
        self.settings = trained.config.training
        self.metric = _metric(self.settings, corpus.target)
        self.schedule = Schedule(self.settings)
        self.accelerator = _accelerator(trained.config)
        self.device = self.accelerator.device
        self.model = self.accelerator.prepare(trained.model)
        self.optimizer = self.accelerator.prepare(_optimizer(trained.model, self.settings))
        self.translator = Translator(trained, self.device)
        self.history: list[dict[str, Any]] = []
        self.epoch = 0
        self.batches_done = 0
        self.statistics = RunningStatistics()
        self._saved = time.monotonic()

    def train(self, progress: Progress) -> None:
        """Update the weights until the schedule ends.

        Raises:
            ConfigError: the loss became infinite or NaN.
            Interrupted: Ctrl-C, SIGTERM or SIGHUP; a checkpoint has been saved.
        """
        with _deferred_signals() as received:
            for batch in self._batches():
                started = time.perf_counter()
                loss = self._update(batch)
                self.statistics.add(loss, batch)
                self.batches_done += 1
                self.schedule.advance(time.perf_counter() - started)
                rate = self.statistics.per_second(self.statistics.pairs)
                note = f"loss {self.statistics.loss():.3f}, {rate:,.0f} pairs/s"
                progress.advance(1, note, self.schedule.remaining())
                over = self.schedule.over()
                if over or self.schedule.update % self.settings.validate_every == 0:
                    self._validate(progress)
                elif time.monotonic() - self._saved >= _SECONDS_BETWEEN_CHECKPOINTS:
                    self._save_checkpoint()
                if received or over:
                    break
        if received:
            self._save_checkpoint()
            if not self.history:
                model_folder.save_weights(self.out, self.trained.model)
            progress.print(
                f"stopped at update {self.schedule.update:,}: {self.out} is usable; continue with "
                "--resume"
            )
            raise Interrupted(received[0])

    def restore(self, checkpoint: checkpoints.Checkpoint) -> None:
        """Restore the state of a checkpoint.

        Raises:
            FolderError: it is damaged, or belongs to a run on different pairs.
            ConfigError: the run selected its best weights by another metric.
        """
        state = checkpoint.state
        if state["training_fingerprint"] != self.trained.metadata["training_fingerprint"]:
            raise FolderError(
                f"{self.out} was trained on other pairs; give the same --data.train to resume, or "
                f"--init-from {self.out} to continue training on new pairs"
            )
        if state["history"] and self.metric not in state["history"][-1]:
            raise ConfigError(
                f"the run selected its best weights by another metric than {self.metric}; leave "
                "--training.metric out, or train in another folder"
            )
        checkpoints.restore(checkpoint, self.trained.model, self.optimizer.optimizer)
        try:
            self.schedule = Schedule.from_dict(self.settings, state["schedule"])
            self.epoch, self.batches_done = state["epoch"], state["batches_done"]
            self.history = state["history"]
            self.statistics = RunningStatistics(**state["statistics"])
        except (KeyError, TypeError) as error:
            raise FolderError(f"{checkpoint.path} is damaged ({error}); train again") from None

    def _batches(self) -> Iterator[Batch]:
        def hide(example: Example, rng: random.Random) -> Example:
            return hide_tokens(example, len(self.corpus.target), rng)

        transform = hide if self.trained.config.model.copy else None
        seed, size = self.settings.seed, self.settings.batch_tokens
        while not self.schedule.over():
            done = self.batches_done
            yield from epoch(self.corpus.train, size, seed, self.epoch, done, transform)
            self.epoch, self.batches_done = self.epoch + 1, 0

    def _update(self, batch: Batch) -> float:
        settings = self.settings
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule.rate()
        self.model.train()
        loss = self.model(
            batch.to(self.device),
            label_smoothing=settings.label_smoothing,
            coverage_loss=settings.coverage_loss,
        )
        self.accelerator.backward(loss)
        norm = self.accelerator.clip_grad_norm_(self.model.parameters(), settings.clip_norm)
        value = loss.item()
        if not (math.isfinite(value) and norm is not None and bool(norm.isfinite())):
            raise ConfigError(
                f"{self._not_finite(value)} at update {self.schedule.update + 1:,}; train again "
                f"with a lower --training.learning_rate (now {settings.learning_rate})"
            )
        self.optimizer.step()
        self.optimizer.zero_grad()
        return value

    def _not_finite(self, loss: float) -> str:
        """Name the values that stopped being finite, the earliest cause first."""
        for kind in ("weights", "gradient"):
            for name, parameter in self.trained.model.named_parameters():
                tensor = parameter if kind == "weights" else parameter.grad
                if tensor is not None and not bool(tensor.isfinite().all()):
                    if kind == "gradient" and not math.isfinite(loss):
                        break  # the loss came before its gradients
                    return f"the {kind} of {name} became infinite or NaN"
        return f"the loss became {loss}"

    def _validate(self, progress: Progress) -> None:
        """Evaluate on the dev set, keep the best weights and save a checkpoint."""
        started = time.perf_counter()
        self.model.eval()
        loss = self._dev_loss()
        metric = METRICS.get(self.metric)  # None for the loss
        sources = self.corpus.dev_sources if metric else self.corpus.dev_sources[:3]
        outputs = self.translator.translate(sources, beam_size=1)
        value = loss
        if metric:
            texts = [output.text for output in outputs]
            value = metric.compute(texts, self.corpus.dev_references).value
        lower_is_better = metric is None or metric.lower_is_better
        best = self.schedule.validated(-value if lower_is_better else value)
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
            "pairs_per_second": self.statistics.per_second(self.statistics.pairs),
            "target_tokens_per_second": self.statistics.per_second(self.statistics.target_tokens),
            "best": best,
        }
        self.history.append(entry)
        self.schedule.seconds += time.perf_counter() - started
        self.statistics = RunningStatistics()
        self._save_checkpoint()
        progress.print(
            f"update {entry['update']:,}, {entry['minutes']:.1f} min: train loss "
            f"{entry['train_loss']:.3f}, dev loss {loss:.3f}, dev {self.metric} {value:.2f}"
            f"{' (best so far)' if best else ''}, {entry['pairs_per_second']:,.0f} pairs/s"
        )
        for output in outputs[:3]:
            progress.print(f"    {output.source} -> {output.text}")

    @torch.inference_mode()
    def _dev_loss(self) -> float:
        examples = self.corpus.dev
        total, tokens = 0.0, 0
        for indices in bucket([example.size for example in examples], self.settings.batch_tokens):
            batch = collate([examples[index] for index in indices])
            total += float(self.model(batch.to(self.device))) * batch.target_tokens
            tokens += batch.target_tokens
        return total / tokens

    def _save_checkpoint(self) -> None:
        lines = (json.dumps(entry) + "\n" for entry in self.history)
        write_text(self.out / "metrics.jsonl", "".join(lines))
        state = {
            "config": dataclasses.asdict(self.trained.config),
            "schedule": self.schedule.to_dict(),
            "epoch": self.epoch,
            "batches_done": self.batches_done,
            "training_fingerprint": self.trained.metadata["training_fingerprint"],
            "history": self.history,
            "statistics": dataclasses.asdict(self.statistics),
        }
        checkpoints.save(self.out, self.trained.model, self.optimizer.optimizer, state)
        self._saved = time.monotonic()


@contextlib.contextmanager
def _deferred_signals() -> Generator[list[int]]:
    """Collect Ctrl-C, SIGTERM and SIGHUP, so that the current update completes; the second raises."""
    received: list[int] = []

    def handle(number: int, _: object) -> None:
        if received:
            raise Interrupted(number)
        received.append(number)

    if threading.current_thread() is not threading.main_thread():  # only that one has handlers
        yield received
        return
    names = ("SIGINT", "SIGTERM", "SIGHUP")  # Windows has no SIGHUP
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    # a signal that is ignored, as under nohup, stays ignored
    previous = {
        number: signal.signal(number, handle)
        for number in numbers
        if signal.getsignal(number) not in (signal.SIG_IGN, None)
    }
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _accelerator(config: Config) -> Accelerator:
    device = find_device(config.device)
    precision = "bf16" if config.training.precision == "bfloat16" else "no"
    # its state is shared by the process and would otherwise keep the first run's precision
    AcceleratorState._reset_state(reset_partial_state=True)  # pyright: ignore[reportPrivateUsage]
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
    return "bleu" if UNITS[target.unit].has_words else "exact_match"
