"""A score of your own: any module with forward(query, key) -> (B, L, T).

python examples/custom_score.py
"""

import torch
from torch import Tensor, nn

import regard


class NegativeDistance(nn.Module):
    """e_ti = -|s_t - h_i|^2 / width: the nearer a key, the more it is attended to."""

    def __init__(self, width: float = 1.0) -> None:
        super().__init__()
        self.log_width = nn.Parameter(torch.tensor(width).log())

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        """(B, L, D), (B, T, D) -> (B, L, T)."""
        return -torch.cdist(query, key).square() / self.log_width.exp()


def main() -> None:
    """Attend with it, padding and all."""
    attention = regard.Attention(NegativeDistance())
    query, keys = torch.zeros(1, 1, 2), torch.tensor([[[0.0, 0.1], [0.0, 1.0], [9.0, 9.0]]])
    padding = torch.tensor([[False, False, True]])
    _, weights = attention(query, keys, key_padding_mask=padding, need_weights=True)
    print("weights", [round(weight, 4) for weight in weights[0, 0].tolist()])


if __name__ == "__main__":
    main()
