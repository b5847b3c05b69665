"""Models for inference: the weights of a model, with its linear layers computed by oneDNN on CPUs."""

import copy

from torch import nn

from regard.kernels.linear import InferenceLinear
from regard.models import Seq2Seq


def for_inference(model: Seq2Seq) -> Seq2Seq:
    """Return a model that shares the weights of `model` and computes the same, without gradients.

    Layers with hooks stay as they are.
    """
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    faster = copy.deepcopy(model, shared)
    for module in [*faster.modules()]:
        for name, child in module.named_children():
            hooks = child._forward_hooks or child._forward_pre_hooks  # pyright: ignore[reportPrivateUsage]
            if type(child) is nn.Linear and not hooks:
                setattr(module, name, InferenceLinear(child))
    return faster.eval()
