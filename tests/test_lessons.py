"""Interactive figures and notebooks of the lessons."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from playwright.sync_api import Page, sync_playwright

import regard
from regard.score_registry import SCORES

DOCS = Path(__file__).parent.parent / "docs"
LESSONS = sorted((DOCS / "lessons").glob("[0-9]*.md"))
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_browser = pytest.mark.skipif(
    CHROMIUM is None and not os.environ.get("CI"), reason="Chromium is not installed"
)
LETTERS = {"temperature": "τ"}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A page with the figure of lesson 2."""
    widget = '<div class="attention-widget" data-query="1,2" data-keys="1,0;0,1;1,1" data-score="dot"></div>'
    script = (DOCS / "_static" / "attention_widget.js").read_text("utf-8")
    style = (DOCS / "_static" / "regard.css").read_text("utf-8")
    path = tmp_path_factory.mktemp("widget") / "page.html"
    path.write_text(
        f'<!DOCTYPE html><meta charset="utf-8"><style>{style}</style>{widget}<script>{script}</script>',
        encoding="utf-8",
    )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        errors: list[object] = []
        page.on("pageerror", lambda error: errors.append(error))
        page.goto(path.as_uri())
        yield page
        assert not errors
        browser.close()


def numbers(page: Page) -> dict[str, list[float]]:
    return json.loads(page.locator("output.result").get_attribute("data-numbers"))


def random_parameters(name: str, rng: np.random.Generator) -> dict[str, np.ndarray]:
    shapes = {
        "W": (2, 4) if name == "concat" else (2, 2),
        "U": (2, 2),
        "v": (2,),
        "temperature": (),
    }
    return {
        letter: np.abs(rng.normal(size=shapes[letter])) + 0.1
        if letter == "temperature"
        else rng.normal(size=shapes[letter])
        for letter, axes in SCORES[name].parameters.items()
        if axes is not None
    }


@needs_browser
@pytest.mark.parametrize("name", SCORES)
def test_the_figure_computes_what_the_library_computes(page: Page, name: str) -> None:
    rng = np.random.default_rng(7)
    for _ in range(20):
        query, keys = 2 * rng.normal(size=2), 2 * rng.normal(size=(5, 2))
        parameters = random_parameters(name, rng)
        sent = {LETTERS.get(k, k): np.atleast_2d(p).tolist() for k, p in parameters.items()}
        if name == "inner_product":
            sent = {"A": sent["W"]}
            parameters = {"W": parameters["W"] @ parameters["W"].T}
        found = page.evaluate(
            "([name, ...rest]) => regardAttention.attend(name, ...rest)",
            [name, query.tolist(), keys.tolist(), sent],
        )
        expected = regard.explain(query, keys, score=name, parameters=parameters)
        for field in ("scores", "partition", "weights", "context"):
            np.testing.assert_allclose(
                found[field], getattr(expected, field), rtol=1e-9, atol=1e-12
            )


@needs_browser
@pytest.mark.parametrize("name", ["dot", "scaled_dot", "cosine"])
def test_the_figure_agrees_with_the_layer(page: Page, name: str) -> None:
    rng = np.random.default_rng(3)
    query, keys = rng.normal(size=2), rng.normal(size=(4, 2))
    keys[1] = 0  # the cosine of the vector 0 is 0
    found = page.evaluate(
        "([name, ...rest]) => regardAttention.attend(name, ...rest)",
        [name, query.tolist(), keys.tolist()],
    )
    attention = regard.Attention(regard.make_score(name, query_dim=2, key_dim=2, hidden_dim=2))
    context, weights = attention(
        torch.tensor(query)[None, None], torch.tensor(keys)[None], need_weights=True
    )
    np.testing.assert_allclose(found["weights"], weights[0, 0].detach(), atol=1e-6)
    np.testing.assert_allclose(found["context"], context[0, 0].detach(), atol=1e-6)


@needs_browser
def test_every_score_starts_with_the_default_parameters_of_the_library(
    page: Page,
) -> None:
    for name in SCORES:
        page.get_by_role("combobox").select_option(name)
        expected = regard.explain([1, 2], [[1, 0], [0, 1], [1, 1]], score=name)
        np.testing.assert_allclose(numbers(page)["weights"], expected.weights, atol=1e-9)
        shown = [f"{weight:.4f}" for weight in expected.weights]
        assert page.locator("span.number").all_inner_texts() == shown
    page.get_by_role("button", name="Reset").click()


@needs_browser
def test_vectors_are_changed_by_pointer_keys_and_fields(page: Page) -> None:
    key = page.get_by_role("button", name="h₁, 1, 0")
    box = key.locator("circle").bounding_box()
    unit = page.evaluate("document.querySelector('.attention-widget svg').getScreenCTM().a") * 52
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(
        box["x"] + box["width"] / 2 + unit, box["y"] + box["height"] / 2 - 2 * unit, steps=4
    )
    page.mouse.up()
    expected = regard.explain([1, 2], [[2, 2], [0, 1], [1, 1]])
    np.testing.assert_allclose(numbers(page)["scores"], expected.scores, atol=1e-9)

    page.get_by_role("button", name="s, 1, 2").press("ArrowLeft")
    page.get_by_label("h₂ x").fill("-1.5")
    expected = regard.explain([0.9, 2], [[2, 2], [-1.5, 1], [1, 1]])
    np.testing.assert_allclose(numbers(page)["context"], expected.context, atol=1e-9)

    page.get_by_role("button", name="Add a key").click()
    assert len(numbers(page)["weights"]) == 4
    page.get_by_role("combobox").select_option("bilinear")
    page.get_by_label("W row 1 column 2").fill("2")
    page.get_by_role("button", name="Remove a key").click()
    keys = [[2, 2], [-1.5, 1], [1, 1]]
    expected = regard.explain([0.9, 2], keys, score="bilinear", parameters={"W": [[1, 2], [0, 1]]})
    np.testing.assert_allclose(numbers(page)["weights"], expected.weights, atol=1e-9)
    page.get_by_role("button", name="Reset").click()
    expected = regard.explain([1, 2], [[1, 0], [0, 1], [1, 1]])
    np.testing.assert_allclose(numbers(page)["weights"], expected.weights, atol=1e-9)


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_a_notebook_needs_no_file_and_no_extension(
    lesson: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("myst_nb")
    monkeypatch.syspath_prepend(str(DOCS / "_extensions"))
    import notebooks

    text = lesson.read_text("utf-8")
    notebook = notebooks.convert(text)
    code = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert not re.search(r"\b_models\b|trained_once|demo/model", code)
    assert not re.search(r"^```\{|^:::|\]\(\.\./|\.md\)", prose, re.MULTILINE)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            assert cell.source.count("<details>") == cell.source.count("</details>")
    assert notebook.cells[1].source == notebooks.INSTALL
    # every exercise has a solution
    exercises, _, _ = text.partition("## Exercises")[2].partition("## Sources")
    numbered = re.findall(r"^\*\*\d+\.\*\*", exercises, re.MULTILINE)
    assert len(numbered) == exercises.count('<details class="solution">') >= 2
