"""Attention, models, training and search on a CUDA device, compared with the CPU; skipped without one."""

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import regard
from oracle import assert_all_close, assert_close, gradients, to_float64
from regard.attention import NORMALIZERS, Attention, MultiHeadAttention
from regard.batching import Batch, Example, collate
from regard.config import Config, ModelConfig, TrainingConfig
from regard.models import Seq2Seq, build
from regard.score_registry import SCORES
from regard.search import beam_search, forced_decode
from test_training import Stop, at_update, stop

B, L, T, D, H = 3, 5, 70, 24, 2
TOLERANCE = 2e-5
"""Of float32 on the device against float64 on the CPU, relative to the largest element."""

MODELS = {
    "Bahdanau": {"decoder": "bahdanau", "attention": "additive"},
    "Bahdanau with coverage": {"decoder": "bahdanau", "attention": "additive", "coverage": True},
    "Luong": {"decoder": "luong", "attention": "bilinear", "cell": "lstm"},
    "input feeding": {"decoder": "luong", "attention": "concat", "input_feeding": True},
    "local attention": {"decoder": "luong", "attention": "dot", "window": "local-p"},
    "posterior": {"decoder": "posterior", "attention": "additive", "monotonic": True},
    "copying": {"decoder": "bahdanau", "copy": True},
    "no attention": {"attention": "none"},
    "Transformer": {"kind": "transformer", "positions": "rotary"},
    "additive Transformer": {"kind": "transformer", "attention": "additive"},
}
SIZES = {"embedding_dim": 16, "encoder_dim": 16, "decoder_dim": 16, "attention_dim": 16}
LAYERS = {"encoder_layers": 2, "decoder_layers": 1, "heads": 2, "dropout": 0.0}


# waits are not all detected, says PyTorch; it warns where the backward pass makes the context of cuBLAS
pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning"),
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning"),
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning"),
]


@pytest.fixture(autouse=True)
def _float32_without_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let cuDNN compute float32 as such: by default, the states of an LSTM have an error of 1e-4."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.fixture(autouse=True)
def _without_checks_of_waiting() -> Iterator[None]:
    yield
    torch.cuda.set_sync_debug_mode("default")


def _inputs() -> dict[str, Tensor]:
    shapes = {"query": (B, L, D), "key": (B, T, D), "value": (B, T, D)}
    inputs = {name: torch.randn(shape) for name, shape in shapes.items()}
    inputs["key_padding_mask"] = torch.arange(T).expand(B, T) >= torch.tensor([[T], [40], [0]])
    inputs["attn_mask"] = torch.rand(L, T) < 0.2
    return inputs


def _on_device(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    moved = {name: tensor.detach().clone().cuda() for name, tensor in inputs.items()}
    return {name: x.requires_grad_(x.is_floating_point()) for name, x in moved.items()}


def _in_float64(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    floats = {name: to_float64(x) for name, x in inputs.items() if x.is_floating_point()}
    return {**inputs, **{name: x.requires_grad_() for name, x in floats.items()}}


def _floats(inputs: dict[str, Tensor]) -> list[Tensor]:
    return [tensor for tensor in inputs.values() if tensor.is_floating_point()]


@pytest.mark.parametrize("normalizer", NORMALIZERS)
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("score", SCORES)
def test_attention_and_gradients_equal_float64(
    score: str, need_weights: bool, normalizer: str
) -> None:
    layer = MultiHeadAttention(D, H, score, normalizer=normalizer)
    inputs = _inputs()
    exact, device = _in_float64(inputs), _on_device(inputs)
    double = copy.deepcopy(layer).double()
    expected = double(**exact, need_weights=need_weights)
    actual = layer.cuda()(**device, need_weights=need_weights)
    assert_close(actual.context.cpu(), expected.context, TOLERANCE)
    if need_weights:
        assert_close(actual.weights.cpu(), expected.weights, TOLERANCE)
    found = gradients(actual.context.cpu(), [*_floats(device), *layer.parameters()])
    wanted = gradients(expected.context, [*_floats(exact), *double.parameters()])
    assert_all_close([tensor.cpu() for tensor in found], wanted, 10 * TOLERANCE)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("score", SCORES)
def test_padding_has_no_effect(score: str, value: float) -> None:
    layer = MultiHeadAttention(D, H, score).cuda()
    inputs = _inputs()
    del inputs["attn_mask"]
    device = _on_device(inputs)
    expected = layer(**device, need_weights=True)
    wanted = gradients(expected.context.cpu(), _floats(device))
    for name in ("key", "value"):
        inputs[name][inputs["key_padding_mask"]] = value
    device = _on_device(inputs)
    actual = layer(**device, need_weights=True)
    assert torch.equal(actual.context, expected.context)
    assert torch.equal(actual.weights, expected.weights)
    assert_all_close(gradients(actual.context.cpu(), _floats(device)), wanted, TOLERANCE)


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("score", SCORES)
def test_attention_does_not_wait_for_the_device(score: str, need_weights: bool) -> None:
    layer = MultiHeadAttention(D, H, score, dropout=0.1).cuda()
    inputs = _on_device(_inputs())
    lengths = torch.tensor([T, 40, 0]).cuda()
    del inputs["key_padding_mask"]
    for wait in ("default", "error"):  # the first call compiles
        torch.cuda.set_sync_debug_mode(wait)
        output = layer(**inputs, key_lengths=lengths, need_weights=need_weights)
        output.context.sum().backward()


@pytest.mark.parametrize("score", SCORES)
def test_attention_under_autocast(score: str) -> None:
    layer = MultiHeadAttention(D, H, score).cuda()
    inputs = _on_device(_inputs())
    expected = layer(**inputs, need_weights=True)
    with torch.autocast("cuda", torch.bfloat16):
        actual = layer(**inputs, need_weights=True)
    assert_close(actual.weights, expected.weights, 0.03)
    assert_close(actual.context, expected.context, 0.03)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("score", ["additive", "scaled_dot"])
def test_compiled_attention(score: str, unchecked: None) -> None:
    layer = MultiHeadAttention(D, H, score).cuda()
    inputs = _on_device(_inputs())
    compiled = torch.compile(layer, fullgraph=True)
    expected, actual = (module(**inputs, need_weights=True) for module in (layer, compiled))
    assert_close(actual.context, expected.context, TOLERANCE)
    wanted, found = (
        gradients(output.context.cpu(), _floats(inputs)) for output in (expected, actual)
    )
    assert_all_close(found, wanted, 10 * TOLERANCE)


@pytest.mark.parametrize("score", SCORES)
def test_attention_in_a_cuda_graph(score: str) -> None:
    layer = Attention(score, query_dim=D, key_dim=D, hidden_dim=D).cuda()
    inputs = {name: tensor.cuda() for name, tensor in _inputs().items()}
    with torch.no_grad():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):  # compiles
            layer(**inputs, need_weights=True)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = layer(**inputs, need_weights=True)
        for name, other in _inputs().items():
            inputs[name].copy_(other)
        graph.replay()
        expected = layer(**inputs, need_weights=True)
    assert_close(captured.context, expected.context, TOLERANCE)
    assert_close(captured.weights, expected.weights, TOLERANCE)


@pytest.mark.parametrize("size", [1, 4])
def test_memory_of_additive_attention_grows_with_the_inputs(size: int) -> None:
    length, dim = 1024 * size, 64
    layer = Attention("additive", query_dim=dim, key_dim=dim, hidden_dim=dim).cuda()
    query, key = (torch.randn(2, length, dim, device="cuda", requires_grad=True) for _ in range(2))
    layer(query[:, :8], key[:, :8]).context.sum().backward()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    layer(query, key).context.sum().backward()
    extra = torch.cuda.max_memory_allocated() - before
    features = 2 * length * length * dim * 4  # what tanh(a + b) would occupy
    assert extra < 32 * 2 * length * dim * 4 + 300 * 2**20
    if size == 4:
        assert extra < features / 10


def _model(name: str) -> Seq2Seq:
    torch.manual_seed(3)
    return build(ModelConfig(**{**SIZES, **LAYERS, **MODELS[name]}), 12, 12)


def _batch(copies: bool) -> Batch:
    generator = torch.Generator().manual_seed(1)
    examples = []
    for length in (7, 4, 1):
        source, target = (
            torch.randint(4, 12, (size,), generator=generator).tolist()
            for size in (length, length + 1)
        )
        examples.append(Example(source, target, copies=source if copies else None))
    return collate(examples)


@pytest.mark.parametrize("name", MODELS)
def test_loss_and_gradients_equal_those_of_the_cpu(name: str) -> None:
    model, batch = _model(name), _batch("copy" in MODELS[name])
    device = copy.deepcopy(model).cuda()
    losses = model(batch, label_smoothing=0.1), device(batch.to("cuda"), label_smoothing=0.1)
    assert_close(losses[1].cpu(), losses[0], TOLERANCE)
    for loss in losses:
        loss.backward()
    for expected, actual in zip(model.parameters(), device.parameters(), strict=True):
        if expected.grad is None:
            assert actual.grad is None
        else:
            assert actual.grad is not None
            assert_close(actual.grad.cpu(), expected.grad, 10 * TOLERANCE)


@pytest.mark.parametrize("name", MODELS)
def test_search_and_its_weights_equal_those_of_the_cpu(name: str) -> None:
    model, batch = _model(name).eval(), _batch("copy" in MODELS[name])
    for parameter in model.parameters():  # sharper, so that hypotheses differ in score
        parameter.data.mul_(2)
    results = []
    for device in ("cpu", "cuda"):
        network, moved = copy.deepcopy(model).to(device), batch.to(device)
        with torch.inference_mode():
            memory = network.encode(moved.source, moved.lengths, moved.copies)
            limits = torch.full((3,), 6, device=device)
            found = beam_search(network.decoder, memory, limits, beam_size=3, n_best=2)
            first = memory.select(torch.tensor([0], device=device))
            forced = forced_decode(network.decoder, first, [[5, 6, 7]])
        results.append([*(each for hypotheses in found for each in hypotheses), *forced])
    for expected, actual in zip(*results, strict=True):
        assert actual.ids == expected.ids
        assert actual.score == pytest.approx(expected.score, abs=1e-4)
        if expected.weights is not None:
            assert_close(
                torch.as_tensor(actual.weights), torch.as_tensor(expected.weights), TOLERANCE
            )


PAIRS = [(" ".join(word), " ".join(reversed(word))) for word in ("abc", "bca", "cab", "ab", "ca")]


def _config(out: Path, name: str, updates: int, precision: str = "float32") -> Config:
    return Config(
        out=str(out),
        device="cuda",
        model=ModelConfig(**{**SIZES, **LAYERS, **MODELS[name], "dropout": 0.1}),
        training=TrainingConfig(
            batch_tokens=64,
            max_updates=updates,
            validate_every=30,
            patience=99,
            learning_rate=5e-3,
            schedule="constant",
            cooldown=0.0,
            warmup=10,
            precision=precision,
        ),
    )


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_trained_on_the_device_translates_on_the_cpu(
    tmp_path: Path, name: str, precision: str
) -> None:
    pairs = PAIRS * 20
    regard.train(_config(tmp_path / "run", name, 90, precision), pairs, PAIRS)
    loaded = [regard.Translator.load(tmp_path / "run", device) for device in ("cuda", "cpu")]
    texts = [source for source, _ in PAIRS]
    device, cpu = (translator.translate(texts, beam_size=2) for translator in loaded)
    assert [each.text for each in device] == [each.text for each in cpu]
    for ours, theirs in zip(device, cpu, strict=True):
        if theirs.attention is not None:
            assert_close(torch.as_tensor(ours.attention), torch.as_tensor(theirs.attention), 1e-4)


@pytest.mark.parametrize("name", ["Bahdanau", "Luong", "Transformer"])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, name: str) -> None:
    pairs = PAIRS * 20
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    regard.train(_config(whole, name, 60), pairs, PAIRS)
    with at_update(40, stop), pytest.raises(Stop):
        regard.train(_config(parts, name, 60), pairs, PAIRS)
    regard.train(_config(parts, name, 60), pairs, PAIRS, resume=True)
    expected, actual = (load_file(path / "model.safetensors") for path in (whole, parts))
    assert_all_close(actual.values(), expected.values(), 1e-4)
