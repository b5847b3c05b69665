"""Recurrent decoders: with a fixed context, and attending after the step or before it."""

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention import Attention, Intervention, Memory
from regard.attention.coverage import Coverage
from regard.attention.window import LocalWindow
from regard.cells import CELLS, Cell
from regard.decoders.output import CopyingOutput, Output, readable, repeat_copies
from regard.decoders.protocol import Step, Unrolled
from regard.encoders import EncoderOutput
from regard.kernels.dropout import dropout


@dataclasses.dataclass(frozen=True)
class RecurrentState:
    """The state of a recurrent decoder, N rows."""

    memory: Memory
    hidden: tuple[Tensor, ...]
    """Of each layer the tensors that its cell carries: (h,) or (h, c) in a row, each (N, D)."""
    feed: Tensor | None = None
    """(N, R): the attentional state of the step before, with input feeding."""
    steps: int = 0
    """Looks at the source so far."""
    covered: Tensor | None = None
    """(N, T): the sum of their weights, with coverage."""

    def select(self, rows: Int[Tensor, " N2"], items: Tensor | None = None) -> "RecurrentState":
        """These rows, and where `items` is given the memory of these sources alone."""
        return type(self)(
            memory=self.memory if items is None else self.memory.select(items),
            hidden=tuple(tensor[rows] for tensor in self.hidden),
            feed=None if self.feed is None else self.feed[rows],
            steps=self.steps,
            covered=None if self.covered is None else self.covered[rows],
        )


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
        self.vocabulary = vocabulary
        self.embedding = nn.Embedding(vocabulary, embedding_dim)
        nn.init.normal_(self.embedding.weight, std=embedding_dim**-0.5)
        self.cells = nn.ModuleList(
            Cell(hidden_dim, 0, hidden_dim, cell)
            if layer
            else Cell(embedding_dim, extra_dim, hidden_dim, cell)
            for layer in range(layers)
        )
        self.parts = CELLS[cell].state_tensors
        self.bridge = nn.Linear(final_dim, layers * self.parts * hidden_dim)
        readout_dim = embedding_dim if tie_embeddings else hidden_dim
        self.readout = nn.Linear(context_dim + hidden_dim, readout_dim)
        self.output = (CopyingOutput if copying else Output)(readout_dim, vocabulary)
        if tie_embeddings:
            self.output.weight = self.embedding.weight
        self.dropout = dropout

    def prepare_memory(self, encoded: EncoderOutput) -> Memory:
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
        return self._drop(self.embedding(readable(tokens, self.vocabulary)))

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
        logits = self.predict(readout, looked, repeat_copies(state.memory, len(readout)))
        return Step(torch.log_softmax(logits.float(), dim=-1), state, looked)


class FixedContextDecoder(RecurrentDecoder):
    """A decoder without attention (Cho et al. 2014, arXiv:1406.1078, section 2.2).

    All it has of the source is the encoder's final state c, read at every step by the first cell
    and by the readout: the bottleneck that attention removes.
    """

    def step(
        self,
        token: Int[Tensor, " N"],
        state: RecurrentState,
        intervention: Intervention | None = None,
    ) -> Step:
        """One symbol further; there is no look to push."""
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


class AttendingDecoder(RecurrentDecoder):
    """What recurrent decoders with attention share: how they look at the source.

    Args:
        attention: with queries of width `hidden_dim`.
        window: see a part of the source only; None: all of it.
        coverage: mind what was looked at before; for additive scores.
        **widths: as `RecurrentDecoder` takes them.
    """

    def __init__(
        self,
        attention: Attention,
        window: LocalWindow | None = None,
        coverage: Coverage | None = None,
        **widths: Any,
    ) -> None:
        super().__init__(**widths)
        self.attention = attention
        self.window = window
        self.coverage = coverage

    def prepare_memory(self, encoded: EncoderOutput) -> Memory:
        """Project the keys, once per source."""
        keys = self.attention.project_key(encoded.states)
        if self.coverage is None:  # which changes the keys at every step
            keys = self.attention.prepare_keys(keys)
        return Memory(encoded.states, encoded.padding, encoded.final, keys=(keys,))

    def start(self, memory: Memory) -> RecurrentState:
        """The first state; nothing is covered yet."""
        state = super().start(memory)
        if self.coverage is None:
            return state
        return dataclasses.replace(state, covered=memory.states.new_zeros(memory.padding.shape))

    def _look(
        self,
        query: Float[Tensor, "B L D"],
        memory: Memory,
        steps: Int[Tensor, " L"],
        covered: Float[Tensor, "B L T"] | None,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Look at the source; `steps` are the numbers of the looks, from 0."""
        masked, bias = memory.padding[:, None], None
        if self.window is not None:
            outside, bias = self.window(query, memory.padding, steps)
            masked = masked | outside
        if self.coverage is None or covered is None:
            return self.attention.attend(
                query, memory.keys[0], memory.states, masked, bias, need_weights
            )
        # every row sees keys of its own
        batch, length = query.shape[:2]
        masked, bias = (
            None if each is None else each.expand(batch, length, -1).flatten(0, 1)[:, None]
            for each in (masked, bias)
        )
        context, weights = self.attention.attend(
            query.flatten(0, 1)[:, None],
            self.coverage(memory.keys[0], covered),
            memory.states.repeat_interleave(length, 0),
            masked,
            bias,
            need_weights=True,
        )
        assert weights is not None
        return context.unflatten(0, (batch, length))[:, :, 0], weights.unflatten(
            0, (batch, length)
        )[:, :, 0]

    def _look_once(
        self,
        query: Float[Tensor, "N D"],
        state: RecurrentState,
        need_weights: bool = True,
        intervention: Intervention | None = None,
    ) -> tuple[Tensor, Tensor | None, RecurrentState]:
        """Look from N = B x beams rows at the memories of B sources: (N, Dv), (N, T), new state."""
        sources = state.memory.states.shape[0]
        queries = query.view(sources, -1, query.shape[-1])
        steps = torch.full((queries.shape[1],), state.steps, device=query.device)
        covered = None if state.covered is None else state.covered.view(*queries.shape[:2], -1)
        context, weights = self._look(queries, state.memory, steps, covered, need_weights)
        if intervention is not None and weights is not None:
            context, weights = intervention.apply(weights, state.memory.states)
        weights = None if weights is None else weights.flatten(0, 1)
        if state.covered is not None and weights is not None:
            state = dataclasses.replace(state, covered=state.covered + weights)
        state = dataclasses.replace(state, steps=state.steps + 1)
        return context.flatten(0, 1), weights, state


class LuongDecoder(AttendingDecoder):
    """Attend with the state after the step (Luong et al. 2015, arXiv:1508.04025, section 3).

        s_t = cell(s_{t-1}, [y_{t-1}; feed])    c_t = attention(s_t, h)    s~_t = tanh(W_c [c_t; s_t])

    With input feeding (section 3.3) the attentional state s~_{t-1} is read beside the embedding.
    Without it and without coverage no step waits for an attention, so whole targets run at once.

    Args:
        attention: with queries of width `hidden_dim`.
        input_feeding: read the attentional state of the step before (default False).
        **others: as `AttendingDecoder` takes them.
    """

    def __init__(self, attention: Attention, input_feeding: bool = False, **others: Any) -> None:
        extra = others["embedding_dim"] if others.get("tie_embeddings") else others["hidden_dim"]
        super().__init__(attention, **others, extra_dim=extra if input_feeding else 0)
        self.input_feeding = input_feeding

    def start(self, memory: Memory) -> RecurrentState:
        """The first state; the first feed is zero."""
        state = super().start(memory)
        if not self.input_feeding:
            return state
        feed = state.hidden[0].new_zeros(len(state.hidden[0]), self.readout.out_features)
        return dataclasses.replace(state, feed=feed)

    def step(
        self,
        token: Int[Tensor, " N"],
        state: RecurrentState,
        intervention: Intervention | None = None,
    ) -> Step:
        """One symbol further."""
        readout, weights, state = self._write(self._project(token), state, True, intervention)
        return self._finish(state, readout, weights)

    def query(self, before: RecurrentState, after: RecurrentState) -> Float[Tensor, "N D"]:
        """What the step between two states looked with: s_t."""
        return after.hidden[-self.parts]

    def unroll(
        self, memory: Memory, tokens: Int[Tensor, "B L"], need_weights: bool = False
    ) -> Unrolled:
        """All steps at once: one look for all of them, or step by step where one waits for another."""
        if self.input_feeding or self.coverage is not None:
            return self._unroll_steps(memory, tokens, need_weights)
        top = self._run(self._embed(tokens), self.start(memory).hidden)
        steps = torch.arange(tokens.shape[1], device=tokens.device)
        context, weights = self._look(top, memory, steps, None, need_weights)
        return Unrolled(self._read_out(context, top), _one_head(weights))

    def _unroll_steps(self, memory: Memory, tokens: Tensor, need_weights: bool) -> Unrolled:
        state = self.start(memory)
        readouts: list[Tensor] = []
        looks: list[Tensor | None] = []
        for known in self._project(tokens).unbind(1):
            readout, weights, state = self._write(known, state, need_weights)
            readouts.append(readout)
            looks.append(weights)
        return Unrolled(torch.stack(readouts, 1), _one_head(_join(looks)))

    def _write(
        self,
        known: Tensor,
        state: RecurrentState,
        need_weights: bool,
        intervention: Intervention | None = None,
    ) -> tuple[Tensor, Tensor | None, RecurrentState]:
        """The readout of the next symbol, and where it looked."""
        top, hidden = self._advance(known, state.feed, state.hidden)
        context, weights, state = self._look_once(top, state, need_weights, intervention)
        readout = self._read_out(context, top)
        feed = readout if self.input_feeding else None
        return readout, weights, dataclasses.replace(state, hidden=hidden, feed=feed)


class BahdanauDecoder(AttendingDecoder):
    """Attend with the state before the step (Bahdanau et al. 2015, arXiv:1409.0473, A.2.2).

        c_t = attention(s_{t-1}, h)    s_t = cell(s_{t-1}, [y_{t-1}; c_t])

    The readout sees s_t and c_t. With several layers the first one attends; the others run over
    its states.

    Args:
        attention: with queries of width `hidden_dim`.
        **others: as `AttendingDecoder` takes them.
    """

    def __init__(self, attention: Attention, **others: Any) -> None:
        super().__init__(attention, **others, extra_dim=others["context_dim"])

    def step(
        self,
        token: Int[Tensor, " N"],
        state: RecurrentState,
        intervention: Intervention | None = None,
    ) -> Step:
        """One symbol further."""
        context, weights, state = self._look_once(state.hidden[0], state, True, intervention)
        top, hidden = self._advance(self._project(token), context, state.hidden)
        state = dataclasses.replace(state, hidden=hidden)
        return self._finish(state, self._read_out(context, top), weights)

    def query(self, before: RecurrentState, after: RecurrentState) -> Float[Tensor, "N D"]:
        """What the step between two states looked with: s_{t-1}."""
        return before.hidden[0]

    def unroll(
        self, memory: Memory, tokens: Int[Tensor, "B L"], need_weights: bool = False
    ) -> Unrolled:
        """All steps: the first layer one by one, everything else at once."""
        state = self.start(memory)
        hidden = tuple(self._hidden(state.hidden, 0))
        states: list[Tensor] = []
        contexts: list[Tensor] = []
        looks: list[Tensor | None] = []
        for known in self._project(tokens).unbind(1):
            context, weights, state = self._look_once(hidden[0], state, need_weights)
            hidden = self._layers[0].step(known, context, hidden)
            states.append(hidden[0])
            contexts.append(context)
            looks.append(weights)
        top = self._run(torch.stack(states, 1), state.hidden, first=1)
        return Unrolled(self._read_out(torch.stack(contexts, 1), top), _one_head(_join(looks)))


def _spread(final: Tensor, rows: int) -> Tensor:
    return final.repeat_interleave(rows // max(1, final.shape[0]), dim=0)


def _join(looks: Sequence[Tensor | None]) -> Tensor | None:
    kept = [weights for weights in looks if weights is not None]
    return torch.stack(kept, dim=1) if kept else None


def _one_head(weights: Tensor | None) -> Tensor | None:
    return None if weights is None else weights[:, :, None, None]
