"""The tokenizer of the runner in JavaScript, against Python's."""

import json
import os
import shutil
from pathlib import Path

import pytest

from node import NODE, run_script
from regard.config import TextConfig, Unit
from regard.export.folder import PAGE, copy_runners
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


def test_long_texts_are_refused_before_they_are_split(tmp_path: Path) -> None:
    copy_runners(tmp_path)
    tokenizer = Tokenizer.train(TEXTS, TextConfig(unit="bpe", vocabulary_size=120))
    script = """
        import { readFileSync } from "node:fs";
        const { Tokenizer } = await import(`${process.cwd()}/onnx/tokenizer.js`);
        const { prepare } = await import(`${process.cwd()}/onnx/request.js`);
        const source = new Tokenizer(JSON.parse(readFileSync(0, "utf8")));
        const description = { copying: false, longest_target: 9, layers: 1, heads: 1 };
        const messages = [499, 501].map((count) => {
          try {
            return prepare({ description, source, target: source }, "x".repeat(count * source.longest), {}, 500).ids.length;
          } catch ({ message }) { return message; }
        });
        console.log(JSON.stringify(messages));
    """
    several, refused = run_script(script, json.loads(tokenizer.to_json()), tmp_path)
    assert "too long" not in str(several)
    assert refused == "The text is too long: at most 500 tokens can be translated; split the text."


def test_log_probabilities_that_are_nan_are_reported(tmp_path: Path) -> None:
    copy_runners(tmp_path)
    script = """
        const { beamSearch } = await import(`${process.cwd()}/onnx/search.js`);
        const rows = [[-9, -9, -9, -2, -1], [-9, -9, -9, NaN, -1]];
        const step = async (tokens, number) => tokens.map(() => ({ logProbs: Float32Array.from(rows[number]), weights: [] }));
        const found = await beamSearch({ step, select() {} }, { limit: 1, beamSize: 2, nBest: 1 }).catch(({ message }) => message);
        console.log(JSON.stringify(found));
    """
    assert run_script(script, None, tmp_path).endswith("infinite or NaN.")


def test_errors_of_onnx_runtime_are_sentences(tmp_path: Path) -> None:
    """It throws numbers if memory is exhausted."""
    shutil.copytree(PAGE / "onnx", tmp_path / "onnx")
    script = """
        const message = new Promise((resolve) => { globalThis.self = { postMessage: resolve }; });
        await import(`${process.cwd()}/onnx/worker.js`);
        const args = [{ runtime: "data:text/javascript,throw 1991937888", wasm: "data:,", folders: [] }];
        self.onmessage({ data: { id: 1, method: "load", args } });
        console.log(JSON.stringify(await message));
    """
    found = run_script(script, None, tmp_path)
    assert found["id"] == 1
    assert found["error"].startswith("ONNX Runtime failed (1991937888)")
