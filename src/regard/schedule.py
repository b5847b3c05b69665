"""The learning rate over a run: warm up, hold or fall, cool down to 0 at the end of the budget.

The budget is a number of updates, minutes, or both: what is used up first counts. When validations
stop gaining, the cool-down begins early; a run ends when its rate has come down to 0.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from regard.config import TrainingConfig


@dataclasses.dataclass
class Schedule:
    """Where a run stands: its budget, its gains and its learning rate.

    All of it is saved with `as_dict` and restored with `Schedule(config, **values)`.
    """

    config: TrainingConfig
    update: int = 0
    """Updates done."""
    seconds: float = 0.0
    """Time used, interruptions not counted."""
    best: float | None = None
    """Best validation so far, higher is better."""
    stale: int = 0
    """Validations since the best one."""
    factor: float = 1.0
    """What the plateau schedule has made of the rate."""
    cooling: Sequence[Any] | None = None
    """Once cooling: the update and second it began, and the update it ends with (None: the budget's);
    a list where it comes from JSON."""

    def __post_init__(self) -> None:
        """Take up a saved run, whose budget may have grown since."""
        if self.cooling is not None:
            update, seconds, end = self.cooling
            longer = end is None and self.used() < 1 - self.config.cooldown
            self.cooling = None if longer else (update, seconds, end)

    def rate(self) -> float:
        """The learning rate of the next update."""
        config = self.config
        warm = min(1.0, (self.update + 1) / config.warmup) if config.warmup else 1.0
        rate = config.learning_rate * warm * self.factor
        if config.schedule == "inverse_sqrt":
            rate *= math.sqrt(max(1, config.warmup) / max(config.warmup, self.update + 1, 1))
        return rate * self._cooled()

    def advance(self, seconds: float) -> None:
        """Count one update that took `seconds`."""
        self.update += 1
        self.seconds += seconds
        if self.cooling is None and self.used() >= 1 - self.config.cooldown:
            self.cooling = (self.update, self.seconds, None)

    def validated(self, value: float) -> bool:
        """Take in a validation (higher is better, NaN is worst); True where it is the best so far."""
        value = -math.inf if math.isnan(value) else value
        if self.best is None or value > self.best:
            self.best, self.stale = value, 0
            return True
        self.stale += 1
        config = self.config
        if config.schedule == "plateau" and self.stale % (config.plateau_patience + 1) == 0:
            self.factor /= 2
        if self.stale >= config.patience and self.cooling is None:
            share = config.cooldown / (1 - config.cooldown)
            end = min(config.max_updates, self.update + math.ceil(share * self.update))
            self.cooling = (self.update, self.seconds, end)
        return False

    def used(self) -> float:
        """Share of the budget that is used up."""
        updates = self.update / self.config.max_updates
        return max(updates, self.seconds / (60 * (self.config.max_minutes or math.inf)))

    def over(self) -> bool:
        """True when the run has ended."""
        return self.used() >= 1 or (self.cooling is not None and self._cooled() <= 0)

    def remaining(self) -> float:
        """Seconds until the end of the budget, at the speed so far."""
        end = (self.cooling[2] if self.cooling else None) or self.config.max_updates
        by_updates = (end - self.update) * self.seconds / max(1, self.update)
        by_time = 60 * (self.config.max_minutes or math.inf) - self.seconds
        return max(0.0, min(by_updates, by_time))

    def as_dict(self) -> dict[str, Any]:
        """All but the settings, for saving."""
        values = dataclasses.asdict(self)
        del values["config"]
        return values

    def _cooled(self) -> float:
        if self.cooling is None:
            return 1.0
        if self.used() >= 1:
            # also where one slow update used up what was left to cool down in
            return 0.0
        update, seconds, end = self.cooling
        left = 1 - (self.update - update) / max(1, (end or self.config.max_updates) - update)
        if self.config.max_minutes:
            limit = 60 * self.config.max_minutes
            left = min(left, 1 - (self.seconds - seconds) / max(1e-9, limit - seconds))
        return max(0.0, left)
