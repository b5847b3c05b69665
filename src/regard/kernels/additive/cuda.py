# pyright: basic, reportCallIssue=false, reportArgumentType=false
# (Triton reads the signatures of kernels itself; they carry no types)
"""The additive scores and their gradients on CUDA, compiled by Triton.

    e_ti = v . tanh(a_t + b_i),    tanh(a + b) = 1 - 2 r,    r = 1 / (1 + e^{2a} e^{2b})

The exponentials are taken once per row. Two features share a reciprocal in the scores,
v / x + w / y = (v y + w x) / (x y). A program of the gradients owns a tile of queries or keys times
features and walks over the other side, so nothing is summed across programs and results are the
same from run to run. Tiles that hold a number too far out for the exponentials, infinite or NaN
take e^{2(a+b)} pair by pair, which is exact at any magnitude; no number is ever read back by the
host.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional
from triton import knobs

REACH = 43.5
"""|x| up to which e^{2x} is a normal float32, and the product of two of them not 0 x infinity."""

REACH_UNCUT = 10.0
"""|x| up to which even the product of two 1 + e^{2(a+b)} is finite as it is."""

CEILING = tl.constexpr(1e18)
"""1 + e^{2(a+b)} is cut off here, so that the product of two stays finite; tanh is 1 long before."""

TILE = 64
"""Queries and keys of a tile of scores, at most."""

OWN, FEATURES = 32, 64
"""Rows and features of a tile of gradients, at most."""

# inline assembly is not interpreted
_COMPILED = not knobs.runtime.interpret


def prepare_keys(b: Tensor) -> Tensor | None:
    """Return None: the kernels take the exponentials of the keys in every call."""
    return None


def scores(
    queries: Tensor, sources: Tensor, vectors: Tensor, prepared: Tensor | None = None
) -> Tensor | None:
    """The scores of a (N, L, D), b (N, T, D) and v (H, D), item n with row n mod H of v.

    None for float64, which Triton's reciprocal does not serve.
    """
    if queries.dtype != torch.float32:
        return None
    items, rows, width = queries.shape
    keys = sources.shape[1]
    out = queries.new_empty(items, rows, keys)
    if not out.numel():
        return out
    if width % 2:
        # two features share a reciprocal; one whose v is 0 adds nothing
        queries, sources, vectors = (
            functional.pad(each, (0, 1)) for each in (queries, sources, vectors)
        )
    sides = _Side(queries), _Side(sources)
    vectors = vectors.contiguous()
    tile = [min(TILE, triton.next_power_of_2(size)) for size in (rows, keys)]
    grid = (items * triton.cdiv(rows, tile[0]) * triton.cdiv(keys, tile[1]),)
    score_kernel[grid](
        *sides[0].columns, *sides[1].columns, vectors, out,
        rows, keys, width + width % 2, vectors.shape[0], *tile, _COMPILED,
    )  # fmt: skip
    return out


def gradients(
    gradient: Tensor, queries: Tensor, sources: Tensor, vectors: Tensor
) -> tuple[Tensor, Tensor, Tensor] | None:
    """The gradients of a (N, L, D), b (N, T, D) and v (H, D), given that of the scores (N, L, T)."""
    if queries.dtype != torch.float32:
        return None
    sides = _Side(queries), _Side(sources)
    heads, width = vectors.shape
    vectors = vectors.contiguous()
    of_queries, _ = _walk(gradient.mT, sides[0], sides[1], vectors)
    of_sources, parts = _walk(gradient, sides[1], sides[0], vectors)
    return (
        of_queries,
        of_sources,
        parts.view(queries.shape[0] // heads, heads, parts.shape[1], width).sum((0, 2)),
    )


class _Side:
    """Queries or keys as the kernels read them."""

    def __init__(self, rows: Tensor) -> None:
        self.raw = rows.contiguous()
        self.powers = torch.exp(2 * self.raw.clamp(-REACH, REACH))
        farthest = (
            self.raw.abs().amax(-1) if self.raw.shape[-1] else self.raw.new_zeros(rows.shape[:2])
        )
        # 2, 1 or 0 for every row; NaN compares false
        self.near = (farthest <= REACH).int() + (farthest <= REACH_UNCUT).int()

    @property
    def columns(self) -> tuple[Tensor, Tensor, Tensor]:
        """With the feature first, so that a tile reads a feature of its rows in one piece."""
        return self.raw.mT.contiguous(), self.powers.mT.contiguous(), self.near


def _walk(gradient: Tensor, mine: _Side, other: _Side, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of one side, and parts of that of v; `gradient` is (N, other, mine)."""
    items, rows, width = mine.raw.shape
    walked = other.raw.shape[1]
    gradient = gradient.contiguous()
    out = torch.empty_like(mine.raw)
    tile = min(OWN, triton.next_power_of_2(max(1, rows)))
    features = min(FEATURES, triton.next_power_of_2(max(1, width)))
    blocks = triton.cdiv(rows, tile)
    parts = mine.raw.new_zeros(items, blocks, width)
    grid = (items * blocks * triton.cdiv(width, features),)
    if grid[0]:
        gradient_kernel[grid](
            mine.raw, mine.powers, mine.near, other.raw, other.powers, other.near, vectors, gradient,
            out, parts, rows, walked, width, vectors.shape[0], tile, features, _COMPILED,
        )  # fmt: skip
    return out, parts


@triton.jit
def reciprocal(x, compiled: tl.constexpr):
    """1 / x to a unit of rounding, in one instruction."""
    if compiled:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    return 1.0 / x


@triton.jit
def add_two(  # noqa: D103
    sums, total, v, a, b, rows, keys, a_here, b_here, cut: tl.constexpr, compiled: tl.constexpr
):  # fmt: skip
    v0, v1 = tl.load(v), tl.load(v + 1)
    a0, a1 = tl.load(a, a_here, 1.0), tl.load(a + rows, a_here, 1.0)
    b0, b1 = tl.load(b, b_here, 1.0), tl.load(b + keys, b_here, 1.0)
    x = tl.fma(a0[:, None], b0[None, :], 1.0)
    y = tl.fma(a1[:, None], b1[None, :], 1.0)
    if cut:
        x, y = tl.minimum(x, CEILING), tl.minimum(y, CEILING)
    sums = tl.fma(tl.fma(v0, y, v1 * x), reciprocal(x * y, compiled), sums)
    return sums, total + (v0 + v1)


@triton.jit
def score_kernel(  # noqa: D103
    raw_a, power_a, near_a, raw_b, power_b, near_b, vectors, out,
    rows, keys, width, heads, tile_rows: tl.constexpr, tile_keys: tl.constexpr,
    compiled: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(keys, tile_keys)
    across = tl.cdiv(rows, tile_rows) * blocks
    item = (tl.program_id(0) // across).to(tl.int64)
    place = tl.program_id(0) % across
    i = (place // blocks) * tile_rows + tl.arange(0, tile_rows)
    j = (place % blocks) * tile_keys + tl.arange(0, tile_keys)
    a_here, b_here = i < rows, j < keys
    v = vectors + (item % heads) * width
    a_at, b_at = item * width * rows + i, item * width * keys + j
    near = tl.minimum(
        tl.min(tl.load(near_a + item * rows + i, a_here, 2), 0),
        tl.min(tl.load(near_b + item * keys + j, b_here, 2), 0),
    )
    total = 0.0
    sums = tl.zeros((tile_rows, tile_keys), tl.float32)
    if near == 2:
        for d in range(0, width, 2):
            sums, total = add_two(
                sums, total, v + d, power_a + a_at + d * rows, power_b + b_at + d * keys,
                rows, keys, a_here, b_here, False, compiled,
            )  # fmt: skip
    elif near == 1:
        for d in range(0, width, 2):
            sums, total = add_two(
                sums, total, v + d, power_a + a_at + d * rows, power_b + b_at + d * keys,
                rows, keys, a_here, b_here, True, compiled,
            )  # fmt: skip
    else:
        for d in range(0, width):
            v0 = tl.load(v + d)
            a0 = tl.load(raw_a + a_at + d * rows, a_here, 0.0)
            b0 = tl.load(raw_b + b_at + d * keys, b_here, 0.0)
            x = 1.0 + tl.exp(2.0 * (a0[:, None] + b0[None, :]))
            sums = tl.fma(v0, reciprocal(x, compiled), sums)
            total += v0
    here = a_here[:, None] & b_here[None, :]
    tl.store(out + item * rows * keys + i[:, None] * keys + j[None, :], total - 2.0 * sums, here)


@triton.jit
def gradient_kernel(  # noqa: D103
    raw_a, power_a, near_a, raw_b, power_b, near_b, vectors, gradient, out, parts,
    rows, walked, width, heads, tile: tl.constexpr, features: tl.constexpr,
    compiled: tl.constexpr,
):  # fmt: skip
    blocks, slices = tl.cdiv(rows, tile), tl.cdiv(width, features)
    item = (tl.program_id(0) // (blocks * slices)).to(tl.int64)
    place = tl.program_id(0) % (blocks * slices)
    block = place // slices
    i = block * tile + tl.arange(0, tile)
    d = (place % slices) * features + tl.arange(0, features)
    i_here, d_here = i < rows, d < width
    here = i_here[:, None] & d_here[None, :]
    a_at = (item * rows + i[:, None]) * width + d[None, :]
    power, raw = tl.load(power_a + a_at, here, 1.0), tl.load(raw_a + a_at, here, 0.0)
    all_near = tl.min(tl.load(near_a + item * rows + i, i_here, 2), 0)
    sums = tl.zeros((tile, features), tl.float32)
    of_v = tl.zeros((tile, features), tl.float32)
    for j in range(0, walked):
        b_at = (item * walked + j) * width + d
        g = tl.load(gradient + (item * walked + j) * rows + i, i_here, 0.0)[:, None]
        if tl.minimum(all_near, tl.load(near_b + item * walked + j)) > 0:
            b = tl.load(power_b + b_at, d_here, 1.0)[None, :]
            r = reciprocal(tl.fma(power, b, 1.0), compiled)
        else:
            b = tl.load(raw_b + b_at, d_here, 0.0)[None, :]
            r = reciprocal(1.0 + tl.exp(2.0 * (raw + b)), compiled)
            # a pair without gradient gives none, NaN included
            r = tl.where(g == 0.0, 0.5, r)
        gr = g * r
        sums += gr - gr * r
        of_v += gr - 0.5 * g
    v = tl.load(vectors + (item % heads) * width + d, d_here, 0.0)[None, :]
    tl.store(out + a_at, 4.0 * v * sums, here)
    tl.store(parts + (item * blocks + block) * width + d, tl.sum(-2.0 * of_v, 0), d_here)
