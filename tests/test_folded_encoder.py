"""The recurrent encoder for inference, against that of training."""

import copy
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parametrize

from regard import folded_encoder
from regard.attention import Memory
from regard.encoders import RecurrentEncoder
from regard.folded_encoder import FoldedRecurrentEncoder
from regard.inference import _FASTER, _in_evaluation_mode
from regard.kernels.cpu.processor import LANES

VOCABULARY = 30


def for_inference(encoder: RecurrentEncoder) -> FoldedRecurrentEncoder:
    folded = _in_evaluation_mode(encoder, _FASTER)
    assert isinstance(folded, FoldedRecurrentEncoder)
    return folded


def encode(encoder: nn.Module, source: Tensor, lengths: Tensor) -> Memory:
    with torch.no_grad():
        return encoder(source, lengths)


def batch(count: int, length: int) -> tuple[Tensor, Tensor]:
    return torch.randint(VOCABULARY, (count, length)), torch.randint(1, length + 1, (count,))


@given(
    seed=st.integers(0, 2**32 - 1),
    cell=st.sampled_from(["lstm", "gru"]),
    layers=st.integers(1, 2),
    bidirectional=st.booleans(),
    count=st.integers(0, 140),
    length=st.integers(1, 9),
    vectors=st.integers(1, 3),
    scale=st.sampled_from([1.0, 5.0]),
    entries=st.sampled_from([VOCABULARY - 1, VOCABULARY]),
)
def test_the_encoder_for_inference_equals_that_of_training(
    seed: int,
    cell: str,
    layers: int,
    bidirectional: bool,
    count: int,
    length: int,
    vectors: int,
    scale: float,
    entries: int,
) -> None:
    torch.manual_seed(seed)
    encoder = RecurrentEncoder(
        VOCABULARY, 11, vectors * LANES, layers, bidirectional, cell, output_dim=7
    ).eval()
    encoder.embedding.weight.data *= scale
    source, lengths = batch(count, length)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folded_encoder, "_LARGEST_FOLDED", entries)
        found, folded = for_inference(encoder), entries == VOCABULARY
        memory = encode(found, source, lengths)
        assert found._layers is not None  # the kernel was used
        assert (found._folded_inputs is not None) == folded
    expected = encode(copy.deepcopy(encoder).double(), source, lengths)
    bounds = {"rtol": 1e-6, "atol": 2e-6 * scale}  # as for one layer of PyTorch
    torch.testing.assert_close(memory.states.double(), expected.states, **bounds)
    torch.testing.assert_close(memory.final.double(), expected.final, **bounds)
    assert memory.padding.equal(expected.padding)


def test_a_batch_equals_its_items_whatever_its_padding() -> None:
    torch.manual_seed(0)
    found = for_inference(RecurrentEncoder(VOCABULARY, 8, LANES).eval())
    source, lengths = batch(20, 9)
    memory = encode(found, source, lengths)
    for row, ids, length in zip(range(20), source, lengths, strict=True):
        alone = encode(found, ids[None, :length], length[None])
        assert alone.states[0].equal(memory.states[row, :length])
        assert alone.final[0].equal(memory.final[row])


def test_the_default_device_has_no_effect() -> None:
    found, (source, lengths) = (
        for_inference(RecurrentEncoder(VOCABULARY, 8, LANES).eval()),
        batch(3, 5),
    )
    expected = encode(found, source, lengths)
    with torch.device("meta"):
        assert encode(found, source, lengths).states.equal(expected.states)


class OwnLSTM(nn.LSTM):
    pass


def hook(*_: object) -> None:
    """Do nothing."""


UNSUPPORTED: dict[str, Callable[[RecurrentEncoder], object]] = {
    "hook": lambda encoder: encoder.backward_layers[0].register_forward_hook(hook),
    "subclass": lambda encoder: encoder.forward_layers.__setitem__(
        0, OwnLSTM(8, LANES, batch_first=True)
    ),
    "two layers": lambda encoder: encoder.forward_layers.__setitem__(
        0, nn.LSTM(8, LANES, 2, batch_first=True)
    ),
    "no bias": lambda encoder: encoder.forward_layers.__setitem__(
        0, nn.LSTM(8, LANES, bias=False, batch_first=True)
    ),
    "parametrization": lambda encoder: parametrize.register_parametrization(
        encoder.forward_layers[0], "weight_hh_l0", nn.Tanh()
    ),
    "float64": lambda encoder: encoder.double(),
}


@pytest.mark.parametrize("change", UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_other_layers_are_left_to_pytorch(change: Callable[[RecurrentEncoder], object]) -> None:
    encoder = RecurrentEncoder(VOCABULARY, 8, LANES).eval()
    change(encoder)
    found, (source, lengths) = for_inference(encoder), batch(3, 5)
    memory, expected = encode(found, source, lengths), encode(encoder, source, lengths)
    assert found._layers is None
    assert memory.states.equal(expected.states)


def test_hooks_of_the_embedding_are_called() -> None:
    encoder = RecurrentEncoder(VOCABULARY, 8, LANES).eval()
    encoder.embedding.register_forward_hook(lambda *arguments: 2 * arguments[-1])
    source, lengths = batch(3, 5)
    memory = encode(for_inference(encoder), source, lengths)
    torch.testing.assert_close(memory.states, encode(encoder, source, lengths).states)


def test_embeddings_with_a_largest_norm_are_left_to_pytorch() -> None:
    encoder = RecurrentEncoder(VOCABULARY, 8, LANES).eval()
    source, lengths = batch(3, 5)
    before = encode(encoder, source, lengths)
    encoder.embedding.max_norm = 0.3
    memory = encode(for_inference(copy.deepcopy(encoder)), source, lengths)
    expected = encode(encoder, source, lengths)
    torch.testing.assert_close(memory.states, expected.states)
    assert not torch.allclose(memory.states, before.states)


def test_the_final_state_of_an_empty_sequence_is_0() -> None:
    encoder = RecurrentEncoder(VOCABULARY, 8, LANES).eval()
    source, _ = batch(3, 5)
    for module in (encoder, for_inference(encoder)):
        memory = encode(module, source, torch.tensor([5, 0, 3]))
        assert memory.final[1].eq(0).all()
        assert memory.final[::2].ne(0).all()


def test_autocast_is_left_to_pytorch() -> None:
    if not torch.backends.cpu.get_cpu_capability().startswith("AVX512"):
        pytest.skip("PyTorch cannot compute an LSTM in bfloat16 on this processor")
    encoder = RecurrentEncoder(VOCABULARY, 8, LANES).eval()
    source, lengths = batch(3, 5)
    with torch.autocast("cpu"):
        memory = encode(for_inference(encoder), source, lengths)
        torch.testing.assert_close(memory.states, encode(encoder, source, lengths).states)


@pytest.mark.parametrize("id", [-1, VOCABULARY])
def test_ids_outside_the_vocabulary_are_errors(id: int) -> None:
    found = for_inference(RecurrentEncoder(VOCABULARY, 8, LANES).eval())
    with pytest.raises(IndexError):
        encode(found, torch.tensor([[1, id]]), torch.tensor([2]))
