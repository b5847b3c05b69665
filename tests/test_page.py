"""The web page in Chromium, against a running server."""

import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

import regard

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
HOSTILE = "</script><img src=x onerror=document.title='hit'>"

pytestmark = pytest.mark.skipif(
    CHROMIUM is None and not os.environ.get("CI"), reason="Chromium is not installed"
)


@pytest.fixture(scope="module")
def address(folders: list[Path]) -> Iterator[str]:
    command = [sys.executable, "-m", "regard.cli.main", "serve", str(folders[0])]
    command += ["--compare-with", str(folders[1]), "--port", "0", "--example", "a b c"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        match = re.search(r"http://\S+:\d+", process.stdout.readline())
        assert match
        yield match[0]
        process.terminate()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # inside a container there is no user namespace for Chromium's own sandbox
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    requests: list[str] = []
    errors: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda entry: errors.append(entry.text) if entry.type == "error" else None)
    page.goto(address)
    yield page
    assert page.title() == "regard"
    assert [url for url in requests if not url.startswith((address, "data:"))] == []
    assert [text for text in errors if "422" not in text] == []
    page.close()


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
    assert re.search(r"step (\d+) of \1:", slider.get_attribute("aria-valuetext"))
    expect(view.locator(".heatmap tr.selected")).to_have_count(1)


def test_submitting_a_text_translates_with_both_models(page: Page, folders: list[Path]) -> None:
    _submit(page, "d c a b")
    for number, folder in enumerate(folders):
        expected = regard.Translator.load(folder, "cpu").translate(["d c a b"], n_best=5)[0]
        expect(_view(page, number).locator(".output")).to_have_text(
            expected[0].text or "(empty output)"
        )
        outputs = _view(page, number).locator(".n-best bdi").all_text_contents()
        assert outputs == [output.text or "(empty output)" for output in expected]


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
    view.locator("select").select_option("1,0")
    assert np.allclose(_weights(view), output.attention_heads[0, 1, 0], atol=0.002)
    view.get_by_label("ablate this head").check()
    view.locator(".chip").first.wait_for()
    expected = translator.translate(["a b c"], ablate_heads=[(1, 0)])[0]
    expect(view.locator(".output")).to_have_text(expected.text or "(empty output)")
    if expected.tokens:
        assert _weights(view) == [0] * len(expected.source_tokens)


def test_a_branch_of_the_search_tree_can_be_forced(page: Page, folders: list[Path]) -> None:
    view = _view(page)
    view.get_by_text("Search tree").click()
    branch = view.locator(".tree g[role=button]:not(.best)").first
    token = branch.locator("text").text_content()
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
        assert view.locator(".sentence.source").get_attribute("dir") in ("rtl", None)


def test_errors_are_displayed(page: Page) -> None:
    page.fill("#text", "a " * 600)
    page.click("button[type=submit]")
    expect(page.locator("#status")).to_contain_text("at most 500 tokens")


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
