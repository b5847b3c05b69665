"""Checks of the values of settings: types, ranges and texts."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from regard.errors import ConfigError, is_utf8

_RANGES: dict[str, Callable[[float], bool]] = {
    "be at least 0": lambda value: value >= 0,
    "be at least 1": lambda value: value >= 1,
    "be above 0": lambda value: value > 0,
    "lie in [0, 1)": lambda value: 0 <= value < 1,
    "lie in [0, 2^63)": lambda value: 0 <= value < 2**63,
}
DIMENSIONS = ("embedding_dim", "encoder_dim", "decoder_dim", "attention_dim", "feed_forward_dim")
_LARGEST = {name: 1_000_000 for name in ("max_length", "vocabulary_size", "heads", *DIMENSIONS)} | {
    "encoder_layers": 1000,
    "decoder_layers": 1000,
}
"""Largest values of settings that memory depends on."""


def check_values(config: Any, group: str, ranges: Mapping[str, Sequence[str]]) -> None:
    """Check the type of every field, and the range of numbers.

    Raises:
        ConfigError: a value cannot be used.
    """
    prefix = f"{group}." if group else ""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if not _matches_type(value, field.type):
            expected = _describe_type(field.type)
            raise ConfigError(f"{prefix}{field.name} takes {expected}, got {value!r}")
        if isinstance(value, str) and not (is_utf8(value) and "\0" not in value):
            raise ConfigError(f"{prefix}{field.name} takes UTF-8 without NUL, got {value!r}")
    for requirement, names in ranges.items():
        for name in names:
            value = getattr(config, name)
            if value is not None and not _RANGES[requirement](value):
                raise ConfigError(f"{prefix}{name} must {requirement}, got {value}")
    for name, value in vars(config).items():
        largest = _LARGEST[name] if name in _LARGEST else 2**63 - 1
        if isinstance(value, int | float) and value > largest:
            raise ConfigError(f"{prefix}{name} must be at most {largest:,}, got {value}")


def _matches_type(value: Any, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        return any(_matches_type(value, option) for option in get_args(kind))
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


def _describe_type(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(get_args(kind))
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(map(_describe_type, get_args(kind)))
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    return names.get(kind, "nothing" if kind is type(None) else f"a {kind.__name__}")
