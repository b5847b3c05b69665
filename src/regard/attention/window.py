"""Local attention: a window of the source around a monotonic or predicted centre."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.kernels.weighted_sum import to_compute_dtype


class LocalWindow(nn.Module):
    """Window of local attention: positions at most `radius` from a centre p_t.

    Luong et al. 2015 (arXiv:1508.04025), section 3.2. `local-m` is monotonic: p_t = t, but at most the
    last source position. `local-p` predicts p_t = (S - 1) sigmoid(v . tanh(W s_t)), where S is the
    length of the source, and favours positions near p_t with a Gaussian, sigma = radius / 2. In the
    paper (eq. 9 and 10), the factor is S instead of S - 1, which is the last position here, and the
    Gaussian multiplies the weights. Here its logarithm, -(i - p_t)^2 / (2 sigma^2), is added to the
    scores, so that the weights still sum to 1.

    Args:
        kind: `local-m` or `local-p`.
        radius: D in the paper; the window contains the positions p_t - D to p_t + D.
        query_dim: width of s_t.
    """

    def __init__(self, kind: str, radius: int, query_dim: int) -> None:
        super().__init__()
        self.radius = radius
        self.position_predictor = None
        if kind == "local-p":
            hidden = nn.Linear(query_dim, query_dim, bias=False)
            output = nn.Linear(query_dim, 1, bias=False)
            self.position_predictor = nn.Sequential(hidden, nn.Tanh(), output)

    def forward(
        self, query: Float[Tensor, "B L D"], padding: Bool[Tensor, "B T"], steps: Int[Tensor, " L"]
    ) -> tuple[Bool[Tensor, "B L T"], Float[Tensor, "B L T"] | None]:
        """Return a mask of the positions outside the window, and the bias added to the scores."""
        last = ((~padding).sum(1) - 1).clamp(min=0)[:, None]
        positions = torch.arange(padding.shape[1], device=padding.device)
        if self.position_predictor is None:
            centres = torch.minimum(steps[None], last)[..., None]
            return (positions - centres).abs() > self.radius, None
        centres = last[..., None] * torch.sigmoid(to_compute_dtype(self.position_predictor(query)))
        distances = positions - centres
        bias = -2 * (distances / self.radius).square()
        return distances.abs() > self.radius, bias.to(query.dtype)
