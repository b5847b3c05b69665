"""Recurrent decoders: with a fixed context, and attending after the step or before it."""

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from regard.attention import Attention, Memory
from regard.decoders.output import CopyingOutput, Output, readable, spread_copies
from regard.decoders.protocol import Step, Unrolled
from regard.encoders import CELLS, Encoded
from regard.kernels.dropout import dropout


@dataclasses.dataclass(frozen=True)
class RecurrentState:
    """The state of a recurrent decoder, N rows."""

    memory: Memory
    hidden: tuple[Tensor, ...]
    """Of each layer the tensors that its cell carries: (h,) or (h, c) in a row, each (N, D)."""
    feed: Tensor | None = None
    """(N, R): the attentional state of the step before, with input feeding."""

    def select(self, rows: Int[Tensor, " N2"], items: Tensor | None = None) -> "RecurrentState":
        """These rows, and where `items` is given the memory of these sources alone."""
        return type(self)(
            memory=self.memory if items is None else self.memory.select(items),
            hidden=tuple(tensor[rows] for tensor in self.hidden),
            feed=None if self.feed is None else self.feed[rows],
        )


class Cell(nn.Module):
    """A recurrent cell that can run one step, or a whole sequence with PyTorch's fast layer.

    Its input may come in two parts: what is known for all steps beforehand (`project` it once),
    and what each step finds out (`extra`).

    Args:
        input_dim: width of the part that is known beforehand.
        extra_dim: width of the part that each step finds out; 0 for none.
        hidden_dim: width of the state.
        cell: `gru` or `lstm`.
    """

    def __init__(self, input_dim: int, extra_dim: int, hidden_dim: int, cell: str) -> None:
        super().__init__()
        self.rnn = CELLS[cell](input_dim + extra_dim, hidden_dim, batch_first=True)
        self.input_dim = input_dim

    def run(self, inputs: Tensor, hidden: Sequence[Tensor]) -> Tensor:
        """The states (B, L, D) of a whole sequence of complete inputs (B, L, input + extra)."""
        first = [tensor[None].contiguous() for tensor in hidden]
        return self.rnn(inputs, first[0] if len(first) == 1 else tuple(first))[0]

    def project(self, inputs: Tensor) -> Tensor:
        """The part of the gates that comes from the known input, for any number of steps."""
        weight, _, bias, _ = self._weights()
        return functional.linear(inputs, weight[:, : self.input_dim], bias)

    def step(
        self, known: Tensor, extra: Tensor | None, hidden: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """Carry `hidden` one step on; `known` comes from `project`, `extra` from this step."""
        weight, weight_hidden, _, bias_hidden = self._weights()
        if extra is not None:
            known = known + functional.linear(extra, weight[:, self.input_dim :])
        recurrent = functional.linear(hidden[0], weight_hidden, bias_hidden)
        if isinstance(self.rnn, nn.LSTM):
            keep, forget, new, out = (known + recurrent).chunk(4, dim=-1)
            c = torch.sigmoid(forget) * hidden[1] + torch.sigmoid(keep) * torch.tanh(new)
            return torch.sigmoid(out) * torch.tanh(c), c
        width = 2 * hidden[0].shape[-1]
        reset, update = torch.sigmoid(known[:, :width] + recurrent[:, :width]).chunk(2, dim=-1)
        new = torch.tanh(known[:, width:] + reset * recurrent[:, width:])
        return (new + update * (hidden[0] - new),)

    def _weights(self) -> list[nn.Parameter]:
        """Of input and state, then their biases: PyTorch's order."""
        return self.rnn.all_weights[0]


class RecurrentDecoder(nn.Module):
    """What the three recurrent decoders share: embedding, bridge, cells, readout, output layer.

    Args:
        vocabulary: size V of the target vocabulary.
        embedding_dim: width of the embeddings.
        hidden_dim: width D of the states, and of the readout.
        context_dim: width of what is read of the source.
        final_dim: width of the encoder's final state, for the bridge to the first state.
        extra_dim: width of what a step feeds to its first cell beside the embedding.
        layers: number of layers (default 1).
        cell: `gru` or `lstm`.
        dropout: share of activations dropped on embeddings, between layers and on the readout.
        tie_embeddings: one matrix for embeddings and output layer.
        copying: the next symbol may be copied from the source.
    """

    def __init__(
        self,
        vocabulary: int,
        embedding_dim: int,
        hidden_dim: int,
        context_dim: int,
        final_dim: int,
        extra_dim: int = 0,
        layers: int = 1,
        cell: str = "lstm",
        dropout: float = 0.0,
        tie_embeddings: bool = False,
        copying: bool = False,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding_dim)
        nn.init.normal_(self.embedding.weight, std=embedding_dim**-0.5)
        self.cells = nn.ModuleList(
            Cell(hidden_dim, 0, hidden_dim, cell)
            if layer
            else Cell(embedding_dim, extra_dim, hidden_dim, cell)
            for layer in range(layers)
        )
        self.parts = 2 if cell == "lstm" else 1
        self.bridge = nn.Linear(final_dim, layers * self.parts * hidden_dim)
        readout_dim = embedding_dim if tie_embeddings else hidden_dim
        self.readout = nn.Linear(context_dim + hidden_dim, readout_dim)
        self.output = (CopyingOutput if copying else Output)(readout_dim, vocabulary)
        if tie_embeddings:
            self.output.weight = self.embedding.weight
        self.dropout = dropout

    def remember(self, encoded: Encoded) -> Memory:
        """Compute once what every step needs of the source."""
        return Memory(encoded.states, encoded.padding, encoded.final)

    def start(self, memory: Memory) -> RecurrentState:
        """The first state: tanh of a linear map of the encoder's final state."""
        hidden = torch.tanh(self.bridge(memory.final))
        count = len(self.cells) * self.parts
        return RecurrentState(memory, hidden.chunk(count, dim=-1))

    def predict(
        self,
        states: Float[Tensor, "*n R"],
        weights: Float[Tensor, "*n layers heads T"] | None = None,
        copies: Int[Tensor, "*m T"] | None = None,
    ) -> Float[Tensor, "*n V"]:
        """Logits over the vocabulary from readout states."""
        return self.output(states, weights, copies)

    def _embed(self, tokens: Tensor) -> Tensor:
        return self._drop(self.embedding(readable(tokens, self.output.out_features)))

    def _read_out(self, context: Tensor, hidden: Tensor) -> Tensor:
        """Luong et al. 2015, eq. 5: tanh(W_c [c_t; s_t])."""
        return self._drop(torch.tanh(self.readout(torch.cat([context, hidden], dim=-1))))

    def _drop(self, tensor: Tensor) -> Tensor:
        return dropout(tensor, self.dropout, self.training)

    @property
    def _layers(self) -> list[Cell]:
        return cast("list[Cell]", list(self.cells))

    def _hidden(self, hidden: Sequence[Tensor], layer: int) -> Sequence[Tensor]:
        return hidden[layer * self.parts : (layer + 1) * self.parts]

    def _advance(
        self, known: Tensor, extra: Tensor | None, hidden: Sequence[Tensor]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Carry every layer one step on: the top state, and all that the cells carry."""
        carried: list[Tensor] = []
        for layer, cell in enumerate(self._layers):
            if layer:
                known, extra = cell.project(self._drop(carried[-self.parts])), None
            carried += cell.step(known, extra, self._hidden(hidden, layer))
        return carried[-self.parts], tuple(carried)

    def _run(self, inputs: Tensor, hidden: Sequence[Tensor], first: int = 0) -> Tensor:
        """Run the layers from `first` on over a whole sequence."""
        for layer, cell in enumerate(self._layers[first:], start=first):
            inputs = cell.run(self._drop(inputs) if layer else inputs, self._hidden(hidden, layer))
        return inputs

    def _project(self, tokens: Tensor) -> Tensor:
        """What the first cell knows beforehand, for any number of steps at once."""
        return self._layers[0].project(self._embed(tokens))

    def _finish(self, state: RecurrentState, readout: Tensor, weights: Tensor | None) -> Step:
        looked = None if weights is None else weights[:, None, None]
        logits = self.predict(readout, looked, spread_copies(state.memory, len(readout)))
        return Step(torch.log_softmax(logits.float(), dim=-1), state, looked)


class FixedContextDecoder(RecurrentDecoder):
    """A decoder without attention (Cho et al. 2014, arXiv:1406.1078, section 2.2).

    All it has of the source is the encoder's final state c, read at every step by the first cell
    and by the readout: the bottleneck that attention removes.
    """

    def step(self, token: Int[Tensor, " N"], state: RecurrentState) -> Step:
        """One symbol further."""
        context = _spread(state.memory.final, token.shape[0])
        top, hidden = self._advance(self._project(token), context, state.hidden)
        state = dataclasses.replace(state, hidden=hidden)
        return self._finish(state, self._read_out(context, top), None)

    def unroll(
        self, memory: Memory, tokens: Int[Tensor, "B L"], need_weights: bool = False
    ) -> Unrolled:
        """All steps at once; there are no weights."""
        context = memory.final[:, None].expand(-1, tokens.shape[1], -1)
        inputs = torch.cat([self._embed(tokens), context], dim=-1)
        top = self._run(inputs, self.start(memory).hidden)
        return Unrolled(self._read_out(context, top), None)


class LuongDecoder(RecurrentDecoder):
    """Attend with the state after the step (Luong et al. 2015, arXiv:1508.04025, section 3).

        s_t = cell(s_{t-1}, [y_{t-1}; feed])    c_t = attention(s_t, h)    s~_t = tanh(W_c [c_t; s_t])

    With input feeding (section 3.3) the attentional state s~_{t-1} is read beside the embedding.
    Without it no step waits for an attention, so whole targets run at once.

    Args:
        attention: with queries of width `hidden_dim`.
        input_feeding: read the attentional state of the step before (default False).
        **widths: as `RecurrentDecoder` takes them.
    """

    def __init__(self, attention: Attention, input_feeding: bool = False, **widths: Any) -> None:
        extra = widths["embedding_dim"] if widths.get("tie_embeddings") else widths["hidden_dim"]
        super().__init__(**widths, extra_dim=extra if input_feeding else 0)
        self.attention = attention
        self.input_feeding = input_feeding

    def remember(self, encoded: Encoded) -> Memory:
        """Project the keys, once per source."""
        return _with_keys(self.attention, encoded)

    def start(self, memory: Memory) -> RecurrentState:
        """The first state; the first feed is zero."""
        state = super().start(memory)
        if not self.input_feeding:
            return state
        feed = state.hidden[0].new_zeros(len(state.hidden[0]), self.readout.out_features)
        return dataclasses.replace(state, feed=feed)

    def step(self, token: Int[Tensor, " N"], state: RecurrentState) -> Step:
        """One symbol further."""
        top, hidden = self._advance(self._project(token), state.feed, state.hidden)
        context, weights = _look_rows(self.attention, top, state.memory)
        readout = self._read_out(context, top)
        feed = readout if self.input_feeding else None
        state = dataclasses.replace(state, hidden=hidden, feed=feed)
        return self._finish(state, readout, weights)

    def unroll(
        self, memory: Memory, tokens: Int[Tensor, "B L"], need_weights: bool = False
    ) -> Unrolled:
        """All steps at once: one look for all of them, or step by step with input feeding."""
        if self.input_feeding:
            return self._unroll_feeding(memory, tokens, need_weights)
        top = self._run(self._embed(tokens), self.start(memory).hidden)
        context, weights = _look(self.attention, top, memory, need_weights)
        return Unrolled(self._read_out(context, top), _one_head(weights))

    def _unroll_feeding(self, memory: Memory, tokens: Tensor, need_weights: bool) -> Unrolled:
        start = self.start(memory)
        hidden, feed = start.hidden, start.feed
        readouts: list[Tensor] = []
        looks: list[Tensor | None] = []
        for known in self._project(tokens).unbind(1):
            top, hidden = self._advance(known, feed, hidden)
            context, weights = _look(self.attention, top[:, None], memory, need_weights)
            feed = self._read_out(context[:, 0], top)
            readouts.append(feed)
            looks.append(weights)
        return Unrolled(torch.stack(readouts, 1), _one_head(_join(looks)))


class BahdanauDecoder(RecurrentDecoder):
    """Attend with the state before the step (Bahdanau et al. 2015, arXiv:1409.0473, A.2.2).

        c_t = attention(s_{t-1}, h)    s_t = cell(s_{t-1}, [y_{t-1}; c_t])

    The readout sees s_t and c_t. With several layers the first one attends; the others run over
    its states.

    Args:
        attention: with queries of width `hidden_dim`.
        **widths: as `RecurrentDecoder` takes them.
    """

    def __init__(self, attention: Attention, **widths: Any) -> None:
        super().__init__(**widths, extra_dim=widths["context_dim"])
        self.attention = attention

    def remember(self, encoded: Encoded) -> Memory:
        """Project the keys, once per source."""
        return _with_keys(self.attention, encoded)

    def step(self, token: Int[Tensor, " N"], state: RecurrentState) -> Step:
        """One symbol further."""
        context, weights = _look_rows(self.attention, state.hidden[0], state.memory)
        top, hidden = self._advance(self._project(token), context, state.hidden)
        state = dataclasses.replace(state, hidden=hidden)
        return self._finish(state, self._read_out(context, top), weights)

    def unroll(
        self, memory: Memory, tokens: Int[Tensor, "B L"], need_weights: bool = False
    ) -> Unrolled:
        """All steps: the first layer one by one, everything else at once."""
        start = self.start(memory).hidden
        hidden = tuple(self._hidden(start, 0))
        states: list[Tensor] = []
        contexts: list[Tensor] = []
        looks: list[Tensor | None] = []
        for known in self._project(tokens).unbind(1):
            context, weights = _look(self.attention, hidden[0][:, None], memory, need_weights)
            hidden = self._layers[0].step(known, context[:, 0], hidden)
            states.append(hidden[0])
            contexts.append(context[:, 0])
            looks.append(weights)
        top = self._run(torch.stack(states, 1), start, first=1)
        return Unrolled(self._read_out(torch.stack(contexts, 1), top), _one_head(_join(looks)))


def _with_keys(attention: Attention, encoded: Encoded) -> Memory:
    keys = attention.project_key(encoded.states)
    exponentials = attention.exponentials(keys)
    return Memory(
        encoded.states, encoded.padding, encoded.final, keys=(keys,), exponentials=(exponentials,)
    )


def _look(
    attention: Attention, query: Tensor, memory: Memory, need_weights: bool
) -> tuple[Tensor, Tensor | None]:
    keys, exponentials = memory.keys[0], memory.exponentials[0]
    masked = memory.padding[:, None]
    return attention.look(query, keys, memory.states, masked, None, need_weights, exponentials)


def _look_rows(attention: Attention, query: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
    """Look from N = B x beams rows at the memories of B sources: (N, Dv) and (N, T)."""
    sources = memory.states.shape[0]
    context, weights = _look(
        attention, query.view(sources, -1, query.shape[-1]), memory, need_weights=True
    )
    assert weights is not None
    return context.flatten(0, 1), weights.flatten(0, 1)


def _spread(final: Tensor, rows: int) -> Tensor:
    return final.repeat_interleave(rows // max(1, final.shape[0]), dim=0)


def _join(looks: Sequence[Tensor | None]) -> Tensor | None:
    kept = [weights for weights in looks if weights is not None]
    return torch.cat(kept, dim=1) if kept else None


def _one_head(weights: Tensor | None) -> Tensor | None:
    return None if weights is None else weights[:, :, None, None]
