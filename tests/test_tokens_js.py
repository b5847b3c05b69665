"""The tokenizer of the runner in JavaScript, against Python's."""

import json
import os
from pathlib import Path

import pytest

from node import NODE, run_script
from regard.config import TextConfig, Unit
from regard.export.folder import copy_runners
from regard.text import UNITS, Tokenizer
from tokenizer_texts import TEXTS, random_texts

pytestmark = pytest.mark.skipif(
    NODE is None and not os.environ.get("CI"), reason="Node.js is not installed"
)


@pytest.mark.parametrize("unit", UNITS)
def test_texts_are_tokenized_as_in_python(unit: Unit, tmp_path: Path) -> None:
    copy_runners(tmp_path)
    drawn = random_texts(400)
    for lowercase in (False, True):
        config = TextConfig(
            unit=unit, vocabulary_size=120, min_frequency=2, lowercase=lowercase,
            match_vocabulary=lowercase,
        )  # fmt: skip
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
