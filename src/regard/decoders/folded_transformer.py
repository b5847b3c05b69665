"""Transformer decoder for inference, whose search is one kernel."""

import dataclasses
from collections.abc import Callable
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from regard.attention import Intervention, Memory, MultiHeadAttention
from regard.attention.multihead import KeyValue
from regard.attention.score_modules import is_inner_product
from regard.decoders.protocol import Step
from regard.decoders.transformer import DecoderLayer, TransformerDecoder, TransformerState
from regard.kernels.decoding.op import FinishedTensors, Matrix, OpenHypotheses, SearchOutput
from regard.kernels.linear import is_linear, is_plain_embedding
from regard.kernels.transformer.op import (
    LayerWeights,
    Norm,
    TransformerCache,
    TransformerKernel,
    TransformerPast,
    TransformerPositions,
    TransformerSources,
    TransformerWeights,
    load_kernel,
)
from regard.kernels.weighted_sum import without_autocast
from regard.layers import Embedding, FeedForward
from regard.positions import RotaryPositions
from regard.scores import Dot, ScaledDot, Score

_LAYER_TYPES = DecoderLayer, FeedForward, MultiHeadAttention, MultiHeadAttention

_ACTIVATIONS = {functional.relu: "relu", functional.gelu: "gelu", functional.silu: "swiglu"}


@dataclasses.dataclass(frozen=True)
class SearchedState:
    """The state of a decoder after steps of the kernel."""

    memory: Memory
    cache: TransformerCache
    heads: int

    def select(self, rows: Int[Tensor, " N2"], items: Tensor | None = None) -> TransformerState:
        """Return these rows; with `items`, the memory contains only these sources."""
        past = (
            part.unflatten(-1, (self.heads, -1)).transpose(2, 3) for part in self.cache.past(rows)
        )
        memory = self.memory if items is None else self.memory.select(items)
        return TransformerState(memory, tuple(map(KeyValue, *past)))


class FoldedTransformerDecoder:
    """A Transformer decoder, without gradients.

    Projections of a score become part of those of the heads. The kernel computes with the weights
    that the decoder had when it was folded; single steps, and all steps under autocast, are those of
    the decoder. `kernel` is None if there is no kernel for this decoder.
    """

    def __init__(self, decoder: TransformerDecoder) -> None:
        self.decoder = decoder
        with torch.no_grad(), without_autocast(next(decoder.parameters()).device):
            weights = _weights(decoder)
            self.kernel: TransformerKernel | None = (
                None if weights is None else load_kernel(weights)
            )

    def start(self, memory: Memory) -> TransformerState:
        """Return the state for empty targets."""
        return self.decoder.start(memory)

    def step(
        self,
        token: Int[Tensor, " N"],
        state: TransformerState,
        intervention: Intervention | None = None,
    ) -> Step:
        """Read one token and return the log-probabilities of the next."""
        return self.decoder.step(token, state, intervention)

    def search(
        self, opened: OpenHypotheses, finished: FinishedTensors, state: TransformerState
    ) -> tuple[SearchOutput, SearchedState] | None:
        """Return the result of several steps of a beam search; None if the kernel does not support them."""
        memory = state.memory
        keys = tuple(rows for rows in memory.keys if isinstance(rows, Tensor))
        if self.kernel is None or len(keys) < len(memory.keys):
            return None
        positions = self._positions(opened.length, len(finished.divisors))
        past = TransformerPast(*(_stack(layers) for layers in zip(*state.past, strict=True)))
        sources = TransformerSources(_stack(keys), _stack(memory.values), memory.padding)
        output = self.kernel.search(opened, finished, positions, past, sources)
        if output is None:
            return None
        return output, SearchedState(memory, output.state, self.decoder.attention_heads)

    def _positions(self, first: int, steps: int) -> TransformerPositions:
        """Return the positions of these steps, the first of which reads the token at `first`."""
        embedding, attention = self.decoder.embedding, self.decoder.layers[0].self_attention
        added = embedding.tokens.weight.new_zeros(steps, embedding.tokens.embedding_dim)
        rotations = added.new_empty(steps, 2, 0)
        if embedding.positions is not None:
            added = embedding.positions(added[None], first)[0]
        if isinstance(attention.position_encoding, RotaryPositions):
            encoding, width = attention.position_encoding, attention.head_dim
            rotations = encoding.rotations(first, steps, width, added)
        return TransformerPositions(added, rotations)


def _stack(layers: tuple[Tensor, ...]) -> Float[Tensor, "layers N T U"]:
    """Return the rows of every layer, (N, H, T, E) each, with the heads side by side."""
    return torch.stack([rows.transpose(1, 2).flatten(2) for rows in layers])


def _weights(decoder: TransformerDecoder) -> TransformerWeights | None:
    """Return the weights for the kernel; None if there is none for this decoder."""
    layers, embedding, output = decoder.layers, decoder.embedding, decoder.output
    if (
        not layers
        or type(embedding) is not Embedding
        or not is_plain_embedding(embedding.tokens)
        or not is_linear(output)
        or not (_is_norm(decoder.norm) or type(decoder.norm) is nn.Identity)
        or not all(_is_like(layer, layers[0]) for layer in layers)
    ):
        return None
    network, residual = layers[0].feed_forward, layers[0].residuals[0]
    return TransformerWeights(
        inputs=embedding.tokens.weight * embedding.scale,
        layers=[_layer_weights(layer) for layer in layers],
        norm=_norm(decoder.norm) if isinstance(decoder.norm, nn.LayerNorm) else None,
        output=_matrix(cast("nn.Linear", output)),
        heads=decoder.attention_heads,
        planes=_planes(layers[0].self_attention) or 0,
        activation=_ACTIVATIONS[network.activation],
        pre_norm=residual.pre_norm,
    )


def _is_like(layer: DecoderLayer, first: DecoderLayer) -> bool:
    """Return whether the kernel computes this layer, and with the same options as the first one."""
    network, attentions = layer.feed_forward, (layer.self_attention, layer.cross_attention)
    if (type(layer), type(network), *map(type, attentions)) != _LAYER_TYPES:
        return False
    linears = [network.linear1, network.linear2]
    for part in attentions:
        linears += [part.query_proj, part.key_proj, part.value_proj, part.out_proj]
    return (
        all(is_linear(linear) for linear in linears)
        and all(_is_norm(residual.norm) for residual in layer.residuals)
        and {residual.pre_norm for residual in layer.residuals} == {first.residuals[0].pre_norm}
        and _planes(layer.self_attention) == _planes(first.self_attention)
        and _planes(layer.self_attention) is not None
        and layer.cross_attention.position_encoding is None
        and all(is_inner_product(part.attention.score) for part in attentions)
        and all(part.attention.normalizer == "softmax" for part in attentions)
        and {part.num_heads for part in attentions} == {first.self_attention.num_heads}
        and network.activation in _ACTIVATIONS
        and network.activation is first.feed_forward.activation
        and network.gated == (network.activation is functional.silu)
    )


def _planes(attention: MultiHeadAttention) -> int | None:
    """Return the number of planes in which the kernel rotates a head; None for other encodings of positions."""
    encoding, score = attention.position_encoding, attention.attention.score
    if encoding is None:
        return 0
    # the matrices of other scores follow the rotation, so they cannot become part of the projections
    is_supported = type(encoding) is RotaryPositions and type(score) in (Dot, ScaledDot)
    return attention.head_dim // 2 if is_supported else None


def _is_norm(module: nn.Module) -> bool:
    """Return whether the module is a layer norm with weights and a bias."""
    parts = getattr(module, "weight", None), getattr(module, "bias", None)
    return type(module) is nn.LayerNorm and all(isinstance(part, Tensor) for part in parts)


def _layer_weights(layer: DecoderLayer) -> LayerWeights:
    own, source, network = layer.self_attention, layer.cross_attention, layer.feed_forward
    score = cast("Score", own.attention.score)
    parts = [
        _by_heads(own.query_proj, own.num_heads, score.project_query),
        _by_heads(own.key_proj, own.num_heads, score.project_key),
        _matrix(own.value_proj),
    ]
    weights, biases = zip(*parts, strict=True)
    project_query = cast("Score", source.attention.score).project_query
    return LayerWeights(
        norms=[_norm(residual.norm) for residual in layer.residuals],
        projections=(torch.cat(weights), torch.cat(biases)),
        combination=_matrix(cast("nn.Linear", own.out_proj)),
        source_query=_by_heads(source.query_proj, source.num_heads, project_query),
        source_combination=_matrix(cast("nn.Linear", source.out_proj)),
        hidden=_matrix(network.linear1),
        output=_matrix(network.linear2),
    )


def _by_heads(linear: nn.Linear, heads: int, project: Callable[[Tensor], Tensor]) -> Matrix:
    """Return the matrix of a projection followed by that of a score, a linear map of every head."""
    columns = [
        project(rows.unflatten(-1, (heads, -1))).flatten(-2)
        for rows in (linear.weight.T, linear.bias)
    ]
    return columns[0].T, columns[1]


def _matrix(linear: nn.Linear) -> Matrix:
    return linear.weight, linear.bias


def _norm(norm: nn.LayerNorm) -> Norm:
    return Norm(norm.weight, norm.bias, norm.eps)
