"""The kernel of a recurrent decoder's steps, against the decoder itself in float64, and of its search."""

import copy
import logging
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from kernel_searches import StepsOnly, V, encoded, record_calls
from regard.attention import Memory
from regard.cells import CELLS
from regard.config import ModelConfig
from regard.decoders import Step, fold
from regard.decoders.folded_recurrent import FoldedRecurrentDecoder
from regard.errors import ConfigError
from regard.kernels.cpu.packing import PANEL
from regard.kernels.cpu.processor import LANES
from regard.kernels.decoding import launch
from regard.kernels.linear import FrozenLinear
from regard.kernels.recurrent.op import (
    DecoderWeights,
    KernelState,
    SourceTensors,
    load_kernel,
)
from regard.models import Seq2Seq, build
from regard.search import beam_search
from regard.text import EOS

pytestmark = pytest.mark.usefixtures("unchecked")

DECODERS = ("luong", "bahdanau")
SCORES = ("additive", "concat", "dot", "scaled_dot", "bilinear", "inner_product")


def make_model(**options: Any) -> Seq2Seq:
    widths: dict[str, Any] = {
        "embedding_dim": PANEL, "encoder_dim": 8, "decoder_dim": PANEL, "attention_dim": PANEL,
        "encoder_layers": 1, "decoder_layers": 1,
    }  # fmt: skip
    if options.get("attention") in ("dot", "scaled_dot", "inner_product"):
        widths["encoder_dim"] = PANEL // 2
    return build(ModelConfig(**{**widths, **options}), V, V).eval()


def folded(model: Seq2Seq) -> FoldedRecurrentDecoder:
    decoder = fold(model.decoder)
    assert isinstance(decoder, FoldedRecurrentDecoder)
    return decoder


def run(decoder: Any, memory: Memory, tokens: Tensor, beams: int = 1) -> list[Step]:
    """Return the steps that read the columns of `tokens`; beams change places after each."""
    rows = torch.arange(len(memory.states)).repeat_interleave(beams)
    steps: list[Step] = []
    with torch.no_grad():
        state = decoder.start(memory).select(rows)
        for column in tokens.unbind(1):
            steps.append(decoder.step(column, state))
            swapped = torch.arange(len(rows)).view(-1, beams).flip(1).flatten()
            state = steps[-1].state.select(swapped)
    return steps


MODELS = [
    *[{"decoder": decoder, "attention": name} for decoder in DECODERS for name in SCORES],
    {"decoder": "luong", "attention": "additive", "input_feeding": True},
    {"decoder": "luong", "attention": "dot", "input_feeding": True, "tie_embeddings": True},
    {"decoder": "bahdanau", "attention": "additive", "attention_bias": True, "copy": True},
    {"decoder": "luong", "attention": "bilinear", "attention_scaled": True, "copy": True},
]


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize(
    "options", MODELS, ids=lambda options: "-".join(map(str, options.values()))
)
@settings(max_examples=6)
@given(
    seed=st.integers(0, 2**32 - 1),
    layers=st.integers(1, 3),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=7),
    beams=st.integers(1, 6),
    scale=st.sampled_from([1.0, 3.0]),
)
def test_the_kernel_computes_the_steps_of_the_decoder(
    options: dict[str, object], cell: str, seed: int, layers: int, lengths: list[int], beams: int,
    scale: float,
) -> None:  # fmt: skip
    torch.manual_seed(seed)
    model = make_model(cell=cell, decoder_layers=layers, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    tokens = torch.randint(V, (len(lengths) * beams, 3))
    decoder, exact = folded(model), copy.deepcopy(model).double()
    calls = record_calls(decoder)
    steps = run(decoder, encoded(model, lengths), tokens, beams)
    expected = run(exact.decoder, encoded(exact, lengths), tokens, beams)
    assert calls == [True] * 3
    for found, step in zip(steps, expected, strict=True):
        tolerance = {"rtol": 1e-6 * scale**2, "atol": 2e-6 * scale**2}
        torch.testing.assert_close(found.log_probs.double(), step.log_probs, **tolerance)
        torch.testing.assert_close(found.weights.double(), step.weights, **tolerance)
        pairs = zip(found.state.hidden, step.state.hidden, strict=True)
        for new, layer in (
            (new, layer) for pair in pairs for new, layer in zip(*pair, strict=True)
        ):
            torch.testing.assert_close(new.double(), layer, **tolerance)


def step_cell(
    name: str,
    inputs: Tensor,
    tokens: Tensor,
    added: Tensor | None,
    recurrent: Tensor,
    state: list[Tensor],
) -> tuple[Tensor, ...]:
    """Return the state after a step with these parts of the gates; the recurrent part is a bias."""
    count, width = state[0].shape
    gates = inputs.shape[1]
    square = torch.zeros(width, width), None
    weights = DecoderWeights(
        cell=name, attends_first=added is not None, inputs=inputs, upper=[], feed=None, vector=None,
        recurrent=[(torch.zeros(gates, width), recurrent)], query=(torch.zeros(PANEL, width), None),
        readout=square, output=None,
    )  # fmt: skip
    kernel = load_kernel(weights)
    assert kernel is not None
    readout = torch.zeros(count, width)
    values = readout if added is None else torch.cat([added, readout], 1)
    padding = torch.zeros(count, 1, dtype=torch.bool)
    sources = SourceTensors(torch.zeros(count, 1, PANEL), values[:, None], padding)
    output = kernel.step(tokens, KernelState((tuple(state),), None), sources)
    assert output is not None
    return output.state.hidden[0]


@pytest.mark.parametrize("name", CELLS)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(0, 40),
    vectors=st.integers(1, 3),
    extended=st.booleans(),
    scale=st.sampled_from([0.1, 3.0, 30.0, 1e4]),
)
def test_a_cell_equals_its_equations(
    name: str, seed: int, count: int, vectors: int, extended: bool, scale: float
) -> None:
    generator = torch.Generator().manual_seed(seed)

    def numbers(*shape: int) -> Tensor:
        return scale * torch.randn(shape, generator=generator)

    width = vectors * LANES
    gates = {"lstm": 4, "gru": 3}[name] * width
    inputs, recurrent = numbers(7, gates), numbers(gates)
    tokens = torch.randint(7, (count,), generator=generator)
    added = numbers(count, gates) if extended else None
    state = [torch.tanh(numbers(count, width)) for _ in range(CELLS[name].state_tensors)]
    new = step_cell(name, inputs, tokens, added, recurrent, state)
    chosen = inputs[tokens] if added is None else inputs[tokens] + added
    parts = chosen.double(), recurrent.double().expand(count, -1)
    exact = CELLS[name].step(*parts, [tensor.double() for tensor in state])
    for found, expected in zip(new, exact, strict=True):
        # a rounding of a sum of three terms in the gates, times the slope of at most 1
        torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-6 * max(1, scale))


@pytest.mark.parametrize("name", CELLS)
def test_infinite_gates_saturate_and_nan_stays_in_its_element(name: str) -> None:
    gates = {"lstm": 4, "gru": 3}[name] * LANES
    inputs = torch.zeros(3, gates)
    inputs[0, :LANES] = torch.inf
    inputs[1] = -torch.inf
    inputs[2, 3] = torch.nan
    state = [torch.full((3, LANES), 0.5) for _ in range(CELLS[name].state_tensors)]
    new = step_cell(name, inputs, torch.arange(3), None, torch.zeros(gates), state)
    expected = CELLS[name].step(inputs, torch.zeros(3, gates), state)
    torch.testing.assert_close(new, expected, equal_nan=True)
    assert new[0][2].isnan().sum() == 1


def test_any_number_of_threads_gives_the_same_bits() -> None:
    model = make_model(attention="additive", cell="lstm")
    decoder, lengths = folded(model), [5] * 33
    tokens = torch.randint(V, (66, 2))
    results: list[list[Step]] = []
    threads = torch.get_num_threads()
    try:
        memory = encoded(model, lengths)
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            results.append(run(decoder, memory, tokens, 2))
    finally:
        torch.set_num_threads(threads)
    for steps in results[1:]:
        for step, first in zip(steps, results[0], strict=True):
            assert step.log_probs.equal(first.log_probs)
            assert step.weights.equal(first.weights)


@pytest.mark.parametrize("attention", ["additive", "dot"])
def test_nan_stays_in_its_row_and_infinite_states_are_saturated(attention: str) -> None:
    model = make_model(attention=attention, cell="lstm", decoder="luong")
    decoder = folded(model)
    state = decoder.start(encoded(model, [3, 2, 4]))
    tokens = torch.tensor([4, 5, 6])
    with torch.no_grad():
        expected = decoder.step(tokens, state)
        state.hidden[0][1][1, 2] = torch.nan
        state.hidden[0][1][2, 2] = torch.inf
        step = decoder.step(tokens, state)
    torch.testing.assert_close(step.log_probs[0], expected.log_probs[0])
    assert step.log_probs[1].isnan().all()
    assert step.log_probs[2].isfinite().all()


def test_queries_out_of_the_range_of_the_kernel_are_left_to_pytorch() -> None:
    model = make_model(attention="additive")
    with torch.no_grad():
        model.decoder.attention.score.query_proj.weight.mul_(1e4)
    decoder, exact = folded(model), copy.deepcopy(model).double()
    calls, tokens = record_calls(decoder), torch.tensor([[4], [5]])
    (step,) = run(decoder, encoded(model, [3, 5]), tokens)
    (expected,) = run(exact.decoder, encoded(exact, [3, 5]), tokens)
    assert calls == [False]
    torch.testing.assert_close(step.log_probs.double(), expected.log_probs, atol=1e-4, rtol=1e-4)


SEARCHES = [
    {"decoder": "bahdanau", "attention": "additive"},
    {"decoder": "luong", "attention": "dot"},
    {"decoder": "luong", "attention": "additive", "input_feeding": True},
]


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("options", SEARCHES, ids=lambda options: "-".join(map(str, options)))
@given(
    seed=st.integers(0, 2**32 - 1),
    layers=st.integers(1, 2),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=7),
    beams=st.integers(1, 12),
    n_best=st.integers(1, 4),
    length_penalty=st.sampled_from([0.0, 1.0, 2.5]),
    limit=st.integers(0, 9),
    steps=st.integers(1, 12),
    scale=st.sampled_from([1.0, 4.0]),
)
def test_the_search_of_the_kernel_is_that_of_single_steps(
    options: dict[str, object], cell: str, seed: int, layers: int, lengths: list[int], beams: int,
    n_best: int, length_penalty: float, limit: int, steps: int, scale: float,
) -> None:  # fmt: skip
    torch.manual_seed(seed)
    model = make_model(cell=cell, decoder_layers=layers, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    decoder, memory = folded(model), encoded(model, lengths)
    limits = torch.tensor([limit + length for length in lengths])
    arguments = memory, limits, beams, n_best, length_penalty
    expected = beam_search(StepsOnly(decoder), *arguments)
    found = record_calls(decoder)
    with mock.patch.object(launch, "_MAX_STEPS", steps):
        outputs = beam_search(decoder, *arguments)
    assert found
    assert all(found)
    for output, reference in zip(outputs, expected, strict=True):
        assert [h.ids for h in output] == [h.ids for h in reference]
        assert [(h.score, h.complete) for h in output] == [(h.score, h.complete) for h in reference]
        for hypothesis, other in zip(output, reference, strict=True):
            np.testing.assert_array_equal(hypothesis.weights, other.weights)


def test_a_search_out_of_the_range_of_the_kernel_is_left_to_single_steps() -> None:
    model = make_model(attention="additive")
    with torch.no_grad():
        model.decoder.attention.score.query_proj.weight.mul_(1e4)
        model.decoder.output.bias[EOS] = -10
    decoder, limits = folded(model), torch.tensor([5, 6])
    memory = encoded(model, [3, 5])
    calls = record_calls(decoder)
    outputs = beam_search(decoder, memory, limits, 3)
    assert calls == [False] * (1 + 7)  # one search, then seven steps
    expected = beam_search(model.decoder, memory, limits, 3)
    for (output, *_), (reference, *_) in zip(outputs, expected, strict=True):
        assert output.ids == reference.ids


def test_the_kernel_searches_without_a_practical_limit_of_the_length() -> None:
    model = make_model(attention="dot")
    with torch.no_grad():
        model.decoder.output.bias[EOS] = 3
    decoder, memory = folded(model), encoded(model, [3, 5])
    arguments = memory, torch.full((2,), 2**60), 3, 2, 0.0
    calls = record_calls(decoder)
    outputs = beam_search(decoder, *arguments)
    assert calls
    assert all(calls)
    expected = beam_search(StepsOnly(decoder), *arguments)
    for output, reference in zip(outputs, expected, strict=True):
        assert [(h.ids, h.score) for h in output] == [(h.ids, h.score) for h in reference]


def test_the_kernel_searches_under_any_default_device() -> None:
    model = make_model(attention="dot")
    decoder, memory = folded(model), encoded(model, [3, 5])
    limits = torch.tensor([5, 6])
    expected = beam_search(decoder, memory, limits, 3)
    with torch.device("meta"):
        outputs = beam_search(decoder, memory, limits, 3)
    assert [h.ids for (h,) in outputs] == [h.ids for (h,) in expected]


@pytest.mark.parametrize("length_penalty", [0.7, 1.3, 1.5])
def test_the_type_of_the_length_penalty_does_not_change_scores(length_penalty: float) -> None:
    model = make_model(attention="dot")
    decoder, memory = folded(model), encoded(model, [3, 5, 2, 7, 8])
    arguments = memory, torch.full((5,), 20), 6, 6
    expected = beam_search(decoder, *arguments, length_penalty)
    for kernel in (decoder, StepsOnly(decoder)):
        outputs = beam_search(kernel, *arguments, np.float64(length_penalty))
        for output, reference in zip(outputs, expected, strict=True):
            assert [h.score for h in output] == [h.score for h in reference]


def test_a_search_with_a_weight_that_is_not_a_number_is_refused() -> None:
    model = make_model(attention="dot")
    with torch.no_grad():
        model.decoder.output.bias[5] = torch.nan
    with pytest.raises(ConfigError, match="infinite or NaN"):
        beam_search(folded(model), encoded(model, [3, 5]), torch.tensor([5, 6]), 3)


@pytest.mark.parametrize(
    "options",
    [
        {"decoder_dim": PANEL - 1},
        {"attention_dim": PANEL + 1},
        {"normalizer": "sparsemax"},
        {"coverage": True},
        {"window": "local-m"},
        {"attention": "cosine", "encoder_dim": PANEL // 2},
    ],
    ids=str,
)
def test_other_decoders_are_left_to_pytorch_and_that_is_logged_once(
    options: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    model = make_model(**{"attention": "additive", **options})
    with caplog.at_level(logging.INFO, "regard"):
        decoder = folded(model)
        run(decoder, encoded(model, [3, 5]), torch.randint(V, (2, 3)))
    assert decoder.kernel is None
    assert [record.message for record in caplog.records] == [
        "this decoder is computed step by step in PyTorch: there is no kernel for it"
    ]


def _query_with_bias(decoder: Any) -> None:
    decoder.attention.score.query_proj = nn.Linear(PANEL, PANEL)


def _nonlinear_query(decoder: Any) -> None:
    score = decoder.attention.score
    score.query_proj = nn.Sequential(score.query_proj, nn.Tanh())


def _replaced_projection(decoder: Any) -> None:
    score = decoder.attention.score
    score.project_query = lambda query: torch.tanh(score.query_proj(query))


def _replaced_comparison(decoder: Any) -> None:
    decoder.attention.score.compare = lambda queries, keys: queries @ keys.mT


def _clipped_embeddings(decoder: Any) -> None:
    decoder.embedding.max_norm = 0.5


def _sequential(name: str) -> Callable[[Any], None]:
    def change(decoder: Any) -> None:
        setattr(decoder, name, nn.Sequential(getattr(decoder, name), nn.Tanh()))

    return change


@pytest.mark.parametrize("kind", DECODERS)
@pytest.mark.parametrize(
    "change",
    [
        _query_with_bias, _nonlinear_query, _replaced_projection, _replaced_comparison,
        _clipped_embeddings, *map(_sequential, ["bridge", "readout", "output", "embedding"]),
    ],
)  # fmt: skip
def test_decoders_with_other_modules_are_left_to_pytorch(
    kind: str, change: Callable[[Any], None]
) -> None:
    torch.manual_seed(3)
    model = make_model(attention="additive", decoder=kind)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    tokens, lengths = torch.randint(4, V, (2, 3)), [3, 5]
    before = run(model.decoder, encoded(model, lengths), tokens)
    change(model.decoder)
    decoder: Any = fold(model.decoder)
    steps = run(decoder, encoded(model, lengths), tokens)
    expected = run(model.decoder, encoded(model, lengths), tokens)
    assert getattr(decoder, "kernel", None) is None
    for found, step, unchanged in zip(steps, expected, before, strict=True):
        torch.testing.assert_close(found.log_probs, step.log_probs)
        torch.testing.assert_close(found.weights, step.weights)
        assert not torch.allclose(step.log_probs, unchanged.log_probs)


def test_the_kernel_stays_within_its_inputs() -> None:
    model = make_model(attention="additive", cell="gru", decoder="bahdanau")
    decoder = folded(model)
    start = decoder.start(encoded(model, [3, 2]))
    memory, hidden = start.memory, start.hidden
    kernel, tokens = decoder.kernel, torch.tensor([4, V - 1])
    assert kernel is not None
    state = KernelState(hidden, None)
    sources = SourceTensors(memory.keys[0].prepared, memory.states, memory.padding)
    expected = kernel.step(tokens, state, sources)
    assert expected is not None
    outside = kernel.step(torch.tensor([4, 10**9]), state, sources)
    assert outside is not None
    assert outside.log_probs.equal(expected.log_probs)  # the last token
    transposed = tuple(tuple(t.T.contiguous().T for t in layer) for layer in hidden)
    again = kernel.step(tokens, KernelState(transposed, None), sources)
    assert again is not None
    assert again.log_probs.equal(expected.log_probs)
    doubled = tuple(tuple(t.double() for t in layer) for layer in hidden)
    more, fewer = (
        tuple(tuple(t[rows] for t in layer) for layer in hidden) for rows in ([0, 0, 1, 1], [0])
    )
    for arguments in (
        (tokens.int(), state, sources),
        (tokens[:1], state, sources),
        (tokens, KernelState(doubled, None), sources),
        (tokens, KernelState(hidden * 2, None), sources),
        (tokens, KernelState(more, None), sources),
        (tokens, KernelState(fewer, None), sources),
        (tokens.repeat_interleave(2), state, sources),
        (tokens, KernelState(hidden, hidden[0][0]), sources),
        (tokens, state, sources._replace(keys=sources.keys[:, :-1])),
        (tokens, state, sources._replace(values=sources.values[..., :-1])),
        (tokens, state, sources._replace(padding=sources.padding.long())),
    ):
        assert kernel.step(*arguments) is None
    nothing = SourceTensors(*(tensor[:0] for tensor in sources))
    empty = kernel.step(tokens[:0], KernelState(start.select(tokens[:0]).hidden, None), nothing)
    assert empty is not None
    assert empty.log_probs.shape == (0, V)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("rows", [(), (0,), (1,), (7,), (3, 5)])
def test_a_frozen_linear_layer_equals_a_linear_layer(
    rows: tuple[int, ...], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(17, 9).to(dtype)
    x = torch.randn(*rows, 17).to(dtype)
    for bias in (None, layer.bias):
        expected = torch.nn.functional.linear(x, layer.weight, bias)
        torch.testing.assert_close(FrozenLinear(layer.weight, bias)(x), expected.detach())
