"""Score modules given by users: checks, and how attention layers may compute them.

The fast operators compute a score from its projections, without calling `forward`.
"""

import itertools
from collections.abc import Mapping
from typing import Any, TypeGuard, TypeVar

from torch import nn

from regard.errors import ConfigError
from regard.kernels.linear import has_hooks
from regard.scores import Bilinear, Dot, InnerProduct, ScaledDot, Score

_Form = TypeVar("_Form", bound=Score)

_INNER_PRODUCTS = (Dot, ScaledDot, Bilinear, InnerProduct)
_METHODS = {"forward", "project_query", "project_key", "compare"}

_OWN_MODULES = ("regard.", "torch.nn.modules.")


def projects_separately(score: nn.Module) -> TypeGuard[Score]:
    """Return whether `compare` of projected queries and projected keys gives the scores.

    It may not if a class of another package overrides `forward`, or if hooks run before or after
    it, as those of `torch.nn.utils.prune` and `torch.nn.utils.weight_norm` do.
    """
    return isinstance(score, Score) and _is_own(score, "forward") and not has_hooks(score)


def has_form(score: nn.Module, form: type[_Form]) -> TypeGuard[_Form]:
    """Return whether the operators for a form, a base class of scores, compute the score."""
    return isinstance(score, form) and projects_separately(score) and _is_own(score, "compare")


def is_inner_product(score: nn.Module) -> TypeGuard[Score]:
    """Return whether the score is the inner product of queries and keys, each multiplied by a matrix."""
    return type(score) in _INNER_PRODUCTS and _METHODS.isdisjoint(vars(score))


def _is_own(score: nn.Module, method: str) -> bool:
    # of the class: PyTorch 2.11 cannot compile the module of a bound method
    function = getattr(type(score), method)
    return method not in vars(score) and function.__module__.startswith("regard.")


def check_no_options(score: nn.Module, *options: Mapping[str, Any]) -> None:
    """Raise a ConfigError if the score is not a module, or if options accompany a module."""
    if not isinstance(score, nn.Module):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(
            f"score must be the name of a score or a torch.nn.Module, got {score!r}; it precedes "
            "dropout, which is best passed by keyword"
        )
    for name, value in itertools.chain(*(mapping.items() for mapping in options)):
        if value is not None:
            raise ConfigError(
                f"{name} is an option for a score specified by name, got the score module "
                f"{type(score).__name__}: construct the module with this option"
            )


def calls_own_modules(decoder: nn.Module) -> bool:
    """Return whether no module has hooks and all are from this package or PyTorch, scores excepted.

    Otherwise, a kernel for the whole decoder would bypass them.
    """
    scores = {
        part
        for module in decoder.modules()
        if isinstance(module, Score)
        for part in module.modules()
    }
    return not any(
        has_hooks(module)
        or (module not in scores and not type(module).__module__.startswith(_OWN_MODULES))
        for module in decoder.modules()
    )
