"""Dynamic batching: requests from many clients are translated together.

One thread computes. Meanwhile, requests queue up, and those with the same search settings form the
next batch. Each text gets the result that it would get in a batch of its own.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from regard.request import PreparedRequest, Source
from regard.serving.limits import Limits
from regard.serving.metrics import Metrics
from regard.serving.schemas import TranslateRequest
from regard.translation import Translation
from regard.translator import Translator

_BATCH_TOKENS = 20_480
"""Maximum of source tokens times beam size computed at once."""


class QueueFull(Exception):
    """Too many texts or calls are waiting; the client should try again later."""


class _Abandoned(Exception):
    """No client is waiting for the translations of a batch any longer."""


@dataclass(eq=False)
class _Job:
    """A request, its cost (see `Limits.work`), and the future for its translations."""

    request: TranslateRequest
    sources: Sequence[Source]
    work: int
    wanted: bool = True
    """False once the client no longer waits for the translations."""
    result: Future[list[list[Translation]]] = field(default_factory=Future[list[list[Translation]]])


class Batcher:
    """The queue of requests and the thread that translates them."""

    def __init__(self, translators: Sequence[Translator], limits: Limits, metrics: Metrics) -> None:
        self.translators = translators
        self.limits = limits
        self.metrics = metrics
        self._jobs: deque[_Job] = deque()
        self._free_calls = asyncio.Semaphore(limits.explain_queue)
        self._has_jobs = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "regard")

    async def translate(
        self, request: TranslateRequest, prepared: PreparedRequest, work: int = 0
    ) -> list[list[Translation]]:
        """Return the outputs of each text, best first; `work` is the cost of the request.

        The search ends early when all requests of its batch have timed out or are cancelled.

        Raises:
            QueueFull: too many texts are waiting.
            TimeoutError: the result was not available in time.
            RegardError: the model does not support the request.
        """
        texts = self._count_waiting() + len(prepared.sources)
        if texts > self.limits.queue:
            raise QueueFull
        job = _Job(request, prepared.sources, work)
        self._jobs.append(job)
        self._has_jobs.set()
        self.metrics.queue.set(texts)
        try:
            # a timeout cancels the future, and a cancelled job is not computed
            return await asyncio.wait_for(asyncio.wrap_future(job.result), self.limits.timeout)
        finally:
            job.wanted = False
            if job in self._jobs:
                self._jobs.remove(job)
                self.metrics.queue.set(self._count_waiting())

    async def call(self, function: Callable[[], Any]) -> Any:
        """Run a function in the thread that translates, and return its result.

        Raises:
            QueueFull: too many calls are waiting.
            TimeoutError: the result was not available in time.
        """
        if self._free_calls.locked():
            raise QueueFull
        wanted = [function]  # a cancelled call stays in the queue of the thread
        del function  # its error refers to this frame

        def run() -> Any:
            return wanted.pop()() if wanted else None

        try:
            async with self._free_calls:
                result = asyncio.get_running_loop().run_in_executor(self._thread, run)
                return await asyncio.wait_for(result, self.limits.timeout)
        finally:
            wanted.clear()

    def check_ready(self) -> None:
        """Check that another text would be accepted.

        Raises:
            QueueFull: too many texts are waiting.
        """
        if self._count_waiting() >= self.limits.queue:
            raise QueueFull

    async def run(self) -> None:
        """Compute batches until cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self._has_jobs.wait()
                if batch := self._next_batch():
                    await loop.run_in_executor(self._thread, self._run_batch, batch)
        finally:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _count_waiting(self) -> int:
        return sum(len(job.sources) for job in self._jobs)

    def _next_batch(self) -> list[_Job]:
        """Remove the oldest job, and those that can share its batch, from the queue."""
        waiting = [*self._jobs]
        batch: list[_Job] = []
        self._jobs.clear()
        texts = work = 0
        for job in waiting:
            fits = texts + len(job.sources) <= self.limits.batch_texts
            fits = fits and work + job.work <= self.limits.work
            if not batch or (fits and job.request.search == batch[0].request.search):
                batch.append(job)
                texts += len(job.sources)
                work += job.work
            else:
                self._jobs.append(job)
        if not self._jobs:
            self._has_jobs.clear()
        self.metrics.queue.set(self._count_waiting())
        if batch:
            self.metrics.batch.observe(texts)
        return batch

    def _run_batch(self, batch: list[_Job]) -> None:
        """Translate the jobs that are not cancelled."""
        if batch := [job for job in batch if job.result.set_running_or_notify_cancel()]:
            self._finish(batch)

    def _finish(self, batch: list[_Job]) -> None:
        """Translate a batch; after an error, translate each of its jobs separately."""
        try:
            outputs = iter(self._translate(batch))
        except _Abandoned:
            return
        except BaseException as error:  # a panic in compiled code is not an Exception
            if len(batch) > 1:
                for job in batch:
                    self._finish([job])
                return
            reason = error if isinstance(error, Exception) else RuntimeError(repr(error))
            batch[0].result.set_exception(reason)
            return
        for job in batch:
            job.result.set_result(list(itertools.islice(outputs, len(job.sources))))

    def _translate(self, batch: list[_Job]) -> list[list[Translation]]:
        search = batch[0].request
        sources = [source for job in batch for source in job.sources]

        def check_wanted() -> None:
            if not any(job.wanted for job in batch):
                raise _Abandoned

        return self.translators[search.model].search(
            PreparedRequest(sources, tuple(search.ablate_heads)),
            search.beam_size,
            search.n_best,
            search.length_penalty,
            _BATCH_TOKENS // max(search.beam_size, search.n_best),
            return_tree=search.tree,
            top_logprobs=search.top_logprobs,
            on_step=check_wanted,
        )
