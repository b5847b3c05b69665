"""Base classes of the recurrent decoders: embedding, cells and readout; attention to the source."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.attention import Attention, Intervention, Memory
from regard.attention.coverage import Coverage
from regard.attention.score_modules import calls_own_modules, has_form
from regard.attention.window import LocalWindow
from regard.cells import Cell, faster_kernel
from regard.decoders.output import OutputDecoder, known_tokens, repeat_beams
from regard.decoders.protocol import AttentionInputs, Step, Unrolled
from regard.errors import ConfigError
from regard.kernels.additive import AdditiveKeys
from regard.kernels.dropout import dropout
from regard.kernels.linear import InferenceLinear, has_hooks
from regard.kernels.weighted_sum import is_autocast_enabled, to_compute_dtype
from regard.scores import Additive, Concat, PairwiseScore


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecurrentDecoderConfig:
    """Sizes and options that all recurrent decoders share."""

    vocabulary: int
    """Size V of the target vocabulary."""
    embedding_dim: int
    """Width of the embeddings."""
    hidden_dim: int
    """Width D of the states and of the readout."""
    context_dim: int
    """Width of the context."""
    final_dim: int
    """Width of the encoder's final state, from which the first state is computed."""
    layers: int = 1
    """Number of recurrent layers."""
    cell: str = "lstm"
    """A name in `regard.cells.CELLS`."""
    dropout: float = 0.0
    """Share of activations dropped in the embeddings, between layers and in the readout."""
    tie_embeddings: bool = False
    """Whether the embeddings and the output layer share one matrix."""
    copying: bool = False
    """Whether the next token may be copied from the source."""
    input_feeding: bool = False
    """Whether the first cell reads the attentional state (`LuongDecoder`) or the posterior context
    (`PosteriorDecoder`) of the previous step."""

    @property
    def readout_dim(self) -> int:
        """Width R of the readout states."""
        return self.embedding_dim if self.tie_embeddings else self.hidden_dim


@dataclasses.dataclass(frozen=True)
class RecurrentState:
    """The state of a recurrent decoder, with N rows."""

    memory: Memory
    hidden: tuple[tuple[Tensor, ...], ...]
    """State tensors of each layer, such as (h,) or (h, c); (N, D) each."""
    feed: Tensor | None = None
    """(N, R): the previous attentional state, with input feeding."""
    steps: int | Tensor = 0
    """Number of steps so far; a tensor () in an exported graph."""
    coverage: Tensor | None = None
    """(N, T): the sum of the attention weights so far, with coverage."""
    joint: Tensor | None = None
    """(N, T, V): log P(a_t = i, y_t | y_<t) of the last step (`PosteriorDecoder` only)."""

    def select(self, rows: Int[Tensor, " N2"], items: Tensor | None = None) -> "RecurrentState":
        """Return these rows; with `items`, the memory contains only these sources."""
        return type(self)(
            memory=self.memory if items is None else self.memory.select(items),
            hidden=tuple(
                tuple(tensor.index_select(0, rows) for tensor in layer) for layer in self.hidden
            ),
            feed=None if self.feed is None else self.feed.index_select(0, rows),
            steps=self.steps,
            coverage=None if self.coverage is None else self.coverage[rows],
            joint=None if self.joint is None else self.joint.index_select(0, rows),
        )


class RecurrentDecoder(OutputDecoder):
    """Base class of the recurrent decoders: embedding, bridge, cells, readout and output layer."""

    attention_layers = 0
    attention_heads = 0

    def __init__(self, config: RecurrentDecoderConfig) -> None:
        super().__init__()
        hidden_dim = config.hidden_dim
        self.vocabulary = config.vocabulary
        self.embedding = nn.Embedding(config.vocabulary, config.embedding_dim)
        nn.init.normal_(self.embedding.weight, std=config.embedding_dim**-0.5)
        first = Cell(config.embedding_dim, self.extra_dim(config), hidden_dim, config.cell)
        others = [Cell(hidden_dim, 0, hidden_dim, config.cell) for _ in range(config.layers - 1)]
        self.cells = cast("Sequence[Cell]", nn.ModuleList([first, *others]))
        self.state_shape = config.layers, first.cell.state_tensors, hidden_dim
        self.bridge = nn.Linear(config.final_dim, math.prod(self.state_shape))
        self.readout = nn.Linear(config.context_dim + hidden_dim, config.readout_dim)
        self._add_output(config.readout_dim, self.embedding, config.tie_embeddings, config.copying)
        self.input_feeding = config.input_feeding
        self.dropout = config.dropout

    @staticmethod
    def extra_dim(config: RecurrentDecoderConfig) -> int:
        """Return the width of the first cell's input at each step, in addition to the embedding."""
        return config.context_dim

    def prepare_memory(self, encoded: Memory) -> Memory:
        """Return the encoder's output; without attention there is nothing to prepare."""
        return encoded

    def start(self, memory: Memory) -> RecurrentState:
        """Return the first state: tanh of a linear map of the encoder's final state."""
        hidden = torch.tanh(self.bridge(memory.final)).unflatten(-1, self.state_shape)
        # to multiply queries (B, 1, D) that are not contiguous, PyTorch would copy the matrix B times
        hidden = hidden.movedim(0, -2).contiguous()
        return RecurrentState(memory, tuple(layer.unbind() for layer in hidden.unbind()))

    def step(
        self,
        token: Int[Tensor, " N"],
        state: RecurrentState,
        intervention: Intervention | None = None,
    ) -> Step:
        """Read one token and return the log-probabilities of the next."""
        readout, weights, state = self.advance(self._project(token), state, True, intervention)
        weights = None if weights is None else weights[:, None, None]
        return Step(self.log_probs(readout, weights, state.memory.copies), state, weights)

    def advance(
        self,
        inputs: Float[Tensor, "N G"],
        state: RecurrentState,
        need_weights: bool,
        intervention: Intervention | None = None,
    ) -> tuple[Float[Tensor, "N R"], Float[Tensor, "N T"] | None, RecurrentState]:
        """Return the readout, the attention weights and the state after one step.

        `inputs` is the embedded token, projected for the first cell. By default the decoder attends
        with the state before the step, and the first cell reads the context.
        """
        query = state.hidden[0][0]
        context, weights, state = self.attend_step(query, state, need_weights, intervention)
        hidden = self._step_cells(inputs, context, state.hidden)
        readout = self._read_out(context, hidden[-1][0])
        return readout, weights, dataclasses.replace(state, hidden=hidden)

    def unroll(
        self, memory: Memory, tokens: Int[Tensor, "B L"], need_weights: bool = False
    ) -> Unrolled:
        """Compute all steps one by one."""
        return self._unroll_from(self.start(memory), self._project(tokens), need_weights)

    def _unroll_from(
        self, state: RecurrentState, inputs: Float[Tensor, "B L G"], need_weights: bool
    ) -> Unrolled:
        """Compute all steps one by one, given the first state and the projected embeddings."""
        readouts: list[Tensor] = []
        by_step: list[Tensor | None] = []
        for projected in inputs.unbind(1):
            readout, weights, state = self.advance(projected, state, need_weights)
            readouts.append(readout)
            by_step.append(weights)
        return Unrolled(torch.stack(readouts, 1), stack_steps(by_step))

    def attend_step(
        self,
        query: Float[Tensor, "N D"],
        state: RecurrentState,
        need_weights: bool,
        intervention: Intervention | None = None,
    ) -> tuple[Tensor, Tensor | None, RecurrentState]:
        """Return the context (N, Dv), the weights (N, T) and the new state, for N = B x beams rows.

        Without attention the context is the encoder's final state.
        """
        return repeat_beams(state.memory.final, query.shape[0]), None, state

    def _embed(self, tokens: Tensor) -> Tensor:
        return self._dropout(self.embedding(known_tokens(tokens, self.vocabulary)))

    def _read_out(self, context: Tensor, hidden: Tensor) -> Tensor:
        """Return tanh(W_c [c_t; s_t]) (Luong et al. 2015, eq. 5)."""
        return self._dropout(torch.tanh(self.readout(torch.cat([context, hidden], dim=-1))))

    def _dropout(self, tensor: Tensor) -> Tensor:
        return dropout(tensor, self.dropout, self.training)

    def _project(self, tokens: Tensor) -> Tensor:
        """Project the embeddings for the first cell, for any number of steps."""
        return self.cells[0].project(self._embed(tokens))

    def _step_cells(
        self, projected: Tensor, extra: Tensor | None, hidden: Sequence[Sequence[Tensor]]
    ) -> tuple[tuple[Tensor, ...], ...]:
        """Return the state tensors of all layers after one step."""
        new: list[tuple[Tensor, ...]] = []
        for cell, state in zip(self.cells, hidden, strict=True):
            if new:
                projected, extra = cell.project(self._dropout(new[-1][0])), None
            new.append(cell.step(projected, extra, state))
        return tuple(new)

    def _run_cells(
        self, inputs: Tensor, hidden: Sequence[Sequence[Tensor]], first: int = 0
    ) -> Tensor:
        """Run the layers from `first` on over a whole sequence; return the states of the top layer."""
        for layer in range(first, len(self.cells)):
            inputs = self._dropout(inputs) if layer else inputs
            inputs = self.cells[layer].run(inputs, hidden[layer])
        return inputs


class AttendingDecoder(RecurrentDecoder):
    """Base class of the recurrent decoders with attention to the source.

    Args:
        config: sizes and options.
        attention: the attention layer, for queries of width `hidden_dim`.
        window: the part of the source to attend to; None for the whole source.
        coverage: adds accumulated attention weights to the score; for additive scores only.
    """

    attention_layers = 1
    attention_heads = 1
    attends_first = False
    """Whether the query is the state before the step, and the first cell reads the context."""

    def __init__(
        self,
        config: RecurrentDecoderConfig,
        attention: Attention,
        window: LocalWindow | None = None,
        coverage: Coverage | None = None,
    ) -> None:
        super().__init__(config)
        self.attention = attention
        self.window = window
        self.coverage = coverage

    def prepare_memory(self, encoded: Memory) -> Memory:
        """Project the keys, once per source.

        Raises:
            ConfigError: coverage cannot be added to the keys of the score.
        """
        score = self.attention.score
        if self.coverage is not None and not has_form(score, PairwiseScore):
            raise ConfigError(
                "coverage needs an additive or concat score with its own forward and without hooks, "
                f"got {type(score).__name__}"
            )
        keys = self.attention.project_key(encoded.states)
        if self.coverage is None:  # coverage changes the keys at every step
            keys = self.attention.prepare_keys(keys)
        states = encoded.states
        if is_autocast_enabled(states.device):
            # converted once instead of at every step, where the gradients would be rounded and added up
            states = to_compute_dtype(states)
        return dataclasses.replace(encoded, keys=(keys,), states=states)

    def start(self, memory: Memory) -> RecurrentState:
        """Return the first state; its coverage is zero."""
        state = super().start(memory)
        if self.coverage is None:
            return state
        return dataclasses.replace(state, coverage=memory.states.new_zeros(memory.padding.shape))

    def attention_inputs(
        self, memory: Memory, tokens: Int[Tensor, "B L"], layer: int = 0, head: int = 0
    ) -> AttentionInputs:
        """Return the decoder states that are the queries, and the encoder states."""
        state, queries = self.start(memory), list[Tensor]()
        for token in tokens.unbind(1):
            before, state = state, self.step(token, state).state
            queries.append(self.query(before, state))
        return AttentionInputs(
            self.attention, torch.stack(queries, 1), memory.states, memory.states
        )

    def query(self, before: RecurrentState, after: RecurrentState) -> Float[Tensor, "N D"]:
        """Return the query at the step between two states, by default s_{t-1}."""
        return before.hidden[0][0]

    def _attend(
        self,
        query: Float[Tensor, "B L D"],
        memory: Memory,
        steps: Int[Tensor, " L"],
        coverage: Float[Tensor, "B L T"] | None,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend to the source; `steps` contains the numbers of the steps, counted from 0."""
        masked, bias = self._mask(query, memory, steps)
        if self.coverage is None or coverage is None:
            return self.attention.attend(
                query, memory.keys[0], memory.states, masked, bias, need_weights
            )
        # with coverage, every row has its own keys
        batch, length = query.shape[:2]
        masked, bias = (
            None if mask is None else mask.expand(batch, length, -1).flatten(0, 1)[:, None]
            for mask in (masked, bias)
        )
        context, weights = self.attention.attend(
            query.flatten(0, 1)[:, None],
            self.coverage(memory.keys[0], coverage),
            memory.states.repeat_interleave(length, 0),
            masked,
            bias,
            need_weights=True,
        )
        assert weights is not None
        rows = (batch, length)
        return context.unflatten(0, rows)[:, :, 0], weights.unflatten(0, rows)[:, :, 0]

    def _mask(
        self, query: Float[Tensor, "B L D"], memory: Memory, steps: Int[Tensor, " L"]
    ) -> tuple[Bool[Tensor, "B #L T"], Float[Tensor, "B #L T"] | None]:
        """Return the positions outside the source or the window, and the bias of the scores."""
        masked = memory.padding[:, None]
        if self.window is None:
            return masked, None
        outside, bias = self.window(query, memory.padding, steps)
        return masked | outside, bias

    def attend_step(
        self,
        query: Tensor,
        state: RecurrentState,
        need_weights: bool,
        intervention: Intervention | None = None,
    ) -> tuple[Tensor, Tensor | None, RecurrentState]:
        """Return the context (N, Dv), the weights (N, T) and the new state, for N = B x beams rows."""
        queries = query.view(state.memory.states.shape[0], -1, query.shape[-1])
        steps = torch.zeros(queries.shape[1], dtype=torch.long, device=query.device) + state.steps
        coverage = None if state.coverage is None else state.coverage.view(*queries.shape[:2], -1)
        context, weights = self._attend(queries, state.memory, steps, coverage, need_weights)
        if intervention is not None and weights is not None:
            context, weights = intervention.apply(weights, state.memory.states)
        weights = None if weights is None else weights.flatten(0, 1)
        coverage = state.coverage
        if coverage is not None and weights is not None:
            coverage = coverage + weights
        state = dataclasses.replace(state, steps=state.steps + 1, coverage=coverage)
        return context.flatten(0, 1), weights, state

    def _find_kernel(
        self, inputs: Float[Tensor, "B L G"], state: RecurrentState, *others: Tensor
    ) -> tuple[Any, tuple[Any, ...]] | None:
        """Return the module that computes all steps of the first layer in training, and its arguments.

        None if PyTorch's operators must compute them. `inputs` are the projected embeddings, `others` the
        tensors on which the steps depend too.
        """
        attention, memory, cell = self.attention, state.memory, self.cells[0]
        weight, keys = query_weight(attention.score), memory.keys[0]
        coverage = None if self.coverage is None else self.coverage.weight
        if isinstance(keys, AdditiveKeys):
            keys = keys.projected
        if weight is None or not calls_own_modules(self):
            return None
        # with different batch sizes, PyTorch's operators raise an error
        if self.window is not None or len(inputs) != len(memory.states):
            return None
        if attention.normalizer != "softmax" or (attention.training and attention.dropout > 0):
            return None
        vector = cast("PairwiseScore", attention.score).vector
        tensors = [*state.hidden[0], keys, memory.states, weight, vector, *others]
        tensors += [] if coverage is None else [coverage]
        kernel = faster_kernel("attending", [cell.rnn], [inputs, *tensors])
        if kernel is None:
            return None
        weights = kernel.Cell(cell.extra_weight, *cell.recurrent)
        source = keys, memory.states, memory.padding
        tensors = kernel.AttentionTensors(*source, weight, vector, coverage)
        return kernel, (inputs, state.hidden[0], weights, tensors)


def query_weight(score: nn.Module) -> Tensor | None:
    """Return W of an additive or concat score; None if it projects queries in another way."""
    if not has_form(score, PairwiseScore) or any(map(has_hooks, score.modules())):
        return None
    if "project_query" in vars(score):
        return None
    if type(score) is Concat:
        return score.weight[:, : score.query_dim]
    if type(score) is Additive and type(score.query_proj) in (nn.Linear, InferenceLinear):
        return score.query_proj.weight if score.query_proj.bias is None else None  # pyright: ignore
    return None


def stack_steps(weights: Sequence[Tensor | None]) -> Float[Tensor, "B L 1 1 T"] | None:
    """Stack the weights (B, T) of all steps, with one layer and one head; None if there are none."""
    present = [step for step in weights if step is not None]
    return torch.stack(present, dim=1)[:, :, None, None] if present else None
