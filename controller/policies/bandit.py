"""Nightjar's bandit: learns a length, or none, for every batch size from nothing but tokens and times."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from controller.policies.base import ChunkPlan, ChunkPolicy, PlanState, RoundOutcome
from controller.policies.costs import RoundCosts
from controller.policies.settings import setting

_FADING = 0.99
"""Weight of an arm's past at each of its rounds, so that it follows changing text and machines."""


@dataclass(frozen=True, slots=True)
class BanditSettings:
    """Settings of `bandit`."""

    max_length: int = setting(8, 0, 64, "longest chunk that is tried")
    bin_rounds: int = setting(4, 1, 10_000, "rounds of each session for which a length is kept")


def switch_penalty_ns(previous: int, length: int, switch_ns: float) -> float:
    """`[previous = 0 and length > 0] * C_switch / length`: going back to speculation costs the draft's catch-up."""
    return switch_ns / length if previous == 0 and length > 0 else 0.0


class _Arm:
    """Fading sums of one length in one context."""

    def __init__(self) -> None:
        self.tries = 0
        self._tokens = 0.0
        self._time_ns = 0.0

    def add(self, tokens: int, time_ns: int) -> None:
        self.tries += 1
        self._tokens = _FADING * self._tokens + tokens
        self._time_ns = _FADING * self._time_ns + time_ns

    @property
    def ns_per_token(self) -> float:
        """`1 / goodput`, from sums and not from a mean of ratios."""
        return self._time_ns / self._tokens if self._tokens else math.inf


class _Context:
    """The arms of one range of batch sizes and the schedule of exploration.

    Rounds form bins, in each of which one length is kept; bins form blocks of 1, 2, 4, ... bins. The first
    `ceil(sqrt(n))` bins of a block of n try the length tried least, the others use the best. Nightjar draws the
    exploring bins at random; a policy has no randomness of its own, so here they come first.
    """

    def __init__(self, num_arms: int) -> None:
        self.arms = [_Arm() for _ in range(num_arms)]
        self.length = 0
        self._block_bins = 1
        self._bin = 0
        self._rounds_left = 0

    def choose(self, switch_ns: float, bin_rounds: int) -> int:
        if self._rounds_left <= 0:
            self.length = self._next_length(switch_ns)
            self._rounds_left = bin_rounds
        return self.length

    def observe(self, length: int, tokens: int, time_ns: int) -> None:
        self._rounds_left -= 1
        if length < len(self.arms):
            self.arms[length].add(tokens, time_ns)

    def _next_length(self, switch_ns: float) -> int:
        if self._bin == self._block_bins:
            self._bin, self._block_bins = 0, 2 * self._block_bins
        explore = self._bin < math.ceil(math.sqrt(self._block_bins))
        self._bin += 1
        lengths = range(len(self.arms))
        if explore:
            return min(lengths, key=lambda length: self.arms[length].tries)
        return min(
            lengths,
            key=lambda length: self.arms[length].ns_per_token + switch_penalty_ns(self.length, length, switch_ns),
        )


class BanditTable:
    """What all requests of a pair have tried, by batch size (1, 2, 3 to 4, 5 to 8, ...)."""

    def __init__(self, settings: BanditSettings) -> None:
        self._settings = settings
        self._contexts: dict[int, _Context] = {}

    def choose(self, batch_size: int, switch_ns: float) -> int:
        """The length that sessions in a batch of `batch_size` use now."""
        return self._context(batch_size).choose(switch_ns, self._settings.bin_rounds * batch_size)

    def observe(self, batch_size: int, length: int, tokens: int, time_ns: int) -> None:
        """Takes a round of chunk length `length` that brought `tokens` tokens."""
        self._context(batch_size).observe(length, tokens, time_ns)

    def _context(self, batch_size: int) -> _Context:
        key = math.ceil(math.log2(max(1, batch_size)))
        if key not in self._contexts:
            self._contexts[key] = _Context(self._settings.max_length + 1)
        return self._contexts[key]


class BanditPolicy(ChunkPolicy):
    """`argmin_k 1 / goodput(B, k) + [k_prev = 0 and k > 0] C_switch / k` over k in 0..K (arXiv 2512.22420).

    The batch size is the context and the whole batch uses one length; both live in a table shared by all requests of
    the pair. `C_switch` is measured: what drafting takes longer in the first round after plain ones.
    """

    def __init__(self, table: BanditTable, costs: RoundCosts) -> None:
        self._table = table
        self._costs = costs
        self._batch_size = 1
        self._rounds = 0

    def snapshot(self) -> Mapping[str, float]:
        """The batch size that is the context."""
        return {"batch_size": self._batch_size}

    def plan(self, state: PlanState) -> ChunkPlan:
        """The table's length for the batch last seen."""
        return ChunkPlan(min(self._table.choose(self._batch_size, self._costs.switch_ns), state.limit))

    def observe(self, outcome: RoundOutcome) -> None:
        """Tells the table what was really drafted; not of a request's first round, which waits for the prompt."""
        if self._rounds:
            self._table.observe(self._batch_size, outcome.drafted_len, outcome.accepted_len + 1, outcome.round_ns)
        self._rounds += 1
        self._batch_size = outcome.batch_size
