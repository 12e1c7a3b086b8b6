"""The default: DSDE sets how far to draft, AdaSD's entropy threshold where to stop."""

from collections.abc import Mapping
from dataclasses import dataclass

from controller.policies.adasd import EntropyThreshold
from controller.policies.base import ChunkPlan, ChunkPolicy, PlanState, RoundOutcome
from controller.policies.batch_cap import BatchCap
from controller.policies.dsde import DsdeLength, DsdeSettings
from controller.policies.settings import setting, switch
from speculative.sampling.types import Signal


@dataclass(frozen=True, slots=True)
class AdaSDDsdeSettings(DsdeSettings):
    """Settings of `adasd+dsde`: DSDE's, with other defaults where AdaSD stops what DSDE need not shorten."""

    min_length: int = setting(4, 0, 1024, "least draft tokens allowed after calibration")
    reopen: bool = switch(True, "whether the maximum doubles when a chunk that long is accepted whole (ours)")


class AdaSDDsdePolicy(ChunkPolicy):
    """DSDE's length (arXiv 2509.01083) with AdaSD's stop rule (arXiv 2512.11280) inside the chunk.

    DSDE lags by a round and looks at the region; AdaSD looks at the very token and needs a cap, which DSDE provides.
    While DSDE calibrates, the stop rule only learns: the longest accepted run is to measure the pair, not the rule.
    Without divergences this is AdaSD with DSDE's growing calibration length for a cap.
    """

    def __init__(self, settings: AdaSDDsdeSettings, cap: BatchCap) -> None:
        self._rule = DsdeLength(settings, cap)
        self._threshold = EntropyThreshold()

    @property
    def wanted_signals(self) -> frozenset[Signal]:
        """The divergences."""
        return frozenset({Signal.KL})

    def snapshot(self) -> Mapping[str, float]:
        """What DSDE's length rests on, and the threshold once there is one."""
        nats = self._threshold.nats
        return {**self._rule.snapshot(), **({} if nats is None else {"stop_entropy_nats": nats})}

    def plan(self, state: PlanState) -> ChunkPlan:
        """DSDE's length; AdaSD's threshold once DSDE is past calibration."""
        muted = self._rule.calibrating and not self._rule.blind
        stop = None if muted else self._threshold.nats
        return ChunkPlan(self._rule.length(state), stop_entropy_nats=stop)

    def observe(self, outcome: RoundOutcome) -> None:
        """Feeds both."""
        self._rule.observe(outcome)
        self._threshold.observe(outcome)
