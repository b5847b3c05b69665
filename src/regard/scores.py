"""Scoring functions by name: how a query is compared with a key.

Every score here is one of two shapes. An *inner* score is an inner product of rows that are
transformed once, `project_query(s) . project_key(h)`; a *pairwise* score is
`v . tanh(project_query(s) + project_key(h))`. `Attention` asks a score for its shape and picks the
arithmetic; a score of your own that is neither only needs `forward(query, key) -> (B, L, T)`.

Notation: queries s_t are (B, L, Dq), keys h_i (B, T, Dk), scores e_ti (B, L, T).
"""

import math
from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from regard.errors import ConfigError, ShapeError
from regard.kernels import additive


class Score(nn.Module, ABC):
    """A score that transforms every query and every key once, on its own."""

    @abstractmethod
    def project_query(self, query: Float[Tensor, "*n L Dq"]) -> Float[Tensor, "*n L E"]:
        """Transform queries, once each."""

    @abstractmethod
    def project_key(self, key: Float[Tensor, "*n T Dk"]) -> Float[Tensor, "*n T E"]:
        """Transform keys, once per source."""

    @abstractmethod
    def compare(
        self, queries: Float[Tensor, "*n L E"], keys: Float[Tensor, "*n T E"]
    ) -> Float[Tensor, "*n L T"]:
        """Score transformed queries against transformed keys."""

    def check(self, query: Tensor, key: Tensor) -> None:
        """Raise a ShapeError that names both shapes where this score cannot compare them."""

    def forward(self, query: Float[Tensor, "B1 L Dq"], key: Float[Tensor, "B2 T Dk"]) -> Tensor:
        """Scores of every query with every key: (B, L, Dq), (B, T, Dk) -> (B, L, T).

        Raises:
            ShapeError: ranks, batch sizes or widths do not fit.
        """
        check_pair(query, key)
        self.check(query, key)
        return self.compare(self.project_query(query), self.project_key(key))


class InnerScore(Score):
    """A score that is an inner product of transformed rows."""

    def project_query(self, query: Float[Tensor, "*n L Dq"]) -> Float[Tensor, "*n L E"]:
        """Leave queries as they are."""
        return query

    def project_key(self, key: Float[Tensor, "*n T Dk"]) -> Float[Tensor, "*n T E"]:
        """Leave keys as they are."""
        return key

    def compare(
        self, queries: Float[Tensor, "*n L E"], keys: Float[Tensor, "*n T E"]
    ) -> Float[Tensor, "*n L T"]:
        """e_ti = q_t . k_i."""
        return queries @ keys.mT


class EqualWidths(InnerScore):
    """An inner score that compares rows of one width."""

    def check(self, query: Tensor, key: Tensor) -> None:
        """Raise a ShapeError where the widths differ."""
        if query.shape[-1] != key.shape[-1]:
            raise ShapeError(
                f"{type(self).__name__} needs queries and keys of one width, got query "
                f"{shape(query)} and key {shape(key)}; Bilinear and Additive take two widths"
            )


class Dot(EqualWidths):
    """e = s . h (Luong et al. 2015, arXiv:1508.04025, section 3.1, 'dot'). No parameters."""


class ScaledDot(EqualWidths):
    """e = s . h / sqrt(D) (Vaswani et al. 2017, arXiv:1706.03762, section 3.2.1). No parameters.

    For independent components of variance 1 the dot product has variance D; divided by sqrt(D) it
    has variance 1 at any width.
    """

    def project_query(self, query: Float[Tensor, "*n L Dq"]) -> Float[Tensor, "*n L E"]:
        """Divide queries by sqrt(D)."""
        return query / math.sqrt(query.shape[-1])


class Cosine(EqualWidths):
    """e = s . h / (|s| |h| temperature): bounded by 1 / temperature, whatever the norms.

    Args:
        temperature: what the cosine is divided by, above 0 (default 1).
        learned: train the temperature (as exp of a parameter, so it stays above 0).
    """

    def __init__(self, temperature: float = 1.0, learned: bool = False) -> None:
        super().__init__()
        if not temperature > 0:
            raise ConfigError(f"the temperature of Cosine must be above 0, got {temperature}")
        self.log_temperature = nn.Parameter(
            torch.tensor(math.log(temperature)), requires_grad=learned
        )

    def project_query(self, query: Float[Tensor, "*n L Dq"]) -> Float[Tensor, "*n L E"]:
        """Bring queries to length 1 / temperature."""
        return functional.normalize(query, dim=-1) * torch.exp(-self.log_temperature).to(
            query.dtype
        )

    def project_key(self, key: Float[Tensor, "*n T Dk"]) -> Float[Tensor, "*n T E"]:
        """Bring keys to length 1."""
        return functional.normalize(key, dim=-1)


class Bilinear(InnerScore):
    """e = s W h, with W any (Dq, Dk) matrix (Luong et al. 2015, section 3.1, 'general').

    Args:
        query_dim: width Dq of a query.
        key_dim: width Dk of a key.
        scaled: divide by sqrt(Dq) (off by default, as in the paper).
    """

    def __init__(self, query_dim: int, key_dim: int, scaled: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(query_dim, key_dim))
        self.scale = 1 / math.sqrt(query_dim) if scaled else 1.0
        nn.init.xavier_uniform_(self.weight)

    def check(self, query: Tensor, key: Tensor) -> None:
        """Raise a ShapeError where a width is not the one of W."""
        check_widths(self, query, key, *self.weight.shape)

    def project_key(self, key: Float[Tensor, "*n T Dk"]) -> Float[Tensor, "*n T E"]:
        """W h, times the scale."""
        return functional.linear(key, self.weight * self.scale)


class InnerProduct(EqualWidths):
    """e = s W h with W = A A' + eps I, symmetric and positive definite: <u, u> > 0 for u != 0.

    Args:
        dim: width D of queries and keys.
        eps: what is added to the diagonal (default 1e-3), above 0.
    """

    def __init__(self, dim: int, eps: float = 1e-3) -> None:
        super().__init__()
        if not eps > 0:
            raise ConfigError(f"the eps of InnerProduct must be above 0, got {eps}")
        self.factor = nn.Parameter(torch.empty(dim, dim))
        self.eps = eps
        nn.init.xavier_uniform_(self.factor)

    def check(self, query: Tensor, key: Tensor) -> None:
        """Raise a ShapeError where a width is not the one of W."""
        check_widths(self, query, key, *self.factor.shape)

    def project_key(self, key: Float[Tensor, "*n T Dk"]) -> Float[Tensor, "*n T E"]:
        """(A A' + eps I) h."""
        return key @ self.factor @ self.factor.T + self.eps * key


class PairwiseScore(Score):
    """A score v . tanh(a + b) over transformed queries a and transformed keys b."""

    vector: nn.Parameter
    """v: (D,), or (H, D) with one for every head."""

    def vectors(self, keys: Float[Tensor, "*n T E"]) -> Float[Tensor, "*h E"]:
        """The vector in the dtype of the keys, with a row per head where the keys have heads."""
        vector = self.vector.to(keys.dtype)
        return vector.repeat(keys.shape[1], 1) if keys.dim() == 4 and vector.dim() == 1 else vector

    def compare(
        self, queries: Float[Tensor, "*n L E"], keys: Float[Tensor, "*n T E"]
    ) -> Float[Tensor, "*n L T"]:
        """e_ti = v . tanh(a_t + b_i), in bounded memory."""
        return additive.scores(queries, keys, self.vectors(keys))


class Additive(PairwiseScore):
    """e = v . tanh(W s + U h + bias) (Bahdanau et al. 2015, arXiv:1409.0473, A.1.2).

    Our `query` is their s_{t-1}, W their W_a, U their U_a, v their v_a.

    Args:
        query_dim: width Dq of a query.
        key_dim: width Dk of a key.
        hidden_dim: width D of v.
        bias: add a bias inside tanh (off by default, as in the paper).
    """

    def __init__(self, query_dim: int, key_dim: int, hidden_dim: int, bias: bool = False) -> None:
        super().__init__()
        self.query_proj = nn.Linear(query_dim, hidden_dim, bias=False)
        self.key_proj = nn.Linear(key_dim, hidden_dim, bias=bias)
        self.vector = nn.Parameter(torch.empty(hidden_dim))
        nn.init.xavier_uniform_(self.query_proj.weight)
        nn.init.xavier_uniform_(self.key_proj.weight)
        nn.init.xavier_uniform_(self.vector[None])

    def check(self, query: Tensor, key: Tensor) -> None:
        """Raise a ShapeError where a width is not the one of W or U."""
        check_widths(self, query, key, self.query_proj.in_features, self.key_proj.in_features)

    def project_query(self, query: Float[Tensor, "*n L Dq"]) -> Float[Tensor, "*n L E"]:
        """W s."""
        return self.query_proj(query)

    def project_key(self, key: Float[Tensor, "*n T Dk"]) -> Float[Tensor, "*n T E"]:
        """U h, plus the bias where there is one."""
        return self.key_proj(key)


class Concat(PairwiseScore):
    """e = v . tanh(W [s; h]) (Luong et al. 2015, section 3.1, 'concat').

    The same function as `Additive` with W cut in two, and computed that way: no query is ever
    concatenated with a key.

    Args:
        query_dim: width Dq of a query.
        key_dim: width Dk of a key.
        hidden_dim: width D of v.
    """

    def __init__(self, query_dim: int, key_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden_dim, query_dim + key_dim))
        self.vector = nn.Parameter(torch.empty(hidden_dim))
        self.widths = (query_dim, key_dim)
        nn.init.xavier_uniform_(self.weight)
        nn.init.xavier_uniform_(self.vector[None])

    def check(self, query: Tensor, key: Tensor) -> None:
        """Raise a ShapeError where a width is not the one of its part of W."""
        check_widths(self, query, key, *self.widths)

    def project_query(self, query: Float[Tensor, "*n L Dq"]) -> Float[Tensor, "*n L E"]:
        """The part of W that meets s, times s."""
        return functional.linear(query, self.weight[:, : self.widths[0]])

    def project_key(self, key: Float[Tensor, "*n T Dk"]) -> Float[Tensor, "*n T E"]:
        """The part of W that meets h, times h."""
        return functional.linear(key, self.weight[:, self.widths[0] :])


class AdditiveHeads(PairwiseScore):
    """e = v_h . tanh(q + k) for every head h, of rows that W and U have transformed already.

    The additive score inside multi-head attention, whose projections of queries and keys are W and
    U; so every head has its own W, U and v.

    Args:
        heads: number H of heads.
        dim: width D of a head.
    """

    def __init__(self, heads: int, dim: int) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.empty(heads, dim))
        bound = math.sqrt(6 / (dim + 1))  # Xavier's, as for one head
        nn.init.uniform_(self.vector, -bound, bound)

    def project_query(self, query: Float[Tensor, "*n L Dq"]) -> Float[Tensor, "*n L E"]:
        """Leave queries as they are."""
        return query

    def project_key(self, key: Float[Tensor, "*n T Dk"]) -> Float[Tensor, "*n T E"]:
        """Leave keys as they are."""
        return key


ALIASES: dict[str, str] = {"general": "bilinear", "bahdanau": "additive", "mlp": "additive"}
"""Other names of scores in the literature."""

EQUAL_WIDTHS: frozenset[str] = frozenset({"dot", "scaled_dot", "cosine", "inner_product"})
"""Names of the scores that compare rows of one width."""

PAIRWISE: frozenset[str] = frozenset({"additive", "concat"})
"""Names of the scores v . tanh(a + b)."""

NAMES: tuple[str, ...] = (
    "dot", "scaled_dot", "cosine", "bilinear", "inner_product", "additive", "concat",
)  # fmt: skip
"""Every score by name."""


def make_score(
    name: str, *, query_dim: int, key_dim: int, hidden_dim: int, learned_temperature: bool = False
) -> Score:
    """Make a score by its name or alias; what a score has no use for is ignored.

    Args:
        name: one of `NAMES`, or `general`, `bahdanau`, `mlp`.
        query_dim: width Dq of a query.
        key_dim: width Dk of a key.
        hidden_dim: width inside `additive` and `concat`.
        learned_temperature: let `cosine` learn its temperature.

    Raises:
        ConfigError: no score has this name.
        ShapeError: the score needs equal widths and they differ.
    """
    name = ALIASES.get(name, name)
    if name in EQUAL_WIDTHS and query_dim != key_dim:
        raise ShapeError(
            f"score {name} needs queries and keys of one width, got query_dim={query_dim} and "
            f"key_dim={key_dim}; project one of them, or use bilinear, additive or concat"
        )
    match name:
        case "dot":
            return Dot()
        case "scaled_dot":
            return ScaledDot()
        case "cosine":
            return Cosine(learned=learned_temperature)
        case "bilinear":
            return Bilinear(query_dim, key_dim)
        case "inner_product":
            return InnerProduct(query_dim)
        case "additive":
            return Additive(query_dim, key_dim, hidden_dim)
        case "concat":
            return Concat(query_dim, key_dim, hidden_dim)
        case _:
            raise ConfigError(f"no score is named {name!r}; choose one of {', '.join(NAMES)}")


def shape(tensor: Tensor) -> str:
    """The shape as it is written in messages: (2, 3, 4)."""
    return str(tuple(tensor.shape))


def check_pair(query: Tensor, key: Tensor) -> None:
    """Raise a ShapeError unless query and key are (B, L, Dq) and (B, T, Dk) with one B."""
    if query.dim() != 3 or key.dim() != 3 or query.shape[0] != key.shape[0]:
        raise ShapeError(
            "expected query (B, L, Dq) and key (B, T, Dk) with one B, got query "
            f"{shape(query)} and key {shape(key)}"
        )


def check_widths(score: nn.Module, query: Tensor, key: Tensor, *widths: int) -> None:
    """Raise a ShapeError unless query and key have these two widths."""
    if (query.shape[-1], key.shape[-1]) != tuple(widths):
        raise ShapeError(
            f"{type(score).__name__} was made for queries of width {widths[0]} and keys of width "
            f"{widths[1]}, got query {shape(query)} and key {shape(key)}"
        )
