"""Policies by name, as requests and server settings name them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from controller.policies.adasd import AdaSDPolicy, AdaSDSettings
from controller.policies.base import ChunkPolicy
from controller.policies.baselines import (
    FixedPolicy,
    FixedSettings,
    HeuristicPolicy,
    HeuristicSettings,
    OffSettings,
    off_policy,
)
from controller.policies.settings import Parameter, parameters_of, parse_settings
from speculative.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class _Entry:
    settings_type: type[Any]
    build: Callable[[Any], ChunkPolicy]


_ENTRIES: Mapping[str, _Entry] = {
    "off": _Entry(OffSettings, off_policy),
    "fixed": _Entry(FixedSettings, FixedPolicy),
    "heuristic": _Entry(HeuristicSettings, HeuristicPolicy),
    "adasd": _Entry(AdaSDSettings, AdaSDPolicy),
}


def policy_names() -> tuple[str, ...]:
    """All policies, in the order of the documentation."""
    return tuple(_ENTRIES)


def policy_parameters(name: str) -> Iterable[Parameter]:
    """What can be set on a policy; InvalidRequestError for an unknown name."""
    return parameters_of(_entry(name).settings_type)


def make_policy(name: str, parameters: Mapping[str, float]) -> ChunkPolicy:
    """A policy for one request; parameters not given have their defaults.

    InvalidRequestError, field "speculation.policy" for an unknown name, "speculation.policy_parameters[NAME]" for a
    parameter that the policy does not have or whose value is out of bounds.
    """
    entry = _entry(name)
    return entry.build(parse_settings(entry.settings_type, parameters))


def _entry(name: str) -> _Entry:
    if name not in _ENTRIES:
        raise InvalidRequestError("speculation.policy", f"unknown policy {name!r}; there are: {', '.join(_ENTRIES)}")
    return _ENTRIES[name]
