"""Vectors of floats in compiled kernels: what a compiler would have to find by itself, said outright.

A vector holds as many numbers as a register of this processor. It is loaded, computed with by + - *
and the functions here, and stored; a product and a sum may become one operation. NaN stays NaN.
"""

import operator
from collections.abc import Callable
from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core.cgutils import get_or_insert_function
from numba.extending import intrinsic, models, overload, register_model

BYTES = 64 if llvmlite.binding.get_host_cpu_features().get("avx512f") else 32
"""Of a vector."""


class SimdVector(types.Type):
    """The type of a vector, as numba sees it."""

    def __init__(self, real: types.Float) -> None:
        self.real = real
        super().__init__(name=f"SimdVector({real})")

    @property
    def code(self) -> ir.VectorType:
        """The type as LLVM sees it."""
        double = self.real.bitwidth == 64
        number = ir.DoubleType() if double else ir.FloatType()
        return ir.VectorType(number, BYTES // (8 if double else 4))


@register_model(SimdVector)
class SimdVectorModel(models.PrimitiveModel):
    """A vector is passed as it is."""

    def __init__(self, manager: Any, lanes: SimdVector) -> None:
        super().__init__(manager, lanes, lanes.code)


def _of_one(compute: Callable[[Any, Any], Any]) -> Any:
    """A function of one vector, which `compute` writes down for LLVM."""

    def code(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return compute(builder, *given)

    def typed(typing: Any, x: Any) -> Any:
        return x(x), code

    return intrinsic(typed)


def _of_two(compute: Callable[[Any, Any, Any], Any]) -> Any:
    """A function of two vectors."""

    def code(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return compute(builder, *given)

    def typed(typing: Any, x: Any, y: Any) -> Any:
        return x(x, y), code

    return intrinsic(typed)


def _folded(compute: Callable[[Any, Any, Any], Any]) -> Any:
    """The number that is left of a vector: of its halves, of the halves of that, and so on."""

    def code(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        x = given[0]
        while x.type.count > 1:
            half = x.type.count // 2
            places = [list(range(start, start + half)) for start in (0, half)]
            masks = [ir.Constant(ir.VectorType(_INDEX, half), place) for place in places]
            x = compute(builder, *(builder.shuffle_vector(x, x, mask) for mask in masks))
        return builder.extract_element(x, ir.Constant(_INDEX, 0))

    def typed(typing: Any, x: Any) -> Any:
        return x.real(x), code

    return intrinsic(typed)


_INDEX = ir.IntType(32)


def _all(kind: ir.VectorType, number: float) -> ir.Constant:
    return ir.Constant(kind, [number] * kind.count)


def _each(builder: Any, name: str, *given: Any) -> Any:
    """A function that LLVM knows, lane by lane."""
    kind = given[0].type
    name = f"llvm.{name}.v{kind.count}{kind.element.intrinsic_name}"
    function = ir.FunctionType(kind, [kind] * len(given))
    return builder.call(get_or_insert_function(builder.module, function, name), given)


def _pointer(context: Any, builder: Any, signature: Any, given: Any) -> Any:
    """To the number at a place of a row, which is an array or itself a pointer."""
    row, data = signature.args[0], given[0]
    if isinstance(row, types.Array):
        data = context.make_array(row)(context, builder, data).data
    return builder.gep(data, [given[1]])


def _pointer_to_lanes(context: Any, builder: Any, signature: Any, given: Any) -> Any:
    lanes = SimdVector(signature.args[0].dtype)
    data = _pointer(context, builder, signature, given)
    return builder.bitcast(data, lanes.code.as_pointer())


def _place(typing: Any, row: Any, index: Any) -> Any:
    """A place of a row, which begins a row again."""
    return types.CPointer(row.dtype)(row, types.intp), _pointer


def _load(typing: Any, row: Any, index: Any) -> Any:
    """The vector from a place of a row on."""

    def code(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.load(_pointer_to_lanes(context, builder, signature, given), align=4)

    return SimdVector(row.dtype)(row, types.intp), code


def _load_one(typing: Any, row: Any, index: Any) -> Any:
    """A vector of the one number at a place of a row."""
    lanes = SimdVector(row.dtype)

    def code(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        number = builder.load(_pointer(context, builder, signature, given))
        return _repeated(builder, lanes, number)

    return lanes(row, types.intp), code


def _store(typing: Any, row: Any, index: Any, x: Any) -> Any:
    """Write a vector from a place of a row on."""

    def code(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        builder.store(given[2], _pointer_to_lanes(context, builder, signature, given), align=4)
        return context.get_dummy_value()

    return types.none(row, types.intp, x), code


def _repeated(builder: Any, lanes: SimdVector, number: Any) -> Any:
    none = ir.Constant(lanes.code, ir.Undefined)
    first = builder.insert_element(none, number, ir.Constant(_INDEX, 0))
    return builder.shuffle_vector(first, none, _all(ir.VectorType(_INDEX, lanes.code.count), 0))


def _splat(typing: Any, number: Any) -> Any:
    """A vector of one number."""
    lanes = SimdVector(number)

    def code(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return _repeated(builder, lanes, given[0])

    return lanes(number), code


def _prefetch(typing: Any, row: Any, index: Any) -> Any:
    """Ask for a place of a row before it is wanted."""

    def code(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        data = _pointer(context, builder, signature, given)
        byte, index = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, index, index, index])
        function = get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        how = [ir.Constant(index, number) for number in (0, 3, 1)]
        builder.call(function, [builder.bitcast(data, byte), *how])
        return context.get_dummy_value()

    return types.none(row, types.intp), code


def _count(typing: Any, x: Any) -> Any:
    """How many numbers a vector has."""

    def code(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return context.get_constant(types.intp, x.code.count)

    return types.intp(x), code


def _fma(typing: Any, x: Any, y: Any, z: Any) -> Any:
    """The sum x y + z, one operation even where the product is wanted twice."""

    def code(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return _each(builder, "fmuladd", *given)

    return x(x, y, z), code


place: Any = intrinsic(_place)
load: Any = intrinsic(_load)
load_one: Any = intrinsic(_load_one)
store: Any = intrinsic(_store)
splat: Any = intrinsic(_splat)
count: Any = intrinsic(_count)
prefetch: Any = intrinsic(_prefetch)
fma: Any = intrinsic(_fma)


@_of_one
def reciprocal(builder: Any, x: Any) -> Any:
    """1 / x for 1e-37 <= |x| <= 1e37: wrong for zero and infinity.

    Processors that know a rapid estimate take it and a step of Newton's method, to 2 units of
    rounding; a division would be the slowest part of any loop.
    """
    return builder.fdiv(_all(x.type, 1.0), x, flags=("arcp", "ninf", "contract"))


@_of_one
def floor(builder: Any, x: Any) -> Any:
    """The largest whole number that is not above."""
    return _each(builder, "floor", x)


@_of_one
def exp(builder: Any, x: Any) -> Any:
    """e^x, number by number."""
    return _each(builder, "exp", x)


@_of_one
def power(builder: Any, x: Any) -> Any:
    """2^x for whole x from -126 to 127, put together from its bits: float32 alone."""
    kind = ir.VectorType(ir.IntType(32), x.type.count)
    exponent = builder.add(builder.fptosi(x, kind), _all(kind, 127))
    return builder.bitcast(builder.shl(exponent, _all(kind, 23)), x.type)


@_of_two
def least(builder: Any, x: Any, y: Any) -> Any:
    """The lesser of two, lane by lane; the first where either is NaN."""
    return builder.select(builder.fcmp_ordered(">", x, y), y, x)


def _max_abs(builder: Any, x: Any, y: Any) -> Any:
    # without their sign, floats and at their end NaN are in the order of their bits
    width = 64 if isinstance(x.type.element, ir.DoubleType) else 32
    bits = ir.VectorType(ir.IntType(width), x.type.count)
    sizes = [builder.bitcast(_each(builder, "fabs", each), bits) for each in (x, y)]
    larger = builder.select(builder.icmp_unsigned(">", *sizes), *sizes)
    return builder.bitcast(larger, x.type)


max_abs: Any = _of_two(_max_abs)
"""The larger size of two, lane by lane; that of NaN is the largest."""

reduce_max_abs: Any = _folded(_max_abs)
"""The largest size of a vector's numbers, NaN where one is NaN."""


@_folded
def total(builder: Any, x: Any, y: Any) -> Any:
    """The sum of a vector's numbers."""
    return builder.fadd(x, y)


def _arithmetic(sign: Any, instruction: str) -> None:
    @_of_two
    def computed(builder: Any, x: Any, y: Any) -> Any:
        return getattr(builder, instruction)(x, y, flags=("contract",))

    def here(left: Any, right: Any) -> Any:
        return computed(left, right)

    @overload(sign)
    def both(left: Any, right: Any) -> Any:
        return here if isinstance(left, SimdVector) and left == right else None


for _sign, _instruction in (
    (operator.add, "fadd"), (operator.iadd, "fadd"),
    (operator.sub, "fsub"), (operator.isub, "fsub"), (operator.mul, "fmul"),
):  # fmt: skip
    _arithmetic(_sign, _instruction)
