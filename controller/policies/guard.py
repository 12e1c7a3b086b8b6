"""The goodput guard: speculation only while it pays, and never slower than none for long.

**Forecast.** Tokens per second of every length up to the policy's, `E(length) / round(length)`, from measured costs
(costs.py) and yields (yields.py), against those of a plain round. The guard caps the policy's length at the best one.

**Hysteresis.** A request speculates until the best forecast is worse than plain decoding, and begins again only when
it is better by a margin. While off, nothing new is learnt about its yields, so the forecast cannot flap by itself.

**The pot.** What a forecast gets wrong, an account gets right. All requests of a pair share one account of time: a
speculative round pays in `tokens * plain - round`, what it won (or lost) against plain rounds for the same tokens; a
plain round pays in a small fraction of its time. While the account is empty nobody speculates. So however wrong
yields or forecasts are, the total stays under (1 + fraction) times the time of plain decoding plus the account's
start, which is a constant. A trial, to see whether speculation pays by now, needs a filled account, which bounds the
cost of trials by the same argument.

**Measuring.** The account is only as right as the measured plain round. While speculation is on, from time to time
all requests of the pair run plain rounds together; rarer, the more they would lose by it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from controller.policies.base import ChunkPlan, ChunkPolicy, PlanState, RoundOutcome, Signal
from controller.policies.knowledge import PairKnowledge
from controller.policies.settings import setting, switch
from controller.policies.yields import YieldModel

_REQUEST_MEMORY_ROUNDS = 50
_WORST_ROUND = 4.0
"""A round is charged at most this many times its forecast: a hiccup of the machine is not speculation's fault."""


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """Settings of the guard."""

    on_margin: float = setting(0.03, 0.0, 10.0, "forecast gain over plain decoding at which speculation starts again")
    loss_fraction: float = setting(0.005, 0.0, 1.0, "fraction of plain decoding time that trials may cost")
    start_rounds: float = setting(16.0, 0.0, 1e6, "what the account starts with, in plain rounds")
    most_rounds: float = setting(128.0, 1.0, 1e6, "most the account holds, in plain rounds")
    trial_rounds: int = setting(4, 1, 1000, "rounds of a trial")
    trial_price: float = setting(4.0, 0.0, 1e6, "what the account must hold for a trial, in plain rounds")
    trial_pause: int = setting(64, 0, 1_000_000, "least plain rounds of a request between two trials")
    dwell_rounds: int = setting(8, 0, 1_000_000, "least rounds of a request between switching on and off")
    measure_interval: int = setting(64, 1, 1_000_000, "least speculative rounds of a request between plain ones")
    trim: bool = switch(True, "whether the forecast also shortens chunks")


class GuardLedger:
    """The part of the guard that all requests of a pair share: the account, and when to measure plain rounds."""

    def __init__(self, knowledge: PairKnowledge, settings: GuardSettings) -> None:
        self._knowledge = knowledge
        self._settings = settings
        self._account_ns: float | None = None
        self._speculative_rounds = 0
        self._measurements_due = 0
        self._rounds_left = 0

    @property
    def account_ns(self) -> float:
        """Time won so far, within its bounds; infinite until a plain round is known."""
        return float("inf") if self._account_ns is None else self._account_ns

    @property
    def solvent(self) -> bool:
        """Whether anybody may speculate."""
        return self.account_ns > 0.0

    @property
    def can_pay_trial(self) -> bool:
        """Whether there is enough for a trial."""
        return self.account_ns >= self._settings.trial_price * self._plain_ns

    @property
    def _plain_ns(self) -> float:
        return self._knowledge.costs.plain_ns(self._knowledge.batch_size)

    def measuring(self, gain: float) -> bool:
        """Whether everybody is to run plain rounds now; `gain` is what speculation wins by the asking forecast."""
        if self._measurements_due == 0 and self._due(gain):
            live = max(1, self._knowledge.live_requests)
            # Alone, one round is a measurement. In a batch the first plain round still meets others' chunks.
            self._measurements_due = 1 if live == 1 and self._knowledge.costs.knows_plain else 2 * live
            self._rounds_left = 4 * live
        return self._measurements_due > 0

    def _due(self, gain: float) -> bool:
        if not self._knowledge.costs.knows_plain:
            return True
        # A measurement costs about 2 rounds of the (1 - 1 / gain) that speculation saves.
        interval = max(self._settings.measure_interval, 2.0 / 0.005 * (1.0 - 1.0 / max(gain, 1.0)))
        return self._speculative_rounds >= interval * max(1, self._knowledge.live_requests)

    def observe(self, outcome: RoundOutcome, forecast_ns: float) -> None:
        """Books a round; `forecast_ns` is what one of its length was expected to take."""
        plain_ns = self._knowledge.costs.plain_ns(outcome.batch_size)
        if self._account_ns is None and self._knowledge.costs.knows_plain:
            self._account_ns = self._settings.start_rounds * plain_ns
        round_ns = min(outcome.round_ns, _WORST_ROUND * forecast_ns)
        if outcome.drafted_len:
            self._speculative_rounds += 1
            income = (outcome.accepted_len + 1) * plain_ns - round_ns
        else:
            self._speculative_rounds = 0
            self._measurements_due = max(0, self._measurements_due - 1)
            income = self._settings.loss_fraction * round_ns
        self._rounds_left -= 1
        if self._rounds_left <= 0:
            # Somebody holds still; the others do not wait for it.
            self._measurements_due = 0
        if self._account_ns is not None:
            self._account_ns = min(self._account_ns + income, self._settings.most_rounds * plain_ns)


class _Mode(Enum):
    ON = 1
    OFF = 2
    TRIAL = 3


@dataclass(frozen=True, slots=True)
class Forecast:
    """The best length and how many times as many tokens per second it brings as plain decoding."""

    length: int
    gain: float


class GuardedPolicy(ChunkPolicy):
    """A policy under the guard: at most its length, 0 while speculation does not pay."""

    def __init__(
        self, policy: ChunkPolicy, knowledge: PairKnowledge, ledger: GuardLedger, settings: GuardSettings
    ) -> None:
        self._policy = policy
        self._knowledge = knowledge
        self._ledger = ledger
        self._settings = settings
        self._yields = YieldModel(_REQUEST_MEMORY_ROUNDS, prior=knowledge.yields)
        self._mode: _Mode | None = None
        self._mode_rounds = 0
        self._rounds = 0
        self._planned_len = 0
        self._forecast = Forecast(0, 1.0)

    @property
    def wanted_signals(self) -> frozenset[Signal]:
        """The policy's."""
        return self._policy.wanted_signals

    def snapshot(self) -> Mapping[str, float]:
        """The policy's numbers and the guard's."""
        return {
            **self._policy.snapshot(),
            "guard_on": float(self._mode is not _Mode.OFF),
            "guard_gain": self._forecast.gain,
            "guard_length": self._forecast.length,
        }

    def plan(self, state: PlanState) -> ChunkPlan:
        """The policy's plan, its length cut to the best one, or to 0."""
        wanted = self._policy.plan(state)
        length = self._allowed(wanted.max_tokens) if wanted.max_tokens else 0
        self._planned_len = length
        return replace(wanted, max_tokens=length) if length else ChunkPlan(0)

    def observe(self, outcome: RoundOutcome) -> None:
        """Books the round, learns its yield, and lets the policy learn."""
        if self._rounds:
            expected_ns = self._knowledge.costs.round_ns(outcome.drafted_len, outcome.batch_size)
            self._ledger.observe(outcome, expected_ns)
        if self._planned_len:
            self._yields.observe(self._planned_len, outcome.drafted_len, outcome.accepted_len)
        self._rounds += 1
        self._mode_rounds += 1
        self._policy.observe(outcome)

    def forecast(self, max_length: int) -> Forecast:
        """The best length from 1 to `max_length` in the batch as it is, and its gain."""
        costs, batch_size = self._knowledge.costs, self._knowledge.batch_size
        plain_ns = costs.plain_ns(batch_size)
        best = Forecast(0, 0.0)
        for length, expected in enumerate(self._yields.table(max_length)):
            if length == 0:
                continue
            round_ns = costs.round_ns(expected.drafted, batch_size)
            gain = expected.tokens * plain_ns / round_ns if round_ns else expected.tokens
            if gain > best.gain:
                best = Forecast(length, gain)
        return best

    def _allowed(self, max_length: int) -> int:
        costs = self._knowledge.costs
        if not costs.knows_plain:
            return 0 if self._ledger.measuring(1.0) else max_length
        if not costs.knows_speculation:
            return max_length if self._ledger.solvent else 0
        self._forecast = self.forecast(max_length)
        self._switch()
        if self._mode is _Mode.OFF or (self._mode is _Mode.ON and self._ledger.measuring(self._forecast.gain)):
            return 0
        return self._forecast.length if self._settings.trim else max_length

    def _switch(self) -> None:
        mode = self._next_mode()
        if mode is not self._mode:
            self._mode = mode
            self._mode_rounds = 0

    def _next_mode(self) -> _Mode:
        """The state machine; a new request starts on if the pair's yields say that it pays."""
        gain, settings = self._forecast.gain, self._settings
        if not self._ledger.solvent:
            return _Mode.OFF
        match self._mode:
            case None:
                return _Mode.ON if gain >= 1.0 else self._trial_or_off(first=True)
            case _Mode.ON:
                return _Mode.OFF if gain < 1.0 and self._mode_rounds >= settings.dwell_rounds else _Mode.ON
            case _Mode.TRIAL:
                if self._mode_rounds < settings.trial_rounds:
                    return _Mode.TRIAL
                return _Mode.ON if gain >= 1.0 + settings.on_margin else _Mode.OFF
            case _Mode.OFF:
                if self._mode_rounds < settings.dwell_rounds:
                    return _Mode.OFF
                return _Mode.ON if gain >= 1.0 + settings.on_margin else self._trial_or_off(first=False)

    def _trial_or_off(self, first: bool) -> _Mode:
        rested = first or self._mode_rounds >= self._settings.trial_pause
        return _Mode.TRIAL if rested and self._ledger.can_pay_trial else _Mode.OFF
