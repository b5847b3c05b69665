"""The Transformer's decoder: self-attention over what is written, then a look at the source.

Vaswani et al. 2017, "Attention Is All You Need" (arXiv:1706.03762), section 3.1.
"""

import dataclasses
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention import Intervention, Memory, MultiHeadAttention
from regard.attention.multihead import KeyValue, causal_mask
from regard.decoders.output import CopyingOutput, Output, readable, repeat_copies
from regard.decoders.protocol import Step, Unrolled
from regard.encoders import EncoderOutput
from regard.kernels.additive import AdditiveKeys
from regard.layers import Embedding, FeedForward, Residual
from regard.positions import head_positions


@dataclasses.dataclass(frozen=True)
class TransformerState:
    """What is written so far, as the keys and values that later steps look at; N rows."""

    memory: Memory
    past: tuple[KeyValue, ...]
    """Of each layer keys and values of the t symbols read, (N, H, t, E) each."""

    @property
    def length(self) -> int:
        """Symbols read so far."""
        return self.past[0].values.shape[2]

    def select(self, rows: Int[Tensor, " N2"], items: Tensor | None = None) -> "TransformerState":
        """These rows, and where `items` is given the memory of these sources alone."""
        return TransformerState(
            memory=self.memory if items is None else self.memory.select(items),
            past=tuple(KeyValue(past.keys[rows], past.values[rows]) for past in self.past),
        )


class _Source(NamedTuple):
    """The source as one layer looks at it."""

    keys: Tensor | AdditiveKeys
    values: Tensor
    masked: Tensor
    layer: int
    intervention: Intervention | None


class DecoderLayer(nn.Module):
    """Self-attention, attention to the source, feed-forward, each with its residual branch.

    Args:
        dim: width D.
        source_dim: width of the encoder's states.
        feed_forward_dim: width inside the feed-forward part.
        activation: of the feed-forward part.
        pre_norm: norm before each part, else after its sum.
        dropout: share of activations dropped.
        **heads: as `MultiHeadAttention` takes them; `position_encoding` applies to self-attention only.
    """

    def __init__(
        self,
        dim: int,
        source_dim: int,
        feed_forward_dim: int,
        activation: str,
        pre_norm: bool,
        dropout: float,
        **heads: Any,
    ) -> None:
        super().__init__()
        self.self_attention = MultiHeadAttention(dim, **heads)
        across: dict[str, Any] = {**heads, "position_encoding": None, "key_dim": source_dim}
        self.cross_attention = MultiHeadAttention(dim, **across)
        self.feed_forward = FeedForward(dim, feed_forward_dim, activation, dropout)
        self.residuals = nn.ModuleList(Residual(dim, pre_norm, dropout) for _ in range(3))

    def forward(
        self,
        rows: Float[Tensor, "N L D"],
        past: KeyValue | None,
        source: _Source,
        need_weights: bool,
    ) -> tuple[Tensor, KeyValue, Tensor | None]:
        """Carry rows through: the new rows, all keys and values so far, and where they looked.

        Without a past the rows are whole targets, N = B; with one they are the next symbol of each
        of N = B x beams hypotheses. The weights are (B, H, L, T) and (B, H, beams, T).
        """
        first, second, third = cast("list[Residual]", list(self.residuals))
        entered = first.sublayer_input(rows)
        read = 0 if past is None else past.values.shape[2]
        written = self.self_attention.project_key_value(entered, entered, read)
        masked = None
        if past is not None:
            pairs = zip(past, written, strict=True)
            written = KeyValue(*(torch.cat(pair, dim=2) for pair in pairs))
        elif rows.shape[1] > 1:
            masked = causal_mask(rows.shape[1], rows.device)[None, None]
        queries = self.self_attention.project_query(entered, read)
        context = self.self_attention.attention.attend(queries, *written, masked).context
        rows = first.add(rows, self.self_attention.combine_heads(context))

        # the queries of one source side by side, whether steps or beams
        queries = second.sublayer_input(rows).view(source.masked.shape[0], -1, rows.shape[-1])
        context, weights = self.cross_attention.attention.attend(
            self.cross_attention.project_query(queries), source.keys, source.values, source.masked, None,
            need_weights,
        )  # fmt: skip
        if source.intervention is not None and weights is not None:
            context, weights = source.intervention.apply(weights, source.values, source.layer)
        rows = second.add(rows, self.cross_attention.combine_heads(context).view_as(rows))
        rows = third.add(rows, self.feed_forward(third.sublayer_input(rows)))
        return rows, written, weights


class TransformerDecoder(nn.Module):
    """Layers of self-attention and attention to the source, all steps of a target in parallel.

    Step by step, keys and values of what is written are kept in the state, so that a step costs one
    row per layer.

    Args:
        vocabulary: size V of the target vocabulary.
        dim: width D.
        layers: number of layers.
        positions: name of a positional encoding.
        pre_norm: norm before each part (with one more after the last layer), else after its sum.
        dropout: share of activations dropped.
        tie_embeddings: one matrix for embeddings and output layer.
        copying: the next symbol may be copied from the source.
        **parts: as `DecoderLayer` takes them.
    """

    def __init__(
        self,
        vocabulary: int,
        dim: int,
        layers: int,
        positions: str,
        pre_norm: bool,
        dropout: float,
        tie_embeddings: bool,
        copying: bool = False,
        **parts: Any,
    ) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.embedding = Embedding(vocabulary, dim, positions, dropout)
        self.layers = nn.ModuleList(
            DecoderLayer(
                dim,
                pre_norm=pre_norm,
                dropout=dropout,
                position_encoding=head_positions(positions),
                **parts,
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(dim) if pre_norm else nn.Identity()
        self.output = (CopyingOutput if copying else Output)(dim, vocabulary)
        if tie_embeddings:
            self.output.weight = self.embedding.tokens.weight

    def prepare_memory(self, encoded: EncoderOutput) -> Memory:
        """Project keys and values of the source for every layer, once per source."""
        attentions = self.attentions
        seen = [across.project_key_value(encoded.states, encoded.states) for across in attentions]
        keys = [
            across.attention.prepare_keys(heads.keys)
            for across, heads in zip(attentions, seen, strict=True)
        ]
        values = tuple(heads.values for heads in seen)
        return Memory(encoded.states, encoded.padding, encoded.final, tuple(keys), values)

    def start(self, memory: Memory) -> TransformerState:
        """Nothing is written yet."""
        empty: list[KeyValue] = []
        for layer in self._layers:
            nothing = memory.states.new_zeros(
                memory.states.shape[0], 0, layer.self_attention.embed_dim
            )
            empty.append(layer.self_attention.project_key_value(nothing, nothing))
        return TransformerState(memory, tuple(empty))

    def step(
        self,
        token: Int[Tensor, " N"],
        state: TransformerState,
        intervention: Intervention | None = None,
    ) -> Step:
        """One symbol further."""
        rows = self.embedding(readable(token, self.vocabulary)[:, None], state.length)
        rows, past, looks = self._carry(rows, state.past, state.memory, True, intervention)
        weights = torch.stack([look.transpose(1, 2).flatten(0, 1) for look in looks], dim=1)
        copies = repeat_copies(state.memory, len(rows))
        logits = self.predict(rows[:, 0], weights, copies)
        log_probs = torch.log_softmax(logits.float(), dim=-1)
        return Step(log_probs, TransformerState(state.memory, past), weights)

    def unroll(
        self, memory: Memory, tokens: Int[Tensor, "B L"], need_weights: bool = False
    ) -> Unrolled:
        """All steps at once, each blind to what comes after it."""
        rows = self.embedding(readable(tokens, self.vocabulary))
        rows, _, looks = self._carry(rows, None, memory, need_weights)
        weights = torch.stack([look.transpose(1, 2) for look in looks], dim=2) if looks else None
        return Unrolled(rows, weights)

    def predict(
        self,
        states: Float[Tensor, "*n R"],
        weights: Float[Tensor, "*n layers heads T"] | None = None,
        copies: Int[Tensor, "*m T"] | None = None,
    ) -> Float[Tensor, "*n V"]:
        """Logits over the vocabulary from the states of the last layer."""
        return self.output(states, weights, copies)

    @property
    def attentions(self) -> list[MultiHeadAttention]:
        """How each layer looks at the source."""
        return [layer.cross_attention for layer in self._layers]

    @property
    def _layers(self) -> list[DecoderLayer]:
        return cast("list[DecoderLayer]", list(self.layers))

    def _carry(
        self,
        rows: Tensor,
        past: tuple[KeyValue, ...] | None,
        memory: Memory,
        need_weights: bool,
        intervention: Intervention | None = None,
    ) -> tuple[Tensor, tuple[KeyValue, ...], list[Tensor]]:
        """Through all layers: rows, keys and values so far, and the weights where asked for."""
        masked = memory.padding[:, None, None]
        written: list[KeyValue] = []
        looks: list[Tensor] = []
        for number, layer in enumerate(self._layers):
            keys, values = memory.keys[number], memory.values[number]
            source = _Source(keys, values, masked, number, intervention)
            before = None if past is None else past[number]
            rows, now, weights = layer(rows, before, source, need_weights)
            written.append(now)
            if weights is not None:
                looks.append(weights)
        return self.norm(rows), tuple(written), looks
