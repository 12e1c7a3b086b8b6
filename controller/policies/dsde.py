"""DSDE: chunk lengths from how large and how stable the divergence of the two models is (arXiv 2509.01083)."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from controller.policies.base import ChunkPlan, ChunkPolicy, PlanState, RoundOutcome
from controller.policies.batch_cap import BatchCap
from controller.policies.settings import setting, switch
from speculative.sampling.types import Signal

FLAT_VARIANCE = 1e-6
"""Long-window variance (nats squared) below which the variance ratio is not formed."""
FLAT_RATIO = 20.0
"""Variance ratio of such a flat history: as unstable as can be."""
_EPSILON = 1e-8


@dataclass(frozen=True, slots=True)
class DsdeSettings:
    """Settings of `dsde`; defaults are the paper's."""

    max_length: int = setting(20, 1, 1024, "most draft tokens of a chunk")
    min_length: int = setting(2, 0, 1024, "least draft tokens of a chunk after calibration")
    min_fraction: float = setting(0.0, 0.0, 1.0, "least draft tokens as a fraction of the calibrated maximum")
    initial_length: int = setting(5, 1, 1024, "draft tokens of the first chunk")
    window: int = setting(30, 2, 10_000, "divergences remembered, and drafted tokens of the calibration")
    decay: float = setting(0.85, 0.01, 1.0, "weight of a divergence relative to the next newer one")
    growth: float = setting(1.0, 0.0, 10.0, "how far the calibrated maximum exceeds the longest accepted run (c)")
    divide_by_temperature: bool = switch(False, "whether the divergence is divided by the temperature")
    reopen: bool = switch(False, "whether the maximum doubles when a chunk that long is accepted whole (ours)")
    batch_cap: bool = switch(True, "whether the mean over the batch caps the length")


CODE_VARIANT: Mapping[str, float] = {
    "min_length": 1,
    "min_fraction": 0.1,
    "decay": 0.9,
    "growth": 0.5,
    "divide_by_temperature": 1,
}
"""Parameters with which `dsde` computes what the authors' code does where that differs from the paper."""


def weighted_variance(values: Sequence[float], decay: float) -> float:
    """Variance with weights `decay^age`, age 0 being the last value; section 3 of the paper."""
    weights = [decay**age for age in range(len(values) - 1, -1, -1)]
    total = sum(weights)
    mean = sum(weight * value for weight, value in zip(weights, values, strict=True)) / total
    return sum(weight * (value - mean) ** 2 for weight, value in zip(weights, values, strict=True)) / total


def variance_ratio(klds: Sequence[float], decay: float) -> float:
    """WVIR: weighted variance of the last third of `klds` (oldest first) over that of all of them.

    0 for fewer than 2 values; 20 where all of them hardly vary.
    """
    if len(klds) < 2:
        return 0.0
    long_variance = weighted_variance(klds, decay)
    if long_variance < FLAT_VARIANCE:
        return FLAT_RATIO
    short_len = max(1, len(klds) // 3)
    return weighted_variance(klds[-short_len:], decay) / long_variance


def scale_factor(mean_kld: float) -> float:
    """`SF = exp(2 mean_kld) - 1`, from the mean divergence (nats) of the last round."""
    return math.expm1(2.0 * mean_kld)


def predicted_length(penalty: float, min_length: int, max_length: int) -> int:
    """`SL = (1 - penalty) (max - min) + min`, rounded up; the minimum where `penalty = SF * WVIR` exceeds 1."""
    if penalty > 1.0:
        return min_length
    # A whole number must not be rounded up because of its last binary digit.
    return math.ceil((1.0 - penalty) * (max_length - min_length) + min_length - 1e-9)


@dataclass(frozen=True, slots=True)
class LengthRange:
    """The calibrated range of lengths, frozen for the rest of the request."""

    min_length: int
    max_length: int


def calibrated_range(longest_accepted: int, klds: Sequence[float], settings: DsdeSettings) -> LengthRange:
    """`SL_max = A_max (1 + c mean_kld / (max_kld + eps))`, rounded and kept in the configured range; and `SL_min`."""
    growth = settings.growth * (sum(klds) / len(klds)) / (max(klds) + _EPSILON)
    wanted = round(longest_accepted * (1.0 + growth))
    max_length = min(settings.max_length, max(settings.min_length, wanted))
    min_length = max(settings.min_length, math.ceil(settings.min_fraction * max_length))
    return LengthRange(min(min_length, max_length), max_length)


class DsdeLength:
    """The length rule of one request: calibration, then stability of the divergence, then the batch's cap.

    A round without divergences (none drafted, or the verifier did not send them) changes no history; with a verifier
    that never sends them the request stays in calibration and the rule is `blind`.
    """

    def __init__(self, settings: DsdeSettings, cap: BatchCap) -> None:
        self._settings = settings
        self._cap = cap
        self._length = min(settings.initial_length, settings.max_length)
        self._drafted = False
        self._longest_accepted = 0
        self._calibration_klds: list[float] = []
        self._klds: deque[float] = deque(maxlen=settings.window)
        self._mean_last = 0.0
        self._range: LengthRange | None = None
        self._batch_size = 1

    @property
    def calibrating(self) -> bool:
        """Whether the range of lengths is not known yet."""
        return self._range is None

    @property
    def blind(self) -> bool:
        """Whether chunks came back without divergences, so that calibration does not get on."""
        return self._drafted and not self._klds

    def snapshot(self) -> Mapping[str, float]:
        """What the next length rests on; `sl` is the length before the cap."""
        if self._range is None:
            return {"calibrating": 1.0, "sl": self._length}
        return {
            "calibrating": 0.0,
            "sl": self._length,
            "sl_min": self._range.min_length,
            "sl_max": self._range.max_length,
            "mean_kld": self._mean_last,
            "wvir": variance_ratio(list(self._klds), self._settings.decay),
        }

    def length(self, state: PlanState) -> int:
        """Draft tokens of the next chunk."""
        if self._range is None:
            return min(self._length, state.limit)
        self._length = self._stable_length(self._range, state.temperature)
        self._cap.report(self, self._length)
        limit = self._cap.limit(self._batch_size) if self._settings.batch_cap else None
        return min(self._length, state.limit) if limit is None else min(self._length, limit, state.limit)

    def observe(self, outcome: RoundOutcome) -> None:
        """Takes the round's divergences, for all drafted positions, those behind the first rejection too."""
        self._batch_size = outcome.batch_size
        if outcome.kl_nats:
            self._klds.extend(outcome.kl_nats)
            self._mean_last = sum(outcome.kl_nats) / len(outcome.kl_nats)
        if self._range is None and outcome.drafted_len:
            self._calibrate(outcome)
        elif self._range is not None and self._settings.reopen:
            self._range = self._reopened(self._range, outcome)

    def _calibrate(self, outcome: RoundOutcome) -> None:
        self._drafted = True
        self._longest_accepted = max(self._longest_accepted, outcome.accepted_len)
        self._calibration_klds.extend(outcome.kl_nats)
        if not outcome.rejected:
            self._length = min(2 * self._length, self._settings.max_length)
        if len(self._calibration_klds) >= self._settings.window:
            self._range = calibrated_range(self._longest_accepted, self._calibration_klds, self._settings)
            self._calibration_klds.clear()

    def _reopened(self, lengths: LengthRange, outcome: RoundOutcome) -> LengthRange:
        """The text may have become easier than all of the calibration was."""
        if outcome.rejected or outcome.drafted_len < lengths.max_length:
            return lengths
        return replace(lengths, max_length=min(2 * lengths.max_length, self._settings.max_length))

    def _stable_length(self, lengths: LengthRange, temperature: float) -> int:
        divide = self._settings.divide_by_temperature and temperature > 0.0
        mean_kld = self._mean_last / temperature if divide else self._mean_last
        # Rounding on the wire can leave a divergence of zero slightly negative; beyond 300 nats exp would overflow.
        penalty = scale_factor(min(max(mean_kld, 0.0), 300.0)) * variance_ratio(list(self._klds), self._settings.decay)
        return predicted_length(penalty, lengths.min_length, lengths.max_length)


class DsdePolicy(ChunkPolicy):
    """Draft length from KL stability, request by request, capped across the batch (arXiv 2509.01083).

    KL(target || draft) comes back with every verdict. Until `window` divergences are seen the length doubles after
    every chunk accepted whole; then the range is frozen and every round's length follows `SF * WVIR`.
    """

    def __init__(self, settings: DsdeSettings, cap: BatchCap) -> None:
        self._rule = DsdeLength(settings, cap)

    @property
    def wanted_signals(self) -> frozenset[Signal]:
        """The divergences."""
        return frozenset({Signal.KL})

    def snapshot(self) -> Mapping[str, float]:
        """What the next length rests on."""
        return self._rule.snapshot()

    def plan(self, state: PlanState) -> ChunkPlan:
        """The rule's length, no stop rule."""
        return ChunkPlan(self._rule.length(state))

    def observe(self, outcome: RoundOutcome) -> None:
        """Feeds the rule."""
        self._rule.observe(outcome)
