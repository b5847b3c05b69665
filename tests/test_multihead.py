"""Multi-head attention against PyTorch's layer, and against the reference head by head."""

import dataclasses
import math
from typing import get_args

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import regard
from oracle import assert_all_close, assert_close, gradients, reference_attention, tolerance_for
from regard.attention import NORMALIZERS, Attention, MultiHeadAttention, SelfAttention
from regard.config import ModelConfig
from regard.encoders import TransformerEncoder
from regard.errors import ConfigError, ShapeError
from regard.kernels import reference
from regard.layers import TransformerConfig
from regard.positions import EMBEDDING_POSITIONS, HEAD_POSITIONS, HeadPositions, RotaryPositions
from regard.score_registry import SCORES
from regard.scores import Dot

B, L, T, D, H = 2, 4, 6, 12, 3
PAIRWISE = ("additive", "concat")
PATHS = [(name, need) for name in SCORES for need in (False, True)]
GUARDED = [(name, need) for name, need in PATHS if need or name in PAIRWISE]


def _rows(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    shapes = (B, L, D), (B, T, D), (B, T, D)
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def _ours(
    name: str = "scaled_dot", dtype: torch.dtype = torch.float64, **options: object
) -> MultiHeadAttention:
    torch.manual_seed(5)
    heads = MultiHeadAttention(D, H, name, **options).to(dtype)
    for parameter in heads.parameters():  # biases too
        nn.init.normal_(parameter, std=0.4)
    return heads


def _torchs(ours: MultiHeadAttention) -> nn.MultiheadAttention:
    """PyTorch's layer with the same parameters."""
    theirs = nn.MultiheadAttention(D, H, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        projections = ours.query_proj, ours.key_proj, ours.value_proj
        theirs.in_proj_weight.copy_(torch.cat([each.weight for each in projections]))
        theirs.in_proj_bias.copy_(torch.cat([each.bias for each in projections]))
        theirs.out_proj.weight.copy_(ours.out_proj.weight)
        theirs.out_proj.bias.copy_(ours.out_proj.bias)
    return theirs


def _padding() -> Tensor:
    return torch.tensor([[False] * 5 + [True], [False] * 3 + [True] * 3])


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("mask", ["none", "padding", "bool", "float", "both"])
def test_scaled_dot_equals_pytorchs_layer(mask: str, need_weights: bool) -> None:
    ours, rows = _ours(), _rows()
    theirs = _torchs(ours)
    padding = _padding() if mask in ("padding", "both") else None
    masked_pairs = torch.rand(L, T) < 0.3
    masked_pairs[:, 0] = False
    given = {"bool": masked_pairs, "both": masked_pairs, "float": torch.randn(L, T).double()}.get(
        mask
    )
    found = ours(*rows, key_padding_mask=padding, attn_mask=given, need_weights=need_weights)
    if padding is not None and given is not None and given.dtype != torch.bool:
        padding = torch.zeros(B, T).double().masked_fill(padding, -torch.inf)
    want, weights = theirs(
        *rows, key_padding_mask=padding, attn_mask=given, average_attn_weights=False
    )
    assert_close(found.context, want, 1e-13)
    if need_weights:
        assert_close(found.weights, weights, 1e-13)
    assert_all_close(gradients(found.context, rows), gradients(want, rows), 1e-13)


def test_scaled_dot_equals_pytorchs_operator() -> None:
    ours, (query, key, value) = _ours(), _rows()
    split = [
        projection(rows).view(B, -1, H, D // H).transpose(1, 2)
        for projection, rows in (
            (ours.query_proj, query),
            (ours.key_proj, key),
            (ours.value_proj, value),
        )
    ]
    want = functional.scaled_dot_product_attention(*split).transpose(1, 2).flatten(2)
    assert_close(ours(query, key, value).context, ours.out_proj(want), 1e-13)


def test_a_fully_padded_source_gives_the_bias_where_pytorchs_layer_gives_nan() -> None:
    ours, rows = _ours(), _rows()
    padding = torch.tensor([[False] * T, [True] * T])
    want, _ = _torchs(ours)(*rows, key_padding_mask=padding)
    assert want[1].isnan().all()
    for need_weights in (False, True):
        found = ours(*rows, key_padding_mask=padding, need_weights=need_weights)
        assert_close(found.context[0], want[0], 1e-13)
        assert_close(found.context[1], ours.out_proj.bias.expand(L, D), 1e-13)
        if need_weights:
            assert (found.weights[1] == 0).all()
        for gradient in gradients(found.context, [*rows, *ours.parameters()]):
            assert gradient.isfinite().all()


def _head_by_head(
    ours: MultiHeadAttention, name: str, rows: list[Tensor], masked: Tensor
) -> Tensor:
    """The reference, computed head by head."""
    query, key, value = rows
    width, found = D // H, []
    for head in range(H):
        part = slice(head * width, (head + 1) * width)
        a, b, c = (
            projection(rows)[..., part]
            for projection, rows in (
                (ours.query_proj, query),
                (ours.key_proj, key),
                (ours.value_proj, value),
            )
        )
        score = ours.attention.score
        if name in PAIRWISE:
            scores = reference.additive_scores(a, b, score.vector[head])
        else:
            scores = score(a, b)
        found.append(
            reference_attention(scores, c, masked, None, ours.attention.normalizer).context
        )
    return ours.out_proj(torch.cat(found, -1))


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize(("name", "need_weights"), PATHS)
def test_every_score_equals_its_heads_computed_alone(
    name: str, need_weights: bool, normalizer: str
) -> None:
    ours, rows = _ours(name, normalizer=normalizer), _rows()
    masked_pairs = torch.rand(L, T) < 0.3
    masked_pairs[2] = True
    masked = masked_pairs[None] | _padding()[:, None]
    inputs = [*rows, *(each for each in ours.parameters() if each.requires_grad)]
    found = ours(
        *rows, key_padding_mask=_padding(), attn_mask=masked_pairs, need_weights=need_weights
    ).context
    want = _head_by_head(ours, name, rows, masked)
    assert_close(found, want, 1e-13)
    assert_all_close(gradients(found, inputs), gradients(want, inputs), 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("name", "need_weights"), PATHS)
def test_lower_precisions(name: str, need_weights: bool, dtype: torch.dtype) -> None:
    ours, rows = _ours(name, dtype), _rows(dtype)
    found = ours(*rows, key_padding_mask=_padding(), need_weights=need_weights).context
    exact, wide = _ours(name), [each.detach().double() for each in rows]
    exact.load_state_dict({key: each.double() for key, each in ours.state_dict().items()})
    want = exact(*wide, key_padding_mask=_padding()).context
    assert found.dtype == dtype
    assert_close(found, want, tolerance_for(dtype, float32=64, bfloat16=16))


@pytest.mark.parametrize(("name", "need_weights"), PATHS)
def test_masks_per_head(name: str, need_weights: bool) -> None:
    ours, rows = _ours(name), _rows()
    masked_pairs = torch.rand(B, H, L, T) < 0.4
    found = ours(*rows, attn_mask=masked_pairs, need_weights=True)
    assert (found.weights[masked_pairs] == 0).all()
    assert_close(
        ours(*rows, attn_mask=masked_pairs, need_weights=need_weights).context, found.context, 1e-13
    )
    bias = torch.zeros(B, H, L, T).double().masked_fill(masked_pairs, -torch.inf)
    assert_close(
        ours(*rows, attn_mask=bias, need_weights=need_weights).context, found.context, 1e-13
    )


@pytest.mark.parametrize("content", [math.nan, math.inf, 1e30])
@pytest.mark.parametrize(("name", "need_weights"), PATHS)
def test_the_content_of_padding_has_no_effect(
    name: str, need_weights: bool, content: float
) -> None:
    ours, rows = _ours(name), _rows()
    parameters = [each for each in ours.parameters() if each.requires_grad]
    want = ours(*rows, key_padding_mask=_padding(), need_weights=need_weights)
    with torch.no_grad():
        for each in rows[1:]:
            each[_padding()] = content
    found = ours(*rows, key_padding_mask=_padding(), need_weights=need_weights)
    assert_close(found.context, want.context, 1e-13)
    if need_weights:
        assert_close(found.weights, want.weights, 1e-13)
    for gradient in gradients(found.context, [*rows, *parameters]):
        assert gradient.isfinite().all()


@pytest.mark.parametrize(("name", "need_weights"), PATHS)
def test_masking_a_key_equals_deleting_it(name: str, need_weights: bool) -> None:
    ours, (query, key, value) = _ours(name), _rows()
    deleted = torch.zeros(B, T, dtype=torch.bool)
    deleted[:, 2] = True
    remaining = [0, 1, 3, 4, 5]
    want = ours(query, key[:, remaining], value[:, remaining], need_weights=need_weights)
    found = ours(query, key, value, key_padding_mask=deleted, need_weights=need_weights)
    assert_close(found.context, want.context, 1e-13)


@pytest.mark.parametrize(("name", "need_weights"), GUARDED)
def test_a_nonfinite_key_reaches_only_queries_that_may_attend_to_it(
    name: str, need_weights: bool
) -> None:
    ours, rows = _ours(name), _rows()
    masked_pairs = torch.zeros(L, T, dtype=torch.bool)
    masked_pairs[:2, 3] = True
    want = ours(*rows, attn_mask=masked_pairs, need_weights=need_weights).context
    with torch.no_grad():
        rows[1][0, 3] = math.nan
    found = ours(*rows, attn_mask=masked_pairs, need_weights=need_weights).context
    assert_close(found[0, :2], want[0, :2], 1e-13)
    assert_close(found[1], want[1], 1e-13)
    assert found[0, 2:].isnan().all()
    assert gradients(found[:, :2], rows[:1])[0][:, :2].isfinite().all()


@pytest.mark.parametrize("name", ["scaled_dot", "additive"])
def test_a_batch_equals_its_items(name: str) -> None:
    ours, (query, key, value) = _ours(name), _rows()
    whole = ours(query, key, value, key_lengths=torch.tensor([5, 3]))
    for item, length in enumerate((5, 3)):
        one = slice(item, item + 1)
        alone = ours(query[one], key[one, :length], value[one, :length])
        assert_close(alone.context, whole.context[one], 1e-13)


@pytest.mark.parametrize(("name", "need_weights"), PATHS)
def test_causal_self_attention_ignores_later_positions(name: str, need_weights: bool) -> None:
    attention = SelfAttention(D, H, causal=True, score=name).double()
    x = torch.randn(B, L, D, dtype=torch.float64)
    whole = attention(x, need_weights=True)
    assert (whole.weights.triu(1) == 0).all()
    for length in range(1, L + 1):
        part = attention(x[:, :length], need_weights=need_weights)
        assert_close(part.context, whole.context[:, :length], 1e-13)
    for mask in (torch.zeros(L, L, dtype=torch.bool), torch.zeros(L, L, dtype=torch.float64)):
        assert_close(attention(x, attn_mask=mask).context, whole.context, 1e-13)


def test_self_attention_is_attention_of_a_sequence_to_itself() -> None:
    attention = SelfAttention(D, H).double()
    x = torch.randn(B, L, D, dtype=torch.float64)
    found = attention(x, key_lengths=torch.tensor([4, 2]), need_weights=True)
    want = attention.attention(x, x, x, key_lengths=torch.tensor([4, 2]), need_weights=True)
    assert_close(found.context, want.context, 1e-13)
    assert found.weights.shape == (B, H, L, L)
    assert SelfAttention(D)(x.float(), need_weights=True).weights.shape == (B, 1, L, L)


def test_a_custom_score_is_shared_by_the_heads() -> None:
    class Distance(nn.Module):
        def forward(self, query: Tensor, key: Tensor) -> Tensor:
            return -torch.cdist(query, key)

    ours, rows = _ours(Distance()), _rows()
    assert_close(
        ours(*rows).context, _head_by_head(ours, "own", rows, torch.zeros(B, L, T).bool()), 1e-13
    )
    dot = _ours(Dot())
    assert_close(dot(*rows).context, _ours("dot")(*rows).context, 1e-13)
    shared = regard.Additive(D // H, D // H, 5)
    found = _ours(shared)(*rows).context
    assert_close(
        found, _head_by_head(_ours(shared), "own", rows, torch.zeros(B, L, T).bool()), 1e-12
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
    whole = rotary(query.expand(1, 1, 4, 8))
    assert_close(whole[:, :, 2:3], rotary(query, 2), 1e-13)


def test_settings_name_every_positional_encoding() -> None:
    (field,) = (each for each in dataclasses.fields(ModelConfig) if each.name == "positions")
    assert set(get_args(field.type)) == {*EMBEDDING_POSITIONS, *HEAD_POSITIONS}


def test_a_new_positional_encoding_needs_a_row_of_its_table(
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
    ours = MultiHeadAttention(D, H, key_dim=5)
    found = ours(torch.randn(B, L, D), torch.randn(B, T, 5), need_weights=True)
    assert found.context.shape == (B, L, D)
    assert found.weights.shape == (B, H, L, T)


def test_dropout_in_training_only() -> None:
    ours, rows = _ours(dropout=0.5), _rows()
    ours.eval()
    assert_close(ours(*rows).context, ours(*rows).context, 0)
    ours.train()
    assert (ours(*rows).context - ours(*rows).context).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("make", "wrong"),
    [
        (lambda: MultiHeadAttention(10, 3), "multiple of num_heads, got 10 and 3"),
        (lambda: MultiHeadAttention(12, 0), "multiple of num_heads, got 12 and 0"),
        (lambda: MultiHeadAttention(12, 3, "sum"), "no score is named 'sum'"),
        (
            lambda: MultiHeadAttention(12, 3, "bahdanau", position_encoding=RotaryPositions()),
            "inner product, which additive",
        ),
        (
            lambda: MultiHeadAttention(9, 3, position_encoding=RotaryPositions()),
            "even width, got 3",
        ),
        (lambda: MultiHeadAttention(0, 1), "multiple of num_heads, got 0 and 1"),
        (
            lambda: MultiHeadAttention(
                8, 2, regard.Additive(4, 4, 3), position_encoding=RotaryPositions()
            ),
            "inner product, which Additive",
        ),
    ],
)
def test_invalid_arguments_raise_config_errors(make: object, wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        make()


def test_errors_name_the_shapes(unchecked: None) -> None:
    ours = MultiHeadAttention(D, H)
    with pytest.raises(ShapeError, match=r"queries of width 12 .* got query \(2, 4, 5\)"):
        ours(torch.randn(2, 4, 5), torch.randn(2, 6, 12))
    with pytest.raises(ShapeError, match="expects queries of width 8"):
        MultiHeadAttention(8, 2, regard.Additive(8, 8, 5))
    with pytest.raises(ShapeError, match="expected attn_mask"):
        SelfAttention(8, causal=True)(torch.randn(2, 4, 8), attn_mask=torch.zeros(1, 4).bool())
    with pytest.raises(ShapeError, match="of bool"):
        SelfAttention(8, causal=True)(torch.randn(2, 4, 8), attn_mask=torch.zeros(4, 4).long())
    with pytest.raises(ShapeError, match=r"\(B, H, L, T\) = \(2, 3, 4, 6\), got \(2, 2, 4, 6\)"):
        ours(*_rows(torch.float32), attn_mask=torch.zeros(2, 2, 4, 6, dtype=torch.bool))


def test_one_head_is_attention_on_projected_rows() -> None:
    ours = MultiHeadAttention(D, 1, "dot").double()
    query, key, value = _rows()
    alone = Attention(Dot())(
        ours.query_proj(query), ours.key_proj(key), ours.value_proj(value), need_weights=True
    )
    found = ours(query, key, value, need_weights=True)
    assert_close(found.context, ours.out_proj(alone.context), 1e-13)
    assert_close(found.weights[:, 0], alone.weights, 1e-13)
