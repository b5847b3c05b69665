"""Recurrent encoders for inference: on CPUs, one kernel computes all steps of a layer, in both directions."""

import functools
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention import Memory
from regard.cells import is_plain
from regard.encoders import RecurrentEncoder, reversal_indices
from regard.kernels.compilation import import_kernel
from regard.kernels.linear import FrozenLinear, is_plain_embedding
from regard.kernels.weighted_sum import is_autocast_enabled

_LARGEST_FOLDED = 2048
"""Vocabulary size up to which the embeddings are projected for the first layer once per entry."""


class FoldedRecurrentEncoder(RecurrentEncoder):
    """A recurrent encoder without gradients, which has the attributes of another one.

    It computes with the weights of its first call.
    """

    def forward(self, source: Int[Tensor, "B T"], lengths: Int[Tensor, " B"]) -> Memory:
        """Encode ids (B, T), given the number of real ids in each row, `lengths` (B,)."""
        layers = self._layers
        if layers is None or not self._can_read(source, lengths):
            return super().forward(source, lengths)
        positions = torch.arange(source.numel(), device=source.device).view(source.shape)
        forward = positions[:1].expand(source.shape)
        backward = reversal_indices(lengths, source.shape[1])
        order = torch.stack([forward, backward][: layers[0].directions])
        folded = self._folded_inputs
        if folded is None:
            inputs, rows = layers[0].inputs(self.embedding(source)), positions
        else:
            inputs, rows = folded, source.long()
        states = layers[0].outputs(inputs, rows, order)
        for layer in layers[1:]:
            states = layer.outputs(layer.inputs(states), positions, order)
        return self._memory(states, lengths)

    def _can_read(self, source: Tensor, lengths: Tensor) -> bool:
        """Return whether the kernel, which computes in float32 and checks no index, can read a batch."""
        if source.device.type != "cpu" or is_autocast_enabled(source.device):
            return False
        if not source.numel() or lengths.numpy().max() > source.shape[1]:
            return False
        ids, folded = source.numpy(), self._folded_inputs  # NumPy is faster for few numbers
        return folded is None or bool(ids.min() >= 0 and ids.max() < len(folded))

    @functools.cached_property
    def _layers(self) -> "list[_FrozenLayer] | None":
        """The layers, for the kernel; None if it does not support them."""
        layers, kernel = self.layers(), import_kernel("recurrent.sequence")
        frozen: list[_FrozenLayer] = []
        for each in layers:
            plain = [part for part in each if is_plain(part)]
            if len(plain) < len(each) or kernel is None:
                return None
            if not all(kernel.supports(part.mode.lower(), part.hidden_size) for part in plain):
                return None
            frozen.append(_FrozenLayer(plain, kernel))
        return frozen

    @functools.cached_property
    def _folded_inputs(self) -> Tensor | None:
        """The inputs of the first layer for every entry of the vocabulary; None if there are many entries."""
        embedding, layers = self.embedding, self._layers
        if layers is None or not is_plain_embedding(embedding):
            return None
        if embedding.num_embeddings > _LARGEST_FOLDED:
            return None
        return layers[0].inputs(embedding.weight.detach())


class _FrozenLayer:
    """A recurrent layer with fixed weights, of one direction or both."""

    def __init__(self, directions: Sequence[nn.RNNBase], kernel: Any) -> None:
        from regard.kernels.cpu.packing import pack

        weights = [layer.all_weights[0] for layer in directions]
        inputs, recurrent, biases, recurrent_biases = zip(*weights, strict=True)
        self.directions = len(directions)
        self._kernel, self._cell = kernel, directions[0].mode.lower()
        self._width = directions[0].hidden_size
        self._inputs = FrozenLinear(torch.cat(inputs), torch.cat(biases), may_round=True)
        packed = [pack(*each) for each in zip(recurrent, recurrent_biases, strict=True)]
        self._packed = torch.stack(packed).detach()

    def inputs(self, x: Float[Tensor, "*n I"]) -> Float[Tensor, "*n G"]:
        """Return the input part of the gates of all directions."""
        return self._inputs(x)

    def outputs(
        self,
        inputs: Float[Tensor, "*n G"],
        rows: Int[Tensor, "B T"],
        order: Int[Tensor, "directions B T"],
    ) -> Float[Tensor, "B T D"]:
        """Return the outputs of all directions, side by side.

        `rows` contains the row of `inputs` at every position, and `order` the positions in the order in
        which a direction reads them.
        """
        return self._kernel.run(self._cell, inputs, rows, order, self._packed, self._width)
