"""The web page in Chromium, against a running server."""

import contextlib
import dataclasses
import functools
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

import regard
from regard import ensemble, model_folder

expect.set_options(timeout=60_000)  # a loaded machine is slow
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</script><img src=x onerror=document.title='hit'>"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None and not os.environ.get("CI"), reason="Chromium is not installed"
    ),
]


@contextlib.contextmanager
def _server(folders: list[Path]) -> Iterator[str]:
    command = [sys.executable, "-m", "regard.cli.main", "serve", str(folders[0])]
    command += ["--compare-with", str(folders[1]), "--port", "0", "--example", "a b c"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        match = re.search(r"http://\S+:\d+", process.stdout.readline())
        try:
            assert match
            yield match[0]
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def address(folders: list[Path]) -> Iterator[str]:
    with _server(folders) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # inside a container there is no user namespace for Chromium's own sandbox
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@dataclasses.dataclass
class _Tab:
    """A page that all tests use, one after the other: to make one costs more than most tests do."""

    page: Page
    requests: list[str]
    errors: list[str]


@pytest.fixture(scope="module")
def tab(browser: Browser) -> Iterator[_Tab]:
    page = browser.new_page()
    tab = _Tab(page, [], [])
    page.on("request", lambda request: tab.requests.append(request.url))
    page.on("pageerror", lambda error: tab.errors.append(str(error)))
    page.on(
        "console",
        lambda entry: tab.errors.append(entry.text) if entry.type == "error" else None,
    )
    yield tab
    page.close()


@pytest.fixture
def page(tab: _Tab, address: str) -> Iterator[Page]:
    page = tab.page
    page.unroute_all()
    page.context.clear_permissions()
    page.emulate_media(color_scheme="null")
    page.set_viewport_size({"width": 1200, "height": 900})
    if page.url.startswith(address):
        page.evaluate("localStorage.clear()")
    page.goto("about:blank")
    tab.requests.clear()
    tab.errors.clear()
    _open(page, address)
    yield page
    assert page.title() == "regard"
    assert [url for url in tab.requests if not url.startswith((address, "data:"))] == []
    assert [text for text in tab.errors if "422" not in text] == []


def _open(page: Page, address: str) -> None:
    page.goto(address)
    page.locator(".view").last.wait_for()  # the page's modules may run after its load event
    _wait_until_idle(page)


def _view(page: Page, number: int = 0) -> Any:
    return page.locator(".view").nth(number)


def _weights(view: Any) -> list[float]:
    return [float(track.get_attribute("aria-valuenow")) for track in view.locator(".track").all()]


def _submit(page: Page, text: str) -> None:
    page.fill("#text", text)
    page.click("button[type=submit]")
    _wait_until_idle(page)


def _wait_until_idle(page: Page) -> None:
    expect(page.locator("[aria-busy]")).to_have_count(0)
    expect(page.locator("#status")).to_have_text("")


def test_the_page_opens_with_a_heatmap(page: Page, folders: list[Path]) -> None:
    expected = regard.Translator.load(folders[0], "cpu").translate(["a b c"])[0]
    view = _view(page)
    expect(view.locator(".output")).to_have_text(expected.text)
    heads = view.locator(".heatmap thead th").all_text_contents()
    assert heads == expected.source_tokens
    assert view.locator(".heatmap tbody th").all_text_contents() == expected.tokens
    cells = view.locator(".heatmap td[data-source]").evaluate_all(
        "cells => cells.map((cell) => Number(cell.style.getPropertyValue('--weight')))"
    )
    assert np.allclose(np.reshape(cells, expected.attention.shape), expected.attention, atol=1e-4)
    assert page.locator(".view").count() == 2


def test_the_slider_changes_the_bars_whose_sum_stays_1(page: Page) -> None:
    view = _view(page)
    slider = view.locator("input[type=range]")
    slider.focus()
    weights_by_step = []
    for _ in range(int(slider.get_attribute("max")) + 1):
        weights = _weights(view)
        assert sum(weights) == pytest.approx(1, abs=0.003)
        expect(view.locator(".sum")).to_have_text("sum 1.00")
        weights_by_step.append(weights)
        page.keyboard.press("ArrowRight")
    assert len(weights_by_step) > 1
    assert all(not np.allclose(a, b, atol=0.001) for a, b in itertools.pairwise(weights_by_step))
    assert re.search(r"step (\d+) \(0 to \1\):", slider.get_attribute("aria-valuetext"))
    expect(view.locator(".heatmap tr.selected")).to_have_count(1)


def test_submitting_a_text_translates_with_both_models(page: Page, folders: list[Path]) -> None:
    _submit(page, "d c a b\n\n")  # as pasted
    for number, folder in enumerate(folders):
        expected = regard.Translator.load(folder, "cpu").translate(["d c a b"], n_best=5)[0]
        expect(_view(page, number).locator(".output")).to_have_text(
            expected[0].text or "(empty output)"
        )
        outputs = _view(page, number).locator(".n-best bdi").all_text_contents()
        assert outputs == [output.text or "(empty output)" for output in expected]
        scores = _view(page, number).locator(".n-best .score").all_text_contents()
        assert scores == [f"{output.score:.2f}" for output in expected]


def test_dragging_a_bar_gives_the_same_as_python(page: Page, folders: list[Path]) -> None:
    translator = regard.Translator.load(folders[0], "cpu")
    before = translator.translate(["a b c"])[0]
    step, source, expected = next(
        (step, source, output)
        for step in range(len(before.tokens))
        for source in range(len(before.source_tokens))
        for output in [
            translator.translate(
                ["a b c"], prefix=" ".join(before.tokens[:step]), pin={step: {source: 1.0}}
            )[0]
        ]
        if output.tokens != before.tokens and len(output.tokens) > step
    )
    view = _view(page)
    view.locator(".sentence.target button").nth(step).click()
    track = view.locator(".track").nth(source)
    track.scroll_into_view_if_needed()
    box = track.bounding_box()
    page.mouse.move(box["x"] + 8, box["y"] + box["height"] - 4)
    page.mouse.down()
    page.mouse.move(box["x"] + 8, box["y"] - 10, steps=4)
    assert _weights(view)[source] == 1
    expect(view.locator(".sum")).to_have_text("sum 1.00")
    page.mouse.up()
    expect(view.locator(".output")).to_have_text(expected.text)
    assert np.allclose(_weights(view), expected.attention[step], atol=0.002)
    expect(view.locator(".note")).to_contain_text(before.text)
    view.get_by_role("button", name="reset").click()
    expect(view.locator(".output")).to_have_text(before.text)


def test_a_rejected_intervention_leaves_the_view_unchanged(page: Page) -> None:
    view = _view(page)
    before, text = _weights(view), view.locator(".output").text_content()
    page.route("**/api/translate", lambda route: route.fulfill(status=422, json={"error": "no"}))
    view.locator(".track").first.focus()
    page.keyboard.press("End")
    expect(page.locator("#status")).to_have_text("no")
    assert _weights(view) == before
    expect(view.locator(".output")).to_have_text(text)
    expect(view.locator(".chip")).to_have_count(0)
    page.unroute("**/api/translate")
    page.keyboard.press("End")
    view.locator(".chip").first.wait_for()
    expect(page.locator("#status")).to_have_text("")


def test_focus_is_kept_after_an_update(page: Page) -> None:
    view = _view(page)
    view.locator(".track").nth(1).focus()
    page.keyboard.press("End")
    view.locator(".chip").first.wait_for()
    expect(view.locator(".track").nth(1)).to_be_focused()
    view.locator(".n-best button").nth(2).focus()
    page.keyboard.press("Enter")
    expect(view.locator(".n-best button").nth(2)).to_be_focused()
    expect(view.locator(".n-best button").nth(2)).to_have_attribute("aria-pressed", "true")


def test_arrow_keys_pin_weights(page: Page) -> None:
    view = _view(page)
    before = _weights(view)[0]
    view.locator(".track").first.focus()
    for _ in range(3):
        page.keyboard.press("ArrowUp")
    view.locator(".chip").first.wait_for()
    assert _weights(view)[0] == pytest.approx(min(1, before + 0.15), abs=0.005)


def test_a_head_can_be_selected_and_ablated(page: Page, folders: list[Path]) -> None:
    translator = regard.Translator.load(folders[1], "cpu")
    view = _view(page, 1)
    output = translator.translate(["a b c"])[0]
    view.get_by_role("button", name="layer 1, head 0", exact=True).click()
    assert np.allclose(_weights(view), output.attention_heads[0, 1, 0], atol=0.002)
    view.get_by_label("ablate this head").check()
    view.locator(".chip").first.wait_for()
    expected = translator.translate(["a b c"], ablate_heads=[(1, 0)])[0]
    expect(view.locator(".output")).to_have_text(expected.text or "(empty output)")
    if expected.tokens:
        assert _weights(view) == [0] * len(expected.source_tokens)
    expect(view.locator(".sum-line .ablated-note")).to_contain_text("Head 0 of layer 1 is ablated")
    expect(view.locator(".head.selected")).to_have_text("head 0 ablated")


def test_a_branch_of_the_search_tree_can_be_forced(page: Page, folders: list[Path]) -> None:
    view = _view(page)
    view.get_by_text("Search tree").click()
    branch = view.locator(".tree g[role=button]:not(.best)").first
    token = branch.locator("text.token").text_content()
    branch.click()
    _wait_until_idle(page)
    view.locator(".chip").first.wait_for()
    expected = regard.Translator.load(folders[0], "cpu").translate(["a b c"], prefix=token)[0]
    expect(view.locator(".output")).to_have_text(expected.text)


def test_the_calculation_of_the_selected_step(page: Page) -> None:
    view = _view(page)
    view.get_by_text("Attention calculation for this step").click()
    rows = view.locator(".calculation tbody tr")
    expect(rows).to_have_count(3)
    cells = [[float(cell) for cell in row.locator("td").all_text_contents()] for row in rows.all()]
    exponentials = np.array(cells[1])
    assert np.allclose(exponentials / exponentials.sum(), cells[2], atol=0.006)


@pytest.mark.parametrize(
    "text", [HOSTILE, "أ ب ج", "क्षि 机器 学习", "👩‍👩‍👧 🎉 a", "a " * 60, ""], ids=repr
)
def test_any_text_is_inserted_as_text(page: Page, text: str) -> None:
    _submit(page, text)
    view = _view(page)
    heads = view.locator(".heatmap thead th").all_text_contents()
    assert [token for token in heads if token != "</s>"] in (text.split(), [])
    assert page.locator("main img").count() == 0
    if "أ" in text:
        assert view.locator(".sentence.source").get_attribute("dir") == "rtl"


def test_errors_are_displayed(page: Page) -> None:
    page.fill("#text", "a " * 600)
    page.click("button[type=submit]")
    expect(page.locator("#status")).to_contain_text("at most 500 tokens")


def _probabilities(view: Any, column: str = "") -> dict[str, float]:
    rows = view.locator(".next-token tbody tr").all()
    return {
        row.locator(".token").text_content(): float(value)
        for row in rows
        if (value := row.locator(f"td{column}").get_attribute("data-probability"))
    }


def test_next_tokens_before_and_after_an_intervention(page: Page, folders: list[Path]) -> None:
    translator = regard.Translator.load(folders[0], "cpu")
    output = translator.translate(["a b c"], top_logprobs=8)[0]
    view = _view(page)
    view.locator(".sentence.target button").nth(1).click()
    before = {token or "</s>": np.exp(log_prob) for token, log_prob in output.top_logprobs[1]}
    assert _probabilities(view) == pytest.approx(before, abs=1e-4)
    expect(view.locator(".next-token tr.chosen .token")).to_have_text(output.tokens[1])

    view.locator(".track").first.focus()
    page.keyboard.press("End")
    view.locator(".next-token td.before .meter").first.wait_for()
    changed = translator.translate(
        ["a b c"], prefix=output.tokens[0], pin={1: {0: 1.0}}, top_logprobs=8
    )[0]
    after = {token or "</s>": np.exp(log_prob) for token, log_prob in changed.top_logprobs[1]}
    assert _probabilities(view, ".after") == pytest.approx(after, abs=1e-4)
    assert _probabilities(view, ".before") == pytest.approx(before, abs=1e-4)


def test_an_error_of_the_next_tokens_is_shown_at_its_own_step(page: Page) -> None:
    held: list[Route] = []
    page.route(
        "**/api/translate",
        lambda route: (
            route.continue_() if route.request.post_data_json.get("tree") else held.append(route)
        ),
    )
    view = _view(page)
    view.locator(".track").first.focus()
    page.keyboard.press("End")
    while not held:
        page.wait_for_timeout(10)
    view.locator("input[type=range]").focus()
    page.keyboard.press("ArrowRight")
    while len(held) < 2:
        page.wait_for_timeout(10)
    for route, shown in zip(held, (False, True), strict=True):
        route.fulfill(status=422, json={"error": "busy"})
        page.wait_for_timeout(200)
        text = view.locator(".next-token").text_content()
        assert ("missing: busy" in text) is shown


def test_a_next_token_can_be_forced(page: Page, folders: list[Path]) -> None:
    view = _view(page)
    token = view.locator(".next-token tr:not(.chosen) button.token").first
    text = token.text_content()
    token.click()
    view.locator(".chip").first.wait_for()
    expected = regard.Translator.load(folders[0], "cpu").translate(["a b c"], prefix=text)[0]
    expect(view.locator(".output")).to_have_text(expected.text)
    expect(view.locator(".sentence.target button").first).to_have_text(text)


def test_every_head_has_a_thumbnail_self_attention_too(page: Page, address: str) -> None:
    view = _view(page, 1)
    view.locator(".head-group.decoder").wait_for()
    counts = [
        view.locator(f".head-group.{kind} .head").count()
        for kind in ("cross", "encoder", "decoder")
    ]
    assert counts == [2 * (1 + 2), 1 * 2, 2 * 2]  # layers times heads, and averages
    tokens = view.locator(".sentence.target button").all_text_contents()
    data = {"model": 1, "text": "a b c", "target": tokens}
    expected = page.request.post(f"{address}/api/self-attention", data=data).json()
    weights = _weights(view)
    name = "decoder self-attention, layer 1, head 1"
    view.get_by_role("button", name=name, exact=True).click()
    assert view.locator(".heatmap thead th").all_text_contents() == expected["decoder_inputs"]
    cells = view.locator(".heatmap td.cell").evaluate_all(
        "cells => cells.map((cell) => Number(cell.style.getPropertyValue('--weight')))"
    )
    assert np.allclose(cells, np.ravel(expected["decoder"][1][1]), atol=1e-4)
    assert _weights(view) == weights


def test_models_without_attention_or_with_it_in_the_encoder_only(
    browser: Browser, make_translator: Callable[..., regard.Translator], tmp_path: Path
) -> None:
    folders = [tmp_path / "none", tmp_path / "encoder"]
    for folder, model in zip(
        folders,
        [{"attention": "none"}, {"encoder": "transformer", "encoder_layers": 2}],
        strict=True,
    ):
        trained = make_translator(**model).trained
        folder.mkdir()
        model_folder.save_description(folder, trained)
        model_folder.save_weights(folder, trained.model)
    with _server(folders) as address:
        page = browser.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        _open(page, address)
        _submit(page, "c b a")
        expect(_view(page)).to_contain_text("This model has no attention")
        assert len(_probabilities(_view(page))) > 3
        assert _view(page).locator(".track, .heatmap").count() == 0
        view = _view(page, 1)
        view.locator(".next-token button.token").first.click()  # the output may be empty
        _wait_until_idle(page)
        assert view.locator(".head").count() == 1 + 2 * 2
        assert view.locator(".head-group.decoder").count() == 0
        view.locator(".head-group.encoder .head").last.click()
        assert view.locator(".heatmap tbody th").all_text_contents() == ["c", "b", "a", "</s>"]
        assert errors == []
        page.close()


def test_a_link_restores_the_page(page: Page, browser: Browser) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.fill("#beam-size", "4")
    _submit(page, "d c & b")
    view = _view(page)
    view.locator(".sentence.target button").nth(1).click()
    view.locator(".track").first.focus()
    page.keyboard.press("End")
    view.locator(".chip").first.wait_for()
    transformer = _view(page, 1)
    transformer.get_by_role("button", name="layer 1, head 0", exact=True).click()
    transformer.get_by_label("ablate this head").check()
    transformer.locator(".chip").first.wait_for()
    page.get_by_role("button", name="Copy link").click()
    expect(page.get_by_role("button", name="Link copied")).to_be_visible()

    def content(page: Page) -> list[Any]:
        view = page.locator(".view")
        lists = [".output", ".chip", ".step-label", ".bar .value", ".head.selected", ".n-best"]
        fields = [page.input_value(selector) for selector in ("#text", "#beam-size", "#n-best")]
        return [*fields, *(view.locator(selector).all_text_contents() for selector in lists)]

    other = browser.new_page(viewport={"width": 1200, "height": 900})
    other.goto(page.evaluate("navigator.clipboard.readText()"))
    expect(other.locator(".chip")).to_have_count(page.locator(".chip").count())
    _wait_until_idle(other)
    assert content(other) == content(page)
    other.goto(f"{page.url.split('#')[0]}#text=a&pins=[1,{{&prefix=3&ablate=x&head=9:9&step=-1")
    other.reload()
    expect(other.locator("#text")).to_have_value("a")
    _wait_until_idle(other)
    expect(other.locator(".chip")).to_have_count(0)
    other.close()


def _downloaded(view: Any, label: str) -> xml.etree.ElementTree.Element:
    with view.page.expect_download() as download:
        view.get_by_label(label).click()
    return xml.etree.ElementTree.parse(download.value.path()).getroot()


@pytest.mark.parametrize("name", ["heatmap", "alignment"])
def test_downloads(page: Page, folders: list[Path], name: str) -> None:
    expected = regard.Translator.load(folders[0], "cpu").translate(["a b c"])[0]
    files = {}
    for format in ("PNG", "SVG", "JSON"):
        with page.expect_download() as download:
            _view(page).get_by_label(f"Download {name} as {format}").click()
        assert download.value.suggested_filename == f"{name}.{format.lower()}"
        files[format] = Path(download.value.path()).read_bytes()
    assert files["PNG"].startswith(b"\x89PNG")
    assert len(files["PNG"]) > 2000
    texts = [node.text for node in xml.etree.ElementTree.fromstring(files["SVG"]).iter()]
    assert {*expected.source_tokens, *expected.tokens} <= {*texts}
    data = json.loads(files["JSON"])
    assert data["tokens"] == expected.tokens
    assert np.allclose(data["displayed"]["weights"], expected.attention, atol=1e-4)


def test_the_alignment_is_downloaded_with_its_own_weights(page: Page) -> None:
    view = _view(page, 1)
    view.locator(".head-group.encoder .head").first.click()
    expect(view.locator(".head-group[aria-busy]")).to_have_count(0)
    kinds = []
    for name in ("heatmap", "alignment"):
        with page.expect_download() as download:
            view.get_by_label(f"Download {name} as JSON").click()
        kinds.append(json.loads(Path(download.value.path()).read_bytes())["displayed"]["kind"])
    assert kinds == ["encoder", "cross"]


def test_self_attention_is_requested_again_after_an_error(page: Page) -> None:
    page.route(
        "**/api/self-attention",
        lambda route: route.fulfill(status=422, json={"error": "busy"}),
        times=1,
    )
    _submit(page, "c b")
    notice = _view(page, 1).get_by_text("Self-attention is not available: busy")
    expect(notice).to_be_visible()
    _submit(page, "c b")
    expect(notice).to_have_count(0)


def _fulfill(route: Route, status: int, body: str) -> None:
    route.fulfill(status=status, body=body)


def test_an_error_of_a_proxy_is_shown(page: Page) -> None:
    for status, body, expected in (
        (422, '{"message": "no"}', "The server responded with status 422."),
        (200, '{"transl', "status 200, but the response is incomplete."),
    ):
        answer = functools.partial(_fulfill, status=status, body=body)
        page.route("**/api/translate", answer, times=2)
        _start(page, "c b")
        expect(page.locator("#status")).to_contain_text(expected)


def test_a_text_that_fails_in_one_view_is_shown_in_none(page: Page) -> None:
    outputs = [_view(page, number).locator(".output").text_content() for number in range(2)]
    page.route(
        "**/api/translate",
        lambda route: (
            route.fulfill(status=422, json={"error": "no"})
            if route.request.post_data_json["model"] == 1
            else route.fallback()
        ),
    )
    _start(page, "d c a b")
    expect(page.locator("#status")).to_have_text("no")
    expect(page.locator("[aria-busy]")).to_have_count(0)
    for number, text in enumerate(outputs):
        expect(_view(page, number).locator(".output")).to_have_text(text)
        heads = _view(page, number).locator(".heatmap thead th").all_text_contents()
        assert heads[:3] == ["a", "b", "c"]
    assert page.evaluate("location.hash") == ""


def test_an_intervention_keeps_the_search_options_of_the_output(page: Page) -> None:
    page.fill("#beam-size", "1")
    page.fill("#n-best", "1")
    _view(page).locator(".track").first.focus()
    with page.expect_request("**/api/translate") as request:
        page.keyboard.press("ArrowDown")
    assert (request.value.post_data_json["beam_size"], request.value.post_data_json["n_best"]) == (
        5,
        5,
    )
    _wait_until_idle(page)


def test_arrow_keys_start_from_the_pin_of_a_weight(page: Page) -> None:
    view = _view(page, 1)
    view.locator(".head-group.cross .head", has_text="head 0").first.click()
    view.get_by_label("ablate this head").check()
    _wait_until_idle(page)
    view.locator(".head-group.cross .head", has_text="average").first.click()
    track = view.locator(".track").first
    for pressed in ("End", "PageDown"):  # pinned to 1, then to 0.8
        track.focus()
        page.keyboard.press(pressed)
        view.locator(".chip", has_text="1.00" if pressed == "End" else "0.80").wait_for()
        _wait_until_idle(page)


def test_pictures_of_control_characters_are_valid(page: Page) -> None:
    _submit(page, "a \x01 b")
    for format in ("PNG", "SVG"):
        with page.expect_download() as download:
            _view(page).get_by_label(f"Download heatmap as {format}").click()
        content = Path(download.value.path()).read_bytes()
    assert "\ufffd" in "".join(xml.etree.ElementTree.fromstring(content).itertext())


def test_the_tree_has_a_root_and_joined_edges(page: Page) -> None:
    view = _view(page)
    view.get_by_text("Search tree").click()
    view.locator(".tree g.root").wait_for()
    boxes = view.locator(".tree rect").evaluate_all(
        """rects => rects.map((rect) => {
            const [x, y] = rect.parentNode.getAttribute("transform").match(/[\\d.]+/g).map(Number);
            return [x, x + Number(rect.getAttribute("width")), y + Number(rect.getAttribute("height")) / 2];
        })"""
    )
    paths = view.locator(".tree path").evaluate_all(
        "paths => paths.map((path) => [path.getPointAtLength(0), path.getPointAtLength(1e6)].map(({x, y}) => [x, y]))"
    )
    assert len(paths) == len(boxes) - 1
    for (x1, y1), (x2, y2) in paths:
        assert any(abs(x1 - right) + abs(y1 - y) < 0.1 for _, right, y in boxes)
        assert any(abs(x2 - left) + abs(y2 - y) < 0.1 for left, _, y in boxes)
    assert all("%" in text for text in view.locator(".tree .percent").all_text_contents())


def _tops(page: Page) -> list[dict[str, float]]:
    return page.locator(".view").evaluate_all(
        """views => views.map((view) => Object.fromEntries(
            [...view.querySelectorAll(":scope > .panel[aria-label]")].map(
                (panel) => [panel.getAttribute("aria-label"), panel.getBoundingClientRect().y])))"""
    )


def test_two_models_share_the_step_and_their_panels_align(page: Page) -> None:
    _view(page).locator(".sentence.target button").nth(1).click()
    expect(_view(page, 1).locator("input[type=range]")).to_have_value("1")
    tops = _tops(page)
    assert len(tops[0]) == 4
    assert tops[0] == tops[1]


def test_nothing_moves_when_self_attention_arrives(page: Page) -> None:
    held: list[Route] = []
    page.route("**/api/self-attention", lambda route: held.append(route))
    page.fill("#text", "c b")
    page.click("button[type=submit]")
    expect(_view(page, 1).locator(".head-group[aria-busy]")).to_have_count(2)
    expect(page.locator("#status")).to_have_text("")
    before = _tops(page)
    shades = "canvases => canvases.map((canvas) => canvas.toDataURL())"
    thumbnails = _view(page, 1).locator(".head-group.decoder canvas")
    (blank,) = set(thumbnails.evaluate_all(shades))
    while not held:  # the page shows that it waits before the request is seen here
        page.wait_for_timeout(10)
    held.pop().continue_()
    _wait_until_idle(page)
    assert blank not in thumbnails.evaluate_all(shades)
    assert _tops(page) == before


def test_self_attention_that_fails_says_why(page: Page) -> None:
    failure = {"status": 422, "json": {"error": "too many weights"}}
    page.route("**/api/self-attention", lambda route: route.fulfill(**failure))
    _submit(page, "c b")
    notice = "Self-attention is not available: too many weights"
    expect(_view(page, 1).get_by_text(notice)).to_be_visible()
    page.unroute("**/api/self-attention")
    _submit(page, "b c")
    expect(_view(page, 1).get_by_text(notice)).to_have_count(0)


def test_the_first_visit_explains_itself(page: Page) -> None:
    examples = page.locator(".example")
    assert 1 <= examples.count() <= 3
    examples.last.click()
    _wait_until_idle(page)
    expect(page.locator("#text")).to_have_value(examples.last.text_content())
    tooltip = page.get_by_role("tooltip")
    page.locator(".sentence.source [data-help=end]").first.hover()
    expect(tooltip).to_contain_text("end of a sequence")
    for term in ("beam size", "sum of the weights"):
        page.get_by_role("button", name=term).first.focus()
        expect(tooltip).to_be_visible()
    page.keyboard.press("Escape")
    expect(tooltip).to_be_hidden()


def test_unknown_tokens_are_marked(page: Page) -> None:
    _submit(page, "a zebra b")
    view = _view(page)
    for selector in (".sentence.source .unknown", ".bar .unknown", ".heatmap th.unknown"):
        assert view.locator(selector).all_text_contents() == ["zebra"]
    for name in ("heatmap", "alignment"):
        texts = _downloaded(view, f"Download {name} as SVG").iter(SVG + "text")
        assert [node.text for node in texts if node.get("text-decoration")] == ["zebra"]


def test_unknown_tokens_are_marked_in_narrow_columns(page: Page) -> None:
    """The mark is drawn, not clipped by the column: its colour is in the image of the label."""
    page.set_viewport_size({"width": 390, "height": 900})
    _submit(page, "a " * 20 + "zebra")
    label = _view(page).locator(".heatmap.rotated-labels thead th").nth(20)
    expect(label).to_have_class("unknown")
    label.scroll_into_view_if_needed()
    with_mark = label.screenshot()
    label.evaluate("label => { label.classList.remove('unknown'); }")
    assert label.screenshot() != with_mark


def test_a_source_of_unknown_tokens_gives_a_warning(page: Page) -> None:
    warning = _view(page).locator(".warning")
    expect(warning).to_be_hidden()
    _submit(page, "a zebra أسد")
    expect(warning).to_have_text(
        "The output is unreliable: 2 of 3 source tokens are not in the model's vocabulary."
    )
    assert _view(page).locator(".note bdi").all_text_contents()[:2] == ["zebra", "أسد"]


def test_an_empty_text_is_answered_by_one_line(page: Page) -> None:
    _submit(page, " ")
    view = _view(page)
    expect(view.locator(".note")).to_have_text("The text is empty: there is nothing to translate.")
    assert view.inner_text().count("empty") == 1
    expect(view.locator(".panel").first).to_be_hidden()
    _submit(page, "a b c")
    expect(view.locator(".panel").first).to_be_visible()


def test_an_ablated_head_does_not_move_the_others(page: Page) -> None:
    view = _view(page, 1)
    view.locator(".head-group.decoder").wait_for()
    tops = """nodes => nodes.map((node) =>
        Math.round(node.getBoundingClientRect().top - nodes[0].getBoundingClientRect().top)).join()"""
    before = view.locator(".head").evaluate_all(tops)
    view.get_by_role("button", name="layer 1, head 0", exact=True).click()
    view.get_by_label("ablate this head").check()
    expect(view.locator(".head .badge")).to_be_visible()
    now = f"({tops})([...view.querySelectorAll('.head')])"
    page.wait_for_function(
        f"([view, before]) => {now} === before", arg=[view.element_handle(), before]
    )


def test_an_ablated_head_is_named_wherever_it_is_drawn(page: Page) -> None:
    view = _view(page, 1)
    view.get_by_role("button", name="layer 1, head 0", exact=True).click()
    view.get_by_label("ablate this head").check()
    note = "Head 0 of layer 1 is ablated: its weights and its output are 0."
    for selector in (".no-lines", ".sum-line", ".heatmap caption"):
        expect(view.locator(selector)).to_contain_text(note)
    for name in ("heatmap", "alignment"):
        texts = _downloaded(view, f"Download {name} as SVG").iter(SVG + "text")
        assert note in [node.text for node in texts]


def test_the_note_of_an_ablated_head_stands_between_the_tokens(page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 900})
    _submit(page, "a " * 20)
    view = _view(page, 1)
    view.get_by_role("button", name="layer 1, head 0", exact=True).click()
    view.get_by_label("ablate this head").check()
    note = view.locator(".vertical .no-lines")
    expect(note).to_be_visible()
    source, target = (
        view.locator(f".sentence.{side}").bounding_box() for side in ("source", "target")
    )
    box = note.bounding_box()
    assert source["x"] + source["width"] <= box["x"]
    assert box["x"] + box["width"] <= target["x"]


def _long_translation(length: int) -> dict[str, Any]:
    """A response of `length` source and output tokens, each attending to its own position."""
    source = [*(f"source{i}" for i in range(length - 1)), "</s>"]
    weights = (0.8 * np.eye(length) + 0.2 / length).tolist()
    output = {
        "text": " ".join(tokens := [f"output{i}" for i in range(length)]), "tokens": tokens,
        "score": -1.0, "log_prob": -4.0, "complete": True, "attention": weights,
        "attention_heads": [[[row, row], [row, row]] for row in weights],
        "top_logprobs": [[{"token": token, "log_prob": -0.5}] for token in [*tokens, None]],
    }  # fmt: skip
    best = {
        **output,
        "source": "a",
        "source_tokens": source,
        "unknown": [],
        "left_out": [],
        "tree": [],
    }
    return {"translations": [{**best, "n_best": [output]}]}


@pytest.mark.parametrize(("width", "length"), [(1280, 60), (390, 20)])
def test_long_sentences_stay_in_their_box(page: Page, width: int, length: int) -> None:
    response = _long_translation(length)
    page.route("**/api/translate", lambda route: route.fulfill(json=response))
    page.route("**/api/self-attention", lambda route: route.fulfill(status=422, json={}))
    page.set_viewport_size({"width": width, "height": 900})
    _submit(page, "a")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for number in range(2):
        view = _view(page, number)
        box = view.bounding_box()
        for selector in (".sentence .token", ".bar", ".heatmap tbody td.cell:last-child"):
            nodes = view.locator(selector)
            edges = nodes.evaluate_all(
                "nodes => nodes.map((node) => node.getBoundingClientRect()).map(({left, right}) => [left, right])"
            )
            assert len(edges) >= length
            if "cell" in selector:
                continue  # columns of the heatmap may scroll in their box
            assert min(left for left, _ in edges) >= box["x"] - 1
            assert max(right for _, right in edges) <= box["x"] + box["width"] + 1
        view.locator("input[type=range]").fill(str(length - 2))
        area = view.locator(".alignment-box").bounding_box()
        for kind in (".target", ".source"):
            token = view.locator(f".sentence{kind} .token").nth(length - 2).bounding_box()
            assert area["y"] <= token["y"] <= area["y"] + area["height"] - token["height"]


@pytest.mark.parametrize("width", [390, 1280])
def test_axe_finds_nothing(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    _submit(page, "lion zebra c")
    for number in range(2):
        view = _view(page, number)
        view.get_by_text("Search tree").click()
        view.get_by_text("Attention calculation for this step").click()
        view.locator(".calculation").wait_for()
    _view(page, 1).get_by_role("button", name="layer 1, head 0", exact=True).click()
    _view(page, 1).get_by_label("ablate this head").check()
    _view(page, 1).locator(".chip").first.wait_for()
    _view(page).locator(".track").first.focus()
    page.keyboard.press("End")
    _view(page).locator(".next-token td.before .meter").first.wait_for()
    page.get_by_role("button", name="beam size").focus()
    _wait_until_idle(page)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        results = Axe().run(page)
        assert results.violations_count == 0, results.generate_report()
        passed = {rule["id"] for rule in results.response["passes"]}
        assert "color-contrast" in passed


@pytest.mark.parametrize("width", [360, 1200])
def test_the_layout_fits_narrow_and_wide_windows(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    _submit(page, "a b c d " * 5)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    colours = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        colours.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert colours[0] != colours[1]
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == colours[0]


def test_every_control_has_an_accessible_name(page: Page) -> None:
    """Controls have a label that a screen reader can announce."""
    unnamed = page.locator("button, input, select, textarea, [role=slider]").evaluate_all(
        """nodes => nodes.filter((node) => !(node.getAttribute("aria-label") || node.textContent.trim()
            || node.labels?.length)).map((node) => node.outerHTML)"""
    )
    assert unnamed == []


def _hold(page: Page, text: str) -> list[Route]:
    """Hold the requests to translate a text, and return the list that they are added to.

    Requests for the distribution of the next token, which ask for no search tree, pass.
    """
    held: list[Route] = []

    def handle(route: Route) -> None:
        asked = route.request.post_data_json
        if asked["text"] == text and asked.get("tree"):
            held.append(route)
        else:
            route.continue_()

    page.route("**/api/translate", handle)
    return held


def _release(page: Page, held: list[Route], count: int) -> None:
    for _ in range(count):
        while not held:
            page.wait_for_timeout(10)
        route = held.pop(0)
        with page.expect_response(lambda response, asked=route.request: response.request == asked):
            route.continue_()
    page.wait_for_timeout(100)  # an answer that is dropped leaves nothing to wait for


def _start(page: Page, text: str) -> None:
    page.fill("#text", text)
    page.click("button[type=submit]")


def test_the_newest_of_two_texts_is_shown(page: Page) -> None:
    held = _hold(page, "d c a b")
    _start(page, "d c a b")
    _submit(page, "c b")
    text = _view(page).locator(".output").text_content()
    _release(page, held, 2)
    expect(_view(page).locator(".output")).to_have_text(text)
    assert _view(page).locator(".heatmap thead th").all_text_contents()[:2] == ["c", "b"]
    assert "text=c+b&" in page.evaluate("location.hash")
    _view(page).locator(".track").first.focus()
    page.keyboard.press("End")  # an intervention belongs to the text that is shown
    _view(page).locator(".chip").first.wait_for()
    assert _view(page).locator(".heatmap thead th").all_text_contents()[:2] == ["c", "b"]


def test_the_error_of_the_newest_text_is_shown(page: Page) -> None:
    text = _view(page).locator(".output").text_content()
    held = _hold(page, "d c a b")
    _start(page, "d c a b")
    while len(held) < 2:
        page.wait_for_timeout(10)
    page.route(  # asked first, because it is the newest
        "**/api/translate",
        lambda route: (
            route.fulfill(status=422, json={"error": "no"})
            if route.request.post_data_json["text"] == "c b"
            else route.fallback()
        ),
    )
    _start(page, "c b")
    expect(page.locator("#status")).to_have_text("no")
    _release(page, held, 2)
    expect(page.locator("#status")).to_have_text("no")
    expect(_view(page).locator(".output")).to_have_text(text)
    assert page.evaluate("location.hash") == ""


def test_two_interventions_in_a_row_are_both_applied(page: Page) -> None:
    view = _view(page, 1)
    for head in range(2):
        view.locator(".head-group.cross .head", has_text=f"head {head}").first.click()
        if head == 0:
            held = _hold(page, "a b c")
        view.get_by_label("ablate this head").check()
    _release(page, held, 2)
    expect(view.locator(".chip", has_text="ablated")).to_have_count(2)
    for name in ("layer 0, head 0 ablated", "layer 0, head 1 ablated"):
        view.get_by_role("button", name=f"Remove intervention: {name}").click()
    _release(page, held, 2)
    expect(view.locator(".chip")).to_have_count(0)


def test_a_change_of_a_bar_is_kept_when_an_earlier_answer_arrives(page: Page) -> None:
    view = _view(page)
    before = _weights(view)[1]
    held = _hold(page, "a b c")
    view.locator(".track").nth(1).focus()
    page.keyboard.press("ArrowDown")
    while not held:
        page.wait_for_timeout(10)
    page.keyboard.press("ArrowDown")
    _release(page, held, 2)
    _wait_until_idle(page)
    assert _weights(view)[1] == pytest.approx(max(0, before - 0.1), abs=0.005)


def test_bars_that_are_changed_one_after_the_other_are_both_pinned(page: Page) -> None:
    view = _view(page)
    for number in range(2):
        view.locator(".track").nth(number).focus()
        page.keyboard.press("ArrowDown")
    expect(view.locator(".bar.pinned")).to_have_count(2)
    expect(view.locator(".chip")).to_have_count(3)  # with the one that resets
    _wait_until_idle(page)


def test_other_buttons_and_shortcuts_change_no_bar(page: Page) -> None:
    view = _view(page)
    before, track = _weights(view), view.locator(".track").first
    track.click(button="right", position={"x": 3, "y": 3})
    track.focus()
    page.keyboard.press("Control+End")
    page.keyboard.press("Alt+ArrowUp")
    page.wait_for_timeout(400)
    assert _weights(view) == before
    expect(view.locator(".chip")).to_have_count(0)


def test_the_newest_of_two_links_is_restored(page: Page, address: str) -> None:
    held = _hold(page, "d c a b")
    page.evaluate("location.hash = 'text=d+c+a+b&beam=5&outputs=5'")
    while len(held) < 2:
        page.wait_for_timeout(10)
    page.evaluate("location.hash = 'text=c+b&beam=5&outputs=5'")
    expect(_view(page).locator(".heatmap thead th").first).to_have_text("c")
    _release(page, held, 2)
    _wait_until_idle(page)
    assert "text=c+b&" in page.evaluate("location.hash")
    assert _view(page).locator(".heatmap thead th").all_text_contents()[:2] == ["c", "b"]
    _view(page).locator("input[type=range]").focus()
    page.keyboard.press("ArrowRight")
    assert "text=c+b&" in page.evaluate("location.hash")


def test_the_state_without_a_hash_is_restored(page: Page) -> None:
    page.evaluate("location.hash = 'text=c+b&beam=3&outputs=1'")
    expect(_view(page).locator(".heatmap thead th").first).to_have_text("c")
    _wait_until_idle(page)
    page.go_back()
    expect(_view(page).locator(".heatmap thead th").first).to_have_text("a")
    _wait_until_idle(page)
    expect(page.locator("#text")).to_have_value("a b c")
    expect(page.locator("#beam-size")).to_have_value("5")
    assert page.evaluate("location.hash") == ""


def test_numbers_out_of_range_are_replaced(page: Page) -> None:
    for given, sent in (("-3", 1), ("2.7", 2), ("999999", 20), ("", 5)):
        page.fill("#beam-size", given)
        page.fill("#n-best", "1")
        with page.expect_request("**/api/translate") as request:
            page.locator("#text").press("Enter")
        assert request.value.post_data_json["beam_size"] == sent
        expect(page.locator("#beam-size")).to_have_value(str(sent))
        _wait_until_idle(page)
    page.fill("#beam-size", "3")
    page.locator("#text").press("Enter")
    _wait_until_idle(page)
    page.fill("#beam-size", "4")  # not yet used
    view = _view(page)
    view.locator("input[type=range]").focus()
    page.keyboard.press("ArrowRight")
    assert "beam=3&" in page.evaluate("location.hash")


def test_an_address_that_cannot_be_changed_is_changed_later(page: Page) -> None:
    page.evaluate(
        """() => {
            const replace = History.prototype.replaceState;
            window.blocked = true;
            history.replaceState = function (...state) {
                if (window.blocked) throw new Error("too often");
                replace.apply(this, state);
            };
        }"""
    )
    slider = _view(page).locator("input[type=range]")
    slider.focus()
    page.keyboard.press("ArrowRight")
    expect(_view(page).locator(".step-label")).to_contain_text("step 1")
    assert page.evaluate("location.hash") == ""
    page.evaluate("window.blocked = false")
    expect(page).to_have_url(re.compile("step=1"))


def test_the_page_works_without_storage(browser: Browser, address: str) -> None:
    page = browser.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.add_init_script(
        "Object.defineProperty(window, 'localStorage', { get() { throw new Error('denied'); } })"
    )
    _open(page, address)
    page.click("#theme")
    assert page.evaluate("document.documentElement.dataset.theme") in ("dark", "light")
    page.get_by_role("button", name="beam size").first.focus()
    expect(page.get_by_role("tooltip")).to_be_visible()
    assert errors == []
    page.close()


@pytest.mark.parametrize(
    ("text", "focused"),
    [("a b c", "input[type=range]"), ("a", ".output")],  # the slider of a single step is disabled
)
def test_focus_is_kept_when_an_intervention_is_removed(page: Page, text: str, focused: str) -> None:
    _submit(page, text)
    view = _view(page)
    expect(view.locator("input[type=range]:disabled")).to_have_count(int(text == "a"))
    view.locator(".track").first.focus()
    page.keyboard.press("End")
    view.locator(".chip").first.wait_for()
    view.get_by_role("button", name="Reset all interventions").focus()
    page.keyboard.press("Enter")
    expect(view.locator(".chip")).to_have_count(0)
    expect(view.locator(focused)).to_be_focused()


def test_repeated_tokens_are_named_with_their_positions(page: Page) -> None:
    _submit(page, "a b a")
    view = _view(page)
    names = [track.get_attribute("aria-label") for track in view.locator(".track").all()]
    assert names == ["weight of a (0)", "weight of b", "weight of a (2)", "weight of </s>"]
    view.get_by_role("slider", name="weight of a (2)").focus()
    page.keyboard.press("End")
    expect(view.locator(".chip").first).to_have_text("step 0: a (2) 1.00 ×")
    title = view.locator(".heatmap tbody tr").first.locator("td").first.get_attribute("title")
    assert "attends to a (0): " in title


def test_the_note_of_interventions_speaks_of_the_best_output(page: Page) -> None:
    view = _view(page)
    view.locator(".track").last.focus()
    page.keyboard.press("ArrowUp")
    view.locator(".chip").first.wait_for()
    note = view.locator(".note").text_content()
    assert "best output" in note.lower()
    view.locator(".n-best button").nth(1).click()
    expect(view.locator(".note")).to_have_text(note)


def test_heads_of_an_ensemble_are_called_members(
    browser: Browser, folders: list[Path], tmp_path: Path
) -> None:
    ensemble.save([str(folder) for folder in folders[:1] * 3], tmp_path / "three")
    with _server([tmp_path / "three", folders[1]]) as address:
        page = browser.new_page()
        _open(page, address)
        members, other = _view(page), _view(page, 1)
        members.get_by_role("button", name="member 2", exact=True).click()
        expect(members.locator(".head-controls")).to_contain_text("cross-attention, member 2.")
        title = members.get_by_role("group", name="Attention at every step").locator(".hint")
        expect(title).to_contain_text("(member 2).")
        members.get_by_label("ablate this member").check()
        expect(members.locator(".chip").first).to_have_text("member 2 ablated ×")
        note = "The attention of member 2 is ablated: its weights and its output are 0."
        expect(members.locator(".sum-line .ablated-note")).to_have_text(note)
        hints = ["every member of the ensemble", "every layer and head"]
        for view, hint in zip((members, other), hints, strict=True):
            expect(view.locator(".panel.weights .hint")).to_contain_text(f"applies to {hint}.")
        page.close()
