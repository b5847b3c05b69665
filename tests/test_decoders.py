"""Every decoder: step equals unroll, a batch equals its items, padding has no effect."""

from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from regard.batching import Batch
from regard.cells import CELLS
from regard.config import ModelConfig
from regard.decoders import fold
from regard.models import Seq2Seq, build
from regard.score_registry import SCORES

V = 11

ATTENDING = [
    *[{"decoder": "luong", "attention": name} for name in SCORES],
    *[{"decoder": "bahdanau", "attention": name} for name in SCORES],
    {"decoder": "luong", "attention": "additive", "input_feeding": True},
    {"decoder": "luong", "attention": "dot", "input_feeding": True, "tie_embeddings": True},
    {"decoder": "luong", "attention": "additive", "normalizer": "none"},
    {"decoder": "luong", "attention": "additive", "normalizer": "sparsemax"},
    {"decoder": "luong", "attention": "dot", "window": "local-m", "window_radius": 1},
    {"decoder": "luong", "attention": "additive", "window": "local-p", "window_radius": 2},
    {"decoder": "bahdanau", "attention": "additive", "window": "local-p", "window_radius": 2},
    {"decoder": "luong", "attention": "concat", "attention_bias": True},
    {"decoder": "bahdanau", "attention": "additive", "attention_bias": True, "coverage": True},
    {"decoder": "luong", "attention": "bilinear", "attention_scaled": True},
    {"decoder": "luong", "attention": "additive", "coverage": True},
    {"decoder": "luong", "attention": "concat", "coverage": True, "input_feeding": True},
    {"decoder": "bahdanau", "attention": "additive", "coverage": True},
    {"decoder": "bahdanau", "attention": "concat", "coverage": True, "window": "local-p"},
]
TRANSFORMER = {"kind": "transformer", "encoder_dim": 8, "decoder_dim": 8}
TRANSFORMERS = [
    *[{**TRANSFORMER, "attention": name} for name in SCORES],
    {**TRANSFORMER, "attention": "bilinear", "attention_scaled": True},
    {**TRANSFORMER, "attention": "scaled_dot", "positions": "rotary", "pre_norm": False},
    {**TRANSFORMER, "attention": "additive", "positions": "learned", "activation": "swiglu"},
    {**TRANSFORMER, "attention": "dot", "normalizer": "entmax15", "tie_embeddings": True},
    {**TRANSFORMER, "attention": "scaled_dot", "encoder": "rnn", "encoder_dim": 5},
]
MIXED = [
    {"encoder": "transformer", "encoder_dim": 8, "attention": name, "decoder": decoder}
    for name, decoder in (("additive", "bahdanau"), ("dot", "luong"), ("none", "luong"))
]
POSTERIOR = [
    *[{"decoder": "posterior", "attention": name} for name in SCORES],
    {"decoder": "posterior", "attention": "dot", "input_feeding": True, "tie_embeddings": True},
    {"decoder": "posterior", "attention": "additive", "monotonic": True},
    {"decoder": "posterior", "attention": "dot", "monotonic": True, "input_feeding": True},
    {"decoder": "posterior", "attention": "additive", "monotonic": True, "normalizer": "entmax15"},
    {"decoder": "posterior", "attention": "dot", "normalizer": "sparsemax"},
    {"decoder": "posterior", "attention": "additive", "window": "local-m", "window_radius": 1},
    {"decoder": "posterior", "attention": "additive", "window": "local-p", "window_radius": 2},
    {"decoder": "posterior", "attention": "concat", "attention_bias": True},
]
DECODERS = [{"attention": "none"}, *ATTENDING, *POSTERIOR, *TRANSFORMERS, *MIXED]


def _model(settings: dict[str, object], cell: str = "gru", layers: int = 2) -> Seq2Seq:
    torch.manual_seed(3)
    widths: dict[str, Any] = {
        "embedding_dim": 5, "encoder_dim": 6, "decoder_dim": 7, "attention_dim": 4,
        "encoder_layers": layers, "decoder_layers": layers, "heads": 2, "feed_forward_dim": 9,
    }  # fmt: skip
    config = ModelConfig(**{**widths, "cell": cell, "dropout": 0.3, **settings})
    return build(config, V, V).eval()


def _sources() -> tuple[Tensor, Tensor]:
    source = torch.tensor([[4, 5, 6, 3, 0, 0], [7, 3, 0, 0, 0, 0], [8, 9, 10, 4, 5, 3]])
    return source, torch.tensor([4, 2, 6])


def _targets() -> Tensor:
    return torch.tensor([[2, 4, 5, 6], [2, 7, 8, 0], [2, 9, 10, 4]])


def _name(settings: dict[str, object]) -> str:
    return "-".join(str(value) for key, value in settings.items() if not key.endswith("_dim"))


def _with_cells(settings: list[dict[str, object]]) -> list[Any]:
    """Return settings, each with one cell, in turn; with the other cells they are long tests."""
    return [
        pytest.param(each, cell, id=f"{_name(each)}-{cell}", marks=marks)
        for index, each in enumerate(settings)
        for number, cell in enumerate(CELLS)
        for marks in [() if index % len(CELLS) == number else pytest.mark.soak]
    ]


@pytest.mark.parametrize(("settings", "cell"), _with_cells(DECODERS))
def test_step_equals_unroll(settings: dict[str, object], cell: str) -> None:
    model = _model(settings, cell)
    memory = model.encode(*_sources())
    unrolled = model.decoder.unroll(memory, _targets(), need_weights=True)
    expected = torch.log_softmax(model.decoder.predict(unrolled.states), -1)
    for decoder in (model.decoder, fold(model.decoder)):
        state = decoder.start(memory)
        for t, tokens in enumerate(_targets().unbind(1)):
            step = decoder.step(tokens, state)
            state = step.state
            torch.testing.assert_close(step.log_probs, expected[:, t], atol=2e-6, rtol=1e-5)
            if settings["attention"] == "none":
                assert step.weights is None
                assert unrolled.weights is None
            else:
                expected_weights = unrolled.weights[:, t]
                torch.testing.assert_close(step.weights, expected_weights, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize(("settings", "cell"), _with_cells(ATTENDING))
def test_folded_weights_give_the_same_steps(settings: dict[str, object], cell: str) -> None:
    # widths for which there are kernels
    model = _model({**settings, "encoder_dim": 16, "decoder_dim": 32, "attention_dim": 32}, cell)
    decoder = fold(model.decoder)
    with torch.no_grad():
        memory = model.encode(*_sources())
        state, folded = model.decoder.start(memory), decoder.start(memory)
        for tokens in _targets().unbind(1):
            step = model.decoder.step(tokens, state)
            faster = decoder.step(tokens, folded)
            torch.testing.assert_close(faster.log_probs, step.log_probs, atol=2e-6, rtol=1e-5)
            torch.testing.assert_close(faster.weights, step.weights, atol=2e-6, rtol=1e-5)
            rows = torch.tensor([2, 0, 1])
            items = torch.tensor([2, 0, 1])
            state, folded = step.state.select(rows, items), faster.state.select(rows, items)


@pytest.mark.parametrize("settings", DECODERS, ids=_name)
def test_beams_of_one_source_share_its_memory(settings: dict[str, object]) -> None:
    model = _model(settings, "lstm")
    source, lengths = _sources()
    memory = model.encode(source, lengths)
    rows = torch.arange(3).repeat_interleave(2)
    state = model.decoder.start(memory).select(rows)
    tokens = torch.tensor([4, 5, 6, 7, 8, 9])
    result = model.decoder.step(tokens, state)
    for row, token in enumerate(tokens):
        single = model.encode(source[row // 2][None], lengths[row // 2][None])
        expected = model.decoder.step(token[None], model.decoder.start(single))
        torch.testing.assert_close(
            result.log_probs[row], expected.log_probs[0], atol=2e-6, rtol=1e-5
        )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precisions_are_not_folded(dtype: torch.dtype) -> None:
    decoder = _model({"attention": "additive"}).to(dtype).decoder
    assert fold(decoder) is decoder


@pytest.mark.parametrize("attention", ["additive", "dot"])
def test_autocast_has_no_effect_on_folded_decoders(attention: str) -> None:
    model = _model({"attention": attention, "encoder_dim": 16, "decoder_dim": 32}, "lstm")
    memory, tokens = model.encode(*_sources()), torch.tensor([4, 5, 6], dtype=torch.int32)
    expected = fold(model.decoder)
    with torch.no_grad():
        first = expected.step(tokens, expected.start(memory))
        with torch.autocast("cpu", torch.bfloat16):
            decoder = fold(model.decoder)
            step = decoder.step(tokens, decoder.start(memory))
    torch.testing.assert_close(step.log_probs, first.log_probs, rtol=0, atol=0)


def test_the_settings_accept_every_cell() -> None:
    assert get_args(ModelConfig.__annotations__["cell"]) == tuple(CELLS)


def test_selecting_rows_and_sources() -> None:
    model = _model({"attention": "additive", "input_feeding": True}, "lstm")
    memory = model.encode(*_sources())
    tokens = torch.tensor([4, 5, 6])
    state = model.decoder.step(tokens, model.decoder.start(memory)).state
    full = model.decoder.step(tokens, state)
    selected = state.select(torch.tensor([2, 0]), torch.tensor([2, 0]))
    part = model.decoder.step(tokens[[2, 0]], selected)
    torch.testing.assert_close(part.log_probs, full.log_probs[[2, 0]], atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(part.weights, full.weights[[2, 0]], atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("cell", CELLS)
def test_a_batch_equals_its_items_and_padding_has_no_effect(cell: str, bidirectional: bool) -> None:
    model = _model({"attention": "additive", "bidirectional": bidirectional}, cell)
    _check_padding(model)


@pytest.mark.parametrize("settings", [*TRANSFORMERS, *MIXED], ids=_name)
def test_padding_has_no_effect_in_a_transformer(settings: dict[str, object]) -> None:
    _check_padding(_model(settings))


def _check_padding(model: Seq2Seq) -> None:
    source, lengths = _sources()
    full = model.encoder(source, lengths)
    junk = source.masked_fill(source == 0, 9)
    torch.testing.assert_close(vars(model.encoder(junk, lengths)), vars(full))
    for row, length in enumerate(lengths):
        single = model.encoder(source[row : row + 1, :length], length[None])
        torch.testing.assert_close(
            single.states[0], full.states[row, :length], atol=2e-6, rtol=1e-5
        )
        torch.testing.assert_close(single.final[0], full.final[row], atol=2e-6, rtol=1e-5)
        assert (full.states[row, length:] == 0).all()


@pytest.mark.parametrize("cell", CELLS)
def test_the_encoder_equals_packed_sequences(cell: str) -> None:
    """PyTorch's own bidirectional layer over packed sequences is the reference."""
    model = _model({"attention": "additive"}, cell, layers=1)
    encoder = model.encoder
    rnn = CELLS[cell].layer(5, 6, batch_first=True, bidirectional=True)
    for name, value in encoder.forward_layers[0].named_parameters():
        getattr(rnn, name).data.copy_(value.data)
    for name, value in encoder.backward_layers[0].named_parameters():
        getattr(rnn, f"{name}_reverse").data.copy_(value.data)
    source, lengths = _sources()
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        encoder.embedding(source), lengths, batch_first=True, enforce_sorted=False
    )
    expected, _ = torch.nn.utils.rnn.pad_packed_sequence(rnn(packed)[0], batch_first=True)
    torch.testing.assert_close(encoder(source, lengths).states, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("cell", CELLS)
def test_a_step_of_a_cell_equals_pytorchs_layer(cell: str) -> None:
    model = _model({"attention": "additive"}, cell)
    inner = model.decoder.cells[1]
    inputs, count = torch.randn(3, 4, 7), CELLS[cell].state_tensors
    hidden = [torch.randn(3, 7) for _ in range(count)]
    full = inner.run(inputs, hidden)
    for t in range(4):
        hidden = list(inner.step(inner.project(inputs[:, t]), None, hidden))
        torch.testing.assert_close(hidden[0], full[:, t], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("settings", DECODERS, ids=_name)
def test_padding_in_sources_and_targets_has_no_effect_on_the_loss(
    settings: dict[str, object],
) -> None:
    model = _model(settings)
    source, lengths = _sources()
    inputs, targets = _targets(), torch.tensor([[4, 5, 6, 3], [7, 8, 3, 0], [9, 10, 4, 3]])
    full = model(Batch(source, lengths, inputs, targets))
    counts = (targets != 0).sum(1)
    parts = [
        model(
            Batch(
                source[[row], :length],
                lengths[[row]],
                inputs[[row], :count],
                targets[[row], :count],
            )
        )
        for row, (length, count) in enumerate(zip(lengths, counts, strict=True))
    ]
    mean = (torch.stack(parts) * counts).sum() / counts.sum()
    torch.testing.assert_close(full, mean, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("settings", DECODERS, ids=_name)
def test_every_parameter_has_a_gradient(settings: dict[str, object]) -> None:
    model = _model(settings).train()
    loss = model(Batch(*_sources(), _targets(), _targets()), label_smoothing=0.1)
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        if name.endswith(
            "key.bias"
        ):  # adds the same to all scores of a query, which softmax ignores
            continue
        assert parameter.grad.abs().max() > 0, name


def test_keys_are_projected_once_per_source(monkeypatch: pytest.MonkeyPatch) -> None:
    model = _model({"attention": "additive"})
    score = model.decoder.attention.score
    calls = []
    project = score.project_key
    monkeypatch.setattr(score, "project_key", lambda key: calls.append(1) or project(key))
    memory = model.encode(*_sources())
    state = model.decoder.start(memory)
    for tokens in _targets().unbind(1):
        state = model.decoder.step(tokens, state).state
    model.decoder.unroll(memory, _targets())
    assert len(calls) == 1


def test_states_are_projected_where_a_score_needs_one_width() -> None:
    for name, width in (("dot", 7), ("cosine", 7), ("additive", 12), ("bilinear", 12)):
        assert _model({"attention": name}).encode(*_sources()).states.shape[-1] == width


def test_cosine_learns_its_temperature() -> None:
    model = _model({"attention": "cosine"})
    assert model.decoder.attention.score.log_temperature.requires_grad


def test_steps_of_a_transformer_do_not_depend_on_later_tokens() -> None:
    model = _model(TRANSFORMERS[0])
    memory = model.encode(*_sources())
    full = model.decoder.unroll(memory, _targets(), need_weights=True)
    changed = _targets()
    changed[:, 2:] = 9
    unrolled = model.decoder.unroll(memory, changed, need_weights=True)
    torch.testing.assert_close(full.states[:, :2], unrolled.states[:, :2])
    assert (full.states[:, 2:] - unrolled.states[:, 2:]).abs().amax(-1).min() > 1e-3


def test_a_transformer_depends_on_the_order_of_the_source() -> None:
    for positions in ("sinusoidal", "learned", "rotary"):
        model = _model({**TRANSFORMER, "attention": "scaled_dot", "positions": positions})
        length = torch.tensor([3])
        original, swapped = (
            model.encoder(torch.tensor([ids]), length).states for ids in ([4, 5, 6], [5, 4, 6])
        )
        assert (original[0, 2] - swapped[0, 2]).abs().max() > 1e-3


def test_unroll_returns_the_weights_of_every_layer_and_head() -> None:
    model = _model(TRANSFORMERS[0])
    unrolled = model.decoder.unroll(model.encode(*_sources()), _targets(), need_weights=True)
    assert unrolled.weights.shape == (3, 4, 2, 2, 6)  # (B, L, layers, heads, T)
    torch.testing.assert_close(unrolled.weights.sum(-1), torch.ones(3, 4, 2, 2))
    assert (unrolled.weights[1, ..., 2:] == 0).all()


def test_a_monotonic_window_advances_and_stops_at_the_end() -> None:
    model = _model({"attention": "additive", "window": "local-m", "window_radius": 1})
    unrolled = model.decoder.unroll(model.encode(*_sources()), _targets(), need_weights=True)
    attended = unrolled.weights[:, :, 0, 0] > 0
    assert attended[2].tolist() == [
        [True, True, False, False, False, False],
        [True, True, True, False, False, False],
        [False, True, True, True, False, False],
        [False, False, True, True, True, False],
    ]
    assert attended[1].tolist() == [[True, True, False, False, False, False]] * 4


def test_a_predicted_window_prefers_its_centre() -> None:
    model = _model({"attention": "dot", "window": "local-p", "window_radius": 2})
    window = model.decoder.window
    query, padding = torch.randn(3, 4, 7), torch.zeros(3, 9, dtype=torch.bool)
    padding[1, 5:] = True
    outside, bias = window(query, padding, torch.arange(4))
    centres = (
        torch.tensor([8, 4, 8])[:, None] * torch.sigmoid(window.position_predictor(query))[..., 0]
    )
    assert ((torch.arange(9) - centres[..., None]).abs() > 2).equal(outside)
    nearest = (torch.arange(9) - centres[..., None]).abs().argmin(-1)
    assert bias.argmax(-1).equal(nearest)
    # sigma = radius / 2 = 1: a distance of 2 multiplies by exp(-2)
    torch.testing.assert_close(bias, -((torch.arange(9) - centres[..., None]) ** 2) / 2)


@pytest.mark.parametrize("options", [{"window": "local-p"}, {"copy": True}, {"coverage": True}])
def test_a_float64_model_computes_in_float64(options: dict[str, object]) -> None:
    """Steps equal whole sequences to 1e-12, and nothing is rounded to float32."""
    model = _model({"attention": "additive", **options}).double()
    source, lengths = _sources()
    copies = source if "copy" in options else None
    memory = model.encode(source, lengths, copies)
    unrolled = model.decoder.unroll(memory, _targets(), need_weights=True)
    expected = model.decoder.predict(unrolled.states, unrolled.weights, copies)
    expected = torch.log_softmax(expected, -1)
    state = model.decoder.start(memory)
    for t, tokens in enumerate(_targets().unbind(1)):
        step = model.decoder.step(tokens, state)
        state = step.state
        assert step.log_probs.dtype == step.weights.dtype == torch.float64
        torch.testing.assert_close(step.log_probs, expected[:, t], atol=1e-12, rtol=1e-12)
        values = torch.cat([step.log_probs.exp().flatten(), step.weights.flatten()])
        assert not values.equal(values.float().double())
    batch = Batch(source, lengths, _targets(), _targets(), copies)
    assert model(batch).dtype == torch.float64


def test_the_predicted_window_of_a_float64_model_is_computed_in_float64() -> None:
    window = _model({"attention": "dot", "window": "local-p"}).decoder.window.double()
    query, padding = torch.randn(3, 4, 7).double(), torch.zeros(3, 9, dtype=torch.bool)
    _, bias = window(query, padding, torch.arange(4))
    centres = 8 * torch.sigmoid(window.position_predictor(query))
    expected = -2 * ((torch.arange(9) - centres) / window.radius).square()
    torch.testing.assert_close(bias, expected, atol=1e-14, rtol=1e-14)


@pytest.mark.parametrize("decoder", ["luong", "bahdanau"])
def test_coverage_is_the_sum_of_earlier_weights(decoder: str) -> None:
    model = _model({"attention": "additive", "coverage": True, "decoder": decoder})
    memory = model.encode(*_sources())
    state, sums = model.decoder.start(memory), torch.zeros(3, 6)
    for tokens in _targets().unbind(1):
        torch.testing.assert_close(state.coverage, sums)
        step = model.decoder.step(tokens, state)
        state, sums = step.state, sums + step.weights[:, 0, 0]
    without = model.decoder.unroll(memory, _targets(), need_weights=True).weights
    model.decoder.coverage.weight.data.mul_(-5)
    with_it = model.decoder.unroll(memory, _targets(), need_weights=True).weights
    torch.testing.assert_close(without[:, 0], with_it[:, 0])  # the coverage is still 0
    assert (without[:, 1:] - with_it[:, 1:]).abs().max() > 1e-3


def test_the_coverage_loss_penalises_repeated_attention() -> None:
    model = _model({"attention": "additive", "coverage": True})
    source, lengths = _sources()
    inputs, targets = _targets(), torch.tensor([[4, 5, 6, 3], [7, 8, 3, 0], [9, 10, 4, 3]])
    plain = model(Batch(source, lengths, inputs, targets))
    weights = model.decoder.unroll(model.encode(source, lengths), inputs, need_weights=True).weights
    costs = []
    for row in range(3):
        for t in range(int((targets[row] != 0).sum())):
            before = weights[row, :t, 0, 0].sum(0) if t else torch.zeros(6)
            costs.append(torch.minimum(weights[row, t, 0, 0], before).sum())
    expected = plain + 0.7 * torch.stack(costs).mean()
    loss = model(Batch(source, lengths, inputs, targets), coverage_loss=0.7)
    torch.testing.assert_close(loss, expected)
