"""Explicit SIMD vectors for numba.

A vector fills a register of this processor. The operators + - * and the functions in this module
operate on vectors; a product and a sum may be fused. NaN propagates.
"""

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.cgutils import alloca_once, get_or_insert_function
from numba.extending import intrinsic, models, overload, register_jitable, register_model

from regard.kernels.cpu.processor import BYTES, HAS_BFLOAT16

inlined: Any = register_jitable(forceinline=True)
"""Decorator for a part of a kernel, which is inlined wherever it is called."""


class SimdVector(types.Type):
    """The type of a vector in numba."""

    def __init__(self, real: types.Float) -> None:
        self.real = real
        super().__init__(name=f"SimdVector({real})")

    @property
    def llvm_type(self) -> ir.VectorType:
        """The type of a vector in LLVM."""
        double = self.real.bitwidth == 64
        element = ir.DoubleType() if double else ir.FloatType()
        return ir.VectorType(element, BYTES // (8 if double else 4))


@register_model(SimdVector)
class SimdVectorModel(models.PrimitiveModel):
    """A vector is represented by its LLVM type."""

    def __init__(self, manager: Any, vector: SimdVector) -> None:
        super().__init__(manager, vector, vector.llvm_type)


def _elementwise(emit: Callable[..., Any]) -> Any:
    """Return the function of vectors of the same type for which `emit` emits LLVM code."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return emit(builder, *arguments)

    @functools.wraps(emit)  # numba reads the number of arguments from the signature
    def typer(typing: Any, x: Any, *vectors: Any) -> Any:
        return x(x, *vectors), codegen

    return intrinsic(typer)


def _reduction(compute: Callable[[Any, Any, Any], Any]) -> Any:
    """Return the reduction of a vector to a number, computed by combining its halves repeatedly."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x = arguments[0]
        while x.type.count > 1:
            half = x.type.count // 2
            lanes = [list(range(start, start + half)) for start in (0, half)]
            masks = [ir.Constant(ir.VectorType(_INDEX, half), indices) for indices in lanes]
            x = compute(builder, *(builder.shuffle_vector(x, x, mask) for mask in masks))
        return builder.extract_element(x, ir.Constant(_INDEX, 0))

    def typer(typing: Any, x: Any) -> Any:
        return x.real(x), codegen

    return intrinsic(typer)


_INDEX = ir.IntType(32)


def _constant(kind: ir.VectorType, number: float) -> ir.Constant:
    return ir.Constant(kind, [number] * kind.count)


def _call_llvm(builder: Any, name: str, *arguments: Any) -> Any:
    """Call an LLVM intrinsic that operates lane by lane."""
    kind = arguments[0].type
    name = f"llvm.{name}.v{kind.count}{kind.element.intrinsic_name}"
    function = ir.FunctionType(kind, [kind] * len(arguments))
    return builder.call(get_or_insert_function(builder.module, function, name), arguments)


def _broadcast(builder: Any, kind: ir.VectorType, number: Any) -> Any:
    none = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(none, number, ir.Constant(_INDEX, 0))
    return builder.shuffle_vector(first, none, _constant(ir.VectorType(_INDEX, kind.count), 0))


def memory_access(result: Callable[[types.Float], Any]) -> Callable[..., Any]:
    """Return a decorator for a function of an array or pointer, an index and further arguments.

    The decorated function emits LLVM code, given a pointer to the element and the LLVM type of a
    vector; `result` returns the type of the result.
    """

    def decorate(emit: Callable[..., Any]) -> Any:
        @functools.wraps(emit)
        def typer(typing: Any, row: Any, index: Any, *values: Any) -> Any:
            def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
                data, index, *values = arguments
                if isinstance(row, types.Array):
                    data = context.make_array(row)(context, builder, data).data
                element = builder.gep(data, [index])
                emitted = emit(builder, element, SimdVector(row.dtype).llvm_type, *values)
                return context.get_dummy_value() if signature.return_type is types.none else emitted

            return result(row.dtype)(row, types.intp, *values), codegen

        return intrinsic(typer)

    return decorate


@memory_access(types.CPointer)
def pointer_at(builder: Any, element: Any, kind: Any) -> Any:
    """Return a pointer to an element of a row, itself usable as a row."""
    return element


@memory_access(SimdVector)
def load(builder: Any, element: Any, kind: Any) -> Any:
    """Return the vector that begins at an element of a row."""
    return builder.load(builder.bitcast(element, kind.as_pointer()), align=4)


@memory_access(SimdVector)
def load_splat(builder: Any, element: Any, kind: Any) -> Any:
    """Return a vector with one element of a row in every lane."""
    return _broadcast(builder, kind, builder.load(element))


@memory_access(lambda real: types.none)
def store(builder: Any, element: Any, kind: Any, x: Any) -> None:
    """Write a vector to a row, starting at an element."""
    builder.store(x, builder.bitcast(element, kind.as_pointer()), align=4)


def _lanes_of(kind: ir.VectorType, bits: int) -> ir.VectorType:
    """Return the type of a vector of as many integers of this size."""
    return ir.VectorType(ir.IntType(bits), kind.count)


@memory_access(lambda half: SimdVector(types.float32))
def load_bfloat16(builder: Any, element: Any, kind: Any) -> Any:
    """Return a vector of float32 from bfloat16 numbers, given a row of 16-bit integers."""
    halves, words = _lanes_of(kind, 16), _lanes_of(kind, 32)
    loaded = builder.load(builder.bitcast(element, halves.as_pointer()), align=2)
    shifted = builder.shl(builder.zext(loaded, words), _constant(words, 16))
    return builder.bitcast(shifted, kind)


@memory_access(lambda half: types.none)
def store_bfloat16(builder: Any, element: Any, kind: Any, x: Any) -> None:
    """Write a vector of float32 to a row of 16-bit integers, rounded to the nearest bfloat16, ties to even."""
    halves, words = _lanes_of(kind, 16), _lanes_of(kind, 32)
    bits, sixteen = builder.bitcast(x, words), _constant(words, 16)
    last = builder.and_(builder.lshr(bits, sixteen), _constant(words, 1))
    rounded = builder.add(builder.add(bits, _constant(words, 0x7FFF)), last)
    # rounding could carry the bits of a NaN into its sign
    rounded = builder.select(
        builder.fcmp_unordered("uno", x, x), _constant(words, 0x7FC00000), rounded
    )
    half = builder.trunc(builder.lshr(rounded, sixteen), halves)
    builder.store(half, builder.bitcast(element, halves.as_pointer()), align=2)


class _BFloat16(ir.HalfType):
    """The type of bfloat16, which llvmlite does not have."""

    intrinsic_name = "bf16"

    def __str__(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        return "bfloat"


_BFloat16._create_instance()  # pyright: ignore[reportPrivateUsage]


@_elementwise
def dot_bfloat16(builder: Any, x: Any, y: Any, z: Any) -> Any:
    """Return z + x_0 y_0 + x_1 y_1, given two numbers of bfloat16 in every lane of x and y; needs `HAS_BFLOAT16`.

    Tiny numbers count as zero.
    """
    if not HAS_BFLOAT16:
        return z
    pairs = ir.VectorType(_BFloat16(), 2 * z.type.count)
    kind = ir.FunctionType(z.type, [z.type, pairs, pairs])
    name = "llvm.x86.avx512bf16.dpbf16ps.512"
    function = get_or_insert_function(builder.module, kind, name)
    return builder.call(function, [z, builder.bitcast(x, pairs), builder.bitcast(y, pairs)])


def _as_halves(typing: Any, row: Any) -> Any:
    """Return a row of 32-bit numbers as 16-bit integers."""
    pointer = types.CPointer(types.int16)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(pointer))

    return pointer(row), codegen


def _stack_floats(typing: Any, count: Any) -> Any:
    """Return float32 memory of a constant size on the stack of the calling function."""
    size = count.literal_value
    pointer = types.CPointer(types.float32)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return alloca_once(builder, ir.FloatType(), size)

    return pointer(count), codegen


as_halves: Any = intrinsic(_as_halves)
stack_floats: Any = intrinsic(prefer_literal=True)(_stack_floats)


@memory_access(lambda real: types.none)
def prefetch(builder: Any, element: Any, kind: Any) -> None:
    """Prefetch an element of a row."""
    byte = ir.IntType(8).as_pointer()
    signature = ir.FunctionType(ir.VoidType(), [byte, _INDEX, _INDEX, _INDEX])
    function = get_or_insert_function(builder.module, signature, "llvm.prefetch.p0i8")
    options = [ir.Constant(_INDEX, number) for number in (0, 3, 1)]
    builder.call(function, [builder.bitcast(element, byte), *options])


def _splat(typing: Any, number: Any) -> Any:
    """Return a vector with one number in every lane."""
    vector = SimdVector(number)

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _broadcast(builder, vector.llvm_type, arguments[0])

    return vector(number), codegen


def _lane_count(typing: Any, x: Any) -> Any:
    """Return the number of lanes of a vector."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.get_constant(types.intp, x.llvm_type.count)

    return types.intp(x), codegen


splat: Any = intrinsic(_splat)
lane_count: Any = intrinsic(_lane_count)


@_elementwise
def fma(builder: Any, x: Any, y: Any, z: Any) -> Any:
    """Return x y + z, fused even where the product is used twice."""
    return _call_llvm(builder, "fmuladd", x, y, z)


@_elementwise
def reciprocal(builder: Any, x: Any) -> Any:
    """Return 1 / x for 1e-37 <= |x| <= 1e37; wrong for zero and infinity.

    On processors with an instruction for an estimate, the estimate is refined by a step of Newton's
    method, accurate to 2 units of rounding; a division would be the slowest part of any loop.
    """
    return builder.fdiv(_constant(x.type, 1.0), x, flags=("arcp", "ninf", "contract"))


@_elementwise
def floor(builder: Any, x: Any) -> Any:
    """Return the largest integer <= x."""
    return _call_llvm(builder, "floor", x)


@_elementwise
def exp(builder: Any, x: Any) -> Any:
    """Return e^x."""
    return _call_llvm(builder, "exp", x)


@_elementwise
def exp2_integer(builder: Any, x: Any) -> Any:
    """Return 2^x for integers from -126 to 127, assembled from bits; float32 only."""
    kind = ir.VectorType(ir.IntType(32), x.type.count)
    exponent = builder.add(builder.fptosi(x, kind), _constant(kind, 127))
    return builder.bitcast(builder.shl(exponent, _constant(kind, 23)), x.type)


@_elementwise
def minimum(builder: Any, x: Any, y: Any) -> Any:
    """Return the smaller of x and y; x where either is NaN."""
    return builder.select(builder.fcmp_ordered(">", x, y), y, x)


@_elementwise
def maximum(builder: Any, x: Any, y: Any) -> Any:
    """Return the larger of x and y; x where either is NaN."""
    return builder.select(builder.fcmp_ordered("<", x, y), y, x)


def _max_abs(builder: Any, x: Any, y: Any) -> Any:
    # without the sign, the bits of floats have the same order as their values, with NaN last
    width = 64 if isinstance(x.type.element, ir.DoubleType) else 32
    bits = ir.VectorType(ir.IntType(width), x.type.count)
    pair = [builder.bitcast(_call_llvm(builder, "fabs", value), bits) for value in (x, y)]
    larger = builder.select(builder.icmp_unsigned(">", *pair), *pair)
    return builder.bitcast(larger, x.type)


max_abs: Any = _elementwise(_max_abs)
"""The larger absolute value of two vectors, lane by lane; NaN is the largest."""

reduce_max_abs: Any = _reduction(_max_abs)
"""The largest absolute value in a vector; NaN if any lane is NaN."""


@_reduction
def reduce_minimum(builder: Any, x: Any, y: Any) -> Any:
    """Return the smallest lane of a vector."""
    return builder.select(builder.fcmp_ordered(">", x, y), y, x)


@_reduction
def reduce_sum(builder: Any, x: Any, y: Any) -> Any:
    """Return the sum of the lanes of a vector."""
    return builder.fadd(x, y)


def _arithmetic(sign: Any, instruction: str) -> None:
    @_elementwise
    def computed(builder: Any, x: Any, y: Any) -> Any:
        return getattr(builder, instruction)(x, y, flags=("contract",))

    def implementation(left: Any, right: Any) -> Any:
        return computed(left, right)

    @overload(sign)
    def overloaded(left: Any, right: Any) -> Any:
        return implementation if isinstance(left, SimdVector) and left == right else None


for _sign, _instruction in (
    (operator.add, "fadd"), (operator.iadd, "fadd"),
    (operator.sub, "fsub"), (operator.isub, "fsub"), (operator.mul, "fmul"),
):  # fmt: skip
    _arithmetic(_sign, _instruction)


def exp_2x(x: Any) -> Any:
    """Return e^{2x} of a vector."""
    raise NotImplementedError("exp_2x works only in code that numba compiles")


@overload(exp_2x)
def _overload_exp_2x(x: Any) -> Any:
    return _exp_2x_float64 if x.real == types.float64 else _exp_2x_float32


def _exp_2x_float64(x: Any) -> Any:
    return exp(x + x)


def _exp_2x_float32(x: Any) -> Any:
    """Return e^{2x} to one unit of rounding.

    2x = n ln 2 + f with |f| <= ln 2 / 2: a polynomial in f times 2^n. The coefficients are those of
    expf in the Cephes library.
    """
    real = np.float32
    z = x + x
    n = floor(z * splat(real(1.44269504088896341)) + splat(real(0.5)))
    f = z - n * splat(real(0.693359375))
    f = f - n * splat(real(-2.12194440e-4))
    p = splat(real(1.9875691500e-4)) * f + splat(real(1.3981999507e-3))
    p = p * f + splat(real(8.3334519073e-3))
    p = p * f + splat(real(4.1665795894e-2))
    p = p * f + splat(real(1.6666665459e-1))
    p = p * f + splat(real(5.0000001201e-1))
    return (p * f * f + f + splat(real(1))) * exp2_integer(n)


@inlined
def sum_and_max_abs(row: Any, zeros: Any) -> Any:
    """Return the sum and the largest absolute value (or NaN) of a row of whole vectors."""
    s, largest = zeros, zeros
    for d in range(0, len(row), lane_count(zeros)):
        s += load(row, d)
        largest = max_abs(largest, load(row, d))
    return reduce_sum(s), reduce_max_abs(largest)


@inlined
def copy(source: Any, target: Any, count: Any) -> None:
    """Copy the first `count` elements of a row. An assignment of slices would compile numba's check of their shapes."""
    for d in range(count):
        target[d] = source[d]


@inlined
def store_columns(columns: Any, rows: Any, low: Any, filled: Any, size: Any) -> None:
    """Write the first `filled` lanes of a vector to every row, starting at column `low`."""
    for row in range(len(rows)):
        if filled == size:
            store(rows[row], low, load(columns, row * size))
        else:
            for d in range(filled):
                rows[row, low + d] = columns[row * size + d]
