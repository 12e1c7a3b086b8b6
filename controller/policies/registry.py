"""Policies by name, as requests and server settings name them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from controller.policies.adasd import AdaSDPolicy, AdaSDSettings
from controller.policies.bandit import BanditPolicy, BanditSettings, BanditTable
from controller.policies.base import ChunkPolicy
from controller.policies.baselines import (
    FixedPolicy,
    FixedSettings,
    HeuristicPolicy,
    HeuristicSettings,
    OffSettings,
    off_policy,
)
from controller.policies.combined import AdaSDDsdePolicy, AdaSDDsdeSettings
from controller.policies.dsde import DsdePolicy, DsdeSettings
from controller.policies.entropy_stops import AdaEDLPolicy, AdaEDLSettings, SvipPolicy, SvipSettings
from controller.policies.goodput import GoodputPolicy, GoodputSettings
from controller.policies.guard import GuardedPolicy, GuardLedger, GuardSettings
from controller.policies.hf_dynamic import HfDynamicPolicy, HfDynamicSettings
from controller.policies.knowledge import PairKnowledge, PooledPolicy
from controller.policies.looked_up import WithoutLookups
from controller.policies.settings import Bounds, Parameter, parameters_of, parse_parameter, parse_settings
from speculative.errors import InvalidRequestError

DEFAULT_POLICY = "adasd"
"""What a server uses unless told otherwise; why not `adasd+dsde`: docs/decisions/0009."""

GUARD = Parameter("guard", True, Bounds(0, 1, "whether the goodput guard may shorten chunks, to 0 if need be"))
"""The parameter that every policy has besides its own; its default is the server's setting."""


class PolicyFactory:
    """Makes the policies of all requests on one draft and verifier pair, which share what they learn.

    `guard` are the settings of the goodput guard around every policy; None leaves policies to themselves unless a
    request asks for the guard.
    """

    def __init__(self, guard: GuardSettings | None = None) -> None:
        self._guarded = guard is not None
        self._guard_settings = guard or GuardSettings()
        self.knowledge = PairKnowledge()
        self._ledger = GuardLedger(self.knowledge, self._guard_settings)
        self._tables: dict[BanditSettings, BanditTable] = {}

    def make(self, name: str, parameters: Mapping[str, float]) -> ChunkPolicy:
        """A policy for one request; parameters not given have their defaults.

        InvalidRequestError, field "speculation.policy" for an unknown name, "speculation.policy_parameters[NAME]" for
        a parameter that the policy does not have or whose value is out of bounds.
        """
        entry = _entry(name)
        own = {key: value for key, value in parameters.items() if key != GUARD.name}
        guarded = self._guarded
        if GUARD.name in parameters:
            guarded = bool(parse_parameter(GUARD, parameters[GUARD.name]))
        policy: ChunkPolicy = WithoutLookups(entry.build(parse_settings(entry.settings_type, own), self))
        if guarded:
            policy = GuardedPolicy(policy, self.knowledge, self._ledger, self._guard_settings)
        return PooledPolicy(policy, self.knowledge)

    def bandit_table(self, settings: BanditSettings) -> BanditTable:
        """The table shared by all requests that use the bandit with these settings."""
        return self._tables.setdefault(settings, BanditTable(settings))


@dataclass(frozen=True, slots=True)
class _Entry:
    settings_type: type[Any]
    build: Callable[[Any, PolicyFactory], ChunkPolicy]


_ENTRIES: Mapping[str, _Entry] = {
    "adasd+dsde": _Entry(AdaSDDsdeSettings, lambda settings, pair: AdaSDDsdePolicy(settings, pair.knowledge.cap)),
    "adasd": _Entry(AdaSDSettings, lambda settings, _: AdaSDPolicy(settings)),
    "dsde": _Entry(DsdeSettings, lambda settings, pair: DsdePolicy(settings, pair.knowledge.cap)),
    "fixed": _Entry(FixedSettings, lambda settings, _: FixedPolicy(settings)),
    "heuristic": _Entry(HeuristicSettings, lambda settings, _: HeuristicPolicy(settings)),
    "hf_dynamic": _Entry(HfDynamicSettings, lambda settings, _: HfDynamicPolicy(settings)),
    "adaedl": _Entry(AdaEDLSettings, lambda settings, _: AdaEDLPolicy(settings)),
    "svip": _Entry(SvipSettings, lambda settings, _: SvipPolicy(settings)),
    "goodput": _Entry(GoodputSettings, lambda settings, pair: GoodputPolicy(settings, pair.knowledge.costs)),
    "bandit": _Entry(
        BanditSettings, lambda settings, pair: BanditPolicy(pair.bandit_table(settings), pair.knowledge.costs)
    ),
    "off": _Entry(OffSettings, lambda _, __: off_policy()),
}


def policy_names() -> tuple[str, ...]:
    """All policies, in the order of the documentation."""
    return tuple(_ENTRIES)


def policy_parameters(name: str) -> Iterable[Parameter]:
    """What can be set on a policy besides the guard; InvalidRequestError for an unknown name."""
    return parameters_of(_entry(name).settings_type)


def make_policy(name: str, parameters: Mapping[str, float]) -> ChunkPolicy:
    """A policy that shares nothing with any other, without the guard unless asked for; see `PolicyFactory.make`."""
    return PolicyFactory().make(name, parameters)


def _entry(name: str) -> _Entry:
    if name not in _ENTRIES:
        raise InvalidRequestError("speculation.policy", f"unknown policy {name!r}; there are: {', '.join(_ENTRIES)}")
    return _ENTRIES[name]
