"""Attention in plain PyTorch with bounded memory: any device, any dtype, any derivative.

The pairwise tensor of the additive scores, B x L x T x D numbers, is never held whole: blocks of it
are made, used and, in the backward pass, made again (`torch.utils.checkpoint`). Half-precision
inputs are computed in float32 and rounded once.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

WORKSPACE = 64 * 2**20
"""Default bound, in bytes, on what one call holds beyond inputs, outputs and their gradients."""

# live copies of a block while it is differentiated: the tanh and two gradients
_COPIES = 3


def normalize(
    scores: Float[Tensor, "B L T"], masked: Bool[Tensor, "#B #L T"] | None, normalizer: str
) -> Float[Tensor, "B L T"]:
    """Turn scores into weights; a masked key, and a row with every key masked, weighs 0.

    Scores of masked keys never matter, NaN and infinities included, forward and backward.
    """
    if masked is None:
        return scores if normalizer == "none" else torch.softmax(scores, dim=-1)
    if normalizer == "softmax":
        # a row of -inf alone would be NaN: give it equal scores, its weights are zeroed below
        empty = masked.all(-1, keepdim=True)
        scores = scores.masked_fill(masked & ~empty, -torch.inf).masked_fill(empty, 0)
        scores = torch.softmax(scores, dim=-1)
    return scores.masked_fill(masked, 0)


def average(
    scores: Float[Tensor, "B L T"],
    values: Float[Tensor, "B T Dv"],
    masked: Bool[Tensor, "#B #L T"] | None = None,
    bias: Float[Tensor, "#B L T"] | None = None,
    normalizer: str = "softmax",
    dropout: float = 0.0,
) -> tuple[Float[Tensor, "B L Dv"], Float[Tensor, "B L T"]]:
    """The second and third move for given scores: the context and the weights (before dropout)."""
    dtype = values.dtype
    with torch.autocast(scores.device.type, enabled=False):
        scores = wide(scores)
        if bias is not None:
            scores = scores + bias
        weights = normalize(scores, masked, normalizer)
        dropped = torch.nn.functional.dropout(weights, dropout, training=dropout > 0)
        return torch.bmm(dropped, wide(values).to(dropped.dtype)).to(dtype), weights.to(dtype)


def additive_scores(
    a: Float[Tensor, "B L D"],
    b: Float[Tensor, "B T D"],
    v: Float[Tensor, " D"],
    workspace: int = WORKSPACE,
) -> Float[Tensor, "B L T"]:
    """e_ti = v . tanh(a_t + b_i) in blocks of at most `workspace` bytes, forward and backward."""
    dtype = a.dtype
    with torch.autocast(a.device.type, enabled=False):
        a, b, v = wide(a), wide(b), wide(v)

        def block(items: slice, steps: slice) -> Tensor:
            return _row_scores(a[items, steps], b[items], v, workspace)

        return _in_blocks(block, a, b, workspace).to(dtype)


def additive_attention(
    a: Float[Tensor, "B L D"],
    b: Float[Tensor, "B T D"],
    v: Float[Tensor, " D"],
    values: Float[Tensor, "B T Dv"],
    masked: Bool[Tensor, "#B #L T"] | None = None,
    bias: Float[Tensor, "#B L T"] | None = None,
    normalizer: str = "softmax",
    dropout: float = 0.0,
    workspace: int = WORKSPACE,
) -> Float[Tensor, "B L Dv"]:
    """Scores, weights and average in one: the context, with no B x L x T tensor that outlives a block.

    Args:
        a: transformed queries.
        b: transformed keys.
        v: the vector that sums the features.
        values: what is averaged.
        masked: True = may not be attended to.
        bias: added to the scores.
        normalizer: `softmax` or `none`.
        dropout: share of weights dropped, the others scaled up.
        workspace: bound in bytes.
    """
    dtype = values.dtype
    with torch.autocast(a.device.type, enabled=False):
        a, b, v, values = wide(a), wide(b), wide(v), wide(values)

        def block(items: slice, steps: slice) -> Tensor:
            scores = _row_scores(a[items, steps], b[items], v, workspace)
            hidden = None if masked is None else _part(masked, items, steps)
            added = None if bias is None else _part(bias, items, steps)
            return average(scores, values[items], hidden, added, normalizer, dropout)[0]

        return _in_blocks(block, a, b, workspace, random=dropout > 0).to(dtype)


def _row_scores(a: Tensor, b: Tensor, v: Tensor, workspace: int) -> Tensor:
    """Scores of one block of rows; its keys are split too where a single row exceeds the bound."""

    def block(key: Tensor) -> Tensor:
        return (a[:, :, None] + key[:, None]).tanh_() @ v

    width = max(1, _pairs(a, workspace) // max(1, a.shape[0] * a.shape[1]))
    if width >= b.shape[1]:
        return block(b)
    return torch.cat([_remade(block, key) for key in b.split(width, dim=1)], dim=-1)


def _in_blocks(
    compute: Callable[[slice, slice], Tensor],
    a: Tensor,
    b: Tensor,
    workspace: int,
    random: bool = False,
) -> Tensor:
    """Put together `compute(items, steps)` over blocks that the workspace holds.

    Where several blocks are needed, each is made again in the backward pass instead of being kept.
    """
    batch, length, _ = a.shape
    rows = max(1, _pairs(a, workspace) // max(1, b.shape[1]))
    if rows >= batch * length:
        return compute(slice(None), slice(None))
    step = min(length, rows)
    count = max(1, rows // step)
    return torch.cat(
        [
            torch.cat(
                [
                    _remade(
                        compute,
                        slice(item, item + count),
                        slice(start, start + step),
                        random=random,
                    )
                    for start in range(0, length, step)
                ],
                dim=1,
            )
            for item in range(0, batch, count)
        ]
    )


def _pairs(a: Tensor, workspace: int) -> int:
    """How many (query, key) pairs the workspace holds."""
    return max(1, workspace // (_COPIES * a.element_size() * max(1, a.shape[-1])))


def _remade(function: Callable[..., Tensor], *inputs: object, random: bool = False) -> Tensor:
    if not torch.is_grad_enabled():
        return function(*inputs)
    return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=random)


def wide(tensor: Tensor) -> Tensor:
    """The tensor in the dtype that is computed in: float32 for the half precisions."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _part(tensor: Tensor, items: slice, steps: slice) -> Tensor:
    """The block of a (B or 1, L or 1, T) tensor."""
    tensor = tensor[items] if tensor.shape[0] > 1 else tensor
    return tensor[:, steps] if tensor.shape[1] > 1 else tensor
