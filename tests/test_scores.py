"""Scores: formulas, gradients, names, options and errors."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import prune

import regard
from oracle import (
    FORMULAS,
    assert_all_close,
    assert_close,
    gradients,
    module_to_float64,
    to_float64,
    tolerance_for,
)
from regard import scores
from regard.compare import model_settings
from regard.config import ModelConfig
from regard.errors import ConfigError, RegardError, ShapeError
from regard.score_registry import ALL_NAMES, SCORES, ScoreEntry, find_score
from regard.scores import (
    Additive,
    Bilinear,
    Concat,
    Cosine,
    Dot,
    InnerProduct,
    InnerProductScore,
    PairwiseScore,
    ScaledDot,
    Score,
    make_score,
)

KINDS = {
    "dot": Dot,
    "scaled_dot": ScaledDot,
    "cosine": Cosine,
    "bilinear": Bilinear,
    "inner_product": InnerProduct,
    "additive": Additive,
    "concat": Concat,
}
DTYPES = [torch.float64, torch.float32, torch.bfloat16]


def _score(name: str, dtype: torch.dtype = torch.float64) -> Score:
    """Return a score of queries of width 5 and keys of width 3, or 5 if it needs equal widths."""
    key_dim = 5 if SCORES[name].equal_widths else 3
    return make_score(name, query_dim=5, key_dim=key_dim, hidden_dim=7).to(dtype)


def _rows(name: str, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    key_dim = 5 if SCORES[name].equal_widths else 3
    query = torch.randn(2, 4, 5, dtype=dtype, requires_grad=True)
    return query, torch.randn(2, 6, key_dim, dtype=dtype, requires_grad=True)


def _parameters(score: nn.Module) -> list[torch.Tensor]:
    return [parameter for parameter in score.parameters() if parameter.requires_grad]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SCORES)
def test_every_score_equals_its_formula_with_every_gradient(name: str, dtype: torch.dtype) -> None:
    score, (query, key) = _score(name, dtype), _rows(name, dtype)
    tolerance = tolerance_for(dtype, float32=16, bfloat16=8)
    actual = score(query, key)
    float64_score, rows = module_to_float64(score), [to_float64(query), to_float64(key)]
    expected = FORMULAS[name](float64_score, *rows)
    assert actual.dtype == dtype
    assert_close(actual, expected, tolerance)
    actual_gradients = gradients(actual, [query, key, *_parameters(score)])
    expected_gradients = gradients(expected, [*rows, *_parameters(float64_score)])
    assert_all_close(actual_gradients, expected_gradients, tolerance)


@pytest.mark.parametrize("name", SCORES)
def test_first_and_second_derivatives(name: str) -> None:
    score, (query, key) = _score(name), _rows(name)
    inputs = (query[:1, :2].detach().requires_grad_(), key[:1, :3].detach().requires_grad_())
    assert torch.autograd.gradcheck(score, inputs)
    assert torch.autograd.gradgradcheck(score, inputs, fast_mode=True)


def test_derivatives_of_cosine_at_zero_vectors() -> None:
    score, (query, key) = _score("cosine"), _rows("cosine")
    query = query.detach().requires_grad_()
    rows = torch.cat([torch.zeros_like(key[:, :1]), key.detach()[:, 1:]], dim=1).requires_grad_()
    total = score(query, rows).square().sum()
    first = torch.autograd.grad(total, [query, rows], create_graph=True)
    second = torch.autograd.grad(sum(x.square().sum() for x in first), [query, rows])
    without = score(query, rows[:, 1:]).square().sum()
    expected = torch.autograd.grad(without, [query, rows], create_graph=True)
    expected_second = torch.autograd.grad(sum(x.square().sum() for x in expected), [query, rows])
    assert_all_close(first, expected, 1e-12)
    assert_all_close(second, expected_second, 1e-12)


@pytest.mark.parametrize("name", SCORES)
def test_a_score_depends_only_on_its_query_and_key(name: str) -> None:
    score, (query, key) = _score(name), _rows(name)
    actual = score(query, key)
    for item, step, position in product(range(2), range(4), range(6)):
        single = score(query[item, step][None, None], key[item, position][None, None])
        assert_close(single[0, 0, 0], actual[item, step, position], 1e-13)


@pytest.mark.parametrize("name", ALL_NAMES)
def test_scores_by_name_and_alias(name: str) -> None:
    score = make_score(name, query_dim=5, key_dim=5, hidden_dim=7)
    assert type(score) is KINDS[find_score(name).name]
    assert score(torch.randn(2, 4, 5), torch.randn(2, 6, 5)).shape == (2, 4, 6)


@pytest.mark.parametrize("name", ["dot", "scaled_dot", "cosine"])
def test_scores_without_parameters_need_no_query_dim(name: str) -> None:
    assert make_score(name, key_dim=5)(torch.randn(2, 4, 5), torch.randn(2, 6, 5)).shape == (
        2,
        4,
        6,
    )


def test_names() -> None:
    assert set(SCORES) == set(KINDS) == set(FORMULAS)
    aliases = {name: find_score(name).name for name in ALL_NAMES if name not in SCORES}
    assert aliases == {"general": "bilinear", "bahdanau": "additive", "mlp": "additive"}
    for name, kind in KINDS.items():
        assert getattr(regard, kind.__name__) is kind
        pairwise = name in ("additive", "concat")
        assert issubclass(kind, PairwiseScore if pairwise else InnerProductScore)


def test_an_unknown_name_lists_the_names() -> None:
    with pytest.raises(
        ConfigError, match=r"dot, scaled_dot, .*additive, concat, .*'dott'; did you mean dot"
    ):
        make_score("dott", query_dim=5, key_dim=5, hidden_dim=7)


@pytest.mark.parametrize("name", [name for name in SCORES if SCORES[name].equal_widths])
def test_unequal_widths_name_both(name: str) -> None:
    with pytest.raises(RegardError, match=r"query_dim=5 .*key_dim=3.*bilinear"):
        make_score(name, query_dim=5, key_dim=3, hidden_dim=7)


@pytest.mark.parametrize("name", SCORES)
def test_errors_name_the_shapes(name: str, unchecked: None) -> None:
    score, (query, key) = _score(name), _rows(name)
    mismatched = [
        (query[0], key),
        (query, key[0]),
        (query[:1], key),
        (query[..., :4], key),
        (query, torch.cat([key, key], dim=-1)),
    ]
    for invalid_query, invalid_key in mismatched:
        with pytest.raises(ShapeError) as caught:
            score(invalid_query, invalid_key)
        assert str(tuple(invalid_query.shape)) in str(caught.value)
        assert str(tuple(invalid_key.shape)) in str(caught.value)
        assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64])
def test_only_floating_point_numbers_are_compared(dtype: torch.dtype, unchecked: None) -> None:
    score = make_score("additive", query_dim=4, key_dim=4)
    rows = torch.ones(1, 2, 4, dtype=dtype)
    with pytest.raises(ShapeError, match=f"floating-point dtype, got {dtype} and {dtype}"):
        score(rows, rows)


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("empty", ["B", "L", "T"])
def test_empty_inputs(name: str, empty: str) -> None:
    score, (query, key) = _score(name), _rows(name)
    batch, length, width = (0 if axis == empty else 2 for axis in "BLT")
    scores = score(query[:batch, :length], key[:batch, :width])
    assert scores.shape == (batch, length, width)
    scores.sum().backward()


@pytest.mark.parametrize("name", SCORES)
def test_strides_have_no_effect(name: str) -> None:
    score, (query, key) = _score(name), _rows(name)
    strided = query.detach().transpose(0, 1).contiguous().transpose(0, 1)
    expanded = key.detach()[:1].expand(2, -1, -1)
    assert_close(score(strided, expanded), score(query, expanded.contiguous()), 1e-13)


def test_scaled_dot_has_variance_1_at_any_width() -> None:
    for width in (4, 64, 1024):
        query, key = torch.randn(1, 200, width), torch.randn(1, 200, width)
        assert 0.8 < float(ScaledDot()(query, key).var()) < 1.25
        assert 0.8 * width < float(Dot()(query, key).var()) < 1.25 * width


@pytest.mark.parametrize("temperature", [0.5, 1.0, 4.0])
def test_cosine_is_bounded_at_any_norm(temperature: float) -> None:
    score = Cosine(temperature).double()
    query, key = _rows("cosine")
    scores = score(query, key)
    assert scores.abs().max() <= (1 + 1e-7) / temperature
    assert_close(score(1e6 * query, 1e-6 * key), scores, 1e-6)
    assert_close(
        score(query, query).diagonal(dim1=1, dim2=2), torch.full((2, 4), 1 / temperature), 1e-6
    )
    assert score(torch.zeros_like(query), key).abs().max() == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_cosine_computes_the_norms_of_half_precisions_in_float32(dtype: torch.dtype) -> None:
    """Squares of 300 overflow in float16, and those of 1e-4 underflow."""
    query, key = (row.detach().to(dtype) for row in _rows("cosine"))
    for scale in (1e-4, 1.0, 300.0, 10000.0):
        rows = (query * scale).to(dtype), (key * scale).to(dtype)
        expected = FORMULAS["cosine"](Cosine().double(), *(row.double() for row in rows))
        actual = Cosine().to(dtype)(*rows)
        assert actual.dtype == dtype
        assert_close(actual, expected, 4 * torch.finfo(dtype).eps)
    assert not Cosine()(torch.zeros_like(query), key).any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_cosine_has_no_gradient_at_rows_of_zeros(dtype: torch.dtype) -> None:
    query, key = (row.detach().to(dtype) for row in _rows("cosine"))
    query[0, 0] = 0
    key[0, 1] = 0
    rows = query.requires_grad_(), key.requires_grad_()
    scores = Cosine()(*rows)
    scores.sum().backward()
    assert not scores[0, 0].any()
    for row, zero in ((query.grad[0], 0), (key.grad[0], 1)):
        assert not row[zero].any()
        assert row.isfinite().all()
        assert row[2].any()


def test_cosine_learns_its_temperature_as_an_option() -> None:
    assert not _parameters(Cosine())
    score = make_score("cosine", query_dim=5, key_dim=5, hidden_dim=7, learned_temperature=True)
    query, key = _rows("cosine", torch.float32)
    score(query, key).square().sum().backward()
    (temperature,) = _parameters(score)
    assert temperature.grad is not None
    assert temperature.grad < 0  # a higher temperature makes scores smaller


def test_bilinear_is_scaled_as_an_option() -> None:
    plain, scaled = Bilinear(5, 3), Bilinear(5, 3, scaled=True)
    scaled.load_state_dict(plain.state_dict())
    query, key = _rows("bilinear", torch.float32)
    assert_close(scaled(query, key) * 5**0.5, plain(query, key), 1e-6)


def test_bilinear_at_the_identity_is_dot() -> None:
    score = Bilinear(5, 5)
    score.weight.data.copy_(torch.eye(5))
    query, key = _rows("dot", torch.float32)
    assert_close(score(query, key), Dot()(query, key), 1e-6)


def test_inner_product_is_symmetric_and_positive() -> None:
    score = InnerProduct(5, eps=0.1).double()
    score.factor.data[:, 2:] = 0  # A A' alone is singular
    rows = torch.randn(1, 200, 5).double()
    scores = score(rows, rows)[0]
    assert_close(scores, scores.T, 1e-13)
    assert (scores.diagonal() >= 0.1 * rows[0].square().sum(-1) * (1 - 1e-12)).all()


def test_the_formula_of_a_pruned_score_has_its_effective_matrices() -> None:
    score = Additive(4, 5, 3, bias=True)
    prune.l1_unstructured(score.key_proj, "weight", amount=0.5)
    parameters = score.formula_parameters()
    assert list(parameters) == ["W", "U", "v", "bias"]
    assert parameters["U"] is score.key_proj.weight


def test_concat_equals_additive_with_its_matrix_split() -> None:
    concat, additive = Concat(5, 3, 7).double(), Additive(5, 3, 7).double()
    additive.query_proj.weight.data = concat.weight.data[:, :5].clone()
    additive.key_proj.weight.data = concat.weight.data[:, 5:].clone()
    additive.vector.data = concat.vector.data.clone()
    query, key = _rows("concat")
    assert torch.equal(concat(query, key), additive(query, key))


@pytest.mark.parametrize("name", ["additive", "concat"])
def test_pairwise_scores_with_bias(name: str) -> None:
    score = make_score(name, query_dim=5, key_dim=3, hidden_dim=7, bias=True).double()
    plain = make_score(name, query_dim=5, key_dim=3, hidden_dim=7)
    assert "bias" not in plain.formula_parameters()
    bias = score.formula_parameters()["bias"]
    bias.data.normal_()
    query, key = _rows(name)
    expected = FORMULAS[name](score, query, key)
    assert_close(score(query, key), expected, 1e-13)
    actual_gradients = gradients(score(query, key), [query, key, *_parameters(score)])
    expected_gradients = gradients(expected, [query, key, *_parameters(score)])
    assert_all_close(actual_gradients, expected_gradients, 1e-13)
    letters = {letter: value.detach() for letter, value in score.formula_parameters().items()}
    explanation = regard.explain(
        query[0, 0].detach(), key[0].detach(), score=name, parameters=letters
    )
    assert_close(torch.tensor(explanation.scores), expected[0, 0], 1e-13)


def test_options_of_a_score_are_accepted_by_name() -> None:
    widths = {"query_dim": 4, "key_dim": 4, "hidden_dim": 4}
    scaled = make_score("general", **widths, scaled=True)
    assert isinstance(scaled, Bilinear)
    assert scaled.scale == 0.5
    cosine = make_score("cosine", **widths, temperature=0.5)
    assert float(cosine.formula_parameters()["temperature"]) == pytest.approx(0.5)
    with pytest.raises(ConfigError, match="dot does not accept the option bias; its options: none"):
        make_score("dot", **widths, bias=True)
    with pytest.raises(ConfigError, match="option bias; its options: scaled"):
        make_score("bilinear", **widths, bias=True)


@pytest.mark.parametrize("alias", [name for name in ALL_NAMES if name not in SCORES])
def test_aliases_are_accepted_wherever_a_score_is_named(alias: str) -> None:
    name = find_score(alias).name
    assert ModelConfig(attention=alias) == ModelConfig(attention=name)
    assert regard.explain([1, 2], [[1, 0], [0, 1]], score=alias).score == name
    assert ModelConfig(**model_settings(f"transformer:{alias}")).attention == name
    heads = [regard.MultiHeadAttention(8, 2, score).attention.score for score in (alias, name)]
    assert type(heads[0]) is type(heads[1])


def test_a_new_score_needs_only_a_class_and_a_registry_entry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class NegativeDistance(scores.InnerProductScore):
        """e = 2 s . h - h . h, which softmax treats as -|s - h|^2."""

        def project_query(self, query: torch.Tensor) -> torch.Tensor:
            return torch.cat([2 * query, torch.ones_like(query[..., :1])], -1)

        def project_key(self, key: torch.Tensor) -> torch.Tensor:
            return torch.cat([key, -key.square().sum(-1, keepdim=True)], -1)

    entry = ScoreEntry(
        name="distance",
        aliases=("nearest",),
        class_name="NegativeDistance",
        equal_widths=True,
        text="2 s . h - h . h",
        latex=r"2 s \cdot h - h \cdot h",
        source="a test",
        compute=lambda s, h, p: 2 * s @ h - h @ h,
    )
    monkeypatch.setitem(SCORES, entry.name, entry)
    monkeypatch.setattr(scores, entry.class_name, NegativeDistance, raising=False)
    query, keys = torch.randn(1, 1, 5).double(), torch.randn(1, 6, 5).double()
    score = make_score("nearest", query_dim=5, key_dim=5, hidden_dim=7)
    explanation = regard.explain(query[0, 0], keys[0], score="distance")
    assert_close(score(query, keys)[0, 0], torch.tensor(explanation.scores), 1e-13)
    actual = regard.Attention(score)(query, keys, need_weights=True)
    assert_close(actual.weights[0, 0], torch.tensor(explanation.weights), 1e-13)
    heads = regard.MultiHeadAttention(6, 2, "nearest")
    assert type(heads.attention.score) is NegativeDistance
    assert heads(torch.randn(2, 4, 6), torch.randn(2, 3, 6)).context.shape == (2, 4, 6)
    with pytest.raises(ShapeError, match="score distance needs queries and keys of equal width"):
        make_score("distance", query_dim=5, key_dim=3, hidden_dim=7)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_arguments_that_must_be_positive(value: float) -> None:
    with pytest.raises(ConfigError, match=f"temperature of Cosine must be above 0, got {value}"):
        Cosine(value)
    with pytest.raises(ConfigError, match=f"eps of InnerProduct must be above 0, got {value}"):
        InnerProduct(5, value)
    with pytest.raises(ConfigError, match="temperature of Cosine must be finite, got inf"):
        Cosine(float("inf"))


@pytest.mark.parametrize("width", [0, -1, 2.5, "5", True])
def test_widths_are_whole_numbers_of_at_least_1(width: Any, unchecked: None) -> None:
    message = f"must be a whole number of at least 1, got {width!r}"
    for name in ("query_dim", "key_dim", "hidden_dim"):
        with pytest.raises(ConfigError, match=f"{name} {message}"):
            make_score("additive", **{"query_dim": 5, name: width})
    for make in (Bilinear, lambda a, b: Additive(a, b, 5), lambda a, b: Concat(5, a, b)):
        for widths in ((width, 5), (5, width)):
            with pytest.raises(ConfigError, match=message):
                make(*widths)
    with pytest.raises(ConfigError, match=message):
        InnerProduct(width)
    for name in ("embed_dim", "num_heads", "kdim", "vdim"):
        with pytest.raises(ConfigError, match=f"{name} {message}"):
            regard.MultiHeadAttention(**{"embed_dim": 8, "num_heads": 2, name: width})


@pytest.mark.parametrize("scale", [1e-40, 1e-30, 1e-13, 1e19, 1e37])
def test_the_cosine_does_not_depend_on_the_norm(scale: float) -> None:
    score, query, key = Cosine(), torch.randn(2, 3, 8), torch.randn(2, 4, 8)
    assert_close(score(query * scale, key * scale), score(query, key), 1e-3)


def test_gradients_of_the_cosine_at_large_norms() -> None:
    query = (torch.randn(1, 3, 8) * 1e19).requires_grad_()
    key = torch.randn(1, 4, 8)
    expected = functional.cosine_similarity(query.double()[:, :, None], key.double()[:, None], -1)
    [actual] = torch.autograd.grad(Cosine()(query, key)[..., 0].sum(), query)
    [gradient] = torch.autograd.grad(expected[..., 0].sum(), query)
    assert_close(actual * 1e19, gradient * 1e19, 1e-5)
