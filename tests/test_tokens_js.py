"""The tokenizer of the runner in JavaScript, against Python's."""

import json
import os
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import regard
from regard.config import TextConfig, Unit
from regard.text import UNITS, Tokenizer

NODE = shutil.which("node")
RUNNERS = Path(regard.__file__).parent / "export" / "runners"

pytestmark = pytest.mark.skipif(
    NODE is None and not os.environ.get("CI"), reason="Node.js is not installed"
)

TEXTS = [
    "¿Qué es esto? No lo sé.", "l'été où j'étais là-bas", "我爱机器学习。", "क्षि हिन्दी में है।",
    "👩‍👩‍👧 🎉 a👍🏽b 🇩🇪", "t͡ʃ d͡ʒ ʰ́", "‿ a‿b ‿‿ ‿? x‿", "▁ a▁b ▁▁ ▁x", "</s> <s>", "ΣΑΣ İ ǅ ﬁ",
    "a\u00a0b\u3000c\x1ce", "$5.00 (10%) \"x\" …", "don’t o'clock ' ''", "",
]  # fmt: skip


def _run(script: str, value: Any, folder: Path) -> Any:
    """Run JavaScript in a folder, with `value` as its input; returns the JSON value that it prints."""
    command = [str(NODE), "--input-type=module", "--eval", script]
    given = json.dumps(value)
    result = subprocess.run(
        command, input=given, capture_output=True, text=True, cwd=folder, check=False
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("unit", UNITS)
def test_texts_are_tokenized_as_in_python(unit: Unit) -> None:
    characters = sorted(set("".join(TEXTS))) + list(" ab.-'‿▁") * 5
    drawn = ["".join(random.choices(characters, k=random.randrange(14))) for _ in range(400)]
    for lowercase in (False, True):
        config = TextConfig(unit=unit, vocabulary_size=120, min_frequency=2, lowercase=lowercase)
        tokenizer = Tokenizer.train(TEXTS * 3 + drawn, config)
        script = """
            import { readFileSync } from "node:fs";
            const { tokenizer } = await import(`${process.cwd()}/tokens.mjs`);
            const [document, texts] = JSON.parse(readFileSync(0, "utf8"));
            const { encode, decode } = tokenizer(document);
            const all = texts.map((text) => encode(text));
            console.log(JSON.stringify(all.map(({ ids, tokens }) => [ids, tokens, decode(tokens)])));
        """
        found = _run(script, [json.loads(tokenizer.to_json()), TEXTS + drawn], RUNNERS)
        encodings = tokenizer.encode_batch(TEXTS + drawn)
        assert found == [
            [encoding.ids, encoding.tokens, tokenizer.detokenize(encoding.tokens)]
            for encoding in encodings
        ]
