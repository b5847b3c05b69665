"""Models for inference, which share a model's weights, with faster layers on CPUs."""

import atexit
import gc
import itertools
from collections.abc import Mapping
from types import NoneType
from typing import Any, cast

import torch
from torch import Tensor, nn

from regard.config import Precision
from regard.decoders import StepDecoder, fold
from regard.encoders import RecurrentEncoder
from regard.folded_encoder import FoldedRecurrentEncoder
from regard.kernels.linear import (
    InferenceLinear,
    has_bfloat16,
    has_hooks,
    rounds_to_bfloat16,
)
from regard.models import Seq2Seq

_FASTER: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: InferenceLinear,
    RecurrentEncoder: FoldedRecurrentEncoder,
}
"""Modules without gradients, by the module that they replace."""


_STRIDE = 251
"""Distance of the weights that are compared in a large tensor; a prime, so that no column is left out
unless the width is a multiple of it."""
_SMALL = 4096
"""Size up to which all weights of a tensor are compared."""


class InferenceModel:
    """A model and the steps of its decoder, prepared for inference.

    The weights, buffers, modules, settings, types and hooks of the model may change: it is prepared again if necessary.
    """

    def __init__(self, model: Seq2Seq) -> None:
        self._model = model
        self._prepared = self._prepare()

    def prepared(self) -> tuple[Seq2Seq, StepDecoder]:
        """Return the model and the steps of its decoder, both without gradients."""
        if self._prepared[0].has_changed():
            self._prepared = self._prepare()
        return self._prepared[1:]

    def _prepare(self) -> tuple["_Snapshot", Seq2Seq, StepDecoder]:
        # taken first: a change from here on is seen by the next call
        snapshot, model = _Snapshot(self._model), for_inference(self._model)
        return snapshot, model, fold(model.decoder)


class _Snapshot:
    """What a model consists of at one time.

    Fused optimizers, NumPy, `tensor.data` and inference mode change weights without a trace in
    autograd's counts. Therefore samples of the weights are compared, too. They include every weight of
    a small tensor, and some of every row of `_STRIDE` weights and of every column of as many; only
    an untraced change of less than that may be missed.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = [(module, _structure(module)) for module in model.modules()]
        self._settings = [(module, _settings(module)) for module in model.modules()]
        tensors = [*model.parameters(), *model.buffers()]
        self._weights = [(weight, _counts(weight)) for weight in tensors]
        samples = [_sample(weight.detach()) for weight, _ in self._weights]
        self._samples = [(sample, sample.clone()) for sample in samples]
        self._rounded = rounds_to_bfloat16()

    def has_changed(self) -> bool:
        """Return whether modules, their settings and hooks, weights or PyTorch's precision have changed since."""
        return (
            self._rounded != rounds_to_bfloat16()
            or any(_structure(module) != structure for module, structure in self._modules)
            or any(
                not settings.items() <= vars(module).items() for module, settings in self._settings
            )
            or any(_counts(weight) != counts for weight, counts in self._weights)
            or not all(torch.equal(sample, copied) for sample, copied in self._samples)
        )


def _structure(module: nn.Module) -> list[Any]:
    """Return values that change with the type, the hooks, the submodules and the tensors of a module."""
    own = vars(module)  # faster than the attributes
    kinds = ("_modules", "_parameters", "_buffers")
    parts = itertools.chain.from_iterable(own[kind].values() for kind in kinds)
    # the number of attributes also grows with a method that is replaced
    return [type(module), has_hooks(module), own.get("forward"), len(own), *map(id, parts)]


def _settings(module: nn.Module) -> dict[str, Any]:
    """Return the attributes of a module that are flags, numbers, strings, functions or None, except `training`."""
    own, kinds = vars(module).items(), (bool, int, float, str, NoneType)
    return {name: x for name, x in own if (type(x) in kinds or callable(x)) and name != "training"}


def _counts(weight: Tensor) -> tuple[Any, ...]:
    """Return values that change with the memory and the type of a tensor, and with counted changes."""
    version = 0 if weight.is_inference() else weight._version
    return weight.data_ptr(), weight.dtype, weight.device, version


def _sample(weight: Tensor) -> Tensor:
    """Return a view of some elements of a tensor."""
    if weight.numel() <= _SMALL or not weight.is_contiguous():
        return weight
    return weight.flatten()[::_STRIDE]


def set_precision(precision: Precision) -> None:
    """Set PyTorch's precision of products of float32 matrices on CPUs; float32 if the processor has no other."""
    setting = "bf16" if precision == "bfloat16" and has_bfloat16() else "ieee"
    torch.backends.mkldnn.matmul.fp32_precision = setting  # pyright: ignore


def skip_in_garbage_collection() -> None:
    """Exclude all present objects from garbage collection until the process ends.

    In a process that only translates, searching through PyTorch's modules takes a tenth of the time.
    """
    gc.freeze()
    atexit.register(gc.unfreeze)  # some extension modules report objects that are left at exit


def for_inference(model: Seq2Seq) -> Seq2Seq:
    """Return a model with the outputs of `model`, without gradients; it shares weights and hooks.

    Layers with hooks are left unchanged.
    """
    return cast("Seq2Seq", _in_evaluation_mode(model, _FASTER))


def in_evaluation_mode(model: Seq2Seq) -> Seq2Seq:
    """Return the model without dropout; it shares weights and hooks, and `model` keeps its mode."""
    return cast("Seq2Seq", _in_evaluation_mode(model, {}))


def _in_evaluation_mode(
    module: nn.Module, faster: Mapping[type[nn.Module], type[nn.Module]]
) -> nn.Module:
    """Return a module in evaluation mode that shares everything but its submodules with another one.

    `faster` replaces the types of modules without hooks.
    """
    kind = type(module) if has_hooks(module) else faster.get(type(module), type(module))
    view = nn.Module.__new__(kind)
    children = {
        name: None if child is None else _in_evaluation_mode(child, faster)
        for name, child in module._modules.items()  # pyright: ignore[reportPrivateUsage]
    }
    vars(view).update(vars(module), training=False, _modules=children)
    return view
