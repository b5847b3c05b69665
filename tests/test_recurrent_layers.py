"""PyTorch's recurrent layers for inference, against those of PyTorch."""

import copy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from regard.kernels.cpu.products import LANES
from regard.kernels.recurrent.layers import InferenceGRU, InferenceLSTM

LAYERS = {nn.LSTM: InferenceLSTM, nn.GRU: InferenceGRU}


def for_inference(layer: nn.RNNBase) -> nn.RNNBase:
    faster = nn.Module.__new__(LAYERS[type(layer)])
    vars(faster).update(vars(layer))
    return faster


@pytest.mark.parametrize("kind", LAYERS)
@given(
    seed=st.integers(0, 2**32 - 1),
    count=st.integers(0, 140),
    length=st.integers(0, 9),
    vectors=st.integers(1, 3),
    scale=st.sampled_from([1.0, 5.0]),
)
def test_a_recurrent_layer_for_inference_equals_that_of_pytorch(
    kind: type[nn.RNNBase], seed: int, count: int, length: int, vectors: int, scale: float
) -> None:
    torch.manual_seed(seed)
    layer = kind(11, vectors * LANES, batch_first=True)
    x = scale * torch.randn(count, length, 11)
    with torch.no_grad():
        outputs, state = for_inference(layer)(x)
        expected = copy.deepcopy(layer).double()(x.double())[0] if x.numel() else outputs
    assert state is None  # the kernel was used
    torch.testing.assert_close(outputs.double(), expected.double(), rtol=1e-6, atol=2e-6 * scale)
    assert outputs.shape == (count, length, vectors * LANES)


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize(
    "options",
    [{"num_layers": 2}, {"bidirectional": True}, {"bias": False}, {"batch_first": False}],
    ids=str,
)
def test_other_recurrent_layers_are_left_to_pytorch(
    kind: type[nn.RNNBase], options: dict[str, Any]
) -> None:
    layer, x = kind(3, LANES, **{"batch_first": True, **options}), torch.randn(2, 4, 3)
    with torch.no_grad():
        torch.testing.assert_close(for_inference(layer)(x), layer(x))
        torch.testing.assert_close(for_inference(layer)(x[0]), layer(x[0]))


@pytest.mark.parametrize("kind", LAYERS)
def test_a_recurrent_layer_with_a_first_state_or_another_dtype_is_left_to_pytorch(
    kind: type[nn.RNNBase],
) -> None:
    layer, x = kind(3, LANES, batch_first=True), torch.randn(2, 4, 3)
    first = torch.randn(1, 2, LANES)
    state = (first, first) if kind is nn.LSTM else first
    with torch.no_grad():
        torch.testing.assert_close(for_inference(layer)(x, state), layer(x, state))
        layer.double()
        torch.testing.assert_close(for_inference(layer)(x.double()), layer(x.double()))


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("length", [1, 3, 9])
def test_a_recurrent_layer_under_autocast_is_left_to_pytorch(
    kind: type[nn.RNNBase], length: int
) -> None:
    if kind is nn.LSTM and not torch.backends.cpu.get_cpu_capability().startswith("AVX512"):
        pytest.skip("PyTorch cannot compute an LSTM in bfloat16 on this processor")
    layer, x = kind(3, LANES, batch_first=True), torch.randn(1, length, 3)
    with torch.no_grad(), torch.autocast("cpu"):
        torch.testing.assert_close(for_inference(layer)(x), layer(x))
