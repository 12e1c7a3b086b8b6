"""Policies that look at nothing, or only at how many tokens were accepted."""

from collections.abc import Mapping
from dataclasses import dataclass

from controller.policies.base import ChunkPlan, ChunkPolicy, PlanState, RoundOutcome
from controller.policies.settings import setting


@dataclass(frozen=True, slots=True)
class OffSettings:
    """Nothing to set."""


@dataclass(frozen=True, slots=True)
class FixedSettings:
    """Settings of `fixed`."""

    length: int = setting(5, 0, 1024, "draft tokens of every chunk")


class FixedPolicy(ChunkPolicy):
    """The same length every round (arXiv 2211.17192): the baseline of every adaptive rule."""

    def __init__(self, settings: FixedSettings) -> None:
        self._length = settings.length

    def plan(self, state: PlanState) -> ChunkPlan:
        """The length, as far as it is of use."""
        return ChunkPlan(min(self._length, state.limit))

    def observe(self, outcome: RoundOutcome) -> None:
        """Nothing to learn."""


def off_policy() -> FixedPolicy:
    """No speculation: every round is one plain step of the target."""
    return FixedPolicy(FixedSettings(length=0))


@dataclass(frozen=True, slots=True)
class HeuristicSettings:
    """Settings of `heuristic`."""

    initial_length: int = setting(5, 1, 1024, "draft tokens of the first chunk")
    max_length: int = setting(20, 1, 1024, "most draft tokens of a chunk")


class HeuristicPolicy(ChunkPolicy):
    """Two more after a chunk accepted whole, else one less, at least 1 (transformers' `heuristic` schedule)."""

    def __init__(self, settings: HeuristicSettings) -> None:
        self._max_length = settings.max_length
        self._length = min(settings.initial_length, settings.max_length)

    def snapshot(self) -> Mapping[str, float]:
        """The length."""
        return {"length": self._length}

    def plan(self, state: PlanState) -> ChunkPlan:
        """The current length, as far as it is of use."""
        return ChunkPlan(min(self._length, state.limit))

    def observe(self, outcome: RoundOutcome) -> None:
        """Moves the length; a round without draft tokens says nothing."""
        if outcome.drafted_len == 0:
            return
        self._length = max(1, self._length - 1) if outcome.rejected else min(self._length + 2, self._max_length)
