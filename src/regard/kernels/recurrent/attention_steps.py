"""Additive attention at every step of a recurrent decoder in training, on CPUs, without autograd.

    e_i = v . tanh(W_q s + k_i + c_i w)    a = softmax(e)    context = sum_i a_i v_i

with the coverage c_i, the sum of the weights of the steps before (See et al. 2017, arXiv:1704.04368). Queries, W_q,
keys, values, contexts and their gradients are bfloat16; vectors, weights and coverage, and what is computed between
them, are float32. In the tensors of all L steps, the step is the first axis.

A task of a kernel is an item of the batch. Of `threads.Sizes`, `heads` is the step, `queries` the number of steps,
`keys` that of keys, `width` that of a key and `tile` that of a value.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from regard.kernels.cpu.machine_code import Kernel, load
from regard.kernels.cpu.processor import LANES
from regard.kernels.cpu.threads import Sizes, run_kernel

VECTOR, COVERAGE_WEIGHT, MASKED, KEYS, VALUES, QUERIES, WEIGHTS, COVERAGE, CONTEXTS = range(9)
"""Tensors of all kernels."""

GRAD_CONTEXTS, GRAD_SCORES = 8, 9
"""Instead of the contexts, both kernels of gradients read their gradients; `gradients` writes those of the scores, and
`source_gradients` reads them."""

GRAD_WEIGHTS, GRAD_COVERAGE, GRAD_QUERIES = range(10, 13)
"""Tensors of `gradients`."""

GRAD_KEYS, GRAD_VALUES, GRAD_VECTOR, GRAD_COVERAGE_WEIGHT = range(10, 14)
"""Results of `source_gradients`; those of vectors have a row for every item."""

ATTEND, GRADIENTS, SOURCE_GRADIENTS = (
    Kernel("recurrent.attention_kernels", name)
    for name in ("attend", "gradients", "source_gradients")
)


class AttentionTensors(NamedTuple):
    """What a decoder attends to, and the weights of the score v . tanh(W_q s + k)."""

    keys: Float[Tensor, "B T E"]
    """k, the projected keys."""
    values: Float[Tensor, "B T Dv"]
    masked: Bool[Tensor, "B T"]
    """True = may not be attended to."""
    query_weight: Float[Tensor, "E D"]
    """W_q."""
    vector: Float[Tensor, " E"]
    """v."""
    coverage_weight: Float[Tensor, " E"] | None = None
    """w, by which the coverage is multiplied; None without coverage."""

    def prepared(self) -> tuple[Tensor, ...]:
        """Return the first fields of `AttentionSteps`; all widths are those of whole SIMD vectors."""
        vector, weight = self.vector.float(), self.coverage_weight
        weight = torch.zeros_like(vector) if weight is None else weight.float()
        keys, values = whole_vectors(self.keys.bfloat16()), whole_vectors(self.values.bfloat16())
        query_weight = whole_vectors(self.query_weight.bfloat16().t()).t()
        return (
            whole_vectors(vector).contiguous(), whole_vectors(weight).contiguous(),
            self.masked.contiguous(), keys.contiguous(), values.contiguous(), query_weight,
        )  # fmt: skip


def whole_vectors(rows: Float[Tensor, "*n D"]) -> Float[Tensor, "*n D2"]:
    """Append zeros up to the width of whole SIMD vectors."""
    missing = -rows.shape[-1] % LANES
    return functional.pad(rows, (0, missing)) if missing else rows


class AttentionSteps(NamedTuple):
    """Attention at all steps."""

    vector: Float[Tensor, " E"]
    coverage_weight: Float[Tensor, " E"]
    masked: Bool[Tensor, "B T"]
    keys: Float[Tensor, "B T E"]
    values: Float[Tensor, "B T Dv"]
    query_weight: Float[Tensor, "E D"]
    queries: Float[Tensor, "L B E"]
    weights: Float[Tensor, "L B T"]
    coverage: Float[Tensor, "L+1 B T"]
    contexts: Float[Tensor, "L B Dv"]

    @classmethod
    def allocate(cls, prepared: Sequence[Tensor], steps: int) -> "AttentionSteps":
        """Return buffers for all steps, given the result of `AttentionTensors.prepared`."""
        vector, _, _, keys, values, _ = prepared
        batch, length, width = keys.shape
        queries = keys.new_empty(steps, batch, width)
        weights = vector.new_empty(steps, batch, length)
        coverage = vector.new_empty(steps + 1, batch, length)
        coverage[0] = 0
        contexts = values.new_empty(steps, batch, values.shape[2])
        return cls._make([*prepared, queries, weights, coverage, contexts])

    def attend(self, step: int, state: Float[Tensor, "B D"]) -> Float[Tensor, "B Dv"]:
        """Return the context of a step; the state is the query."""
        torch.mm(state, self.query_weight.t(), out=self.queries[step])
        self.run(ATTEND, step, self.contexts)
        return self.contexts[step]

    def run(self, kernel: Kernel, step: int, *others: Tensor) -> None:
        """Run a kernel, given the tensors from `CONTEXTS` on."""
        batch, length, width = self.keys.shape
        values = self.values.shape[2]
        sizes = Sizes(step, len(self.queries), length, width, values)
        tensors = [
            self.vector, self.coverage_weight, self.masked, self.keys, self.values,
            self.queries, self.weights, self.coverage, *others,
        ]  # fmt: skip
        steps = len(self.queries) if kernel is SOURCE_GRADIENTS else 1
        work = steps * batch * length * (width + values)
        run_kernel(load(kernel), batch, sizes, tensors, work, (1, width))


class AttentionGradients:
    """The gradients of `AttentionSteps`, from the last step to the first."""

    def __init__(self, attention: AttentionSteps, grad_weights: Float[Tensor, "L B T"]) -> None:
        self._attention, self._weights = attention, grad_weights.contiguous()
        self.contexts = torch.empty_like(attention.contexts)
        """The gradients of the contexts, which `add_to` reads."""
        self._queries = torch.empty_like(attention.queries)
        self._scores = torch.empty_like(attention.weights)
        self._coverage = torch.zeros_like(attention.coverage[0])

    def add_to(self, grad_state: Float[Tensor, "B D"], step: int) -> None:
        """Add the gradient of the state that was the query of a step to `grad_state`."""
        others = [self.contexts, self._scores, self._weights, self._coverage, self._queries]
        self._attention.run(GRADIENTS, step, *others)
        grad_state.addmm_(self._queries[step], self._attention.query_weight)

    def of_inputs(self, states: Float[Tensor, "L B D"]) -> list[Tensor | None]:
        """Return the gradients of `AttentionTensors.prepared`; `states` were the queries."""
        attention = self._attention
        keys, values = torch.empty_like(attention.keys), torch.empty_like(attention.values)
        vectors = attention.vector.new_empty(2, len(keys), keys.shape[2])
        others = [self.contexts, self._scores, keys, values, *vectors]
        attention.run(SOURCE_GRADIENTS, 0, *others)
        query_weight = gradient_of_matrix(self._queries, states)
        return [*vectors.sum(1), None, keys, values, query_weight]


def has_attention_kernels() -> bool:
    """Return whether there are kernels on this machine."""
    return all(load(kernel) is not None for kernel in (ATTEND, GRADIENTS, SOURCE_GRADIENTS))


def gradient_of_matrix(
    grad_products: Float[Tensor, "L B E"], rows: Float[Tensor, "L B I"]
) -> Float[Tensor, "E I"]:
    """Return the gradient of the matrix by which the rows of all steps were multiplied."""
    return grad_products.flatten(0, 1).t() @ rows.flatten(0, 1)
