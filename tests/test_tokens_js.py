"""The tokenizer of the runner in JavaScript, against Python's."""

import json
import os
import random
from pathlib import Path

import pytest

from node import NODE, run_script
from regard.config import TextConfig, Unit
from regard.export.folder import copy_runners
from regard.text import UNITS, Tokenizer

pytestmark = pytest.mark.skipif(
    NODE is None and not os.environ.get("CI"), reason="Node.js is not installed"
)

TEXTS = [
    "¿Qué es esto? No lo sé.", "l'été où j'étais là-bas", "我爱机器学习。", "क्षि हिन्दी में है।",
    "👩‍👩‍👧 🎉 a👍🏽b 🇩🇪", "t͡ʃ d͡ʒ ʰ́", "‿ a‿b ‿‿ ‿? x‿", "▁ a▁b ▁▁ ▁x", "</s> <s>", "ΣΑΣ İ ǅ ﬁ",
    "a\u00a0b\u3000c\x1ce", "$5.00 (10%) \"x\" …", "don’t o'clock ' ''", "",
]  # fmt: skip


@pytest.mark.parametrize("unit", UNITS)
def test_texts_are_tokenized_as_in_python(unit: Unit, tmp_path: Path) -> None:
    copy_runners(tmp_path)
    characters = sorted(set("".join(TEXTS))) + list(" ab.-'‿▁") * 5
    drawn = ["".join(random.choices(characters, k=random.randrange(14))) for _ in range(400)]
    for lowercase in (False, True):
        config = TextConfig(unit=unit, vocabulary_size=120, min_frequency=2, lowercase=lowercase)
        tokenizer = Tokenizer.train(TEXTS * 3 + drawn, config)
        script = """
            import { readFileSync } from "node:fs";
            const { Tokenizer } = await import(`${process.cwd()}/onnx/tokenizer.js`);
            const [document, texts] = JSON.parse(readFileSync(0, "utf8"));
            const tokenizer = new Tokenizer(document);
            const all = texts.map((text) => tokenizer.encode({ text, features: null }));
            console.log(JSON.stringify(all.map(({ ids, tokens }) => [ids, tokens, tokenizer.detokenize(tokens)])));
        """
        found = run_script(script, [json.loads(tokenizer.to_json()), TEXTS + drawn], tmp_path)
        encodings = tokenizer.encode_batch(TEXTS + drawn)
        assert found == [
            [encoding.ids, encoding.tokens, tokenizer.detokenize(encoding.tokens)]
            for encoding in encodings
        ]
