"""The kernel of a Transformer decoder's search, against single steps of the decoder, in float64 too."""

import copy
import logging
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernel_searches import StepsOnly, V, encoded, record_calls
from regard.config import ModelConfig
from regard.decoders import fold
from regard.decoders.folded_transformer import FoldedTransformerDecoder
from regard.errors import ConfigError
from regard.hypotheses import Hypothesis
from regard.kernels.cpu.products import LANES, PANEL
from regard.kernels.decoding import launch
from regard.models import Seq2Seq, build
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
        assert [(h.ids, h.complete) for h in output] == [(h.ids, h.complete) for h in reference]
        for hypothesis, other in zip(output, reference, strict=True):
            assert hypothesis.score == pytest.approx(other.score, rel=tolerance, abs=tolerance)
            np.testing.assert_allclose(hypothesis.weights, other.weights, 0, tolerance)


MODELS = [
    {},
    {"attention": "dot", "heads": 1, "positions": "learned"},
    {"attention": "bilinear", "activation": "gelu"},
    {"attention": "inner_product", "activation": "swiglu", "tie_embeddings": True},
    {"pre_norm": False, "feed_forward_dim": PANEL, "decoder_layers": 1},
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
    # in float64, no rounding decides between two hypotheses
    exact = copy.deepcopy(model).double()
    limits = torch.tensor([limit + length for length in lengths])
    arguments = limits, beams, n_best, length_penalty
    expected = beam_search(exact.decoder, encoded(exact, lengths), *arguments)
    decoder = folded(model)
    found = record_calls(decoder)
    with mock.patch.object(launch, "_MAX_STEPS", steps):
        outputs = beam_search(decoder, encoded(model, lengths), *arguments)
    assert found
    assert all(found)
    assert_equal_outputs(outputs, expected, 2e-5)


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


def test_steps_after_those_of_the_kernel_are_left_to_pytorch() -> None:
    model = make_model()
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
        {"positions": "rotary"},
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


def test_modules_of_others_and_modules_with_hooks_are_called() -> None:
    model = make_model()
    calls = list[int]()
    model.decoder.layers[1].feed_forward.register_forward_hook(lambda *_: calls.append(1))
    assert fold(model.decoder) is model.decoder
    beam_search(fold(model.decoder), encoded(model, [3]), torch.tensor([4]), 1)
    assert calls
