"""Transformer decoder: self-attention over the target so far, then attention to the source.

Vaswani et al. 2017, "Attention Is All You Need" (arXiv:1706.03762), section 3.1.
"""

import dataclasses
from typing import NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention import Intervention, Memory, MultiHeadAttention
from regard.attention.multihead import KeyValue, causal_mask
from regard.decoders.output import CopyingOutput, Output, known_tokens
from regard.decoders.protocol import AttentionInputs, Step, Unrolled
from regard.encoders import EncoderOutput, make_self_attention
from regard.kernels.additive import AdditiveKeys
from regard.layers import Embedding, FeedForward, Residual, TransformerConfig


@dataclasses.dataclass(frozen=True)
class TransformerState:
    """Keys and values of the target so far, to which later steps attend; N rows."""

    memory: Memory
    past: tuple[KeyValue, ...]
    """For each layer the keys and values of the t tokens read, (N, H, t, E) each."""

    @property
    def length(self) -> int:
        """Number of tokens read so far."""
        return self.past[0].values.shape[2]

    def select(self, rows: Int[Tensor, " N2"], items: Tensor | None = None) -> "TransformerState":
        """Return these rows; with `items`, the memory of these sources only."""
        return TransformerState(
            memory=self.memory if items is None else self.memory.select(items),
            past=tuple(KeyValue(past.keys[rows], past.values[rows]) for past in self.past),
        )


class _Source(NamedTuple):
    """The source as one layer attends to it."""

    keys: Tensor | AdditiveKeys
    values: Tensor
    masked: Tensor
    layer: int
    intervention: Intervention | None


class DecoderLayer(nn.Module):
    """Self-attention, attention to the source, feed-forward network, each with a residual connection.

    Args:
        config: sizes and options.
        source_dim: width of the encoder's states.
    """

    def __init__(self, config: TransformerConfig, source_dim: int) -> None:
        super().__init__()
        dim = config.dim
        self.self_attention = make_self_attention(config)
        self.cross_attention = MultiHeadAttention(
            dim, config.num_heads, config.score, normalizer=config.normalizer, key_dim=source_dim
        )
        self.feed_forward = FeedForward(
            dim, config.feed_forward_dim, config.activation, config.dropout
        )
        self.residuals = nn.ModuleList(
            Residual(dim, config.pre_norm, config.dropout) for _ in range(3)
        )

    def forward(
        self,
        states: Float[Tensor, "N L D"],
        past: KeyValue | None,
        source: _Source,
        need_weights: bool,
    ) -> tuple[Tensor, KeyValue, Tensor | None]:
        """Return the new states, all keys and values of the target so far, and the weights.

        Without a past the states are whole targets, N = B; with one they are the next token of each
        of N = B x beams hypotheses. The weights are (B, H, L, T) and (B, H, beams, T).
        """
        _, second, third = self._residuals
        states, past = self.self_attend(states, past)
        # the queries of one source form one axis, whether steps or beams
        rows = states.view(source.masked.shape[0], -1, states.shape[-1])
        context, weights = self.cross_attention.attention.attend(
            self.cross_attention.project_query(second.sublayer_input(rows)), source.keys, source.values,
            source.masked, None, need_weights,
        )  # fmt: skip
        if source.intervention is not None and weights is not None:
            context, weights = source.intervention.apply(weights, source.values, source.layer)
        states = second.add(states, self.cross_attention.combine_heads(context).view_as(states))
        states = third.add(states, self.feed_forward(third.sublayer_input(states)))
        return states, past, weights

    def self_attend(
        self, states: Float[Tensor, "N L D"], past: KeyValue | None
    ) -> tuple[Float[Tensor, "N L D"], KeyValue]:
        """Return the states after self-attention, and all keys and values of the target so far."""
        first = self._residuals[0]
        inputs = first.sublayer_input(states)
        length = 0 if past is None else past.values.shape[2]
        key_values = self.self_attention.project_key_value(inputs, inputs, length)
        masked = None
        if past is not None:
            pairs = zip(past, key_values, strict=True)
            key_values = KeyValue(*(torch.cat(pair, dim=2) for pair in pairs))
        elif states.shape[1] > 1:
            masked = causal_mask(states.shape[1], states.device)[None, None]
        queries = self.self_attention.project_query(inputs, length)
        context = self.self_attention.attention.attend(queries, *key_values, masked).context
        return first.add(states, self.self_attention.combine_heads(context)), key_values

    def source_query(self, states: Float[Tensor, "B L D"]) -> Float[Tensor, "B L D"]:
        """Return the projected queries of all heads for the states after self-attention."""
        return self.cross_attention.query_proj(self._residuals[1].sublayer_input(states))

    @property
    def _residuals(self) -> list[Residual]:
        return cast("list[Residual]", list(self.residuals))


class TransformerDecoder(nn.Module):
    """Layers of self-attention and attention to the source, all steps of a target in parallel.

    In step-by-step decoding the state holds the keys and values of the target so far, so that a
    step computes one row per layer.

    Args:
        config: sizes and options.
        vocabulary: size V of the target vocabulary.
        source_dim: width of the encoder's states.
        tie_embeddings: one matrix for embeddings and output layer.
        copying: the next token may be copied from the source.
    """

    def __init__(
        self,
        config: TransformerConfig,
        vocabulary: int,
        source_dim: int,
        tie_embeddings: bool = False,
        copying: bool = False,
    ) -> None:
        super().__init__()
        dim = config.dim
        self.vocabulary = vocabulary
        self.attention_layers, self.attention_heads = config.layers, config.num_heads
        self.embedding = Embedding(vocabulary, dim, config.positions, config.dropout)
        self.layers = nn.ModuleList(DecoderLayer(config, source_dim) for _ in range(config.layers))
        self.norm = nn.LayerNorm(dim) if config.pre_norm else nn.Identity()
        self.output = (CopyingOutput if copying else Output)(dim, vocabulary)
        if tie_embeddings:
            self.output.weight = self.embedding.tokens.weight

    def prepare_memory(self, encoded: EncoderOutput) -> Memory:
        """Project keys and values of the source for every layer, once per source."""
        keys: list[Tensor | AdditiveKeys] = []
        values: list[Tensor] = []
        for layer in self._layers:
            projected = layer.cross_attention.project_key_value(encoded.states, encoded.states)
            keys.append(layer.cross_attention.attention.prepare_keys(projected.keys))
            values.append(projected.values)
        return Memory(encoded.states, encoded.padding, encoded.final, tuple(keys), tuple(values))

    def start(self, memory: Memory) -> TransformerState:
        """Return the state of empty targets."""
        past: list[KeyValue] = []
        for layer in self._layers:
            empty = memory.states.new_zeros(
                memory.states.shape[0], 0, layer.self_attention.embed_dim
            )
            past.append(layer.self_attention.project_key_value(empty, empty))
        return TransformerState(memory, tuple(past))

    def step(
        self,
        token: Int[Tensor, " N"],
        state: TransformerState,
        intervention: Intervention | None = None,
    ) -> Step:
        """Read one token and return the log-probabilities of the next."""
        inputs = self.embedding(known_tokens(token, self.vocabulary)[:, None], state.length)
        states, past, by_layer = self._run_layers(
            inputs, state.past, state.memory, True, intervention
        )
        weights = torch.stack([layer.transpose(1, 2).flatten(0, 1) for layer in by_layer], dim=1)
        log_probs = self.output.log_probs(states[:, 0], weights, state.memory.copies)
        return Step(log_probs, TransformerState(state.memory, past), weights)

    def unroll(
        self, memory: Memory, tokens: Int[Tensor, "B L"], need_weights: bool = False
    ) -> Unrolled:
        """Compute all steps at once, with a causal mask."""
        inputs = self.embedding(known_tokens(tokens, self.vocabulary))
        states, _, by_layer = self._run_layers(inputs, None, memory, need_weights)
        if not by_layer:
            return Unrolled(states, None)
        return Unrolled(states, torch.stack([layer.transpose(1, 2) for layer in by_layer], dim=2))

    def predict(
        self,
        states: Float[Tensor, "*n R"],
        weights: Float[Tensor, "*n layers heads T"] | None = None,
        copies: Int[Tensor, "*m T"] | None = None,
    ) -> Float[Tensor, "*n V"]:
        """Return the logits over the vocabulary for the states of the last layer."""
        return self.output(states, weights, copies)

    def attention_inputs(
        self, memory: Memory, tokens: Int[Tensor, "B L"], layer: int = 0, head: int = 0
    ) -> AttentionInputs:
        """Return the projected queries, keys and values of one head."""
        chosen = self._layers[layer]
        inputs = self.embedding(known_tokens(tokens, self.vocabulary))
        states = self._run_layers(inputs, None, memory, False, layers=layer)[0]
        query = chosen.source_query(chosen.self_attend(states, None)[0])
        rows = (
            query,
            chosen.cross_attention.key_proj(memory.states),
            chosen.cross_attention.value_proj(memory.states),
        )
        heads = [row.chunk(self.attention_heads, dim=-1)[head] for row in rows]
        return AttentionInputs(chosen.cross_attention.attention, *heads)

    @property
    def _layers(self) -> list[DecoderLayer]:
        return cast("list[DecoderLayer]", list(self.layers))

    def _run_layers(
        self,
        states: Tensor,
        past: tuple[KeyValue, ...] | None,
        memory: Memory,
        need_weights: bool,
        intervention: Intervention | None = None,
        layers: int | None = None,
    ) -> tuple[Tensor, tuple[KeyValue, ...], list[Tensor]]:
        """Run all layers, or the first ones: states, keys and values so far, weights if asked for."""
        masked = memory.padding[:, None, None]
        new_past: list[KeyValue] = []
        by_layer: list[Tensor] = []
        for number, layer in enumerate(self._layers[:layers]):
            source = _Source(
                memory.keys[number], memory.values[number], masked, number, intervention
            )
            layer_past = None if past is None else past[number]
            states, key_values, weights = layer(states, layer_past, source, need_weights)
            new_past.append(key_values)
            if weights is not None:
                by_layer.append(weights)
        return (states if layers is not None else self.norm(states)), tuple(new_past), by_layer
