"""Faithfulness of attributions, against removing tokens one output token at a time."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import regard
from regard.attribution import erase, target_log_probs
from regard.evaluation import measure_faithfulness
from regard.faithfulness import available_methods, faithfulness
from regard.request import prepare

Make = Callable[..., regard.Translator]


@pytest.mark.parametrize("kind", ["rnn", "transformer"])
def test_values_equal_removing_the_tokens_one_by_one(kind: str, make_translator: Make) -> None:
    translator = make_translator(kind=kind)
    model = translator.trained.model
    texts, targets = ["a b c d a b", "d c", "b"], ["b a", "a c d", "d"]
    outputs = translator.attribute(texts, targets)
    request = prepare(translator.trained, texts, targets, forced=True)
    examples = [source.example for source in request.sources]
    found = faithfulness(model, list(zip(examples, outputs, strict=True)), ["erasure"])
    assert (found.n, found.tokens) == (3, 6)
    for name, count in (
        ("1", lambda n: 1),
        ("2", lambda n: 2),
        ("20 %", lambda n: math.ceil(n / 5)),
    ):
        without, only = [], []
        for example, output in zip(examples, outputs, strict=True):
            length = len(example.source) - 1
            for step, row in enumerate(output.attributions):
                ranked = sorted(range(length), key=lambda i: -row[i])
                k = count(length)
                for removed, decreases in ((ranked[:k], without), (ranked[k:], only)):
                    pair = [example, erase(example, removed)]
                    before, after = np.exp(target_log_probs(model, pair)[:, step])
                    decreases.append(100 * (before - after))
        part = found.methods["erasure"]
        assert part.comprehensiveness[name] == pytest.approx(np.mean(without), abs=1e-4)
        assert part.sufficiency[name] == pytest.approx(np.mean(only), abs=1e-4)


@pytest.mark.slow
def test_erasure_is_more_faithful_than_a_random_order(folders: list[Path]) -> None:
    for folder in folders:
        translator = regard.Translator.load(folder)
        words = [" ".join(word) for word in ("abcd", "dcb", "bdac", "cabd", "ad", "badc", "cdab")]
        outputs = translator.translate(words)
        found = measure_faithfulness(translator, [*outputs, *translator.translate([" "])])
        assert found.n == len(words)
        assert list(found.methods) == [
            "attention", "erasure", "gradient", "integrated_gradients", "random"
        ]  # fmt: skip
        erasure, baseline = found.methods["erasure"], found.methods["random"]
        assert erasure.comprehensiveness["1"] > baseline.comprehensiveness["1"]
        assert erasure.sufficiency["1"] < baseline.sufficiency["1"]
        assert found.to_dict()["methods"]["random"]["sufficiency"] == baseline.sufficiency
        row = next(line for line in str(found).splitlines() if line.startswith("erasure"))
        assert row.split()[1] == f"{erasure.comprehensiveness['1']:.2f}"


def test_methods_that_cannot_be_computed_are_left_out(
    make_translator: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_translator(attention="none").trained.model
    assert available_methods(model) == ["erasure", "gradient", "integrated_gradients"]
    monkeypatch.setattr("regard.faithfulness.find_spec", lambda _: None)
    assert available_methods(model) == ["erasure", "gradient"]
