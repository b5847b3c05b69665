"""Padding masks, attention masks and lengths: checked and converted to the same form.

In a boolean mask, True means padding, or a key that may not be attended to. Names and polarity are
those of `torch.nn.MultiheadAttention`; `scaled_dot_product_attention` has the opposite polarity.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.errors import ShapeError
from regard.kernels.weighted_sum import in_vmap
from regard.scores import shape


class Masks(NamedTuple):
    """The masks of one call."""

    masked: Tensor | None
    """bool, (B or 1, L or 1, T) or, with a head axis, (B or 1, H or 1, L or 1, T)."""
    bias: Tensor | None
    """float, with the same axes as `masked`: added to the scores; never -inf."""
    masked_keys: Tensor | None
    """bool, (B, T): the keys that no query may attend to."""
    padding: Tensor | None
    """bool, (B, T): the padded positions; the same tensor as `masked_keys` without an `attn_mask`."""
    per_query: bool
    """Whether there is an `attn_mask`, which may mask a key for only some of the queries."""


def resolve_masks(
    key: Float[Tensor, "B T D"],
    length: int,
    key_padding_mask: Tensor | None,
    attn_mask: Tensor | None,
    key_lengths: Tensor | None,
    heads: int | None = None,
) -> Masks:
    """Check the masks for a call with `length` queries and combine them.

    Raises:
        ShapeError: the shapes or dtypes are incompatible; the message states them.
    """
    masks = dict(key_padding_mask=key_padding_mask, attn_mask=attn_mask, key_lengths=key_lengths)
    for name, mask in masks.items():
        is_tensor = isinstance(mask, Tensor)  # pyright: ignore[reportUnnecessaryIsInstance]
        if not (mask is None or is_tensor):
            raise ShapeError(f"expected {name} to be a tensor, got {type(mask).__name__}")
        if mask is not None and mask.device != key.device:
            raise ShapeError(
                f"expected {name} on the device of key, {key.device}, got {mask.device}"
            )
    padding, padding_bias = _split_padding(key, key_padding_mask, key_lengths, heads)
    masked, bias = _split_mask(attn_mask, key, length, heads)
    if padding_bias is not None:
        bias = padding_bias if bias is None else bias + padding_bias
        bias = bias.clamp(min=torch.finfo(bias.dtype).min)  # the sum of two biases may overflow
    masked_keys = padding
    if masked is not None:
        everywhere = masked.flatten(1, -2).all(dim=1).expand(key.shape[0], -1)
        masked_keys = everywhere if padding is None else padding | everywhere
    if padding is not None:
        rows = padding[:, None] if heads is None else padding[:, None, None]
        masked = rows if masked is None else masked | rows
    return Masks(masked, bias, masked_keys, padding, attn_mask is not None)


def padding_from_lengths(lengths: Int[Tensor, " B"], width: int) -> Bool[Tensor, "B T"]:
    """Return a padding mask of `width` positions: True at positions >= the length."""
    return torch.arange(width, device=lengths.device) >= lengths[:, None]


def zero_rows(rows: Float[Tensor, "B T D"], mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
    """Return rows with zeros where the mask is True."""
    return rows.masked_fill(mask[..., None], 0)


def nonfinite_rows(*tensors: Float[Tensor, "B T _"]) -> Bool[Tensor, "B T"]:
    """Return a mask that is True where a row of any of the tensors contains NaN or an infinity."""
    # ten times as fast as `isfinite` on every element, which needs temporary tensors
    rows = [tensor.detach() for tensor in tensors if tensor.shape[-1]]
    extremes = [extreme for row in rows for extreme in (row.amax(-1), row.amin(-1))]
    if not extremes:  # rows of width 0
        return torch.zeros_like(tensors[0][..., :1], dtype=torch.bool).any(-1)
    # autocast does not support numbers in the other half precision
    return ~torch.stack([extreme.isfinite() for extreme in extremes]).all(0)


def _split_padding(
    key: Tensor, key_padding_mask: Tensor | None, key_lengths: Tensor | None, heads: int | None
) -> tuple[Tensor | None, Tensor | None]:
    """Return the padding mask (B, T) and, for a float mask, the bias (B, 1, 1, T) of the scores."""
    batch, width = key.shape[:2]
    if key_padding_mask is not None and key_lengths is not None:
        raise ShapeError("key_padding_mask and key_lengths are alternatives: pass only one of them")
    if key_padding_mask is not None:
        is_bool = key_padding_mask.dtype == torch.bool
        is_float = key_padding_mask.is_floating_point() and heads is not None
        if not (is_bool or is_float) or key_padding_mask.shape != (batch, width):
            dtypes = "bool" if heads is None else "bool or float"
            raise ShapeError(
                f"expected key_padding_mask of dtype {dtypes} and shape (B, T) = {(batch, width)}, "
                f"True = padding, got {key_padding_mask.dtype} {shape(key_padding_mask)}"
            )
        if is_bool:
            return key_padding_mask, None
        padding = key_padding_mask == -torch.inf
        return padding, key_padding_mask.masked_fill(padding, 0)[:, None, None]
    if key_lengths is None:
        return None, None
    dtype = key_lengths.dtype
    is_int = not (dtype == torch.bool or dtype.is_floating_point or dtype.is_complex)
    if key_lengths.shape != (batch,) or not is_int:
        raise ShapeError(
            f"expected key_lengths of an integer dtype and shape (B,) = {(batch,)}, got {dtype} "
            f"{shape(key_lengths)}"
        )
    if _has_values(key_lengths):
        for length in key_lengths.tolist():
            if not 0 <= length <= width:
                raise ShapeError(f"key_lengths must lie in [0, T] = [0, {width}], got {length}")
    # positions cannot be compared with lengths of uint16, uint32 or uint64
    return padding_from_lengths(key_lengths.long(), width), None


def _has_values(tensor: Tensor) -> bool:
    """Return whether a branch may depend on the values.

    It may not in a transform, nor on a GPU, where reading the values would wait for the device.
    """
    is_eager = not (torch.compiler.is_compiling() or in_vmap())
    return is_eager and type(tensor) is Tensor and tensor.device.type == "cpu"


def _split_mask(
    attn_mask: Tensor | None, key: Tensor, length: int, heads: int | None
) -> tuple[Tensor | None, Tensor | None]:
    """Split a mask into a boolean mask and a bias added to the scores, both with all axes."""
    if attn_mask is None:
        return None, None
    check_mask(attn_mask, key, length, heads)
    mask = attn_mask[None] if attn_mask.dim() == 2 else attn_mask
    if heads is not None and mask.dim() == 3:
        per_head = mask.shape[0] not in (1, key.shape[0])
        mask = mask.unflatten(0, (key.shape[0], heads)) if per_head else mask[:, None]
    if mask.dtype == torch.bool:
        return mask, None
    masked = mask == -torch.inf
    # `masked` replaces -inf, which would give NaN when added to a score of +inf
    return masked, mask.masked_fill(masked, 0)


def check_mask(attn_mask: Tensor, key: Tensor, length: int, heads: int | None) -> None:
    """Raise a ShapeError unless the mask fits `length` queries and the keys."""
    batch, width = key.shape[:2]
    shapes: dict[str, tuple[int, ...]]
    shapes = {"(L, T)": (length, width), "(B, L, T)": (batch, length, width)}
    if heads is not None:
        shapes["(B H, L, T)"] = (batch * heads, length, width)
        shapes["(B, H, L, T)"] = (batch, heads, length, width)
    if attn_mask.shape not in shapes.values():
        axes = " or ".join(f"{name} = {size}" for name, size in shapes.items())
        raise ShapeError(f"expected attn_mask of shape {axes}, got {shape(attn_mask)}")
    if attn_mask.dtype != torch.bool and not attn_mask.is_floating_point():
        raise ShapeError(
            "expected attn_mask of dtype bool (True = may not attend) or float, got "
            f"{attn_mask.dtype}"
        )
