"""Checks of the values of settings: types, ranges and strings."""

import dataclasses
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from numbers import Real
from types import UnionType
from typing import (
    Any,
    Literal,
    SupportsFloat,
    SupportsIndex,
    TypeGuard,
    Union,
    get_args,
    get_origin,
)

from regard.errors import ConfigError, DataError, is_utf8, nearest


def is_seed(value: float) -> bool:
    """Return whether a whole number can be a random seed."""
    return 0 <= value < 2**63


_RANGES: dict[str, Callable[[float], bool]] = {
    "be at least 0": lambda value: value >= 0,
    "be at least 1": lambda value: value >= 1,
    "be at least 5": lambda value: value >= 5,
    "be above 0": lambda value: value > 0,
    "lie in [0, 1)": lambda value: 0 <= value < 1,
    "lie in [0, 2^63)": is_seed,
}
DIMENSIONS = ("embedding_dim", "encoder_dim", "decoder_dim", "attention_dim", "feed_forward_dim")
MAX_LENGTH = 10_000
"""Maximum of `data.max_length`, and of tokens in a text to translate: a search takes as many steps."""
_LARGEST = {
    name: 1_000_000 for name in ("vocabulary_size", "recombined_pairs", "heads", *DIMENSIONS)
} | {
    "max_length": MAX_LENGTH,
    "encoder_layers": 1000,
    "decoder_layers": 1000,
}
"""Maximum values of settings that determine time and memory."""


def check_values(config: Any, group: str, ranges: Mapping[str, Sequence[str]]) -> None:
    """Check the type of every field and the range of every number.

    Raises:
        ConfigError: a value cannot be used.
    """
    prefix = f"{group}." if group else ""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if not _matches_type(value, field.type):
            expected, hint = _describe_type(field.type), nearest(value, _names(field.type))
            raise ConfigError(f"{prefix}{field.name} takes {expected}, got {value!r}{hint}")
        if isinstance(value, str) and not (is_utf8(value) and "\0" not in value):
            raise ConfigError(f"{prefix}{field.name} takes UTF-8 without NUL, got {value!r}")
    for requirement, names in ranges.items():
        for name in names:
            value = getattr(config, name)
            if isinstance(value, int | float) and not _RANGES[requirement](value):
                raise ConfigError(f"{prefix}{name} must {requirement}, got {value}")
    for name, value in vars(config).items():
        largest = _LARGEST[name] if name in _LARGEST else 2**63 - 1
        if isinstance(value, int | float) and value > largest:
            raise ConfigError(f"{prefix}{name} must be at most {largest:,}, got {value}")


MAX_BEAM_SIZE = 1000
"""Maximum of `beam_size` and `n_best`: time and memory are proportional to them."""


def check_beam_size(**sizes: Any) -> None:
    """Check sizes given by name, such as `beam_size=5`.

    Raises:
        ConfigError: a size is not a whole number from 1 to `MAX_BEAM_SIZE`.
    """
    for name, size in sizes.items():
        if not hasattr(size, "__index__") or isinstance(size, bool):
            raise ConfigError(f"{name} takes a whole number, got {size!r}")
        if size < 1:
            raise ConfigError(f"{name} must be at least 1, got {size}")
        if size > MAX_BEAM_SIZE:
            raise ConfigError(f"{name} must be at most {MAX_BEAM_SIZE:,}, got {size:,}")


def check_count(name: str, count: Any, least: int) -> None:
    """Raise a ConfigError unless a count is a whole number of at least `least`."""
    if not hasattr(count, "__index__") or isinstance(count, bool):
        raise ConfigError(f"{name} takes a whole number, got {count!r}")
    if operator.index(count) < least:
        raise ConfigError(f"{name} must be at least {least}, got {count}")


def check_widths(**widths: Any) -> None:
    """Raise a ConfigError unless every width or count is a positive whole number or None."""
    for name, width in widths.items():
        is_whole = isinstance(width, SupportsIndex) and not isinstance(width, bool)
        if width is not None and not (is_whole and operator.index(width) >= 1):
            raise ConfigError(f"{name} must be a whole number of at least 1, got {width!r}")


def check_positive(what: str, value: Any) -> None:
    """Raise a ConfigError unless a value is a finite number above 0."""
    if not (isinstance(value, SupportsFloat) and float(value) > 0):
        raise ConfigError(f"{what} must be above 0, got {value!r}")
    if float(value) == math.inf:
        raise ConfigError(f"{what} must be finite, got {value!r}")


def check_ids(targets: Iterable[Sequence[int]], largest: int, reserved: Set[int]) -> None:
    """Raise a DataError for a target with ids below 0, above `largest`, or reserved (PAD, BOS, EOS)."""
    for target in targets:
        if not reserved.isdisjoint(target):
            raise DataError(f"expected a target without PAD, BOS and EOS, got the ids {target}")
        for id in target:
            if not 0 <= id <= largest:
                raise DataError(f"expected ids of the vocabulary, 0 to {largest}, got {id}")


def check_limits(limits: Iterable[int]) -> None:
    """Raise a ConfigError for a maximum output length below 0."""
    for limit in limits:
        if limit < 0:
            raise ConfigError(f"limits must be at least 0, got {limit}")


def check_length_penalty(length_penalty: Any) -> None:
    """Raise a ConfigError for a length-penalty exponent that is not in [0, 10]."""
    if not (is_number(length_penalty) and 0 <= float(length_penalty) <= 10):
        raise ConfigError(f"length_penalty must lie in [0, 10], got {length_penalty!r}")


def is_number(value: Any) -> TypeGuard[SupportsFloat]:
    """Return whether a value is a real number, also of NumPy, and no bool."""
    return not isinstance(value, bool) and isinstance(value, Real)


def _matches_type(value: Any, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        return any(_matches_type(value, option) for option in get_args(kind))
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


def _names(kind: Any) -> list[str]:
    """Return the names that a type allows."""
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    return [name for option in get_args(kind) for name in _names(option)]


def _describe_type(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(get_args(kind))
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(map(_describe_type, get_args(kind)))
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    return names.get(kind, "nothing" if kind is type(None) else f"a {kind.__name__}")
