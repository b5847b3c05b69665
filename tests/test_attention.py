"""Attention compared with the reference and with worked examples, with every kind of mask."""

import copy
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

import regard
from oracle import (
    FORMULAS,
    assert_all_close,
    assert_all_equal,
    assert_close,
    gradients,
    module_to_float64,
    reference_attention,
    to_float64,
    tolerance_for,
)
from regard.attention import NORMALIZERS, Attention, AttentionOutput, Memory, SelfAttention
from regard.errors import ConfigError, ShapeError
from regard.kernels import additive
from regard.score_registry import SCORES
from regard.scores import Cosine, Dot, ScaledDot, make_score
from selection import covering

B, L, T = 2, 4, 6
DTYPES = [torch.float64, torch.float32, torch.bfloat16]
PAIRWISE = ("additive", "concat")
PATHS = [(name, need_weights) for name in SCORES for need_weights in (False, True)]
NORMALIZED_PATHS = [(*path, normalizer) for path in PATHS for normalizer in NORMALIZERS]
NAN_SAFE_PATHS = [
    (name, need_weights) for name, need_weights in PATHS if need_weights or name in PAIRWISE
]
"""Paths on which a NaN key reaches only the queries that may attend to it."""


def _attention(
    name: str, normalizer: str = "softmax", dtype: torch.dtype = torch.float64
) -> Attention:
    score = make_score(name, query_dim=5, key_dim=_key_dim(name), hidden_dim=7)
    return Attention(score, normalizer).to(dtype)


def _key_dim(name: str) -> int:
    return 5 if SCORES[name].equal_widths else 3


def _rows(name: str, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Queries, keys and values that require gradients."""
    shapes = (B, L, 5), (B, T, _key_dim(name)), (B, T, 2)
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def _parameters(module: nn.Module) -> list[Tensor]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def _assert_same(left: AttentionOutput, right: AttentionOutput, tolerance: float = 1e-13) -> None:
    assert_close(left.context, right.context, tolerance)
    if left.weights is not None:
        assert_close(left.weights, right.weights, tolerance)


def _call(
    attention: Attention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    padding: Tensor,
    mask: Tensor,
    need_weights: bool,
) -> AttentionOutput:
    return attention(
        query, key, value, key_padding_mask=padding, attn_mask=mask, need_weights=need_weights
    )


def _padding() -> Tensor:
    """Return a padding mask: the last key of the first source, the last three of the second."""
    return torch.tensor([[False] * 5 + [True], [False] * 3 + [True] * 3])


def _float_mask(dtype: torch.dtype) -> Tensor:
    """Return a random mask with some elements -inf, and all of one row."""
    mask = torch.randn(B, L, T, dtype=dtype)
    mask = mask.masked_fill(torch.rand(B, L, T) < 0.3, -torch.inf)
    mask[1, 2] = -torch.inf
    return mask.requires_grad_()


class Distance(nn.Module):
    """A custom score: minus the squared distance, with a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(0.7))

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return -self.slope * (query[:, :, None] - key[:, None]).square().sum(-1)


class ConstantScore(nn.Module):
    """A score that returns the same values for every input."""

    def __init__(self, *numbers: float) -> None:
        super().__init__()
        self.numbers = torch.tensor(numbers)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return self.numbers.expand(*query.shape[:2], -1)


# Comparison with the reference.


def _expected(
    attention: Attention, formula: Any, rows: list[Tensor], padding: Tensor, mask: Tensor
) -> AttentionOutput:
    query, key, value = rows
    is_inf = mask == -torch.inf
    scores = formula(attention.score, query, key)
    masked, bias = is_inf | padding[:, None], mask.masked_fill(is_inf, 0)
    return reference_attention(scores, value, masked, bias, attention.normalizer)


@pytest.mark.parametrize(
    ("name", "normalizer", "dtype"), covering(itertools.product(SCORES, NORMALIZERS, DTYPES))
)
def test_every_score_and_normaliser_equals_the_reference_with_its_gradients(
    name: str, normalizer: str, dtype: torch.dtype, poisoned: None
) -> None:
    attention, rows = _attention(name, normalizer, dtype), _rows(name, dtype)
    padding, mask = _padding(), _float_mask(dtype)
    attention_float64: Any = module_to_float64(attention)
    rows_float64, mask_float64 = [to_float64(row) for row in rows], to_float64(mask)
    expected = _expected(attention_float64, FORMULAS[name], rows_float64, padding, mask_float64)
    expected_gradients = gradients(
        expected.context, [*rows_float64, mask_float64, *_parameters(attention_float64)]
    )
    tolerance = tolerance_for(dtype, float32=64, bfloat16=8)
    for need_weights in (False, True):
        actual = attention(
            *rows, key_padding_mask=padding, attn_mask=mask, need_weights=need_weights
        )
        assert actual.context.dtype == dtype
        assert_close(actual.context, expected.context, tolerance)
        assert (actual.weights is not None) == need_weights
        if actual.weights is not None:
            assert actual.weights.dtype == dtype
            assert_close(actual.weights, expected.weights, tolerance)
        actual_gradients = gradients(actual.context, [*rows, mask, *_parameters(attention)])
        assert_all_close(actual_gradients, expected_gradients, tolerance)


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("name", SCORES)
def test_gradients_through_the_weights(name: str, normalizer: str) -> None:
    attention, rows = _attention(name, normalizer), _rows(name)
    padding, mask = _padding(), _float_mask(torch.float64)
    actual = attention(*rows, key_padding_mask=padding, attn_mask=mask, need_weights=True).weights
    expected = _expected(attention, FORMULAS[name], rows, padding, mask).weights
    inputs = [*rows[:2], mask, *_parameters(attention)]
    assert_all_close(gradients(actual, inputs), gradients(expected, inputs), 1e-13)


@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_a_custom_score(normalizer: str) -> None:
    attention, rows = Attention(Distance(), normalizer).double(), _rows("dot")
    padding, mask = _padding(), _float_mask(torch.float64)
    expected = _expected(attention, lambda score, *pair: score(*pair), rows, padding, mask)
    inputs = [*rows, mask, *_parameters(attention)]
    expected_gradients = gradients(expected.context, inputs)
    for need_weights in (False, True):
        actual = attention(
            *rows, key_padding_mask=padding, attn_mask=mask, need_weights=need_weights
        )
        assert_close(actual.context, expected.context, 1e-13)
        assert_all_close(gradients(actual.context, inputs), expected_gradients, 1e-13)


@pytest.mark.parametrize(("name", "need_weights"), covering(PATHS, size=1))
def test_first_and_second_derivatives(name: str, need_weights: bool) -> None:
    attention, rows = _attention(name), _rows(name)
    mask = _float_mask(torch.float64)
    finite = mask.detach().masked_fill(mask == -torch.inf, 0).requires_grad_()

    def call(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        float_mask = bias.masked_fill(mask == -torch.inf, -torch.inf)
        return attention(
            query,
            key,
            value,
            key_padding_mask=_padding(),
            attn_mask=float_mask,
            need_weights=need_weights,
        ).context

    assert torch.autograd.gradcheck(call, (*rows, finite))
    assert torch.autograd.gradgradcheck(call, (*rows, finite), fast_mode=True)


def test_scaled_dot_equals_pytorchs_operator() -> None:
    rows, masked = _rows("scaled_dot"), torch.rand(B, L, T) < 0.3
    attention = Attention(ScaledDot())
    assert_close(attention(*rows).context, functional.scaled_dot_product_attention(*rows), 1e-13)
    expected = functional.scaled_dot_product_attention(*rows, attn_mask=~masked)
    for need_weights in (False, True):
        actual = attention(*rows, attn_mask=masked, need_weights=need_weights).context
        assert_close(actual, expected, 1e-13)


@pytest.mark.parametrize(("name", "need_weights"), PATHS)
def test_values_default_to_the_keys(name: str, need_weights: bool) -> None:
    attention, (query, key, _) = _attention(name), _rows(name)
    actual = attention(query, key, need_weights=need_weights)
    _assert_same(actual, attention(query, key, key, need_weights=need_weights), 0)


@pytest.mark.parametrize("name", SCORES)
def test_weights_sum_to_one_and_the_context_lies_between_the_values(name: str) -> None:
    attention, rows = _attention(name), _rows(name)
    context, weights = attention(*rows, need_weights=True)
    assert (weights >= 0).all()
    assert_close(weights.sum(-1), torch.ones(B, L), 1e-13)
    assert (context <= rows[2].amax(1, keepdim=True)).all()
    assert (context >= rows[2].amin(1, keepdim=True)).all()


@pytest.mark.parametrize(("name", "need_weights"), PATHS)
def test_keys_projected_once_give_the_same_result_at_every_step(
    name: str, need_weights: bool
) -> None:
    attention, (query, key, value) = _attention(name), _rows(name)
    expected = attention(query, key, value, key_padding_mask=_padding(), need_weights=need_weights)
    keys, masked = attention.project_key(key), _padding()[:, None]
    for step in range(L):
        query_step = query[:, step : step + 1]
        actual = attention.attend(query_step, keys, value, masked, need_weights=need_weights)
        assert_close(actual.context, expected.context[:, step : step + 1], 1e-13)


def test_memory_select() -> None:
    states, keys = torch.randn(3, T, 2), torch.randn(3, T, 4)
    memory = Memory(states, torch.rand(3, T) < 0.5, torch.randn(3, 2), (keys,))
    chosen = memory.select(torch.tensor([2, 0]))
    assert torch.equal(chosen.states, states[[2, 0]])
    assert torch.equal(chosen.padding, memory.padding[[2, 0]])
    assert torch.equal(chosen.final, memory.final[[2, 0]])
    assert torch.equal(chosen.keys[0], keys[[2, 0]])


# Construction by name, input without a batch.


def test_a_score_by_name() -> None:
    torch.manual_seed(0)
    named = Attention("bahdanau", "sparsemax", 0.1, query_dim=5, key_dim=3, hidden_dim=7, bias=True)
    torch.manual_seed(0)
    score = make_score("additive", query_dim=5, key_dim=3, hidden_dim=7, bias=True)
    expected = Attention(score, "sparsemax", 0.1)
    assert (named.normalizer, named.dropout) == ("sparsemax", 0.1)
    rows = _rows("additive", torch.float32)
    assert torch.equal(named.eval()(*rows).context, expected.eval()(*rows).context)
    assert type(Attention("dot").score) is Dot
    assert Attention("general", query_dim=4, scaled=True).score.widths == (4, 4)
    assert Attention("additive", query_dim=4, key_dim=3).score.vector.shape == (4,)
    assert float(Attention("cosine", temperature=0.5).score.log_temperature.exp()) == 0.5


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (
            ("additive",),
            {"query_dim": 4, "hiden_dim": 3},
            r"hiden_dim; .*did you mean hidden_dim\?",
        ),
        (("cosine",), {"temprature": 2}, r"options: temperature, .*did you mean temperature\?"),
        (
            ("additve",),
            {"query_dim": 4},
            r"score takes one of .*'additve'; did you mean additive\?",
        ),
        (("additive",), {"key_dim": 4}, "score additive has parameters: pass query_dim"),
        (("inner_product",), {}, "score inner_product has parameters: pass query_dim"),
        ((Dot(),), {"query_dim": 4}, "query_dim is an option for a score specified by name"),
        ((Dot(),), {"scaled": True}, "scaled is an option for a score specified by name.*Dot"),
    ],
)
def test_invalid_options_of_a_score(
    arguments: tuple[Any, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Attention(*arguments, **options)


@pytest.mark.parametrize(("name", "need_weights", "normalizer"), covering(NORMALIZED_PATHS))
def test_unbatched_input_equals_a_batch_of_one_item(
    name: str, need_weights: bool, normalizer: str
) -> None:
    attention, mask = _attention(name, normalizer), _float_mask(torch.float64)
    rows = [row[0].detach().requires_grad_() for row in _rows(name)]
    masks: list[dict[str, Tensor]] = [
        {}, {"key_padding_mask": _padding()[0]}, {"key_lengths": torch.tensor(4)},
        {"attn_mask": mask[0]},
    ]  # fmt: skip
    for options in masks:
        batched = {
            key: value if key == "attn_mask" else value[None] for key, value in options.items()
        }
        actual = attention(*rows, **options, need_weights=need_weights)
        items = [row[None] for row in rows]
        expected = attention(*items, **batched, need_weights=need_weights)
        assert torch.equal(actual.context, expected.context[0])
        if need_weights:
            assert torch.equal(actual.weights, expected.weights[0])
        assert_all_equal(gradients(actual.context, rows), gradients(expected.context, rows))
    assert attention(rows[0], rows[1]).context.shape == (L, _key_dim(name))


@pytest.mark.parametrize(
    "options", [{"key_lengths": 3}, {"key_padding_mask": [True]}, {"attn_mask": [[True]]}], ids=str
)
def test_masks_of_unbatched_input_are_tensors(options: dict[str, Any], unchecked: None) -> None:
    rows, (name,) = torch.zeros(2, 8), options
    multihead, causal = regard.MultiHeadAttention(8, 2), regard.SelfAttention(8, 2, causal=True)
    for layer in (Attention("dot"), multihead, causal):
        queries = [rows] if layer is causal else [rows, rows]
        with pytest.raises(ShapeError, match=f"{name} to be a tensor"):
            layer(*queries, **options)


# Worked examples.


def test_worked_example() -> None:
    states = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]])
    query = torch.tensor([[[1.0, 2.0]]])
    scores = Dot()(query, states)
    assert scores.flatten().tolist() == [1, 2, 3]
    assert scores.exp().flatten().tolist() == pytest.approx([2.7183, 7.3891, 20.0855], abs=5e-5)
    assert float(scores.exp().sum()) == pytest.approx(30.1929, abs=5e-5)
    for need_weights in (False, True):
        context, weights = Attention(Dot())(query, states, need_weights=need_weights)
        assert context.flatten().tolist() == pytest.approx([0.7553, 0.9100], abs=5e-5)
    assert weights.flatten().tolist() == pytest.approx([0.0900, 0.2447, 0.6652], abs=5e-5)
    joined = torch.cat([query, context], dim=-1).flatten().tolist()
    assert joined == pytest.approx([1, 2, 0.7553, 0.9100], abs=5e-5)
    truncated = (100 * weights).floor() / 100
    assert truncated.flatten().tolist() == pytest.approx([0.09, 0.24, 0.66])
    assert (truncated @ states).flatten().tolist() == pytest.approx([0.75, 0.90])


@pytest.mark.parametrize(
    ("score", "norm", "scores", "weights"),
    [
        (Dot(), 1, [1, 0, 0, 0], [0.4754, 0.1749, 0.1749, 0.1749]),
        (Dot(), 2, [4, 0, 0, 0], [0.9479, 0.0174, 0.0174, 0.0174]),
        (Cosine(), 1, [1, 0, 0, 0], [0.4754, 0.1749, 0.1749, 0.1749]),
        (Cosine(), 2, [1, 0, 0, 0], [0.4754, 0.1749, 0.1749, 0.1749]),
    ],
)
def test_worked_example_of_four_orthogonal_words(
    score: nn.Module, norm: int, scores: list[float], weights: list[float]
) -> None:
    words, _ = torch.linalg.qr(torch.randn(4, 4))
    words = (words.T * torch.tensor([norm, 1, 1, 1])[:, None])[None]
    assert score(words[:, :1], words).flatten().tolist() == pytest.approx(scores, abs=1e-5)
    actual = Attention(score)(words[:, :1], words, need_weights=True)
    assert actual.weights.flatten().tolist() == pytest.approx(weights, abs=5e-5)
    assert_close(
        actual.context[0, 0], sum(w * h for w, h in zip(weights, words[0], strict=True)), 2e-4
    )


def test_constant_scores_as_weights() -> None:
    states, weights = torch.randn(1, 4, 3), [0.4, 0.3, 0.2, 0.1]
    query = torch.randn(1, 1, 3)
    h1, h2, h3, h4 = states[0]
    expected = 0.4 * h1 + 0.3 * h2 + 0.2 * h3 + 0.1 * h4
    assert_close(
        Attention(ConstantScore(*weights), "none")(query, states).context[0, 0], expected, 1e-6
    )
    assert_close(
        Attention(ConstantScore(*map(math.log, weights)))(query, states).context[0, 0],
        expected,
        1e-6,
    )


# Masks.


@pytest.mark.parametrize(("name", "need_weights", "normalizer"), covering(NORMALIZED_PATHS))
def test_masking_a_key_equals_deleting_it(name: str, need_weights: bool, normalizer: str) -> None:
    attention, rows = _attention(name, normalizer), _rows(name)
    padding = torch.tensor([False, True, False, False, True, True])
    kept = [row[:, ~padding].detach().requires_grad_() for row in rows[1:]]
    actual = attention(*rows, key_padding_mask=padding.expand(B, -1), need_weights=need_weights)
    expected = attention(rows[0], *kept, need_weights=need_weights)
    assert_close(actual.context, expected.context, 1e-13)
    if need_weights:
        assert_close(actual.weights[:, :, ~padding], expected.weights, 1e-13)
        assert not actual.weights[:, :, padding].any()
    parameters = _parameters(attention)
    query, key, value, *parameter_gradients = gradients(actual.context, [*rows, *parameters])
    expected_gradients = gradients(expected.context, [rows[0], *kept, *parameters])
    assert not key[:, padding].any()
    assert not value[:, padding].any()
    actual_gradients = [query, key[:, ~padding], value[:, ~padding], *parameter_gradients]
    assert_all_close(actual_gradients, expected_gradients, 1e-13)


def _mask_arguments() -> dict[str, dict[str, Tensor]]:
    """Return four equivalent arguments that mask the keys of `_padding` for every query."""
    padding = _padding()
    masked = padding[:, None].expand(B, L, T)
    return {
        "key_padding_mask": {"key_padding_mask": padding},
        "key_lengths": {"key_lengths": torch.tensor([5, 3])},
        "bool": {"attn_mask": masked.clone()},
        "float": {"attn_mask": torch.zeros(B, L, T).double().masked_fill(masked, -torch.inf)},
    }


@pytest.mark.parametrize(
    ("name", "need_weights", "mask_kind"),
    covering((*path, kind) for path in PATHS for kind in _mask_arguments()),
)
def test_the_content_of_padding_has_no_effect(
    name: str, need_weights: bool, mask_kind: str
) -> None:
    attention, rows = _attention(name), _rows(name)
    masks, padding = _mask_arguments()[mask_kind], _padding()

    def call(fill_value: float) -> tuple[Tensor, ...]:
        filled = [row.detach().clone() for row in rows]
        filled[1][padding] = filled[2][padding] = fill_value
        leaves = [row.requires_grad_() for row in filled]
        actual = attention(*leaves, **masks, need_weights=need_weights)
        weights = () if actual.weights is None else (actual.weights,)
        inputs = [*leaves, *_parameters(attention)]
        return actual.context, *weights, *gradients(actual.context, inputs)

    expected = call(0.5)
    assert all(tensor.isfinite().all() for tensor in expected)
    for fill_value in (math.nan, math.inf, -math.inf, 1e30):
        assert_all_equal(call(fill_value), expected)


@pytest.mark.parametrize("fill_value", [math.nan, math.inf])
def test_the_content_of_padding_has_no_effect_on_a_custom_score(fill_value: float) -> None:
    attention, rows = Attention(Distance()).double(), _rows("dot")
    expected = attention(*rows, key_padding_mask=_padding()).context
    with torch.no_grad():
        rows[1][_padding()] = fill_value
        rows[2][_padding()] = fill_value
    actual = attention(*rows, key_padding_mask=_padding()).context
    assert torch.equal(actual, expected)
    for gradient in gradients(actual, [*rows, *_parameters(attention)]):
        assert gradient.isfinite().all()


@pytest.mark.parametrize(
    ("name", "need_weights", "normalizer", "kind"),
    covering((*path, kind) for path in NORMALIZED_PATHS for kind in ("bool", "float", "padding")),
)
def test_a_query_that_may_attend_to_nothing_gets_zeros(
    name: str, need_weights: bool, kind: str, normalizer: str
) -> None:
    attention, rows = _attention(name, normalizer), _rows(name)
    fully_masked = torch.zeros(B, L, dtype=torch.bool)
    fully_masked[0, 1] = fully_masked[1] = True
    masked = fully_masked[:, :, None].expand(B, L, T)
    float_mask = torch.zeros(B, L, T).double().masked_fill(masked, -torch.inf)
    masks: dict[str, Tensor] = {"attn_mask": masked if kind == "bool" else float_mask}
    if kind == "padding":
        fully_masked[0, 1] = False
        masks = {"key_lengths": torch.tensor([T, 0])}
    with torch.autograd.set_detect_anomaly(True):
        actual = attention(*rows, **masks, need_weights=need_weights)
        query, key, value, *parameter_gradients = gradients(
            actual.context, [*rows, *_parameters(attention)]
        )
    assert not actual.context[fully_masked].any()
    assert actual.context[~fully_masked].all()
    if actual.weights is not None:
        assert not actual.weights[fully_masked].any()
    assert not query[fully_masked].any()
    assert not key[1].any()
    assert not value[1].any()
    assert all(tensor.isfinite().all() for tensor in (query, key, value, *parameter_gradients))


@pytest.mark.parametrize(("name", "need_weights"), PATHS)
def test_equivalent_masks_give_equal_results(name: str, need_weights: bool) -> None:
    attention, rows = _attention(name), _rows(name)

    def call(**masks: Tensor) -> AttentionOutput:
        return attention(*rows, **masks, need_weights=need_weights)

    results = [call(**masks) for masks in _mask_arguments().values()]
    for result in results[1:]:
        _assert_same(result, results[0])
    causal = torch.ones(L, T, dtype=torch.bool).triu(1)
    batch_causal = causal.expand(B, L, T)
    float_causal = torch.zeros(L, T).double().masked_fill(causal, -torch.inf)
    expected = call(attn_mask=causal)
    for mask in (batch_causal, float_causal, float_causal.expand(B, L, T)):
        _assert_same(call(attn_mask=mask), expected)
    expected = call(attn_mask=batch_causal | _padding()[:, None])
    for mask in (causal, batch_causal, float_causal):
        _assert_same(call(attn_mask=mask, key_padding_mask=_padding()), expected)
        _assert_same(call(attn_mask=mask, key_lengths=torch.tensor([5, 3])), expected)
    different = [torch.rand(L, T) < 0.4 for _ in range(B)]
    batched = call(attn_mask=torch.stack(different))
    for item, mask in enumerate(different):
        single = attention(*(row[item : item + 1] for row in rows), attn_mask=mask)
        assert_close(batched.context[item], single.context[0], 1e-13)


@pytest.mark.parametrize(("name", "need_weights"), PATHS)
def test_a_constant_added_to_a_row_of_the_mask_has_no_effect(name: str, need_weights: bool) -> None:
    attention, rows, mask = _attention(name), _rows(name), _float_mask(torch.float64)
    shifted = mask + torch.randn(B, L, 1)
    actual = attention(*rows, attn_mask=shifted, need_weights=need_weights)
    _assert_same(actual, attention(*rows, attn_mask=mask, need_weights=need_weights), 1e-12)


@pytest.mark.parametrize(("name", "need_weights", "normalizer"), covering(NORMALIZED_PATHS))
def test_arguments_are_not_modified(name: str, need_weights: bool, normalizer: str) -> None:
    attention, rows = _attention(name, normalizer), _rows(name)
    with torch.no_grad():
        rows[1][_padding()] = math.nan
        rows[1][0, 0] = math.nan  # attended to by some queries
    arguments = [*rows, _padding(), _float_mask(torch.float64), torch.rand(L, T) < 0.3]
    before = [tensor.detach().clone() for tensor in arguments]
    for mask in arguments[4:]:
        context = attention(
            *rows, key_padding_mask=arguments[3], attn_mask=mask, need_weights=need_weights
        ).context
        context.sum().backward()
    assert_all_equal(
        [tensor.nan_to_num(7) for tensor in arguments], [tensor.nan_to_num(7) for tensor in before]
    )


@pytest.mark.parametrize(("name", "need_weights"), PATHS)
def test_a_batch_equals_its_items_and_steps_computed_separately(
    name: str, need_weights: bool
) -> None:
    attention, rows, mask = _attention(name), _rows(name), _float_mask(torch.float64)
    expected = attention(
        *rows, key_padding_mask=_padding(), attn_mask=mask, need_weights=need_weights
    )
    for item in range(B):
        index = slice(item, item + 1)
        item_inputs = [tensor[index] for tensor in (*rows, _padding(), mask)]
        assert_close(
            _call(attention, *item_inputs, need_weights=need_weights).context,
            expected.context[index],
            1e-13,
        )
    query, key, value = rows
    for step in range(L):
        index = slice(step, step + 1)
        actual = attention(
            query[:, index],
            key,
            value,
            key_padding_mask=_padding(),
            attn_mask=mask[:, index],
            need_weights=need_weights,
        )
        assert_close(actual.context, expected.context[:, index], 1e-13)


@pytest.mark.parametrize(("name", "need_weights"), PATHS)
def test_the_order_of_keys_has_no_effect(name: str, need_weights: bool) -> None:
    attention, rows, mask = _attention(name), _rows(name), _float_mask(torch.float64)
    order = torch.randperm(T)
    expected = attention(
        *rows, key_padding_mask=_padding(), attn_mask=mask, need_weights=need_weights
    )
    permuted = [
        rows[0],
        *(row[:, order] for row in rows[1:]),
        _padding()[:, order],
        mask[..., order],
    ]
    actual = _call(attention, *permuted, need_weights=need_weights)
    assert_close(actual.context, expected.context, 1e-13)
    if need_weights:
        assert_close(actual.weights, expected.weights[..., order], 1e-13)


@pytest.mark.parametrize(
    ("name", "need_weights", "normalizer", "where", "fill_value"),
    covering(
        (*path, *options)
        for path in NAN_SAFE_PATHS
        for options in itertools.product(
            NORMALIZERS, ("key", "value", "both"), (math.nan, math.inf)
        )
    ),
)
def test_a_nonfinite_key_reaches_only_queries_that_may_attend_to_it(
    name: str, need_weights: bool, normalizer: str, where: str, fill_value: float
) -> None:
    attention, rows = _attention(name, normalizer), _rows(name)
    masked = torch.zeros(L, T, dtype=torch.bool)
    masked[1:, 2] = True
    expected = attention(*rows, attn_mask=masked, need_weights=need_weights)
    expected_gradients = gradients(expected.context[:, 1:], [rows[0]])[0]
    for row, replaced in zip(rows[1:], (where != "value", where != "key"), strict=True):
        if replaced:
            row.data[0, 2] = fill_value
    for mask in (masked, torch.zeros(L, T).double().masked_fill(masked, -torch.inf)):
        actual = attention(*rows, attn_mask=mask, need_weights=need_weights)
        assert_close(actual.context[:, 1:], expected.context[:, 1:], 1e-13)
        assert_close(actual.context[1], expected.context[1], 1e-13)
        if where != "key" or math.isnan(fill_value):
            assert not actual.context[0, 0].isfinite().all()
        if need_weights:
            assert_close(actual.weights[:, 1:], expected.weights[:, 1:], 1e-13)
        (gradient,) = torch.autograd.grad(actual.context.sum(), rows[0], retain_graph=True)
        assert gradient[:, 1:].isfinite().all()
        (gradient,) = gradients(actual.context[:, 1:], [rows[0]])
        assert_close(gradient[:, 1:], expected_gradients[:, 1:], 1e-13)


@pytest.mark.parametrize(("name", "need_weights"), NAN_SAFE_PATHS)
def test_gradients_of_other_queries_do_not_see_a_nonfinite_key(
    name: str, need_weights: bool
) -> None:
    """A loss without the queries that attend to it has the gradients of a finite key."""
    attention, rows = _attention(name), _rows(name)
    masked = torch.zeros(L, T, dtype=torch.bool)
    masked[1:, 2] = True
    inputs = [*rows, *_parameters(attention)]

    def call() -> tuple[Tensor, ...]:
        context = attention(*rows, attn_mask=masked, need_weights=need_weights).context
        return gradients(context[:, 1:], inputs)

    expected = call()
    for row in rows[1:]:
        row.data[0, 2] = math.nan
    assert_all_close(call(), expected, 1e-13)


# Function transforms, export and compilation.


def _batches(name: str) -> list[Tensor]:
    """Return three batches of queries, keys, values, padding and bool or float masks."""
    rows = [torch.stack([row.detach(), -row.detach(), row.detach() + 1]) for row in _rows(name)]
    padding = torch.stack([_padding(), _padding().flip(0), torch.zeros(B, T).bool()])
    masked = torch.rand(3, L, T) < 0.3
    return [*rows, padding, masked]


@pytest.mark.parametrize(
    ("name", "need_weights", "normalizer", "kind"),
    covering((*path, kind) for path in NORMALIZED_PATHS for kind in ("bool", "float")),
)
def test_vmap_with_masks_equals_a_loop(
    name: str, need_weights: bool, normalizer: str, kind: str
) -> None:
    attention, batches = _attention(name, normalizer), _batches(name)
    if kind == "float":
        bias = torch.randn(3, L, T, dtype=torch.float64)
        batches[-1] = bias.masked_fill(batches[-1], -torch.inf)

    def call(*inputs: Tensor) -> Tensor:
        return _call(attention, *inputs, need_weights=need_weights).context

    actual = torch.vmap(call)(*batches)
    for number in range(3):
        assert_close(actual[number], call(*(batch[number] for batch in batches)), 1e-13)


# PyTorch's own import of its rules for forward mode
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
@pytest.mark.parametrize(("name", "need_weights", "normalizer"), covering(NORMALIZED_PATHS))
def test_forward_mode_equals_reverse_mode(name: str, need_weights: bool, normalizer: str) -> None:
    """<u, J t> = <J' u, t> for random u and t, with both kinds of mask."""
    attention, rows = _attention(name, normalizer), _rows(name)
    mask = _float_mask(torch.float64).detach()

    def call(*inputs: Tensor) -> Tensor:
        return _call(attention, *inputs, _padding(), mask, need_weights=need_weights).context

    tangents = tuple(torch.randn_like(row) for row in rows)
    primals = tuple(row.detach() for row in rows)
    context, tangent = torch.func.jvp(call, primals, tangents)
    assert_close(context, call(*rows), 1e-13)
    adjoint = gradients(call(*rows), rows)
    unit = torch.linspace(-1, 2, tangent.numel(), dtype=torch.float64).view_as(tangent).bfloat16()
    forward = (unit.double() * tangent).sum()
    reverse = sum((a * b).sum() for a, b in zip(adjoint, tangents, strict=True))
    assert_close(forward, reverse, 1e-12)


def _module(attention: Attention, need_weights: bool) -> nn.Module:
    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = attention

        def forward(self, *inputs: Tensor) -> list[Tensor]:
            output = _call(self.attention, *inputs, need_weights=need_weights)
            return [tensor for tensor in output if tensor is not None]

    return Module()


@pytest.mark.parametrize(
    ("name", "need_weights", "kind"),
    covering(((*path, kind) for path in PATHS for kind in ("bool", "float")), size=1),
)
def test_export_and_fullgraph_compilation_with_masks(
    name: str, need_weights: bool, kind: str, unchecked: None
) -> None:
    rows = [row.detach() for row in _rows(name, torch.float32)]
    mask = _float_mask(torch.float32).detach()
    inputs = (*rows, _padding(), mask if kind == "float" else mask == -torch.inf)
    module = _module(_attention(name, dtype=torch.float32), need_weights)
    expected = module(*inputs)
    assert len(expected) == 1 + need_weights
    exported = torch.export.export(module, inputs).module()
    torch.compiler.reset()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    nan_key = rows[1].clone()
    nan_key[0, 2] = math.nan
    changed = (rows[0], nan_key, *inputs[2:])
    for call in (exported, compiled):
        assert_all_close(call(*inputs), expected, 1e-6)
        for actual, reference in zip(call(*changed), module(*changed), strict=True):
            assert torch.equal(actual.isnan(), reference.isnan())  # in no branch of the first call


# Shapes, strides, dtypes.


@pytest.mark.parametrize(
    ("name", "need_weights", "normalizer", "empty"),
    covering((*path, axis) for path in NORMALIZED_PATHS for axis in "BLT"),
)
def test_empty_inputs(name: str, need_weights: bool, empty: str, normalizer: str) -> None:
    attention, rows = _attention(name, normalizer), _rows(name)
    batch, length, width = (0 if axis == empty else 2 for axis in "BLT")
    query, key, value = rows[0][:batch, :length], rows[1][:batch, :width], rows[2][:batch, :width]
    padding = torch.zeros(batch, width, dtype=torch.bool)
    for masks in (
        {},
        {"key_padding_mask": padding},
        {"attn_mask": torch.zeros(length, width).double()},
    ):
        context, weights = attention(query, key, value, **masks, need_weights=need_weights)
        assert context.shape == (batch, length, 2)
        assert not context.any()
        if weights is not None:
            assert weights.shape == (batch, length, width)
        for gradient in gradients(context, [*rows, *_parameters(attention)]):
            assert not gradient.any()


@pytest.mark.parametrize(("name", "need_weights"), PATHS)
def test_strides_have_no_effect(name: str, need_weights: bool) -> None:
    attention, (query, key, value) = _attention(name), [row.detach() for row in _rows(name)]
    strided = (
        query.transpose(0, 1).contiguous().transpose(0, 1),
        key[:1].expand(B, -1, -1),
        value.mT.contiguous().mT,
        torch.tensor([[True, False] * 3]).expand(B, -1),
        torch.randn(L, 1).double().expand(L, T),
    )
    contiguous = [tensor.contiguous() for tensor in strided]
    actual = _call(attention, *strided, need_weights=need_weights)
    expected = _call(attention, *contiguous, need_weights=need_weights)
    _assert_same(actual, expected)


@pytest.mark.parametrize(("name", "need_weights"), PATHS)
def test_autocast_gives_the_dtype_of_the_values(name: str, need_weights: bool) -> None:
    attention, rows = _attention(name, dtype=torch.float32), _rows(name, torch.float32)
    without_autocast = attention(*rows, key_padding_mask=_padding(), need_weights=need_weights)
    with torch.autocast("cpu", torch.bfloat16):
        actual = attention(*rows, key_padding_mask=_padding(), need_weights=need_weights)
        mixed = attention(rows[0].bfloat16(), *rows[1:], need_weights=need_weights)
        half = attention(*(row.bfloat16() for row in rows), need_weights=need_weights)
    assert actual.context.dtype == mixed.context.dtype == torch.float32
    assert half.context.dtype == torch.bfloat16
    _assert_same(actual, without_autocast, tolerance_for(torch.bfloat16, bfloat16=8))
    for gradient in gradients(actual.context, [*rows, *_parameters(attention)]):
        assert gradient.dtype == torch.float32
        assert gradient.isfinite().all()


def _invalid_arguments() -> dict[str, tuple[dict[str, Tensor], str]]:
    query, key = torch.randn(B, L, 5), torch.randn(B, T, 5)
    return {
        "query of two axes": ({"query": query[0]}, r"\(4, 5\).*\(2, 6, 5\)"),
        "key of two axes": ({"key": key[0]}, r"\(2, 4, 5\).*\(6, 5\)"),
        "batches": ({"key": key[:1]}, r"\(2, 4, 5\).*\(1, 6, 5\)"),
        "widths": ({"key": key[..., :3]}, r"\(2, 4, 5\).*\(2, 6, 3\)"),
        "value of two axes": ({"value": key[0]}, r"value \(6, 5\) and key \(2, 6, 5\)"),
        "values too few": ({"value": key[:, 1:]}, r"value \(2, 5, 5\) and key \(2, 6, 5\)"),
        "padding shape": (
            {"key_padding_mask": torch.zeros(B, L, dtype=torch.bool)},
            r"bool and shape \(B, T\) = \(2, 6\).*\(2, 4\)",
        ),
        "padding dtype": ({"key_padding_mask": torch.zeros(B, T)}, r"bool.*torch.float32 \(2, 6\)"),
        "lengths shape": (
            {"key_lengths": torch.tensor([1])},
            r"integer dtype and shape \(B,\) = \(2,\), got torch.int64 \(1,\)",
        ),
        "lengths float": ({"key_lengths": torch.ones(B)}, r"integer .* got torch.float32 \(2,\)"),
        "lengths bool": ({"key_lengths": torch.ones(B) > 0}, r"integer .* got torch.bool \(2,\)"),
        "lengths range": (
            {"key_lengths": torch.tensor([2, T + 1])},
            r"key_lengths must lie in \[0, T\] = \[0, 6\], got 7",
        ),
        "negative length": ({"key_lengths": torch.tensor([-1, 2])}, r"\[0, 6\], got -1"),
        "both": (
            {"key_padding_mask": torch.zeros(B, T) > 0, "key_lengths": torch.tensor([1, 2])},
            "pass only one of them",
        ),
        "mask shape": (
            {"attn_mask": torch.zeros(T, L)},
            r"\(L, T\) = \(4, 6\) or \(B, L, T\) = \(2, 4, 6\), got \(6, 4\)",
        ),
        "mask batch": ({"attn_mask": torch.zeros(1, L, T)}, r"\(2, 4, 6\), got \(1, 4, 6\)"),
        "mask dtype": ({"attn_mask": torch.ones(L, T).int()}, "bool .*or float, got torch.int32"),
        "dtypes": ({"query": query.double()}, "torch.float64, torch.float32 and torch.float32"),
        "integers": (
            {"query": query.long(), "key": key.long()},
            "floating-point dtype, got torch.int64, torch.int64 and torch.int64",
        ),
        "value dtype": ({"value": key.bfloat16()}, "torch.float32 and torch.bfloat16; convert"),
        "devices": ({"key": key.to("meta")}, "same device, got cpu and meta"),
        "value device": ({"value": key.to("meta")}, "device of key, cpu, got meta"),
    }


@pytest.mark.parametrize("case", _invalid_arguments())
def test_errors_name_the_mismatch(case: str, unchecked: None) -> None:
    invalid, message = _invalid_arguments()[case]
    valid = {"query": torch.randn(B, L, 5), "key": torch.randn(B, T, 5)}
    with pytest.raises(ShapeError, match=message):
        Attention(Dot())(**(valid | invalid))


@pytest.mark.parametrize("transform", ["vmap", "compile"])
def test_lengths_out_of_range_are_clamped_in_transforms(transform: str, unchecked: None) -> None:
    attention = Attention(Dot())
    query, key = torch.randn(B, L, 5), torch.randn(B, T, 5)

    def call(lengths: Tensor) -> Tensor:
        return attention(query, key, key_lengths=lengths).context

    expected = call(torch.tensor([0, T]))
    lengths = torch.tensor([-3, T + 3])
    if transform == "vmap":
        actual = torch.vmap(call)(lengths[None])[0]
    else:
        actual = torch.compile(call, backend="aot_eager", fullgraph=True)(lengths)
    assert_close(actual, expected, 1e-6)


@pytest.mark.parametrize("need_weights", [False, True])
def test_a_finite_bias_of_another_dtype_does_not_mask(need_weights: bool) -> None:
    attention, query, key = Attention(Dot()), torch.randn(B, L, 5), torch.randn(B, T, 5)
    for value in (torch.finfo(torch.float64).min, torch.finfo(torch.float64).max / 2):
        bias = torch.zeros(L, T).double()
        bias[0], bias[1, 2:] = value, value
        actual = attention(query, key, attn_mask=bias, need_weights=need_weights).context
        assert_close(actual[:, 0], key.mean(1), 1e-6)
        assert actual.isfinite().all()
        vector, expanded = torch.ones(5), bias.expand(B, L, T)
        blocks = additive.attend(query, key, vector, key, bias=expanded, workspace=1).context
        assert_close(blocks[:, 0], key.mean(1), 1e-6)
        assert blocks.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32, torch.uint64])
def test_lengths_of_any_integer_dtype(dtype: torch.dtype, unchecked: None) -> None:
    query, key, lengths = torch.randn(2, L, 5), torch.randn(2, T, 5), torch.tensor([1, 3])
    actual = Attention(Dot())(query, key, key_lengths=lengths.to(dtype)).context
    assert_close(actual, Attention(Dot())(query, key, key_lengths=lengths).context, 1e-6)


def test_results_are_saved_without_a_warning(tmp_path: Path) -> None:
    attention = Attention("additive", query_dim=5, key_dim=5, hidden_dim=3)
    output = attention(torch.randn(B, L, 5), torch.randn(B, T, 5), need_weights=True)
    torch.save(output.context, tmp_path / "context.pt")


@pytest.mark.parametrize("name", SCORES)
def test_rows_of_width_0_with_a_mask(name: str) -> None:
    query, key = torch.randn(B, L, 5), torch.randn(B, T, 5, requires_grad=True)
    attention = Attention(name, query_dim=5, key_dim=5, hidden_dim=3)
    value = torch.randn(B, T, 0)
    actual = attention(query, key, value, attn_mask=torch.zeros(L, T), need_weights=True)
    assert actual.context.shape == (B, L, 0)
    assert_close(actual.weights.sum(-1), torch.ones(B, L), 1e-6)


# Settings.


def test_an_unknown_normaliser_lists_the_names() -> None:
    with pytest.raises(
        ConfigError, match=r"one of softmax, sparsemax, entmax15, none, got 'softmin'; did you"
    ):
        Attention(Dot(), "softmin")


@pytest.mark.parametrize("dropout", [-0.1, 1.0, 1.5, math.nan])
def test_dropout_lies_between_0_and_1(dropout: float) -> None:
    with pytest.raises(ConfigError, match=rf"\[0, 1\), got {dropout}"):
        Attention(Dot(), dropout=dropout)


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("score", ["dot", "additive", "custom"])
def test_dropout_in_training_only(score: str, need_weights: bool) -> None:
    module = (
        Distance() if score == "custom" else make_score(score, query_dim=5, key_dim=5, hidden_dim=7)
    )
    attention = Attention(module, dropout=0.25)
    # equal keys: every weight is 1 / T, and the context is the dropped-out weights
    query, key = torch.randn(4, 50, 5), torch.ones(4, 20, 5)
    values = torch.eye(20).expand(4, -1, -1)
    uniform = torch.full((4, 50, 20), 1 / 20)
    actual = attention.eval()(query, key, values, need_weights=need_weights)
    assert_close(actual.context, uniform, 1e-6)
    actual = attention.train()(query, key, values, need_weights=need_weights)
    dropped = actual.context == 0
    assert 0.22 < dropped.float().mean() < 0.28
    assert_close(
        actual.context[~dropped], torch.full((int((~dropped).sum()),), 1 / 20 / 0.75), 1e-6
    )
    assert 0.95 < actual.context.sum(-1).mean() < 1.05
    if actual.weights is not None:
        assert_close(actual.weights, uniform, 1e-6)
    second = attention(query, key, values, need_weights=need_weights)
    assert not torch.equal(actual.context, second.context)


def test_public_names() -> None:
    assert regard.Attention is Attention
    assert AttentionOutput._fields == ("context", "weights")


def test_annotated_shapes_are_checked_under_pytest() -> None:
    """Keys and values of different lengths are invalid for `attend`; only pytest checks it."""
    with pytest.raises(TypeError, match="attend"):
        Attention(Dot()).attend(torch.randn(2, 3, 4), torch.randn(2, 5, 4), torch.randn(2, 6, 4))


@pytest.mark.parametrize("score", ["additive", "dot"])
def test_dropout_compiles_and_exports_in_training(score: str, unchecked: None) -> None:
    layer = Attention(score, query_dim=4, dropout=0.5).train()
    query, key = torch.randn(2, 3, 4), torch.randn(2, 5, 4)
    compiled = torch.compile(
        lambda: layer(query, key, need_weights=True), fullgraph=True, backend="eager"
    )
    context, weights = compiled()
    assert_close(weights.sum(-1), torch.ones(2, 3), 1e-6)
    assert not torch.equal(context, weights @ key)
    module = torch.export.export(layer, (query, key), {"need_weights": True}).module()
    assert module(query, key, need_weights=True)[1].shape == (2, 3, 5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_scores_beyond_half_precision(dtype: torch.dtype) -> None:
    attention = Attention("dot")
    rows = 30 * torch.eye(4, 256).roll(1, 0)[None] + 20
    expected = attention(rows.double(), rows.double(), need_weights=True)
    actual = attention(rows.to(dtype), rows.to(dtype), need_weights=True)
    assert actual.context.dtype == dtype
    _assert_same(AttentionOutput(*(x.double() for x in actual if x is not None)), expected, 1e-2)
    with torch.autocast("cpu", dtype):
        assert_close(attention(rows, rows, need_weights=True).context, expected.context, 1e-5)


@pytest.mark.parametrize("score", ["dot", "additive"])
def test_autocast_to_the_other_half_precision(score: str) -> None:
    layer = regard.MultiHeadAttention(8, 2, score)
    rows, mask = torch.randn(2, 3, 8).half(), torch.zeros(3, 3)
    expected = layer(rows.float(), rows.float(), attn_mask=mask)
    with torch.autocast("cpu", torch.bfloat16):
        actual = layer(rows, rows, attn_mask=mask, need_weights=True)
    assert_close(
        actual.context.float(), expected.context, tolerance_for(torch.bfloat16, bfloat16=8)
    )


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("score", ["dot", "additive", "bilinear"])
def test_autocast_does_not_mix_float64(score: str, need_weights: bool) -> None:
    layer = Attention(score, query_dim=4)
    rows = torch.randn(2, 3, 4)
    with (
        torch.autocast("cpu", torch.bfloat16),
        pytest.raises(ShapeError, match=r"same dtype, got torch\.float32, torch\.float64"),
    ):
        layer(rows, rows.double(), need_weights=need_weights)


@pytest.mark.parametrize("layer", [
    Attention("additive", query_dim=4), Attention("bilinear", query_dim=4), SelfAttention(4, 2),
    make_score("additive", query_dim=4, key_dim=4),
])  # fmt: skip
def test_autocast_converts_neither_parameters_nor_inputs_of_float64(layer: nn.Module) -> None:
    rows = torch.randn(2, 3, 4)
    double = copy.deepcopy(layer).double()
    arguments = 1 if isinstance(layer, SelfAttention) else 2
    with torch.autocast("cpu", torch.bfloat16):
        for module, given in ((layer, rows.double()), (double, rows)):
            with pytest.raises(ShapeError, match=r"torch\.float(64|32).*: convert"):
                module(*[given] * arguments)
        double(*[rows.double()] * arguments)


def test_the_default_device_has_no_effect() -> None:
    layer = Attention("additive", query_dim=4, dropout=0.5).train()
    rows = torch.randn(1, 1200, 4)  # computed in blocks
    with torch.device("meta"):
        assert layer(rows, rows).context.isfinite().all()


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("score", ["dot", "additive"])
def test_dropout_under_vmap(score: str, need_weights: bool) -> None:
    layer = Attention(score, query_dim=4, dropout=0.5).train()
    rows = torch.randn(2, 3, 4).expand(3, 2, 3, 4)

    def call(query: Tensor) -> Tensor:
        return layer(query, query, need_weights=need_weights).context

    different = torch.vmap(call, randomness="different")(rows)
    assert not torch.equal(different[0], different[1])
    same = torch.vmap(call, randomness="same")(rows)
    assert torch.equal(same[0], same[1])


# PyTorch's own import of its rules for forward mode
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_forward_mode_with_dropout_in_blocks() -> None:
    layer = Attention("additive", query_dim=2, hidden_dim=2, dropout=0.3).double().train()
    rows, direction = torch.randn(2, 1, 700, 2, dtype=torch.float64)

    def call(query: Tensor) -> Tensor:
        torch.manual_seed(0)
        return layer(query, rows).context

    context, tangent = torch.func.jvp(call, (rows,), (direction,))
    assert_close(context, call(rows), 1e-13)
    step = 1e-5
    expected = (call(rows + step * direction) - call(rows - step * direction)) / (2 * step)
    assert_close(tangent, expected, 1e-8)


def test_gradients_of_single_items_with_dropout() -> None:
    layer = Attention("additive", query_dim=4, dropout=0.1).train()
    rows = torch.randn(2, 900, 4)  # computed in blocks

    def total(query: Tensor) -> Tensor:
        return layer(query[None], query[None]).context.sum()

    torch.manual_seed(0)
    together = torch.vmap(torch.func.grad(total), randomness="different")(rows)
    torch.manual_seed(0)
    single = torch.stack([torch.func.grad(total)(row) for row in rows])
    assert_close(together, single, 1e-5)


def test_second_derivatives_with_a_mask_of_another_dtype() -> None:
    layer = Attention("additive", query_dim=4)
    query, key = torch.randn(1, 2100, 4, requires_grad=True), torch.randn(1, 512, 4)
    mask = torch.randn(2100, 512, dtype=torch.float64)  # computed in blocks

    def gradient(query: Tensor, mask: Tensor) -> Tensor:
        total = layer(query, key, attn_mask=mask).context.square().sum()
        return torch.autograd.grad(total, query, create_graph=True)[0]

    actual, expected = gradient(query, mask), gradient(query, mask.float())
    assert_close(actual, expected, 1e-5)
    assert_all_close(
        torch.autograd.grad(actual.sum(), query), torch.autograd.grad(expected.sum(), query), 1e-5
    )


@pytest.mark.parametrize("score", [*SCORES])
def test_layers_on_meta_tensors_and_fake_tensors(score: str, unchecked: None) -> None:
    def check_shapes() -> None:
        x = torch.randn(2, 5, 8, requires_grad=True)
        padding = torch.zeros(2, 5, dtype=torch.bool)
        for layer in (Attention(score, query_dim=8), regard.SelfAttention(8, 2, score=score)):
            rows = (x,) if isinstance(layer, regard.SelfAttention) else (x, x)
            for need_weights in (False, True):
                output = layer(*rows, key_padding_mask=padding, need_weights=need_weights)
                assert output.context.shape == (2, 5, 8)
                output.context.sum().backward()

    with torch.device("meta"):
        check_shapes()
    with FakeTensorMode():
        check_shapes()


class Returning(nn.Module):
    """A custom score that returns what a function makes of the inner products."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self.change = change

    def forward(self, query: Tensor, key: Tensor) -> Any:
        return self.change(query @ key.mT)


@pytest.mark.parametrize(
    ("change", "given"),
    [
        (lambda scores: scores.mT, r"\(2, 6, 4\)"),
        (lambda scores: scores[0], r"\(4, 6\)"),
        (lambda scores: scores[..., :1], r"\(2, 4, 1\)"),
        (lambda scores: (scores,), "tuple"),
    ],
)
def test_a_custom_score_of_another_shape_is_named(change: Any, given: str, unchecked: None) -> None:
    with pytest.raises(
        ShapeError, match=rf"the score function Returning must .* = \(2, 4, 6\), got {given}"
    ):
        Attention(Returning(change))(torch.randn(B, L, 5), torch.randn(B, T, 5))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")
@pytest.mark.parametrize("nested", ["query", "key", "value"])
def test_nested_tensors_are_refused(nested: str, unchecked: None) -> None:
    rows = {
        "query": torch.randn(2, 3, 5),
        "key": torch.randn(2, 3, 5),
        "value": torch.randn(2, 3, 5),
    }
    rows[nested] = torch.nested.nested_tensor([torch.randn(3, 5), torch.randn(2, 5)])
    with pytest.raises(ShapeError, match="not accept nested tensors: pass padded tensors and"):
        Attention("dot")(**rows)


def test_errors_without_a_batch_name_the_shapes_that_were_given(unchecked: None) -> None:
    with pytest.raises(ShapeError, match=r"query \(3, 4\) and key \(6, 5\) have no batch axis"):
        Attention("dot")(torch.randn(3, 4), torch.randn(6, 5))


@pytest.mark.parametrize("name", ["key_padding_mask", "attn_mask", "key_lengths"])
def test_masks_are_tensors(name: str, unchecked: None) -> None:
    rows = torch.randn(1, 2, 5), torch.randn(1, 3, 5)
    with pytest.raises(ShapeError, match=f"expected {name} to be a tensor, got list"):
        Attention("dot")(*rows, **{name: [[False] * 3]})
    elsewhere = torch.zeros(1, 3, device="meta")
    with pytest.raises(ShapeError, match=f"{name} on the device of key, cpu, got meta"):
        Attention("dot")(*rows, **{name: elsewhere})


@pytest.mark.parametrize(
    "make", [lambda: Attention("dot"), lambda: regard.MultiHeadAttention(5, 1)]
)
def test_inputs_are_tensors(make: Callable[[], Any], unchecked: None) -> None:
    rows = torch.randn(1, 2, 5)
    for inputs in ((rows.numpy(), rows), (rows, [1]), (rows, rows, rows.numpy()), (None, rows)):
        with pytest.raises(ShapeError, match="expected query, key and value to be tensors, got"):
            make()(*inputs)
    with pytest.raises(ShapeError, match="got NoneType, NoneType, NoneType"):
        regard.SelfAttention(4, causal=True)(None)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    "make", [lambda: Attention("additive", query_dim=5), lambda: regard.MultiHeadAttention(5, 1)]
)
def test_parameters_have_the_dtype_of_the_input(make: Callable[[], Any]) -> None:
    layer, rows = make(), torch.randn(1, 2, 5)
    with pytest.raises(ShapeError, match=r"dtype torch.float32, and query torch.float64: convert"):
        layer(rows.double(), rows.double())
    assert layer.double()(rows.double(), rows.double()).context.dtype == torch.float64
    with torch.autocast("cpu", torch.bfloat16):
        assert layer.float()(rows, rows).context.isfinite().all()
    cosine = Attention("cosine", query_dim=5)  # its temperature is a number
    assert cosine(rows.double(), rows.double()).context.dtype == torch.float64


@pytest.mark.parametrize("score", [0.1, None, 3, Dot])
def test_a_score_is_a_name_or_a_module(score: Any, unchecked: None) -> None:
    for make in (lambda: regard.MultiHeadAttention(8, 2, score), lambda: Attention(score)):
        with pytest.raises(
            ConfigError, match=r"name of a score or a torch\.nn\.Module, got .*precedes dropout"
        ):
            make()


def test_a_position_encoding_is_a_module(unchecked: None) -> None:
    with pytest.raises(ConfigError, match=r"RotaryPositions\(\), got 'rotary'"):
        regard.MultiHeadAttention(8, 2, position_encoding="rotary")  # pyright: ignore[reportArgumentType]
