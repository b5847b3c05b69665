"""Local attention: a window of the source around a centre that walks along, or is predicted."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn


class LocalWindow(nn.Module):
    """Local attention: only the source around a centre p_t is seen.

    Luong et al. 2015 (arXiv:1508.04025), section 3.2. `local-m` walks along, p_t = t (held at the last
    source symbol). `local-p` predicts p_t = (S - 1) sigmoid(v . tanh(W s_t)), S the length of the
    source, and prefers what is near it by a Gaussian with sigma = radius / 2. Ours is added to the
    scores as -(i - p_t)^2 / 2 sigma^2, so that weights still sum to 1; theirs multiplies the weights.

    Args:
        kind: `local-m` or `local-p`.
        radius: half the width D of the window: positions p_t - D to p_t + D are seen.
        query_dim: width of s_t.
    """

    def __init__(self, kind: str, radius: int, query_dim: int) -> None:
        super().__init__()
        self.radius = radius
        self.position_predictor = (
            nn.Sequential(
                nn.Linear(query_dim, query_dim, bias=False),
                nn.Tanh(),
                nn.Linear(query_dim, 1, bias=False),
            )
            if kind == "local-p"
            else None
        )

    def forward(
        self, query: Float[Tensor, "B L D"], padding: Bool[Tensor, "B T"], steps: Int[Tensor, " L"]
    ) -> tuple[Bool[Tensor, "B L T"], Float[Tensor, "B L T"] | None]:
        """What lies outside the window, and what is added to the scores inside."""
        last = ((~padding).sum(1) - 1).clamp(min=0)[:, None]
        positions = torch.arange(padding.shape[1], device=padding.device)
        if self.position_predictor is None:
            centres = torch.minimum(steps[None], last)[..., None]
            return (positions - centres).abs() > self.radius, None
        centres = last[..., None] * torch.sigmoid(self.position_predictor(query).float())
        distances = positions - centres
        bias = -2 * (distances / self.radius).square()
        return distances.abs() > self.radius, bias.to(query.dtype)
