"""The training loop: updates, validations, checkpoints."""

import dataclasses
import itertools
import json
import math
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard import checkpoints, model_folder, signals
from regard.accelerator import make_accelerator, track, tracking
from regard.batching import Example, bucket, collate, epoch
from regard.config import from_dict
from regard.copy_mechanism import hide_tokens
from regard.corpus import Corpus
from regard.distributed import Job
from regard.errors import ConfigError, FolderError, Interrupted
from regard.files import write_text
from regard.kernels.compilation import compile_seconds
from regard.lines import chunks_of
from regard.metrics import METRICS
from regard.optimizers import make_optimizer
from regard.progress import Progress
from regard.schedule import Schedule
from regard.text import split_source
from regard.translator import Translator

_SECONDS_BETWEEN_CHECKPOINTS = 300.0
"""Time between checkpoints if validations are further apart; a crash loses at most this much."""
_CHUNK = 2000
"""Maximum number of dev sources whose attention weights are in memory at the same time."""
_NOTICEABLE_SECONDS = 5.0
"""Time of compilation above which it is reported."""


@dataclasses.dataclass
class RunningStatistics:
    """Training loss and throughput since the last validation."""

    total_loss: float = 0.0
    updates: int = 0
    pairs: int = 0
    target_tokens: int = 0
    """EOS included."""
    seconds: float = 0.0
    """Time without checkpoints and compilation."""

    def __post_init__(self) -> None:
        self.restart_clock()

    def restart_clock(self) -> None:
        """Leave out the time since the latest update."""
        self._started = _clock() - self.seconds

    def add(self, loss: float, pairs: int, target_tokens: int) -> None:
        """Count one update."""
        self.total_loss += loss
        self.updates += 1
        self.pairs += pairs
        self.target_tokens += target_tokens
        self.seconds = _clock() - self._started

    def loss(self) -> float:
        """Return the mean over the updates of the loss per target token."""
        return self.total_loss / max(1, self.updates)

    def per_second(self, count: int) -> float:
        """Return the throughput, given the number of pairs or tokens."""
        return round(count / max(1e-9, self.seconds), 1)


class Trainer:
    """Train a model, validate it and write its model folder.

    Several processes can train it together: each computes its share of every batch, and all of them
    make the same update. Only the main process writes files.

    Args:
        trained: the model with its settings, tokenizers and metadata; it is trained in place.
        corpus: training and validation examples.
        out: the model folder.
        job: the processes that train the model.
    """

    def __init__(
        self, trained: model_folder.TrainedModel, corpus: Corpus, out: Path, job: Job
    ) -> None:
        self.trained, self.corpus, self.out, self.job = trained, corpus, out, job
        self.settings = trained.config.training
        self.metric = corpus.metric if self.settings.metric == "auto" else self.settings.metric
        self.schedule = Schedule(self.settings)
        self.accelerator = make_accelerator(trained.config, out)
        self.device = self.accelerator.device
        # not wrapped in DistributedDataParallel: _update weights the gradients, and job sums them
        self.model = self.accelerator.prepare_model(
            trained.model,
            device_placement=True,  # else it asks whether parameters are DTensors, which are slow to import
            evaluation_mode=True,
        )
        job.broadcast(self.model.state_dict().values())
        # not Accelerate's, which makes no step while another Accelerator accumulates gradients
        self.optimizer = make_optimizer(trained.model, self.settings)
        self.run: str | None = trained.metadata.get("run")
        self.dev_fingerprint = corpus.dev_fingerprint()
        self.varying_fingerprint = corpus.varying_fingerprint()
        self.history: list[dict[str, Any]] = []
        self.epoch = 0
        self.batches_done = 0
        self.statistics = RunningStatistics()
        self._saved = time.monotonic()
        self._compiled = compile_seconds()
        self._seed_generators()

    def train(self, progress: Progress) -> None:
        """Update the weights until the schedule ends.

        Raises:
            ConfigError: weights, gradients or a loss became infinite or NaN.
            FolderError: the folder was removed or moved.
            Interrupted: on Ctrl-C, SIGTERM or SIGHUP, after a checkpoint has been saved.
            JobError: another process has ended.
        """
        with (
            # the launcher of several processes repeats the signals that the scheduler sends
            signals.collected(repeat_raises=self.job.processes == 1) as received,
            tracking(self.accelerator, self.trained.config),
        ):
            self.statistics.restart_clock()
            started = _clock()
            for batches in self._updates():
                self._update(batches)
                # the clock of the main process is decisive
                seconds = [_clock() - started, time.monotonic() - self._saved]
                seconds, unsaved = self.job.gather_numbers(seconds)[0]
                self.schedule.advance(seconds)
                rate = self.statistics.per_second(self.statistics.pairs)
                note = f"loss {self.statistics.loss():.3f}, {rate:,.0f} pairs/s"
                progress.advance(1, note, self.schedule.remaining())
                if self.schedule.over() or self.schedule.update % self.settings.validate_every == 0:
                    self._validate(progress)
                elif unsaved >= _SECONDS_BETWEEN_CHECKPOINTS:
                    self._save_checkpoint()
                self._stop_if_signalled(received, progress)
                self._report_compilation(progress)
                if self.schedule.over():  # also because a validation has used up the time
                    break
                started = _clock()
            # a run that stopped before its first validation, and is resumed with a smaller budget, makes no update
            if not self.history:
                self._validate(progress)
        self._stop_if_signalled(received, progress)

    def _report_compilation(self, progress: Progress) -> None:
        """Say once how long the kernels took to compile, if that was noticeable."""
        seconds = compile_seconds()
        if seconds - self._compiled > _NOTICEABLE_SECONDS:
            progress.print(
                f"kernels compiled in {seconds - self._compiled:.0f} s, which the time budget does not "
                "include; later runs load them from a file, where a cache folder is writable"
            )
            self._compiled = seconds

    def _stop_if_signalled(self, received: Sequence[int], progress: Progress) -> None:
        """Save the state of the run and raise Interrupted if any process has received a signal."""
        numbers = self.job.gather_numbers([float(received[0]) if received else 0.0])
        signal_number = int(max(number for [number] in numbers))
        if not signal_number:
            return
        self._save_checkpoint()
        if self.job.is_main and not self.history:
            model_folder.save_weights(self.out, self.trained.model, self.run)
        self.job.wait()
        progress.print(
            f"stopped at update {self.schedule.update:,}: {self.out} is usable; to continue its "
            "training, give --resume (in Python, resume=True)"
        )
        raise Interrupted(signal_number)

    def restore(self, checkpoint: checkpoints.Checkpoint) -> None:
        """Restore the state of a checkpoint.

        Raises:
            FolderError: the checkpoint is damaged, or belongs to a run on other pairs.
            ConfigError: the run selects its best weights by another metric.
        """
        state = checkpoint.state
        pairs = self.corpus.fingerprint(copies="dev_fingerprint" in state)
        if state["training_fingerprint"] != pairs:
            raise FolderError(
                f"{self.out} was trained on other pairs or links; give the same files to resume, or "
                f"train on new ones in another folder, from these weights (regard train --init-from {self.out})"
            )
        if state["history"] and self.settings.metric == "auto":  # what it stood for until now
            names = (name for name in (*METRICS, "loss") if name in state["history"][-1])
            self.metric = next(names, self.metric)
        if state["history"] and self.metric not in state["history"][-1]:
            raise ConfigError(
                f"the run selected its best weights by a metric other than {self.metric}; leave "
                "out training.metric, or train in another folder"
            )
        known = self.job.rank < state.get("processes", 1)
        rank = self.job.rank if known else None
        checkpoints.restore(checkpoint, self.trained.model, self.optimizer, rank, self.device)
        try:
            before = from_dict(state["config"]).training if "config" in state else None
            self.schedule = Schedule.from_dict(self.settings, state["schedule"], before)
            self.epoch, self.batches_done = state["epoch"], state["batches_done"]
            self.history = state["history"]
            self.statistics = RunningStatistics(**state["statistics"])
        except (KeyError, TypeError) as error:
            raise FolderError(f"{checkpoint.path} is damaged ({error}); train again") from None
        if not known:
            self._seed_generators()

    def _seed_generators(self) -> None:
        """Seed every process differently, so that dropout masks differ; the main one keeps its seed."""
        if not self.job.is_main:
            text = f"{self.settings.seed}:{self.schedule.update}:{self.job.rank}"
            torch.manual_seed(random.Random(text).getrandbits(63))

    def _updates(self) -> Iterator[list[list[Example]]]:
        """Yield the batches of each update, which all belong to the same epoch."""

        def hide(example: Example, rng: random.Random) -> Example:
            return hide_tokens(example, len(self.corpus.target), rng)

        transform = hide if self.trained.config.model.copy else None
        seed, size = self.settings.seed, self.settings.batch_tokens
        while not self.schedule.over():
            done = self.batches_done
            batches = epoch(self.corpus.train, size, seed, self.epoch, done, transform)
            while update := [*itertools.islice(batches, self.settings.gradient_accumulation_steps)]:
                self.batches_done += len(update)
                yield update
            self.epoch, self.batches_done = self.epoch + 1, 0

    def _update(self, batches: list[list[Example]]) -> None:
        """Take one step along the gradient of the mean loss per target token over all batches."""
        settings = self.settings
        tokens = _target_tokens(itertools.chain(*batches))
        losses: list[Tensor] = []
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule.rate()
        self.model.train()
        for batch in batches:
            share = self.job.share(batch)
            loss = self.model(
                # if the share is empty, an example with weight 0 gives the gradients their shapes
                collate(share or batch[:1]).to(self.device),
                label_smoothing=settings.label_smoothing,
                coverage_loss=settings.coverage_loss,
                guided_alignment=settings.guided_alignment or 0.0,
            )
            loss = loss * (_target_tokens(share) / tokens)
            loss.backward()
            losses.append(loss.detach())
        loss = self.job.sum_gradients(self.model, torch.stack(losses).sum())
        norm = self.accelerator.clip_grad_norm_(self.model.parameters(), settings.clip_norm)
        value = loss.item()
        if not (math.isfinite(value) and norm is not None and bool(norm.isfinite())):
            self._require_finite(self.schedule.update + 1, "loss", value, float(norm or 0.0))
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.statistics.add(value, sum(map(len, batches)), tokens)

    def _require_finite(
        self, update: int, kind: str = "loss", loss: float = 0.0, norm: float = 0.0
    ) -> None:
        """Raise a ConfigError for the first of weights, loss and gradients that is not finite.

        Args:
            update: the latest update.
            kind: name of the loss.
            loss: loss of the update, or of the dev set.
            norm: norm of the gradient.
        """
        parameters = [*self.trained.model.named_parameters()]
        values = [
            *((f"weights of {name}", parameter) for name, parameter in parameters),
            (kind, torch.tensor(loss, dtype=torch.float64)),
            *((f"gradient of {name}", p.grad) for name, p in parameters if p.grad is not None),
            ("norm of the gradient", torch.tensor(norm, dtype=torch.float64)),
        ]
        for name, value in values:
            if not bool(value.isfinite().all()):
                became = "infinite or NaN" if value.dim() else value.item()
                raise ConfigError(
                    f"the {name} became {became} at update {update:,}; train again with a lower "
                    f"training.learning_rate (now {self.settings.learning_rate})"
                )

    def _validate(self, progress: Progress) -> None:
        """Evaluate on the dev set, keep the best weights and save a checkpoint."""
        started = _clock()
        self.model.eval()
        loss = self._dev_loss()
        self._require_finite(self.schedule.update, "dev loss", loss)
        metric = METRICS.get(self.metric)  # None for the loss
        sources = self.corpus.dev_sources if metric else self.corpus.dev_sources[:3]
        translator = Translator(self.trained, self.device)  # prepares the current weights
        own = [
            output.text
            for chunk in chunks_of(self.job.share(sources), _CHUNK, lambda source: len(source[0]))
            for output in translator.translate(chunk, beam_size=1)
        ]
        texts = self.job.merge(self.job.gather(own))
        value = loss
        if metric:
            value = metric.compute(texts, self.corpus.normalized_references).value
        seconds = _clock() - started
        # the values of the main process are decisive
        loss, value, seconds = self.job.gather_numbers([loss, value, seconds])[0]
        sign = -1 if metric is None or metric.lower_is_better else 1
        worst = math.inf if metric is None else metric.worst
        best = self.schedule.validated(sign * value, loss, sign * worst)
        minutes = round(self.schedule.seconds / 60, 3)
        self.schedule.seconds += seconds
        entry = {
            "update": self.schedule.update,
            "epoch": self.epoch,
            "minutes": minutes,
            "train_loss": self.statistics.loss(),
            "dev_loss": loss,
            self.metric: value,
            "learning_rate": self.schedule.rate(),
            "pairs_per_second": self.statistics.per_second(self.statistics.pairs),
            "target_tokens_per_second": self.statistics.per_second(self.statistics.target_tokens),
            "best": best,
        }
        self.history.append(entry)
        self.statistics = RunningStatistics()
        self._save_checkpoint()
        track(self.accelerator, entry)
        progress.print(
            f"update {entry['update']:,}, {entry['minutes']:.1f} min: train loss "
            f"{entry['train_loss']:.3f}, dev loss {loss:.3f}, dev {self.metric} {value:.2f}"
            f"{' (best so far)' if best else ''}, {entry['pairs_per_second']:,.0f} pairs/s"
        )
        for source, text in zip(sources[:3], texts, strict=False):
            progress.print(f"    {split_source(source)[0]} -> {text}")

    @torch.inference_mode()
    def _dev_loss(self) -> float:
        examples = self.corpus.dev
        total, tokens = 0.0, 0
        batches = bucket([example.size for example in examples], self.settings.batch_tokens)
        for indices in self.job.share(batches):
            batch = collate([examples[index] for index in indices])
            total += float(self.model(batch.to(self.device))) * batch.target_tokens
            tokens += batch.target_tokens
        total, tokens = map(sum, zip(*self.job.gather_numbers([total, float(tokens)]), strict=True))
        return total / tokens

    def _save_checkpoint(self) -> None:
        self._require_finite(self.schedule.update)
        generators = self.job.gather(checkpoints.generator_states(self.device))
        if not self.job.is_main:
            return
        checkpoints.require_lock(self.out)
        state = {
            "config": dataclasses.asdict(self.trained.config),
            "schedule": self.schedule.to_dict(),
            "epoch": self.epoch,
            "batches_done": self.batches_done,
            "training_fingerprint": self.trained.metadata["training_fingerprint"],
            "dev_fingerprint": self.dev_fingerprint,
            "varying_fingerprint": self.varying_fingerprint,
            "history": self.history,
            "statistics": dataclasses.asdict(self.statistics),
            "processes": self.job.processes,
            **({"run": self.run} if self.run else {}),
        }
        model, optimizer = self.trained.model, self.optimizer
        checkpoints.save(self.out, model, optimizer, state, generators)
        self.write_results()
        self._saved = time.monotonic()
        self.statistics.restart_clock()

    def write_results(self) -> None:
        """Write metrics.jsonl, and the weights if they are the best so far; the last checkpoint contains both."""
        lines = (json.dumps(entry) + "\n" for entry in self.history)
        write_text(self.out / "metrics.jsonl", "".join(lines))
        if checkpoints.holds_best_weights(self.history, self.schedule.update):
            model_folder.save_weights(self.out, self.trained.model, self.run)


def _clock() -> float:
    """Return a time in seconds that stands still while this thread compiles kernels."""
    return time.perf_counter() - compile_seconds()


def _target_tokens(examples: Iterable[Example]) -> int:
    """Return the number of target tokens, EOS included."""
    return sum(example.size[1] for example in examples)
