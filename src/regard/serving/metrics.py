"""What the server counts, in the text format of Prometheus."""

import os
import time
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Requests, their latency, the queue and the batches."""

    def __init__(self) -> None:
        own = CollectorRegistry()
        self.requests = Counter(
            "regard_requests", "Requests answered.", ["path", "status"], registry=own
        )
        self.latency = Histogram(
            "regard_request_seconds",
            "From a request to its answer.",
            ["path"],
            registry=own,
            buckets=_SECONDS,
        )
        self.queue = Gauge(
            "regard_queue_texts", "Texts waiting.", registry=own, multiprocess_mode="livesum"
        )
        self.batch = Histogram(
            "regard_batch_texts", "Texts computed together.", registry=own, buckets=_TEXTS
        )
        self._registry = own

    def text(self) -> bytes:
        """All figures; of all worker processes where there are several."""
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return generate_latest(self._registry)
        together = CollectorRegistry()
        MultiProcessCollector(together)
        return generate_latest(together)


class RequestMetrics:
    """Counts and times every request."""

    def __init__(self, app: "ASGIApp", metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.perf_counter(), 499

        async def counted(message: "Message") -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, counted)
        except Exception:
            status = 500
            raise
        finally:
            # the route's own path: what clients make up must not make new counters
            path = getattr(scope.get("route"), "path", "other")
            self.metrics.requests.labels(path, str(status)).inc()
            self.metrics.latency.labels(path).observe(time.perf_counter() - started)
