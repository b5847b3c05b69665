"""Requests of many clients, computed together.

One thread computes; while it does, requests queue up, and those that ask for the same kind of search
go into the next batch together. A batch gives what its texts give one by one, so nobody can tell.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from regard.serving.limits import Limits
from regard.serving.metrics import Metrics
from regard.translation import Translation
from regard.translator import Pins, TextOrTokens, Translator

_ROWS = 20_480
"""Symbols times open hypotheses that are computed at once."""


class Busy(Exception):
    """The queue is full; the client should come again later."""


class Search(NamedTuple):
    """What must be equal for texts to be computed together."""

    model: int = 0
    beam_size: int = 5
    n_best: int = 1
    length_penalty: float = 1.0
    ablate_heads: tuple[tuple[int, int], ...] = ()
    return_tree: bool = False


@dataclass(eq=False)
class _Job:
    texts: Sequence[str]
    prefixes: Sequence[TextOrTokens]
    pins: Sequence[Pins]
    search: Search
    work: int
    """Symbols times open hypotheses."""
    answer: "asyncio.Future[list[list[Translation]]]" = field(repr=False)


class Batcher:
    """The queue in front of the models, and the one thread that computes."""

    def __init__(self, translators: Sequence[Translator], limits: Limits, metrics: Metrics) -> None:
        self.translators = translators
        self.limits = limits
        self.metrics = metrics
        self._jobs: deque[_Job] = deque()
        self._calls = 0
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "regard")

    async def translate(
        self,
        texts: Sequence[str],
        search: Search,
        prefixes: Sequence[TextOrTokens],
        pins: Sequence[Pins],
        work: int = 0,
    ) -> list[list[Translation]]:
        """The outputs of each text, best first.

        Args:
            texts: sources.
            search: how.
            prefixes: what each output begins with.
            pins: weights of each text.
            work: about how much it is, in symbols times open hypotheses.

        Raises:
            Busy: the queue is full.
            TimeoutError: there was no answer in time.
            RegardError: the model cannot do what is asked.
        """
        waiting = sum(len(job.texts) for job in self._jobs if not job.answer.done())
        if waiting + len(texts) > self.limits.queue:
            raise Busy
        answer = asyncio.get_running_loop().create_future()
        job = _Job(texts, prefixes, pins, search, work, answer)
        self._jobs.append(job)
        self._arrived.set()
        self.metrics.queue.set(waiting + len(texts))
        # giving up cancels the answer, and a cancelled job is not computed any more
        return await asyncio.wait_for(job.answer, self.limits.timeout)

    async def compute(self, function: Callable[[], Any]) -> Any:
        """Call something else that needs a model, in its turn.

        Raises:
            Busy: too many calls wait.
            TimeoutError: there was no answer in time.
        """
        if self._calls >= self.limits.explain_queue:
            raise Busy
        self._calls += 1
        try:
            found = asyncio.get_running_loop().run_in_executor(self._thread, function)
            return await asyncio.wait_for(found, self.limits.timeout)
        finally:
            self._calls -= 1

    async def run(self) -> None:
        """Compute batches until cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self._arrived.wait()
                await asyncio.sleep(self.limits.wait)
                batch = self._next()
                if batch:
                    await loop.run_in_executor(self._thread, self._answer, loop, batch)
        finally:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _next(self) -> list[_Job]:
        """The jobs that can be computed with the one that waits longest."""
        waiting = [job for job in self._jobs if not job.answer.done()]
        chosen: list[_Job] = []
        texts = work = 0
        for job in waiting:
            small = texts + len(job.texts) <= self.limits.batch
            fits = not chosen or (small and work + job.work <= self.limits.work)
            if fits and job.search == waiting[0].search:
                chosen.append(job)
                texts += len(job.texts)
                work += job.work
        taken = set(map(id, chosen))
        self._jobs = deque(job for job in waiting if id(job) not in taken)
        if not self._jobs:
            self._arrived.clear()
        self.metrics.queue.set(sum(len(job.texts) for job in self._jobs))
        if chosen:
            self.metrics.batch.observe(texts)
        return chosen

    def _answer(self, loop: asyncio.AbstractEventLoop, batch: list[_Job]) -> None:
        """Compute a batch; if something in it is wrong, each of its jobs by itself."""
        batch = [job for job in batch if not job.answer.done()]
        if not batch:
            return
        try:
            found = self._compute(batch)
        except BaseException as error:  # a panic of compiled code is no Exception
            if len(batch) > 1:
                for job in batch:
                    self._answer(loop, [job])
                return
            wrong = error if isinstance(error, Exception) else RuntimeError(repr(error))
            loop.call_soon_threadsafe(_settle, batch[0], wrong)
            return
        start = 0
        for job in batch:
            loop.call_soon_threadsafe(_settle, job, found[start : start + len(job.texts)])
            start += len(job.texts)

    def _compute(self, batch: list[_Job]) -> list[list[Translation]]:
        search = batch[0].search
        found = self.translators[search.model].translate(
            [text for job in batch for text in job.texts],
            search.beam_size,
            search.n_best,
            search.length_penalty,
            _ROWS // max(search.beam_size, search.n_best),
            prefix=[prefix for job in batch for prefix in job.prefixes],
            pin=[pins for job in batch for pins in job.pins],
            ablate_heads=search.ablate_heads,
            return_tree=search.return_tree,
        )
        return found if search.n_best > 1 else [[one] for one in found]


def _settle(job: _Job, found: list[list[Translation]] | BaseException) -> None:
    if job.answer.done():  # the client has given up
        return
    if isinstance(found, BaseException):
        job.answer.set_exception(found)
    else:
        job.answer.set_result(found)
