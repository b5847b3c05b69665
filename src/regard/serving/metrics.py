"""Prometheus metrics of the server."""

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
    """Counts and durations of requests, queue length and batch sizes."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self.requests = Counter(
            "regard_requests", "Responses sent.", ["path", "status"], registry=registry
        )
        self.latency = Histogram(
            "regard_request_seconds",
            "Seconds from request to response.",
            ["path"],
            registry=registry,
            buckets=_SECONDS,
        )
        self.queue = Gauge(
            "regard_queue_texts", "Texts waiting.", registry=registry, multiprocess_mode="livesum"
        )
        self.batch = Histogram(
            "regard_batch_texts", "Texts per batch.", registry=registry, buckets=_TEXTS
        )
        self._registry = registry

    def text(self) -> bytes:
        """Return the metrics of all worker processes together, in the Prometheus text format."""
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return generate_latest(self._registry)
        merged = CollectorRegistry()
        MultiProcessCollector(merged)
        return generate_latest(merged)


class RequestMetrics:
    """ASGI middleware that counts and times every request."""

    def __init__(self, app: "ASGIApp", metrics: Metrics) -> None:
        self.app = app
        self.metrics = metrics

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.perf_counter(), 499

        async def record_status(message: "Message") -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, record_status)
        except Exception:
            status = 500
            raise
        finally:
            # the path of the route: arbitrary URLs must not create new counters
            path = getattr(scope.get("route"), "path", "other")
            self.metrics.requests.labels(path, str(status)).inc()
            self.metrics.latency.labels(path).observe(time.perf_counter() - started)
