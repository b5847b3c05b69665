"""CPU kernels of additive attention in training; `attention_steps.py` has the sizes and tensors."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from regard.kernels.cpu import simd, tasks, threads
from regard.kernels.cpu.activations import tanh
from regard.kernels.cpu.processor import LANES
from regard.kernels.cpu.simd import load_bfloat16 as load
from regard.kernels.cpu.simd import store_bfloat16 as store
from regard.kernels.cpu.tasks import floats, halves
from regard.kernels.recurrent.attention_steps import (
    CONTEXTS,
    COVERAGE,
    COVERAGE_WEIGHT,
    GRAD_CONTEXTS,
    GRAD_COVERAGE,
    GRAD_COVERAGE_WEIGHT,
    GRAD_KEYS,
    GRAD_QUERIES,
    GRAD_SCORES,
    GRAD_VALUES,
    GRAD_VECTOR,
    GRAD_WEIGHTS,
    KEYS,
    MASKED,
    QUERIES,
    VALUES,
    VECTOR,
    WEIGHTS,
)

_ZERO, _ONE = np.float32(0), np.float32(1)


@simd.inlined
def _fill(row: Any, width: Any) -> None:
    """Write zeros to a row."""
    for d in range(0, width, LANES):
        simd.store(row, d, simd.splat(_ZERO))


@simd.inlined
def _rows_of_step(arguments: Any, row: Any) -> Any:
    """Return the query, the weights and the coverage of an item at a step."""
    count = arguments[threads.KEYS]
    return (
        halves(arguments, QUERIES, row * arguments[threads.WIDTH]),
        floats(arguments, WEIGHTS, row * count),
        floats(arguments, COVERAGE, row * count),
    )


@simd.inlined
def _rows_of_item(arguments: Any, item: Any) -> Any:
    """Return the keys, the values and the mask of an item."""
    first = item * arguments[threads.KEYS]
    return (
        halves(arguments, KEYS, first * arguments[threads.WIDTH]),
        halves(arguments, VALUES, first * arguments[threads.TILE]),
        tasks.booleans(arguments, MASKED, first),
    )


@simd.inlined
def _dot(x: Any, y: Any, width: Any) -> Any:
    s = simd.splat(_ZERO)
    for d in range(0, width, LANES):
        s = simd.fma(load(x, d), load(y, d), s)
    return simd.reduce_sum(s)


@simd.inlined
def _score(query: Any, key: Any, v: Any, w: Any, c: Any, width: Any) -> Any:
    """Return v . tanh(q + k + c w)."""
    s = simd.splat(_ZERO)
    for d in range(0, width, LANES):
        x = simd.fma(c, simd.load(w, d), load(query, d) + load(key, d))
        s = simd.fma(simd.load(v, d), tanh(x), s)
    return simd.reduce_sum(s)


@simd.inlined
def _normalize(scores: Any, masked: Any, largest: Any, count: Any) -> None:
    """Replace the scores with their softmax; weights of masked keys are 0."""
    total = _ZERO
    for i in range(count):
        scores[i] = _ZERO if masked[i] != 0 else np.float32(math.exp(scores[i] - largest))
        total += scores[i]
    for i in range(count):
        if masked[i] == 0:
            scores[i] = scores[i] / total


@simd.inlined
def _write_context(
    weights: Any, values: Any, masked: Any, context: Any, count: Any, width: Any
) -> None:
    """Write the sum of the values that are not masked, times their weights."""
    for d in range(0, width, LANES):
        s = simd.splat(_ZERO)
        for i in range(count):
            if masked[i] == 0:
                s = simd.fma(simd.load_splat(weights, i), load(values, i * width + d), s)
        store(context, d, s)


def attend(real: Any) -> Callable[[Any], None]:
    """Return the kernel of the weights, the context and the next coverage."""

    def kernel(arguments: Any) -> None:
        step, _, count, width = tasks.read_sizes(arguments)
        items, value_width = arguments[threads.TASKS], arguments[threads.TILE]
        v, w = floats(arguments, VECTOR, 0), floats(arguments, COVERAGE_WEIGHT, 0)
        while True:
            item = tasks.fetch_add(arguments, threads.NEXT_TASK)
            if item >= items:
                return
            row = step * items + item
            query, weights, coverage = _rows_of_step(arguments, row)
            keys, values, masked = _rows_of_item(arguments, item)
            following = floats(arguments, COVERAGE, (row + items) * count)
            context = halves(arguments, CONTEXTS, row * value_width)
            largest = _ZERO - np.float32(np.inf)
            for i in range(count):
                if masked[i] == 0:
                    key, c = simd.pointer_at(keys, i * width), simd.load_splat(coverage, i)
                    weights[i] = _score(query, key, v, w, c, width)
                    largest = max(largest, weights[i])
            _normalize(weights, masked, largest, count)
            for i in range(count):
                following[i] = coverage[i] + weights[i]
            _write_context(weights, values, masked, context, count, value_width)

    return kernel


def gradients(real: Any) -> Callable[[Any], None]:
    """Return the kernel of the gradients of the scores and the query, and of the coverage.

    With g_i = dL/da_i, the gradient of a weight: dL/de_i = a_i (g_i - sum_j a_j g_j), and
    dL/dq = sum_i dL/de_i v (1 - tanh^2). A weight is part of the coverage at all later steps, so the
    gradient of the coverage is a sum over them.
    """

    def kernel(arguments: Any) -> None:
        step, _, count, width = tasks.read_sizes(arguments)
        items, value_width = arguments[threads.TASKS], arguments[threads.TILE]
        v, w = floats(arguments, VECTOR, 0), floats(arguments, COVERAGE_WEIGHT, 0)
        sums = tasks.thread_workspace(arguments, (1, width), _ONE)[0]
        ones = simd.splat(_ONE)
        while True:
            item = tasks.fetch_add(arguments, threads.NEXT_TASK)
            if item >= items:
                return
            row = step * items + item
            query, weights, coverage = _rows_of_step(arguments, row)
            keys, values, masked = _rows_of_item(arguments, item)
            grad_context = halves(arguments, GRAD_CONTEXTS, row * value_width)
            grad_weights = floats(arguments, GRAD_WEIGHTS, row * count)
            grad_coverage = floats(arguments, GRAD_COVERAGE, item * count)
            grad_scores = floats(arguments, GRAD_SCORES, row * count)
            grad_query = halves(arguments, GRAD_QUERIES, row * width)
            mean = _ZERO
            for i in range(count):
                grad_scores[i] = _ZERO
                if masked[i] == 0:
                    value = simd.pointer_at(values, i * value_width)
                    gradient = _dot(grad_context, value, value_width)
                    grad_scores[i] = gradient + grad_weights[i] + grad_coverage[i]
                    mean += weights[i] * grad_scores[i]
            _fill(sums, width)
            for i in range(count):
                if masked[i] == 0:
                    grad_scores[i] = weights[i] * (grad_scores[i] - mean)
                    key, c = simd.pointer_at(keys, i * width), simd.load_splat(coverage, i)
                    g, s = simd.load_splat(grad_scores, i), simd.splat(_ZERO)
                    for d in range(0, width, LANES):
                        w_d = simd.load(w, d)
                        t = tanh(simd.fma(c, w_d, load(query, d) + load(key, d)))
                        u = g * (ones - t * t)
                        simd.store(sums, d, simd.load(sums, d) + u)
                        s = simd.fma(u, simd.load(v, d) * w_d, s)
                    grad_coverage[i] += simd.reduce_sum(s)
            for d in range(0, width, LANES):
                store(grad_query, d, simd.load(v, d) * simd.load(sums, d))

    return kernel


def source_gradients(real: Any) -> Callable[[Any], None]:
    """Return the kernel of the gradients of the keys, the values and both vectors, summed over all steps."""

    def kernel(arguments: Any) -> None:
        _, steps, count, width = tasks.read_sizes(arguments)
        items, value_width = arguments[threads.TASKS], arguments[threads.TILE]
        v, w = floats(arguments, VECTOR, 0), floats(arguments, COVERAGE_WEIGHT, 0)
        queries, weights = halves(arguments, QUERIES, 0), floats(arguments, WEIGHTS, 0)
        coverage, grad_scores = floats(arguments, COVERAGE, 0), floats(arguments, GRAD_SCORES, 0)
        grad_contexts = halves(arguments, GRAD_CONTEXTS, 0)
        ones, zeros = simd.splat(_ONE), simd.splat(_ZERO)
        while True:
            item = tasks.fetch_add(arguments, threads.NEXT_TASK)
            if item >= items:
                return
            masked = tasks.booleans(arguments, MASKED, item * count)
            grad_vector = floats(arguments, GRAD_VECTOR, item * width)
            grad_coverage_weight = floats(arguments, GRAD_COVERAGE_WEIGHT, item * width)
            _fill(grad_vector, width)
            _fill(grad_coverage_weight, width)
            for i in range(count):
                key = halves(arguments, KEYS, (item * count + i) * width)
                grad_key = halves(arguments, GRAD_KEYS, (item * count + i) * width)
                grad_value = halves(arguments, GRAD_VALUES, (item * count + i) * value_width)
                used = 0 if masked[i] != 0 else steps
                for d in range(0, width, LANES):
                    k, w_d, v_d = load(key, d), simd.load(w, d), simd.load(v, d)
                    sum_u, sum_t, sum_c = zeros, zeros, zeros
                    for step in range(used):
                        row = step * items + item
                        c = simd.load_splat(coverage, row * count + i)
                        t = tanh(simd.fma(c, w_d, load(queries, row * width + d) + k))
                        g = simd.load_splat(grad_scores, row * count + i)
                        u = g * (ones - t * t)
                        sum_u, sum_t = sum_u + u, simd.fma(g, t, sum_t)
                        sum_c = simd.fma(c, u, sum_c)
                    store(grad_key, d, v_d * sum_u)
                    simd.store(grad_vector, d, simd.load(grad_vector, d) + sum_t)
                    sum_c = simd.fma(v_d, sum_c, simd.load(grad_coverage_weight, d))
                    simd.store(grad_coverage_weight, d, sum_c)
                for d in range(0, value_width, LANES):
                    s = zeros
                    for step in range(used):
                        row = step * items + item
                        gradient = load(grad_contexts, row * value_width + d)
                        s = simd.fma(simd.load_splat(weights, row * count + i), gradient, s)
                    store(grad_value, d, s)

    return kernel
