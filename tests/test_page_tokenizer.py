"""The page's tokenizer in Chromium, against Python's."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from playwright.sync_api import Page, sync_playwright

import regard
from regard.config import NormalForm, TextConfig, Unit
from regard.text import UNITS, Tokenizer
from static_server import serve_folder
from tokenizer_texts import TEXTS, random_texts

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PAGE = Path(regard.__file__).parent / "serving" / "page"

pytestmark = pytest.mark.skipif(
    CHROMIUM is None and not os.environ.get("CI"), reason="Chromium is not installed"
)


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with serve_folder(PAGE) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"{address}/icon.svg")
        yield page
        browser.close()


def _encoded(page: Page, tokenizer: Tokenizer, sources: list[tuple[str, str | None]]) -> list[Any]:
    """Return ids, tokens, tokens left out and the joined tokens of each source, from JavaScript."""
    script = """async ([tokenizer, sources]) => {
        const { Tokenizer } = await import("/onnx/tokenizer.js");
        const made = new Tokenizer(JSON.parse(tokenizer));
        return sources.map(([text, features]) => {
            const { ids, tokens, leftOut } = made.encode({ text, features });
            return [ids, tokens, leftOut, made.detokenize(tokens)];
        });
    }"""
    return page.evaluate(script, [tokenizer.to_json(), sources])


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("form", get_args(NormalForm))
def test_texts_are_tokenized_as_in_python(page: Page, unit: Unit, form: NormalForm) -> None:
    lowercase = form in ("NFKC", "none")
    config = TextConfig(
        unit=unit, vocabulary_size=120, min_frequency=2, normal_form=form, lowercase=lowercase,
        match_vocabulary=lowercase,
    )  # fmt: skip
    training = TEXTS * 3 + random_texts(200)
    texts = TEXTS + random_texts(400)
    features = ["V;PST", "N,PL|x", "", "V x"]
    tokenizer = Tokenizer.train(training, config, (features * len(training))[: len(training)])
    sources = [(text, [*features, None][i % 5]) for i, text in enumerate(texts)]
    encodings = tokenizer.encode_batch(sources)
    expected = [
        [encoding.ids, encoding.tokens, list(encoding.left_out), tokenizer.detokenize(encoding.tokens)]
        for encoding in encodings
    ]  # fmt: skip
    found = _encoded(page, tokenizer, sources)
    different = [
        json.dumps((source, *pair), ensure_ascii=False)
        for source, *pair in zip(sources, found, expected, strict=True)
        if pair[0] != pair[1]
    ]
    assert different == []
    assert any(encoding.unknown for encoding in encodings)
