"""Texts in many scripts, for tests that compare another tokenizer with that of the package."""

import random

TEXTS = [
    "¿Qué es esto? No lo sé.", "l'été où j'étais là-bas", "rock-and-roll ‑ x‐y", "col·legi a·b",
    "我爱机器学习。你呢？", "今日はいい天気ですね", "ไทยกำลัง น้ำ", "क्षि हिन्दी में लिखा है।",
    "বাংলা ভাষা ক্ষ", "தமிழ் மொழி", "മലയാളം ക്ഷ", "👩‍👩‍👧 🎉🏳️‍🌈 a👍🏽b 🇩🇪🇫🇷🇪", "t͡ʃ d͡ʒ ʰ́",
    "‿ a‿b ‿‿ ‿? x‿", "▁ a▁b ▁▁ ▁x", "<pad> <unk> </s> <s>", "ΟΔΥΣΣΕΥΣ ΣΑΣ İSTANBUL ǅ ﬁ ẞ",
    "a\u00a0b\u3000c\u2028d\x1ce\x85f", "e\u0301 \u0301a ! \u0301 .\u0301a", "שלום עולם", "مرحبا ١٢٣",
    "한국어 ᄒ\u1161ᆫ", "$5.00 (10%) \"quoted\" «x» …", "don’t won't o'clock ' '' a'", "ﾊﾟﾋﾟ",
    "ΜΑΪ\u0301ΟΥ μαΐου J\u030cǰ", "我爱・机器「学」 က၊ခ។", " a\u00a0 b\t", "x\u200dy \u200c", "\ufeffa b\ufeff", "a\r\nb\tc  d", "",
    "我 爱 机器 学习 我々 2 a ❤", "我爱2机器。我々a企業", "a❤\ufe0f ‿❤\ufe0f. . .",
]  # fmt: skip
_WITHOUT_SPACES = "我爱机器学习々・฿‿。? a2❤\ufe0f\u200d"
"""Words and parts of words of scripts without spaces, and marks and other words among them."""


def random_texts(count: int) -> list[str]:
    """Return random texts of the characters in `TEXTS`; every fourth has few spaces between words."""
    characters = sorted(set("".join(TEXTS))) + list(" ab.-'‿▁क्\u200d\u0301") * 5
    return [
        "".join(random.choices(characters if i % 4 else _WITHOUT_SPACES, k=random.randrange(14)))
        for i in range(count)
    ]
