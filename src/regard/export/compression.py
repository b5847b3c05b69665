"""Weights of an ONNX graph in 8-bit integers or half precision.

A stored weight is converted by operators of the graph, `Cast` and `Mul`, which ONNX Runtime computes once,
when it loads the model: the file is small, and the computation is that of float32.
"""

from typing import TYPE_CHECKING

import numpy as np
import torch

from regard.quantization import WeightType, dequantize, quantize

if TYPE_CHECKING:
    import onnx


def compress_weights(model: "onnx.ModelProto", dtype: WeightType) -> int:
    """Store the weights of a graph in `dtype`, in place, and return the number of those that are converted.

    The weights have been rounded by `quantization.round_weights`, so that this changes no value; a
    tensor that `dtype` cannot hold exactly, as its rows were combined, stays as it is.
    """
    from onnx import helper, numpy_helper

    if dtype == "float32":
        return 0
    nodes: list[onnx.NodeProto] = []
    converted = 0
    for tensor in [*model.graph.initializer]:
        weight = numpy_helper.to_array(tensor)
        if weight.dtype != np.float32 or weight.ndim < 2:
            continue
        stored = _in_half_precision(weight) if dtype == "float16" else _in_integers(weight)
        if stored is None:
            continue
        model.graph.initializer.remove(tensor)
        names = [f"{tensor.name}.{suffix}" for suffix in ("stored", "scale")[: len(stored)]]
        for name, array in zip(names, stored, strict=True):
            model.graph.initializer.append(numpy_helper.from_array(array, name))
        converted += 1
        result = f"{tensor.name}.float" if len(stored) > 1 else tensor.name
        nodes.append(helper.make_node("Cast", names[:1], [result], to=1))
        if len(stored) > 1:
            nodes.append(helper.make_node("Mul", [result, names[1]], [tensor.name]))
    # every node comes after those that it depends on
    nodes += model.graph.node
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return converted


def _in_half_precision(weight: np.ndarray) -> list[np.ndarray] | None:
    stored = weight.astype(np.float16)
    return [stored] if np.array_equal(stored.astype(np.float32), weight) else None


def _in_integers(weight: np.ndarray) -> list[np.ndarray] | None:
    """Return integers and their scales; None if no axis has rows that integers hold exactly."""
    for axis in range(weight.ndim):
        rows = torch.tensor(np.moveaxis(weight, axis, 0))
        quantized = quantize(rows)
        if torch.equal(dequantize(quantized), rows):
            values = np.moveaxis(quantized.values.numpy(), 0, axis)
            shape = [-1 if index == axis else 1 for index in range(weight.ndim)]
            return [np.ascontiguousarray(values), quantized.scale.numpy().reshape(shape)]
    return None
