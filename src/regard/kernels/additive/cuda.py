# pyright: basic, reportCallIssue=false, reportArgumentType=false, reportGeneralTypeIssues=false
# (Triton reads the signatures of kernels itself; they have no type annotations)
"""CUDA backend: Triton kernels for the additive scores and their gradients.

    e_ti = v . tanh(a_t + b_i),    tanh(a + b) = 1 - 2 r,    r = 1 / (1 + e^{2a} e^{2b})

The exponentials are computed once per row. In the scores, two features share a reciprocal:
v / x + w / y = (v y + w x) / (x y). In the gradients, a program owns a tile of queries or keys by
features and loops over the other side, so nothing is summed across programs and results are
reproducible. Where its rows, or the other side, contain NaN, an infinity or a number out of the range of
the exponentials, e^{2(a+b)} is computed for every pair, which is exact at any magnitude; the host reads
nothing back.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional
from triton import knobs
from triton.runtime import driver

MAX_EXPONENT = 43.5
"""Largest |x| at which e^{2x} is a normal float32, and no product of two of them is 0 x infinity."""

MAX_UNCLAMPED = 10.0
"""Largest |x| at which the product of two terms 1 + e^{2(a+b)} is finite without the clamp."""

CEILING = tl.constexpr(1e18)
"""Upper bound of 1 + e^{2(a+b)}, so that the product of two stays finite; tanh is 1 long before."""

WARPS = 1
"""Number of warps of a program: exchanging what they read would make several wait for each other."""

TILE = 512
"""Maximum number of elements in a tile, 16 for each thread."""

TILE_KEYS, TILE_FEATURES = 64, 32
"""Maximum number of keys in a tile of scores, and of features in a tile of gradients."""

# the interpreter does not support inline assembly
_COMPILED = not knobs.runtime.interpret


def check_driver() -> None:
    """Raise an exception if kernels cannot be compiled and launched: Triton needs a C compiler and Python's headers."""
    if torch.version.hip is not None:
        raise RuntimeError("the kernels contain instructions of NVIDIA GPUs")
    driver.active.get_current_target()  # the first access compiles the driver


def prepare_keys(b: Tensor) -> Tensor | None:
    """Return None: the exponentials of the keys are computed in every call."""
    return None


def scores(a: Tensor, b: Tensor, v: Tensor, prepared: Tensor | None = None) -> Tensor | None:
    """Return the scores for a (N, L, D), b (N, T, D) and v (H, D); item n uses row n mod H of v.

    Return None for dtypes other than float32, which Triton's reciprocal does not support, and for items of 2^31
    elements, because offsets within an item have 32 bits.
    """
    items, rows, width = a.shape
    keys = b.shape[1]
    if a.dtype != torch.float32 or max(rows, keys) * (width + 1) >= 1 << 31:
        return None
    out = a.new_empty(items, rows, keys)
    if not out.numel():
        return out
    if width % 2:
        # two features share a reciprocal; a feature with v = 0 adds nothing
        a, b, v = (functional.pad(tensor, (0, 1)) for tensor in (a, b, v))
    operands = *_operand(a, features_first=True), *_operand(b, features_first=True)
    tile = _tile(rows, keys, TILE_KEYS)
    grid = (items * triton.cdiv(rows, tile[0]) * triton.cdiv(keys, tile[1]),)
    with torch.cuda.device_of(out):  # Triton launches on the current device
        score_kernel[grid](
            *operands, v.contiguous(), out,
            rows, keys, width + width % 2, v.shape[0], *tile, _COMPILED, num_warps=WARPS,
        )  # fmt: skip
    return out


def gradients(
    grad_scores: Tensor, a: Tensor, b: Tensor, v: Tensor
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return the gradients of a (N, L, D), b (N, T, D) and v (H, D); None for float64."""
    if a.dtype != torch.float32:
        return None
    queries, sources, v = _operand(a), _operand(b), v.contiguous()
    heads, width = v.shape
    grad_a, _ = _gradient(grad_scores.mT, queries, sources, v, False)
    grad_b, parts = _gradient(grad_scores, sources, queries, v, True)
    grad_v = parts.view(a.shape[0] // heads, heads, parts.shape[1], width).sum((0, 2))
    return grad_a, grad_b, grad_v


def _tile(rows: int, columns: int, max_columns: int) -> tuple[int, int]:
    """Return the numbers of rows and columns of a tile, powers of 2."""
    rows, columns = (triton.next_power_of_2(max(1, size)) for size in (rows, columns))
    columns = min(max_columns, columns)
    return min(TILE // columns, rows), columns


def _operand(rows: Tensor, features_first: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries or keys as the kernels read them: x, e^{2x} and the range class of every row.

    With the features first, a tile reads one feature of its rows contiguously.
    """
    rows = rows.contiguous()
    size = rows.abs()
    exponentials = torch.exp(2 * rows.clamp(-MAX_EXPONENT, MAX_EXPONENT))
    # class of every row: 2 = no clamp, 1 = clamp, 0 = out of range; comparisons with NaN are false
    ranges = (size <= MAX_EXPONENT).all(-1).int() + (size <= MAX_UNCLAMPED).all(-1).int()
    if features_first:
        rows, exponentials = rows.mT.contiguous(), exponentials.mT.contiguous()
    return rows, exponentials, ranges


def _gradient(
    grad_scores: Tensor,
    operand: tuple[Tensor, ...],
    other: tuple[Tensor, ...],
    v: Tensor,
    with_grad_v: bool,
) -> tuple[Tensor, Tensor]:
    """Return the gradient of an operand and, if requested, partial sums of the gradient of v.

    `grad_scores` is (N, rows of the other operand, rows of this one).
    """
    items, rows, width = operand[0].shape
    other_rows = other[0].shape[1]
    out = torch.empty_like(operand[0])
    tile, features = _tile(rows, width, TILE_FEATURES)
    blocks = triton.cdiv(rows, tile)
    parts = operand[0].new_zeros(items, blocks, width) if with_grad_v else out
    grid = (items * blocks * triton.cdiv(width, features),)
    if grid[0]:
        in_range = (other[2] > 0).all(1).int()
        with torch.cuda.device_of(out):
            gradient_kernel[grid](
                *operand, *other[:2], in_range, v, grad_scores.contiguous(), out, parts,
                rows, other_rows, width, v.shape[0], tile, features, with_grad_v, _COMPILED,
                num_warps=WARPS,
            )  # fmt: skip
    return out, parts


@triton.jit
def reciprocal(x, compiled: tl.constexpr):
    """Return 1 / x to one unit of rounding, in one instruction."""
    if compiled:
        return tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    return 1.0 / x


@triton.jit
def add_two_features(  # noqa: D103
    sums, total, v, a, b, rows, keys, a_mask, b_mask, clamp: tl.constexpr, compiled: tl.constexpr
):  # fmt: skip
    v0, v1 = tl.load(v), tl.load(v + 1)
    a0, a1 = tl.load(a, a_mask, 1.0), tl.load(a + rows, a_mask, 1.0)
    b0, b1 = tl.load(b, b_mask, 1.0), tl.load(b + keys, b_mask, 1.0)
    x = tl.fma(a0[:, None], b0[None, :], 1.0)
    y = tl.fma(a1[:, None], b1[None, :], 1.0)
    if clamp:
        x, y = tl.minimum(x, CEILING), tl.minimum(y, CEILING)
    sums = tl.fma(tl.fma(v0, y, v1 * x), reciprocal(x * y, compiled), sums)
    return sums, total + (v0 + v1)


@triton.jit
def score_kernel(  # noqa: D103
    raw_a, exp_a, range_a, raw_b, exp_b, range_b, vectors, out,
    rows, keys, width, heads, tile_rows: tl.constexpr, tile_keys: tl.constexpr,
    compiled: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(keys, tile_keys)
    tiles = tl.cdiv(rows, tile_rows) * blocks
    item = (tl.program_id(0) // tiles).to(tl.int64)
    position = tl.program_id(0) % tiles
    i = (position // blocks) * tile_rows + tl.arange(0, tile_rows)
    j = (position % blocks) * tile_keys + tl.arange(0, tile_keys)
    a_mask, b_mask = i < rows, j < keys
    v = vectors + (item % heads) * width
    a_offset, b_offset = item * width * rows + i, item * width * keys + j
    range_class = tl.minimum(
        tl.min(tl.load(range_a + item * rows + i, a_mask, 2), 0),
        tl.min(tl.load(range_b + item * keys + j, b_mask, 2), 0),
    )
    total = 0.0
    sums = tl.zeros((tile_rows, tile_keys), tl.float32)
    for clamp in tl.static_range(2):
        if range_class == 2 - clamp:
            for d in range(0, width, 2):
                sums, total = add_two_features(
                    sums, total, v + d, exp_a + a_offset + d * rows, exp_b + b_offset + d * keys,
                    rows, keys, a_mask, b_mask, clamp, compiled,
                )  # fmt: skip
    if range_class == 0:
        for d in range(0, width):
            v0 = tl.load(v + d)
            a0 = tl.load(raw_a + a_offset + d * rows, a_mask, 0.0)
            b0 = tl.load(raw_b + b_offset + d * keys, b_mask, 0.0)
            x = 1.0 + tl.exp(2.0 * (a0[:, None] + b0[None, :]))
            sums = tl.fma(v0, reciprocal(x, compiled), sums)
            total += v0
    mask = a_mask[:, None] & b_mask[None, :]
    row = item * rows + i.to(tl.int64)  # L x T may exceed 2^31
    tl.store(out + row[:, None] * keys + j[None, :], total - 2.0 * sums, mask)


@triton.jit
def add_pair(sums, grad_v, g, r, with_grad_v: tl.constexpr):  # noqa: D103
    gr = g * r
    if with_grad_v:
        grad_v += gr
    return sums + (gr - gr * r), grad_v


@triton.jit
def gradient_kernel(  # noqa: D103
    raw_a, exp_a, range_a, raw_b, exp_b, in_range_b, vectors, grad_scores, out, parts,
    rows, other_rows, width, heads, tile: tl.constexpr, features: tl.constexpr,
    with_grad_v: tl.constexpr, compiled: tl.constexpr,
):  # fmt: skip
    blocks, slices = tl.cdiv(rows, tile), tl.cdiv(width, features)
    item = (tl.program_id(0) // (blocks * slices)).to(tl.int64)
    position = tl.program_id(0) % (blocks * slices)
    block = position // slices
    i = block * tile + tl.arange(0, tile)
    d = (position % slices) * features + tl.arange(0, features)
    i_mask, d_mask = i < rows, d < width
    mask = i_mask[:, None] & d_mask[None, :]
    a_offset = (item * rows + i[:, None]) * width + d[None, :]
    b_offset, g_offset = item * other_rows * width + d, item * other_rows * rows + i
    range_class = tl.min(tl.load(range_a + item * rows + i, i_mask, 2), 0)
    sums = tl.zeros((tile, features), tl.float32)
    grad_v = tl.zeros((tile, features), tl.float32)
    total = tl.zeros((tile,), tl.float32)
    if tl.minimum(range_class, tl.load(in_range_b + item)) > 0:
        exp_i = tl.load(exp_a + a_offset, mask, 1.0)
        for _ in range(0, other_rows):
            g = tl.load(grad_scores + g_offset, i_mask, 0.0)
            b = tl.load(exp_b + b_offset, d_mask, 1.0)
            r = reciprocal(tl.fma(exp_i, b[None, :], 1.0), compiled)
            sums, grad_v = add_pair(sums, grad_v, g[:, None], r, with_grad_v)
            total += g
            b_offset += width
            g_offset += rows
    else:
        raw = tl.load(raw_a + a_offset, mask, 0.0)
        for _ in range(0, other_rows):
            g = tl.load(grad_scores + g_offset, i_mask, 0.0)
            b = tl.load(raw_b + b_offset, d_mask, 0.0)
            r = reciprocal(1.0 + tl.exp(2.0 * (raw + b[None, :])), compiled)
            # a pair with gradient 0 contributes nothing, even if it contains NaN
            r = tl.where(g[:, None] == 0.0, 0.5, r)
            sums, grad_v = add_pair(sums, grad_v, g[:, None], r, with_grad_v)
            total += g
            b_offset += width
            g_offset += rows
    v = tl.load(vectors + (item % heads) * width + d, d_mask, 0.0)[None, :]
    tl.store(out + a_offset, 4.0 * v * sums, mask)
    if with_grad_v:
        # tanh = 1 - 2 r
        part = tl.sum(total[:, None] - 2.0 * grad_v, 0)
        tl.store(parts + (item * blocks + block) * width + d, part, d_mask)
