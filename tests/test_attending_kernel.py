"""LSTM layers that attend at every step, computed in bfloat16 by the kernel, against PyTorch in float64."""

import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.utils import parametrize

from regard.attention import Memory
from regard.cells import Cell
from regard.config import ModelConfig
from regard.decoders import luong, recurrent
from regard.decoders.recurrent import AttendingDecoder
from regard.errors import ShapeError
from regard.kernels.cpu import threads
from regard.kernels.cpu.processor import LANES
from regard.kernels.dropout import dropout_mask
from regard.kernels.recurrent.attention_steps import AttentionTensors
from regard.models import build

attending = pytest.importorskip("regard.kernels.recurrent.attending")

pytestmark = pytest.mark.skipif(
    not torch.backends.cpu.get_cpu_capability().startswith("AVX512"),
    reason="float32 replaces bfloat16 on this processor",
)

V = 11
KINDS: dict[str, dict[str, Any]] = {
    "bahdanau": {"decoder": "bahdanau"},
    "feeding": {"decoder": "luong", "input_feeding": True},
    "bahdanau with coverage": {"decoder": "bahdanau", "coverage": True},
    "feeding with coverage": {"decoder": "luong", "input_feeding": True, "coverage": True},
    "coverage": {"decoder": "luong", "coverage": True},
    "luong": {"decoder": "luong"},
}


def make_decoder(kind: str, **others: Any) -> AttendingDecoder:
    settings: dict[str, Any] = {
        "attention": "additive", "cell": "lstm", "embedding_dim": 5, "encoder_dim": 3, "decoder_dim": LANES,
        "attention_dim": 7, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0,
    }  # fmt: skip
    decoder = build(ModelConfig(**{**settings, **KINDS[kind], **others}), V, V).decoder
    assert isinstance(decoder, AttendingDecoder)
    return decoder


def make_memory(lengths: list[int], width: int = 6) -> Memory:
    longest = max(lengths)
    padding = torch.arange(longest) >= torch.tensor(lengths)[:, None]
    states = torch.randn(len(lengths), longest, width).masked_fill(padding[..., None], 0)
    return Memory(
        states.requires_grad_(), padding, torch.randn(len(lengths), width, requires_grad=True)
    )


def tensors_of(decoder: AttendingDecoder, memory: Memory, tokens: Tensor) -> dict[str, Tensor]:
    """Return readouts and weights, and the gradients of a sum for the memory and all parameters."""
    unrolled = decoder.unroll(decoder.prepare_memory(memory), tokens, need_weights=True)
    weights = unrolled.weights
    assert weights is not None
    generator = torch.Generator().manual_seed(1)
    total = torch.zeros((), dtype=torch.float64)
    for tensor in (unrolled.states, weights):
        factors = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        total = total + (tensor.double() * factors).sum()
    leaves = {"states": memory.states, "final": memory.final, **dict(decoder.named_parameters())}
    gradients = torch.autograd.grad(total, [*leaves.values()], allow_unused=True)
    found = {name: grad for name, grad in zip(leaves, gradients, strict=True) if grad is not None}
    return {"readouts": unrolled.states.detach(), "weights": weights.detach(), **found}


def in_bfloat16(*arguments: Any, use_kernel: bool = True) -> dict[str, Tensor]:
    """Return the tensors; an error unless they are those of the kernel, or not, as demanded."""
    with pytest.MonkeyPatch.context() as patch, torch.autocast("cpu", torch.bfloat16):
        if not use_kernel:
            patch.setattr(recurrent, "faster_kernel", lambda *_: None)
        used = record_use(patch)
        tensors = tensors_of(*arguments)
    assert used == [use_kernel]
    return tensors


def record_use(patch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list that receives for every call of `unroll` whether the kernel computed it."""
    used: list[bool] = []
    original = AttendingDecoder._find_kernel

    def find(*arguments: Any) -> Any:
        found = original(*arguments)
        used.append(found is not None)
        return found

    patch.setattr(AttendingDecoder, "_find_kernel", find)
    return used


def in_float64(decoder: AttendingDecoder, memory: Memory, tokens: Tensor) -> dict[str, Tensor]:
    states, final = (x.detach().double().requires_grad_() for x in (memory.states, memory.final))
    return tensors_of(
        copy.deepcopy(decoder).double(), Memory(states, memory.padding, final), tokens
    )


def error(found: Tensor, exact: Tensor) -> float:
    """Return the norm of the difference, relative to that of the exact numbers."""
    return float((found - exact).norm()) / max(1e-6, float(exact.norm()))


def require_exactness(decoder: AttendingDecoder, memory: Memory, tokens: Tensor) -> None:
    """Require errors like those of PyTorch's operators in bfloat16."""
    exact = in_float64(decoder, memory, tokens)
    found, other = (
        in_bfloat16(decoder, memory, tokens, use_kernel=use_kernel) for use_kernel in (True, False)
    )
    assert found.keys() == other.keys() == exact.keys()
    for name, reference in exact.items():
        assert found[name].shape == reference.shape
        # PyTorch rounds at other places, so that one of the two can be luckier
        assert error(found[name], reference) <= 2 * error(other[name], reference) + 4e-3, name


@pytest.mark.parametrize("score", ["additive", "concat"])
@pytest.mark.parametrize("kind", KINDS)
@given(
    seed=st.integers(0, 2**32 - 1),
    bias=st.booleans(),
    tied=st.booleans(),
    vectors=st.integers(1, 3),
    widths=st.sampled_from(
        [(7, 3), (LANES, LANES // 2), (LANES + 5, LANES), (3 * LANES, LANES + 1)]
    ),
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=20),
    steps=st.integers(1, 5),
)
@example(seed=1, bias=False, tied=True, vectors=1, widths=(7, 3), lengths=[3, 1], steps=1)
@example(seed=1, bias=True, tied=False, vectors=2, widths=(48, 32), lengths=[1], steps=3)
def test_outputs_and_gradients_are_as_exact_as_those_of_pytorch(
    kind: str,
    score: str,
    seed: int,
    bias: bool,
    tied: bool,
    vectors: int,
    widths: tuple[int, int],
    lengths: list[int],
    steps: int,
) -> None:
    torch.manual_seed(seed)
    attention_dim, encoder_dim = widths
    decoder = make_decoder(
        kind, attention=score, attention_bias=bias, tie_embeddings=tied, decoder_dim=vectors * LANES,
        attention_dim=attention_dim, encoder_dim=encoder_dim,
    )  # fmt: skip
    memory = make_memory(lengths, 2 * encoder_dim)
    require_exactness(decoder, memory, torch.randint(V, (len(lengths), steps)))


@pytest.mark.parametrize("kind", KINDS)
def test_types_are_those_of_pytorch_and_weights_are_returned_on_request(kind: str) -> None:
    torch.manual_seed(8)
    decoder, tokens = make_decoder(kind), torch.randint(V, (2, 3))
    with torch.autocast("cpu", torch.bfloat16):
        memory = decoder.prepare_memory(make_memory([3, 2]))
        unrolled = [decoder.unroll(memory, tokens, need_weights) for need_weights in (True, False)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(recurrent, "faster_kernel", lambda *_: None)
            expected = decoder.unroll(memory, tokens, need_weights=True)
    assert unrolled[0].weights is not None
    assert expected.weights is not None
    assert unrolled[0].states.dtype == expected.states.dtype == torch.bfloat16
    assert unrolled[0].weights.dtype == expected.weights.dtype == torch.float32
    assert unrolled[1].weights is None
    assert torch.equal(unrolled[0].states, unrolled[1].states)


@pytest.mark.parametrize("kind", KINDS)
def test_frozen_weights_and_memory_get_no_gradient(kind: str) -> None:
    torch.manual_seed(9)
    decoder, tokens, lengths = make_decoder(kind), torch.randint(V, (2, 3)), [3, 2]
    memory = make_memory(lengths)
    expected = in_bfloat16(decoder, memory, tokens)
    decoder.requires_grad_(False)
    trained = decoder.cells[0].rnn.weight_hh_l0.requires_grad_()
    fixed = Memory(memory.states.detach(), memory.padding, memory.final.detach())
    with torch.autocast("cpu", torch.bfloat16):
        unrolled = decoder.unroll(decoder.prepare_memory(fixed), tokens, need_weights=True)
    assert torch.equal(unrolled.states, expected["readouts"])
    unrolled.states.float().sum().backward()
    assert trained.grad is not None
    assert trained.grad.any()
    assert all(weight.grad is None for weight in decoder.parameters() if weight is not trained)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found = decoder.unroll(decoder.prepare_memory(fixed), tokens)
    assert torch.equal(found.states, expected["readouts"])


@pytest.mark.parametrize("options", [{}, {"cell": "gru"}, {"decoder_layers": 2}])
def test_without_the_kernel_input_feeding_draws_the_random_numbers_of_all_steps_once(
    options: dict[str, Any],
) -> None:
    decoder = make_decoder("feeding", dropout=0.5, **options).train()
    memory, tokens = make_memory([3, 2]), torch.randint(V, (2, 3))
    found: list[Tensor] = []
    for unroll in (
        decoder.unroll,
        lambda *given: recurrent.RecurrentDecoder.unroll(decoder, *given),
    ):
        torch.manual_seed(1)
        found.append(unroll(decoder.prepare_memory(memory), tokens).states)
    assert torch.equal(*found)


def test_layers_above_the_first_one_are_not_part_of_the_kernel() -> None:
    torch.manual_seed(1)
    decoder = make_decoder("bahdanau", decoder_layers=2)
    require_exactness(decoder, make_memory([3, 1, 4]), torch.randint(V, (3, 4)))


def test_dropout_multiplies_every_readout_that_is_fed(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(2)

    def mask(like: Tensor, share: float) -> Tensor:
        # the same for every row, as the kernel draws them in another order
        pattern = dropout_mask(torch.empty(like.shape[-1]), share, torch.Generator().manual_seed(3))
        return pattern.to(like.dtype).expand(like.shape)

    monkeypatch.setattr(luong, "dropout_mask", mask)
    monkeypatch.setattr("regard.kernels.dropout.dropout_mask", mask)
    decoder = make_decoder("feeding", dropout=0.5).train()
    memory, tokens = make_memory([3, 5, 4, 1]), torch.randint(V, (4, 5))
    require_exactness(decoder, memory, tokens)
    readouts = in_bfloat16(decoder, memory, tokens)["readouts"]
    assert 0 < int((readouts == 0).all(0).all(0).sum()) < LANES


def test_the_masks_of_rows_and_steps_differ() -> None:
    torch.manual_seed(3)
    decoder = make_decoder("feeding", dropout=0.5).train()
    dropped = in_bfloat16(decoder, make_memory([4] * 8), torch.randint(V, (8, 6)))["readouts"] == 0
    assert 0.4 < dropped.float().mean() < 0.6
    assert dropped.flatten(0, 1).unique(dim=0).shape[0] == 48


@pytest.mark.parametrize("kind", KINDS)
def test_padding_has_no_effect(kind: str) -> None:
    torch.manual_seed(4)
    decoder, lengths, tokens = make_decoder(kind), [3, 1, 5], torch.randint(V, (3, 4))
    memory = make_memory(lengths)
    filled = torch.where(memory.padding[..., None], 9.0, memory.states.detach()).requires_grad_()
    first = in_bfloat16(decoder, memory, tokens)
    second = in_bfloat16(decoder, Memory(filled, memory.padding, memory.final), tokens)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not first["weights"][
        memory.padding[:, None, None, None].expand_as(first["weights"])
    ].any()
    assert not first["states"][memory.padding].any()


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_equals_its_items(kind: str) -> None:
    torch.manual_seed(5)
    decoder, lengths, tokens = make_decoder(kind), [3, 1, 5], torch.randint(V, (3, 4))
    memory = make_memory(lengths)
    together = in_bfloat16(decoder, memory, tokens)
    for item, length in enumerate(lengths):
        own = slice(item, item + 1)
        alone = Memory(memory.states[own, :length], memory.padding[own, :length], memory.final[own])
        found = in_bfloat16(decoder, alone, tokens[own])
        assert error(found["readouts"], together["readouts"][own]) < 1e-2
        assert error(found["weights"], together["weights"][own, ..., :length]) < 1e-2


@pytest.mark.parametrize("kind", KINDS)
def test_results_are_the_same_on_any_number_of_threads(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "WORK_PER_THREAD", 1)
    torch.manual_seed(10)
    decoder = make_decoder(kind, attention_dim=2 * LANES, encoder_dim=LANES)
    memory, tokens = make_memory([*range(1, 8)] * 5, 2 * LANES), torch.randint(V, (35, 4))
    before, found = torch.get_num_threads(), list[dict[str, Tensor]]()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append(in_bfloat16(decoder, memory, tokens))
    finally:
        torch.set_num_threads(before)
    attention = ("states", "weights", "attention.score.vector", "attention.score.query_proj.weight")
    for other in found[1:]:
        # other gradients are products of PyTorch, which may depend on the number of threads
        assert all(torch.equal(found[0][name], other[name]) for name in attention)


def test_masked_keys_and_values_have_no_effect_whatever_they_contain() -> None:
    torch.manual_seed(11)
    masked = torch.tensor([[False, True, False], [True, True, True]])
    keys, values = torch.randn(2, 3, LANES), torch.randn(2, 3, 2 * LANES)
    states, vector = torch.randn(2, 4, LANES), torch.randn(LANES)
    weight, coverage = torch.randn(LANES, LANES), torch.randn(LANES)
    results: list[list[Tensor]] = []
    for content in (0.0, math.nan, math.inf):
        given = [
            rows.masked_fill(masked[..., None], content).requires_grad_() for rows in (keys, values)
        ]
        tensors = AttentionTensors(*given, masked, weight, vector, coverage)
        contexts, weights = attending.attend(states, tensors)
        gradients = torch.autograd.grad(contexts.float().sum() + (weights**2).sum(), given)
        results.append([contexts, weights, *gradients])
    first, *others = results
    assert all(torch.equal(*pair) for other in others for pair in zip(first, other, strict=True))
    assert not any(tensor[1].any() for tensor in first)
    assert all(tensor[0].any() and tensor.isfinite().all() for tensor in first)
    nothing = AttentionTensors(keys[:, :0], values[:, :0], masked[:, :0], weight, vector)
    contexts, weights = attending.attend(states, nothing)
    assert weights.shape == (2, 4, 0)
    assert contexts.shape == (2, 4, 2 * LANES)
    assert not contexts.any()


@pytest.mark.parametrize(("kind", "used"), [("luong", False), ("coverage", True)])
def test_many_pairs_are_attended_at_once_unless_steps_depend_on_each_other(
    kind: str, used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    attend = attending.attend
    monkeypatch.setattr(attending, "attend", lambda *given: calls.append(1) or attend(*given))
    torch.manual_seed(12)
    decoder, memory = make_decoder(kind), make_memory([16, 2])
    for steps, expected in ((16, [1]), (17, [1] * used)):
        calls.clear()
        require_exactness(decoder, memory, torch.randint(V, (2, steps)))
        assert calls == expected


def test_batches_of_different_sizes_are_refused(unchecked: None) -> None:
    decoder = make_decoder("bahdanau")
    with torch.autocast("cpu", torch.bfloat16), pytest.raises((RuntimeError, ShapeError)):
        decoder.unroll(decoder.prepare_memory(make_memory([3, 2])), torch.zeros(3, 2).long())


@pytest.mark.parametrize("kind", KINDS)
def test_the_backward_pass_can_be_repeated_but_not_differentiated(kind: str) -> None:
    torch.manual_seed(6)
    decoder, memory = make_decoder(kind), make_memory([3, 2])
    with torch.autocast("cpu", torch.bfloat16):
        prepared = decoder.prepare_memory(memory)
        total = decoder.unroll(prepared, torch.randint(V, (2, 3))).states.float().square().sum()
    first, second = (
        torch.autograd.grad(total, memory.states, retain_graph=True)[0] for _ in range(2)
    )
    assert torch.equal(first, second)
    assert first.any()
    with pytest.raises(RuntimeError, match="second order; compute them in float32"):
        torch.autograd.grad(total, memory.states, create_graph=True)


@pytest.mark.parametrize("kind", KINDS)
def test_uninitialised_memory_is_not_read(kind: str, poisoned: None) -> None:
    torch.manual_seed(7)
    decoder = make_decoder(kind, dropout=0.2).train()
    tensors = in_bfloat16(decoder, make_memory([4, 1, 2]), torch.randint(V, (3, 5)))
    assert all(tensor.isfinite().all() for tensor in tensors.values())


def _unroll(decoder: AttendingDecoder) -> None:
    memory = make_memory([3, 2])
    decoder.unroll(decoder.prepare_memory(memory), torch.zeros(2, 3, dtype=torch.long))


class _OtherCell(Cell):
    __module__ = "another.package"


@pytest.mark.parametrize("kind", KINDS)
def test_the_kernel_computes_only_what_it_supports(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = record_use(monkeypatch)
    _unroll(make_decoder(kind))  # float32
    hooked, parametrized, dropping, biased, replaced, derived = (
        make_decoder(kind) for _ in range(6)
    )
    hooked.attention.score.query_proj.register_forward_hook(lambda *_: None)
    parametrize.register_parametrization(
        parametrized.cells[0].rnn, "weight_hh_l0", torch.nn.Identity()
    )
    dropping.train().attention.dropout = 0.1
    biased.attention.score.query_proj = torch.nn.Linear(LANES, 7)
    replaced.attention.score.query_proj = torch.nn.Sequential(
        torch.nn.Linear(LANES, 7, bias=False), torch.nn.Tanh()
    )
    derived.cells[0].__class__ = _OtherCell
    others = [hooked, parametrized, dropping, biased, replaced, derived]
    for options in (
        {"cell": "gru"}, {"normalizer": "sparsemax"}, {"window": "local-p"}, {"decoder_dim": LANES + 1},
    ):  # fmt: skip
        others.append(make_decoder(kind, **options))
    if hooked.coverage is None:
        others.append(make_decoder(kind, attention="bilinear"))
    else:
        others.append(make_decoder(kind))
        others[-1].coverage.register_forward_hook(lambda *_: None)
    with torch.autocast("cpu", torch.bfloat16):
        for decoder in others:
            _unroll(decoder)
        with forward_ad.dual_level():
            _unroll(make_decoder(kind))
    assert used == [False] * (len(others) + 2)
    with torch.autocast("cpu", torch.bfloat16):
        _unroll(dropping.eval())
    assert used[-1]


def test_other_readouts_and_several_layers_are_not_fed_by_the_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used = record_use(monkeypatch)
    hooked, unbiased, replaced = (make_decoder("feeding") for _ in range(3))
    hooked.readout.register_forward_hook(lambda *_: None)
    unbiased.readout.bias = None
    replaced.readout = torch.nn.Sequential(replaced.readout)  # pyright: ignore
    replaced.readout.out_features = LANES
    with torch.autocast("cpu", torch.bfloat16):
        for decoder in (hooked, unbiased, replaced, make_decoder("feeding", decoder_layers=2)):
            _unroll(decoder)
    assert not any(used)
