"""Coverage: what was looked at before, as one more input of the additive score."""

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Coverage(nn.Module):
    """What was looked at before, as one more input of the additive score.

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
        """The keys as each of N = B x K rows sees them."""
        return (keys[:, None] + covered[..., None] * self.weight.to(keys.dtype)).flatten(0, 1)


def coverage_cost(weights: Float[Tensor, "B L T"]) -> Float[Tensor, "B L"]:
    """The part of every look that goes where looks went before: sum_i min(alpha_ti, c_ti).

    See et al. 2017 (arXiv:1704.04368), eq. 12.
    """
    return torch.minimum(weights, weights.cumsum(1) - weights).sum(-1)
