"""Attention in plain PyTorch with bounded memory: any device, any dtype, derivatives of any order.

The pairwise tensor of the additive scores, B x L x T x D numbers, is never held whole: blocks of it
are made, used and, in the backward pass, made again. (A backward pass that is itself differentiated
keeps its blocks.) Half-precision inputs are computed in float32 and rounded once.
"""

import itertools
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

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
    generator: torch.Generator | None = None,
) -> tuple[Float[Tensor, "B L Dv"], Float[Tensor, "B L T"]]:
    """The second and third move for given scores: the context and the weights (before dropout)."""
    dtype = values.dtype
    with torch.autocast(scores.device.type, enabled=False):
        scores = wide(scores)
        if bias is not None:
            scores = scores + bias
        weights = normalize(scores, masked, normalizer)
        dropped = _dropped(weights, dropout, generator)
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
        return _scores(a[:, :, None], b[:, None], v[None, None, None], workspace).to(dtype)


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

    def block(generator: torch.Generator | None, *parts: Any) -> Tensor:
        a, b, v, values, masked, bias = parts
        scores = _scores(a, b, v, workspace)
        return average(scores, values[:, 0], masked, bias, normalizer, dropout, generator)[0]

    with torch.autocast(a.device.type, enabled=False):
        a, b, v, values = wide(a), wide(b), wide(v), wide(values)
        rows = _pairs(a, workspace) // max(1, b.shape[1])
        inputs = a[:, :, None], b[:, None], v[None, None, None], values[:, None], masked, bias
        return _in_blocks(block, a.shape[:2], rows, *inputs, random=dropout > 0).to(dtype)


def wide(tensor: Tensor) -> Tensor:
    """The tensor in the dtype that is computed in: float32 for the half precisions."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _scores(a: Tensor, b: Tensor, v: Tensor, workspace: int) -> Tensor:
    """Scores of queries (B, L, 1, D) with keys (B, 1, T, D), cut along all three axes."""

    def block(_: torch.Generator | None, a: Tensor, b: Tensor, v: Tensor) -> Tensor:
        return (a + b).tanh_() @ v[0, 0, 0]

    return _in_blocks(block, (*a.shape[:2], b.shape[2]), _pairs(a, workspace), a, b, v)


def _dropped(weights: Tensor, share: float, generator: torch.Generator | None) -> Tensor:
    if share == 0:
        return weights
    kept = torch.empty_like(weights).bernoulli_(1 - share, generator=generator)
    return weights * kept.div_(1 - share)


def _pairs(a: Tensor, workspace: int) -> int:
    """How many (query, key) pairs the workspace holds."""
    return max(1, workspace // (_COPIES * a.element_size() * max(1, a.shape[-1])))


Place = tuple[slice, ...]


def _places(sizes: tuple[int, ...], room: int) -> list[Place]:
    """Blocks of at most `room` elements (and at least one) that cover `sizes`, last axes longest."""
    axes: list[list[slice]] = []
    for size in reversed(sizes):
        step = max(1, min(size, room))
        axes.insert(0, [slice(start, start + step) for start in range(0, size, step)])
        room //= max(1, size)
    return list(itertools.product(*axes))


def _part(tensor: Any, place: Place) -> Any:
    """The block of a tensor (or of None) whose axes have the full size, or 1 and serve every block."""
    if tensor is None:
        return None
    cuts = zip(place, tensor.shape, strict=False)
    return tensor[tuple(slice(None) if size == 1 else cut for cut, size in cuts)]


def _in_blocks(
    compute: Callable[..., Tensor],
    sizes: tuple[int, ...],
    room: int,
    *inputs: Tensor | None,
    random: bool = False,
) -> Tensor:
    """Put together `compute(generator, *parts)` over blocks of at most `room` elements of `sizes`.

    `sizes` are the first axes of the output and, where they are not 1, of every input.
    """
    places = _places(sizes, room)
    if len(places) <= 1:
        return compute(None, *inputs)
    seed = int(torch.randint(2**62, ())) if random else None
    return _Remade.apply(compute, sizes, places, seed, *inputs)  # pyright: ignore


class _Remade(torch.autograd.Function):
    """All blocks as one node of the graph: made without a graph, and again for the gradients.

    One node, one output and one gradient per input, all allocated once: whatever small thing stays
    between two blocks keeps the memory of the first from serving the second.
    """

    @staticmethod
    def forward(
        ctx: Any,
        compute: Callable[..., Tensor],
        sizes: tuple[int, ...],
        places: list[Place],
        seed: int | None,
        *inputs: Tensor | None,
    ) -> Tensor:
        ctx.compute, ctx.places, ctx.seed = compute, places, seed
        ctx.save_for_backward(*inputs)
        generator = _generator(seed, inputs)
        output = None
        for place in places:
            block = compute(generator, *(_part(given, place) for given in inputs))
            if output is None:
                output = block.new_empty(*sizes, *block.shape[len(sizes) :])
            output[place] = block
        assert output is not None
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        inputs: tuple[Tensor, ...] = ctx.saved_tensors
        needed = [i for i, need in enumerate(ctx.needs_input_grad[-len(inputs) :]) if need]
        totals = {i: torch.zeros_like(inputs[i]) for i in needed}
        generator = _generator(ctx.seed, inputs)
        again = torch.is_grad_enabled()
        with torch.autocast(gradients[0].device.type, enabled=False):
            for place in ctx.places:
                parts = [_part(given, place) for given in inputs]
                if not again:
                    for i in needed:
                        parts[i] = parts[i].detach().requires_grad_()
                with torch.enable_grad():
                    block = ctx.compute(generator, *parts)
                wanted = [parts[i] for i in needed]
                gradient = gradients[0][place]
                shares = torch.autograd.grad(block, wanted, gradient, create_graph=again)
                for i, share in zip(needed, shares, strict=True):
                    _part(totals[i], place).add_(share)
        return (None,) * 4 + tuple(totals.get(i) for i in range(len(inputs)))


def _generator(seed: int | None, inputs: tuple[Any, ...]) -> torch.Generator | None:
    """The same draws, in the forward pass and in every backward pass."""
    return None if seed is None else torch.Generator(inputs[0].device).manual_seed(seed)
