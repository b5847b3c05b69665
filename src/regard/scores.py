"""Score functions, which compare a query with a key.

Every score here has one of two forms: an inner product of projected vectors,
`project_query(s) . project_key(h)`, or pairwise, `v . tanh(project_query(s) + project_key(h))`.
`Attention` selects the computation by the form; a custom score of neither form only needs
`forward(query, key) -> (B, L, T)`. Names, aliases and formulas are in `score_registry`.

Notation: queries s_t are (B, L, Dq), keys h_i (B, T, Dk), scores e_ti (B, L, T).
"""

import inspect
import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from regard.errors import ConfigError, ShapeError, nearest
from regard.kernels import additive
from regard.kernels.weighted_sum import is_autocast_enabled, to_compute_dtype, without_autocast
from regard.score_registry import find_score
from regard.setting_checks import check_positive, check_widths


class Score(nn.Module, ABC):
    """Base class of score functions: queries and keys are projected separately, then compared."""

    widths: tuple[int, int] | None = None
    """Widths of a query and a key; None if the parameters do not determine them."""

    def project_query(self, query: Float[Tensor, "*n L Dq"]) -> Float[Tensor, "*n L E"]:
        """Return the projected queries; by default the queries themselves."""
        return query

    def project_key(self, key: Float[Tensor, "*n T Dk"]) -> Float[Tensor, "*n T E"]:
        """Return the projected keys, computed once per source; by default the keys themselves."""
        return key

    @abstractmethod
    def compare(
        self, queries: Float[Tensor, "*n L E"], keys: Float[Tensor, "*n T E"]
    ) -> Float[Tensor, "*n L T"]:
        """Return the scores of every projected query with every projected key."""

    def check(self, query: Tensor, key: Tensor) -> None:
        """Raise a ShapeError that states both shapes if this score cannot compare their widths."""
        if self.widths is not None and (query.shape[-1], key.shape[-1]) != self.widths:
            raise ShapeError(
                f"{type(self).__name__} expects queries of width {self.widths[0]} and keys of width "
                f"{self.widths[1]}, got query {shape(query)} and key {shape(key)}"
            )

    def formula_parameters(self, head: int = 0) -> dict[str, Tensor]:
        """Return the parameters by their letters in the formula; if heads differ, those of `head`."""
        return {}

    def forward(self, query: Float[Tensor, "B L Dq"], key: Float[Tensor, "B T Dk"]) -> Tensor:
        """Return the scores of every query with every key, (B, L, T).

        Raises:
            ShapeError: the ranks, batch sizes, widths or dtypes are incompatible.
        """
        check_pair(query, key)
        if not (query.is_floating_point() and key.is_floating_point()):
            raise ShapeError(
                "expected query and key to have a floating-point dtype, got "
                f"{query.dtype} and {key.dtype}"
            )
        self.check(query, key)
        self._check_dtypes(query, key)
        queries, keys = self.project_query(query), self.project_key(key)
        return self.compare(queries, keys).to(queries.dtype)

    def _check_dtypes(self, query: Tensor, key: Tensor) -> None:
        """Raise a ShapeError unless query, key and matrices have one dtype; without matrices, half precision fits float32."""
        matrices = [p.dtype for p in self.parameters() if p.dim() > 1 and p.is_floating_point()]
        dtypes = {query.dtype, key.dtype, *matrices}
        if not matrices:
            dtypes = {torch.float32 if dtype.itemsize < 4 else dtype for dtype in dtypes}
        converted = is_autocast_enabled(query.device) and torch.float64 not in dtypes
        if len(dtypes) == 1 or converted:
            return
        listed = " and ".join(dict.fromkeys(map(str, matrices)))
        with_parameters = f", and the parameters {listed}" if matrices else ""
        raise ShapeError(
            f"query has dtype {query.dtype}, key {key.dtype}{with_parameters}: convert them to one dtype"
        )


class InnerProductScore(Score):
    """Base class of scores that are an inner product of projected vectors."""

    def compare(
        self, queries: Float[Tensor, "*n L E"], keys: Float[Tensor, "*n T E"]
    ) -> Float[Tensor, "*n L T"]:
        """Return e_ti = q_t . k_i; half-precision inputs are converted to float32, to avoid overflow."""
        with without_autocast(queries.device):
            return to_compute_dtype(queries) @ to_compute_dtype(keys).mT


class EqualWidthScore(InnerProductScore):
    """Base class of inner products that need queries and keys of equal width."""

    def check(self, query: Tensor, key: Tensor) -> None:
        """Raise a ShapeError if the widths differ."""
        if query.shape[-1] != key.shape[-1]:
            raise ShapeError(
                f"{type(self).__name__} needs queries and keys of equal width, got query "
                f"{shape(query)} and key {shape(key)}; Bilinear and Additive accept different widths"
            )


class Dot(EqualWidthScore):
    """e = s . h (Luong et al. 2015, arXiv:1508.04025, section 3.1, 'dot'). No parameters."""


class ScaledDot(EqualWidthScore):
    """e = s . h / sqrt(D) (Vaswani et al. 2017, arXiv:1706.03762, section 3.2.1). No parameters.

    If the components are independent with mean 0 and variance 1, the dot product has variance D;
    divided by sqrt(D), it has variance 1 at any width.
    """

    def project_query(self, query: Float[Tensor, "*n L Dq"]) -> Float[Tensor, "*n L E"]:
        """Divide queries by sqrt(D)."""
        return query / math.sqrt(query.shape[-1])


class Cosine(EqualWidthScore):
    """e = s . h / (|s| |h| temperature): bounded by 1 / temperature, whatever the norms.

    Norms of half-precision vectors are computed in float32; the score of a zero vector is 0.

    Args:
        temperature: divisor of the cosine, above 0 (default 1).
        learned_temperature: train the temperature (as exp of a parameter, so that it stays above 0).
    """

    def __init__(self, temperature: float = 1.0, learned_temperature: bool = False) -> None:
        super().__init__()
        check_positive("the temperature of Cosine", temperature)
        self.log_temperature = nn.Parameter(
            torch.tensor(math.log(temperature)), requires_grad=learned_temperature
        )

    def project_query(self, query: Float[Tensor, "*n L Dq"]) -> Float[Tensor, "*n L E"]:
        """Scale queries to norm 1 / temperature."""
        rows = _unit_rows(query)
        return (rows * torch.exp(-self.log_temperature).to(rows.dtype)).to(query.dtype)

    def project_key(self, key: Float[Tensor, "*n T Dk"]) -> Float[Tensor, "*n T E"]:
        """Scale keys to norm 1."""
        return _unit_rows(key).to(key.dtype)

    def formula_parameters(self, head: int = 0) -> dict[str, Tensor]:
        """Return the temperature."""
        return {"temperature": self.log_temperature.exp()}


def _unit_rows(rows: Tensor) -> Tensor:
    """Return the vectors scaled to norm 1, in the dtype of the computation.

    Zero vectors stay zero; their gradient, which is undefined, is set to zero too.
    """
    rows = to_compute_dtype(rows)
    if not rows.shape[-1]:
        return rows
    # keeps squares of elements of any magnitude in range, and does not change the direction
    largest = rows.detach().abs().amax(-1, keepdim=True)
    zero = largest == 0
    # the norm of a zero vector has no second derivative
    rows, largest = rows.masked_fill(zero, 1), largest.masked_fill(zero, 1)
    return functional.normalize(rows / largest, dim=-1).masked_fill(zero, 0)


class Bilinear(InnerProductScore):
    """e = s W h, with W any (Dq, Dk) matrix (Luong et al. 2015, section 3.1, 'general').

    Args:
        query_dim: width Dq of a query.
        key_dim: width Dk of a key.
        scaled: divide by sqrt(Dq) (off by default, as in the paper).
    """

    def __init__(self, query_dim: int, key_dim: int, scaled: bool = False) -> None:
        super().__init__()
        check_widths(query_dim=query_dim, key_dim=key_dim)
        self.widths = query_dim, key_dim
        self.weight = nn.Parameter(torch.empty(query_dim, key_dim))
        self.scale = 1 / math.sqrt(query_dim) if scaled else 1.0
        nn.init.xavier_uniform_(self.weight)

    def project_key(self, key: Float[Tensor, "*n T Dk"]) -> Float[Tensor, "*n T E"]:
        """Return W h, multiplied by the scale."""
        return functional.linear(key, self.weight * self.scale)

    def formula_parameters(self, head: int = 0) -> dict[str, Tensor]:
        """Return W, multiplied by the scale."""
        return {"W": self.weight * self.scale}


class InnerProduct(InnerProductScore):
    """e = s W h with W = A A' + eps I, symmetric and positive definite: u W u > 0 for u != 0.

    Args:
        dim: width D of queries and keys.
        eps: number added to the diagonal, above 0 (default 1e-3).
    """

    def __init__(self, dim: int, eps: float = 1e-3) -> None:
        super().__init__()
        check_widths(dim=dim)
        check_positive("the eps of InnerProduct", eps)
        self.widths = dim, dim
        self.factor = nn.Parameter(torch.empty(dim, dim))
        self.eps = eps
        nn.init.xavier_uniform_(self.factor)

    def project_key(self, key: Float[Tensor, "*n T Dk"]) -> Float[Tensor, "*n T E"]:
        """Return (A A' + eps I) h."""
        return key @ self.factor @ self.factor.T + self.eps * key

    def formula_parameters(self, head: int = 0) -> dict[str, Tensor]:
        """Return W = A A' + eps I in float64."""
        factor = self.factor.cpu().double()  # some devices have no float64
        identity = torch.eye(len(factor), dtype=factor.dtype, device=factor.device)
        return {"W": factor @ factor.T + self.eps * identity}


class PairwiseScore(Score):
    """Base class of scores v . tanh(a + b) with projected queries a and projected keys b."""

    vector: nn.Parameter
    """v: (D,), or (H, D) with one row per head."""

    def vectors(self, keys: Float[Tensor, "*n T E"]) -> Float[Tensor, "*h E"]:
        """Return v in the dtype of the keys, with one row per head if the keys have heads."""
        vector = self.vector.to(keys.dtype)
        return vector.repeat(keys.shape[1], 1) if keys.dim() == 4 and vector.dim() == 1 else vector

    def compare(
        self, queries: Float[Tensor, "*n L E"], keys: Float[Tensor, "*n T E"]
    ) -> Float[Tensor, "*n L T"]:
        """Return e_ti = v . tanh(a_t + b_i), computed in bounded memory."""
        return additive.scores(queries, keys, self.vectors(keys))


class Additive(PairwiseScore):
    """e = v . tanh(W s + U h + bias) (Bahdanau et al. 2015, arXiv:1409.0473, A.1.2).

    In their notation, `query` is s_{t-1}, W is W_a, U is U_a and v is v_a.

    Args:
        query_dim: width Dq of a query.
        key_dim: width Dk of a key.
        hidden_dim: width D of v.
        bias: add a bias inside tanh (off by default, as in the paper).
    """

    def __init__(self, query_dim: int, key_dim: int, hidden_dim: int, bias: bool = False) -> None:
        super().__init__()
        check_widths(query_dim=query_dim, key_dim=key_dim, hidden_dim=hidden_dim)
        self.widths = query_dim, key_dim
        self.query_proj = nn.Linear(query_dim, hidden_dim, bias=False)
        self.key_proj = nn.Linear(key_dim, hidden_dim, bias=bias)
        self.vector = nn.Parameter(torch.empty(hidden_dim))
        nn.init.xavier_uniform_(self.query_proj.weight)
        nn.init.xavier_uniform_(self.key_proj.weight)
        nn.init.xavier_uniform_(self.vector[None])

    def project_query(self, query: Float[Tensor, "*n L Dq"]) -> Float[Tensor, "*n L E"]:
        """Return W s."""
        return self.query_proj(query)

    def project_key(self, key: Float[Tensor, "*n T Dk"]) -> Float[Tensor, "*n T E"]:
        """Return U h + bias."""
        return self.key_proj(key)

    def formula_parameters(self, head: int = 0) -> dict[str, Tensor]:
        """Return W, U, v and the bias if there is one."""
        # attributes, as a pruned or parametrized layer has parameters of other names
        query_proj, key_proj = self.query_proj, self.key_proj
        parameters = {"W": query_proj.weight, "U": key_proj.weight, "v": self.vector}
        return parameters if key_proj.bias is None else {**parameters, "bias": key_proj.bias}  # pyright: ignore[reportUnnecessaryComparison]


class Concat(PairwiseScore):
    """e = v . tanh(W [s; h] + bias) (Luong et al. 2015, section 3.1, 'concat').

    Splitting W at column Dq gives the W and U of `Additive`, so the two functions are the same. The score
    is computed in that form, and queries are never concatenated with keys. The arguments are those of `Additive`.
    """

    def __init__(self, query_dim: int, key_dim: int, hidden_dim: int, bias: bool = False) -> None:
        super().__init__()
        check_widths(query_dim=query_dim, key_dim=key_dim, hidden_dim=hidden_dim)
        self.weight = nn.Parameter(torch.empty(hidden_dim, query_dim + key_dim))
        self.bias = nn.Parameter(torch.zeros(hidden_dim)) if bias else None
        self.vector = nn.Parameter(torch.empty(hidden_dim))
        self.widths, self.query_dim = (query_dim, key_dim), query_dim
        nn.init.xavier_uniform_(self.weight)
        nn.init.xavier_uniform_(self.vector[None])

    def project_query(self, query: Float[Tensor, "*n L Dq"]) -> Float[Tensor, "*n L E"]:
        """Return the product of the first Dq columns of W with s."""
        return functional.linear(query, self.weight[:, : self.query_dim])

    def project_key(self, key: Float[Tensor, "*n T Dk"]) -> Float[Tensor, "*n T E"]:
        """Return the product of the last Dk columns of W with h, plus the bias."""
        return functional.linear(key, self.weight[:, self.query_dim :], self.bias)

    def formula_parameters(self, head: int = 0) -> dict[str, Tensor]:
        """Return W, v and the bias if there is one."""
        bias = {} if self.bias is None else {"bias": self.bias}
        return {"W": self.weight, "v": self.vector, **bias}


class AdditiveHeads(PairwiseScore):
    """e = v_h . tanh(q + k) for every head h, given projected queries q and keys k.

    The additive score inside multi-head attention, whose projections of queries and keys serve as W
    and U: every head has its own W, U and v.

    Args:
        heads: number H of heads.
        dim: width D of a head.
    """

    def __init__(self, heads: int, dim: int) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.empty(heads, dim))
        bound = math.sqrt(6 / (dim + 1))  # Xavier initialisation, as for one head
        nn.init.uniform_(self.vector, -bound, bound)

    def forward(self, query: Float[Tensor, "N L D"], key: Float[Tensor, "N T D"]) -> Tensor:
        """Return the scores, (N, L, T); item n belongs to head n mod H."""
        queries, keys = (rows.unflatten(0, (-1, len(self.vector))) for rows in (query, key))
        return self.compare(queries, keys).flatten(0, 1)

    def formula_parameters(self, head: int = 0) -> dict[str, Tensor]:
        """Return v of the head; the projected queries and keys already include W and U."""
        return {"v": self.vector[head]}


def make_score(
    name: str,
    *,
    query_dim: int | None = None,
    key_dim: int | None = None,
    hidden_dim: int | None = None,
    **options: Any,
) -> Score:
    """Construct a score function from its name or alias.

    Args:
        name: `dot`, `scaled_dot`, `cosine`, `bilinear` (`general`), `inner_product`, `additive`
            (`bahdanau`, `mlp`) or `concat`.
        query_dim: width Dq of a query; not needed by scores without parameters.
        key_dim: width Dk of a key (default `query_dim`).
        hidden_dim: width of the hidden layer of `additive` and `concat` (default `query_dim`); the
            other scores ignore it.
        **options: further arguments for the class, such as `bias`, `scaled` or `temperature`.

    Raises:
        ConfigError: the name is unknown, the score does not accept an option, or `query_dim` is
            missing.
        ShapeError: the score needs equal widths, and `query_dim` and `key_dim` differ.
    """
    entry = find_score(name)
    check_widths(query_dim=query_dim, key_dim=key_dim, hidden_dim=hidden_dim)
    key_dim = query_dim if key_dim is None else key_dim
    if entry.equal_widths and query_dim is not None and query_dim != key_dim:
        raise ShapeError(
            f"score {entry.name} needs queries and keys of equal width, got query_dim={query_dim} and "
            f"key_dim={key_dim}; project one of them, or use bilinear, additive or concat"
        )
    score_class = globals()[entry.class_name]
    hidden_dim = query_dim if hidden_dim is None else hidden_dim
    widths = dict(query_dim=query_dim, key_dim=key_dim, hidden_dim=hidden_dim, dim=query_dim)
    parameters = inspect.signature(score_class).parameters.values()
    arguments = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    allowed = [argument for argument in arguments if argument not in widths]
    for option in options:
        if option not in allowed:
            known = [*allowed, "query_dim", "key_dim", "hidden_dim"]
            raise ConfigError(
                f"score {entry.name} does not accept the option {option}; its options: "
                f"{', '.join(allowed) or 'none'}{nearest(option, known)}"
            )
    given = {argument: widths[argument] for argument in arguments if argument in widths}
    if None in given.values():
        raise ConfigError(
            f"score {entry.name} has parameters: pass query_dim, the width of a query"
        )
    return score_class(**given, **options)


def shape(tensor: Tensor) -> str:
    """Return the shape in the format of error messages, such as (2, 3, 4)."""
    return str(tuple(tensor.shape))


def check_pair(query: Tensor, key: Tensor) -> None:
    """Raise a ShapeError unless query and key are (B, L, Dq) and (B, T, Dk) with equal B, on one device."""
    if query.dim() != 3 or key.dim() != 3 or query.shape[0] != key.shape[0]:
        raise ShapeError(
            "expected query (B, L, Dq) and key (B, T, Dk) with equal B, got query "
            f"{shape(query)} and key {shape(key)}"
        )
    if query.device != key.device:
        raise ShapeError(
            f"expected query and key on the same device, got {query.device} and {key.device}"
        )
