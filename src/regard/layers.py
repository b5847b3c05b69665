"""Layers of a Transformer: embedding, feed-forward network and residual branch.

Section numbers refer to Vaswani et al. 2017, "Attention Is All You Need" (arXiv:1706.03762).
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from regard.kernels.dropout import dropout
from regard.positions import EMBEDDING_POSITIONS


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """Sizes and options that a Transformer's encoder and decoder share."""

    dim: int
    """Width D of the states."""
    layers: int
    """Number of layers."""
    num_heads: int
    """Attention heads per layer."""
    feed_forward_dim: int
    """Width inside the feed-forward network."""
    activation: str = "relu"
    """Nonlinearity of the feed-forward network, as accepted by `FeedForward`."""
    positions: str = "sinusoidal"
    """Name of a positional encoding."""
    pre_norm: bool = True
    """Whether to normalise before each sublayer (and after the last layer), or after each residual sum."""
    dropout: float = 0.0
    """Probability of dropping an activation."""
    score: str = "scaled_dot"
    """Score function of every attention layer, as accepted by `MultiHeadAttention`."""
    score_options: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    """Options of the score function, as accepted by `MultiHeadAttention`."""
    normalizer: str = "softmax"
    """Normaliser of every attention layer, as accepted by `Attention`."""


class Embedding(nn.Module):
    """Embed tokens: vectors times sqrt(D) (section 3.4) plus positional encodings, with dropout.

    Args:
        vocabulary: size V.
        dim: width D.
        positions: name of a positional encoding; those that act on heads are not applied here.
        dropout: probability of dropping a component of the sum.
    """

    def __init__(self, vocabulary: int, dim: int, positions: str, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, dim)
        nn.init.normal_(self.tokens.weight, std=dim**-0.5)
        encoding = EMBEDDING_POSITIONS.get(positions)
        self.positions = None if encoding is None else encoding(dim)
        self.scale = math.sqrt(dim)
        self.dropout = dropout

    def forward(self, ids: Int[Tensor, "B L"], first: int = 0) -> Float[Tensor, "B L D"]:
        """Return the embeddings of tokens at consecutive positions, starting at `first`."""
        rows = self.tokens(ids) * self.scale
        if self.positions is not None:
            rows = self.positions(rows, first)
        return dropout(rows, self.dropout, self.training)


class FeedForward(nn.Module):
    """Position-wise feed-forward network: two linear layers with an activation (section 3.3).

    The activation is `relu`, `gelu` (Hendrycks and Gimpel 2016, arXiv:1606.08415) or `swiglu`: SiLU
    of one projection times a second projection (Shazeer 2020, arXiv:2002.05202), which adds a third
    matrix.

    Args:
        dim: width D of the input and the output.
        hidden_dim: width of the hidden layer.
        activation: `relu`, `gelu` or `swiglu`.
        dropout: probability of dropping a hidden activation.
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
        """Transform every vector independently."""
        hidden = self.linear1(rows)
        if self.gated:
            gate, hidden = hidden.chunk(2, dim=-1)
            hidden = self.activation(gate) * hidden
        else:
            hidden = self.activation(hidden)
        return self.linear2(dropout(hidden, self.dropout, self.training))


class Residual(nn.Module):
    """Residual branch around a sublayer f: x + f(norm(x)), or norm(x + f(x)) as in the paper.

    With the norm before f (Xiong et al. 2020, arXiv:2002.04745), training is stable without a long
    warm-up.

    Args:
        dim: width D.
        pre_norm: whether to apply the norm before f, instead of after the sum.
        dropout: probability of dropping an output of f.
    """

    def __init__(self, dim: int, pre_norm: bool, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.pre_norm = pre_norm
        self.dropout = dropout

    def sublayer_input(self, rows: Float[Tensor, "*n D"]) -> Float[Tensor, "*n D"]:
        """Return the input of the sublayer."""
        return self.norm(rows) if self.pre_norm else rows

    def add(
        self, rows: Float[Tensor, "*n D"], output: Float[Tensor, "*n D"]
    ) -> Float[Tensor, "*n D"]:
        """Return the sum of the residual input and the output of the sublayer."""
        total = rows + dropout(output, self.dropout, self.training)
        return total if self.pre_norm else self.norm(total)
