"""Vectors of floats in compiled kernels: what a compiler would have to find by itself, said outright.

A vector holds as many numbers as a register of this processor. It is loaded, computed with by + - *,
and stored; a product and a sum may become one operation. NaN stays NaN.
"""

import operator
from typing import Any

import llvmlite.binding
from llvmlite import ir
from numba import types
from numba.core.cgutils import get_or_insert_function
from numba.extending import intrinsic, models, overload, register_model

BYTES = 64 if llvmlite.binding.get_host_cpu_features().get("avx512f") else 32
"""Of a vector."""


class Lanes(types.Type):
    """The type of a vector, as numba sees it."""

    def __init__(self, real: types.Float) -> None:
        self.real = real
        super().__init__(name=f"Lanes({real})")

    @property
    def count(self) -> int:
        """Numbers in a vector."""
        return BYTES * 8 // self.real.bitwidth

    def of(self, number: float) -> ir.Constant:
        """A vector of one constant."""
        kind = ir.DoubleType() if self.real.bitwidth == 64 else ir.FloatType()
        return ir.Constant(
            ir.VectorType(kind, self.count), [ir.Constant(kind, number)] * self.count
        )


@register_model(Lanes)
class LanesModel(models.PrimitiveModel):
    """A vector is passed as it is."""

    def __init__(self, manager: Any, lanes: Lanes) -> None:
        super().__init__(manager, lanes, lanes.of(0.0).type)


def _place(context: Any, builder: Any, array: Any, value: Any, index: Any) -> Any:
    data = context.make_array(array)(context, builder, value).data
    pointer = Lanes(array.dtype).of(0.0).type.as_pointer()
    return builder.bitcast(builder.gep(data, [index]), pointer)


def _load(typing: Any, array: Any, index: Any) -> Any:
    """The vector from a place of a row on."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_place(context, builder, array, *arguments), align=4)

    return Lanes(array.dtype)(array, types.intp), code


def _store(typing: Any, array: Any, index: Any, lanes: Any) -> Any:
    """Write a vector from a place of a row on."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _place(context, builder, array, *arguments[:2])
        builder.store(arguments[2], place, align=4)
        return context.get_dummy_value()

    return types.none(array, types.intp, lanes), code


def _spread(typing: Any, number: Any) -> Any:
    """A vector of one number."""
    lanes = Lanes(number)

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        none = ir.Constant(lanes.of(0.0).type, ir.Undefined)
        index = ir.IntType(32)
        first = builder.insert_element(none, arguments[0], ir.Constant(index, 0))
        everywhere = ir.Constant(ir.VectorType(index, lanes.count), [0] * lanes.count)
        return builder.shuffle_vector(first, none, everywhere)

    return lanes(number), code


def _halves(builder: Any, value: Any) -> list[Any]:
    half, index = value.type.count // 2, ir.IntType(32)
    places = [list(range(start, start + half)) for start in (0, half)]
    masks = [ir.Constant(ir.VectorType(index, half), place) for place in places]
    return [builder.shuffle_vector(value, value, mask) for mask in masks]


def _total(typing: Any, lanes: Any) -> Any:
    """The sum of a vector's numbers: of its halves, of the halves of these, and so on."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = arguments[0]
        while value.type.count > 1:
            value = builder.fadd(*_halves(builder, value))
        return builder.extract_element(value, ir.Constant(ir.IntType(32), 0))

    return lanes.real(lanes), code


def _reciprocal(typing: Any, lanes: Any) -> Any:
    """1 / x for x of up to 1e38 that are no smaller than 1e-38: wrong for zero and infinity.

    Processors that know a rapid estimate take it and a step of Newton's method, to 2 units of
    rounding; a division would be the slowest part of any loop.
    """

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fdiv(lanes.of(1.0), arguments[0], flags=("arcp", "ninf", "contract"))

    return lanes(lanes), code


def _least(typing: Any, left: Any, right: Any) -> Any:
    """The lesser of two, lane by lane; the left one where either is NaN."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        beyond = builder.fcmp_ordered(">", *arguments)
        return builder.select(beyond, arguments[1], arguments[0])

    return left(left, right), code


def _each(builder: Any, name: str, value: Any) -> Any:
    kind = value.type
    name = f"llvm.{name}.v{kind.count}{kind.element.intrinsic_name}"
    return builder.call(
        get_or_insert_function(builder.module, ir.FunctionType(kind, [kind]), name), [value]
    )


def _larger(builder: Any, left: Any, right: Any) -> Any:
    # without their sign, floats and at their end NaN are in the order of their bits
    width = 64 if isinstance(left.type.element, ir.DoubleType) else 32
    bits = ir.VectorType(ir.IntType(width), left.type.count)
    sizes = [builder.bitcast(_each(builder, "fabs", value), bits) for value in (left, right)]
    larger = builder.select(builder.icmp_unsigned(">", *sizes), *sizes)
    return builder.bitcast(larger, left.type)


def _further(typing: Any, left: Any, right: Any) -> Any:
    """The larger |x| of two, lane by lane; that of NaN is the largest."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _larger(builder, *arguments)

    return left(left, right), code


def _furthest(typing: Any, lanes: Any) -> Any:
    """The largest |x| of a vector's numbers; NaN where one is NaN."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = arguments[0]
        while value.type.count > 1:
            value = _larger(builder, *_halves(builder, value))
        return builder.extract_element(value, ir.Constant(ir.IntType(32), 0))

    return lanes.real(lanes), code


def _whole(typing: Any, lanes: Any) -> Any:
    """The largest whole number that is not above."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _each(builder, "floor", arguments[0])

    return lanes(lanes), code


def _power(typing: Any, lanes: Any) -> Any:
    """2^n for whole n from -126 to 127, put together from its bits: float32 alone."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        whole = ir.VectorType(ir.IntType(32), lanes.count)
        bias, place = (ir.Constant(whole, [number] * lanes.count) for number in (127, 23))
        exponent = builder.add(builder.fptosi(arguments[0], whole), bias)
        return builder.bitcast(builder.shl(exponent, place), arguments[0].type)

    return lanes(lanes), code


def _exp(typing: Any, lanes: Any) -> Any:
    """e^x, number by number."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _each(builder, "exp", arguments[0])

    return lanes(lanes), code


load: Any = intrinsic(_load)
store: Any = intrinsic(_store)
spread: Any = intrinsic(_spread)
total: Any = intrinsic(_total)
furthest: Any = intrinsic(_furthest)
reciprocal: Any = intrinsic(_reciprocal)
least: Any = intrinsic(_least)
further: Any = intrinsic(_further)
whole: Any = intrinsic(_whole)
power: Any = intrinsic(_power)
exp: Any = intrinsic(_exp)


def _arithmetic(sign: Any, instruction: str) -> None:
    def compute(typing: Any, left: Any, right: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return getattr(builder, instruction)(*arguments, flags=("contract",))

        return left(left, right), code

    computed: Any = intrinsic(compute)

    @overload(sign)
    def both(left: Any, right: Any) -> Any:
        if isinstance(left, Lanes) and left == right:
            return here
        return None

    def here(left: Any, right: Any) -> Any:
        return computed(left, right)


for _sign, _instruction in (
    (operator.add, "fadd"), (operator.iadd, "fadd"),
    (operator.sub, "fsub"), (operator.isub, "fsub"), (operator.mul, "fmul"),
):  # fmt: skip
    _arithmetic(_sign, _instruction)
