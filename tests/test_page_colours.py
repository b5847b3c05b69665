"""Contrast of the digits in the page's heatmap, as WCAG 2.2 computes it, for every weight."""

import re
from pathlib import Path

import pytest

import regard

PAGE = Path(regard.__file__).parent / "serving" / "page"
WEIGHTS = [i / 1000 for i in range(1001)]


def rgb(colour):
    """Return the channels of #rgb or #rrggbb, from 0 to 1."""
    digits = colour.removeprefix("#")
    digits = digits if len(digits) == 6 else "".join(2 * digit for digit in digits)
    return [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]


def mix(share, colour, background):
    """Return `color-mix(in srgb, colour share, background)`."""
    return [share * c + (1 - share) * b for c, b in zip(colour, background, strict=True)]


def luminance(channels):
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(factor * c for factor, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(first, second):
    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def themes():
    """Return the custom properties of each block that defines the colours of the page."""
    blocks = re.findall(r"\{([^{}]*--digit:[^{}]*)\}", (PAGE / "page.css").read_text("utf-8"))
    return [dict(re.findall(r"--([\w-]+): (#[0-9a-f]+);", block)) for block in blocks]


def inverted_above(script):
    return float(re.search(r"INVERTED_ABOVE = ([\d.]+);", (PAGE / script).read_text("utf-8"))[1])


def test_contrast_is_that_of_wcag():
    assert contrast(rgb("#000"), rgb("#ffffff")) == pytest.approx(21)
    assert contrast(rgb("#777"), rgb("#fff")) == pytest.approx(4.48, abs=0.005)


def test_digits_of_the_heatmap_have_a_contrast_of_4_5_for_every_weight():
    assert len(themes()) >= 2
    limit = inverted_above("heatmap.js")
    for theme in themes():
        accent, panel = rgb(theme["accent"]), rgb(theme["panel"])
        for weight in WEIGHTS:
            name = "digit-inverted" if weight > limit else "muted" if weight < 0.005 else "digit"
            assert contrast(rgb(theme[name]), mix(weight, accent, panel)) >= 4.5, (theme, weight)


def test_digits_of_the_downloaded_heatmap_have_a_contrast_of_4_5_for_every_weight():
    script = (PAGE / "picture.js").read_text("utf-8")
    accent = rgb(re.search(r'\[ACCENT[^=]*= \["(#\w+)"', script)[1])
    for weight in WEIGHTS:
        digit = rgb("#fff" if weight > inverted_above("picture.js") else "#000")
        assert contrast(digit, mix(weight, accent, rgb("#fff"))) >= 4.5, weight
