"""The processes of one training job, started by torchrun or `accelerate launch`.

Gradients are summed with the backend of their device (NCCL or gloo). Everything else is exchanged with
gloo, which detects immediately that a process has ended, whereas NCCL waits for it.
"""

import atexit
import contextlib
import os
import signal
import threading
from collections.abc import Generator, Iterable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.rendezvous import rendezvous

from regard.errors import ConfigError, JobError, is_out_of_memory

_T = TypeVar("_T")

_SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
"""Environment variables in which launchers and Accelerate store the number of processes."""


_OTHER_WAYS = tuple(
    f"ACCELERATE_USE_{name}"
    for name in ("DEEPSPEED", "FSDP", "MEGATRON_LM", "PARALLELISM_CONFIG", "SAGEMAKER")
)
"""Variables of `accelerate launch` that request another way of training, such as a sharded model."""

_SECONDS_UNTIL_STARTED = 300.0
"""Time for all processes to start, before the job fails."""

_stores: list[Store] = []
"""The store of the job, once it is open."""


class Job(NamedTuple):
    """The processes that train one model together, as seen by one of them."""

    rank: int = 0
    """Index of this process."""
    processes: int = 1
    """Number of processes."""

    @property
    def is_main(self) -> bool:
        """Whether this process writes the files and the messages."""
        return self.rank == 0

    def share(self, items: Sequence[_T]) -> Sequence[_T]:
        """Return the share of this process, which may be empty: with n processes, every n-th item."""
        return items[self.rank :: self.processes]

    def merge(self, shares: Sequence[Sequence[_T]]) -> list[_T]:
        """Return the items of all shares, in their original order."""
        merged: list[_T] = [*shares[0]] * self.processes
        del merged[sum(map(len, shares)) :]
        for rank, items in enumerate(shares):
            merged[rank :: self.processes] = items
        return merged

    def gather(self, value: _T) -> list[_T]:
        """Return the values of all processes, by rank.

        Raises:
            JobError: a process has ended.
        """
        values: list[Any] = [value] * self.processes
        if self.processes > 1:
            with _noticing_an_end():
                distributed.all_gather_object(values, value)
        return values

    def gather_numbers(self, numbers: Sequence[float]) -> list[list[float]]:
        """Return the numbers of all processes, by rank; faster than `gather`.

        Raises:
            JobError: a process has ended.
        """
        row = torch.tensor(numbers, dtype=torch.float64)
        rows = [row] * self.processes
        if self.processes > 1:
            rows = [torch.empty_like(row) for _ in rows]
            with _noticing_an_end():
                distributed.all_gather(rows, row)
        return [values.tolist() for values in rows]

    def wait(self) -> None:
        """Wait until every process has made this call.

        Raises:
            JobError: a process has ended.
        """
        self.gather_numbers([0.0])

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Copy the tensors of the main process into those of the others.

        Raises:
            JobError: a process has ended.
        """
        if self.processes > 1:
            with _noticing_an_end():
                for tensor in tensors:
                    distributed.broadcast(tensor.detach(), 0)

    def sum_gradients(self, model: nn.Module, loss: Tensor) -> Tensor:
        """Sum the gradients of all processes in place, and return the sum of their losses.

        Raises:
            JobError: a process has ended.
        """
        if self.processes == 1:
            return loss
        if loss.is_cuda:
            self.wait()  # NCCL would not detect that a process has ended
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        vector = torch.cat([*(gradient.flatten() for gradient in gradients), loss.view(1)])
        with _noticing_an_end():
            distributed.all_reduce(vector)
        nn.utils.vector_to_parameters(vector[:-1], gradients)
        return vector[-1]


def join(device: torch.device) -> Job:
    """Return the job that this process belongs to: a job of one process if no launcher is used.

    Raises:
        ConfigError: the device cannot be used by several processes, there are more processes than
            GPUs, an unsupported launcher started them, or the process group that is open serves GPUs only.
        JobError: a process has ended, or has not started.
    """
    _refuse_other_launchers()
    if not launched():
        return Job()
    backend = "gloo"
    if device.type == "cuda":
        index, gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if index >= gpus:
            raise ConfigError(
                f"process {index + 1} on this machine has no GPU of its own: start only {gpus} here, or "
                "set device to cpu"
            )
        torch.cuda.set_device(index)
        backend = "cpu:gloo,cuda:nccl"
    elif device.type != "cpu":
        raise ConfigError(f"several processes cannot train on {device.type}; set device to cpu")
    if not distributed.is_initialized():
        rank, processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        _await_all(rank, processes)
        with _noticing_an_end():
            distributed.init_process_group(backend, store=store(), rank=rank, world_size=processes)
        atexit.register(_leave)
    elif "cpu:" not in distributed.get_backend_config():
        raise ConfigError(
            "the process group that is open cannot exchange tensors of the CPU: call "
            f"init_process_group({backend!r}), or let regard open the group"
        )
    return Job(distributed.get_rank(), distributed.get_world_size())


def launched() -> bool:
    """Return whether a launcher started this process as one of several."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def _refuse_other_launchers() -> None:
    """Raise a ConfigError unless the environment is that of one process or of a known launcher."""
    names = ("RANK", "LOCAL_RANK", *_SIZES)
    given = {name: os.environ[name] for name in names if os.environ.get(name, "-1") != "-1"}
    several = {name: value for name, value in given.items() if name in _SIZES and value != "1"}
    if "RANK" not in given or not (several or os.environ.get("MASTER_ADDR")):
        several |= {name: given[name] for name in given if name == "LOCAL_RANK"}
        if several:
            name, value = next(iter(several.items()))
            raise ConfigError(
                f"{name}={value} means that this is one of several processes, but only processes started by "
                f"torchrun or accelerate launch can train together; use one of these, or "
                f"unset {name}"
            )
    for name, value in given.items():
        below = given.get("WORLD_SIZE", "") if name == "RANK" else ""
        if not value.isdecimal() or (below.isdecimal() and int(value) >= int(below)):
            size = f" of WORLD_SIZE={below}" if below else ""
            raise ConfigError(
                f"{name}={value}{size} is not what a launcher sets; start the processes with torchrun "
                f"or accelerate launch, or unset {name} to train in one process"
            )
    for name in _OTHER_WAYS:
        if os.environ.get(name, "false").lower() not in ("false", "0", "no"):
            raise ConfigError(
                f"{name}={os.environ[name]} requests a training method that is not supported; every "
                "process holds the whole model, in float32 or bfloat16 (training.precision): start "
                f"without this option, or unset {name}"
            )


def store(seconds: float = _SECONDS_UNTIL_STARTED) -> Store:
    """Return the key-value store of the job, at the address that the launcher provides.

    Raises:
        JobError: the process that hosts the store cannot be reached within this time.
    """
    if not _stores:
        try:
            _stores.append(next(rendezvous("env://", timeout=timedelta(seconds=seconds)))[0])
        except (RuntimeError, ValueError, OSError) as error:
            address = ":".join(os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT"))
            raise JobError(
                f"the processes of the job cannot meet at MASTER_ADDR:MASTER_PORT ({address}); start "
                "all of them with torchrun or accelerate launch, or unset RANK and WORLD_SIZE to "
                "train in one process"
            ) from error
    return _stores[0]


def _await_all(rank: int, processes: int) -> None:
    """Wait until all processes have started; PyTorch would wait half an hour for one that has ended.

    Raises:
        JobError: one of them has not started in time.
    """
    keys = [f"started-{number}" for number in range(processes)]
    try:
        store().set(keys[rank], "")
        store().wait(keys, timedelta(seconds=_SECONDS_UNTIL_STARTED))
    except RuntimeError as error:
        raise JobError(
            f"not all of the {processes} processes of the job have started within "
            f"{_SECONDS_UNTIL_STARTED:.0f} seconds, or one has ended; start all of them again"
        ) from error


def _leave() -> None:
    if distributed.is_initialized():
        distributed.destroy_process_group()


@contextlib.contextmanager
def _noticing_an_end() -> Generator[None]:
    """Raise a JobError if an exchange fails because a process has ended."""
    try:
        yield
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        if threading.current_thread() is threading.main_thread():
            # the launcher will end this process too, which first has to report the reason
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise JobError(
            "another process of the job ended, so training stopped; start all of them again and "
            "give --resume (in Python, resume=True) to continue from the last checkpoint"
        ) from error
