"""Fonts of charts, and the characters that no installed font can draw."""

import functools
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable

FONT = "Arial, Liberation Sans, sans-serif"
CJK = (
    "\u1100-\u11ff\u2e80-\u9fff\uac00-\ud7ff\uf900-\ufaff\ufe30-\ufe4f\uff00-\uffef"
    "\U00020000-\U0003ffff"
)
"""Ranges of a regular expression: Chinese, Japanese and Korean characters."""
_CJK = re.compile(f"[{CJK}]")
_KANA, _HANGUL = re.compile("[\u3040-\u30ff]"), re.compile("[\u1100-\u11ff\uac00-\ud7ff]")
_CHINESE = "Noto Sans CJK SC, Noto Sans SC, Source Han Sans SC, PingFang SC, Microsoft YaHei, "
_JAPANESE = "Noto Sans CJK JP, Noto Sans JP, Source Han Sans, Hiragino Sans, Yu Gothic, "
_KOREAN = "Noto Sans CJK KR, Noto Sans KR, Source Han Sans K, Apple SD Gothic Neo, Malgun Gothic, "
_OTHER_CJK = "WenQuanYi Zen Hei, WenQuanYi Micro Hei, Droid Sans Fallback, sans-serif"
_NO_GLYPH = "\U0010fffd"  # the last private-use character: no font has it
_SVG = "{http://www.w3.org/2000/svg}"


def with_cjk_fonts(svg: str) -> str:
    """Return an SVG image that specifies sans-serif fonts for texts with CJK characters.

    The renderer uses the first installed font in a list and, for a text that this font cannot draw,
    any other font, often a serif font. Japanese fonts are used for an image with kana, Korean fonts
    for an image with Hangul, otherwise Chinese fonts: they draw the same characters differently.
    """
    root = ET.fromstring(svg)
    texts = {text: "".join(text.itertext()) for text in root.iter(f"{_SVG}text")}
    content = "".join(texts.values())
    if not _CJK.search(content):
        return svg
    families = (
        _JAPANESE if _KANA.search(content) else _KOREAN if _HANGUL.search(content) else _CHINESE
    )
    for text, characters in texts.items():
        if _CJK.search(characters):
            text.set("font-family", families + _OTHER_CJK)
    return ET.tostring(root, encoding="unicode")


@functools.cache
def render_character(character: str) -> bytes:
    """Return an image of one character.

    Only the renderer knows its fonts, which are those of the system and those that it contains.
    """
    import vl_convert

    return vl_convert.svg_to_png(
        '<svg xmlns="http://www.w3.org/2000/svg" width="32" height="32">'
        f'<text x="8" y="24" font-size="16" font-family="{FONT}">{character}</text></svg>'
    )


def missing_glyphs(svg: str, render: Callable[[str], bytes] = render_character) -> str:
    """Return the characters of an SVG image that no font can draw, each once.

    A character is missing if its image equals that of a character that no font has.
    """
    texts = ET.fromstring(svg).iter(f"{_SVG}text")
    characters = dict.fromkeys("".join("".join(text.itertext()) for text in texts))
    return "".join(c for c in characters if not c.isascii() and render(c) == render(_NO_GLYPH))
