"""Explanations: worked examples, every score compared with its layer, and steps of a model."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import regard
from regard import model_folder
from regard.cli.main import main
from regard.errors import ConfigError, ShapeError
from regard.explanation import explain, variances
from regard.explanation.from_model import explain_step
from regard.explanation.self_attention import layer_weights
from regard.score_registry import SCORES
from regard.scores import make_score

MakeTranslator = Callable[..., regard.Translator]

STATES = [[1, 0], [0, 1], [1, 1]]
CALCULATION = """Given
  s = [1, 2]
  h1 = [1, 0]
  h2 = [0, 1]
  h3 = [1, 1]

1. Score (dot, Luong et al. 2015)
  e_i = s . h
  e = [1, 2, 3]

2. Normalise (softmax)
  exp(e) = [2.7183, 7.3891, 20.0855]
  Z = 2.7183 + 7.3891 + 20.0855 = 30.1929
  alpha = exp(e) / Z = [0.0900, 0.2447, 0.6652]
  they sum to 1

3. Weighted sum
  c = 0.0900 h1 + 0.2447 h2 + 0.6652 h3
  0.0900 x [1, 0] = [0.0900, 0]
  0.2447 x [0, 1] = [0, 0.2447]
  0.6652 x [1, 1] = [0.6652, 0.6652]
  c = [0.7553, 0.9100]
  (with weights truncated to two decimal places, 0.09, 0.24, 0.66, as in calculations by hand: [0.75, 0.90])

Concatenation with the query
  [s; c] = [1, 2, 0.7553, 0.9100]

(Computed in float64, rounded to 4 digits.)
"""


def test_worked_example_of_three_states() -> None:
    explanation = regard.explain([1, 2], STATES)
    assert str(explanation) == CALCULATION
    np.testing.assert_allclose(explanation.scores, [1, 2, 3])
    np.testing.assert_allclose(explanation.exponentials, np.exp([1, 2, 3]))
    assert explanation.partition == pytest.approx(30.1929, abs=5e-5)
    np.testing.assert_allclose(explanation.weights, [0.0900, 0.2447, 0.6652], atol=5e-5)
    np.testing.assert_allclose(explanation.context, [0.7553, 0.9100], atol=5e-5)
    np.testing.assert_allclose(explanation.concatenated, [1, 2, 0.7553, 0.9100], atol=5e-5)
    np.testing.assert_allclose(explanation.weighted.sum(0), explanation.context)


def _words(norm: float) -> list[list[float]]:
    words = np.eye(4)
    words[0] *= norm
    return words.tolist()


@pytest.mark.parametrize(
    ("norm", "score", "scores", "weights"),
    [
        (1, "dot", [1, 0, 0, 0], [0.4754, 0.1749, 0.1749, 0.1749]),
        (2, "dot", [4, 0, 0, 0], [0.9479, 0.0174, 0.0174, 0.0174]),
        (1, "cosine", [1, 0, 0, 0], [0.4754, 0.1749, 0.1749, 0.1749]),
        (2, "cosine", [1, 0, 0, 0], [0.4754, 0.1749, 0.1749, 0.1749]),
    ],
)
def test_worked_example_of_four_orthogonal_words(
    norm: float, score: str, scores: list[float], weights: list[float]
) -> None:
    words = _words(norm)
    explanation = explain(words[0], words, score=score, labels=["Helga", "ate", "an", "apple"])
    np.testing.assert_allclose(explanation.scores, scores, atol=1e-12)
    np.testing.assert_allclose(explanation.weights, weights, atol=5e-5)
    assert f"{weights[0]:.4f} Helga + {weights[1]:.4f} ate" in str(explanation)


def test_explicit_weights_replace_the_scores() -> None:
    explanation = explain(None, np.eye(4), weights=[0.4, 0.3, 0.2, 0.1])
    assert "c = 0.4000 h1 + 0.3000 h2 + 0.2000 h3 + 0.1000 h4" in str(explanation)
    np.testing.assert_allclose(explanation.context, [0.4, 0.3, 0.2, 0.1])
    assert explanation.scores is None


@pytest.mark.parametrize("name", SCORES)
def test_every_score_equals_its_layer(name: str) -> None:
    torch.manual_seed(3)
    width = 4 if SCORES[name].equal_widths else 3
    score = make_score(name, query_dim=4, key_dim=width, hidden_dim=5).double()
    query, keys = torch.randn(1, 1, 4).double(), torch.randn(1, 6, width).double()
    values = torch.randn(1, 6, 2).double()
    expected = regard.Attention(score)(query, keys, values, need_weights=True)
    parameters = {letter: value.detach() for letter, value in score.formula_parameters().items()}
    explanation = explain(query[0, 0], keys[0], values[0], name, parameters=parameters)
    np.testing.assert_allclose(explanation.scores, score(query, keys)[0, 0].detach(), atol=1e-12)
    np.testing.assert_allclose(explanation.weights, expected.weights[0, 0].detach(), atol=1e-12)
    np.testing.assert_allclose(explanation.context, expected.context[0, 0].detach(), atol=1e-12)
    assert SCORES[name].text in str(explanation)


def test_missing_parameters_get_defaults_and_a_note() -> None:
    explanation = explain([1, 2], STATES, score="mlp")
    np.testing.assert_allclose(
        explanation.scores, [np.tanh(np.add([1, 2], h)).sum() for h in STATES]
    )
    assert "W = [[1, 0], [0, 1]] (default: the identity)" in str(explanation)
    assert "v = [1, 1] (default: ones)" in str(explanation)
    partial = explain([1, 2], STATES, score="additive", parameters={"v": [2, 0]})
    assert "v = [2, 0]\n" in str(partial)
    biased = explain([1, 2], STATES, score="additive", parameters={"bias": [5.0, 5.0]})
    assert "e_i = v . tanh(W s + U h + bias)" in str(biased)
    assert r"\tanh(W s + U h + \mathrm{bias})" in biased.to_markdown()


def test_large_scores_are_shifted_with_a_note() -> None:
    explanation = explain([1000.0, 0], [[1, 0], [0.999, 0]])
    np.testing.assert_allclose(explanation.weights, [1 / (1 + np.exp(-1)), 1 / (1 + np.exp(1))])
    assert "the largest score was subtracted from all scores" in str(explanation)
    assert "alpha = exp(e - 1000) / Z" in str(explanation)
    assert "alpha = exp(e + 999) / Z" in str(explain([-1000.0, 0], [[1, 0], [0.999, 0]]))


def test_large_scores_of_many_states_do_not_overflow() -> None:
    explanation = explain([1.0], [[700.0]] * 20_000)
    np.testing.assert_allclose(explanation.weights, 1 / 20_000)
    np.testing.assert_allclose(explanation.context, [700])


def test_labels_cannot_control_a_terminal() -> None:
    explanation = explain([1.0], [[1.0], [2.0]], labels=["a\nb", "\x1b[31mred"])
    for text in (explanation.to_text(), explanation.to_markdown()):
        assert "\x1b" not in text
        assert "a\nb" not in text
    assert r"a\nb = [1]" in explanation.to_text()


@pytest.mark.parametrize("score", [-700.0, -744.0, -1e5])
def test_low_scores_are_shifted(score: float) -> None:
    explanation = explain([1.0], [[score], [score + 1]])
    np.testing.assert_allclose(explanation.weights, [1 / (1 + np.e), np.e / (1 + np.e)], rtol=1e-9)


def test_the_cosine_of_vectors_of_any_norm() -> None:
    for scale in (1e-200, 1e200):
        explanation = explain([scale, 0], [[scale, 0], [0, 1], [0, 0]], score="cosine")
        np.testing.assert_allclose(explanation.scores, [1, 0, 0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tensors_of_a_layer_are_explained(dtype: torch.dtype) -> None:
    bilinear = regard.Bilinear(2, 2).to(dtype)
    query = torch.tensor([1, 2], dtype=dtype, requires_grad=True)
    keys = torch.tensor(STATES, dtype=dtype)
    explanation = explain(query, keys, score="bilinear", parameters=bilinear.formula_parameters())
    expected = bilinear.double()(query.double()[None, None], keys.double()[None])[0, 0].detach()
    np.testing.assert_allclose(explanation.scores, expected)


def test_the_unnormalised_sum_is_printed_on_request() -> None:
    text = explain([1, 2], STATES).to_text(unnormalised=True)
    assert "sum_i e_i h_i = [4, 5]" in text


@pytest.mark.parametrize("parameters", [{"W": [[1, 1]]}, {"bias": [1.0]}, {"v": [1.0]}])
def test_parameters_with_different_numbers_of_rows_are_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(regard.ShapeError, match="equal numbers of rows, got W"):
        regard.explain([1, 2], [[1, 2]], score="additive", parameters=parameters)


@pytest.mark.parametrize("option", ["--query 1", "--model phrasebook", "--digits 2", "--step 1"])
def test_arguments_without_effect_on_variances_are_refused(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "--dim", "1..3", *option.split()]) == 1
    name = option.split()[0]
    assert f"{name} has no effect with --dim; omit {name}" in capsys.readouterr().err


def test_labels_are_escaped_in_markdown() -> None:
    labels = ["a|b", "$</s>", "-", "1.", "x\\y\n~"]
    markdown = regard.explain([1, 2], np.eye(2)[[0, 1, 0, 1, 0]], labels=labels).to_markdown()
    assert r"| | a\|b | \$&lt;/s\> | \- | 1\. | x\\y \~ |" in markdown
    assert "\n" + r"- \- = [1, 0]" + "\n" + r"- 1\. = [0, 1]" in markdown
    assert r"\,\text{\$</s>} + " in markdown
    assert r"\,\text{x}\backslash\text{y }\sim$$" in markdown


def test_markdown_and_json() -> None:
    explanation = explain([1, 2], STATES)
    markdown = explanation.to_markdown(digits=2)
    assert r"$$e_i = s \cdot h$$" in markdown
    assert "| alpha = exp(e) / Z | 0.09 | 0.24 | 0.67 |" in markdown
    assert "h_{1}" in markdown
    document = json.loads(explanation.to_json())
    assert document["scores"] == [1, 2, 3]
    assert document["context"] == explanation.context.tolist()
    assert document["unnormalised_sum"] == [4, 5]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([1, 2, 3], STATES), ShapeError, "cannot compare a query of width 3 with keys of width 2"),
        (
            ([1, 2], [[1, 0], [1]]),
            ShapeError,
            "expected keys as numbers in rows of the same length",
        ),
        (([], STATES), ShapeError, "expected query as one row of numbers"),
        (([1, float("nan")], STATES), ShapeError, "expected query to contain only finite numbers"),
        (([1, 2], STATES, [[1]]), ShapeError, "expected a value for each of 3 keys, got 1"),
        (([1, 2], STATES, None, "sum"), ConfigError, "score takes one of .*, got 'sum'"),
        ((None, STATES), ConfigError, "scores cannot be computed without a query"),
    ],
)
def test_invalid_arguments_raise(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        explain(*arguments)
    with pytest.raises(ShapeError, match=r"cannot compare .* by temperature \(2,\)"):
        explain([1, 2], STATES, score="cosine", parameters={"temperature": [1, 2]})
    for without_effect in ({"score": "nonsense"}, {"parameters": {"W": [[1]]}}):
        with pytest.raises(ConfigError, match="leave out score and parameters, or weights"):
            explain([1, 2], STATES, weights=[0.5, 0.25, 0.25], **without_effect)
    with pytest.raises(ConfigError, match="dot has no parameter 'W'; it has no parameters"):
        explain([1, 2], STATES, parameters={"W": [[1]]})
    with pytest.raises(ConfigError, match="the temperature of cosine must be above 0, got 0"):
        explain([1, 2], STATES, score="cosine", parameters={"temperature": 0})
    for matrix in ([[1, 2], [0, 1]], [[1, 0], [0, -1]], [[1, 2]]):
        with pytest.raises(ConfigError, match="must be symmetric and positive definite"):
            explain([1, 2], STATES, score="inner_product", parameters={"W": matrix})
    with pytest.raises(ShapeError, match="cannot compare a query of width 1 with keys of width 2"):
        explain([1], STATES, score="inner_product")


def test_long_rows_are_shortened_everywhere() -> None:
    rng = np.random.default_rng(1)
    text = explain(
        rng.normal(size=128) / 9, rng.normal(size=(3, 128)), score="scaled_dot"
    ).to_text()
    assert "truncated to two decimal places" in text
    assert max(map(len, text.splitlines())) < 200


def test_each_variance_is_measured() -> None:
    (row,) = variances([7])
    assert row["scaled_dot"] != pytest.approx(row["dot"] / 7, rel=1e-6)
    assert row["over_dim"] != pytest.approx(row["dot"] / 49, rel=1e-6)


def test_measured_variances_equal_the_derived_ones() -> None:
    for row in variances([1, 16, 300]):
        # from 20,000 samples the variance is estimated with an error of about one percent
        assert row["dot"] == pytest.approx(row["dim"], rel=0.06)
        assert row["scaled_dot"] == pytest.approx(1, rel=0.06)
        assert row["over_dim"] == pytest.approx(1 / row["dim"], rel=0.06)


MODELS = [
    *({"attention": name} for name in SCORES),
    {"attention": "additive", "decoder": "bahdanau", "cell": "gru", "decoder_layers": 2},
    {"attention": "dot", "decoder": "luong", "input_feeding": True, "decoder_layers": 2},
    *({"kind": "transformer", "attention": name} for name in SCORES),
]


@pytest.mark.parametrize("settings", MODELS, ids=str)
def test_a_step_of_a_model_equals_its_attention(
    make_translator: MakeTranslator, settings: dict[str, object]
) -> None:
    translator = make_translator(**settings)
    translator.trained.model.double()  # no processor rounds the scores differently
    for step in (0, 2):
        explanation, output = explain_step(translator, "a c b a", step, target="c b a")
        heads = output.attention_heads[step]
        layer = translator.attention_layer
        np.testing.assert_allclose(explanation.weights, heads[layer, 0], atol=1e-6)
        assert explanation.labels == ["a(0)", "c(1)", "b(2)", "a(3)", "</s>(4)"]
    if settings.get("kind") == "transformer":
        explanation, output = explain_step(
            translator, "a c b a", 1, target="c b a", layer=2, head=1
        )
        np.testing.assert_allclose(explanation.weights, output.attention_heads[1, 2, 1], atol=1e-6)


@pytest.mark.parametrize("settings", [{}, {"kind": "transformer"}], ids=["rnn", "transformer"])
def test_dropout_and_autocast_have_no_effect(
    make_translator: MakeTranslator, settings: dict[str, object]
) -> None:
    translator = make_translator(dropout=0.5, **settings)
    arguments = translator, "a c b a"
    expected = explain_step(*arguments, 1, target="c b")[0].weights
    layers = layer_weights(*arguments, "c b")
    translator.trained.model.train()
    with torch.autocast("cpu", torch.bfloat16):
        found = explain_step(*arguments, 1, target="c b")[0].weights
        layers_found = layer_weights(*arguments, "c b")
    assert translator.trained.model.training
    np.testing.assert_array_equal(found, expected)
    for array, other in zip(layers_found[2:], layers[2:], strict=True):
        np.testing.assert_array_equal(array, other)


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        ({"attention": "none"}, {}, "no attention to explain"),
        ({"normalizer": "sparsemax"}, {}, "only softmax attention over the whole source"),
        (
            {},
            {"step": 2},
            r"step must be from 0 to 1 for this output \(steps are counted from 0\), got 2",
        ),
        ({}, {"step": -1}, "step must be from 0 to 1"),
        (
            {"kind": "transformer"},
            {"layer": 3},
            "the model has 3 layers with 2 heads, both counted",
        ),
        ({"kind": "transformer"}, {"head": 2}, "there is no layer 1, head 2"),
    ],
)
def test_steps_that_do_not_exist_raise(
    make_translator: MakeTranslator,
    settings: dict[str, object],
    options: dict[str, int],
    message: str,
) -> None:
    translator = make_translator(**settings)
    with pytest.raises(ConfigError, match=message):
        explain_step(translator, "a b", options.pop("step", 0), target="a b", **options)


def test_the_command_prints_explanations_and_errors(
    make_translator: MakeTranslator, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str, status: int = 0) -> str:
        assert main(["explain", *arguments]) == status
        captured = capsys.readouterr()
        return captured.err if status else captured.out

    vectors = "--query", "1,2", "--keys", "1,0;0,1;1,1"
    assert run(*vectors) == CALCULATION
    assert "s = [-1, 2]" in run("--query", "-1,2", "--keys", "-1,0;0,1")
    (tmp_path / "query.json").write_text("[1, 2]")
    np.save(tmp_path / "keys.npy", np.array(STATES))
    files = "--query", str(tmp_path / "query.json"), "--keys", str(tmp_path / "keys.npy")
    assert run(*files) == CALCULATION
    np.savez(tmp_path / "p.npz", W=np.diag([2.0, 1.0]))
    assert "e = [2, 2, 4]" in run(
        *vectors, "--score", "general", "--parameters", str(tmp_path / "p.npz")
    )
    assert json.loads(run(*vectors, "--format", "json"))["partition"] == pytest.approx(
        30.1929, abs=1e-4
    )
    assert "### 1. Score" in run(*vectors, "--format", "markdown")
    assert "c = 0.40 Ann + 0.60 Bob" in run(
        "--keys", "1;2", "--weights", "0.4,0.6", "--labels", "Ann,Bob", "--digits", "2"
    )
    table = run("--dim", "1..8")
    assert [line.split()[1] for line in table.splitlines()[4:8]] == ["1", "2", "4", "8"]
    translator = make_translator()
    (tmp_path / "model").mkdir()
    model_folder.save_description(tmp_path / "model", translator.trained)
    model_folder.save_weights(tmp_path / "model", translator.trained.model)
    output = translator.align(["a b"], ["c a"])[0]
    text = run("--model", str(tmp_path / "model"), "a b", "--target", "c a", "--step", "1")
    assert text.startswith("a b -> c a; step 1: a\n")
    assert f"{output.attention[1, 0]:.4f} a(0) + {output.attention[1, 1]:.4f} b(1)" in text
    for arguments, message in (
        ((), "give --query and --keys"),
        (("--query", "1,x", "--keys", "1"), "--query takes numbers separated by commas"),
        ((*vectors, "--format", "pdf"), "--format takes one of text, markdown, json, got 'pdf'"),
        (("--dim", "8..1"), "--dim takes widths such as 1..1024"),
        (("--query", "gone.npy", "--keys", "1"), "cannot read gone.npy"),
        (("--model", str(tmp_path / "model")), "--model needs a text"),
        (
            ("--keys", "1;2", "--weights", "0.4,0.6", "--unnormalised"),
            "--unnormalised has no effect with --weights",
        ),
    ):
        assert message in run(*arguments, status=1)
