"""The encoder and one decoder step with flat inputs and outputs, and their ONNX graphs.

The values of `Memory` and of the decoder's state become tensors by name, `memory.*` and `state.*`. In a
step, each of the N hypotheses has a row of its own in all of them.
"""

import copy
import itertools
from collections.abc import Collection, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from regard.attention import Intervention, Memory
from regard.attention.multihead import KeyValue
from regard.decoders.output import CopyingOutput, OutputDecoder
from regard.decoders.recurrent import RecurrentState
from regard.decoders.transformer import TransformerDecoder, TransformerState
from regard.encoders import RecurrentEncoder
from regard.kernels.additive import AdditiveKeys
from regard.models import Seq2Seq

Tensors = dict[str, Tensor]


class RecurrentLayer(nn.Module):
    """A layer of PyTorch, `nn.LSTM` or `nn.GRU`, that is exported as one operator of ONNX.

    ONNX orders the gates of an LSTM as input, output, forget, cell, and those of a GRU as update, reset, new.
    """

    _ORDERS: Mapping[str, tuple[int, ...]] = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2)}

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.kind, self.width = layer.mode, layer.hidden_size
        by_input, by_state, *biases = (self._reordered(weight) for weight in layer.all_weights[0])
        self.by_input = nn.Parameter(by_input[None], requires_grad=False)
        self.by_state = nn.Parameter(by_state[None], requires_grad=False)
        self.bias = nn.Parameter(torch.cat(biases)[None], requires_grad=False)

    def _reordered(self, weight: Tensor) -> Tensor:
        gates = weight.detach().chunk(len(self._ORDERS[self.kind]))
        return torch.cat([gates[index] for index in self._ORDERS[self.kind]])

    def forward(self, inputs: Tensor) -> tuple[Tensor]:
        """Return the outputs for whole sequences, (B, T, D), from a state of zeros."""
        attributes: dict[str, Any] = {"hidden_size": self.width}
        if self.kind == "GRU":
            attributes["linear_before_reset"] = 1  # as in PyTorch
        outputs = torch.onnx.ops.symbolic(
            self.kind,
            (inputs.transpose(0, 1), self.by_input, self.by_state, self.bias),
            attributes,
            dtype=inputs.dtype,
            shape=(inputs.shape[1], 1, inputs.shape[0], self.width),
        )
        return (outputs[:, 0].transpose(0, 1),)


def exportable(model: Seq2Seq) -> Seq2Seq:
    """Return a copy of the model, on the CPU and in evaluation mode, whose layers all have operators in ONNX."""
    model = copy.deepcopy(model).cpu().eval()
    if isinstance(model.encoder, RecurrentEncoder):
        for layers in (model.encoder.forward_layers, model.encoder.backward_layers):
            for index, layer in enumerate(layers):
                layers[index] = RecurrentLayer(cast("nn.RNNBase", layer))
    return model


class EncoderGraph(nn.Module):
    """The encoder, and the first state of the decoder.

    Args:
        model: the model, from `exportable`.
        names: names of the outputs; None for all.
    """

    def __init__(self, model: Seq2Seq, names: Collection[str] | None = None) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, source: Tensor, lengths: Tensor) -> Tensors:
        """Return `memory.*` and `state.*` for ids (B, T) and the number of real ids (B,)."""
        memory = self.model.encode(source, lengths)
        values = {**memory_tensors(memory), **state_tensors(self._start(memory), "state")}
        return {
            name: value
            for name, value in values.items()
            if self.names is None or name in self.names
        }

    def _start(self, memory: Memory) -> Any:
        if not isinstance(self.model.decoder, TransformerDecoder):
            return self.model.decoder.start(memory)
        # nothing read so far: the decoder's own way, a projection of 0 rows, is no shape for ONNX
        empty = [values[:, :, :0] for values in memory.values]
        return TransformerState(memory, tuple(KeyValue(rows, rows) for rows in empty))


class StepGraph(nn.Module):
    """One step of the decoder, with interventions."""

    def __init__(self, model: Seq2Seq) -> None:
        super().__init__()
        self.decoder = model.decoder

    def forward(
        self,
        token: Tensor,
        step: Tensor,
        pinned: Tensor,
        ablated: Tensor,
        copies: Tensor,
        values: Tensors,
    ) -> Tensors:
        """Return `log_probs`, `weights` and the next state, `next.*`.

        Args:
            token: (N,), the last token of each hypothesis.
            step: (), the number of the step, counted from 0.
            pinned: (N, T), weights to impose; NaN where the weight is free.
            ablated: (layers, heads), True for heads to ablate.
            copies: (N, T), target-side ids of the source tokens, for a copying decoder.
            values: `memory.*` and `state.*`, (N, …) each.
        """
        copying = isinstance(cast("OutputDecoder", self.decoder).output, CopyingOutput)
        state = self._state(_memory(values, copies if copying else None), values, step)
        output = self.decoder.step(token, state, Intervention(pinned, ablated))
        weights = {} if output.weights is None else {"weights": output.weights}
        return {"log_probs": output.log_probs, **weights, **state_tensors(output.state, "next")}

    def _state(self, memory: Memory, values: Tensors, step: Tensor) -> Any:
        if isinstance(self.decoder, TransformerDecoder):
            pairs = zip(
                _numbered(values, "state.keys"), _numbered(values, "state.values"), strict=True
            )
            return TransformerState(memory, tuple(KeyValue(*pair) for pair in pairs))
        hidden = (_numbered(values, f"state.hidden.{layer}") for layer in itertools.count())
        return RecurrentState(
            memory,
            tuple(itertools.takewhile(len, hidden)),
            values.get("state.feed"),
            step,
            values.get("state.coverage"),
            values.get("state.joint"),
        )


def memory_tensors(memory: Memory) -> Tensors:
    """Return the tensors of a memory by name."""
    named = {"states": memory.states, "padding": memory.padding, "final": memory.final}
    named |= {
        f"keys.{index}": keys.projected if isinstance(keys, AdditiveKeys) else keys
        for index, keys in enumerate(memory.keys)
    }
    named |= {f"values.{index}": values for index, values in enumerate(memory.values)}
    return {f"memory.{name}": tensor for name, tensor in named.items()}


def state_tensors(state: RecurrentState | TransformerState, prefix: str) -> Tensors:
    """Return the tensors of a decoder's state by name."""
    if isinstance(state, TransformerState):
        named = {f"keys.{index}": past.keys for index, past in enumerate(state.past)}
        named |= {f"values.{index}": past.values for index, past in enumerate(state.past)}
    else:
        named = {
            f"hidden.{layer}.{index}": tensor
            for layer, tensors in enumerate(state.hidden)
            for index, tensor in enumerate(tensors)
        }
        optional = {"feed": state.feed, "coverage": state.coverage, "joint": state.joint}
        named |= {name: tensor for name, tensor in optional.items() if tensor is not None}
    return {f"{prefix}.{name}": tensor for name, tensor in named.items()}


def _memory(values: Tensors, copies: Tensor | None) -> Memory:
    return Memory(
        values["memory.states"],
        values["memory.padding"],
        values["memory.final"],
        _numbered(values, "memory.keys"),
        _numbered(values, "memory.values"),
        copies,
    )


def _numbered(values: Tensors, name: str) -> tuple[Tensor, ...]:
    """Return the tensors whose names are `name` and a number, from 0 on."""
    names = (f"{name}.{index}" for index in itertools.count())
    return tuple(values[name] for name in itertools.takewhile(values.__contains__, names))
