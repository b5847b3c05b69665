"""Models for inference, which share a model's weights, with faster layers on CPUs."""

from typing import Any, cast

import torch
from torch import Tensor, nn

from regard.decoders import StepDecoder, fold
from regard.kernels.linear import InferenceLinear, has_hooks
from regard.kernels.recurrent.layers import InferenceGRU, InferenceLSTM
from regard.models import Seq2Seq

_FASTER: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: InferenceLinear,
    nn.LSTM: InferenceLSTM,
    nn.GRU: InferenceGRU,
}
"""Layers without gradients, by the layer that they replace."""


class InferenceModel:
    """A model and the steps of its decoder, prepared for inference.

    The weights, modules, types and hooks of the model may change: it is prepared again if necessary.
    """

    def __init__(self, model: Seq2Seq) -> None:
        self._model = model
        self._prepared = self._prepare()

    def prepared(self) -> tuple[Seq2Seq, StepDecoder]:
        """Return the model and the steps of its decoder, both without gradients."""
        structure, weights, *_ = self._prepared
        if structure != _structure(self._model) or not _equal(weights, self._model):
            self._prepared = self._prepare()
        return self._prepared[2:]

    def _prepare(self) -> tuple[list[Any], list[Tensor], Seq2Seq, StepDecoder]:
        # copied first: a change of the weights from here on is seen by the next call
        weights = [weight.detach().clone() for weight in self._model.parameters()]
        structure, model = _structure(self._model), for_inference(self._model)
        return structure, weights, model, fold(model.decoder)


def _equal(weights: list[Tensor], model: nn.Module) -> bool:
    """Return whether the weights of a model are these, of the same types.

    They are compared, because many changes leave no trace: those of fused optimizers, of NumPy, and
    through `tensor.data`.
    """
    return all(
        torch.equal(weight, other)
        for weight, other in zip(weights, model.parameters(), strict=True)
    )


def _structure(model: nn.Module) -> list[Any]:
    """Return values that change with the modules, their hooks and the types of the weights."""
    modules = [*model.modules()]
    types = [(type(module), has_hooks(module)) for module in modules]
    return [modules, types, [(weight.dtype, weight.device) for weight in model.parameters()]]


def for_inference(model: Seq2Seq) -> Seq2Seq:
    """Return a model with the outputs of `model`, without gradients; it shares weights and hooks.

    Layers with hooks are left unchanged.
    """
    return cast("Seq2Seq", _for_inference(model))


def _for_inference(module: nn.Module) -> nn.Module:
    """Return a module in evaluation mode that shares everything but its submodules with another one."""
    kind = type(module) if has_hooks(module) else _FASTER.get(type(module), type(module))
    faster = nn.Module.__new__(kind)
    children = {
        name: None if child is None else _for_inference(child)
        for name, child in module._modules.items()  # pyright: ignore[reportPrivateUsage]
    }
    vars(faster).update(vars(module), training=False, _modules=children)
    return faster
