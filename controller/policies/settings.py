"""Policy settings: frozen dataclasses whose fields know their bounds, built from a request's map of numbers.

One declaration gives name, type, default, bounds and meaning; the request's map, the documentation and the checks
all read it.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from speculative.errors import InvalidRequestError

_Number = TypeVar("_Number", int, float, bool)
_Settings = TypeVar("_Settings")


@dataclass(frozen=True, slots=True)
class Bounds:
    """Closed interval of legal values, and what the number means."""

    low: float
    high: float
    meaning: str


@dataclass(frozen=True, slots=True)
class Parameter:
    """A setting as users see it. Whole numbers and switches travel as floats, too."""

    name: str
    default: int | float | bool
    bounds: Bounds


def setting(default: _Number, low: float, high: float, meaning: str) -> _Number:
    """Declares a field of a settings dataclass; its type is the default's."""
    field: _Number = dataclasses.field(default=default, metadata={"bounds": Bounds(low, high, meaning)})
    return field


def switch(default: bool, meaning: str) -> bool:
    """Declares a field that is 0 or 1."""
    return setting(default, 0, 1, meaning)


def parameters_of(settings_type: type[Any]) -> Iterator[Parameter]:
    """The parameters a settings dataclass declares, in order."""
    defaults = settings_type()
    for field in dataclasses.fields(settings_type):
        yield Parameter(field.name, getattr(defaults, field.name), field.metadata["bounds"])


def parse_settings(settings_type: type[_Settings], given: Mapping[str, float]) -> _Settings:
    """Settings from a request's map; InvalidRequestError names the parameter that is unknown or out of bounds."""
    known = {parameter.name: parameter for parameter in parameters_of(settings_type)}
    for name in given:
        if name not in known:
            names = ", ".join(known) or "none"
            raise InvalidRequestError(_field(name), f"unknown parameter; this policy has: {names}")
    return settings_type(**{name: parse_parameter(known[name], value) for name, value in given.items()})


def parse_parameter(parameter: Parameter, value: float) -> int | float | bool:
    """The value in the parameter's own type; InvalidRequestError if it is out of bounds or not whole."""
    bounds = parameter.bounds
    if not (math.isfinite(value) and bounds.low <= value <= bounds.high):
        raise InvalidRequestError(_field(parameter.name), f"{value} is not in [{bounds.low:g}, {bounds.high:g}]")
    if isinstance(parameter.default, int) and value != int(value):
        raise InvalidRequestError(_field(parameter.name), f"{value} is not a whole number")
    return type(parameter.default)(value)


def _field(name: str) -> str:
    return f"speculation.policy_parameters[{name}]"
