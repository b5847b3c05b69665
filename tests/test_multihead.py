"""Multi-head attention compared with PyTorch's layer, and with the reference head by head."""

import dataclasses
import itertools
import math
from typing import get_args

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import regard
from oracle import (
    assert_all_close,
    assert_all_equal,
    assert_close,
    gradients,
    reference_attention,
    tolerance_for,
)
from regard.attention import NORMALIZERS, Attention, MultiHeadAttention, SelfAttention
from regard.config import ModelConfig
from regard.encoders import TransformerEncoder
from regard.errors import ConfigError, ShapeError
from regard.kernels import reference
from regard.layers import TransformerConfig
from regard.positions import EMBEDDING_POSITIONS, HEAD_POSITIONS, HeadPositions, RotaryPositions
from regard.score_registry import SCORES
from regard.scores import Dot
from selection import covering

B, L, T, D, H = 2, 4, 6, 12, 3
PAIRWISE = ("additive", "concat")
PATHS = [(name, need_weights) for name in SCORES for need_weights in (False, True)]
NAN_SAFE_PATHS = [
    (name, need_weights) for name, need_weights in PATHS if need_weights or name in PAIRWISE
]


def _rows(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    shapes = (B, L, D), (B, T, D), (B, T, D)
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def _attention(
    name: str = "scaled_dot", dtype: torch.dtype = torch.float64, **options: object
) -> MultiHeadAttention:
    torch.manual_seed(5)
    heads = MultiHeadAttention(D, H, name, **options).to(dtype)
    for parameter in heads.parameters():  # biases included, which are initialised to 0
        nn.init.normal_(parameter, std=0.4)
    return heads


def _torch_attention(attention: MultiHeadAttention) -> nn.MultiheadAttention:
    """Return PyTorch's layer with the same parameters."""
    torch_attention = nn.MultiheadAttention(D, H, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        projections = attention.query_proj, attention.key_proj, attention.value_proj
        torch_attention.in_proj_weight.copy_(
            torch.cat([projection.weight for projection in projections])
        )
        torch_attention.in_proj_bias.copy_(
            torch.cat([projection.bias for projection in projections])
        )
        torch_attention.out_proj.weight.copy_(attention.out_proj.weight)
        torch_attention.out_proj.bias.copy_(attention.out_proj.bias)
    return torch_attention


def _padding() -> Tensor:
    return torch.tensor([[False] * 5 + [True], [False] * 3 + [True] * 3])


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("mask", ["none", "padding", "bool", "float", "both"])
def test_scaled_dot_equals_pytorchs_layer(mask: str, need_weights: bool) -> None:
    attention, rows = _attention(), _rows()
    torch_attention = _torch_attention(attention)
    padding = _padding() if mask in ("padding", "both") else None
    masked_pairs = torch.rand(L, T) < 0.3
    masked_pairs[:, 0] = False
    attn_mask = {
        "bool": masked_pairs,
        "both": masked_pairs,
        "float": torch.randn(L, T).double(),
    }.get(mask)
    actual = attention(
        *rows, key_padding_mask=padding, attn_mask=attn_mask, need_weights=need_weights
    )
    if padding is not None and attn_mask is not None and attn_mask.dtype != torch.bool:
        padding = torch.zeros(B, T).double().masked_fill(padding, -torch.inf)
    expected, weights = torch_attention(
        *rows, key_padding_mask=padding, attn_mask=attn_mask, average_attn_weights=False
    )
    assert_close(actual.context, expected, 1e-13)
    if need_weights:
        assert_close(actual.weights, weights, 1e-13)
    assert_all_close(gradients(actual.context, rows), gradients(expected, rows), 1e-13)


def test_scaled_dot_equals_pytorchs_operator() -> None:
    attention, (query, key, value) = _attention(), _rows()
    split = [
        projection(rows).view(B, -1, H, D // H).transpose(1, 2)
        for projection, rows in (
            (attention.query_proj, query),
            (attention.key_proj, key),
            (attention.value_proj, value),
        )
    ]
    expected = functional.scaled_dot_product_attention(*split).transpose(1, 2).flatten(2)
    assert_close(attention(query, key, value).context, attention.out_proj(expected), 1e-13)


def test_a_fully_padded_source_gives_the_bias_where_pytorchs_layer_gives_nan() -> None:
    attention, rows = _attention(), _rows()
    padding = torch.tensor([[False] * T, [True] * T])
    expected, _ = _torch_attention(attention)(*rows, key_padding_mask=padding)
    assert expected[1].isnan().all()
    for need_weights in (False, True):
        actual = attention(*rows, key_padding_mask=padding, need_weights=need_weights)
        assert_close(actual.context[0], expected[0], 1e-13)
        assert_close(actual.context[1], attention.out_proj.bias.expand(L, D), 1e-13)
        if need_weights:
            assert (actual.weights[1] == 0).all()
        for gradient in gradients(actual.context, [*rows, *attention.parameters()]):
            assert gradient.isfinite().all()


def _head_by_head(
    attention: MultiHeadAttention, name: str, rows: list[Tensor], masked: Tensor
) -> Tensor:
    """Return the context of the reference, computed head by head."""
    query, key, value = rows
    width, contexts = D // H, []
    for head in range(H):
        part = slice(head * width, (head + 1) * width)
        a, b, c = (
            projection(rows)[..., part]
            for projection, rows in (
                (attention.query_proj, query),
                (attention.key_proj, key),
                (attention.value_proj, value),
            )
        )
        score = attention.attention.score
        if name in PAIRWISE:
            scores = reference.additive_scores(a, b, score.vector[head])
        else:
            scores = score(a, b)
        contexts.append(
            reference_attention(scores, c, masked, None, attention.attention.normalizer).context
        )
    return attention.out_proj(torch.cat(contexts, -1))


@pytest.mark.parametrize(
    ("name", "need_weights", "normalizer"),
    covering(itertools.product(SCORES, (False, True), NORMALIZERS)),
)
def test_every_score_equals_the_reference_head_by_head(
    name: str, need_weights: bool, normalizer: str
) -> None:
    attention, rows = _attention(name, normalizer=normalizer), _rows()
    masked_pairs = torch.rand(L, T) < 0.3
    masked_pairs[2] = True
    masked = masked_pairs[None] | _padding()[:, None]
    inputs = [
        *rows,
        *(parameter for parameter in attention.parameters() if parameter.requires_grad),
    ]
    actual = attention(
        *rows, key_padding_mask=_padding(), attn_mask=masked_pairs, need_weights=need_weights
    ).context
    expected = _head_by_head(attention, name, rows, masked)
    assert_close(actual, expected, 1e-13)
    assert_all_close(gradients(actual, inputs), gradients(expected, inputs), 1e-12)


@pytest.mark.parametrize(
    ("name", "need_weights", "dtype"),
    covering(itertools.product(SCORES, (False, True), (torch.float32, torch.bfloat16))),
)
def test_lower_precisions(name: str, need_weights: bool, dtype: torch.dtype) -> None:
    attention, rows = _attention(name, dtype), _rows(dtype)
    actual = attention(*rows, key_padding_mask=_padding(), need_weights=need_weights).context
    attention_float64, rows_float64 = (
        _attention(name),
        [tensor.detach().double() for tensor in rows],
    )
    attention_float64.load_state_dict(
        {key: tensor.double() for key, tensor in attention.state_dict().items()}
    )
    expected = attention_float64(*rows_float64, key_padding_mask=_padding()).context
    assert actual.dtype == dtype
    assert_close(actual, expected, tolerance_for(dtype, float32=64, bfloat16=16))


@pytest.mark.parametrize(("name", "need_weights"), PATHS)
def test_masks_per_head(name: str, need_weights: bool) -> None:
    attention, rows = _attention(name), _rows()
    masked_pairs = torch.rand(B, H, L, T) < 0.4
    actual = attention(*rows, attn_mask=masked_pairs, need_weights=True)
    assert (actual.weights[masked_pairs] == 0).all()
    assert_close(
        attention(*rows, attn_mask=masked_pairs, need_weights=need_weights).context,
        actual.context,
        1e-13,
    )
    bias = torch.zeros(B, H, L, T).double().masked_fill(masked_pairs, -torch.inf)
    assert_close(
        attention(*rows, attn_mask=bias, need_weights=need_weights).context, actual.context, 1e-13
    )


@pytest.mark.parametrize(
    ("name", "need_weights", "fill_value"),
    covering(itertools.product(SCORES, (False, True), (math.nan, math.inf, 1e30))),
)
def test_the_content_of_padding_has_no_effect(
    name: str, need_weights: bool, fill_value: float
) -> None:
    attention, rows = _attention(name), _rows()
    parameters = [parameter for parameter in attention.parameters() if parameter.requires_grad]
    expected = attention(*rows, key_padding_mask=_padding(), need_weights=need_weights)
    with torch.no_grad():
        for tensor in rows[1:]:
            tensor[_padding()] = fill_value
    actual = attention(*rows, key_padding_mask=_padding(), need_weights=need_weights)
    assert_close(actual.context, expected.context, 1e-13)
    if need_weights:
        assert_close(actual.weights, expected.weights, 1e-13)
    for gradient in gradients(actual.context, [*rows, *parameters]):
        assert gradient.isfinite().all()


@pytest.mark.parametrize(("name", "need_weights"), PATHS)
def test_masking_a_key_equals_deleting_it(name: str, need_weights: bool) -> None:
    attention, (query, key, value) = _attention(name), _rows()
    deleted = torch.zeros(B, T, dtype=torch.bool)
    deleted[:, 2] = True
    remaining = [0, 1, 3, 4, 5]
    expected = attention(query, key[:, remaining], value[:, remaining], need_weights=need_weights)
    actual = attention(query, key, value, key_padding_mask=deleted, need_weights=need_weights)
    assert_close(actual.context, expected.context, 1e-13)


@pytest.mark.parametrize(("name", "need_weights"), NAN_SAFE_PATHS)
def test_a_nonfinite_key_reaches_only_queries_that_may_attend_to_it(
    name: str, need_weights: bool
) -> None:
    attention, rows = _attention(name), _rows()
    masked_pairs = torch.zeros(L, T, dtype=torch.bool)
    masked_pairs[:2, 3] = True
    expected = attention(*rows, attn_mask=masked_pairs, need_weights=need_weights).context
    with torch.no_grad():
        rows[1][0, 3] = math.nan
    actual = attention(*rows, attn_mask=masked_pairs, need_weights=need_weights).context
    assert_close(actual[0, :2], expected[0, :2], 1e-13)
    assert_close(actual[1], expected[1], 1e-13)
    assert actual[0, 2:].isnan().all()
    assert gradients(actual[:, :2], rows[:1])[0][:, :2].isfinite().all()


@pytest.mark.parametrize("name", ["scaled_dot", "additive"])
def test_a_batch_equals_its_items(name: str) -> None:
    attention, (query, key, value) = _attention(name), _rows()
    full = attention(query, key, value, key_lengths=torch.tensor([5, 3]))
    for item, length in enumerate((5, 3)):
        index = slice(item, item + 1)
        single = attention(query[index], key[index, :length], value[index, :length])
        assert_close(single.context, full.context[index], 1e-13)


@pytest.mark.parametrize(("name", "need_weights"), PATHS)
def test_causal_self_attention_ignores_later_positions(name: str, need_weights: bool) -> None:
    attention = SelfAttention(D, H, causal=True, score=name).double()
    x = torch.randn(B, L, D, dtype=torch.float64)
    full = attention(x, need_weights=True)
    assert (full.weights.triu(1) == 0).all()
    for length in range(1, L + 1):
        part = attention(x[:, :length], need_weights=need_weights)
        assert_close(part.context, full.context[:, :length], 1e-13)
    for mask in (torch.zeros(L, L, dtype=torch.bool), torch.zeros(L, L, dtype=torch.float64)):
        assert_close(attention(x, attn_mask=mask).context, full.context, 1e-13)


def test_self_attention_equals_attention_of_a_sequence_to_itself() -> None:
    attention = SelfAttention(D, H).double()
    x = torch.randn(B, L, D, dtype=torch.float64)
    actual = attention(x, key_lengths=torch.tensor([4, 2]), need_weights=True)
    expected = attention.attention(x, x, x, key_lengths=torch.tensor([4, 2]), need_weights=True)
    assert_close(actual.context, expected.context, 1e-13)
    assert actual.weights.shape == (B, H, L, L)
    assert SelfAttention(D)(x.float(), need_weights=True).weights.shape == (B, 1, L, L)


def test_a_custom_score_is_shared_by_the_heads() -> None:
    class Distance(nn.Module):
        def forward(self, query: Tensor, key: Tensor) -> Tensor:
            return -torch.cdist(query, key)

    attention, rows = _attention(Distance()), _rows()
    assert_close(
        attention(*rows).context,
        _head_by_head(attention, "custom", rows, torch.zeros(B, L, T).bool()),
        1e-13,
    )
    dot = _attention(Dot())
    assert_close(dot(*rows).context, _attention("dot")(*rows).context, 1e-13)
    shared = regard.Additive(D // H, D // H, 5)
    actual = _attention(shared)(*rows).context
    assert_close(
        actual,
        _head_by_head(_attention(shared), "custom", rows, torch.zeros(B, L, T).bool()),
        1e-12,
    )


def test_rotary_scores_depend_only_on_the_distance() -> None:
    rotary = RotaryPositions()
    query, key = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64).unbind()
    scores = {
        (i, j): float(rotary(query, i).flatten() @ rotary(key, j).flatten())
        for i in range(5)
        for j in range(5)
    }
    for (i, j), score in scores.items():
        assert score == pytest.approx(scores[max(0, i - j), max(0, j - i)], abs=1e-12)
    assert scores[0, 0] == pytest.approx(float(query.flatten() @ key.flatten()), abs=1e-12)
    assert abs(scores[0, 3] - scores[0, 0]) > 1e-3
    full = rotary(query.expand(1, 1, 4, 8))
    assert_close(full[:, :, 2:3], rotary(query, 2), 1e-13)


def test_settings_name_every_positional_encoding() -> None:
    (field,) = (field for field in dataclasses.fields(ModelConfig) if field.name == "positions")
    assert set(get_args(field.type)) == {*EMBEDDING_POSITIONS, *HEAD_POSITIONS}


def test_a_new_positional_encoding_needs_only_a_table_entry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Ramp(HeadPositions):
        """Add the position times a direction."""

        def forward(self, rows: Tensor, first: int = 0) -> Tensor:
            positions = torch.arange(first, first + rows.shape[-2])
            return rows + positions[:, None] * torch.linspace(-1, 1, rows.shape[-1])

    monkeypatch.setitem(EMBEDDING_POSITIONS, "ramp", lambda dim: Ramp())
    monkeypatch.setitem(HEAD_POSITIONS, "head_ramp", Ramp)
    source, lengths = torch.tensor([[4, 5, 6], [6, 5, 4]]), torch.tensor([3, 3])
    for positions in ("ramp", "head_ramp"):
        config = TransformerConfig(
            dim=8, layers=1, num_heads=2, feed_forward_dim=8, positions=positions
        )
        encoder = TransformerEncoder(config, 7)
        states = encoder(source, lengths).states
        difference = states[0] - states[1].flip(0)  # 0 without positions
        assert difference.abs().max() > 1e-3


def test_keys_of_another_width() -> None:
    attention = MultiHeadAttention(D, H, kdim=5, vdim=5)
    actual = attention(torch.randn(B, L, D), torch.randn(B, T, 5), need_weights=True)
    assert actual.context.shape == (B, L, D)
    assert actual.weights.shape == (B, H, L, T)


def test_dropout_in_training_only() -> None:
    attention, rows = _attention(dropout=0.5), _rows()
    attention.eval()
    assert_close(attention(*rows).context, attention(*rows).context, 0)
    attention.train()
    assert (attention(*rows).context - attention(*rows).context).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MultiHeadAttention(10, 3), "multiple of num_heads, got 10 and 3"),
        (
            lambda: MultiHeadAttention(12, 0),
            "num_heads must be a whole number of at least 1, got 0",
        ),
        (lambda: MultiHeadAttention(12, 3, "sum"), "score takes one of .*, got 'sum'"),
        (
            lambda: MultiHeadAttention(12, 3, "bahdanau", position_encoding=RotaryPositions()),
            "inner product, which additive",
        ),
        (
            lambda: MultiHeadAttention(9, 3, position_encoding=RotaryPositions()),
            "even width, got 3",
        ),
        (lambda: MultiHeadAttention(0, 1), "embed_dim must be a whole number of at least 1, got 0"),
        (lambda: MultiHeadAttention(8, 2, kdim=-1), "kdim must be .*, got -1"),
        (
            lambda: MultiHeadAttention(
                8, 2, regard.Additive(4, 4, 3), position_encoding=RotaryPositions()
            ),
            "inner product, which Additive",
        ),
    ],
)
def test_invalid_arguments_raise_config_errors(make: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_errors_name_the_shapes(unchecked: None) -> None:
    attention = MultiHeadAttention(D, H)
    with pytest.raises(ShapeError, match=r"queries of width 12 .* got query \(2, 4, 5\)"):
        attention(torch.randn(2, 4, 5), torch.randn(2, 6, 12))
    with pytest.raises(ShapeError, match="expects queries of width 8"):
        MultiHeadAttention(8, 2, regard.Additive(8, 8, 5))
    with pytest.raises(ShapeError, match="expected attn_mask"):
        SelfAttention(8, causal=True)(torch.randn(2, 4, 8), attn_mask=torch.zeros(1, 4).bool())
    with pytest.raises(ShapeError, match="of dtype bool"):
        SelfAttention(8, causal=True)(torch.randn(2, 4, 8), attn_mask=torch.zeros(4, 4).long())
    with pytest.raises(ShapeError, match=r"\(B, H, L, T\) = \(2, 3, 4, 6\), got \(2, 2, 4, 6\)"):
        attention(*_rows(torch.float32), attn_mask=torch.zeros(2, 2, 4, 6, dtype=torch.bool))


def test_one_head_equals_attention_on_projected_inputs() -> None:
    attention = MultiHeadAttention(D, 1, "dot").double()
    query, key, value = _rows()
    single = Attention(Dot())(
        attention.query_proj(query),
        attention.key_proj(key),
        attention.value_proj(value),
        need_weights=True,
    )
    actual = attention(query, key, value, need_weights=True)
    assert_close(actual.context, attention.out_proj(single.context), 1e-13)
    assert_close(actual.weights[:, 0], single.weights, 1e-13)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("name", "need_weights"), PATHS)
def test_padding_has_no_effect_on_self_attention(
    name: str, need_weights: bool, causal: bool
) -> None:
    layer = SelfAttention(8, 2, causal, name)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])

    def gradients_with(fill_value: float, unbatched: bool = False) -> list[Tensor]:
        x = torch.linspace(-1, 1, 80).view(2, 5, 8).masked_fill(padding[..., None], fill_value)
        x, mask = (x[1], padding[1]) if unbatched else (x, padding)
        context = layer(x, key_padding_mask=mask, need_weights=need_weights).context
        loss = context[~mask].square().sum()
        parameters = [p for p in layer.parameters() if p.requires_grad]
        return [context, *torch.autograd.grad(loss, parameters)]

    for unbatched in (False, True):
        expected = gradients_with(0.5, unbatched)
        assert all(tensor.isfinite().all() for tensor in expected)
        assert_all_equal(gradients_with(torch.nan, unbatched), expected)
