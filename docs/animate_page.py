"""Create docs/page.gif: the slider over the output steps and an intervention on the web page.

    pip install -e '.[docs,serve,test]'
    regard demo
    python docs/animate_page.py demo/model

Needs the extras `serve` and `test`, Pillow (extra `docs`) and Chromium.
"""

import io
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright
from screenshot import serve

from regard.demo import MAP_SENTENCE

SIZE, SCALE = {"width": 1000, "height": 800}, 0.8
"""Pixels of the page, and pixels of the animation per pixel of the page."""
STEP, TOKEN = 5, "compra"
"""The intervention: at this output step (from 0), the weight of this source token is raised."""
MILLISECONDS = {"step": 900, "drag": 300, "pause": 3500}
COLOURS = 128
LIMIT = 1_500_000
"""Bytes of the file."""

Frame = tuple[bytes, int]
"""A screenshot and the milliseconds for which it is visible."""


def main(folder: str, out: Path) -> None:
    with serve(folder, MAP_SENTENCE) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        options = {"color_scheme": "light", "reduced_motion": "reduce"}
        page = browser.new_page(viewport=SIZE, device_scale_factor=SCALE, **options)
        page.goto(address)
        page.get_by_role("slider", name="output step").wait_for()
        page.locator("[aria-busy]").first.wait_for(state="detached")
        frames = list(take(page))
    save(frames, out)
    size = out.stat().st_size
    if size > LIMIT:
        sys.exit(f"{out} has {size:,} bytes, more than {LIMIT:,}")


def take(page: Page) -> Iterator[Frame]:
    """Take the frames: each output step, then a bar as it is dragged, then the new output."""
    slider = page.get_by_role("slider", name="output step")
    slider.scroll_into_view_if_needed()
    # the first line of the output is the top of every frame
    page.locator(".result").first.evaluate("node => node.scrollIntoView()")
    for step in range(STEP + 1):
        slider.fill(str(step))
        slider.dispatch_event("input")
        yield screenshot(page, "step")
    track = page.get_by_role("slider", name=f"weight of {TOKEN}", exact=True)
    box = track.bounding_box()
    assert box is not None
    x, bottom, height = box["x"] + box["width"] / 2, box["y"] + box["height"] - 4, box["height"]
    page.mouse.move(x, bottom)
    page.mouse.down()
    for share in (0.3, 0.6, 0.95):
        page.mouse.move(x, bottom - share * (height - 8))
        yield screenshot(page, "drag")
    page.mouse.up()
    page.get_by_role("button", name="reset").wait_for()
    page.locator("[aria-busy]").first.wait_for(state="detached")
    yield screenshot(page, "pause")


def screenshot(page: Page, duration: str) -> Frame:
    page.wait_for_timeout(400)  # the probabilities of the next token arrive
    return page.screenshot(), MILLISECONDS[duration]


def save(frames: list[Frame], out: Path) -> None:
    """Write the frames as an animated GIF with one palette, that of the last frame."""
    images = [Image.open(io.BytesIO(png)).convert("RGB") for png, _ in frames]
    palette = images[-1].quantize(COLOURS)
    first, *others = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]
    durations = [milliseconds for _, milliseconds in frames]
    first.save(out, save_all=True, append_images=others, duration=durations, loop=0, optimize=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(__file__).parent / "page.gif")
