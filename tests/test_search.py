"""Beam search compared with brute force, and its attention weights with forced decoding."""

import functools
import itertools
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from regard.attention import Memory
from regard.config import ModelConfig
from regard.decoders import Decoder, Step
from regard.errors import ConfigError, DataError, ShapeError
from regard.hypotheses import length_normalization
from regard.models import Seq2Seq, build
from regard.search import SearchConstraints, beam_search, forced_decode
from regard.text import BOS, EOS, PAD

V = 7


def _model(**settings: object) -> Seq2Seq:
    torch.manual_seed(5)
    config = ModelConfig(
        embedding_dim=6, encoder_dim=6, decoder_dim=6, attention_dim=6, dropout=0.0, **settings
    )
    model = build(config, V, V).eval()
    for parameter in model.parameters():  # sharper, so that hypotheses differ in score
        parameter.data.mul_(2.5)
    return model


def _memory(model: Seq2Seq) -> Memory:
    source = torch.tensor([[4, 5, 6, 3], [6, 3, 0, 0], [5, 5, 3, 0]])
    with torch.inference_mode():
        return model.encode(source, torch.tensor([4, 2, 3]))


def _limits(*values: int) -> Tensor:
    return torch.tensor(values)


def _all_outputs(model: Seq2Seq, memory: Memory, item: int, limit: int, length_penalty: float):
    """Return every output of up to `limit` tokens with its score, best first."""
    vocabulary = [1, 4, 5, 6]
    outputs = [
        list(ids) for n in range(limit + 1) for ids in itertools.product(vocabulary, repeat=n)
    ]
    repeated = memory.select(torch.tensor([item] * len(outputs)))
    hypotheses = forced_decode(model.decoder, repeated, outputs, length_penalty)
    return sorted(hypotheses, key=lambda hypothesis: -hypothesis.score)


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("decoder", ["luong", "bahdanau"])
def test_a_wide_beam_equals_brute_force(decoder: str, length_penalty: float) -> None:
    model = _model(decoder=decoder)
    memory = _memory(model)
    outputs = beam_search(
        model.decoder,
        memory,
        _limits(4, 4, 4),
        beam_size=200,
        n_best=10,
        length_penalty=length_penalty,
    )
    for item in range(3):
        best = _all_outputs(model, memory, item, 4, length_penalty)[:10]
        assert [output.ids for output in outputs[item]] == [output.ids for output in best]
        np.testing.assert_allclose(
            [output.score for output in outputs[item]], [output.score for output in best], atol=1e-5
        )


@pytest.mark.parametrize("beam_size", [1, 2, 5])
@pytest.mark.parametrize(
    "settings",
    [
        {"attention": "additive"},
        {"attention": "dot", "input_feeding": True},
        {"attention": "cosine", "decoder": "bahdanau", "cell": "gru"},
        {"attention": "concat", "decoder_layers": 2},
    ],
    ids=str,
)
def test_attention_of_search_equals_forced_decoding(
    settings: dict[str, object], beam_size: int
) -> None:
    model = _model(**settings)
    memory = _memory(model)
    outputs = beam_search(
        model.decoder, memory, _limits(9, 9, 9), beam_size=beam_size, n_best=beam_size
    )
    for item, hypotheses in enumerate(outputs):
        repeated = memory.select(torch.tensor([item] * len(hypotheses)))
        forced = forced_decode(
            model.decoder, repeated, [hypothesis.ids for hypothesis in hypotheses]
        )
        for hypothesis, expected in zip(hypotheses, forced, strict=True):
            assert hypothesis.weights.shape == (len(hypothesis.ids), 1, 1, 4)
            np.testing.assert_allclose(hypothesis.weights, expected.weights, atol=2e-6)
            assert hypothesis.score == pytest.approx(expected.score, abs=1e-5)


def test_attention_none_has_no_weights() -> None:
    model = _model(attention="none")
    outputs = beam_search(model.decoder, _memory(model), _limits(5, 5, 5), beam_size=3, n_best=2)
    assert all(output.weights is None for best in outputs for output in best)


def test_greedy_search_takes_the_most_probable_token_of_every_step() -> None:
    model = _model(attention="additive")
    memory = _memory(model)
    outputs = beam_search(model.decoder, memory, _limits(6, 6, 6), beam_size=1)
    for item, (hypothesis,) in enumerate(outputs):
        state = model.decoder.start(memory.select(torch.tensor([item])))
        ids, token = [], torch.tensor([BOS])
        while len(ids) <= 6:
            with torch.inference_mode():
                step = model.decoder.step(token, state)
            state, log_probs = step.state, step.log_probs[0].clone()
            log_probs[[PAD, BOS]] = -torch.inf
            token = log_probs.argmax()[None]
            if token == EOS:
                break
            ids.append(int(token))
        assert hypothesis.ids == ids[:6]


@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize("decoder", ["luong", "bahdanau"])
def test_top_logprobs_are_the_decoders_own_distribution(decoder: str, beam_size: int) -> None:
    model = _model(decoder=decoder, attention="additive")
    memory = _memory(model)
    prefixes = torch.tensor([[5, 4], [6, 0], [0, 0]])
    pins = torch.full((3, 2, 4), torch.nan)
    constraints = SearchConstraints(prefixes, pins)
    outputs = beam_search(
        model.decoder, memory, _limits(4, 6, 2), beam_size, 1, 1.0, constraints, top_logprobs=3
    )
    for item, (hypothesis,) in enumerate(outputs):
        assert hypothesis.top is not None
        assert len(hypothesis.top) == len(hypothesis.ids) + 1
        state = model.decoder.start(memory.select(torch.tensor([item])))
        for token, top in zip([BOS, *hypothesis.ids], hypothesis.top, strict=True):
            with torch.inference_mode():
                step = model.decoder.step(torch.tensor([token]), state)
            possible = step.log_probs[0].index_fill(0, torch.tensor([PAD, BOS]), -torch.inf)
            state, expected = step.state, possible.topk(3)
            assert [entry.id for entry in top] == expected.indices.tolist()
            values = [entry.log_prob for entry in top]
            np.testing.assert_allclose(values, expected.values, atol=1e-5)
    assert beam_search(model.decoder, memory, _limits(2, 2, 2))[0][0].top is None


def test_hypotheses_come_best_first_and_differ() -> None:
    model = _model()
    for best in beam_search(model.decoder, _memory(model), _limits(8, 8, 8), 6, n_best=6):
        scores = [output.score for output in best]
        assert scores == sorted(scores, reverse=True)
        assert len({tuple(output.ids) for output in best}) == len(best) == 6


def test_a_beam_size_is_any_whole_number(unchecked: None) -> None:
    model = _model()
    search = functools.partial(beam_search, model.decoder, _memory(model), _limits(4, 4, 4))
    for size in (np.int64(3), torch.tensor(3)):
        assert [best[0].ids for best in search(size)] == [best[0].ids for best in search(3)]


def test_a_batch_equals_its_sources_alone() -> None:
    model = _model()
    memory = _memory(model)
    together = beam_search(model.decoder, memory, _limits(3, 9, 6), 4, n_best=2)
    for item, limit in enumerate((3, 9, 6)):
        alone = beam_search(
            model.decoder, memory.select(torch.tensor([item])), _limits(limit), 4, n_best=2
        )[0]
        for left, right in zip(alone, together[item], strict=True):
            assert left.ids == right.ids
            assert left.score == pytest.approx(right.score, abs=1e-6)
            assert left.complete == right.complete


def test_no_sources_give_no_outputs() -> None:
    model = _model()
    memory = _memory(model).select(torch.tensor([], dtype=torch.long))
    assert beam_search(model.decoder, memory, _limits().long(), 3) == []


def test_length_penalty_is_that_of_wu_et_al() -> None:
    assert length_normalization(1, 1.0) == pytest.approx(1.0)
    assert length_normalization(7, 0.5) == pytest.approx(2**0.5)
    assert length_normalization(50, 0.0) == 1.0


@dataclass
class _CountingState:
    memory: Memory
    length: Tensor

    def select(self, rows: Tensor, items: Tensor | None = None) -> "_CountingState":
        memory = self.memory if items is None else self.memory.select(items)
        return _CountingState(memory, self.length[rows])


class _Endless(Decoder):
    """A decoder that never predicts EOS: search must stop at the limit and mark outputs incomplete."""

    def start(self, memory: Memory) -> _CountingState:
        return _CountingState(memory, torch.zeros(len(memory.states)))

    def step(self, token: Tensor, state: _CountingState) -> Step:
        log_probs = torch.full((len(token), V), -50.0)
        log_probs[:, 5] = -0.1
        return Step(log_probs, _CountingState(state.memory, state.length + 1), None)


@pytest.mark.parametrize("beam_size", [1, 3])
def test_outputs_truncated_at_their_limit_are_incomplete(beam_size: int) -> None:
    memory = _memory(_model())
    outputs = beam_search(_Endless(), memory, _limits(2, 4, 0), beam_size)  # type: ignore[arg-type]
    assert [best[0].ids for best in outputs] == [[5, 5], [5, 5, 5, 5], []]
    assert not any(best[0].complete for best in outputs)


def test_the_size_of_the_attention_weights_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    model = _model()
    memory, limits = _memory(model), _limits(9, 9, 9)
    found = beam_search(model.decoder, memory, limits, 2)
    steps = max(len(best[0].ids) + 1 for best in found)
    monkeypatch.setattr("regard.search.MOST_WEIGHT_BYTES", 4 * 4 * 2 * 10)
    beam_search(model.decoder, memory, limits, 2)
    monkeypatch.setattr("regard.search.MOST_WEIGHT_BYTES", 4 * 4 * 2)
    assert steps >= 5  # so that the weights of the whole batch exceed the first limit
    with pytest.raises(
        DataError, match=r"attention weights of a text take more than .* after \d+ steps"
    ):
        beam_search(model.decoder, memory, limits, 2)


def test_the_size_of_the_weights_of_given_targets_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = _model()
    memory = _memory(model)
    targets, most = [[4, 5], [4], []], 4 * 3 * memory.states.shape[1]
    monkeypatch.setattr("regard.search.MOST_WEIGHT_BYTES", most)
    forced_decode(model.decoder, memory, targets)
    monkeypatch.setattr("regard.search.MOST_WEIGHT_BYTES", most - 1)
    forced_decode(model.decoder, memory, targets, need_weights=False)
    with pytest.raises(DataError, match="attention weights of a text take more than"):
        forced_decode(model.decoder, memory, targets)


def test_special_tokens_are_never_generated() -> None:
    class _SpecialTokens(_Endless):
        def step(self, token: Tensor, state: _CountingState) -> Step:
            step = super().step(token, state)
            step.log_probs[:, [PAD, BOS]] = 0.0
            return step

    memory, limits = _memory(_model()), _limits(3, 3, 3)
    outputs = beam_search(_SpecialTokens(), memory, limits, 2, top_logprobs=100)  # type: ignore[arg-type]
    for (output,) in outputs:
        assert not {PAD, BOS} & set(output.ids)
        assert output.top is not None
        assert all({entry.id for entry in step}.isdisjoint({PAD, BOS}) for step in output.top)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"length_penalty": float("nan")},
            ConfigError,
            r"length_penalty must lie in \[0, 10\], got nan",
        ),
        ({"length_penalty": 1e6}, ConfigError, r"\[0, 10\], got 1000000.0"),
        *(
            (
                {"top_logprobs": count},
                ConfigError,
                f"top_logprobs takes a whole number, got {count!r}",
            )
            for count in ("3", 2.5, True)
        ),
        ({"top_logprobs": -1}, ConfigError, "top_logprobs must be at least 0, got -1"),
        ({"beam_size": 1.5}, ConfigError, "beam_size takes a whole number, got 1.5"),
        ({"n_best": True}, ConfigError, "n_best takes a whole number, got True"),
        ({"limits": torch.tensor([5])}, ShapeError, r"\(3,\), got torch.int64 \(1,\)"),
        ({"limits": _limits(4, -1, 4)}, ConfigError, "limits must be at least 0, got -1"),
        ({"limits": torch.ones(3)}, ShapeError, r"integer .*, got torch.float32 \(3,\)"),
    ],
)
def test_invalid_arguments_of_a_search(
    options: dict[str, object], error: type[Exception], message: str, unchecked: None
) -> None:
    model = _model()
    arguments: dict[str, object] = {"limits": _limits(4, 4, 4)} | options
    with pytest.raises(error, match=message):
        beam_search(model.decoder, _memory(model), **arguments)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        ([[4], [5]], "as many targets as sources, got 2 and 3"),
        ([[4], [5, PAD], [6]], r"without PAD, BOS and EOS, got the ids \[5, 0\]"),
        ([[4], [5], [BOS]], r"got the ids \[2\]"),
        ([[4], [5], [V]], r"ids of the vocabulary, 0 to 6, got 7"),
        ([[4], [-1], [5]], r"ids of the vocabulary, 0 to 6, got -1"),
    ],
)
def test_invalid_targets_of_forced_decoding(targets: list[list[int]], message: str) -> None:
    model = _model()
    with pytest.raises(DataError, match=message):
        forced_decode(model.decoder, _memory(model), targets)
