"""Learning-rate schedule: warm-up, constant or decaying rate, cooldown to 0 at the end of the budget.

The budget is a number of updates, minutes, or both; the run ends when the first of
them is used up. When the validation metric stops improving, the cooldown begins early; the run ends
when the learning rate reaches 0.
"""

import dataclasses
import math
from typing import Any

from regard.config import TrainingConfig


@dataclasses.dataclass(frozen=True)
class Cooldown:
    """The decay of the learning rate to 0 that ends a run."""

    update: int
    """Update at which the decay begins."""
    seconds: float
    """Training time at which the decay begins."""
    end_update: int | None
    """Update at which the decay ends; None: at the end of the budget."""


@dataclasses.dataclass
class Schedule:
    """The state of a run: budget used, best validation, learning rate.

    `to_dict` returns the state for saving, and `from_dict` restores it.
    """

    config: TrainingConfig
    update: int = 0
    """Updates done."""
    seconds: float = 0.0
    """Training time, excluding interruptions."""
    best: float | None = None
    """Best metric value so far; higher is better."""
    best_loss: float = math.inf
    """Dev loss of the best weights."""
    validations_since_best: int = 0
    """Validations since the last improvement."""
    plateau_factor: float = 1.0
    """Factor applied to the learning rate, halved by the plateau schedule."""
    cooldown: Cooldown | None = None
    """The cooldown, once it has begun."""

    def __post_init__(self) -> None:
        self._max_seconds = 60 * (self.config.max_minutes or math.inf)

    @classmethod
    def from_dict(
        cls, config: TrainingConfig, values: dict[str, Any], before: TrainingConfig | None = None
    ) -> "Schedule":
        """Restore the result of `to_dict`.

        A cooldown is undone if what began it has been increased: the budget, or the patience. The
        halvings of the learning rate are undone if the rate or the kind of schedule has been changed.

        Args:
            config: the settings from now on.
            values: the state.
            before: the settings until now (default: the same).
        """
        before, values = before or config, {**values}
        cooldown = values.pop("cooldown")
        schedule = cls(config, **values)
        if (config.learning_rate, config.schedule) != (before.learning_rate, before.schedule):
            schedule.plateau_factor = 1.0
        if cooldown is not None:
            cooldown = Cooldown(**cooldown)
            if cooldown.end_update is None:
                has_begun = schedule.used() >= 1 - config.cooldown
            else:
                has_begun = config.patience <= before.patience
            schedule.cooldown = cooldown if has_begun else None
        return schedule

    def rate(self) -> float:
        """Return the learning rate for the next update."""
        config = self.config
        warm = min(1.0, (self.update + 1) / config.warmup) if config.warmup else 1.0
        rate = config.learning_rate * warm * self.plateau_factor
        if config.schedule == "inverse_sqrt":
            rate *= math.sqrt(max(1, config.warmup) / max(config.warmup, self.update + 1, 1))
        return rate * self._cooldown_factor()

    def advance(self, seconds: float) -> None:
        """Count one update, which took `seconds`."""
        self.update += 1
        self.seconds += seconds
        if self.cooldown is None and self.used() >= 1 - self.config.cooldown:
            self.cooldown = Cooldown(self.update, self.seconds, None)

    def validated(self, value: float, loss: float, worst: float = -math.inf) -> bool:
        """Record a metric value (higher is better, NaN is worst); return whether the weights are the best.

        Of equal values, the lower dev loss wins. At the worst value of the metric, such as 0 at the beginning
        of a run for a metric that counts whole outputs, a lower dev loss is also an improvement.
        """
        value = -math.inf if math.isnan(value) else value
        improved = self.best is None or value > self.best
        best = improved or (value == self.best and loss < self.best_loss)
        if best:
            self.best, self.best_loss = value, loss
        if improved or (best and value == worst):
            self.validations_since_best = 0
            return True
        self.validations_since_best += 1
        config = self.config
        if (
            config.schedule == "plateau"
            and self.validations_since_best % (config.plateau_patience + 1) == 0
        ):
            self.plateau_factor /= 2
        if self.validations_since_best >= config.patience and self.cooldown is None:
            share = config.cooldown / (1 - config.cooldown)
            end = min(config.max_updates, self.update + math.ceil(share * self.update))
            self.cooldown = Cooldown(self.update, self.seconds, end)
        return best

    def used(self) -> float:
        """Return the fraction of the budget that has been used."""
        return max(self.update / self.config.max_updates, self.seconds / self._max_seconds)

    def over(self) -> bool:
        """Return whether the run has ended."""
        return self.used() >= 1 or self._cooldown_factor() <= 0

    @property
    def ends_early(self) -> bool:
        """Whether the run ends before its budget does, because the metric stopped improving."""
        early = self.cooldown is not None and self.cooldown.end_update is not None
        return early and self.used() < 1

    def ending(self) -> str:
        """Return the setting to increase for a longer run, and by how much if that is not evident."""
        if self.ends_early:
            # below the first number, the next validation without improvement would end it again
            least = max(self.validations_since_best, self.config.patience)
            return f"training.patience above {least}"
        by_updates = self.update / self.config.max_updates >= self.seconds / self._max_seconds
        return "training.max_updates" if by_updates else "training.max_minutes"

    def remaining(self) -> float:
        """Return the estimated seconds until the end of the budget, at the speed so far."""
        end = (self.cooldown and self.cooldown.end_update) or self.config.max_updates
        by_updates = (end - self.update) * self.seconds / max(1, self.update)
        return max(0.0, min(by_updates, self._max_seconds - self.seconds))

    def to_dict(self) -> dict[str, Any]:
        """Return the state, without the settings, for saving."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "config"}

    def _cooldown_factor(self) -> float:
        start = self.cooldown
        if start is None:
            return 1.0
        if self.used() >= 1:
            # also if one slow update used up the rest of the budget
            return 0.0
        end = start.end_update or self.config.max_updates
        length = end - start.update  # 0 with cooldown 0
        by_updates = (self.update - start.update) / length if length > 0 else 1.0
        by_time = (self.seconds - start.seconds) / max(1e-9, self._max_seconds - start.seconds)
        return max(0.0, 1 - max(by_updates, by_time))
