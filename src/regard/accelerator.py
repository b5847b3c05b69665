"""The Accelerator of a training run: device, precision and experiment trackers."""

import contextlib
import dataclasses
import warnings
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

from regard.adaptation import has_fast_bfloat16
from regard.config import GROUPS, Config, Precision
from regard.errors import ConfigError
from regard.translator import find_device

with warnings.catch_warnings():  # of tqdm, about progress bars in notebooks that are not used here
    warnings.filterwarnings("ignore", "IProgress not found")
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState, PartialState
    from accelerate.tracking import get_available_trackers


@contextlib.contextmanager
def separate_state() -> Generator[None]:
    """Give a run its own device and precision, and the Accelerator of the caller its state back afterwards.

    Accelerate shares this state within the process.
    """
    kinds = (AcceleratorState, GradientState, PartialState)
    shared = [kind._shared_state for kind in kinds]  # pyright: ignore[reportPrivateUsage]
    before = [dict(state) for state in shared]
    try:
        yield
    finally:
        for state, values in zip(shared, before, strict=True):
            state.clear()
            state.update(values)


def make_accelerator(config: Config, out: Path) -> Accelerator:
    """Return the Accelerator for these settings; trackers that need a folder write to `out`/tracking.

    Raises:
        ConfigError: the package of the tracker is not installed.
    """
    tracker = config.training.log_with
    if tracker != "none" and tracker not in map(str, get_available_trackers()):
        package = tracker.replace("_", "-")
        raise ConfigError(
            f"training.log_with {tracker} needs the package {package}: pip install {package}"
        )
    device = find_device(config.device)
    # otherwise the Accelerator would keep the device and precision of an earlier one
    AcceleratorState._reset_state(reset_partial_state=True)  # pyright: ignore[reportPrivateUsage]
    return Accelerator(
        mixed_precision="bf16" if precision(config) == "bfloat16" else "no",
        cpu=device.type == "cpu",
        dynamo_backend="no",
        log_with=None if tracker == "none" else tracker,
        project_dir=out / "tracking",
    )


def precision(config: Config) -> Precision:
    """Return the precision of matrix products: float32 on a device that would compute bfloat16 slowly.

    In PyTorch, a CPU without AVX-512 cannot compute an LSTM in bfloat16, and computes other layers many
    times as slowly as in float32.
    """
    wanted = config.training.precision
    is_mps = find_device(config.device).type == "mps"
    return wanted if is_mps or has_fast_bfloat16(config) else "float32"


@contextlib.contextmanager
def tracking(accelerator: Accelerator, config: Config) -> Generator[None]:
    """Start the trackers, if there are any, give them the settings, and stop them after the block.

    Raises:
        ConfigError: a tracker fails; after an error in the block, its failure to stop is ignored.
    """
    groups = dataclasses.asdict(config)
    settings = {
        f"{group}.{name}": "none" if value is None else value
        for group in GROUPS
        for name, value in groups[group].items()
    }
    with _failures_reported(accelerator):
        accelerator.init_trackers("regard", config=settings)
    try:
        yield
    except BaseException:
        with contextlib.suppress(Exception):
            _stop(accelerator)
        raise
    with _failures_reported(accelerator):
        _stop(accelerator)


def track(accelerator: Accelerator, entry: Mapping[str, Any]) -> None:
    """Send the numbers of a validation to the trackers.

    Raises:
        ConfigError: a tracker fails.
    """
    numbers = {name: value for name, value in entry.items() if isinstance(value, int | float)}
    with _failures_reported(accelerator):
        accelerator.log(numbers, step=entry["update"])


@contextlib.contextmanager
def _failures_reported(accelerator: Accelerator) -> Generator[None]:
    """Raise a ConfigError for an error of a tracker, such as a missing key or an unreachable server."""
    try:
        yield
    except Exception as error:  # every tracker has errors of its own
        names = ", ".join(map(str, accelerator.log_with))
        raise ConfigError(
            f"the tracker {names} failed ({' '.join(str(error).split())}); configure it, or continue with "
            "--resume and training.log_with none"
        ) from error


def _stop(accelerator: Accelerator) -> None:
    """Let the trackers write everything that they hold."""
    # not end_training, which also ends the processes' connection
    for tracker in accelerator.trackers:
        tracker.finish()
