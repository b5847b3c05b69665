"""The processes of one training job, which torchrun or `accelerate launch` starts.

Gradients are summed over the backend of their device (NCCL or gloo). Everything else is exchanged over
gloo, which notices at once that a process has ended, where NCCL waits for it.
"""

import atexit
import contextlib
import functools
import os
import signal
import threading
from collections.abc import Generator, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.rendezvous import rendezvous

from regard.errors import ConfigError, JobError, is_out_of_memory

_T = TypeVar("_T")

_SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
"""Environment variables in which launchers, and Accelerate, have the number of processes."""


class Job(NamedTuple):
    """The processes that train one model together, seen by one of them."""

    rank: int = 0
    """Index of this process."""
    processes: int = 1
    """Number of processes."""

    @property
    def is_main(self) -> bool:
        """Whether this process writes the files and the messages."""
        return self.rank == 0

    def share(self, items: Sequence[_T]) -> Sequence[_T]:
        """Return the part of this process, which may be empty: every n-th item of n processes."""
        return items[self.rank :: self.processes]

    def merge(self, shares: Sequence[Sequence[_T]]) -> list[_T]:
        """Return the items of all shares, in their order."""
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
        """Return when every process has come here.

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
            self.wait()  # NCCL would not notice that a process has ended
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        vector = torch.cat([*(gradient.flatten() for gradient in gradients), loss.view(1)])
        with _noticing_an_end():
            distributed.all_reduce(vector)
        nn.utils.vector_to_parameters(vector[:-1], gradients)
        return vector[-1]


def join(device: torch.device) -> Job:
    """Return the job that this process belongs to; of one process where no launcher started several.

    Raises:
        ConfigError: the device cannot be used by several processes, they are more than the GPUs, or
            another launcher than these started them.
        JobError: a process has ended.
    """
    if not launched():
        _refuse_other_launchers()
        return Job()
    backend = "gloo"
    if device.type == "cuda":
        index, gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        if index >= gpus:
            raise ConfigError(
                f"process {index + 1} of this machine has no GPU of its own: start {gpus} here, or "
                "set device to cpu"
            )
        torch.cuda.set_device(index)
        backend = "cpu:gloo,cuda:nccl"
    elif device.type != "cpu":
        raise ConfigError(f"several processes cannot train on {device.type}; set device to cpu")
    if not distributed.is_initialized():
        rank, processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        with _noticing_an_end():
            distributed.init_process_group(backend, store=store(), rank=rank, world_size=processes)
        atexit.register(_leave)
    return Job(distributed.get_rank(), distributed.get_world_size())


def launched() -> bool:
    """Return whether a launcher started this process as one of several."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def _refuse_other_launchers() -> None:
    for name in _SIZES:
        if os.environ.get(name, "1") != "1":
            raise ConfigError(
                f"{name}={os.environ[name]} says that this is one of several processes, but only "
                "torchrun and accelerate launch start them so that they can train together; use one "
                f"of these, or unset {name}"
            )


@functools.cache
def store() -> Store:
    """Return the key-value store of the job, at the address that the launcher gives."""
    return next(rendezvous("env://"))[0]


def _leave() -> None:
    if distributed.is_initialized():
        distributed.destroy_process_group()


@contextlib.contextmanager
def _noticing_an_end() -> Generator[None]:
    """Raise a JobError where an exchange fails because a process has ended."""
    try:
        yield
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        if threading.current_thread() is threading.main_thread():
            # the launcher ends this process too, which has yet to say why
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise JobError(
            "another process of the job ended, so training stopped; start all of them again with the "
            "setting resume to continue from the last checkpoint"
        ) from error
