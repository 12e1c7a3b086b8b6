"""Rounds that began with looked-up tokens are kept from what learns how far to trust the model."""

from collections.abc import Mapping

from controller.policies.base import ChunkPlan, ChunkPolicy, PlanState, RoundOutcome
from speculative.sampling.types import Signal


class WithoutLookups(ChunkPolicy):
    """A policy that is told only of rounds that the model drafted alone.

    A looked-up token has entropy 0 and probability 1 whether it stands or not, and one that falls says nothing about
    the model's tokens behind it. Costs and the guard's account take such rounds in all the same (knowledge.py).
    """

    def __init__(self, policy: ChunkPolicy) -> None:
        self._policy = policy

    @property
    def wanted_signals(self) -> frozenset[Signal]:
        """The policy's."""
        return self._policy.wanted_signals

    def snapshot(self) -> Mapping[str, float]:
        """The policy's."""
        return self._policy.snapshot()

    def plan(self, state: PlanState) -> ChunkPlan:
        """The policy's."""
        return self._policy.plan(state)

    def observe(self, outcome: RoundOutcome) -> None:
        """Passes the round on, unless something in it was looked up."""
        if not outcome.looked_up_len:
            self._policy.observe(outcome)
