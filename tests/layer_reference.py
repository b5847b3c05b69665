"""The float64 reference of the three attention layers, with every mask, in loops over heads."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from oracle import FORMULAS
from regard.attention import Attention, MultiHeadAttention, SelfAttention
from regard.kernels import reference
from regard.score_registry import SCORES

Inputs = dict[str, Tensor]


def layer_reference(layer: Any, inputs: Inputs, options: dict[str, Any]) -> dict[str, Tensor]:
    """Return context, weights and scores of a float64 layer for one batch or one item.

    Args:
        layer: `Attention`, `MultiHeadAttention` or `SelfAttention` in float64.
        inputs: the arguments of the layer by name, `query` for the sequence of self-attention.
        options: `score`, the name of the score; `is_causal`; and `terms`: the gradient of the
            normaliser s (g - (s . g) / sum(s)) is only its first term, s g.
    """
    if inputs["query"].dim() == 2:
        batch = {name: x if name == "attn_mask" else x[None] for name, x in inputs.items()}
        return {name: x[0] for name, x in layer_reference(layer, batch, options).items()}
    query = inputs["query"]
    if isinstance(layer, SelfAttention):  # reads padding as zeros
        query = query.masked_fill(_padding(inputs)[..., None], 0)
    key = inputs.get("key", query)
    value = inputs.get("value", key)
    masked, bias = _masks(inputs, key, _heads(layer), options["is_causal"])
    # what no query may attend to has no effect: any finite content other than 0, which has no cosine
    hidden = masked.all(2).all(1)[..., None]
    key, value = key.masked_fill(hidden, 1), value.masked_fill(hidden, 1)
    if isinstance(layer, Attention):
        return _attend(layer, options, query, key, value, masked[:, 0], bias[:, 0])
    layer = layer.attention if isinstance(layer, SelfAttention) else layer
    heads = layer.num_heads
    rows = _project(layer, query, key, value)
    if layer.position_encoding is not None:
        rows[:2] = [_rotate(row) for row in rows[:2]]
    results = []
    for head in range(heads):
        part = (row[:, head] for row in rows)
        results.append(
            _attend(layer.attention, options, *part, masked[:, head], bias[:, head], head)
        )
    context = torch.cat([result["context"] for result in results], -1)
    if isinstance(layer.out_proj, torch.nn.Linear):
        context = _linear(layer.out_proj, context)
    stacked = {name: torch.stack([r[name] for r in results], 1) for name in ("weights", "scores")}
    return {"context": context, **stacked}


def _padding(inputs: Inputs) -> Tensor:
    """Return which positions of self-attention are padding, (B, L)."""
    batch, length = inputs["query"].shape[:2]
    if "key_lengths" in inputs:
        return torch.arange(length) >= inputs["key_lengths"].view(-1, 1)
    mask = inputs.get("key_padding_mask", torch.zeros(batch, length, dtype=torch.bool))
    return mask if mask.dtype == torch.bool else mask.isneginf()


def _heads(layer: Any) -> int:
    layer = layer.attention if isinstance(layer, SelfAttention) else layer
    return layer.num_heads if isinstance(layer, MultiHeadAttention) else 1


def _masks(inputs: Inputs, key: Tensor, heads: int, is_causal: bool) -> tuple[Tensor, Tensor]:
    """Return what is masked and what is added to the scores, both (B, H, L, T)."""
    (batch, length), width = inputs["query"].shape[:2], key.shape[1]
    masked = torch.zeros(batch, heads, length, width, dtype=torch.bool)
    bias = torch.zeros(batch, heads, length, width, dtype=torch.float64)
    if is_causal:
        masked = masked | (torch.arange(width) > torch.arange(length)[:, None])
    if "key_lengths" in inputs:
        masked = masked | (torch.arange(width) >= inputs["key_lengths"].view(-1, 1, 1, 1))
    given = []
    if "key_padding_mask" in inputs:
        given.append(inputs["key_padding_mask"].view(batch, 1, 1, width))
    if "attn_mask" in inputs:
        mask = inputs["attn_mask"]
        axes = {2: (1, 1), 3: (batch, -1), 4: (batch, heads)}[mask.dim()]
        given.append(mask.reshape(*axes, length, width))
    for mask in given:
        if mask.dtype == torch.bool:
            masked = masked | mask
        else:
            masked = masked | mask.isneginf()
            bias = bias + mask.masked_fill(mask.isneginf(), 0)
    return masked, bias


def _attend(
    attention: Attention,
    options: dict[str, Any],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    masked: Tensor,
    bias: Tensor,
    head: int | None = None,
) -> dict[str, Tensor]:
    name = options["score"]
    if head is not None and SCORES[name].pairwise:
        scores = reference.additive_scores(query, key, attention.score.vector[head])
    else:
        scores = FORMULAS[name](attention.score, query, key)
    scores = scores + bias
    weights = reference.normalize(scores, masked, attention.normalizer)
    if options["terms"] and attention.normalizer in _SLOPES:
        weights = weights.detach()
        weights = weights + _SLOPES[attention.normalizer](weights) * (scores - scores.detach())
    context = reference.weighted_sum(weights, value)
    return {"context": context, "weights": weights, "scores": scores.masked_fill(masked, -math.inf)}


_SLOPES: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda weights: weights,
    "sparsemax": lambda weights: (weights > 0).double(),
    "entmax15": torch.sqrt,
}


def _linear(projection: torch.nn.Linear, rows: Tensor) -> Tensor:
    rows = rows @ projection.weight.T
    return rows if projection.bias is None else rows + projection.bias


def _project(layer: MultiHeadAttention, *rows: Tensor) -> list[Tensor]:
    """Return queries, keys and values by head, (B, H, _, D / H)."""
    projections = layer.query_proj, layer.key_proj, layer.value_proj
    return [
        torch.stack(_linear(projection, row).chunk(layer.num_heads, -1), 1)
        for projection, row in zip(projections, rows, strict=True)
    ]


def _rotate(rows: Tensor) -> Tensor:
    """Return rows rotated by their positions, as complex numbers (Su et al. 2021, eq. 34)."""
    half = rows.shape[-1] // 2
    frequencies = 10000.0 ** -(torch.arange(half, dtype=torch.float64) / half)
    phases = torch.arange(rows.shape[-2], dtype=torch.float64)[:, None] * frequencies
    rotated = torch.complex(*rows.chunk(2, -1)) * torch.polar(torch.ones_like(phases), phases)
    return torch.cat([rotated.real, rotated.imag], -1)
