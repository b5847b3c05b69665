"""Pushing a look: weights pinned by hand, heads dropped; what would the model say then?"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor


class Intervention(NamedTuple):
    """What one step of every source is made to do."""

    pinned_weights: Float[Tensor, "B T"]
    """Weights that are set, NaN where they are free."""
    ablated_heads: Bool[Tensor, "layers heads"] | None = None
    """True for heads that find nothing."""

    def apply(
        self, weights: Float[Tensor, "B *h K T"], values: Float[Tensor, "B *h T D"], layer: int = 0
    ) -> tuple[Float[Tensor, "B *h K D"], Float[Tensor, "B *h K T"]]:
        """The context and the weights as they would be.

        Pinned weights stand as they were set, and the free ones share what is left in their own
        proportions; the weights of a dropped head are 0, and so is its context.
        """
        pins = (
            self.pinned_weights[:, None]
            if weights.dim() == 3
            else self.pinned_weights[:, None, None]
        )
        pinned = ~pins.isnan()
        given = pins.nan_to_num(0).to(weights.dtype)
        free = weights.masked_fill(pinned, 0)
        left = (1 - given.sum(-1, keepdim=True)).clamp(min=0)
        total = free.sum(-1, keepdim=True)
        shared = given + free * (left / total.masked_fill(total == 0, 1))
        weights = torch.where(pinned.any(-1, keepdim=True), shared, weights)
        if self.ablated_heads is not None:
            heads = self.ablated_heads[layer]
            weights = weights.masked_fill(heads[:, None, None] if weights.dim() == 4 else heads, 0)
        return weights @ values.to(weights.dtype), weights
