"""Interventions: forced prefixes, pinned weights, ablated heads."""

import itertools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard.attention import Intervention
from regard.errors import ConfigError
from regard.request import prepare

MakeTranslator = Callable[..., regard.Translator]

pytestmark = pytest.mark.usefixtures("unchecked")

MODELS = [
    {"attention": "additive"},
    {"attention": "dot", "decoder": "bahdanau", "decoder_layers": 2},
    {"attention": "additive", "input_feeding": True},
    {"attention": "additive", "coverage": True},
    {"kind": "transformer"},
    {"kind": "transformer", "attention": "additive"},
    {"copy": True},
]


@pytest.mark.parametrize("beam_size", [1, 4])
@pytest.mark.parametrize("model", [*MODELS, {"attention": "none"}], ids=str)
def test_outputs_begin_with_their_prefix(
    make_translator: MakeTranslator, model: dict[str, object], beam_size: int
) -> None:
    translator = make_translator(**model)
    texts = ["a b c", "d", "b a", ""]
    outputs = translator.translate(texts, beam_size, prefix=["b c", "", "d d d", "a"])
    assert outputs[0].tokens[:2] == ["b", "c"]
    assert outputs[2].tokens[:3] == ["d", "d", "d"]
    assert outputs[3].tokens == []
    single = translator.translate(["d"], beam_size)[0]
    assert (outputs[1].tokens, outputs[1].score) == (
        single.tokens,
        pytest.approx(single.score, abs=1e-5),
    )
    same_prefix = translator.translate(texts[:2], beam_size, prefix="c")
    assert [output.tokens[0] for output in same_prefix] == ["c", "c"]
    aligned = translator.align([texts[0]], [outputs[0].text])[0]
    if outputs[0].complete:
        assert aligned.score == pytest.approx(outputs[0].score, abs=1e-4)


def test_forcing_the_models_own_output_changes_nothing(make_translator: MakeTranslator) -> None:
    translator = make_translator()
    free = translator.translate(["a b c"], 3)[0]
    forced = translator.translate(["a b c"], 3, prefix=" ".join(free.tokens))[0]
    assert forced.tokens[: len(free.tokens)] == free.tokens


@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_pinned_weights_are_exact_and_the_others_are_rescaled(
    make_translator: MakeTranslator, model: dict[str, object], beam_size: int
) -> None:
    translator = make_translator(**model)
    unmodified = translator.translate(["a b c", "d c"], beam_size, prefix="a b c")
    pins = {0: {1: 0.7}, 2: {0: 0.0, 2: 0.5}}
    outputs = translator.translate(["a b c", "d c"], beam_size, prefix="a b c", pin=pins)
    for output in outputs:
        weights = output.attention_heads
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
        np.testing.assert_allclose(weights[0, ..., 1], 0.7, atol=1e-6)
        np.testing.assert_allclose(weights[2, ..., 0], 0, atol=1e-6)
        np.testing.assert_allclose(weights[2, ..., 2], 0.5, atol=1e-6)
    # the first layer of the first step has no other inputs than without the pins
    original_weights, pinned_weights = (
        unmodified[0].attention_heads[0, 0],
        outputs[0].attention_heads[0, 0],
    )
    unpinned = [0, 2, 3]
    normalized = original_weights[:, unpinned] / original_weights[:, unpinned].sum(
        -1, keepdims=True
    )
    np.testing.assert_allclose(pinned_weights[:, unpinned], 0.3 * normalized, atol=1e-5)


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_pinning_the_models_own_weights_changes_nothing(
    make_translator: MakeTranslator, model: dict[str, object]
) -> None:
    if model.get("kind") == "transformer":  # every head has different weights
        model = {**model, "decoder_layers": 1, "heads": 1}
    translator = make_translator(**model)
    unmodified = translator.translate(["a b c"], 2)[0]
    pins = {
        step: {position: float(weight) for position, weight in enumerate(row / row.sum())}
        for step, row in enumerate(unmodified.attention.astype(float))
    }
    output = translator.translate(["a b c"], 2, pin=pins)[0]
    assert output.tokens == unmodified.tokens
    assert output.score == pytest.approx(unmodified.score, abs=1e-4)


def test_an_intervention_affects_only_its_own_text(make_translator: MakeTranslator) -> None:
    translator = make_translator()
    unmodified = translator.translate(["a b", "c d"])
    outputs = translator.translate(["a b", "c d"], prefix=["", "a"], pin=[{}, {0: {0: 1.0}}])
    assert outputs[0].score == pytest.approx(unmodified[0].score, abs=1e-5)
    np.testing.assert_allclose(outputs[1].attention[0], [1, 0, 0], atol=1e-6)
    single = translator.translate(["c d"], prefix="a", pin={0: {0: 1.0}})[0]
    assert (single.tokens, single.score) == (
        outputs[1].tokens,
        pytest.approx(outputs[1].score, abs=1e-5),
    )


def test_the_score_depends_on_the_pinned_position(make_translator: MakeTranslator) -> None:
    translator = make_translator()
    scores = {
        round(translator.translate(["a b c"], 1, pin={0: {position: 1.0}})[0].score, 5)
        for position in range(4)
    }
    assert len(scores) > 1


def test_ablated_heads_have_zero_weights(make_translator: MakeTranslator) -> None:
    translator = make_translator(kind="transformer")
    unmodified = translator.translate(["a b c"], prefix="a")[0]
    output = translator.translate(["a b c"], prefix="a", ablate_heads=[(0, 1), (2, 0)])[0]
    weights = output.attention_heads
    assert (weights[:, 0, 1] == 0).all()
    assert (weights[:, 2, 0] == 0).all()
    np.testing.assert_allclose(weights[:, 0, 0].sum(-1), 1, atol=1e-5)
    np.testing.assert_allclose(weights[0, 0, 0], unmodified.attention_heads[0, 0, 0], atol=1e-6)
    assert output.score != pytest.approx(unmodified.score, abs=1e-6)


def test_apply_rescales_the_weights_that_are_not_pinned() -> None:
    nan = float("nan")
    intervention = Intervention(torch.tensor([[nan, 0.5, nan], [nan, nan, nan]]))
    weights = torch.tensor([[[0.2, 0.2, 0.6]], [[0.1, 0.4, 0.5]]])
    context, adjusted = intervention.apply(weights, torch.eye(3).expand(2, 3, 3))
    torch.testing.assert_close(adjusted, torch.tensor([[[0.125, 0.5, 0.375]], [[0.1, 0.4, 0.5]]]))
    torch.testing.assert_close(context, adjusted)
    _, weights = Intervention(torch.tensor([[0.25, nan]])).apply(
        torch.tensor([[[1.0, 0.0]]]), torch.eye(2)[None]
    )
    torch.testing.assert_close(weights, torch.tensor([[[0.25, 0.0]]]))


@pytest.mark.parametrize(
    ("interventions", "message"),
    [
        ({"pin": {0: {4: 0.5}}}, "source tokens from 0 to 3, got step 0 and tokens 4"),
        ({"pin": {-1: {0: 0.5}}}, "got step -1"),
        ({"pin": {0: {0: 0.7, 1: 0.7}}}, "sum to at most 1, got 1.4 at step 0"),
        ({"pin": {0: {0: -0.1}}}, "must be at least 0"),
        ({"pin": [{}, {}]}, "expected one pin for all texts or one pin per text, got 2"),
        ({"prefix": ["a", "b"]}, "expected one prefix for all texts or one prefix per text, got 2"),
        (
            {"ablate_heads": [(0, 1)]},
            "no head 1 in layer 0 to ablate; the model has 1 layer of 1 head",
        ),
    ],
)
def test_invalid_interventions_raise(
    make_translator: MakeTranslator, interventions: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_translator().translate(["a b c"], **interventions)
    with pytest.raises(ConfigError, match="no attention to pin or ablate"):
        make_translator(attention="none").translate(["a"], pin={0: {0: 1.0}})


def test_a_prefix_that_pins_make_impossible_is_named(make_translator: MakeTranslator) -> None:
    translator = make_translator(copy=True)
    assert translator.translate(["a q"], prefix=[["q"]])[0].tokens[0] == "q"
    for beam_size in (1, 3):
        with pytest.raises(ConfigError, match=r"token 1 of a prefix .* has probability 0"):
            translator.translate(
                ["b", "a q"], beam_size, prefix=[["a"], ["a", "q"]], pin=[{}, {1: {1: 0.0}}]
            )


def test_interventions_may_be_iterators_and_arrays(make_translator: MakeTranslator) -> None:
    translator = make_translator(kind="transformer", decoder_layers=1)
    texts = ["a b c", "a"]
    heads = itertools.product(range(1), range(2))
    expected = translator.translate(texts, ablate_heads=[(0, 0), (0, 1)], prefix=["b", "c"])
    for pairs in (heads, np.argwhere(np.ones((1, 2)))):
        request = prepare(translator.trained, texts, iter(["b", "c"]), ablate_heads=pairs)
        outputs = translator.search(request, np.int64(5))
        assert [best[0].score for best in outputs] == [output.score for output in expected]
    pins = {np.int64(0): {np.int64(1): np.float32(0.5)}}
    pinned = translator.translate("a b", pin=pins)
    assert pinned.score == translator.translate("a b", pin={0: {1: 0.5}}).score


@pytest.mark.parametrize(
    ("interventions", "message"),
    [
        ({"pin": {"0": {"1": 0.5}}}, "pin takes {step: {source token: weight}} with whole numbers"),
        ({"pin": {0: [0.5, 0.5]}}, "pin takes {step: {source token: weight}}"),
        ({"pin": [None]}, "pin takes {step: {source token: weight}}"),
        ({"pin": 3}, "expected one pin for all texts or one pin per text, got 3"),
        ({"prefix": [None]}, "expected a text or a list of tokens as target or prefix 0"),
        ({"prefix": [[4]]}, "expected a text or a list of tokens as target or prefix 0"),
        ({"ablate_heads": [0]}, "ablate_heads takes pairs (layer, head) of whole numbers, got [0]"),
        ({"ablate_heads": [(0.0, 0.0)]}, "ablate_heads takes pairs (layer, head)"),
    ],
)
def test_interventions_of_another_type_raise(
    make_translator: MakeTranslator, interventions: Any, message: str
) -> None:
    with pytest.raises(regard.RegardError, match=re.escape(message)):
        prepare(make_translator().trained, ["a b"], **interventions)


def test_a_prefix_of_tokens_is_not_tokenised(make_translator: MakeTranslator) -> None:
    translator = make_translator(attention="additive")
    outputs = translator.translate(["a b", "c"], prefix=[["b", "zz"], "d d"])
    assert outputs[0].tokens[:2] == ["b", "<unk>"]
    assert outputs[1].tokens[:2] == ["d", "d"]
    aligned = translator.align(["a b"], [["b", "a"]])[0]
    assert aligned.tokens == ["b", "a"]
    assert aligned.score == pytest.approx(translator.align(["a b"], ["b a"])[0].score)


def test_a_prefix_can_copy_unknown_tokens(make_translator: MakeTranslator) -> None:
    translator = make_translator(copy=True)
    assert translator.translate(["a zz"], prefix=[["zz"]])[0].tokens[0] == "zz"


def test_a_pin_beyond_the_length_limit_raises(make_translator: MakeTranslator) -> None:
    translator = make_translator(attention="additive")
    limit = prepare(translator.trained, ["a b"]).sources[0].limit
    translator.translate(["a b"], pin={limit - 1: {0: 1.0}})
    with pytest.raises(ConfigError, match=f"steps from 0 to {limit - 1}"):
        translator.translate(["a b"], pin={limit: {0: 1.0}})


def test_pins_outside_a_text_name_the_text(make_translator: MakeTranslator) -> None:
    with pytest.raises(ConfigError, match=r"pins for 'a' must .* source tokens from 0 to 1, got"):
        make_translator().translate(["a b c", "a"], pin={0: {3: 0.5}})
