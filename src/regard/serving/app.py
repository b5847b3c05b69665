"""The application: settings, routes and error responses."""

import asyncio
import contextlib
import math
import os
import re
import signal
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from fastapi.staticfiles import StaticFiles
from fastapi_offline import FastAPIOffline
from pydantic import TypeAdapter
from starlette.exceptions import HTTPException

from regard import pretrained
from regard.charts.base import script_json
from regard.config import Precision
from regard.decoders.posterior import values_per_position
from regard.errors import ConfigError, RegardError, nearest, quantity, shortened
from regard.explanation.from_model import explain_step
from regard.explanation.self_attention import count_layer_weights, layer_weights
from regard.inference import set_precision, skip_in_garbage_collection
from regard.model_info import describe_model
from regard.request import PreparedRequest, prepare
from regard.score_registry import SCORES
from regard.serving.batching import Batcher, QueueFull
from regard.serving.connections import Connections, limit_log_rate
from regard.serving.hosts import HostCheck, is_loopback
from regard.serving.limits import VALUES_PER_TOKEN, BodyLimit, Limits, error_response
from regard.serving.metrics import Metrics, RequestMetrics
from regard.serving.schemas import (
    ErrorResponse,
    ExplainRequest,
    ExplainResponse,
    SelfAttentionRequest,
    SelfAttentionResponse,
    TranslateRequest,
    TranslateResponse,
    count_pins,
    count_weights,
    layer_weights_response,
    translate_response,
)
from regard.translator import Translator
from regard.version import __version__

PAGE = Path(__file__).parent / "page"
_CONTEXT_VALUES = 8  # components of a context that the page displays
_CONTENT_POLICY = (
    "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'"
)
_TYPE = re.compile(r"str|[\w-]*\[.*\]")
router = APIRouter()


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a server."""

    folder: str
    compare_with: str | None = None
    """A second model folder."""
    example: str | None = None
    """Text translated when the page opens; None: the model's own example."""
    host: str = "127.0.0.1"
    device: str = "auto"
    precision: Precision = "float32"
    """Precision of matrix products on CPUs; float32 replaces bfloat16 on a processor that does not support it."""
    threads: int | None = None
    """PyTorch threads of this process; None: PyTorch's default."""
    limits: Limits = Limits()  # noqa: RUF009


def create_app(settings: Settings) -> FastAPI:
    """Return the application that serves one or two model folders.

    Raises:
        FolderError: a folder is missing or damaged.
        ConfigError: `settings.host` cannot be resolved to an address.
    """
    if settings.threads is not None:
        import torch

        torch.set_num_threads(settings.threads)
    folders = [settings.folder, *([settings.compare_with] if settings.compare_with else [])]
    translators = [Translator.load(folder, settings.device) for folder in folders]
    set_precision(settings.precision)
    skip_in_garbage_collection()
    names = _names([pretrained.find(folder).resolve() for folder in folders])
    models = [describe_model(*model) for model in zip(names, translators, strict=True)]
    metrics = Metrics()
    batcher = Batcher(translators, settings.limits, metrics)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[dict[str, Any]]:
        limit_log_rate()
        task = asyncio.create_task(batcher.run())
        yield {"connections": Connections(settings.limits)}
        task.cancel()

    app = FastAPIOffline(
        title="regard",
        version=__version__,
        description="Translations with their attention weights.",
        lifespan=lifespan,
        redoc_url=None,
        exception_handlers=_ERROR_HANDLERS,
        responses={status: {"model": ErrorResponse} for status in (400, 408, 413, 422, 503, 504)},
    )
    app.state.batcher, app.state.models, app.state.metrics = batcher, models, metrics
    app.state.page = _render_page(models, translators, settings)
    app.include_router(router)
    app.mount("/page", _Page(directory=PAGE))
    app.add_middleware(BodyLimit, limits=settings.limits)
    app.add_middleware(RequestMetrics, metrics=metrics)
    if is_loopback(settings.host):
        app.add_middleware(HostCheck, host=settings.host)
    return app


def _names(folders: Sequence[Path]) -> list[str]:
    """Return the last parts of the paths, as many as distinguish them, but at least two."""
    count, longest = 2, max(len(folder.parts) for folder in folders)
    while count < longest and len({folder.parts[-count:] for folder in folders}) < len({*folders}):
        count += 1
    paths = ["/".join(folder.parts[-count:]) for folder in folders]
    return [os.fsencode(path).decode("utf-8", "replace") for path in paths]


class _Page(StaticFiles):
    """The files of the page, which a browser may keep, but not use without asking whether they have changed."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        """Return a file, or 304 if the browser has it."""
        response = super().file_response(*args, **kwargs)
        response.headers["Cache-Control"] = "no-cache"
        return response


def from_environment() -> FastAPI:
    """Return the application for a worker process, with the settings in REGARD_SERVE."""
    if hasattr(signal, "SIGHUP"):  # the parent process receives it, too, and stops the workers
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return create_app(TypeAdapter(Settings).validate_json(os.environ["REGARD_SERVE"]))


_REQUESTS = {
    "/api/translate": TranslateRequest,
    "/api/explain": ExplainRequest,
    "/api/self-attention": SelfAttentionRequest,
}


def _validation_error(http: Request, invalid: RequestValidationError) -> Response:
    # a field with several possible types has an error for each: report the most deeply nested
    error = max(invalid.errors(), key=lambda error: len(error["loc"]))
    if error["type"] == "json_invalid":
        return error_response(400, f"the body is not valid JSON: {error['ctx']['error']}")
    if error["type"] in ("missing", "model_attributes_type") and len(error["loc"]) == 1:
        reason = "the body must be a JSON object, sent with Content-Type: application/json"
        return error_response(422, reason)
    parts = [str(part) for part in error["loc"][1:]]  # includes type names, such as list[str]
    field = ".".join(parts[:1] + [part for part in parts[1:] if not _TYPE.fullmatch(part)])
    field = shortened(field)
    if error["type"] == "extra_forbidden":
        fields = _REQUESTS[http.scope["route"].path].model_fields
        return error_response(422, f"there is no field {field}{nearest(field, fields)}")
    reason = error["msg"].removeprefix("Value error, ")
    return error_response(422, f"{field}: {reason}" if field else reason)


def _http_error(_: Request, error: HTTPException) -> Response:
    reason = str(error.detail)
    if error.status_code == 400 and "parsing the body" in reason:
        reason = (
            "the body is not JSON encoded in UTF-8, is nested too deeply, or contains a number with "
            "too many digits"
        )
    return error_response(error.status_code, reason, dict(error.headers or {}))


def _error_handler(
    status: int, reason: str | None = None, headers: dict[str, str] | None = None
) -> Callable[[Request, Exception], Response]:
    return lambda _, error: error_response(status, reason or str(error), headers)


_ERROR_HANDLERS = {
    RequestValidationError: _validation_error,
    HTTPException: _http_error,
    RegardError: _error_handler(422),
    QueueFull: _error_handler(
        503, "the queue is full; try again in a second", {"Retry-After": "1"}
    ),
    TimeoutError: _error_handler(
        504, "the request timed out; send shorter or fewer texts, or use a smaller beam size"
    ),
    Exception: _error_handler(500, "internal error; see the server log"),
}
"""Every error response is the JSON object {"error": one sentence}."""


@router.get("/", include_in_schema=False)
async def index(http: Request) -> HTMLResponse:
    """Return the page."""
    return HTMLResponse(http.app.state.page, headers={"Content-Security-Policy": _CONTENT_POLICY})


@router.post("/api/translate", response_model=TranslateResponse)
async def translate(request: TranslateRequest, http: Request) -> Response:
    """Translate one text or several, optionally with interventions."""
    batcher: Batcher = http.app.state.batcher
    translator = _translator(batcher, request.model)
    prepared, work = await asyncio.to_thread(_prepare, request, translator, batcher.limits)
    outputs = await batcher.translate(request, prepared, work)
    remedy = "request fewer outputs, send a shorter text, or omit heads or attention"
    _check_weights(count_weights(request, outputs), batcher.limits, remedy)
    # not validated by pydantic: that takes longer than computing the response
    return await asyncio.to_thread(lambda: JSONResponse(translate_response(request, outputs)))


@router.post("/api/explain", response_model=ExplainResponse)
async def explain(request: ExplainRequest, http: Request) -> Response:
    """Compute one attention step: scores, exponentials, partition, weights, context."""
    batcher: Batcher = http.app.state.batcher
    translator, _ = await asyncio.to_thread(_check_target, request, batcher)
    options = request.model_dump(include={"step", "target", "layer", "head"})
    explanation, _ = await batcher.call(lambda: explain_step(translator, request.source, **options))
    values = explanation.to_dict()
    names = ("score", "labels", "scores", "shift", "exponentials", "partition", "weights")
    context: list[float] = values["context"]
    content = {name: values[name] for name in names}
    formula, _ = SCORES[values["score"]].formula(explanation.parameters)
    content |= {"formula": formula, "context_dim": len(context)}
    return JSONResponse({**content, "context": context[:_CONTEXT_VALUES]})


@router.post("/api/self-attention", response_model=SelfAttentionResponse)
async def self_attention(request: SelfAttentionRequest, http: Request) -> Response:
    """Compute the attention weights of all layers and heads of a Transformer for one output."""
    batcher: Batcher = http.app.state.batcher
    translator, lengths = await asyncio.to_thread(_check_target, request, batcher)
    count, remedy = count_layer_weights(translator, *lengths), "send a shorter text or target"
    _check_weights(count, batcher.limits, remedy)
    arguments = translator, request.source, request.target, request.ablate_heads, request.pin
    weights = await batcher.call(lambda: layer_weights(*arguments))
    return await asyncio.to_thread(lambda: JSONResponse(layer_weights_response(weights)))


@router.get("/api/model")
async def model_info(http: Request, model: int = 0) -> dict[str, Any]:
    """Describe the model."""
    _translator(http.app.state.batcher, model)
    return http.app.state.models[model]


@router.get("/health")
async def health() -> dict[str, str]:
    """Confirm that the server responds (liveness)."""
    return {"status": "ok"}


@router.get("/ready")
async def ready(http: Request) -> dict[str, str]:
    """Confirm that the server can translate (readiness): its model is loaded and the queue is not full."""
    http.app.state.batcher.check_ready()
    return {"status": "ready"}


@router.get("/metrics", response_class=PlainTextResponse)
async def prometheus(http: Request) -> Response:
    """Return request counts, latencies, queue length and batch sizes as Prometheus text."""
    return PlainTextResponse(http.app.state.metrics.text(), media_type="text/plain; version=0.0.4")


def _translator(batcher: Batcher, model: int) -> Translator:
    if not 0 <= model < len(batcher.translators):
        last = len(batcher.translators) - 1
        raise ConfigError(f"there is no model {model}; expected 0 to {last}")
    return batcher.translators[model]


def _check_pinned(weights: int, limits: Limits) -> None:
    if weights > limits.weights:
        raise ConfigError(
            f"the pins cover {weights:,} weights in all texts (at most {limits.weights:,}); send "
            "fewer texts, or pin fewer or earlier steps"
        )


def _check_target(
    request: ExplainRequest | SelfAttentionRequest, batcher: Batcher
) -> tuple[Translator, list[int]]:
    """Reject a request that exceeds a limit; return its model and its source and target lengths."""
    translator, limits = _translator(batcher, request.model), batcher.limits
    limits.check_text(request.strings, request.characters)
    (prepared,) = prepare(
        translator.trained, [request.source], [request.target], forced=True
    ).sources
    lengths = [prepared.length, len(prepared.prefix.ids) + 1]
    limits.check_length(max(lengths))
    return translator, lengths


def _check_weights(weights: int, limits: Limits, remedy: str) -> None:
    if weights > limits.weights:
        raise ConfigError(
            f"the response would contain {weights:,} weights (at most {limits.weights:,}); {remedy}"
        )


def _prepare(
    request: TranslateRequest, translator: Translator, limits: Limits
) -> tuple[PreparedRequest, int]:
    """Prepare a request and return it with its work; reject it if it exceeds a limit."""
    texts = request.sources
    if len(texts) > (most := min(limits.texts, max(1, limits.queue))):
        raise ConfigError(f"at most {quantity(most, 'text')} per request, got {len(texts)}")
    if "beam_size" not in request.model_fields_set:
        request.beam_size = min(request.beam_size, limits.beam_size)
    for name in ("beam_size", "n_best"):
        if (value := getattr(request, name)) > limits.beam_size:
            got = shortened(str(value))
            raise ConfigError(f"{name} is at most {limits.beam_size}, got {got}")
    limits.check_text(request.strings, request.characters)
    _check_pinned(count_pins(request), limits)
    prepared = prepare(
        translator.trained, texts, request.prefixes, request.pin, request.ablate_heads
    )
    _check_pinned(math.prod(prepared.pins_shape), limits)
    for source in prepared.sources:
        limits.check_length(max(source.length, len(source.prefix.ids) + 1))
    return prepared, _check_work(request, prepared, translator, limits)


def _check_work(
    request: TranslateRequest, prepared: PreparedRequest, translator: Translator, limits: Limits
) -> int:
    """Reject a request that would take too much time or memory; return its work."""
    decoder = translator.trained.model.decoder
    members = [member.model.decoder for member in translator.trained.members] or [decoder]
    per_position = decoder.attention_layers * decoder.attention_heads
    per_position += values_per_position(members)
    sources = sum(source.length for source in prepared.sources)
    outputs = sum(source.limit for source in prepared.sources)
    values = sum(source.length * source.limit for source in prepared.sources) * per_position
    beams = max(request.beam_size, request.n_best)
    work = ((sources + outputs) * len(members) + values // VALUES_PER_TOKEN) * beams
    next_tokens = request.top_logprobs * request.n_best * outputs
    if next_tokens > limits.next_tokens:
        raise ConfigError(
            f"the response could contain {next_tokens:,} next tokens (at most {limits.next_tokens:,}); "
            "reduce top_logprobs, or request fewer outputs"
        )
    if work > limits.work:
        tokens = f"{sources:,} source tokens + up to {outputs:,} output tokens"
        if len(members) > 1:
            tokens = f"({tokens}) x {len(members)} models"
        raise ConfigError(
            f"the request is too large: ({tokens} + {values:,} values at source positions / "
            f"{VALUES_PER_TOKEN:,}) x {beams} hypotheses = {work:,}, at most {limits.work:,}; send fewer "
            "or shorter texts, or use a smaller beam size"
        )
    return work


_TOP_LOGPROBS = 8  # for the translations embedded in the page


def _suggestions(translators: Sequence[Translator], settings: Settings) -> list[str]:
    """Return the text that the page shows first, and others to try."""
    by_model = (translator.trained.metadata.get("examples") for translator in translators)
    examples: list[str] = next(filter(None, by_model), [])
    first = examples[:1] or [""] if settings.example is None else [settings.example]
    return [*first, *(text for text in examples if text not in first)]


def _translate_example(translators: Sequence[Translator], line: str, n_best: int) -> list[Any]:
    """Return each model's `n_best` translations of a line, with as many beams, for the initial display of the page."""
    request = TranslateRequest(text=line, n_best=n_best, heads=True, tree=True)  # type: ignore[call-arg]
    outputs = [
        model.search(
            prepare(model.trained, [model.source.parse_source(line)]),
            beam_size=n_best,
            n_best=n_best,
            return_tree=True,
            top_logprobs=_TOP_LOGPROBS,
        )[0]
        for model in translators
    ]
    return translate_response(request, outputs)["translations"]


def _render_page(
    models: list[dict[str, Any]], translators: Sequence[Translator], settings: Settings
) -> str:
    suggestions = _suggestions(translators, settings)
    beams = settings.limits.beam_size
    content = {
        "engine": "engine_http.js",
        "models": models,
        "examples": _translate_example(translators, suggestions[0], min(5, beams)),
        "suggestions": suggestions[1:4],
        "max_beam_size": beams,
    }
    template = (PAGE / "index.html").read_text(encoding="utf-8")
    return template.replace("{{content}}", script_json(content))
