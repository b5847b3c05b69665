"""Transformer decoder: self-attention over the target so far, then attention to the source.

Vaswani et al. 2017, "Attention Is All You Need" (arXiv:1706.03762), section 3.1.
"""

import dataclasses
from collections.abc import Sequence
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention import Intervention, Memory
from regard.attention.multihead import KeyValue, causal_mask
from regard.decoders.output import OutputDecoder, known_tokens
from regard.decoders.protocol import AttentionInputs, Step, Unrolled
from regard.encoders import TransformerLayer
from regard.kernels.additive import AdditiveKeys
from regard.layers import Embedding, TransformerConfig


@dataclasses.dataclass(frozen=True)
class TransformerState:
    """Keys and values of the target so far, to which later steps attend, for N rows."""

    memory: Memory
    past: tuple[KeyValue, ...]
    """For each layer, the keys and values of the t tokens read so far, (N, H, t, E) each."""

    def select(self, rows: Int[Tensor, " N2"], items: Tensor | None = None) -> "TransformerState":
        """Return these rows; with `items`, the memory contains only these sources."""
        return TransformerState(
            memory=self.memory if items is None else self.memory.select(items),
            past=tuple(KeyValue(past.keys[rows], past.values[rows]) for past in self.past),
        )


class DecoderLayer(TransformerLayer):
    """Self-attention, attention to the source and feed-forward network."""

    def forward(
        self,
        states: Float[Tensor, "N L D"],
        past: KeyValue | None,
        memory: Memory,
        index: int,
        need_weights: bool,
        intervention: Intervention | None,
    ) -> tuple[Tensor, KeyValue, Tensor | None]:
        """Return the new states, all keys and values of the target so far, and the weights.

        If `past` is None, the states are those of whole targets, N = B, and the weights are
        (B, H, L, T). Otherwise, the states are those of the next token of each of N = B x beams
        hypotheses, and the weights are (B, H, beams, T). `index` is the number of this layer, counted
        from 0.
        """
        states, past = self.self_attend_causal(states, past)
        # the queries of one source form one axis, whether steps or beams
        rows = states.view(memory.padding.shape[0], -1, states.shape[-1])
        residual, values = self.residuals[1], memory.values[index]
        context, weights = self.cross_attention.attention.attend(
            self.cross_attention.project_query(residual.sublayer_input(rows)),
            memory.keys[index],
            values,
            memory.padding[:, None, None],
            need_weights=need_weights,
        )
        if intervention is not None and weights is not None:
            context, weights = intervention.apply(weights, values, index)
        states = residual.add(states, self.cross_attention.combine_heads(context).view_as(states))
        return self.feed(states), past, weights

    def self_attend_causal(
        self, states: Float[Tensor, "N L D"], past: KeyValue | None = None
    ) -> tuple[Float[Tensor, "N L D"], KeyValue]:
        """Return the states after self-attention, and all keys and values of the target so far."""
        masked = None
        if past is None and states.shape[1] > 1:
            masked = causal_mask(states.shape[1], states.device)[None, None]
        return self.self_attend(states, masked, past)


class TransformerDecoder(OutputDecoder):
    """Layers of self-attention and attention to the source; all steps of a target run in parallel.

    In step-by-step decoding, the state contains the keys and values of the target so far, so that a
    step computes only one row per layer.

    Args:
        config: sizes and options.
        vocabulary: size V of the target vocabulary.
        source_dim: width of the encoder's states.
        tie_embeddings: use one matrix for embeddings and output layer (default False).
        copying: allow copying the next token from the source (default False).
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
        layers = nn.ModuleList(DecoderLayer(config, source_dim) for _ in range(config.layers))
        self.layers = cast("Sequence[DecoderLayer]", layers)
        self.norm = nn.LayerNorm(dim) if config.pre_norm else nn.Identity()
        self._add_output(dim, self.embedding.tokens, tie_embeddings, copying)

    def prepare_memory(self, encoded: Memory) -> Memory:
        """Project the keys and values for every layer, once per source."""
        keys: list[Tensor | AdditiveKeys] = []
        values: list[Tensor] = []
        for layer in self.layers:
            projected = layer.cross_attention.project_key_value(encoded.states, encoded.states)
            keys.append(layer.cross_attention.attention.prepare_keys(projected.keys))
            values.append(projected.values)
        return dataclasses.replace(encoded, keys=tuple(keys), values=tuple(values))

    def start(self, memory: Memory) -> TransformerState:
        """Return the state for empty targets."""
        states = memory.states
        empty = states.new_zeros(states.shape[0], 0, self.layers[0].self_attention.embed_dim)
        past = [layer.self_attention.project_key_value(empty, empty) for layer in self.layers]
        return TransformerState(memory, tuple(past))

    def step(
        self,
        token: Int[Tensor, " N"],
        state: TransformerState,
        intervention: Intervention | None = None,
    ) -> Step:
        """Read one token and return the log-probabilities of the next."""
        length = state.past[0].values.shape[2]
        inputs = self.embedding(known_tokens(token, self.vocabulary)[:, None], length)
        states, past, weights = self._run_layers(
            inputs, state.past, state.memory, True, intervention
        )
        weights = None if weights is None else weights.flatten(0, 1)
        log_probs = self.log_probs(self.norm(states[:, 0]), weights, state.memory.copies)
        return Step(log_probs, TransformerState(state.memory, past), weights)

    def unroll(
        self, memory: Memory, tokens: Int[Tensor, "B L"], need_weights: bool = False
    ) -> Unrolled:
        """Compute all steps at once, with a causal mask."""
        inputs = self.embedding(known_tokens(tokens, self.vocabulary))
        states, _, weights = self._run_layers(inputs, None, memory, need_weights)
        return Unrolled(self.norm(states), weights)

    def attention_inputs(
        self, memory: Memory, tokens: Int[Tensor, "B L"], layer: int = 0, head: int = 0
    ) -> AttentionInputs:
        """Return the projected queries, keys and values of one head."""
        chosen, attention = self.layers[layer], self.layers[layer].cross_attention
        inputs = self.embedding(known_tokens(tokens, self.vocabulary))
        states = self._run_layers(inputs, None, memory, False, layers=layer)[0]
        states = chosen.self_attend_causal(states)[0]
        rows = (
            attention.query_proj(chosen.residuals[1].sublayer_input(states)),
            attention.key_proj(memory.states),
            attention.value_proj(memory.states),
        )
        heads = [row.chunk(self.attention_heads, dim=-1)[head] for row in rows]
        return AttentionInputs(attention.attention, *heads)

    def weights_of_layers(
        self,
        memory: Memory,
        tokens: Int[Tensor, "B L"],
        intervention: Intervention | None = None,
    ) -> tuple[Float[Tensor, "B layers H L L"], Float[Tensor, "B layers H L T"]]:
        """Return the weights of self-attention and of attention to the source for `tokens`."""
        masked = causal_mask(tokens.shape[1], tokens.device)[None, None]
        states = self.embedding(known_tokens(tokens, self.vocabulary))
        own, cross = list[Tensor](), list[Tensor]()
        for index, layer in enumerate(self.layers):
            own.append(layer.self_attention_weights(states, masked))
            states, _, weights = layer(states, None, memory, index, True, intervention)
            cross.append(weights)
        return torch.stack(own, dim=1), torch.stack(cross, dim=1)

    def _run_layers(
        self,
        states: Tensor,
        past: tuple[KeyValue, ...] | None,
        memory: Memory,
        need_weights: bool,
        intervention: Intervention | None = None,
        layers: int | None = None,
    ) -> tuple[Tensor, tuple[KeyValue, ...], Tensor | None]:
        """Run all layers, or the first `layers`.

        Return the states, the keys and values so far and, if requested, the weights: (B, L, layers,
        H, T) if `past` is None, otherwise (B, beams, layers, H, T).
        """
        new_past: list[KeyValue] = []
        by_layer: list[Tensor] = []
        for index, layer in enumerate(self.layers[:layers]):
            layer_past = None if past is None else past[index]
            states, key_values, weights = layer(
                states, layer_past, memory, index, need_weights, intervention
            )
            new_past.append(key_values)
            if weights is not None:
                by_layer.append(weights.transpose(1, 2))
        return states, tuple(new_past), torch.stack(by_layer, dim=2) if by_layer else None
