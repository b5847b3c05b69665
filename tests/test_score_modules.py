"""Scores that are not computed by the fast operators: overridden methods, hooks, pruned parameters."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import utils
from torch.nn.utils import prune

import regard
from oracle import assert_close
from regard.attention.coverage import Coverage
from regard.config import ModelConfig
from regard.errors import ConfigError
from regard.models import build


class NegativeDot(regard.Dot):
    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return -super().forward(query, key)


class NegativeBilinear(regard.Bilinear):
    def compare(self, queries: Tensor, keys: Tensor) -> Tensor:
        return -super().compare(queries, keys)


class NegativeAdditive(regard.Additive):
    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return -super().forward(query, key)


class NegativeConcat(regard.Concat):
    def compare(self, queries: Tensor, keys: Tensor) -> Tensor:
        return -super().compare(queries, keys)


DERIVED = [
    NegativeDot(),
    NegativeBilinear(4, 4),
    NegativeAdditive(4, 4, 3),
    NegativeConcat(4, 4, 3),
]


def test_scores_refuse_different_dtypes() -> None:
    query, key = torch.randn(1, 2, 3), torch.randn(1, 4, 3)
    for score in (regard.Dot(), regard.Bilinear(3, 3), regard.Additive(3, 3, 2)):
        with pytest.raises(
            regard.ShapeError, match=r"query has dtype torch.float32, key torch.float64"
        ):
            score(query, key.double())
    with pytest.raises(regard.ShapeError, match=r"and the parameters torch.float32: convert them"):
        regard.Bilinear(3, 3)(query.double(), key.double())
    assert_close(regard.Dot()(query.half(), key), query.half().float() @ key.mT, 1e-3)
    with torch.autocast("cpu", torch.bfloat16):
        assert regard.Bilinear(3, 3)(query.bfloat16(), key).shape == (1, 2, 4)


@pytest.mark.parametrize("score", DERIVED, ids=lambda score: type(score).__name__)
@pytest.mark.parametrize("need_weights", [False, True])
def test_methods_of_derived_classes_are_called(score: nn.Module, need_weights: bool) -> None:
    query, key = torch.randn(2, 3, 4), torch.randn(2, 5, 4)
    context, weights = regard.Attention(score)(query, key, need_weights=need_weights)
    expected = torch.softmax(score(query, key), -1)
    assert_close(context, expected @ key, 1e-5)
    if weights is not None:
        assert_close(weights, expected, 1e-5)


@pytest.mark.parametrize("score", DERIVED, ids=lambda score: type(score).__name__)
@pytest.mark.parametrize("need_weights", [False, True])
def test_methods_of_derived_classes_are_called_for_heads(
    score: nn.Module, need_weights: bool
) -> None:
    layer = regard.MultiHeadAttention(8, 2, score, output_projection=False)
    query, key = torch.randn(2, 3, 8), torch.randn(2, 5, 8)
    queries = layer.query_proj(query).unflatten(-1, (2, 4))
    keys, values = (
        rows.unflatten(-1, (2, 4)) for rows in (layer.key_proj(key), layer.value_proj(key))
    )
    contexts = [
        torch.softmax(score(queries[:, :, head], keys[:, :, head]), -1) @ values[:, :, head]
        for head in range(2)
    ]
    assert_close(
        layer(query, key, need_weights=need_weights).context, torch.cat(contexts, -1), 1e-5
    )


def _prune(module: nn.Module, name: str) -> None:
    prune.l1_unstructured(module, name, amount=0.4)


LAYERS: list[tuple[Callable[[], nn.Module], str, str]] = [
    (lambda: regard.Attention("bilinear", query_dim=8), "score", "weight"),
    (lambda: regard.Attention("inner_product", query_dim=8), "score", "factor"),
    (lambda: regard.Attention("additive", query_dim=8), "score", "vector"),
    (lambda: regard.Attention("concat", query_dim=8), "score", "weight"),
    (lambda: regard.MultiHeadAttention(8, 2, "additive"), "attention.score", "vector"),
    (lambda: regard.MultiHeadAttention(8, 2, "bilinear"), "attention.score", "weight"),
]


@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated:FutureWarning")
@pytest.mark.parametrize("change", [_prune, utils.weight_norm])
@pytest.mark.parametrize(("make", "path", "name"), LAYERS)
def test_hooks_that_compute_a_parameter_are_called(
    make: Callable[[], nn.Module],
    path: str,
    name: str,
    change: Callable[[nn.Module, str], object],
) -> None:
    layer = make()
    score, plain = layer.get_submodule(path), copy.deepcopy(layer)
    change(score, name)
    query, key = torch.randn(2, 3, 8), torch.randn(2, 5, 8)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        layer(query, key)[0].square().sum().backward()
        optimizer.step()
    with torch.no_grad():
        actual = layer.eval()(query, key)[0]
        for parameter, trained in plain.named_parameters():
            own = trained if parameter == f"{path}.{name}" else layer.get_parameter(parameter)
            trained.copy_(own)
        plain.get_parameter(f"{path}.{name}").copy_(getattr(score, name))
        assert_close(actual, plain.eval()(query, key)[0], 1e-5)


def test_forward_hooks_can_replace_the_scores() -> None:
    for score in (regard.Dot(), regard.Additive(4, 4, 4)):
        attention = regard.Attention(score)
        query, key = torch.randn(2, 3, 4), torch.randn(2, 5, 4)
        hook = score.register_forward_hook(lambda module, inputs, scores: torch.zeros_like(scores))
        assert_close(attention(query, key).context, key.mean(1, keepdim=True).expand(2, 3, 4), 1e-6)
        hook.remove()
        expected = torch.softmax(score(query, key), -1) @ key
        assert_close(attention(query, key).context, expected, 1e-5)


@pytest.mark.parametrize("kind", ["register_full_backward_hook", "register_full_backward_pre_hook"])
@pytest.mark.parametrize("name", ["dot", "additive"])
def test_backward_hooks_can_replace_the_gradients(name: str, kind: str) -> None:
    attention = regard.Attention(name, query_dim=4, key_dim=4)
    getattr(attention.score, kind)(lambda _, given, *__: tuple(map(torch.zeros_like, given)))
    query, key = (torch.randn(2, n, 4, requires_grad=True) for n in (3, 5))
    attention(query, key).context.sum().backward()
    assert query.grad is not None
    assert not query.grad.any()


def test_decoders_call_the_hooks_of_their_score() -> None:
    config = ModelConfig(encoder_dim=8, decoder_dim=8, embedding_dim=8, attention_dim=6)
    model = build(config, 12, 12).eval()
    source, lengths = torch.tensor([[4, 5, 6, 3]]), torch.tensor([4])
    tokens = torch.tensor([[2, 4, 5]])

    def states() -> Tensor:
        return model.decoder.unroll(model.encode(source, lengths), tokens).states

    score = model.decoder.get_submodule("attention.score")
    before = states()
    prune.identity(score, "vector")
    assert_close(states(), before, 1e-5)
    with torch.no_grad():
        score.get_parameter("vector_orig").neg_().mul_(3)
    assert (states() - before).abs().max() > 1e-4


class _OwnPruning(prune.BasePruningMethod):
    PRUNING_TYPE = "unstructured"

    def compute_mask(self, t: Tensor, default_mask: Tensor) -> Tensor:
        return default_mask * (t > 0)


PRUNED = [
    ({"decoder": "bahdanau"}, "cells.0.rnn", "weight_hh_l0"),
    ({"decoder": "luong", "input_feeding": True}, "cells.0.rnn", "weight_ih_l0"),
    ({"decoder": "posterior"}, "readout", "weight"),
]


@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated:FutureWarning")
@pytest.mark.parametrize("change", [_prune, _OwnPruning.apply, utils.weight_norm])
@pytest.mark.parametrize(("options", "path", "name"), PRUNED)
def test_decoders_that_read_weights_themselves_call_these_hooks(
    options: dict[str, Any], path: str, name: str, change: Callable[[nn.Module, str], object]
) -> None:
    torch.manual_seed(1)
    config = ModelConfig(encoder_dim=8, decoder_dim=8, embedding_dim=8, **options)
    model = build(config, 12, 12).eval()
    source, lengths = torch.tensor([[4, 5, 3], [6, 3, 0]]), torch.tensor([3, 2])
    tokens = torch.tensor([[2, 4, 5], [2, 7, 4]])

    def states() -> Tensor:
        return model.decoder.unroll(model.encode(source, lengths), tokens).states

    module = model.decoder.get_submodule(path)
    change(module, name)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        states().square().sum().backward()
        optimizer.step()
    changed = [weight for key, weight in module.named_parameters() if key.startswith(name)]
    with torch.no_grad():
        for weight in changed:
            weight.mul_(-3)
        stale, found = getattr(module, name).clone(), states()
        plain = build(config, 12, 12).eval()
        own, computed = model.state_dict(), getattr(module, name)
        plain.load_state_dict({key: own.get(key, computed) for key in plain.state_dict()})
        assert not torch.allclose(computed, stale)
        expected = plain.decoder.unroll(plain.encode(source, lengths), tokens).states
    assert_close(found, expected, 1e-5)


def test_coverage_needs_projected_keys() -> None:
    config = ModelConfig(encoder_dim=8, decoder_dim=8, embedding_dim=8, coverage=True)
    model = build(config, 12, 12).eval()
    assert isinstance(model.decoder.coverage, Coverage)
    prune.identity(model.decoder.get_submodule("attention.score"), "vector")
    with pytest.raises(ConfigError, match=r"coverage needs .* without hooks, got Additive"):
        model.encode(torch.tensor([[4, 3]]), torch.tensor([2]))
