"""`MultiHeadAttention` as a replacement for `torch.nn.MultiheadAttention`."""

import copy
import inspect
import itertools
import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.ao.nn import quantizable
from torch.nn import functional
from torch.nn.utils import parametrizations, prune

import regard
from oracle import assert_all_close, assert_close, gradients, reference_attention
from regard.attention import MultiHeadAttention, SelfAttention
from regard.errors import ConfigError, ShapeError
from regard.kernels import reference
from regard.score_registry import SCORES
from selection import covering

B, L, T, D, H = 2, 4, 6, 12, 2
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5}


def _rows(kdim: int = D, vdim: int = D, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    shapes = (B, L, D), (B, T, kdim), (B, T, vdim)
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def _pair(dtype: torch.dtype = torch.float64, **options: Any) -> tuple[Any, MultiHeadAttention]:
    """Return PyTorch's layer with random parameters, biases included, and ours with the same."""
    theirs = nn.MultiheadAttention(D, H, batch_first=True, dtype=dtype, **options)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.4)
    return theirs, MultiHeadAttention.from_torch(theirs)


def _padding() -> Tensor:
    return torch.tensor([[False] * 5 + [True], [False] * 3 + [True] * 3])


def _masks() -> dict[str, Tensor]:
    masked = torch.rand(B * H, L, T) < 0.4
    masked[..., 0] = False
    bias = torch.randn(B * H, L, T).double().masked_fill(masked, -torch.inf)
    return {
        "bool (L, T)": masked[0], "float (L, T)": bias[0],
        "bool (B H, L, T)": masked, "float (B H, L, T)": bias,
    }  # fmt: skip


def test_arguments_are_those_of_pytorchs_layer() -> None:
    """In the same order, except for the score; with the defaults that the docstring names."""
    theirs = inspect.signature(nn.MultiheadAttention.forward).parameters
    ours = inspect.signature(MultiHeadAttention.forward).parameters
    assert [*ours][: len(theirs)] == [*theirs]
    different = {name for name in theirs if theirs[name].default != ours[name].default}
    assert different == {"value", "need_weights", "average_attn_weights"}
    theirs = inspect.signature(nn.MultiheadAttention).parameters
    ours = inspect.signature(MultiHeadAttention).parameters
    assert set(theirs) < set(ours)
    assert [*ours][:3] == ["embed_dim", "num_heads", "score"]
    different = {name for name in theirs if theirs[name].default != ours[name].default}
    assert different == {"batch_first"}


@pytest.mark.parametrize(
    ("mask", "padding", "need_weights"),
    covering(itertools.product(["none", *_masks()], ["none", "bool", "float"], [False, True])),
)
def test_masks_equal_those_of_pytorchs_layer(mask: str, padding: str, need_weights: bool) -> None:
    theirs, ours = _pair()
    rows, attn_mask = _rows(), _masks().get(mask)
    real = {"bool": _padding(), "float": torch.randn(B, T).double()}.get(padding)
    if padding == "float":
        real = real.masked_fill(_padding(), -torch.inf)
    expected_mask, expected_padding = attn_mask, real
    if attn_mask is not None and real is not None and attn_mask.dtype != real.dtype:
        zeros = torch.zeros(()).double()  # PyTorch's layer needs one type for both
        expected_mask, expected_padding = (
            x if x.is_floating_point() else zeros.expand(x.shape).masked_fill(x, -torch.inf)
            for x in (attn_mask, real)
        )
    expected, expected_weights = theirs(
        *rows, expected_padding, True, expected_mask, average_attn_weights=False
    )
    actual, weights = ours(*rows, real, need_weights, attn_mask)
    assert_close(actual, expected, 1e-12)
    assert_all_close(gradients(actual, rows), gradients(expected, rows), 1e-12)
    assert (weights is not None) == need_weights
    if need_weights:
        assert_close(weights, expected_weights, 1e-12)
        mean = ours(*rows, real, True, attn_mask, True).weights
        assert_close(mean, expected_weights.mean(1), 1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    "options", [{"kdim": 5, "vdim": 7}, {"kdim": 5}, {"bias": False}, {"dropout": 0.3}], ids=str
)
def test_weights_of_pytorchs_layer_are_loaded(options: dict[str, Any], dtype: torch.dtype) -> None:
    theirs, converted = _pair(dtype, **options)
    rows = _rows(options.get("kdim", D), options.get("vdim", D), dtype)
    loaded = MultiHeadAttention(D, H, dtype=dtype, **options)
    before = list(theirs.state_dict())
    loaded.load_state_dict(theirs.state_dict())
    assert list(theirs.state_dict()) == before
    expected = theirs.eval()(*rows)[0]
    for ours in (converted.eval(), loaded.eval()):
        assert ours(*rows).context.dtype == dtype
        assert_close(ours(*rows).context, expected, TOLERANCES[dtype])
    own = MultiHeadAttention(D, H, dtype=dtype, **options).eval()
    own.load_state_dict(loaded.state_dict())
    assert torch.equal(own(*rows).context, loaded(*rows).context)


def test_loading_names_missing_and_unknown_parameters() -> None:
    theirs, _ = _pair(torch.float32)
    with pytest.raises(RuntimeError, match=r"Missing key.*attention\.score\.vector"):
        MultiHeadAttention(D, H, "additive").load_state_dict(theirs.state_dict())
    with pytest.raises(RuntimeError, match=r"Unexpected key.*bias_k"):
        MultiHeadAttention(D, H).load_state_dict(
            nn.MultiheadAttention(D, H, add_bias_kv=True).state_dict()
        )


def test_from_torch_with_another_score() -> None:
    theirs, _ = _pair(dropout=0.25)
    ours = MultiHeadAttention.from_torch(theirs.eval(), "additive", normalizer="entmax15")
    assert not ours.training
    assert ours.attention.dropout == 0.25
    assert ours.attention.normalizer == "entmax15"
    assert ours.attention.score.vector.dtype == torch.float64
    assert torch.equal(ours.key_proj.weight, theirs.in_proj_weight[D : 2 * D])
    bilinear = MultiHeadAttention.from_torch(theirs, "bilinear", scaled=True)
    assert bilinear.attention.score.scale == pytest.approx((D // H) ** -0.5)


def test_from_torch_takes_the_projections_that_the_layer_computes_with() -> None:
    (theirs, _), (query, key, value) = _pair(), _rows()
    prune.random_unstructured(theirs.out_proj, "weight", 0.5)
    parametrizations.weight_norm(theirs, "in_proj_weight")
    ours = MultiHeadAttention.from_torch(theirs.eval())
    assert_close(ours(query, key, value)[0], theirs(query, key, value)[0], 1e-12)


def test_from_torch_refuses_layers_that_compute_otherwise() -> None:
    with pytest.raises(ConfigError, match=r"with PyTorch's own forward, got a MultiheadAttention"):
        MultiHeadAttention.from_torch(quantizable.MultiheadAttention(D, H))
    # inside of a Transformer layer, it would attend across the items of a batch
    with pytest.raises(ConfigError, match="expects a layer with batch_first=True"):
        MultiHeadAttention.from_torch(nn.TransformerEncoderLayer(D, H).self_attn)


@pytest.mark.parametrize("option", ["add_bias_kv", "add_zero_attn"])
def test_options_that_append_a_key_are_refused(option: str) -> None:
    theirs = nn.MultiheadAttention(D, H, batch_first=True, **{option: True})
    with pytest.raises(
        ConfigError, match=f"MultiHeadAttention does not support {option}, which appends"
    ):
        MultiHeadAttention.from_torch(theirs)
    with pytest.raises(
        ConfigError, match=f"MultiHeadAttention does not support {option}, which appends"
    ):
        MultiHeadAttention(D, H, **{option: True})
    MultiHeadAttention(D, H, **{option: False})


def test_invalid_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="leave out batch_first, and transpose inputs"):
        MultiHeadAttention(D, H, batch_first=False)
    with pytest.raises(ConfigError, match=r"accept the option scald; .*did you mean scaled"):
        MultiHeadAttention(D, H, "bilinear", scald=True)
    with pytest.raises(
        ConfigError, match=r"additive does not accept options in multi-head.*got scaled"
    ):
        MultiHeadAttention(D, H, "additive", scaled=True)
    with pytest.raises(ConfigError, match="sets key_dim to the width of a head"):
        MultiHeadAttention(D, H, "bilinear", key_dim=5)
    with pytest.raises(ConfigError, match="scaled is an option for a score specified by name"):
        MultiHeadAttention(D, H, regard.Dot(), scaled=True)


def test_device_and_dtype() -> None:
    layer = MultiHeadAttention(D, H, "additive", device="meta", dtype=torch.float16)
    assert all(p.is_meta and p.dtype == torch.float16 for p in layer.parameters())


def test_float_padding_has_gradients() -> None:
    theirs, ours = _pair()
    padding, rows = torch.randn(B, T).double().requires_grad_(), _rows()
    expected = gradients(theirs(*rows, padding)[0], [padding])
    for need_weights in (False, True):
        actual = ours(*rows, padding, need_weights).context
        assert_all_close(gradients(actual, [padding]), expected, 1e-12)


def test_is_causal() -> None:
    theirs, ours = _pair()
    x = torch.randn(B, L, D).double()
    future = nn.Transformer.generate_square_subsequent_mask(L, dtype=torch.float64)
    expected = theirs(x, x, x, attn_mask=future, is_causal=True)[0]
    for options in ({"attn_mask": future}, {}, {"attn_mask": future, "is_causal": False}):
        assert_close(ours(x, x, **{"is_causal": True, **options}).context, expected, 1e-12)


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("score", ["scaled_dot", "additive"])
def test_unbatched_input_equals_a_batch_of_one_item(score: str, average: bool) -> None:
    theirs, ours = _pair()
    if score != "scaled_dot":
        ours = MultiHeadAttention.from_torch(theirs, score)
    query, key, value = (row[0] for row in _rows())
    for masks in (
        {},
        {"key_padding_mask": _padding()[0]},
        {"attn_mask": _masks()["float (L, T)"]},
        {"attn_mask": _masks()["bool (B H, L, T)"][:H]},
    ):
        options: dict[str, Any] = {**masks, "need_weights": True, "average_attn_weights": average}
        actual = ours(query, key, value, **options)
        if score == "scaled_dot":
            expected, weights = theirs(query, key, value, **options)
            assert_close(actual.context, expected, 1e-12)
            assert_close(actual.weights, weights, 1e-12)
        if "key_padding_mask" in masks:
            options["key_padding_mask"] = masks["key_padding_mask"][None]
        batch = ours(query[None], key[None], value[None], **options)
        assert torch.equal(actual.context, batch.context[0])
        assert torch.equal(actual.weights, batch.weights[0])
    lengths = ours(query, key, key_lengths=torch.tensor(3)).context
    assert_close(lengths, ours(query, key[:3]).context, 1e-12)


@pytest.mark.parametrize("fill_value", [math.nan, math.inf])
def test_float_padding_hides_its_content(fill_value: float) -> None:
    _, ours = _pair()
    rows = _rows()
    padding = torch.zeros(B, T).double().masked_fill(_padding(), -torch.inf)
    expected = ours(*rows, key_padding_mask=_padding()).context
    for row in rows[1:]:
        row.data[_padding()] = fill_value
    for need_weights in (False, True):
        actual = ours(*rows, key_padding_mask=padding, need_weights=need_weights).context
        assert_close(actual, expected, 1e-12)
        for gradient in gradients(actual, [*rows, *ours.parameters()]):
            assert gradient.isfinite().all()


def test_errors_name_the_masks(unchecked: None) -> None:
    _, ours = _pair()
    with pytest.raises(
        ShapeError, match=r"bool or float and shape \(B, T\) = \(2, 6\).*torch.int64"
    ):
        ours(*_rows(), key_padding_mask=torch.zeros(B, T).long())
    with pytest.raises(ShapeError, match=r"\(B H, L, T\) = \(4, 4, 6\) or .*got \(3, 4, 6\)"):
        ours(*_rows(), attn_mask=torch.zeros(3, L, T).bool())
    with pytest.raises(ShapeError, match="keys and values of widths 5 and 12"):
        MultiHeadAttention(D, H, kdim=5)(torch.randn(B, L, D), torch.randn(B, T, D))


# Inside PyTorch's Transformer layers.


def _encoder_layer(dtype: torch.dtype, **options: Any) -> nn.TransformerEncoderLayer:
    torch.manual_seed(4)
    layer = nn.TransformerEncoderLayer(
        D, H, 16, dropout=0.0, batch_first=True, dtype=dtype, **options
    )
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.4)
    return layer


def _with_our_attention(layer: Any, score: str = "scaled_dot") -> Any:
    layer = copy.deepcopy(layer)
    for name in ("self_attn", "multihead_attn"):
        if hasattr(layer, name):
            setattr(layer, name, MultiHeadAttention.from_torch(getattr(layer, name), score))
    return layer


@pytest.mark.parametrize(
    ("score", "need_weights", "content"),
    covering(itertools.product(SCORES, (False, True), (math.nan, math.inf, -math.inf))),
)
def test_padding_of_queries_that_are_the_keys_has_no_effect(
    score: str, need_weights: bool, content: float
) -> None:
    attention, masks = MultiHeadAttention(D, H, score).double(), {"key_padding_mask": _padding()}
    x = torch.randn(B, T, D, dtype=torch.float64)
    finite = attention(x, x, x, **masks, need_weights=need_weights).context
    x = x.masked_fill(_padding()[..., None], content).requires_grad_()
    for mask in (None, torch.zeros(T, T, dtype=torch.float64)):
        actual = attention(x, x, x, **masks, attn_mask=mask, need_weights=need_weights).context
        assert actual.isfinite().all()
        assert_close(actual[~_padding()], finite[~_padding()], 1e-12)
        parameters = [p for p in attention.parameters() if p.requires_grad]
        gradient, *others = gradients(actual, [x, *parameters])
        assert not gradient[_padding()].any()
        assert all(tensor.isfinite().all() for tensor in (gradient, *others))


def _additive_reference(attention: Any, x: Tensor, masked: Tensor) -> Tensor:
    """Return self-attention with additive scores, computed head by head by the reference."""
    a, b, c = (
        projection(x).chunk(H, dim=-1)
        for projection in (attention.query_proj, attention.key_proj, attention.value_proj)
    )
    contexts = [
        reference_attention(
            reference.additive_scores(a[h], b[h], attention.attention.score.vector[h]), c[h], masked
        ).context
        for h in range(H)
    ]
    return attention.out_proj(torch.cat(contexts, -1))


@pytest.mark.parametrize(
    ("dtype", "mask", "training", "grad", "norm_first"),
    covering(
        itertools.product(TOLERANCES, ("none", "padding", "causal", "both"), *[(False, True)] * 3)
    ),
)
def test_encoder_layer(
    dtype: torch.dtype, mask: str, training: bool, grad: bool, norm_first: bool
) -> None:
    """PyTorch's layer takes its fused kernel in evaluation without gradients; ours never."""
    theirs = _encoder_layer(dtype, norm_first=norm_first).train(training)
    ours = _with_our_attention(theirs)
    additive = _with_our_attention(theirs, "additive")
    x, padding = torch.randn(B, T, D, dtype=dtype), _padding()
    options: dict[str, Any] = {}
    masked = torch.zeros(B, T, T, dtype=torch.bool)
    if mask in ("padding", "both"):
        options["src_key_padding_mask"] = padding
        masked = masked | padding[:, None]
    if mask in ("causal", "both"):
        options["src_mask"] = torch.ones(T, T, dtype=torch.bool).triu(1)
        masked = masked | options["src_mask"]
    with torch.set_grad_enabled(grad):
        expected = theirs(x, **options)
        assert_close(ours(x, **options), expected, TOLERANCES[dtype])
        for fill_value in (0.0, math.nan)[: 1 + (mask == "padding" and not norm_first)]:
            rows = x.masked_fill(padding[..., None], fill_value) if fill_value else x
            actual = additive(rows, **options)
            if norm_first:
                attended = x + _additive_reference(additive.self_attn, additive.norm1(x), masked)
                reference_output = attended + additive._ff_block(additive.norm2(attended))
            else:
                attended = additive.norm1(x + _additive_reference(additive.self_attn, x, masked))
                reference_output = additive.norm2(attended + additive._ff_block(attended))
            real = ~padding if fill_value else torch.ones_like(padding)
            assert_close(actual[real], reference_output[real], TOLERANCES[dtype])
    assert (actual[~padding] - expected[~padding]).abs().max() > 1e-2


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_decoder_layer(dtype: torch.dtype, training: bool) -> None:
    theirs = nn.TransformerDecoderLayer(D, H, 16, dropout=0.0, batch_first=True, dtype=dtype)
    theirs.train(training)
    ours, additive = _with_our_attention(theirs), _with_our_attention(theirs, "additive")
    target, memory = torch.randn(B, L, D, dtype=dtype), torch.randn(B, T, D, dtype=dtype)
    causal = nn.Transformer.generate_square_subsequent_mask(L, dtype=dtype)
    masks = {"tgt_mask": causal, "memory_key_padding_mask": _padding(), "tgt_is_causal": True}
    for options in ({}, masks):
        with torch.no_grad():
            expected = theirs(target, memory, **options)
            assert_close(ours(target, memory, **options), expected, TOLERANCES[dtype])
            assert (additive(target, memory, **options) - expected).abs().max() > 1e-4
    padded = memory.masked_fill(_padding()[..., None], math.nan)
    for layer in (ours, additive):
        assert torch.equal(layer(target, padded, **masks), layer(target, memory, **masks))


@pytest.mark.parametrize(
    ("grad", "training", "padded", "when", "score"),
    covering(
        itertools.product(*[(False, True)] * 3, ("before", "after"), ("scaled_dot", "additive"))
    ),
)
def test_encoder_of_several_layers(
    grad: bool, training: bool, padded: bool, when: str, score: str
) -> None:
    """Whether the attention is replaced before the encoder copies its layer, or in the copies."""
    layer = _encoder_layer(torch.float64)
    theirs = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train(training)
    if when == "before":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the fused kernel is not used
            ours = nn.TransformerEncoder(_with_our_attention(layer, score), 2)
    else:
        ours = nn.TransformerEncoder(layer, 2)  # has decided to use nested tensors
        assert ours.use_nested_tensor
        layers = [_with_our_attention(member, score) for member in ours.layers]
        ours.layers = nn.ModuleList(layers)
    ours.train(training)
    x, padding = torch.randn(B, T, D).double(), _padding() if padded else None
    with torch.set_grad_enabled(grad):
        actual = ours(x, src_key_padding_mask=padding)
        expected = theirs(x, src_key_padding_mask=padding)
        if score == "additive":
            expected = x
            for member in ours.layers:
                masked = torch.zeros(B, T, T).bool() if padding is None else padding[:, None]
                context = _additive_reference(member.self_attn, expected, masked)
                attended = member.norm1(expected + context)
                expected = member.norm2(attended + member._ff_block(attended))
    real = slice(None) if padding is None else ~padding
    assert_close(actual[real], expected[real], 1e-12)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")
def test_nested_tensors_are_refused(unchecked: None) -> None:
    """PyTorch's encoder creates them if its first layer keeps PyTorch's attention."""
    encoder = nn.TransformerEncoder(_encoder_layer(torch.float32), 2).eval()
    encoder.layers[1] = _with_our_attention(encoder.layers[1])
    with torch.no_grad(), pytest.raises(ShapeError, match="enable_nested_tensor=False"):
        encoder(torch.randn(B, T, D), src_key_padding_mask=_padding())


def test_state_dict_of_a_transformer_layer_is_loaded() -> None:
    theirs = _encoder_layer(torch.float64)
    ours = _encoder_layer(torch.float64)
    ours.self_attn = MultiHeadAttention(D, H, dtype=torch.float64)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(B, T, D).double()
    assert_close(ours(x), theirs(x), 1e-12)


@pytest.mark.parametrize("training", [False, True])
def test_encoder_layer_compiles_in_one_graph(training: bool, unchecked: None) -> None:
    layer = _with_our_attention(_encoder_layer(torch.float32), "additive").train(training)
    x = torch.randn(B, T, D)
    with torch.set_grad_enabled(training):
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        actual = compiled(x, src_key_padding_mask=_padding())
        assert_close(actual, layer(x, src_key_padding_mask=_padding()), 1e-5)


# Function transforms and export.


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
@pytest.mark.parametrize("score", SCORES)
def test_function_transforms(score: str) -> None:
    """`torch.vmap` equals a loop, forward mode the limit of differences, both with masks."""
    layer = MultiHeadAttention(D, H, score).double()
    query, key, _ = (torch.stack([row.detach(), row.detach().flip(0)]) for row in _rows())
    masked = torch.rand(2, L, T) < 0.3
    paddings = torch.stack([_padding(), _padding().flip(0)])

    def call(query: Tensor, key: Tensor, masked: Tensor, padding: Tensor) -> Tensor:
        return layer(query, key, key_padding_mask=padding, attn_mask=masked).context

    actual = torch.vmap(call)(query, key, masked, paddings)
    for number in range(2):
        expected = call(query[number], key[number], masked[number], paddings[number])
        assert_close(actual[number], expected, 1e-13)
    rows, masks = (query[0], key[0]), (masked[0], paddings[0])
    tangents = torch.randn_like(rows[0]), torch.randn_like(rows[1])
    _, tangent = torch.func.jvp(lambda *rows: call(*rows, *masks), rows, tangents)
    step = 1e-5
    ahead, behind = (
        call(*(row + sign * step * t for row, t in zip(rows, tangents, strict=True)), *masks)
        for sign in (1, -1)
    )
    assert_close(tangent, (ahead - behind) / (2 * step), 1e-7)


@pytest.mark.parametrize(
    "score",
    [
        pytest.param(name, marks=[] if name in ("scaled_dot", "additive") else pytest.mark.soak)
        for name in SCORES
    ],
)
def test_export_with_any_shape(score: str, unchecked: None) -> None:
    layer = MultiHeadAttention(D, H, score)
    sizes = [torch.export.Dim(name, min=2, max=64) for name in "BLT"]
    batch, length, width = sizes
    shapes = {
        "query": {0: batch, 1: length}, "key": {0: batch, 1: width}, "value": None,
        "key_padding_mask": {0: batch, 1: width}, "need_weights": None,
        "attn_mask": {0: length, 1: width},
    }  # fmt: skip

    def inputs(batch: int, length: int, width: int) -> tuple[Any, ...]:
        query, key = torch.randn(batch, length, D), torch.randn(batch, width, D)
        padding = torch.randn(batch, width).masked_fill(torch.rand(width) < 0.3, -torch.inf)
        return query, key, None, padding, True, torch.rand(length, width) < 0.3

    exported = torch.export.export(layer, inputs(2, 3, 4), dynamic_shapes=shapes).module()
    for arguments in (inputs(2, 3, 4), inputs(5, 7, 6)):
        assert_all_close(exported(*arguments), layer(*arguments), 1e-6)


@pytest.mark.parametrize("dimension", [0, 1])
@pytest.mark.parametrize("score", ["scaled_dot", "additive", "concat"])
def test_export_without_weights_and_with_one_dynamic_dimension(
    score: str, dimension: int, unchecked: None
) -> None:
    layer, dynamic = MultiHeadAttention(D, H, score).eval(), {dimension: torch.export.Dim.DYNAMIC}
    rows = torch.randn(2, 5, D), torch.randn(2, 6, D)
    module = torch.export.export(layer, rows, dynamic_shapes=(dynamic, dynamic)).module()
    for batch, length in (2, 5), (2, 40) if dimension else (7, 5):
        key = torch.randn(batch, 3000 if dimension else 6, D)
        query = torch.randn(batch, length, D)
        assert_close(module(query, key).context, layer(query, key).context, 1e-6)


# Self-attention.


@pytest.mark.parametrize("batched", [False, True])
def test_bare_self_attention_is_the_equation(batched: bool) -> None:
    layer = SelfAttention(D, bias=False, output_projection=False).double()
    assert len(list(layer.parameters())) == 3
    x = torch.randn(*[B] * batched, L, D).double()
    q, k, v = (
        x @ projection.weight.T
        for projection in (
            layer.attention.query_proj,
            layer.attention.key_proj,
            layer.attention.value_proj,
        )
    )
    weights = functional.softmax(q @ k.mT / math.sqrt(D), -1)
    actual = layer(x, need_weights=True, average_attn_weights=True)
    assert_close(actual.context, weights @ v, 1e-13)
    assert_close(actual.weights, weights, 1e-13)


def test_unbatched_causal_self_attention() -> None:
    layer = SelfAttention(D, H, causal=True).double()
    x, mask = torch.randn(L, D).double(), torch.randn(L, L).double()
    for options in ({}, {"attn_mask": mask}, {"attn_mask": mask.expand(H, L, L)}):
        actual = layer(x, need_weights=True, **options)
        batch = layer(x[None], need_weights=True, **options)
        assert torch.equal(actual.context, batch.context[0])
        assert torch.equal(actual.weights, batch.weights[0])
        assert not actual.weights.triu(1).any()


@pytest.mark.parametrize("shape", [(23, D), (2, D), ()])
def test_a_joint_weight_that_does_not_fit_is_named(shape: tuple[int, ...]) -> None:
    state = nn.MultiheadAttention(D, H).state_dict() | {"in_proj_weight": torch.randn(shape)}
    with pytest.raises(RuntimeError, match=r"size mismatch for (query|value)_proj\.weight"):
        MultiHeadAttention(D, H).load_state_dict(state)


def test_frozen_projections_stay_frozen() -> None:
    theirs = nn.MultiheadAttention(D, H, batch_first=True)
    theirs.in_proj_weight.requires_grad_(False)
    ours = MultiHeadAttention.from_torch(theirs)
    frozen = {name for name, p in ours.named_parameters() if not p.requires_grad}
    assert frozen == {"query_proj.weight", "key_proj.weight", "value_proj.weight"}


def test_from_torch_names_a_layer_of_another_class(unchecked: None) -> None:
    with pytest.raises(
        ConfigError, match=r"expects a torch.nn.MultiheadAttention .*, got a Linear"
    ):
        MultiHeadAttention.from_torch(nn.Linear(3, 3))  # pyright: ignore[reportArgumentType]
