"""Compatibility with `torch.nn.MultiheadAttention` and PyTorch's Transformer layers."""

from typing import Any

import torch
from torch import nn

from regard.errors import ConfigError

_PROJECTIONS = {"q": "query_proj", "k": "key_proj", "v": "value_proj"}


class NotFused:
    """Stand-in for the joint projection matrix, which `MultiHeadAttention` does not have.

    In evaluation mode, PyTorch's Transformer layers bypass the module's `forward` and pass
    `self_attn.in_proj_weight` to a fused kernel for the scaled dot product, unless a parameter
    overrides PyTorch's functions, as this object does.
    """

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Refuse every function."""
        return NotImplemented


def rename_parameters(state_dict: dict[str, Any], prefix: str) -> None:
    """Replace the projections of `torch.nn.MultiheadAttention` with those of our layer, in place."""
    for name in ("weight", "bias"):
        joint = state_dict.pop(f"{prefix}in_proj_{name}", None)
        if joint is not None:
            # split any number of rows, so that PyTorch reports the parameters of the wrong shape
            parts = torch.atleast_1d(joint).tensor_split(3)
            for projection, part in zip(_PROJECTIONS.values(), parts, strict=True):
                state_dict[f"{prefix}{projection}.{name}"] = part
    for letter, projection in _PROJECTIONS.items():
        weight = state_dict.pop(f"{prefix}{letter}_proj_weight", None)
        if weight is not None:
            state_dict[f"{prefix}{projection}.weight"] = weight


def constructor_arguments(module: nn.MultiheadAttention) -> dict[str, Any]:
    """Return the arguments that give our layer the sizes and options of PyTorch's layer.

    Raises:
        ConfigError: the module has an option that our layer lacks, expects (L, B, D), or overrides `forward`.
    """
    if getattr(type(module), "forward", None) is not nn.MultiheadAttention.forward:
        raise ConfigError(
            "from_torch expects a torch.nn.MultiheadAttention with PyTorch's own forward, got a "
            f"{type(module).__qualname__}"
        )
    if not module.batch_first:
        raise ConfigError(
            "from_torch expects a layer with batch_first=True, because the layer that it returns expects inputs of "
            "shape (B, L, D), also inside of PyTorch's Transformer layers: construct them with batch_first=True, "
            "or set batch_first = True on this layer and transpose its inputs"
        )
    refuse_extra_keys(module.bias_k is not None, module.add_zero_attn)
    weight = module.out_proj.weight
    return dict(
        embed_dim=module.embed_dim,
        num_heads=module.num_heads,
        dropout=module.dropout,
        bias="in_proj_bias" in projections(module),
        kdim=module.kdim,
        vdim=module.vdim,
        device=weight.device,
        dtype=weight.dtype,
    )


def projections(module: nn.MultiheadAttention) -> dict[str, Any]:
    """Return the projections that PyTorch's layer uses, after any pruning or parametrization."""
    names = [f"in_proj_{name}" for name in ("weight", "bias")]
    names += [f"{letter}_proj_weight" for letter in _PROJECTIONS]
    tensors = {name: getattr(module, name) for name in names}
    tensors |= {f"out_proj.{name}": getattr(module.out_proj, name) for name in ("weight", "bias")}
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def frozen_parameters(module: nn.MultiheadAttention) -> list[str]:
    """Return the names, in our layer, of the parameters that are frozen in PyTorch's layer."""
    names = projections(module)
    frozen = {
        name: parameter.detach()
        for name, parameter in module.named_parameters()
        if name in names and not parameter.requires_grad
    }
    rename_parameters(frozen, "")
    return list(frozen)


def refuse_extra_keys(add_bias_kv: bool, add_zero_attn: bool) -> None:
    """Raise a ConfigError for an option that appends a key that is not in the source."""
    for name, given in (("add_bias_kv", add_bias_kv), ("add_zero_attn", add_zero_attn)):
        if given:
            raise ConfigError(
                f"MultiHeadAttention does not support {name}, which appends a key that is not in the "
                "source: leave it out, or append the key to the arguments"
            )
