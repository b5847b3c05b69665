"""Positional encodings, by name: added to embeddings, or applied to the queries and keys of heads.

An encoding maps a sequence of vectors and the position of the first one to vectors of the same shape.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.score_registry import check_rotary

MAX_POSITIONS = 1024
"""Number of positions with a learned vector."""


def angles(first: int, length: int, pairs: int, like: Tensor) -> Float[Tensor, "L P"]:
    """Return position times frequency, for `length` positions from `first` on and `pairs` frequencies.

    The frequencies 10000^(-p / P), p = 0, 1, …, form a geometric series that starts at 1 (Vaswani et
    al. 2017, arXiv:1706.03762, section 3.5).
    """
    # at least float32: bfloat16 cannot represent all positions above 256
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    positions = torch.arange(first, first + length, device=like.device, dtype=dtype)
    steps = torch.arange(pairs, device=like.device, dtype=dtype)
    return positions[:, None] * torch.exp(-math.log(10000.0) / pairs * steps)


class SinusoidalPositions(nn.Module):
    """Add sines and cosines of the position (Vaswani et al. 2017, section 3.5). No parameters."""

    def forward(self, rows: Float[Tensor, "B L D"], first: int = 0) -> Float[Tensor, "B L D"]:
        """Return the vectors plus the encodings of their positions, which start at `first`."""
        phases = angles(first, rows.shape[1], (rows.shape[-1] + 1) // 2, rows)
        encodings = torch.stack([phases.sin(), phases.cos()], dim=-1).flatten(-2)
        return rows + encodings[:, : rows.shape[-1]].to(rows.dtype)


class LearnedPositions(nn.Module):
    """Add a learned vector per position (Gehring et al. 2017, arXiv:1705.03122, section 3.1).

    Positions from `MAX_POSITIONS` on share the last vector.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(MAX_POSITIONS, dim))
        nn.init.normal_(self.weight, std=math.sqrt(0.5))  # the mean square of sines and cosines

    def forward(self, rows: Float[Tensor, "B L D"], first: int = 0) -> Float[Tensor, "B L D"]:
        """Return the vectors plus the learned vectors of their positions, which start at `first`."""
        positions = torch.arange(first, first + rows.shape[1], device=rows.device)
        return rows + self.weight[positions.clamp(max=MAX_POSITIONS - 1)]


class HeadPositions(nn.Module):
    """Base class of encodings that multi-head attention applies to projected queries and keys."""

    def check(self, score: str, pairwise: bool, head_dim: int) -> None:
        """Raise a ConfigError if the encoding does not support the score or the width of a head."""


class RotaryPositions(HeadPositions):
    """Rotate queries and keys by angles proportional to the position (Su et al. 2021, arXiv:2104.09864).

    Feature d of the first half and feature d of the second half of a head form a plane, which is rotated by
    position x 10000^(-2d / D) (eq. 34), so that `dot`, `scaled_dot` and `cosine` scores depend only on the
    distance between positions. The matrix of `bilinear` and `inner_product` scores is applied to the rotated
    keys, so these scores also depend on the positions themselves. No parameters; not for `additive` and `concat`.
    """

    def check(self, score: str, pairwise: bool, head_dim: int) -> None:
        """Raise a ConfigError if the score is not an inner product or the width is odd."""
        check_rotary(score, pairwise, head_dim)

    def forward(self, rows: Float[Tensor, "B H L D"], first: int = 0) -> Float[Tensor, "B H L D"]:
        """Return the vectors rotated by their positions, which start at `first`; D must be even."""
        cosines, sines = self.rotations(first, rows.shape[2], rows.shape[3], rows).unbind(1)
        swapped = rows.roll(rows.shape[-1] // 2, dims=-1)
        sines = torch.cat([-sines, sines], dim=-1)
        return torch.addcmul(rows * cosines.repeat(1, 2), swapped, sines)

    def rotations(
        self, first: int, length: int, dim: int, like: Tensor
    ) -> Float[Tensor, "L 2 planes"]:
        """Return the cosine and the sine of every angle, for `length` positions from `first` on."""
        phases = angles(first, length, dim // 2, like)
        return torch.stack([phases.cos(), phases.sin()], dim=1).to(like.dtype)


EMBEDDING_POSITIONS: dict[str, Callable[[int], nn.Module]] = {
    "sinusoidal": lambda dim: SinusoidalPositions(),
    "learned": LearnedPositions,
}
"""Encodings added to embeddings, by name; each is constructed from their width."""

HEAD_POSITIONS: dict[str, Callable[[], HeadPositions]] = {"rotary": RotaryPositions}
"""Encodings applied to the queries and keys of every head, by name."""
