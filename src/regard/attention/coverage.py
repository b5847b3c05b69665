"""Coverage: the attention accumulated over earlier steps, as an input to the additive score."""

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Coverage(nn.Module):
    """Add the accumulated attention weights to the projected keys of the additive score.

        e_ti = v . tanh(W s_t + U h_i + w_c c_ti)        c_ti = sum_{t' < t} alpha_t'i

    See et al. 2017 (arXiv:1704.04368), eq. 10 and 11, after Tu et al. 2016 (arXiv:1601.04811).

    Args:
        hidden_dim: width of v.
    """

    def __init__(self, hidden_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden_dim))
        nn.init.normal_(self.weight, std=hidden_dim**-0.5)

    def forward(
        self, keys: Float[Tensor, "B T E"], covered: Float[Tensor, "B K T"]
    ) -> Float[Tensor, "N T E"]:
        """Return the keys for each of the N = B x K queries, given its accumulated weights."""
        return (keys[:, None] + covered[..., None] * self.weight.to(keys.dtype)).flatten(0, 1)


def coverage_cost(weights: Float[Tensor, "B L T"]) -> Float[Tensor, "B L"]:
    """Return the overlap of the weights at each step with the coverage: sum_i min(alpha_ti, c_ti).

    See et al. 2017 (arXiv:1704.04368), eq. 12.
    """
    return torch.minimum(weights, weights.cumsum(1) - weights).sum(-1)
