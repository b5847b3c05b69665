"""The animated encoder-decoder shows the numbers of every step, each at its time."""

import os
import re
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import sync_playwright

from regard.charts import animated_encoder_decoder
from regard.errors import DataError, ShapeError
from regard.explanation import Explanation, explain

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
SOURCE, TARGET = ["te", "</script>", "</s>"], ["I", "love"]


def steps(count: int = 2) -> list[Explanation]:
    rng = np.random.default_rng(1)
    keys = rng.normal(size=(3, 10))
    return [explain(rng.normal(size=10), keys) for _ in range(count)]


def test_all_numbers_are_drawn() -> None:
    animation = animated_encoder_decoder(steps(), SOURCE, TARGET, title="<title>")
    texts = [
        "".join(text.itertext())
        for text in ET.fromstring(animation.svg).iter()
        if "text" in text.tag
    ]
    for step in steps():
        assert step.scores is not None
        for score, weight in zip(step.scores, step.weights, strict=True):
            assert f"{score:.2f}".replace("-", "−") in texts
            assert f"{weight:.2f}" in texts
    for token in SOURCE + TARGET:
        assert token in texts
    assert animation.content["attention"] == [s.weights.round(6).tolist() for s in steps()]
    assert "&lt;title&gt;</text>" in animation.to_html()


def test_two_animations_on_one_page_share_no_class() -> None:
    one = animated_encoder_decoder(steps(), SOURCE, TARGET)
    other = animated_encoder_decoder(steps(), SOURCE, TARGET, bidirectional=False)
    names = [set(re.findall(r"regard-[0-9a-f]{8}", each.svg)) for each in (one, other)]
    assert [len(each) for each in names] == [1, 1]
    assert names[0] != names[1]


def test_long_tokens_are_truncated() -> None:
    animation = animated_encoder_decoder(steps(), ["te", "x" * 400, "</s>"], TARGET)
    assert float(ET.fromstring(animation.svg).attrib["width"]) < 700
    assert animation.content["source_tokens"] == ["te", "x" * 400, "</s>"]


def test_wrong_input_is_refused() -> None:
    given = explain(None, np.eye(3), weights=[0.5, 0.25, 0.25])
    with pytest.raises(DataError, match="scores of every step"):
        animated_encoder_decoder([given], SOURCE, TARGET[:1])
    with pytest.raises(ShapeError, match="one row for each of 3 target tokens"):
        animated_encoder_decoder(steps(), SOURCE, [*TARGET, "you"])
    with pytest.raises(DataError, match="nothing to draw"):
        animated_encoder_decoder([], [], [])
    ragged = [explain([1, 0], np.eye(2)), explain([1, 0, 0], np.eye(3))]
    with pytest.raises(ShapeError, match="expected weights as numbers in rows of the same length"):
        animated_encoder_decoder(ragged, SOURCE, TARGET[:2])


@pytest.mark.slow
@pytest.mark.skipif(
    CHROMIUM is None and not os.environ.get("CI"), reason="Chromium is not installed"
)
def test_the_slider_shows_every_phase_and_reduced_motion_the_last(tmp_path: Path) -> None:
    animation = animated_encoder_decoder(steps(), SOURCE, TARGET, title="Test")
    path = tmp_path / "animation.html"
    animation.save(path)
    visible = """() => [...document.querySelectorAll("svg g[class^=regard]")]
        .filter((group) => Number(getComputedStyle(group).opacity) > 0.9)
        .map((group) => group.textContent).join("|")"""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(path.as_uri())
        seen = []
        page.get_by_role("slider").fill("0")
        for _ in animation.stops:
            page.get_by_role("button", name="Next phase").click()
            seen.append(page.evaluate(visible))
        assert "The encoder reads the source from left to right" in seen[0]
        for phase, text in enumerate(("score", "normalise", "weighted sum", "output")):
            assert f"Step 1, {text}" in seen[2 + phase]
            assert f"Step 2, {text}" in seen[6 + phase]
        assert "love" in seen[-1]
        assert "love" not in seen[-2].replace("“love”", "")
        page.get_by_role("button", name="Play").click()
        assert page.get_by_role("button", name="Pause").is_visible()

        still = browser.new_page(reduced_motion="reduce")
        still.goto(path.as_uri())
        first = still.evaluate(visible)
        still.wait_for_timeout(300)
        assert still.evaluate(visible) == first == seen[-1]
        assert still.get_by_role("button", name="Play").is_visible()
        browser.close()
