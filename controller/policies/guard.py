"""The goodput guard: speculation only while it pays, and never slower than none for long.

**Forecast.** Tokens per second of every length up to the policy's, `E(length) / round(length)`, from measured costs
(costs.py) and yields (yields.py), against those of a plain round. The guard caps the policy's length at the best one.

**Hysteresis.** A request speculates until the best forecast is worse than plain decoding, and begins again only when
it is better by a margin. While off, nothing new is learnt about its yields, so the forecast cannot flap by itself.

**The account.** What a forecast gets wrong, an account gets right. All requests of a pair share one account of time:
every round pays in `tokens * plain - round`, what it won (or lost) against plain rounds for the same tokens, and a
plain round a small fraction of its time besides. While the account is empty nobody speculates. So however wrong
yields or forecasts are, the total stays under (1 + fraction) times the time of plain decoding plus the account's
start, which is a constant. A trial, to see whether speculation pays by now, needs a filled account, which bounds the
cost of trials by the same argument.

**Measuring.** The account is only as right as the measured plain round. While speculation is on, from time to time
all requests of the pair run plain rounds together; rarer, the more they would lose by it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from controller.policies.base import ChunkPlan, ChunkPolicy, PlanState, RoundOutcome
from controller.policies.knowledge import PairKnowledge
from controller.policies.live import LiveValues
from controller.policies.settings import setting, switch
from controller.policies.yields import YieldModel
from speculative.sampling.types import Signal

_REQUEST_MEMORY_ROUNDS = 50
_FIRST_BATCHES = 2.0
_MEASURED_BATCHES = 1.0
"""Plain batches that make a measurement: at the start, and later."""
_FIRST_INTERVAL = 4
"""Rounds to the second measurement; the interval doubles from there."""
_BEYOND_DOUBT = 1.3
"""Gain that no error of a first measurement explains."""
_LONGEST_TRIAL = 32
"""Rounds after which a trial that earns its keep is decided by the forecast."""
_WORST_ROUND = 4.0
"""A round is charged at most this many times its forecast: a hiccup of the machine is not speculation's fault."""


@dataclass(frozen=True, slots=True)
class GuardSettings:
    """Settings of the guard."""

    on_margin: float = setting(0.03, 0.0, 10.0, "forecast gain over plain decoding at which speculation starts again")
    loss_fraction: float = setting(0.004, 0.0, 1.0, "fraction of plain decoding time that trials may cost")
    start_rounds: float = setting(6.0, 0.0, 1e6, "what the account starts with, in plain rounds")
    most_rounds: float = setting(128.0, 1.0, 1e6, "most the account holds, in plain rounds")
    trial_rounds: int = setting(4, 1, 1000, "rounds of a trial")
    trial_price: float = setting(4.0, 0.0, 1e6, "what the account must hold for a trial, in plain rounds")
    trial_pause: int = setting(64, 0, 1_000_000, "plain rounds of a request before its next trial; doubles each time")
    dwell_rounds: int = setting(8, 0, 1_000_000, "least rounds of a request between switching on and off")
    measure_interval: int = setting(32, 1, 1_000_000, "least speculative rounds of a request between plain ones")
    trim: bool = switch(True, "whether the forecast also shortens chunks")


class GuardLedger:
    """The part of the guard that all requests of a pair share: the account, and when to measure plain rounds."""

    def __init__(self, knowledge: PairKnowledge, settings: GuardSettings) -> None:
        self._knowledge = knowledge
        self._settings = settings
        self._account_ns: float | None = None
        self._rounds_since_plain = 0
        self._measurements = 0
        self._batches_due = 0.0
        self._patience_rounds = 0.0
        self._trials = LiveValues()

    @property
    def account_ns(self) -> float:
        """Time won so far, within its bounds; infinite until a plain round is known."""
        return float("inf") if self._account_ns is None else self._account_ns

    @property
    def solvent(self) -> bool:
        """Whether anybody may speculate."""
        return self.account_ns > 0.0

    def begin_trial(self, request: object) -> bool:
        """Whether a request may make a trial: there must be enough in the account for it besides those under way."""
        price_ns = self._settings.trial_price * self._knowledge.costs.plain_ns(self._knowledge.batch_size)
        affordable = self.account_ns >= price_ns * (1 + len(self._trials))
        if affordable:
            self._trials.set(request, 1.0)
        return affordable

    def end_trial(self, request: object) -> None:
        """A trial is over; harmless if there was none."""
        self._trials.leave(request)

    def measuring(self, gain: float) -> bool:
        """Whether everybody is to run plain rounds now; `gain` is what speculation wins by the asking forecast."""
        if self._batches_due <= 1e-9 and self._due(gain):
            self._batches_due = _MEASURED_BATCHES if self._knowledge.costs.knows_plain else _FIRST_BATCHES
            self._patience_rounds = 4.0 * self._batches_due
            self._measurements += 1
        return self._batches_due > 1e-9

    def _due(self, gain: float) -> bool:
        if not self._knowledge.costs.knows_plain:
            return True
        # A measurement costs about two rounds of the (1 - 1 / gain) that speculation saves.
        interval = max(self._settings.measure_interval, 2.0 * _MEASURED_BATCHES / 0.005 * (1.0 - 1.0 / max(gain, 1.0)))
        if gain < _BEYOND_DOUBT:
            # The first ones follow one another closely: an error in what little is known would decide everything.
            interval = min(interval, _FIRST_INTERVAL * 2.0**self._measurements)
        return self._rounds_since_plain >= interval * self._knowledge.live_requests

    def observe(self, outcome: RoundOutcome, forecast_ns: float) -> None:
        """Books a round; `forecast_ns` is what one of its length was expected to take."""
        batch_size = max(1, outcome.batch_size)
        plain_ns = self._knowledge.costs.plain_ns(batch_size)
        if self._account_ns is None and self._knowledge.costs.knows_plain:
            self._account_ns = self._settings.start_rounds * plain_ns
        self._count(batch_size)
        round_ns = min(outcome.round_ns, _WORST_ROUND * forecast_ns)
        won_ns = (outcome.accepted_len + 1) * plain_ns - round_ns
        if self._account_ns is not None:
            allowance = 0.0 if outcome.drafted_len else self._settings.loss_fraction * plain_ns
            # The sessions of a batch spend the same time together.
            balance = self._account_ns + (won_ns + allowance) / batch_size
            self._account_ns = min(balance, self._settings.most_rounds * plain_ns)

    def _count(self, batch_size: int) -> None:
        self._rounds_since_plain += 1
        self._patience_rounds -= 1.0 / self._knowledge.live_requests
        if self._knowledge.mean_length == 0.0:
            self._rounds_since_plain = 0
            self._batches_due -= 1.0 / batch_size
        if self._patience_rounds <= 0.0:
            # Somebody drafts on, or holds still; the others do not wait for it for ever.
            self._batches_due = 0.0


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
        self._trial_ns = 0.0
        self._rounds = 0
        self._pause_rounds = settings.trial_pause
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
            costs = self._knowledge.costs
            forecast_ns = costs.round_ns(outcome.drafted_len, outcome.batch_size)
            self._ledger.observe(outcome, forecast_ns)
            # As if the whole batch did the same: among plain sessions, drafting pays for oneself and costs the others.
            self._trial_ns += (outcome.accepted_len + 1) * costs.plain_ns(outcome.batch_size) - forecast_ns
        if self._planned_len and not outcome.looked_up_len:
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
        # One leap into the unknown may cost a whole batch dearly, so lengths are tried by doubling.
        max_length = min(max_length, costs.known_length(self._knowledge.batch_size))
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
            if self._mode is _Mode.TRIAL:
                self._ledger.end_trial(self)
            self._mode = mode
            self._mode_rounds = 0
            self._trial_ns = 0.0

    def _next_mode(self) -> _Mode:
        """The state machine; a new request starts on if the pair's yields say that it pays."""
        settings = self._settings
        gain = self._forecast.gain
        pays, pays_clearly = gain >= 1.0, gain >= 1.0 + settings.on_margin
        loses_clearly = gain < 1.0 - settings.on_margin
        if not self._ledger.solvent:
            return _Mode.OFF
        match self._mode:
            case None:
                return _Mode.ON if pays else self._trial_or_off()
            case _Mode.ON:
                stays = pays or (self._mode_rounds < settings.dwell_rounds and not loses_clearly)
                return _Mode.ON if stays else _Mode.OFF
            case _Mode.TRIAL:
                if self._mode_rounds < settings.trial_rounds:
                    return _Mode.TRIAL
                if self._trial_ns > 0.0 and not pays_clearly and self._mode_rounds < _LONGEST_TRIAL:
                    # It earns its keep; the forecast, which still leans on other requests, may follow.
                    return _Mode.TRIAL
                self._pause_rounds = settings.trial_pause if pays_clearly else 2 * self._pause_rounds
                return _Mode.ON if pays_clearly else _Mode.OFF
            case _Mode.OFF:
                if self._mode_rounds < settings.dwell_rounds:
                    return _Mode.OFF
                if pays_clearly:
                    return _Mode.ON
                return self._trial_or_off() if self._mode_rounds >= self._pause_rounds else _Mode.OFF

    def _trial_or_off(self) -> _Mode:
        return _Mode.TRIAL if self._ledger.begin_trial(self) else _Mode.OFF
