"""Create docs/page.png and docs/site.png: web pages after dragging the bar of a weight.

    python docs/screenshot.py demo/model
    regard export english-phones --web -o site
    python docs/screenshot.py site

Needs the extras `serve` and `test`, and Chromium.
"""

import contextlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import sync_playwright

from regard.demo import MAP_SENTENCE

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from static_server import serve_folder

SIZE = {"width": 960, "height": 1040}


def main(folder: Path, docs: Path) -> None:
    if (folder / "index.html").is_file():
        with serve_folder(folder) as address:
            draw(address, docs / "site.png", step=3)
    else:
        with serve(str(folder), MAP_SENTENCE) as address:
            draw(address, docs / "page.png", step=5)


@contextlib.contextmanager
def serve(folder: str, sentence: str) -> Iterator[str]:
    """Run `regard serve` with an example sentence; return its address."""
    command = [sys.executable, "-m", "regard", "serve", folder, "--port", "0"]
    with subprocess.Popen(
        [*command, "--example", sentence], stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            address = re.search(r"http://\S+:\d+", server.stdout.readline())
            assert address is not None
            yield address[0]
        finally:
            server.terminate()


def draw(address: str, out: Path, step: int) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport=SIZE, device_scale_factor=1.5)
        page.goto(address)
        page.locator(".sentence.target button").nth(step).click()
        track = page.locator(".track").nth(step)
        box = track.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 20, box["y"] + box["height"] - 5)
        page.mouse.down()
        page.mouse.move(box["x"] + 20, box["y"] + 10, steps=5)
        page.mouse.up()
        page.locator(".chip").first.wait_for()
        page.wait_for_timeout(400)
        page.screenshot(path=out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(__file__).parent)
