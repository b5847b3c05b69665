"""The kernel of a Transformer decoder's search, against single steps of the decoder, in float64 too."""

import copy
import logging
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import regard
from kernel_searches import StepsOnly, V, encoded, record_calls
from regard.attention import MultiHeadAttention
from regard.config import ModelConfig
from regard.decoders import fold
from regard.decoders.folded_transformer import FoldedTransformerDecoder
from regard.errors import ConfigError
from regard.hypotheses import Hypothesis
from regard.kernels.cpu.packing import PANEL
from regard.kernels.cpu.processor import LANES
from regard.kernels.decoding import launch
from regard.layers import FeedForward
from regard.models import Seq2Seq, build
from regard.positions import RotaryPositions
from regard.search import beam_search, forced_decode
from regard.text import EOS


def make_model(**options: Any) -> Seq2Seq:
    widths: dict[str, Any] = {
        "kind": "transformer", "encoder_dim": 16, "decoder_dim": 2 * PANEL, "heads": 2,
        "feed_forward_dim": 3 * PANEL, "encoder_layers": 1, "decoder_layers": 2,
    }  # fmt: skip
    return build(ModelConfig(**{**widths, **options}), V, V).eval()


def folded(model: Seq2Seq) -> FoldedTransformerDecoder:
    decoder = fold(model.decoder)
    assert isinstance(decoder, FoldedTransformerDecoder)
    return decoder


def assert_equal_outputs(
    outputs: list[list[Hypothesis]], expected: list[list[Hypothesis]], tolerance: float
) -> None:
    for output, reference in zip(outputs, expected, strict=True):
        scores = [h.score for h in reference]
        assert [h.score for h in output] == pytest.approx(scores, rel=tolerance, abs=tolerance)
        assert [(h.ids, h.complete) for h in output] == [(h.ids, h.complete) for h in reference]
        for hypothesis, other in zip(output, reference, strict=True):
            np.testing.assert_allclose(hypothesis.weights, other.weights, 0, tolerance)


pytestmark = pytest.mark.usefixtures("unchecked")

MODELS = [
    {},
    {"attention": "dot", "heads": 1, "positions": "learned"},
    {"attention": "bilinear", "activation": "gelu"},
    {"attention": "inner_product", "activation": "swiglu", "tie_embeddings": True},
    {"pre_norm": False, "feed_forward_dim": PANEL, "decoder_layers": 1},
    {"positions": "rotary", "heads": 1},
    {"positions": "rotary", "heads": 2, "attention": "dot"},
]


@pytest.mark.parametrize(
    "options", MODELS, ids=lambda options: "-".join(map(str, options.values()))
)
@given(
    seed=st.integers(0, 2**32 - 1),
    lengths=st.lists(st.integers(1, 19), min_size=1, max_size=7),
    beams=st.integers(1, 12),
    n_best=st.integers(1, 4),
    length_penalty=st.sampled_from([0.0, 1.0, 2.5]),
    limit=st.integers(0, 20),
    steps=st.integers(1, 12),
)
def test_the_search_of_the_kernel_is_that_of_single_steps(
    options: dict[str, object], seed: int, lengths: list[int], beams: int, n_best: int,
    length_penalty: float, limit: int, steps: int,
) -> None:  # fmt: skip
    torch.manual_seed(seed)
    model = make_model(**options)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # norms and biases, which are 1 and 0
                parameter.add_(0.2 * torch.randn_like(parameter))
    exact = copy.deepcopy(model).double()
    limits = torch.tensor([limit + length for length in lengths])
    arguments = limits, beams, n_best, length_penalty
    exact_memory = encoded(exact, lengths)
    expected = beam_search(exact.decoder, exact_memory, *arguments)
    decoder = folded(model)
    found = record_calls(decoder)
    with mock.patch.object(launch, "_MAX_STEPS", steps):
        outputs = beam_search(decoder, encoded(model, lengths), *arguments)
    assert found
    assert all(found)
    for row, (output, reference) in enumerate(zip(outputs, expected, strict=True)):
        if [h.ids for h in output] != [h.ids for h in reference]:
            # in float32, others may have the same scores, which are theirs in float64, too
            memory = exact_memory.select(torch.tensor([row]))
            targets = [[h.ids] for h in output]
            forced = [forced_decode(exact.decoder, memory, t, length_penalty)[0] for t in targets]
            scores = [h.score for h in reference]
            assert [h.score for h in forced] == pytest.approx(scores, rel=2e-5, abs=2e-5)
            reference = [
                f._replace(complete=h.complete) for f, h in zip(forced, output, strict=True)
            ]
        assert_equal_outputs([output], [reference], 2e-5)


def test_scores_and_weights_are_those_of_forced_decoding() -> None:
    model = make_model(activation="gelu")
    memory, limits = encoded(model, [7, 3, 12]), torch.tensor([40, 50, 60])
    outputs = beam_search(folded(model), memory, limits, 4, 4, 0.0)
    for rank in range(4):
        chosen = [output[rank] for output in outputs]
        forced = forced_decode(model.decoder, memory, [h.ids for h in chosen], 0.0)
        for hypothesis, other in zip(chosen, forced, strict=True):
            assert hypothesis.score == pytest.approx(other.score, rel=1e-5)
            np.testing.assert_allclose(hypothesis.weights, other.weights, 0, 1e-5)


def test_a_batch_equals_its_sources_one_by_one_on_any_number_of_threads() -> None:
    model, lengths = make_model(), [5, 1, 9, 9, 2] * 13
    decoder, memory = folded(model), encoded(model, lengths)
    limits, threads = torch.full((65,), 12), torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        outputs = beam_search(decoder, memory, limits, 3, 2)
        torch.set_num_threads(1)
        same = beam_search(decoder, memory, limits, 3, 2)
        for row in range(0, 65, 9):
            alone = memory.select(torch.tensor([row]))
            (output,) = beam_search(decoder, alone, limits[:1], 3, 2)
            assert_equal_outputs([outputs[row]], [output], 0)
    finally:
        torch.set_num_threads(threads)
    assert_equal_outputs(outputs, same, 0)


def test_the_kernel_searches_under_any_default_device() -> None:
    model = make_model()
    decoder, memory = folded(model), encoded(model, [3, 5])
    limits = torch.tensor([50, 60])
    expected = beam_search(decoder, memory, limits, 3)
    with torch.device("meta"):
        outputs = beam_search(decoder, memory, limits, 3)
    assert [h.ids for (h,) in outputs] == [h.ids for (h,) in expected]


def test_a_search_with_a_weight_that_is_not_a_number_is_refused() -> None:
    model = make_model()
    with torch.no_grad():
        model.decoder.output.bias[5] = torch.nan
    with pytest.raises(ConfigError, match="infinite or NaN"):
        beam_search(folded(model), encoded(model, [3, 5]), torch.tensor([5, 6]), 3)


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_steps_after_those_of_the_kernel_are_left_to_pytorch(positions: str) -> None:
    model = make_model(positions=positions)
    with torch.no_grad():
        model.decoder.output.bias[EOS] = -10
    decoder, memory = folded(model), encoded(model, [3, 6])
    limits, kernel = torch.tensor([20, 30]), decoder.kernel
    assert kernel is not None
    searches, calls = kernel.search, list[int]()

    def once(*arguments: Any) -> Any:
        calls.append(1)
        return searches(*arguments) if len(calls) == 1 else None

    with (
        mock.patch.object(launch, "_MAX_STEPS", 7),
        mock.patch.object(kernel, "search", once),
    ):
        outputs = beam_search(decoder, memory, limits, 3, 2)
    assert len(calls) == 2
    assert_equal_outputs(outputs, beam_search(StepsOnly(decoder), memory, limits, 3, 2), 1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"decoder_dim": 2 * PANEL + 2},
        {"heads": 2 * PANEL // LANES * 2},
        {"feed_forward_dim": PANEL + 1},
        {"normalizer": "sparsemax"},
        {"attention": "additive"},
        {"attention": "cosine"},
        {"positions": "rotary", "heads": 2 * PANEL // LANES},
        {"positions": "rotary", "heads": 1, "attention": "bilinear"},
        {"copy": True},
    ],
    ids=str,
)
def test_other_decoders_are_left_to_pytorch_and_that_is_logged_once(
    options: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    model = make_model(**options)
    memory, limits = encoded(model, [3, 5]), torch.tensor([5, 6])
    with caplog.at_level(logging.INFO, "regard"):
        decoder = folded(model)
        outputs = beam_search(decoder, memory, limits, 3)
    assert decoder.kernel is None
    assert_equal_outputs(outputs, beam_search(model.decoder, memory, limits, 3), 0)
    assert [record.message for record in caplog.records] == [
        "this decoder is computed step by step in PyTorch: there is no kernel for it"
    ]


def _wider(model: Seq2Seq) -> None:
    model.decoder.layers[1].feed_forward = FeedForward(2 * PANEL, 5 * PANEL, "relu", 0.0)


def _other_heads(model: Seq2Seq) -> None:
    model.decoder.layers[1].self_attention = MultiHeadAttention(2 * PANEL, 1)


def _without_bias(model: Seq2Seq) -> None:
    model.decoder.layers[0].cross_attention = MultiHeadAttention(
        2 * PANEL, 2, bias=False, kdim=16, vdim=16
    )


def _rotary_positions_of_the_source(model: Seq2Seq) -> None:
    model.decoder.layers[0].cross_attention = MultiHeadAttention(
        2 * PANEL, 2, kdim=16, vdim=16, position_encoding=RotaryPositions()
    )


def _without_output_projection(model: Seq2Seq) -> None:
    layer = MultiHeadAttention(2 * PANEL, 2, output_projection=False)
    model.decoder.layers[0].self_attention = layer


def _other_activation(model: Seq2Seq) -> None:
    model.decoder.layers[1].feed_forward.activation = torch.nn.functional.gelu


def _other_network(model: Seq2Seq) -> None:
    model.decoder.layers[0].feed_forward = torch.nn.Sequential(
        torch.nn.Linear(2 * PANEL, PANEL), torch.nn.Linear(PANEL, 2 * PANEL)
    )


def _other_last_norm(model: Seq2Seq) -> None:
    model.decoder.norm = torch.nn.RMSNorm(2 * PANEL)


def _no_last_norm(model: Seq2Seq) -> None:
    model.decoder.norm = torch.nn.Identity()


def _norm_without_bias(model: Seq2Seq) -> None:
    model.decoder.layers[1].residuals[0].norm = torch.nn.LayerNorm(2 * PANEL, bias=False)


@pytest.mark.parametrize(
    "change",
    [
        _wider, _other_heads, _without_bias, _rotary_positions_of_the_source,
        _without_output_projection, _other_activation, _other_network, _other_last_norm,
        _no_last_norm, _norm_without_bias,
    ],
)  # fmt: skip
def test_decoders_with_other_modules_are_left_to_pytorch(change: Callable[[Seq2Seq], None]) -> None:
    model = make_model()
    change(model)
    decoder, memory, limits = folded(model), encoded(model, [3, 5]), torch.tensor([9, 12])
    assert decoder.kernel is None
    expected = beam_search(model.decoder, memory, limits, 3)
    assert_equal_outputs(beam_search(decoder, memory, limits, 3), expected, 0)


def test_weights_that_change_between_translations_are_followed(
    make_translator: Callable[..., regard.Translator],
) -> None:
    widths = {"encoder_dim": 16, "decoder_dim": 2 * PANEL, "feed_forward_dim": PANEL}
    translator = make_translator(kind="transformer", **widths)
    before = translator.translate("a b c")
    decoder = translator.trained.model.decoder
    with torch.no_grad():
        decoder.output.bias += torch.arange(len(decoder.output.bias))
    changed = translator.translate("a b c", top_logprobs=1)  # step by step
    after = translator.translate("a b c")
    assert after.tokens == changed.tokens != before.tokens
    assert after.score == pytest.approx(changed.score, rel=1e-5)
    _wider(translator.trained.model)
    changed = translator.translate("a b c", top_logprobs=1)
    assert translator.translate("a b c").score == pytest.approx(changed.score, rel=1e-6)


@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_under_autocast_steps_are_those_of_the_decoder(positions: str) -> None:
    model = make_model(positions=positions)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        memory, limits = encoded(model, [3, 5]), torch.tensor([9, 12])
        expected = beam_search(model.decoder, memory, limits, 3)
        outputs = beam_search(folded(model), memory, limits, 3)
    assert_equal_outputs(outputs, expected, 0)


@torch.no_grad()
def test_weights_folded_under_autocast_are_not_rounded() -> None:
    model = make_model(attention="bilinear")
    with torch.autocast("cpu", torch.bfloat16):
        decoder = folded(model)
    memory, limits = encoded(model, [3, 5]), torch.tensor([9, 12])
    expected = beam_search(folded(model), memory, limits, 3)
    assert_equal_outputs(beam_search(decoder, memory, limits, 3), expected, 0)


def test_a_call_computes_several_steps_whatever_their_work() -> None:
    model = make_model()
    with torch.no_grad():
        model.decoder.output.bias[EOS] = -100
    decoder, memory = folded(model), encoded(model, [3, 5])
    calls = record_calls(decoder)
    with mock.patch.object(launch, "_MAX_WORK", 0):
        beam_search(decoder, memory, torch.tensor([30, 39]), 2)
    assert calls == [True] * 5  # of 8 steps each


def test_the_weights_of_a_call_are_bounded() -> None:
    model = make_model()
    with torch.no_grad():
        model.decoder.output.bias[EOS] = -100
    decoder, memory = folded(model), encoded(model, [5])
    calls = record_calls(decoder)
    layers, heads = model.decoder.attention_layers, model.decoder.attention_heads
    three_steps = 3 * 4 * 2 * layers * heads * 5
    with mock.patch("regard.kernels.transformer.launch.MOST_WEIGHT_BYTES", three_steps):
        found = beam_search(decoder, memory, torch.tensor([11]), 2)
    assert calls == [True] * 4  # of 3 steps each
    assert_equal_outputs(found, beam_search(decoder, memory, torch.tensor([11]), 2), 0)


def test_modules_of_others_and_modules_with_hooks_are_called() -> None:
    model = make_model()
    calls = list[int]()
    model.decoder.layers[1].feed_forward.register_forward_hook(lambda *_: calls.append(1))
    assert fold(model.decoder) is model.decoder
    beam_search(fold(model.decoder), encoded(model, [3]), torch.tensor([4]), 1)
    assert calls
