"""The application: routes, and one clear sentence for every refusal."""

import asyncio
import contextlib
import difflib
import json
import os
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from fastapi.staticfiles import StaticFiles
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware

from regard import model_folder
from regard.errors import ConfigError, RegardError
from regard.explanation.from_model import explain_step
from regard.score_registry import SCORES
from regard.serving.batching import Batcher, Busy, Search
from regard.serving.limits import BodyLimit, Limits
from regard.serving.metrics import Metrics, RequestMetrics
from regard.serving.schemas import (
    ErrorAnswer,
    ExplainRequest,
    TranslateAnswer,
    TranslateRequest,
    answer,
    numbers,
)
from regard.translator import Translator

PAGE = Path(__file__).parent / "page"
_SHOWN = 8  # numbers of a context that the page shows
_POLICY = "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is served, and where."""

    folder: str
    compare_with: str | None = None
    example: str | None = None
    host: str = "127.0.0.1"
    device: str = "auto"
    threads: int | None = None
    """Of PyTorch in this process; None: its own choice."""
    limits: Limits = Limits()  # noqa: RUF009


def create_app(settings: Settings) -> FastAPI:
    """The application that serves these folders.

    Raises:
        FolderError: a folder is missing or damaged.
    """
    if settings.threads is not None:
        import torch

        torch.set_num_threads(settings.threads)
    folders = [settings.folder, *([settings.compare_with] if settings.compare_with else [])]
    translators = [Translator.load(each, settings.device) for each in folders]
    # two folders called model are told apart by where they are
    names = ["/".join(Path(each).resolve().parts[-2:]) for each in folders]
    metrics = Metrics()
    batcher = Batcher(translators, settings.limits, metrics)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        working = asyncio.create_task(batcher.run())
        yield
        working.cancel()

    app = FastAPIOffline(
        title="regard",
        version=model_folder.package_version(),
        description="Translations that show where they look.",
        lifespan=lifespan,
        redoc_url=None,
        responses={status: {"model": ErrorAnswer} for status in (400, 408, 413, 422, 503, 504)},
    )
    models = [_about(*each) for each in zip(names, translators, strict=True)]
    page = _page(models, _examples(translators, settings), settings.limits)
    _add_routes(app, batcher, metrics, models, page)
    _add_refusals(app)
    app.add_middleware(BodyLimit, limits=settings.limits)
    app.add_middleware(RequestMetrics, metrics=metrics)
    if settings.host == "localhost" or settings.host.startswith("127."):
        # a page of another site that has its name point to this machine gets nothing
        hosts = [settings.host, "localhost", "127.0.0.1"]
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts)
    return app


def from_environment() -> FastAPI:
    """The application of a worker process, which finds its settings in REGARD_SERVE."""
    values: dict[str, Any] = json.loads(os.environ["REGARD_SERVE"])
    limits = Limits(**values.pop("limits"))
    return create_app(Settings(**values, limits=limits))


def _add_routes(
    app: FastAPI, batcher: Batcher, metrics: Metrics, models: list[dict[str, Any]], page: str
) -> None:
    @app.get("/", include_in_schema=False)
    async def show_page() -> HTMLResponse:
        return HTMLResponse(page, headers={"Content-Security-Policy": _POLICY})

    app.mount("/page", StaticFiles(directory=PAGE))

    @app.post("/api/translate", response_model=TranslateAnswer)
    async def translate(asked: TranslateRequest) -> Response:
        """Translate one text or several; with the attention, and pushed if asked."""
        translator = _model(batcher, asked.model)
        work = _check(asked, translator, batcher.limits)
        search = Search(
            asked.model,
            asked.beam_size,
            asked.n_best,
            asked.length_penalty,
            tuple(asked.ablate_heads),
            asked.tree,
        )
        found = await batcher.translate(asked.all_texts, search, asked.prefixes, asked.pins, work)
        weights, most = numbers(asked, found), batcher.limits.weights
        if weights > most:
            raise ConfigError(
                f"the answer would hold {weights:,} weights (at most {most:,}); ask for fewer "
                "outputs, or leave out heads or attention"
            )
        # written as it is: checking what we made ourselves would take longer than making it
        return await asyncio.to_thread(lambda: JSONResponse(answer(asked, found)))

    @app.post("/api/explain")
    async def explain(asked: ExplainRequest) -> Response:
        """The numbers of one look: scores, exponentials, partition function, weights, context."""
        translator = _model(batcher, asked.model)
        batcher.limits.check_text(asked.strings)
        target = asked.target
        written = translator.target.encode(target).tokens if isinstance(target, str) else target
        read = translator.source.encode(asked.text).tokens
        for tokens in (read, written):
            _check_length(len(tokens) + 1, batcher.limits)
        walk, _ = await batcher.compute(
            lambda: explain_step(
                translator,
                asked.text,
                asked.step,
                target=target,
                layer=asked.layer,
                head=asked.head,
            )
        )
        return JSONResponse(_numbers(walk.to_dict()))

    @app.get("/api/model")
    async def about(model: int = 0) -> dict[str, Any]:
        """What the model is."""
        _model(batcher, model)
        return models[model]

    @app.get("/health")
    async def health() -> dict[str, str]:
        """That the server is there and takes requests."""
        return {"status": "ok"}

    @app.get("/metrics", response_class=PlainTextResponse)
    async def figures() -> Response:
        """Requests, latency, queue and batches, in the text format of Prometheus."""
        return PlainTextResponse(metrics.text(), media_type="text/plain; version=0.0.4")


def _add_refusals(app: FastAPI) -> None:
    """Every refusal is {"error": one sentence}."""

    @app.exception_handler(RequestValidationError)
    async def wrong(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            return _refusal(400, f"the body is no JSON: {first['ctx']['error']}")
        place = ".".join(str(part) for part in first["loc"][1:])
        if first["type"] == "extra_forbidden":
            fields = {*TranslateRequest.model_fields, *ExplainRequest.model_fields}
            found = difflib.get_close_matches(place, fields, 1, 0.4)
            hint = f"; did you mean {found[0]}?" if found else ""
            return _refusal(422, f"there is no field {place}{hint}")
        reason = first["msg"].removeprefix("Value error, ")
        return _refusal(422, f"{place}: {reason}" if place else reason)

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> Response:
        reason = str(error.detail)
        if error.status_code == 400 and "parsing the body" in reason:
            reason = "the body is no JSON in UTF-8, or is nested too deeply"
        return _refusal(error.status_code, reason)

    @app.exception_handler(RegardError)
    async def cannot(_: Request, error: RegardError) -> Response:
        return _refusal(422, str(error))

    @app.exception_handler(Exception)
    async def broken(_: Request, __: Exception) -> Response:
        return _refusal(500, "the server could not do this; its own output says why")

    @app.exception_handler(Busy)
    async def busy(_: Request, __: Busy) -> Response:
        return _refusal(
            503, "too many texts are waiting; try again in a second", {"Retry-After": "1"}
        )

    @app.exception_handler(TimeoutError)
    async def late(_: Request, __: TimeoutError) -> Response:
        return _refusal(504, "this took too long; send shorter or fewer texts, or a smaller beam")


def _refusal(status: int, reason: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": reason}, status, headers)


def _model(batcher: Batcher, number: int) -> Translator:
    if not 0 <= number < len(batcher.translators):
        raise ConfigError(
            f"there is no model {number}; it goes from 0 to {len(batcher.translators) - 1}"
        )
    return batcher.translators[number]


def _check(asked: TranslateRequest, translator: Translator, limits: Limits) -> int:
    """Refuse before it waits in the queue what cannot be done; how much work the rest is."""
    texts = asked.all_texts
    if len(texts) > limits.texts:
        raise ConfigError(f"at most {limits.texts} texts at once, got {len(texts)}")
    for name, value in (("beam_size", asked.beam_size), ("n_best", asked.n_best)):
        if value > limits.beam_size:
            raise ConfigError(f"{name} is at most {limits.beam_size} here, got {value}")
    limits.check_text(asked.strings)
    lengths = [len(encoding.ids) + 1 for encoding in translator.source.encode_batch(texts)]
    _check_length(max(lengths), limits)
    longest = translator.check(texts, asked.prefixes, asked.pins, asked.ablate_heads)
    beams = max(asked.beam_size, asked.n_best)
    work = (sum(lengths) + sum(longest)) * beams
    if work > limits.work:
        raise ConfigError(
            f"{sum(lengths):,} symbols, and outputs of up to {sum(longest):,}, times {beams} open "
            f"hypotheses are {work:,} (at most {limits.work:,}); send fewer texts or a smaller beam"
        )
    return work


def _check_length(symbols: int, limits: Limits) -> None:
    if symbols > limits.tokens:
        raise ConfigError(f"a text has at most {limits.tokens} symbols here, got {symbols}")


def _numbers(walk: dict[str, Any]) -> dict[str, Any]:
    """Of a walk what the page shows; the states would be long."""
    kept = ("score", "labels", "scores", "shift", "exponentials", "partition", "weights")
    context: list[float] = walk["context"]
    return {
        **{name: walk[name] for name in kept},
        "formula": SCORES[walk["score"]].text,
        "context": context[:_SHOWN],
        "width": len(context),
    }


def _about(name: str, translator: Translator) -> dict[str, Any]:
    trained = translator.trained
    model = trained.config.model.resolved()
    transformer = model.kind == "transformer"
    return {
        "name": name,
        "kind": model.kind,
        "encoder": model.encoder,
        "decoder": None if transformer else model.decoder,
        "attention": model.attention,
        "normalizer": model.normalizer,
        "layers": model.decoder_layers if transformer else 1,
        "heads": model.heads if transformer else 1,
        "attention_layer": translator.attention_layer(model.decoder_layers or 1)
        if transformer
        else 0,
        "parameters": trained.metadata.get("parameters"),
        "source": {"unit": trained.config.source.unit, "vocabulary": len(translator.source)},
        "target": {"unit": trained.config.target.unit, "vocabulary": len(translator.target)},
        "regard": model_folder.package_version(),
    }


def _examples(translators: Sequence[Translator], settings: Settings) -> list[dict[str, Any]]:
    """A translation by each model that is there before anybody types."""
    text = settings.example or translators[0].trained.metadata.get("example") or ""
    best = min(5, settings.limits.beam_size)
    asked = TranslateRequest(text=text, n_best=best, heads=True, tree=True)  # type: ignore[call-arg]
    found = [each.translate([text], n_best=best, return_tree=True) for each in translators]
    return [answer(asked, one if best > 1 else [one])["translations"][0] for one in found]


def _page(models: list[dict[str, Any]], examples: list[dict[str, Any]], limits: Limits) -> str:
    held = {"models": models, "examples": examples, "most": limits.beam_size}
    content = json.dumps(held, ensure_ascii=False)
    # nothing in the data can end the element that it stands in
    content = content.replace("<", "\\u003c")
    return (PAGE / "index.html").read_text(encoding="utf-8").replace("{{content}}", content)
