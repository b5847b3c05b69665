"""Attributions: against erasure one by one, numerical derivatives and completeness."""

import copy
import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch

import regard
from regard import attribution, ensemble
from regard.alignment import from_weights
from regard.attribution import SIGNED, Method
from regard.batching import Example
from regard.errors import ConfigError, DataError, ExtraError
from regard.faithfulness import available_methods
from regard.models import Seq2Seq
from regard.text import BOS, EOS, UNK

Make = Callable[..., regard.Translator]

EXAMPLE = Example([4, 5, 6, 7, EOS], [5, 6, 4])
MODELS: list[dict[str, object]] = [
    {"kind": "rnn"},
    {"kind": "rnn", "decoder": "luong", "attention": "dot", "cell": "gru", "encoder_layers": 2},
    {"kind": "rnn", "attention": "none"},
    {"kind": "rnn", "encoder": "transformer"},
    {"kind": "transformer"},
    {"kind": "transformer", "positions": "learned", "attention": "additive"},
]
IDS = ["rnn", "luong", "none", "mixed", "transformer", "learned"]


@pytest.fixture(params=MODELS, ids=IDS)
def model(request: pytest.FixtureRequest, make_translator: Make) -> Seq2Seq:
    return make_translator(**request.param).trained.model


@torch.no_grad()
def _log_probs(model: Seq2Seq, source: list[int], example: Example = EXAMPLE) -> np.ndarray:
    copies = torch.tensor([example.copies]) if example.copies else None
    memory = model.encode(torch.tensor([source]), torch.tensor([len(source)]), copies)
    inputs = torch.tensor([[BOS, *example.target]])
    unrolled = model.decoder.unroll(memory, inputs, need_weights=True)
    logits = model.decoder.predict(unrolled.states, unrolled.weights, memory.copies)
    rows = torch.log_softmax(logits, -1)[0]
    return rows[range(len(example.target)), example.target].numpy()


def test_erasure_equals_erasing_tokens_one_by_one(
    model: Seq2Seq, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attribution, "_BATCH_TOKENS", 20)  # in several batches
    expected = np.zeros((3, 5), np.float32)
    for position in range(4):
        erased = [*EXAMPLE.source[:position], UNK, *EXAMPLE.source[position + 1 :]]
        expected[:, position] = _log_probs(model, EXAMPLE.source) - _log_probs(model, erased)
    np.testing.assert_allclose(attribution.erasure(model, EXAMPLE), expected, atol=1e-5)
    assert np.abs(expected).max() > 0.01


def _scaled(model: Seq2Seq, ids: list[int], factor: float) -> Seq2Seq:
    """Return the model with the source embeddings of these ids multiplied by a factor."""
    scaled = copy.deepcopy(model)
    for layer in scaled.encoder.modules():
        if isinstance(layer, torch.nn.Embedding):
            layer.weight.data[ids] *= factor
    return scaled


def test_gradient_times_input_is_the_derivative_with_respect_to_a_factor(
    model: Seq2Seq, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attribution, "_BATCH_TOKENS", 16)  # two target tokens at once
    expected, model, step = np.zeros((3, 5)), model.double(), 1e-5
    for position, id in enumerate(EXAMPLE.source[:-1]):
        ends = (_log_probs(_scaled(model, [id], 1 + d), EXAMPLE.source) for d in (step, -step))
        expected[:, position] = np.subtract(*ends) / (2 * step)
    np.testing.assert_allclose(attribution.gradient(model, EXAMPLE), expected, atol=1e-5)
    assert np.abs(expected).max() > 0.01
    model.float()


def _assert_complete(model: Seq2Seq, example: Example) -> None:
    """Check that the attributions sum to the difference of log-probabilities, to 2 % of the largest."""
    attributions = attribution.integrated_gradients(model, example)
    baseline = [UNK] * (len(example.source) - 1) + [EOS]
    sources = example.source, baseline
    expected = np.subtract(*(_log_probs(model, source, example) for source in sources))
    assert np.abs(expected).max() > 0.01
    tolerance = 0.02 * np.abs(expected).max()
    np.testing.assert_allclose(attributions.sum(1), expected, atol=tolerance, rtol=0)
    assert not attributions[:, -1].any()


@pytest.mark.parametrize("settings", [*MODELS[:3], MODELS[5]], ids=[*IDS[:3], IDS[5]])
def test_integrated_gradients_are_complete(
    settings: dict[str, object], make_translator: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_translator(**settings).trained.model
    _assert_complete(model, EXAMPLE)
    whole = attribution.integrated_gradients(model, EXAMPLE)
    for tokens in (60, 16):  # in several batches, and two target tokens at once
        monkeypatch.setattr(attribution, "_BATCH_TOKENS", tokens)
        batched = attribution.integrated_gradients(model, EXAMPLE)
        np.testing.assert_allclose(whole, batched, atol=1e-4)


def test_integrated_gradients_on_sharp_paths_are_refined_or_reported(
    make_translator: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(3)
    model = make_translator(**MODELS[0]).trained.model
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 3
    monkeypatch.setattr(attribution, "_POINTS", 2)
    _assert_complete(model, EXAMPLE)
    monkeypatch.setattr(attribution, "_MORE_POINTS", 2)
    with pytest.warns(UserWarning, match="a quadrature with 2 points is too inexact"):
        attribution.integrated_gradients(model, EXAMPLE)


@pytest.mark.slow
def test_integrated_gradients_of_trained_models_are_complete(folders: list[Path]) -> None:
    for folder in folders:
        model = regard.Translator.load(folder).trained.model
        for example in (EXAMPLE, Example([6, 5, EOS], [5, 6]), Example([7, 7, 4, EOS], [4, 7, 7])):
            _assert_complete(model, example)


@pytest.mark.parametrize("batch_tokens", [1, 1024])
def test_attributions_of_copying_models(
    make_translator: Make, monkeypatch: pytest.MonkeyPatch, batch_tokens: int
) -> None:
    monkeypatch.setattr(attribution, "_BATCH_TOKENS", batch_tokens)
    model = make_translator(copy=True).trained.model
    example = Example([4, UNK, 6, EOS], [6, 8, 4], [4, 8, 6, EOS])
    _assert_complete(model, example)
    # without the unknown token, it cannot be copied, and no other token has its id
    erased = attribution.erasure(model, example)
    assert np.isfinite(erased).all()
    assert erased[1].argmax() == 1
    assert erased[1, 1] > 10


@pytest.mark.parametrize("method", ["gradient", "integrated_gradients"])
def test_copying_models_have_no_attributions_to_embeddings_only(
    make_translator: Make, method: Method
) -> None:
    translator = make_translator(copy=True)
    with pytest.raises(
        ConfigError, match="this model copies tokens, too: choose the method erasure"
    ):
        translator.attribute("a b c", "b a", method)
    methods = available_methods(translator.trained.model)
    assert methods == [name for name in get_args(Method) if name in ("attention", "erasure")]
    assert method in available_methods(make_translator().trained.model)


def test_attributions_of_ensembles(make_translator: Make) -> None:
    translators = [make_translator(decoder=decoder) for decoder in ("bahdanau", "luong")]
    trained = ensemble.combine([(str(i), t.trained) for i, t in enumerate(translators)])
    translator = dataclasses.replace(translators[0], trained=trained)
    _assert_complete(trained.model, EXAMPLE)
    for method in SIGNED:
        output = translator.attribute("a b c", "b a", method)
        np.testing.assert_allclose(output.attention.sum(1), 1, atol=1e-5)


@pytest.mark.filterwarnings("ignore:a quadrature with 400 points")
@pytest.mark.parametrize("method", SIGNED)
@pytest.mark.parametrize("kind", ["rnn", "transformer"])
def test_attributions_are_translations(method: Method, kind: str, make_translator: Make) -> None:
    translator = make_translator(kind=kind)
    aligned = translator.align("a b c", "b a d")
    output = translator.attribute("a b c", "b a d", method)
    assert (output.tokens, output.score, output.method) == (aligned.tokens, aligned.score, method)
    assert output.attention.shape == output.attributions.shape == (3, 4)
    magnitudes = np.abs(output.attributions)
    expected = magnitudes / magnitudes.sum(1, keepdims=True)
    np.testing.assert_allclose(output.attention, expected, atol=1e-6)
    assert output.alignment() == from_weights(output.attention, [0, 1, 2, None], [0, 1, 2])
    assert f"{method}=3x4" in repr(output)
    assert output.chart().to_svg().startswith("<svg")
    assert output.chart(layer=0, head=0) is not None
    assert not np.allclose(output.attention, aligned.attention, atol=0.01)


def test_attributions_of_the_models_own_outputs(folders: list[Path]) -> None:
    translator = regard.Translator.load(folders[0])
    outputs = translator.attribute(["a b", " ", ("c", None)])
    assert outputs[0].tokens
    assert [o.text for o in outputs] == [t.text for t in translator.translate(["a b", " ", "c"])]
    assert outputs[1].attributions.shape == (0, 0)
    single = translator.attribute("a b")
    assert single.tokens == outputs[0].tokens
    np.testing.assert_allclose(single.attributions, outputs[0].attributions, atol=1e-5)
    assert translator.attribute("a b", method="attention") == translator.align(
        "a b", [outputs[0].tokens]
    )[0]  # fmt: skip
    assert translator.attribute(["a b"], [["c", "d"]])[0].tokens == ["c", "d"]
    assert translator.attribute("a b", ["c", "d"]).tokens == ["c", "d"]
    assert translator.attribute(["a b"], "c d")[0].tokens == ["c", "d"]
    assert translator.attribute("a b", "").attention.shape == (0, 3)


def test_attributions_of_targets_given_as_iterators(make_translator: Make) -> None:
    translator = make_translator()
    expected = translator.attribute("a b", ["c", "a", "b"])
    for output in (
        translator.attribute("a b", iter(["c", "a", "b"])),
        *translator.attribute(["a b"], iter([iter(["c", "a", "b"])])),
    ):
        assert output.tokens == expected.tokens
        assert np.array_equal(output.attention, expected.attention)


def test_invalid_arguments_of_attributions(make_translator: Make) -> None:
    translator = make_translator()
    with pytest.raises(DataError, match="expected a target or an iterable of targets, got 5"):
        translator.attribute(["a"], 5)  # pyright: ignore
    with pytest.raises(ConfigError, match="the method takes one of attention"):
        translator.attribute([], method="x")  # pyright: ignore


def test_models_without_attention_have_attributions(make_translator: Make) -> None:
    translator = make_translator(attention="none")
    assert translator.attribute("a b", "c").chart() is not None
    with pytest.raises(ConfigError, match="no attention to show"):
        translator.attribute("a b", "c", "attention").chart()


def test_merging_words_merges_the_signed_attributions(make_translator: Make) -> None:
    output = make_translator().attribute("a b c", "b a")
    output = dataclasses.replace(output, source_words=[0, 0, 1, None], target_words=[0, 0])
    merged = output.words().attributions
    signed = output.attributions
    expected = [[signed[:, :2].sum(1).mean(), signed[:, 2].mean(), signed[:, 3].mean()]]
    np.testing.assert_allclose(merged, expected, atol=1e-6)


def test_errors(make_translator: Make, monkeypatch: pytest.MonkeyPatch, unchecked: None) -> None:
    translator = make_translator()
    with pytest.raises(ConfigError, match="got 'gradients'; did you mean gradient"):
        translator.attribute("a", "b", "gradients")
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    with pytest.raises(ExtraError, match=r"pip install 'regard\[attribution\]'"):
        translator.attribute("a", "b", "integrated_gradients")
    assert "captum" not in str(translator.attribute("a", "b", "erasure"))


def test_no_hook_is_left_on_the_model(make_translator: Make) -> None:
    model = make_translator().trained.model
    attribution.gradient(model, EXAMPLE)
    assert not any(module._forward_hooks for module in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("method", ["erasure", "gradient", "integrated_gradients"])
def test_the_mode_of_the_caller_has_no_effect(method: Method, folders: list[Path]) -> None:
    translator = regard.Translator.load(folders[0], "cpu")
    expected = translator.attribute("a b", "b a", method).attributions
    assert expected is not None
    with torch.inference_mode():
        loaded = regard.Translator.load(folders[0], "cpu")
        inside = translator.attribute("a b", "b a", method).attributions
    with torch.autocast("cpu", torch.bfloat16):
        rounded = translator.attribute("a b", "b a", method).attributions
    model = translator.trained.model
    for layer in model.modules():
        if hasattr(layer, "dropout"):
            layer.dropout = 0.5
    model.train()
    dropped = translator.attribute("a b", "b a", method).attributions
    assert model.training
    for found in (inside, rounded, dropped, loaded.attribute("a b", "b a", method).attributions):
        assert found is not None
        np.testing.assert_allclose(found, expected, atol=1e-6)
