"""The static page with an exported model, in Chromium without a network, against Python."""

import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page, expect, sync_playwright

import regard
from regard.export.runtime import archive_path, runtime_files
from regard.export.site import export_site, write_site
from regard.model_info import describe_model
from regard.request import prepare
from regard.serving.schemas import TranslateRequest, translate_response
from static_server import serve_folder

expect.set_options(timeout=60_000)  # a loaded machine is slow
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
READY = CHROMIUM is not None and archive_path().is_file()
TOLERANCE = 1e-4
TOP_TOKENS = 8

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not READY and not os.environ.get("CI"),
        reason="Chromium is not installed, or onnxruntime-web not downloaded (.ci/run does both)",
    ),
]

REQUESTS: list[dict[str, Any]] = [
    {"text": "a b c"},
    {"text": "d c a b", "beam_size": 1},
    {"text": "a x b d", "n_best": 5},
    {"text": "x y", "beam_size": 3, "n_best": 7},
    {"text": " "},
    {"text": "", "n_best": 2},
    {"text": "a b c", "prefix_tokens": ["b"], "n_best": 5},
    {"text": "a b c", "prefix_tokens": ["b", "z"]},
    {"text": "a b c", "pin": {1: {0: 0.7, 2: 0.2}}, "n_best": 5},
    {"text": "a b c d", "pin": {0: {1: 1.0}}, "prefix_tokens": ["c"]},
]
ABLATIONS: list[dict[str, Any]] = [
    {"text": "a b c", "ablate_heads": [[0, 1], [1, 0]], "n_best": 5},
    {"text": "a b c d", "ablate_heads": [[1, 1], [1, 0]], "pin": {0: {1: 0.5}}},
]


def _python(translator: regard.Translator, request: dict[str, Any]) -> dict[str, Any]:
    """Return what the JSON API responds."""
    options = {"heads": True, "tree": True, "top_logprobs": TOP_TOKENS, **request}
    parsed = TranslateRequest(**options)
    prepared = prepare(
        translator.trained, [translator.source.parse_source(request["text"])],
        parsed.prefixes, parsed.pin, parsed.ablate_heads,
    )  # fmt: skip
    outputs = translator.search(
        prepared, parsed.beam_size, parsed.n_best, return_tree=True, top_logprobs=TOP_TOKENS
    )
    return translate_response(parsed, outputs)["translations"][0]


def _javascript(page: Page, requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what the page's engine responds."""
    script = """async (requests) => {
        const content = JSON.parse(document.getElementById("content").textContent);
        const { open } = await import(new URL("page/engine_onnx.js", document.baseURI).href);
        window.engine ??= await open(content, () => {});
        const results = [];
        for (const { text, beam_size = 5, n_best = 1, pin, prefix_tokens, ablate_heads } of requests) {
            const options = { beamSize: beam_size, nBest: n_best };
            const interventions = { pins: pin, prefix: prefix_tokens, ablated: ablate_heads };
            results.push(await window.engine.translate(0, text, options, interventions).catch(({ message }) => message));
        }
        return results;
    }"""
    return page.evaluate(script, json.loads(json.dumps(requests)))


def _differences(found: Any, expected: Any, path: str = "") -> list[str]:
    if isinstance(expected, dict) and isinstance(found, dict):
        keys = [*expected, *found.keys() - expected.keys()]
        pairs = [(key, found.get(key), expected.get(key)) for key in keys]
    elif isinstance(expected, list) and isinstance(found, list) and len(found) == len(expected):
        pairs = [(str(i), *pair) for i, pair in enumerate(zip(found, expected, strict=True))]
    elif isinstance(expected, float) and isinstance(found, int | float):
        near = math.isclose(found, expected, abs_tol=TOLERANCE)
        return [] if near else [f"{path}: {found} instead of {expected}"]
    else:
        return [] if found == expected else [f"{path}: {found!r} instead of {expected!r}"]
    return [line for key, *pair in pairs for line in _differences(*pair, f"{path}.{key}")]


@pytest.fixture(scope="module")
def context() -> Iterator[BrowserContext]:
    """A browser that reaches this machine only."""
    arguments = ["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        context = browser.new_context(viewport={"width": 1200, "height": 900})
        yield context
        browser.close()


@pytest.fixture(scope="module")
def www(
    export_once: Callable[[int], tuple[regard.Translator, Path]],
    made_once: Callable[[str, Callable[[Path], object]], Path],
) -> Path:
    """A folder with the static pages of a recurrent model and a Transformer, in subfolders."""

    def make(root: Path) -> None:
        (root / "some").mkdir(parents=True)
        runtime = runtime_files()
        for translator, folder in map(export_once, range(2)):
            description = describe_model("a model", translator)
            write_site(folder, description, runtime, root / "some" / folder.name)

    return made_once("www", make)


@pytest.fixture(scope="module")
def sites(www: Path) -> Iterator[list[str]]:
    """The addresses of the pages."""
    with serve_folder(www) as address:
        yield [f"{address}/some/{name}/" for name in ("recurrent", "transformer")]


def _open(context: BrowserContext, address: str) -> Page:
    page = context.new_page()
    page.goto(address)
    page.locator(".view").wait_for()
    expect(page.locator("#status")).to_have_text("")
    return page


@pytest.fixture(params=[0, 1], ids=["recurrent", "transformer"])
def opened(
    request: pytest.FixtureRequest,
    context: BrowserContext,
    sites: list[str],
    export_once: Callable[[int], tuple[regard.Translator, Path]],
) -> Iterator[tuple[Page, regard.Translator]]:
    """A static page, and the translator of its model in Python."""
    errors: list[str] = []
    requests: list[str] = []
    page = context.new_page()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda entry: errors.append(entry.text) if entry.type == "error" else None)
    page.on("request", lambda sent: requests.append(sent.url))
    address = sites[request.param]
    page.goto(address)
    page.locator(".view").wait_for()
    yield page, export_once(request.param)[0]
    assert errors == []
    assert [url for url in requests if not url.startswith((address, "data:"))] == []
    page.close()


def test_outputs_are_those_of_python(opened: tuple[Page, regard.Translator]) -> None:
    page, translator = opened
    heads = translator.trained.model.decoder.attention_heads
    requests = REQUESTS + (ABLATIONS if heads > 1 else [])
    found = _javascript(page, requests)
    expected = [_python(translator, request) for request in requests]
    for request, *pair in zip(requests, found, expected, strict=True):
        assert _differences(*pair) == [], request


def test_interventions_that_cannot_be_applied_are_reported(
    opened: tuple[Page, regard.Translator],
) -> None:
    page, translator = opened
    requests: list[dict[str, Any]] = [
        {"text": "a b", "pin": {0: {0: 0.7, 1: 0.7}}},
        {"text": "a b", "pin": {0: {3: 0.5}}},
        {"text": "a b", "pin": {99: {0: 0.5}}},
        {"text": "a b", "ablate_heads": [[7, 0]]},
    ]
    found = _javascript(page, requests)
    assert all(isinstance(message, str) for message in found)
    assert "sum to at most 1, got 1.4" in str(found[0])
    assert "source tokens from 0 to 2" in str(found[1])
    assert "steps from 0 to" in str(found[2])
    assert "no head 0 in layer 7" in str(found[3])
    for request in requests:
        with pytest.raises(regard.ConfigError):
            _python(translator, request)


def test_the_page_shows_what_python_computes(opened: tuple[Page, regard.Translator]) -> None:
    page, translator = opened
    first = page.input_value("#text")
    outputs = translator.translate(first, n_best=5)
    assert isinstance(outputs, list)
    expect(page.locator(".output")).to_have_text(outputs[0].text)
    shown = page.locator(".n-best bdi").all_text_contents()
    assert shown == [output.text or "(empty output)" for output in outputs]
    page.fill("#text", "b d")
    page.click("button[type=submit]")
    expected = translator.translate("b d")
    expect(page.locator(".output")).to_have_text(expected.text or "(empty output)")
    assert page.get_by_text("Attention calculation for this step").count() == 0
    page.get_by_text("Search tree").click()
    expect(page.locator(".tree g.best")).not_to_have_count(0)


def test_a_link_restores_pins_prefix_and_step(opened: tuple[Page, regard.Translator]) -> None:
    page, translator = opened
    page.locator(".track").nth(1).focus()
    page.keyboard.press("End")
    expect(page.locator(".chip")).to_have_count(2)
    tokens = page.locator(".sentence.target button").all_text_contents()
    pinned = translator.translate(page.input_value("#text"), pin={0: {1: 1.0}})
    assert tokens == pinned.tokens
    before = page.locator("td.before .value")
    expect(before.first).not_to_have_text("…")
    assert "#" in page.url
    other = page.context.new_page()
    other.goto(page.url)
    expect(other.locator(".chip")).to_have_count(2)
    expect(other.locator(".sentence.target button")).to_have_text(tokens)
    other.close()


@pytest.mark.soak
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "settings",
    [
        {"attention": "none"},
        {"copy": True},
        {"copy": True, "kind": "transformer"},
        {"decoder": "luong", "cell": "lstm", "attention": "dot"},
        {"coverage": True, "attention": "additive"},
        {"encoder": "transformer"},
        {"decoder": "posterior", "monotonic": True},
    ],
    ids=lambda settings: "-".join(f"{value}" for value in settings.values()),
)
def test_other_models(
    settings: dict[str, Any],
    make_translator: Callable[..., regard.Translator],
    context: BrowserContext,
    tmp_path: Path,
) -> None:
    translator = make_translator(**settings)
    export_site(translator, tmp_path / "site", runtime_files(), "a model")
    requests = [{"text": "a b c"}, {"text": "a x y x", "n_best": 3}]
    if settings.get("copy"):
        requests.append({"text": "a x y", "prefix_tokens": ["y"], "n_best": 3})
    with serve_folder(tmp_path) as address:
        page = _open(context, f"{address}/site/")
        for request, found in zip(requests, _javascript(page, requests), strict=True):
            assert _differences(found, _python(translator, request)) == [], request
        page.close()


def test_what_keeps_the_page_from_loading_is_reported(
    context: BrowserContext, sites: list[str]
) -> None:
    page = context.new_page()
    page.route("**/decoder.onnx", lambda route: route.fulfill(status=404))
    page.goto(sites[0])
    expect(page.locator("#status")).to_contain_text("decoder.onnx could not be loaded")
    expect(page.locator("#text")).to_be_disabled()
    page.add_init_script("delete window.WebAssembly")
    page.goto(sites[0])
    expect(page.locator("#status")).to_contain_text("needs WebAssembly")
    page.close()


def test_a_page_opened_as_a_file_says_how_to_open_it(context: BrowserContext, www: Path) -> None:
    page = context.new_page()
    page.goto((www / "some" / "recurrent" / "index.html").as_uri())
    expect(page.locator("#status")).to_contain_text("python -m http.server")
    page.close()


def test_the_site_is_small_and_has_the_licence(www: Path) -> None:
    site = www / "some" / "recurrent"
    files = [path for path in site.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 4_000_000
    assert "MIT License" in (site / "runtime" / "LICENSE").read_text(encoding="utf-8")
    own = [
        path for path in files if path.suffix in (".html", ".js", ".css") and path.name != "ort.js"
    ]
    for path in own:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"""(?:src=|href=|from |import\(|url\()["']?(?:https?:|/)""", text), (
            path
        )
