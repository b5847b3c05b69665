"""What the layers of a Transformer are made of: positions, feed-forward, residual branches.

Vaswani et al. 2017, "Attention Is All You Need" (arXiv:1706.03762), where nothing else is said.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from regard.kernels.dropout import dropout

MAX_POSITIONS = 1024
"""Positions that `LearnedPositions` tells apart."""


def angles(first: int, length: int, pairs: int, like: Tensor) -> Float[Tensor, "L P"]:
    """Position times frequency: for `length` positions from `first` on, and `pairs` frequencies.

    The frequencies 10000^(-p / P), p = 0, 1, …, fall from 1 in a geometric series (section 3.5).
    """
    # float32 whatever the dtype of the rows: bfloat16 cannot tell positions above 256 apart
    wide = torch.float64 if like.dtype == torch.float64 else torch.float32
    positions = torch.arange(first, first + length, device=like.device, dtype=wide)
    steps = torch.arange(pairs, device=like.device, dtype=wide)
    return positions[:, None] * torch.exp(-math.log(10000.0) / pairs * steps)


class SinusoidalPositions(nn.Module):
    """Add sines and cosines of the position (section 3.5): any length, no parameters."""

    def forward(self, rows: Float[Tensor, "B L D"], first: int = 0) -> Float[Tensor, "B L D"]:
        """The rows of positions `first` and on, with their positions added."""
        turns = angles(first, rows.shape[1], (rows.shape[-1] + 1) // 2, rows)
        waves = torch.stack([turns.sin(), turns.cos()], dim=-1).flatten(-2)
        return rows + waves[:, : rows.shape[-1]].to(rows.dtype)


class LearnedPositions(nn.Module):
    """Add a learned vector per position (Gehring et al. 2017, arXiv:1705.03122, section 3.1).

    Positions from `MAX_POSITIONS` on share the last vector.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(MAX_POSITIONS, dim))
        nn.init.normal_(self.weight, std=math.sqrt(0.5))  # as strong as sines and cosines

    def forward(self, rows: Float[Tensor, "B L D"], first: int = 0) -> Float[Tensor, "B L D"]:
        """The rows of positions `first` and on, with their positions added."""
        positions = torch.arange(first, first + rows.shape[1], device=rows.device)
        return rows + self.weight[positions.clamp(max=MAX_POSITIONS - 1)]


class RotaryPositions(nn.Module):
    """Turn queries and keys by angles that grow with the position (Su et al. 2021, arXiv:2104.09864).

    Feature d of the first half and of the second half of a head form a plane, turned by position x
    10000^(-2d / D) (eq. 34), so that inner products depend on the distance of positions alone. No
    parameters; rows that are not compared by an inner product have no use for it.
    """

    def forward(self, rows: Float[Tensor, "B H L D"], first: int = 0) -> Float[Tensor, "B H L D"]:
        """The rows of positions `first` and on, turned; the width must be even."""
        turns = angles(first, rows.shape[2], rows.shape[-1] // 2, rows)
        left, right = rows.chunk(2, dim=-1)
        sines, cosines = turns.sin().to(rows.dtype), turns.cos().to(rows.dtype)
        return torch.cat([left * cosines - right * sines, right * cosines + left * sines], dim=-1)


class Embedding(nn.Module):
    """Vectors of symbols, times sqrt(D) (section 3.4), with their positions, and dropout.

    Args:
        vocabulary: size V.
        dim: width D.
        positions: `sinusoidal`, `learned` or `rotary`.
        dropout: share of the sums dropped.
    """

    def __init__(self, vocabulary: int, dim: int, positions: str, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, dim)
        nn.init.normal_(self.tokens.weight, std=dim**-0.5)
        self.positions = {
            "sinusoidal": SinusoidalPositions,
            "learned": lambda: LearnedPositions(dim),
            "rotary": lambda: None,  # those act on queries and keys
        }[positions]()
        self.scale = math.sqrt(dim)
        self.dropout = dropout

    def forward(self, ids: Int[Tensor, "B L"], first: int = 0) -> Float[Tensor, "B L D"]:
        """Rows of the symbols at positions `first` and on."""
        rows = self.tokens(ids) * self.scale
        if self.positions is not None:
            rows = self.positions(rows, first)
        return dropout(rows, self.dropout, self.training)


class FeedForward(nn.Module):
    """Two linear maps with a nonlinearity between them (section 3.3).

    `relu`, `gelu` (Hendrycks and Gimpel 2016, arXiv:1606.08415), or `swiglu`: SiLU of one map times
    another map (Shazeer 2020, arXiv:2002.05202), which takes a third matrix.

    Args:
        dim: width D of what comes in and goes out.
        hidden_dim: width between the maps.
        activation: `relu`, `gelu` or `swiglu`.
        dropout: share of the hidden activations dropped.
    """

    def __init__(self, dim: int, hidden_dim: int, activation: str, dropout: float) -> None:
        super().__init__()
        self.gated = activation == "swiglu"
        self.activation = {
            "relu": functional.relu, "gelu": functional.gelu, "swiglu": functional.silu,
        }[activation]  # fmt: skip
        self.linear1 = nn.Linear(dim, hidden_dim * (2 if self.gated else 1))
        self.linear2 = nn.Linear(hidden_dim, dim)
        self.dropout = dropout

    def forward(self, rows: Float[Tensor, "*n D"]) -> Float[Tensor, "*n D"]:
        """Each row on its own."""
        wide = self.linear1(rows)
        if self.gated:
            gate, wide = wide.chunk(2, dim=-1)
            wide = self.activation(gate) * wide
        else:
            wide = self.activation(wide)
        return self.linear2(dropout(wide, self.dropout, self.training))


class Residual(nn.Module):
    """x + f(norm(x)), or norm(x + f(x)) where the norm comes after, as in the paper.

    With the norm before (Xiong et al. 2020, arXiv:2002.04745) training is stable without a long
    warm-up.

    Args:
        dim: width D.
        pre_norm: norm before f (else after the sum).
        dropout: share of what f gives dropped.
    """

    def __init__(self, dim: int, pre_norm: bool, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.pre_norm = pre_norm
        self.dropout = dropout

    def sublayer_input(self, rows: Float[Tensor, "*n D"]) -> Float[Tensor, "*n D"]:
        """What f is given."""
        return self.norm(rows) if self.pre_norm else rows

    def add(
        self, rows: Float[Tensor, "*n D"], found: Float[Tensor, "*n D"]
    ) -> Float[Tensor, "*n D"]:
        """The sum of the rows and what f has found."""
        total = rows + dropout(found, self.dropout, self.training)
        return total if self.pre_norm else self.norm(total)
