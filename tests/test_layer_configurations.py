"""Random configurations of the attention layers, compared with the float64 reference.

A configuration is a layer, a score, a normaliser, masks, a dtype, a memory layout and a transform of
PyTorch. `make test` draws 100 of them, `make soak` 10,000; the number of a failure reproduces it.

Tolerance. A result in a dtype of unit roundoff u passes if it is the exact result for other inputs,
each changed by a relative error of at most c u (backward stability; Higham 2002, section 1.5). With n
roundings on the way from an input to a result, which add up like random signs, an error is of size
sqrt(n) u; c = 4 sqrt(n), because the largest of some hundred elements lies within 4 standard
deviations. A gradient passes every operation twice, so n is twice the sum of the lengths of the sums
plus 10 elementwise operations; for half precisions, whose kernels compute in float32, twice the 10
alone. For float64, c is doubled: the reference has errors of the same size. The effect of such errors
of the inputs is measured on the reference: the largest change of four evaluations with every number
changed by +-c u. An absolute error of c u is added, relative to the largest element, to 1 and to the largest
element before the two terms of the normaliser's gradient cancel.

The gradient of sparsemax jumps where a key enters or leaves the support. It is compared unless
errors of the scores within the tolerance move a key across.
"""

import copy
import dataclasses
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from layer_reference import layer_reference
from regard.attention import NORMALIZERS, Attention, MultiHeadAttention, SelfAttention
from regard.positions import RotaryPositions
from regard.score_registry import SCORES

pytestmark = [
    # PyTorch's own import of its rules for forward mode, and its tracing of autograd functions
    pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]
Tensors = dict[str, Tensor]
ITEMS = 2
"""Items of a batch of `torch.vmap`."""
DTYPES = {
    torch.float64: 4,
    torch.float32: 3,
    torch.bfloat16: 2,
    torch.float16: 1,
}
"""Dtypes with their shares."""
TRANSFORMS = {"none": 40, "vmap": 20, "grad": 15, "jvp": 10, "vmap of grad": 12, "compile": 2, "export": 1}  # fmt: skip
"""Transforms with their shares."""
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "cosine": [{}, {"temperature": 0.5}, {"temperature": 0.3, "learned_temperature": True}],
    "bilinear": [{}, {"scaled": True}],
    "inner_product": [{}, {"eps": 0.1}],
    "additive": [{}, {"bias": True}],
    "concat": [{}, {"bias": True}],
}
"""Options of the scores outside multi-head attention."""


@dataclasses.dataclass(frozen=True)
class Configuration:
    """One configuration; a failure prints it."""

    number: int
    layer: str
    score: str
    normalizer: str
    dtype: torch.dtype
    transform: str
    batch: int | None
    length: int
    keys: int
    heads: int
    widths: tuple[int, ...]
    padding: str
    mask: str
    is_causal: bool
    layout: str
    hidden: float
    need_weights: bool
    has_value: bool
    rotary: bool

    @property
    def unit(self) -> float:
        """The unit roundoff."""
        return torch.finfo(self.dtype).eps / 2

    @property
    def error(self) -> float:
        """The relative error c u of the inputs; see the docstring of the module."""
        sums = sum(self.widths) + self.keys + self.length * (self.batch or 1)
        is_half = torch.finfo(self.dtype).bits == 16
        factor = 8 if self.dtype == torch.float64 else 4
        return factor * math.sqrt(2 * (10 if is_half else 10 + sums)) * self.unit


def draw_configuration(number: int) -> Configuration:
    """Return the configuration of this number."""
    draw = random.Random(number)

    def weighted(shares: dict[Any, int]) -> Any:
        return draw.choices([*shares], [*shares.values()])[0]

    def size() -> int:
        return draw.randint(1, 7) if draw.random() < 0.9 else draw.randint(8, 40)

    layer = draw.choice(["attention", "multihead", "self"])
    score, heads = draw.choice([*SCORES]), draw.randint(1, 3)
    length = draw.randint(1, 6)
    head_width = draw.randint(1, 8)
    rotary = layer != "attention" and not SCORES[score].pairwise and head_width % 2 == 0
    widths = (draw.randint(1, 9), draw.randint(1, 9), size())
    if score == "cosine":  # of numbers it is a sign, whose gradients are 0 and cancel
        head_width, widths = max(head_width, 2), tuple(max(width, 2) for width in widths)
    if layer == "attention" and SCORES[score].equal_widths:
        widths = (widths[0], *widths[:1], widths[2])
    if layer != "attention":
        widths = heads * head_width, *widths[1:]
    masks = ["none", "bool", "float", "bool per item", "float per item"]
    paddings = ["none", "bool", "lengths"]
    return Configuration(
        number=number,
        layer=layer,
        score=score,
        normalizer=draw.choice(NORMALIZERS),
        dtype=weighted(DTYPES),
        transform=weighted(TRANSFORMS),
        batch=draw.choice([None, 1, 2]),
        length=length,
        keys=length if layer == "self" else size(),
        heads=heads if layer != "attention" else 1,
        widths=widths,
        padding=draw.choice(paddings if layer == "attention" else [*paddings, "float"]),
        mask=draw.choice(masks if layer == "attention" else [*masks, "bool per head"]),
        is_causal=layer != "attention" and draw.random() < 0.3,
        layout=draw.choice(["contiguous", "transposed", "sliced", "expanded"]),
        hidden=draw.choice([0.5, 1e4, math.inf, math.nan]),
        need_weights=draw.random() < 0.5,
        has_value=draw.random() < 0.7,
        rotary=rotary and draw.random() < 0.4,
    )


def make_layer(config: Configuration) -> nn.Module:
    """Return the layer of a configuration."""
    draw, widths = random.Random(config.number), config.widths
    if config.layer == "attention":
        options = draw.choice(OPTIONS.get(config.score, [{}]))
        names = dict(zip(("query_dim", "key_dim", "hidden_dim"), widths, strict=True))
        layer: nn.Module = Attention(config.score, config.normalizer, **names, **options)
    else:
        options = {
            "bias": draw.random() < 0.5,
            "output_projection": draw.random() < 0.7,
            "position_encoding": RotaryPositions() if config.rotary else None,
            "normalizer": config.normalizer,
        }
        if config.layer == "self":
            layer = SelfAttention(
                widths[0], config.heads, config.is_causal, config.score, **options
            )
        else:
            options |= dict(kdim=widths[1], vdim=widths[2] if config.has_value else widths[1])
            layer = MultiHeadAttention(widths[0], config.heads, config.score, **options)
    layer = layer.to(config.dtype)
    return layer.eval() if draw.random() < 0.5 else layer


def make_inputs(config: Configuration) -> tuple[Tensors, Tensors]:
    """Return the floating-point arguments of the layer, and the others."""
    batch = () if config.batch is None else (config.batch,)
    floats = {"query": torch.randn(*batch, config.length, config.widths[0])}
    if config.layer != "self":
        floats["key"] = torch.randn(*batch, config.keys, config.widths[1])
        if config.has_value:
            floats["value"] = torch.randn(*batch, config.keys, config.widths[2])
    masks, padding = make_padding(config, batch)
    for name in {"key", "value"} & floats.keys():
        floats[name][padding] = config.hidden
    masks |= make_mask(config, batch)
    floats |= {name: mask for name, mask in masks.items() if mask.is_floating_point()}
    others = {name: mask for name, mask in masks.items() if not mask.is_floating_point()}
    if config.layout == "expanded":  # equal items, whose memory is shared
        floats, others = (
            {k: x[:1].expand(x.shape) if has_items(k, config) else x for k, x in part.items()}
            for part in (floats, others)
        )
    return {name: x.to(config.dtype) for name, x in floats.items()}, others


def make_padding(config: Configuration, batch: tuple[int, ...]) -> tuple[Tensors, Tensor]:
    """Return the argument that marks padding, and which keys are padding."""
    if config.padding == "none":
        return {}, torch.zeros(*batch, config.keys, dtype=torch.bool)
    if config.padding == "lengths":
        lengths = torch.randint(0, config.keys + 1, batch)
        return {"key_lengths": lengths}, torch.arange(config.keys) >= lengths[..., None]
    padding = torch.rand(*batch, config.keys) < 0.3
    if config.padding == "bool":
        return {"key_padding_mask": padding}, padding
    bias = torch.randn(*batch, config.keys).masked_fill(padding, -math.inf)
    return {"key_padding_mask": bias}, padding


def make_mask(config: Configuration, batch: tuple[int, ...]) -> Tensors:
    """Return the argument that masks keys for single queries."""
    kind, _, per = config.mask.partition(" ")
    if kind == "none":
        return {}
    axes = {"": (), "per item": batch, "per head": (*(batch or (1,)), config.heads)}[per]
    shape = *axes, config.length, config.keys
    masked = torch.rand(shape) < 0.3
    is_bool = kind == "bool"
    return {"attn_mask": masked if is_bool else torch.randn(shape).masked_fill(masked, -math.inf)}


def lay_out(tensors: Tensors, config: Configuration) -> Tensors:
    """Return equal tensors with other strides."""

    def change(name: str, tensor: Tensor) -> Tensor:
        if config.layout == "transposed" and tensor.dim() > 1:
            return tensor.transpose(0, -1).contiguous().transpose(0, -1)
        if config.layout == "sliced":
            return torch.stack([tensor, torch.zeros_like(tensor)], -1)[..., 0]
        if config.layout == "expanded" and has_items(name, config):
            return tensor[:1].expand(tensor.shape)
        return tensor

    return {name: change(name, tensor) for name, tensor in tensors.items()}


def has_items(name: str, config: Configuration) -> bool:
    """Return whether the first axis of an argument is the batch."""
    return config.batch is not None and (name != "attn_mask" or " per " in config.mask)


def stacked(config: Configuration, make: Callable[[], tuple[Tensors, Tensors]]) -> Any:
    """Return the arguments of every item of a transform in one tensor each."""
    items = [make() for _ in range(ITEMS if "vmap" in config.transform else 1)]
    return [{name: torch.stack([item[i][name] for item in items]) for name in items[0][i]} for i in (0, 1)]  # fmt: skip


def loss_of(outputs: Tensors, factors: Tensors) -> Tensor:
    """Return the sum of all outputs with the factors as weights."""
    return torch.stack([(outputs[name] * factor).sum() for name, factor in factors.items()]).sum()


def call_layer(layer: nn.Module, config: Configuration, inputs: Tensors) -> Tensors:
    """Return the context, and the weights if the configuration has them."""
    inputs = dict(inputs)
    rows = [inputs.pop(name) for name in ("query", "key", "value") if name in inputs]
    options: dict[str, Any] = {"need_weights": config.need_weights}
    if config.layer == "multihead":
        options["is_causal"] = config.is_causal
    context, weights = layer(*rows, **inputs, **options)
    return {"context": context} if weights is None else {"context": context, "weights": weights}


@dataclasses.dataclass
class Case:
    """The layer of a configuration with everything that enters its results."""

    parameters: Tensors
    floats: Tensors
    others: Tensors
    tangents: tuple[Tensors, Tensors]
    factors: Tensors


def actual_results(layer: nn.Module, config: Configuration, case: Case) -> Tensors:
    """Return outputs, gradients and tangents by name, as the transform computes them."""

    def outputs(parameters: Tensors, floats: Tensors, others: Tensors) -> Tensors:
        class Call(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = layer

            def forward(self, inputs: Tensors) -> Tensors:
                return call_layer(self.layer, config, inputs)

        named = {f"layer.{name}": x for name, x in parameters.items()}
        return torch.func.functional_call(Call(), named, ({**floats, **others},))

    def loss(parameters: Tensors, floats: Tensors, others: Tensors) -> Tensor:
        return loss_of(outputs(parameters, floats, others), case.factors)

    derivative = torch.func.grad(loss, argnums=(0, 1))
    axes = None, 0, 0
    arguments = case.parameters, case.floats, case.others
    first = case.parameters, *({k: x[0] for k, x in part.items()} for part in arguments[1:])
    if config.transform == "vmap":
        return torch.vmap(outputs, axes)(*arguments)
    if config.transform == "vmap of grad":
        return named_gradients(*torch.vmap(derivative, axes)(*arguments))
    if config.transform == "grad":
        return named_gradients(*derivative(*first))
    if config.transform == "jvp":
        tangents = case.tangents[0], {k: x[0] for k, x in case.tangents[1].items()}
        values, changes = torch.func.jvp(lambda p, f: outputs(p, f, first[2]), first[:2], tangents)
        return values | {f"tangent of {name}": x for name, x in changes.items()}
    return untransformed_results(layer, config, case, first[1], first[2])


def untransformed_results(
    layer: nn.Module, config: Configuration, case: Case, floats: Tensors, others: Tensors
) -> Tensors:
    """Return outputs and gradients of the layer itself, exported or compiled."""

    class Call(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, inputs: Tensors) -> Tensors:
            return call_layer(self.layer, config, inputs)

    module = Call()
    if config.transform == "export":
        return torch.export.export(module, ({**floats, **others},)).module()({**floats, **others})
    call: Any = module
    if config.transform == "compile":
        torch.compiler.reset()
        call = torch.compile(module, fullgraph=True, backend="aot_eager")
    leaves = {k: x.requires_grad_() for k, x in lay_out(floats, config).items()}
    others = lay_out(others, config)
    values = call({**leaves, **others})
    parameters = {k: x for k, x in layer.named_parameters() if k in case.parameters}
    gradients = torch.autograd.grad(
        loss_of(values, case.factors),
        [*parameters.values(), *leaves.values()],
        materialize_grads=True,
    )
    split = len(parameters)
    return values | named_gradients(
        dict(zip(parameters, gradients[:split], strict=True)),
        dict(zip(leaves, gradients[split:], strict=True)),
    )


def named_gradients(parameters: Tensors, floats: Tensors) -> Tensors:
    """Return the gradients in one dictionary."""
    return {f"gradient of {name}": x for name, x in {**parameters, **floats}.items()}


def expected_results(
    layer: nn.Module, config: Configuration, case: Case, terms: bool = False
) -> Tensors:
    """Return the results of the reference for a case in float64, stacked where items are."""
    layer = copy.deepcopy(layer)
    for name, parameter in layer.named_parameters():
        if name in case.parameters:
            parameter.data.copy_(case.parameters[name])
    options = {"score": config.score, "is_causal": is_causal(config), "terms": terms}
    parameters = {k: x for k, x in layer.named_parameters() if k in case.parameters}
    items: list[Tensors] = []
    for index in range(len(next(iter(case.floats.values())))):
        leaves = {k: x[index].clone().requires_grad_() for k, x in case.floats.items()}
        others = {k: x[index] for k, x in case.others.items()}
        outputs = layer_reference(layer, {**leaves, **others}, options)
        outputs |= derivatives(config.transform, outputs, parameters, leaves, case)
        items.append({name: x.detach() for name, x in outputs.items()})
    if "vmap" in config.transform:
        return {name: torch.stack([item[name] for item in items]) for name in items[0]}
    return items[0]


def is_causal(config: Configuration) -> bool:
    """Return whether later keys are masked: `MultiHeadAttention` takes a given mask instead."""
    return config.is_causal and (config.layer == "self" or config.mask == "none")


def derivatives(
    transform: str, outputs: Tensors, parameters: Tensors, leaves: Tensors, case: Case
) -> Tensors:
    """Return the gradients, and the tangents of `jvp` from two reverse passes."""
    inputs, split = [*parameters.values(), *leaves.values()], len(parameters)
    if transform in ("vmap", "export"):
        return {}
    if transform != "jvp":
        loss = loss_of(outputs, case.factors)
        values = torch.autograd.grad(loss, inputs, materialize_grads=True)
        parts = (
            zip(parameters, values[:split], strict=True),
            zip(leaves, values[split:], strict=True),
        )
        return named_gradients(*map(dict, parts))
    # the gradients J'u are linear in u: the derivative of their product with t is the tangent J t
    units = {k: torch.ones_like(outputs[k]).requires_grad_() for k in case.factors}
    loss = loss_of(outputs, units)
    adjoints = torch.autograd.grad(loss, inputs, create_graph=True, materialize_grads=True)
    tangents = [case.tangents[0][k] for k in parameters] + [case.tangents[1][k][0] for k in leaves]
    product = torch.stack([(a * t).sum() for a, t in zip(adjoints, tangents, strict=True)]).sum()
    changes = torch.autograd.grad(product, [*units.values()], materialize_grads=True)
    return {f"tangent of {k}": x for k, x in zip(units, changes, strict=True)}


def make_case(layer: nn.Module, config: Configuration) -> Case:
    """Return the parameters, arguments, tangents and factors of a configuration."""
    floats, others = stacked(config, lambda: make_inputs(config))
    parameters = {k: x.detach() for k, x in layer.named_parameters() if x.requires_grad}
    tangents = tuple(
        {k: torch.randn(x.shape).to(config.dtype) for k, x in part.items()}
        for part in (parameters, floats)
    )
    first = {k: x[0] for k, x in {**floats, **others}.items()}
    with torch.no_grad():
        outputs = call_layer(layer, config, first)
    factors = {
        k: torch.linspace(-1, 2, x.numel()).bfloat16().to(config.dtype).view(x.shape)
        for k, x in outputs.items()
    }
    return Case(parameters, floats, others, tangents, factors)  # pyright: ignore


def in_float64(case: Case, error: float = 0.0) -> Case:
    """Return a case in float64, with every number changed by a relative error of random sign."""

    def convert(tensors: Tensors) -> Tensors:
        return {
            name: x.detach().double() * (1 + error * torch.randn(x.shape).sign())
            for name, x in tensors.items()
        }

    tangents = convert(case.tangents[0]), convert(case.tangents[1])
    return Case(
        convert(case.parameters), convert(case.floats), case.others, tangents, convert(case.factors)
    )


def jumps(expected: Tensors, changed: list[Tensors]) -> bool:
    """Return whether errors of the scores may change the support of sparsemax."""
    scores, weights = expected["scores"], expected["weights"]
    seen = scores.isfinite()
    errors = [(other["scores"] - scores)[seen].abs() for other in changed]
    error = torch.cat(errors).max() if seen.any() else 0
    threshold = (scores - weights).masked_fill(weights == 0, -math.inf).amax(-1, keepdim=True)
    return bool(((scores - threshold).abs() <= 2 * error)[seen].any())


def check(number: int) -> dict[str, float]:
    """Assert that a configuration equals the reference; return its errors over their tolerances."""
    torch.manual_seed(number)
    config = draw_configuration(number)
    layer = make_layer(config)
    case = make_case(layer, config)
    layer64 = copy.deepcopy(layer).double()
    expected = expected_results(layer64, config, in_float64(case))
    changed = [expected_results(layer64, config, in_float64(case, config.error)) for _ in range(4)]
    terms = expected_results(layer64, config, in_float64(case), terms=True)
    smooth = config.normalizer != "sparsemax" or not jumps(expected, changed)
    shares: dict[str, float] = {}
    for name, actual in actual_results(layer, config, case).items():
        if not smooth and name not in ("context", "weights"):
            continue
        assert actual.shape == expected[name].shape, (name, config)
        assert actual.isfinite().all(), (name, config)
        if not actual.numel():
            continue
        scale = max(1.0, *(float(x[name].abs().max()) for x in (expected, terms)))
        change = max(float((other[name] - expected[name]).abs().max()) for other in changed)
        tolerance = change + config.error * scale
        error = float((actual.detach().double() - expected[name]).abs().max())
        assert error <= tolerance, (name, error, tolerance, config)
        shares[name] = error / tolerance
    return shares


@pytest.mark.parametrize("first", [0, pytest.param(50, marks=pytest.mark.slow)])
def test_random_configurations_equal_the_reference(first: int, unchecked: None) -> None:
    for number in range(first, first + 50):
        check(number)


@pytest.mark.soak
@pytest.mark.parametrize("first", range(0, 10_000, 500))
def test_10_000_random_configurations_equal_the_reference(first: int, unchecked: None) -> None:
    for number in range(first, first + 500):
        check(number)
