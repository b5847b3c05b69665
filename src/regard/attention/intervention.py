"""Interventions: attention weights pinned by the user, and ablated heads."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor


class Intervention(NamedTuple):
    """Changes to the attention, for every source: at one step, or at each of K steps."""

    pinned_weights: Float[Tensor, "B *K T"]
    """Weights to impose, (B, T) or (B, K, T); NaN where the weight is free."""
    ablated_heads: Bool[Tensor, "layers heads"] | None = None
    """True for heads whose weights are set to 0."""

    def apply(
        self, weights: Float[Tensor, "B *h K T"], values: Float[Tensor, "B *h T D"], layer: int = 0
    ) -> tuple[Float[Tensor, "B *h K D"], Float[Tensor, "B *h K T"]]:
        """Return the context and the weights after the intervention.

        Free weights are scaled to sum to 1 minus the sum of the pinned weights. The weights and
        the context of an ablated head are 0.
        """
        weights = self.pin(weights)
        if self.ablated_heads is not None:
            heads = self.ablated_heads[layer]
            weights = weights.masked_fill(heads[:, None, None] if weights.dim() == 4 else heads, 0)
        return weights @ values.to(weights.dtype), weights

    def pin(self, weights: Float[Tensor, "B *h K T"]) -> Float[Tensor, "B *h K T"]:
        """Return the weights with the pinned ones; free weights are scaled as in `apply`."""
        rows = self.pinned_weights
        rows = rows[:, None] if rows.dim() == 2 else rows
        rows = rows if weights.dim() == 3 else rows[:, None]
        is_pinned = ~rows.isnan()
        pinned = rows.nan_to_num(0).to(weights.dtype)
        free = weights.masked_fill(is_pinned, 0)
        remainder = (1 - pinned.sum(-1, keepdim=True)).clamp(min=0)
        total = free.sum(-1, keepdim=True)
        changed = pinned + free * (remainder / total.masked_fill(total == 0, 1))
        return torch.where(is_pinned.any(-1, keepdim=True), changed, weights)
