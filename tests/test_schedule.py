import dataclasses
import itertools
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.config import TrainingConfig
from regard.schedule import Schedule


def schedule(**settings: Any) -> Schedule:
    defaults: dict[str, Any] = {"learning_rate": 1.0, "warmup": 0, "cooldown": 0.0}
    return Schedule(TrainingConfig(**{**defaults, "schedule": "constant", **settings}))


def rates(run: Schedule, seconds: float = 1.0, limit: int = 10_000) -> list[float]:
    """Return the rate of every update until the run is over."""
    values: list[float] = []
    while not run.over():
        assert len(values) < limit
        values.append(run.rate())
        run.advance(seconds)
    return values


def test_the_rate_rises_from_zero_during_the_warm_up() -> None:
    assert rates(schedule(warmup=4, max_updates=6)) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_without_warm_up_the_rate_starts_at_its_maximum() -> None:
    assert rates(schedule(max_updates=3, learning_rate=0.5)) == [0.5, 0.5, 0.5]


def test_inverse_sqrt_continues_the_warm_up_and_decays() -> None:
    values = rates(schedule(schedule="inverse_sqrt", warmup=4, max_updates=100))
    assert values[:4] == [0.25, 0.5, 0.75, 1.0]
    assert values[15] == pytest.approx(math.sqrt(4 / 16))
    assert values[99] == pytest.approx(math.sqrt(4 / 100))


def test_inverse_sqrt_without_warm_up_decays_from_the_first_update() -> None:
    values = rates(schedule(schedule="inverse_sqrt", max_updates=4))
    assert values == pytest.approx([1 / math.sqrt(n) for n in (1, 2, 3, 4)])


def test_plateau_halves_the_rate_after_validations_without_improvement() -> None:
    run = schedule(schedule="plateau", plateau_patience=1, patience=99, max_updates=99)
    best = [run.validated(value, 0.0) for value in (1.0, 1.0, 0.5, 2.0, 1.0, 2.0, 0.0, 0.0)]
    assert best == [True, False, False, True, False, False, False, False]
    assert run.rate() == 0.125
    assert (run.best, run.validations_since_best) == (2.0, 4)


def test_of_equal_values_the_lower_loss_is_the_best_and_improves_only_on_the_worst() -> None:
    run = schedule(patience=99, max_updates=99)
    validations = [
        (0.0, 3.0),
        (0.0, 2.0),
        (0.0, 2.5),
        (0.0, 1.0),
        (5.0, 4.0),
        (5.0, 3.0),
        (0.0, 0.5),
    ]
    best, since = [], []
    for validation in validations:
        best.append(run.validated(*validation, worst=0.0))
        since.append(run.validations_since_best)
    assert best == [True, True, False, True, True, True, False]
    assert since == [0, 0, 1, 0, 0, 1, 2]
    assert (run.best, run.best_loss) == (5.0, 3.0)


@pytest.mark.parametrize(("value", "waits"), [(0.0, True), (100.0, False)])
def test_at_the_worst_value_patience_and_plateau_wait_while_the_loss_improves(
    value: float, waits: bool
) -> None:
    run = schedule(schedule="plateau", plateau_patience=0, patience=2, max_updates=99)
    for loss in range(9, 0, -1):
        run.validated(value, float(loss), worst=0.0)
    assert (run.plateau_factor == 1.0 and run.cooldown is None) == waits


def test_other_schedules_do_not_halve() -> None:
    run = schedule(patience=99, max_updates=99)
    for _ in range(9):
        run.validated(0.0, 0.0)
    assert run.rate() == 1.0


def test_the_cooldown_ends_at_zero_with_the_updates() -> None:
    run = schedule(max_updates=10, cooldown=0.5)
    assert rates(run) == pytest.approx([1, 1, 1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2])
    assert run.rate() == 0
    assert run.update == 10


def test_the_cooldown_ends_at_zero_with_the_minutes() -> None:
    run = schedule(max_updates=10**6, max_minutes=1.0, cooldown=0.5)
    values = rates(run, seconds=6.0)
    assert values == pytest.approx([1, 1, 1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2])
    assert run.rate() == 0
    assert run.seconds == 60


def test_the_first_budget_used_up_ends_the_run() -> None:
    assert len(rates(schedule(max_updates=5, max_minutes=1.0), seconds=1.0)) == 5
    assert len(rates(schedule(max_updates=500, max_minutes=0.05), seconds=1.0)) == 3


def test_exhausted_patience_begins_a_short_cooldown() -> None:
    run = schedule(max_updates=1000, cooldown=0.2, patience=2)
    for _ in range(40):
        run.advance(1.0)
    assert [run.validated(1.0, 0.0) for _ in range(3)] == [True, False, False]
    values = rates(run)
    assert len(values) == 10  # a fifth of the 50 updates of the whole run
    assert values == pytest.approx([1 - n / 10 for n in range(10)])
    assert run.rate() == 0
    assert run.update == 50


def test_without_cooldown_exhausted_patience_ends_the_run_at_once() -> None:
    run = schedule(max_updates=100, patience=1)
    for value in (1.0, 0.5):
        for _ in range(10):
            run.advance(1.0)
        run.validated(value, 1.0)
    assert run.over()


def test_an_improvement_resets_patience() -> None:
    run = schedule(max_updates=1000, patience=2)
    for value in (1.0, 0.0, 2.0, 0.0, 3.0, 0.0):
        run.validated(value, 0.0)
    assert run.cooldown is None


def test_an_improvement_during_the_cooldown_does_not_stop_it() -> None:
    run = schedule(max_updates=100, cooldown=0.5)
    for _ in range(60):
        run.advance(1.0)
    cooldown = run.cooldown
    assert run.validated(1.0, 0.0)
    assert run.cooldown == cooldown is not None


@given(
    updates=st.integers(1, 80),
    cooldown=st.floats(0, 0.9),
    minutes=st.none() | st.floats(0.01, 2.0),
    every=st.integers(1, 9),
    patience=st.integers(1, 4),
    kind=st.sampled_from(["constant", "plateau", "inverse_sqrt"]),
    warmup=st.integers(0, 20),
)
def test_runs_end_within_their_budget_and_rates_stay_in_bounds(
    updates: int,
    cooldown: float,
    minutes: float | None,
    every: int,
    patience: int,
    kind: str,
    warmup: int,
) -> None:
    run = schedule(
        max_updates=updates,
        cooldown=cooldown,
        max_minutes=minutes,
        patience=patience,
        schedule=kind,
        warmup=warmup,
    )
    for number in itertools.count(1):
        assert 0 < run.rate() <= 1
        run.advance(1.0)
        if number % every == 0:
            run.validated(0.0, 0.0)
        assert run.remaining() >= 0
        if run.over():
            break
    assert run.update <= updates
    assert run.seconds <= 60 * (minutes or math.inf) + 1.0


def test_the_remaining_time_is_estimated_from_the_speed_so_far() -> None:
    run = schedule(max_updates=100)
    for _ in range(20):
        run.advance(0.5)
    assert run.remaining() == pytest.approx(40.0)
    timed = schedule(max_updates=100, max_minutes=0.5)
    timed.advance(10.0)
    assert timed.remaining() == pytest.approx(20.0)


def stopped_early() -> Schedule:
    run = schedule(schedule="plateau", plateau_patience=0, patience=3, max_updates=60, cooldown=0.4)
    for _ in range(30):
        run.advance(0.7)
    for value in (1.0, 0.5, 0.5, 0.5):
        run.validated(value, 0.0)
    return run


def test_a_restored_schedule_continues_exactly() -> None:
    run = stopped_early()
    restored = Schedule.from_dict(run.config, run.to_dict())
    assert restored == run
    assert json.loads(json.dumps(run.to_dict()))["update"] == 30
    assert rates(restored) == rates(run) != []


def test_changed_settings_undo_what_they_had_begun() -> None:
    run = stopped_early()
    assert run.ends_early
    assert run.plateau_factor == 1 / 8

    def restored(**settings: Any) -> Schedule:
        config = dataclasses.replace(run.config, **settings)
        return Schedule.from_dict(config, run.to_dict(), run.config)

    for changes, ends_early, factor in (
        ({"max_updates": 600}, True, 1 / 8),
        ({"patience": 2}, True, 1 / 8),
        ({"patience": 4}, False, 1 / 8),
        ({"schedule": "constant"}, True, 1),
        ({"learning_rate": 2.0}, True, 1),
    ):
        changed = restored(**changes)
        assert (changed.ends_early, changed.plateau_factor) == (ends_early, factor)
    assert restored(patience=4, learning_rate=2.0, schedule="constant").rate() == 2.0


def test_the_setting_that_ends_a_run_is_named() -> None:
    run = schedule(max_updates=10, max_minutes=1.0, cooldown=0.5, patience=2)
    run.advance(5.0)
    assert run.ending() == "training.max_updates"
    run.advance(30.0)
    assert run.ending() == "training.max_minutes"
    early = schedule(max_updates=100, cooldown=0.5, patience=2)
    early.advance(1.0)
    for value in (1.0, 0.5, 0.5):
        early.validated(value, 0.0)
    assert early.ending() == "training.patience above 2"
    early.validated(2.0, 0.0)  # the best so far, in the cooldown
    assert early.ending() == "training.patience above 2"
    slow = schedule(max_updates=100, max_minutes=1.0, cooldown=0.4, patience=1)
    slow.advance(17.0)
    for value in (1.0, 0.5):
        slow.validated(value, 0.0)
    assert slow.ends_early
    slow.advance(43.0)  # the rest of the time, before the cooldown has ended
    assert slow.over()
    assert not slow.ends_early
    assert slow.ending() == "training.max_minutes"
