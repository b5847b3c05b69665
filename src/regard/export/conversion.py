"""Conversion of a model to ONNX: a graph of the encoder and a graph of one decoder step."""

import contextlib
import importlib.util
import logging
import warnings
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from regard.errors import ExtraError
from regard.export.graphs import EncoderGraph, StepGraph, Tensors, exportable
from regard.kernels.additive.autograd import log_sum_exp
from regard.kernels.weighted_sum import weighted_sum
from regard.models import Seq2Seq
from regard.text import BOS, SPECIAL_TOKENS

if TYPE_CHECKING:
    import onnx

OPSET = 20
"""Version of ONNX's operators."""

_SIZES = [{"N": 2, "T": 5, "L": 2}, {"N": 3, "T": 7, "L": 4}]
"""Hypotheses, source tokens and target tokens in two examples: an axis is dynamic if its sizes in them
differ. They avoid 0 and 1, for which PyTorch specialises a program."""


class OnnxGraphs(NamedTuple):
    """A model as two ONNX graphs; the axes B, N and T, and the number of tokens read, are dynamic."""

    encoder: "onnx.ModelProto"
    """Inputs `source` (B, T) and `lengths` (B,); outputs `memory.*` and `state.*`."""
    decoder: "onnx.ModelProto"
    """Inputs as in `StepGraph`, except those that the model does not use; outputs `log_probs` (N, V),
    `weights` (N, layers, heads, T) and `next.*`."""


class _Example(NamedTuple):
    """Inputs of both graphs."""

    source: Tensor
    lengths: Tensor
    step: dict[str, Any]


def convert(model: Seq2Seq) -> OnnxGraphs:
    """Return the ONNX graphs of a model.

    Raises:
        ExtraError: a package of the extra `onnx` is not installed.
    """
    require_packages()
    model = exportable(model)
    with torch.no_grad():
        examples = [_example(model, **sizes) for sizes in _SIZES]
        decoder = _to_onnx(StepGraph(model), [example.step for example in examples])
        _remove_unused_inputs(decoder)
        used = [node.name for node in decoder.graph.input]
        inputs = [{"source": each.source, "lengths": each.lengths} for each in examples]
        encoder = _to_onnx(EncoderGraph(model, used), inputs)
    return OnnxGraphs(encoder, decoder)


def require_packages() -> None:
    """Raise an ExtraError unless the packages of the extra `onnx` are installed."""
    for name in ("onnx", "onnxruntime", "onnxscript"):
        if importlib.util.find_spec(name) is None:
            raise ExtraError(f"export needs the package {name}: pip install 'regard[onnx]'")


def _example(model: Seq2Seq, N: int, T: int, L: int) -> _Example:
    """Return inputs of N sources of T tokens, with a state after L steps."""
    decoder = model.decoder
    source = torch.full((N, T), len(SPECIAL_TOKENS) - 1)
    lengths = torch.arange(T - N + 1, T + 1)
    values = EncoderGraph(model)(source, lengths)
    inputs: dict[str, Any] = {
        "token": torch.full((N,), BOS),
        "step": torch.tensor(0),
        "pinned": torch.full((N, T), torch.nan),
        "ablated": torch.zeros(decoder.attention_layers, decoder.attention_heads).bool(),
        "copies": torch.arange(T).expand(N, T) + decoder.vocabulary,
        "values": values,
    }
    for _ in range(L):
        inputs["values"] = _following(values, StepGraph(model)(**inputs))
    return _Example(source, lengths, inputs)


def _following(values: Tensors, outputs: Tensors) -> Tensors:
    """Return the values for the next step."""
    new = {name.replace("next", "state", 1): rows for name, rows in outputs.items()}
    return {name: new.get(name, rows) for name, rows in values.items()}


def _to_onnx(graph: nn.Module, examples: Sequence[dict[str, Any]]) -> "onnx.ModelProto":
    """Return a module as an ONNX graph whose inputs have the names of its arguments."""
    names = _names(examples[0])
    shapes = pytree.tree_map(_dynamic_axes, *examples)
    inputs = examples[-1]
    with _quiet():
        program = torch.export.export(graph, (), inputs, dynamic_shapes=shapes, strict=False)
        if not _operators(program).isdisjoint(DECOMPOSITIONS):
            program = program.run_decompositions(DECOMPOSITIONS)  # traces the program again
        exported = torch.onnx.export(
            program,
            dynamo=True,
            verbose=False,
            opset_version=OPSET,
            input_names=names,
            output_names=[*graph(**inputs)],
        )
    assert exported is not None
    return exported.model_proto


def _operators(program: ExportedProgram) -> set[Any]:
    """Return the operators that a program calls, in nested graphs too."""
    graphs = (
        part.graph for part in program.graph_module.modules() if isinstance(part, GraphModule)
    )
    return {node.target for graph in graphs for node in graph.nodes}


def _names(example: dict[str, Any]) -> list[str]:
    """Return the names of all tensors, in order."""
    nested = (value if isinstance(value, dict) else [name] for name, value in example.items())
    return [name for names in nested for name in names]


def _dynamic_axes(first: Tensor, second: Tensor) -> dict[int, Any]:
    """Return the axes whose sizes differ, by name."""
    dimensions = {(_SIZES[0][name], _SIZES[1][name]): Dim(name) for name in _SIZES[0]}
    pairs = enumerate(zip(first.shape, second.shape, strict=True))
    return {axis: dimensions[sizes] for axis, sizes in pairs if sizes[0] != sizes[1]}


def _additive_scores(
    a: Tensor, b: Tensor, v: Tensor, prepared: Tensor | None, workspace: int
) -> Tensor:
    """Return e_ti = v . tanh(a_t + b_i), as the operator does, in PyTorch's own operators."""
    tanh = torch.tanh(a[:, :, None] + b[:, None])
    if len(v) == 1:
        return tanh @ v[0]
    return (tanh.unflatten(0, (-1, len(v))) @ v[:, None, :, None])[..., 0].flatten(0, 1)


def _additive_attention(
    a: Tensor, b: Tensor, v: Tensor, values: Tensor, masked: Tensor | None, bias: Tensor | None,
    prepared: Tensor | None, seed: Tensor | None, normalizer: str, *others: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the context and the log-sum-exp of the operator, in PyTorch's own operators."""
    pairs = _additive_scores(a.flatten(0, 1), b.flatten(0, 1), v, None, 0)
    pairs = pairs.unflatten(0, a.shape[:2])
    context = weighted_sum(pairs, values, masked, bias, normalizer)[0]
    return context, log_sum_exp(pairs, masked, bias)


def _logcumsumexp(values: Tensor, dim: int) -> Tensor:
    """Return the logarithms of the cumulative sums of exponentials along the last axis."""
    assert dim in (-1, values.dim() - 1)
    positions = torch.arange(values.shape[-1], device=values.device)
    rows = values[..., None, :].expand(*values.shape, -1)
    return rows.masked_fill(positions > positions[:, None], -torch.inf).logsumexp(-1)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.logcumsumexp.default: _logcumsumexp,
    torch.ops.regard.additive_scores.default: _additive_scores,
    torch.ops.regard.additive_attention.default: _additive_attention,
}
"""Operators of this package and of PyTorch that ONNX lacks, in other operators.

They are an argument of `torch.export.ExportedProgram.run_decompositions`.
"""


def _remove_unused_inputs(model: "onnx.ModelProto") -> None:
    used = {name for node in model.graph.node for name in node.input}
    kept = [value for value in model.graph.input if value.name in used]
    del model.graph.input[:]
    model.graph.input.extend(kept)


@contextlib.contextmanager
def _quiet() -> Generator[None]:
    """Suppress the exporter's remarks about packages and operators that are not needed here."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
