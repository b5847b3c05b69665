"""The posterior decoder: exact sums over alignments, by enumeration of all of them."""

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import regard
from regard.attention import Intervention, Memory
from regard.batching import Batch
from regard.config import ModelConfig
from regard.decoders import PosteriorDecoder
from regard.ensemble import combine
from regard.errors import ConfigError
from regard.explanation.from_model import explain_step
from regard.export.folder import export
from regard.models import Seq2Seq, build
from regard.score_registry import SCORES

V, BOS, EOS = 9, 2, 3


def _model(**settings: Any) -> Seq2Seq:
    torch.manual_seed(5)
    widths = dict(embedding_dim=5, encoder_dim=4, decoder_dim=6, attention_dim=3)
    config = ModelConfig(**{**widths, "decoder": "posterior", "dropout": 0.0, **settings})
    model = build(config, V, V).double().eval()
    for parameter in model.parameters():
        parameter.data.mul_(3)  # far from uniform distributions
    return model


def _encode(model: Seq2Seq, source: list[int]) -> Any:
    return model.encode(torch.tensor([source]), torch.tensor([len(source)]))


def _tables(model: Seq2Seq, source: list[int], target: list[int]) -> tuple[Tensor, Tensor]:
    """Return the scores (L, T) and the probability of each target token from each position (L, T).

    They are computed from the parameters by name, one pair of step and position at a time.
    """
    decoder = model.decoder
    assert isinstance(decoder, PosteriorDecoder)
    memory = _encode(model, source)
    hidden = decoder.start(memory).hidden
    scores, emissions = [], []
    for token, following in itertools.pairwise([BOS, *target]):
        embedded = decoder.embedding(torch.tensor([token]))
        cell = decoder.cells[0]
        hidden = (cell.step(cell.project(embedded), None, hidden[0]),)
        state = hidden[0][0]
        scores.append(decoder.attention.score(state[:, None], memory.states)[0, 0])
        by_position = [
            decoder.output(torch.tanh(decoder.readout(torch.cat([row, state[0]])))).softmax(-1)
            for row in memory.states[0]
        ]
        emissions.append(torch.stack([row[following] for row in by_position]))
    return torch.stack(scores), torch.stack(emissions)


def _enumerate(scores: Tensor, emissions: Tensor, monotonic: bool) -> tuple[Tensor, Tensor]:
    """Return log P(y), and the posterior of the last position, from every alignment in turn."""
    steps, positions = scores.shape
    totals = [torch.zeros((), dtype=scores.dtype) for _ in range(positions)]
    for alignment in itertools.product(range(positions), repeat=steps):
        probability = torch.ones((), dtype=scores.dtype)
        for step, position in enumerate(alignment):
            first = alignment[step - 1] if monotonic and step else 0
            if position < first:
                break
            allowed = scores[step, first:].softmax(-1)
            probability = probability * allowed[position - first] * emissions[step, position]
        else:
            totals[alignment[-1]] = totals[alignment[-1]] + probability
    joint = torch.stack(totals)
    return joint.sum().log(), joint / joint.sum()


def _log_prob(model: Seq2Seq, source: list[int], target: list[int]) -> tuple[Tensor, Tensor]:
    """Return log P(y) of the decoder, and the weights for each token."""
    memory = _encode(model, source)
    tokens = torch.tensor([[BOS, *target]])
    unrolled = model.decoder.unroll(memory, tokens, need_weights=True)
    log_probs = model.decoder.predict(unrolled.states)[0, :-1]
    assert unrolled.weights is not None
    return log_probs.gather(1, tokens[0, 1:, None]).sum(), unrolled.weights[0, 1:, 0, 0]


@pytest.mark.parametrize("cell", ["gru", "lstm"])
@pytest.mark.parametrize("monotonic", [False, True])
@pytest.mark.parametrize("attention", SCORES)
def test_it_sums_over_all_alignments(attention: str, monotonic: bool, cell: str) -> None:
    model = _model(attention=attention, monotonic=monotonic, cell=cell)
    source, target = [4, 5, 6, EOS], [7, 8, 4, EOS]
    log_prob, weights = _log_prob(model, source, target)
    scores, emissions = _tables(model, source, target)
    for length in range(1, len(target) + 1):
        expected, posterior = _enumerate(scores[:length], emissions[:length], monotonic)
        torch.testing.assert_close(weights[length - 1], posterior, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(log_prob, expected, atol=1e-12, rtol=1e-12)
    parameters = list(model.parameters())
    found, by_enumeration = (
        torch.autograd.grad(value, parameters, allow_unused=True, materialize_grads=True)
        for value in (log_prob, expected)
    )
    for row, other in zip(found, by_enumeration, strict=True):
        torch.testing.assert_close(row, other, atol=1e-11, rtol=1e-10)


@given(
    source=st.lists(st.integers(4, V - 1), max_size=4),
    target=st.lists(st.integers(4, V - 1), max_size=3),
    monotonic=st.booleans(),
)
def test_the_sum_over_alignments_holds_for_any_pair(
    source: list[int], target: list[int], monotonic: bool
) -> None:
    model = _model(attention="bilinear", monotonic=monotonic)
    source, target = [*source, EOS], [*target, EOS]
    log_prob, _ = _log_prob(model, source, target)
    expected, _ = _enumerate(*_tables(model, source, target), monotonic)
    torch.testing.assert_close(log_prob, expected, atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize("settings", [{}, {"monotonic": True}, {"input_feeding": True}], ids=str)
def test_the_probabilities_of_a_step_sum_to_one(settings: dict[str, Any]) -> None:
    model = _model(**settings)
    unrolled = model.decoder.unroll(
        _encode(model, [4, 5, EOS]), torch.tensor([[BOS, 6, 7]]), need_weights=True
    )
    ones = torch.ones(1, 3, dtype=torch.float64)
    torch.testing.assert_close(unrolled.states.exp().sum(-1), ones)
    torch.testing.assert_close(unrolled.weights[:, :, 0, 0].sum(-1), ones)


def test_monotonic_weights_never_move_back() -> None:
    """With one-hot scores, the weights are at the positions that the scores select from the last one on."""
    model = _model(attention="dot", monotonic=True)
    decoder = model.decoder
    preferred = iter([1, 0, 3, 2])

    class Fixed(nn.Module):
        def forward(self, query: Tensor, key: Tensor) -> Tensor:
            position = next(preferred)
            return -1000.0 * (torch.arange(4).double() - position).abs().expand(1, 1, 4)

    decoder.attention.score = Fixed()
    state, positions = decoder.start(_encode(model, [4, 5, 6, EOS])), []
    for token in (BOS, 4, 5, 6):
        step = decoder.step(torch.tensor([token]), state)
        state = step.state
        positions.append(int(step.weights.argmax()))
    # a_0 is the first position; then 1, 1 (0 is before it), 3, and 2 would be before it
    assert positions == [0, 1, 1, 3]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
def test_the_monotonic_prior_of_a_long_source_is_the_definition(
    dtype: torch.dtype, tolerance: float
) -> None:
    model, length = _model(attention="dot", monotonic=True).to(dtype), 2000
    decoder = model.decoder
    rows = torch.randn(3, length, dtype=torch.float64, generator=torch.manual_seed(0)) * 10
    following = iter(rows)

    class Given(nn.Module):
        def forward(self, query: Tensor, key: Tensor) -> Tensor:
            return next(following).to(key.dtype).expand(1, 1, length)

    decoder.attention.score = Given()
    state = decoder.start(_encode(model, [4] * length))
    for token, scores in zip((BOS, 4, 5), rows, strict=True):
        step = decoder.step(torch.tensor([token]), state)
        state, weights = step.state, step.weights[0, 0, 0].double()
        later = torch.ones(length, length).triu().bool()
        transition = scores.expand(length, -1).masked_fill(~later, -torch.inf).softmax(1)
        # the probabilities of the tokens at a position sum to 1
        prior = state.joint[0].double().logsumexp(1).exp()
        torch.testing.assert_close(prior, weights @ transition, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("score", [1e5, 1e20])
def test_the_monotonic_prior_does_not_depend_on_the_size_of_the_scores(score: float) -> None:
    model = _model(attention="dot", monotonic=True).float()
    decoder = model.decoder

    class Equal(nn.Module):
        def forward(self, query: Tensor, key: Tensor) -> Tensor:
            return torch.full((1, 1, 6), score)

    decoder.attention.score = Equal()
    state = decoder.start(_encode(model, [4, 5, 6, 7, 8, EOS]))
    transition = torch.ones(6, 6).triu() / torch.arange(6, 0, -1)[:, None]
    for token in (BOS, 4, 5):
        step = decoder.step(torch.tensor([token]), state)
        state, weights = step.state, step.weights[0, 0, 0]
        torch.testing.assert_close(state.joint[0].logsumexp(1).exp(), weights @ transition)


def test_scores_far_apart_keep_finite_gradients() -> None:
    model = _model(attention="dot", monotonic=True).float()
    for parameter in model.decoder.parameters():
        parameter.data.mul_(40)
    source = torch.tensor([[4, 5, 6, 7, EOS], [4, EOS, 0, 0, 0]])
    inputs = torch.tensor([[BOS, 4, 5, 6], [BOS, 7, 0, 0]])
    targets = torch.tensor([[4, 5, 6, EOS], [7, EOS, 0, 0]])
    loss = model(Batch(source, torch.tensor([5, 2]), inputs, targets))
    loss.backward()
    assert loss.isfinite()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("settings", [{}, {"monotonic": True}, {"input_feeding": True}], ids=str)
def test_masking_a_key_equals_deleting_it(settings: dict[str, Any]) -> None:
    model = _model(**settings)
    memory = _encode(model, [4, 5, 6, EOS])
    kept = torch.tensor([0, 1, 3])
    junk = memory.states.clone()
    junk[:, 2] = 100.0
    masked = model.decoder.prepare_memory(
        Memory(junk, torch.tensor([[False, False, True, False]]), memory.final)
    )
    deleted = model.decoder.prepare_memory(
        Memory(memory.states[:, kept], torch.zeros(1, 3, dtype=torch.bool), memory.final)
    )
    tokens = torch.tensor([[BOS, 4, 7, 5]])
    full = model.decoder.unroll(masked, tokens, need_weights=True)
    less = model.decoder.unroll(deleted, tokens, need_weights=True)
    torch.testing.assert_close(full.states, less.states, atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(full.weights[..., kept], less.weights, atol=1e-12, rtol=1e-12)
    assert (full.weights[..., 2] == 0).all()


@pytest.mark.parametrize("settings", [{}, {"monotonic": True}, {"input_feeding": True}], ids=str)
def test_a_pinned_prior_is_followed_by_the_posterior(settings: dict[str, Any]) -> None:
    model = _model(**settings)
    state = model.decoder.start(_encode(model, [4, 5, 6, EOS]))
    pinned = torch.full((1, 4), torch.nan, dtype=torch.float64)
    pinned[0, 2] = 1
    first = model.decoder.step(torch.tensor([BOS]), state, Intervention(pinned))
    second = model.decoder.step(torch.tensor([5]), first.state)
    torch.testing.assert_close(second.weights[0, 0, 0], torch.tensor([0, 0, 1, 0]).double())
    ones = torch.ones(1, dtype=torch.float64)
    for pins in ([0.3, torch.nan, torch.nan, torch.nan], [0, 0, 0, 0], [0.5, 0, 0, 0]):
        intervention = Intervention(torch.tensor([pins], dtype=torch.float64))
        step = model.decoder.step(torch.tensor([BOS]), state, intervention)
        torch.testing.assert_close(step.log_probs.exp().sum(-1), ones)


@pytest.mark.parametrize("input_feeding", [False, True])
def test_an_ablated_head_predicts_without_the_source(input_feeding: bool) -> None:
    model, token = _model(input_feeding=input_feeding), torch.tensor([BOS])
    ablated = Intervention(torch.full((1, 3), torch.nan).double(), torch.tensor([[True]]))
    states = [model.decoder.start(_encode(model, [4, 5, EOS]))]
    other = dataclasses.replace(_encode(model, [6, 7, EOS]), final=states[0].memory.final)
    states.append(model.decoder.start(other))
    steps = [model.decoder.step(token, state, ablated) for state in states]
    torch.testing.assert_close(steps[0].log_probs, steps[1].log_probs, atol=1e-12, rtol=1e-12)
    assert (steps[0].weights == 0).all()
    plain = model.decoder.step(token, states[0])
    assert (plain.log_probs - steps[0].log_probs).abs().max() > 1e-3


def test_links_guide_the_posterior() -> None:
    model = _model(monotonic=True)
    source, target = [4, 5, 6, EOS], [7, 8, EOS]
    _, weights = _log_prob(model, source, target)
    links = torch.zeros(1, 3, 4, dtype=torch.float64)
    links[0, 0, 1] = links[0, 1, 2] = 1
    inputs, targets = torch.tensor([[BOS, 7, 8]]), torch.tensor([target])
    batch = Batch(torch.tensor([source]), torch.tensor([4]), inputs, targets, links=links)
    added = model(batch, guided_alignment=0.3) - model(batch)
    expected = -0.3 * (weights[0, 1].log() + weights[1, 2].log()) / 3
    torch.testing.assert_close(added, expected, atol=1e-6, rtol=1e-6)


MODELS = [
    {"decoder": "posterior"},
    {"decoder": "posterior", "monotonic": True, "cell": "gru", "attention": "dot"},
    {"decoder": "posterior", "input_feeding": True},
]


@pytest.mark.parametrize("settings", MODELS, ids=str)
def test_an_empty_output_has_an_attention_without_rows(
    make_translator: Callable[..., regard.Translator], settings: dict[str, Any]
) -> None:
    translator = make_translator(**settings)
    output_layer = translator.trained.model.decoder.get_submodule("output")
    with torch.no_grad():
        output_layer.get_parameter("bias")[EOS] = 1e3
    for beam_size in (1, 2):
        output = translator.translate("a b", beam_size)
        assert output.tokens == []
        assert output.attention.shape == (0, 3)
        assert output.alignment() == []


@pytest.mark.parametrize("settings", MODELS, ids=str)
def test_every_search_returns_the_posterior(
    make_translator: Callable[..., regard.Translator], settings: dict[str, Any]
) -> None:
    translator = make_translator(**settings)
    texts = ["a b c", "d", "c a d b"]
    greedy = translator.translate(texts, 1, prefix="d a")
    beams = itertools.chain(*translator.translate(texts, 4, 4, prefix="d a"))
    for output in [*greedy, *beams]:
        forced = translator.align([output.source], [output.tokens])[0]
        assert forced.log_prob == pytest.approx(output.log_prob, abs=1e-5)
        assert output.attention.shape[0] == len(output.tokens) >= 2
        np.testing.assert_allclose(output.attention, forced.attention, atol=1e-5)
        np.testing.assert_allclose(output.attention.sum(1), 1, atol=1e-5)


@pytest.mark.parametrize("others", [({},), ({"kind": "transformer"}, {"attention": "none"})])
def test_an_ensemble_aligns_the_weights_of_its_members(
    make_translator: Callable[..., regard.Translator], others: tuple[dict[str, Any], ...]
) -> None:
    members = [make_translator(**settings) for settings in (MODELS[1], *others)]
    trained = combine([(str(n), each.trained) for n, each in enumerate(members)])
    both = regard.Translator(trained, torch.device("cpu"))
    output = both.translate("a b c d", beam_size=3, prefix="d c")
    heads = [
        member.align([output.source], [output.tokens])[0].attention
        for member in members
        if member.trained.model.decoder.attention_layers
    ]
    forced = both.align([output.source], [output.tokens])[0]
    for weights in (output.attention_heads, forced.attention_heads):
        np.testing.assert_allclose(weights[:, 0], np.stack(heads, 1), atol=1e-5)


@pytest.mark.soak
@pytest.mark.parametrize("settings", MODELS[1:], ids=str)
def test_an_exported_model_returns_the_posterior(
    make_translator: Callable[..., regard.Translator],
    settings: dict[str, Any],
    tmp_path: Path,
    unchecked: None,
) -> None:
    """The export compares the outputs of the Python runner, weights included, with those of PyTorch."""
    translator = make_translator(**settings)
    translator.trained.model.decoder.output.bias.data[EOS] -= 9  # otherwise outputs are empty
    assert all(output.tokens for output in translator.translate(["a b c", "d"]))
    folder = export(translator, tmp_path / "exported").folder
    assert '"attention_delay": 1' in (folder / "model.json").read_text(encoding="utf-8")


def test_its_attention_is_not_explained_from_scores(
    make_translator: Callable[..., regard.Translator],
) -> None:
    with pytest.raises(ConfigError, match="depend on the token that they predict"):
        explain_step(make_translator(decoder="posterior"), "a b", 0, target="d")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"copy": True}, "does not support model.copy: leave one of them out"),
        ({"coverage": True, "attention": "additive"}, "does not support model.coverage"),
        ({"kind": "transformer"}, "does not support model.kind transformer"),
        ({"attention": "none"}, "does not support model.attention none"),
        ({"normalizer": "none"}, "does not support model.normalizer none"),
        ({"monotonic": True, "window": "local-m"}, "model.monotonic together with model.window"),
        ({"decoder": "luong", "monotonic": True}, "model.monotonic needs model.decoder posterior"),
    ],
)
def test_what_it_cannot_be_combined_with_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModelConfig(**{"decoder": "posterior", **settings})
