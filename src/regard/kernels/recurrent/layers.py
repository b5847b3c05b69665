"""PyTorch's recurrent layers without gradients; on the CPU, with one kernel for all steps of a layer."""

import functools
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.kernels.linear import FrozenLinear
from regard.kernels.weighted_sum import is_autocast_enabled


class _FrozenRecurrence:
    """A layer with one direction and fixed weights."""

    def __init__(self, layer: nn.RNNBase, kernel: Any) -> None:
        from regard.kernels.cpu.products import pack

        weight, recurrent, bias, recurrent_bias = layer.all_weights[0]
        self._kernel, self._cell, self._width = kernel, layer.mode.lower(), layer.hidden_size
        self._inputs = FrozenLinear(weight, bias)
        self._packed = pack(recurrent, recurrent_bias).detach()

    def __call__(self, x: Float[Tensor, "B T I"]) -> Float[Tensor, "B T D"]:
        """Return the outputs."""
        return self._kernel.run(self._cell, self._inputs(x), self._packed, self._width)


class _InferenceLayer(nn.RNNBase):
    """A recurrent layer without gradients, which has the attributes of another layer.

    It computes with the weights of its first call.
    """

    def forward(self, input: Any, hx: Any = None) -> Any:
        """Return the outputs and the last state; None in place of the state if the kernel was used."""
        if not isinstance(input, Tensor) or input.dim() != 3 or hx is not None:
            return super().forward(input, hx)
        if is_autocast_enabled(input.device):  # the kernel reads float32 only
            return super().forward(input)
        frozen = self._frozen
        if frozen is None or input.dtype != torch.float32 or input.device.type != "cpu":
            return super().forward(input)
        return frozen(input), None

    @functools.cached_property
    def _frozen(self) -> _FrozenRecurrence | None:
        """The layer for the kernel; None if it does not support it."""
        kernel, weights = _load_kernel(), self.all_weights[0]
        options = self.num_layers == 1, self.bias, self.batch_first, not self.bidirectional
        if kernel is None or self.proj_size or not all(options):
            return None
        floats = all(w.dtype == torch.float32 and w.device.type == "cpu" for w in weights)
        supported = floats and kernel.supports(self.mode.lower(), self.hidden_size)
        return _FrozenRecurrence(self, kernel) if supported else None


class InferenceLSTM(_InferenceLayer, nn.LSTM):
    """An LSTM without gradients."""


class InferenceGRU(_InferenceLayer, nn.GRU):
    """A GRU without gradients."""


@functools.cache
def _load_kernel() -> Any:
    """Return the module of the CPU kernel; None where numba cannot be imported."""
    try:
        from regard.kernels.recurrent import sequence
    except Exception:  # a broken compiler raises any exception
        return None
    return sequence
