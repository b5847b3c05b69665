"""What a query may not see: padding, lengths and masks, read once and checked.

Masks are boolean with True = padding / may not be attended to, the names and the polarity of
`torch.nn.MultiheadAttention` (and the opposite of `scaled_dot_product_attention`).
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.errors import ShapeError
from regard.scores import shape


class Masks(NamedTuple):
    """The masks of one call."""

    masked: Tensor | None
    """bool, (B or 1, L or 1, T), with a head axis (B or 1, H or 1, L or 1, T)."""
    bias: Tensor | None
    """As `masked`: what is added to the scores; finite, or infinitely in favour."""
    hidden: Tensor | None
    """bool, (B, T): the keys that no query may see."""

    def clean(self, rows: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """The rows with zeros for those that nobody may see, before any arithmetic: 0 x NaN is NaN."""
        return rows if self.hidden is None else without(rows, self.hidden)


def read_masks(
    key: Float[Tensor, "B T D"],
    length: int,
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    key_lengths: Tensor | None,
    heads: int | None = None,
) -> Masks:
    """Check the masks of a call with `length` queries, and bring them into one form.

    Raises:
        ShapeError: shapes or dtypes do not fit; the message names them.
    """
    padding = _padding(key, key_padding_mask, key_lengths)
    masked, bias = _split_mask(attn_mask, key, length, heads)
    unseen = None
    if masked is not None:
        unseen = masked.all(dim=-2)
        unseen = (unseen if heads is None else unseen.all(dim=1)).expand(key.shape[0], -1)
    if padding is None:
        return Masks(masked, bias, unseen)
    hidden = padding if unseen is None else padding | unseen
    rows = padding[:, None] if heads is None else padding[:, None, None]
    return Masks(rows if masked is None else masked | rows, bias, hidden)


def padding_from_lengths(lengths: Int[Tensor, " B"], width: int) -> Bool[Tensor, "B T"]:
    """True at the positions from each length on, over `width` positions."""
    return torch.arange(width, device=lengths.device) >= lengths[:, None]


def without(rows: Tensor, hidden: Tensor) -> Tensor:
    """The rows with zeros for the hidden ones."""
    return rows.masked_fill(hidden[..., None], 0)


def _padding(
    key: Tensor, key_padding_mask: Tensor | None, key_lengths: Tensor | None
) -> Tensor | None:
    batch, width = key.shape[:2]
    if key_padding_mask is not None and key_lengths is not None:
        raise ShapeError("key_padding_mask and key_lengths say the same: give one of them")
    if key_padding_mask is not None:
        if key_padding_mask.dtype != torch.bool or key_padding_mask.shape != (batch, width):
            raise ShapeError(
                f"expected key_padding_mask of bool (B, T) = {(batch, width)}, True = padding, got "
                f"{key_padding_mask.dtype} {shape(key_padding_mask)}"
            )
        return key_padding_mask
    if key_lengths is None:
        return None
    dtype = key_lengths.dtype
    if key_lengths.shape != (batch,) or dtype == torch.bool or dtype.is_floating_point:
        raise ShapeError(
            f"expected key_lengths of int (B,) = {(batch,)}, got {dtype} {shape(key_lengths)}"
        )
    return padding_from_lengths(key_lengths, width)


def _split_mask(
    attn_mask: Tensor | None, key: Tensor, length: int, heads: int | None
) -> tuple[Tensor | None, Tensor | None]:
    """What is masked, and what is added to the scores; both with all axes."""
    if attn_mask is None:
        return None, None
    check_mask(attn_mask, key, length, heads)
    mask = attn_mask[None] if attn_mask.dim() == 2 else attn_mask
    mask = mask[:, None] if heads is not None and mask.dim() == 3 else mask
    if mask.dtype == torch.bool:
        return mask, None
    masked = mask == -torch.inf
    # the -inf are in `masked` now; left in the sum they would make NaN of an infinite score
    return masked, mask.masked_fill(masked, 0)


def check_mask(attn_mask: Tensor, key: Tensor, length: int, heads: int | None) -> None:
    """Raise a ShapeError unless the mask fits `length` queries and these keys."""
    batch, width = key.shape[:2]
    fitting: list[tuple[int, ...]] = [(length, width), (batch, length, width)]
    if heads is not None:
        fitting.append((batch, heads, length, width))
    if attn_mask.shape not in fitting:
        names = ("(L, T)", "(B, L, T)", "(B, H, L, T)")
        axes = " or ".join(f"{name} = {fit}" for name, fit in zip(names, fitting, strict=False))
        raise ShapeError(f"expected attn_mask {axes}, got {shape(attn_mask)}")
    if attn_mask.dtype != torch.bool and not attn_mask.is_floating_point():
        raise ShapeError(
            f"expected attn_mask of bool (True = may not attend) or float, got {attn_mask.dtype}"
        )
