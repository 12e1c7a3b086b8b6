"""How many tokens a chunk of any length brings, estimated from chunks of other lengths.

Position by position: of the chunks that got whole to position j - 1 and were allowed j, how many got to j. Products of
these give every length at once, and a stop rule of the policy is part of what is measured: a chunk that stopped in
front of j did not get there.
"""

from dataclasses import dataclass, field

_PRIOR_RATE = 0.7
_PRIOR_WEIGHT = 8.0


@dataclass(slots=True)
class _Hazards:
    """Fading counts of tries and hits for each position, and over all of them."""

    tries: list[float] = field(default_factory=list)
    hits: list[float] = field(default_factory=list)
    all_tries: float = 0.0
    all_hits: float = 0.0

    def fade(self, factor: float) -> None:
        self.tries = [count * factor for count in self.tries]
        self.hits = [count * factor for count in self.hits]
        self.all_tries *= factor
        self.all_hits *= factor

    def add(self, tries: int, hits: int) -> None:
        """The first `tries` positions were tried, the first `hits` of them (all, or all but the last) were hit."""
        missing = tries - len(self.tries)
        if missing > 0:
            self.tries += [0.0] * missing
            self.hits += [0.0] * missing
        for position in range(tries):
            self.tries[position] += 1.0
        for position in range(hits):
            self.hits[position] += 1.0
        self.all_tries += tries
        self.all_hits += hits

    def pooled(self, prior_rate: float) -> float:
        return (self.all_hits + _PRIOR_WEIGHT * prior_rate) / (self.all_tries + _PRIOR_WEIGHT)

    def rates(self, length: int, prior_rate: float) -> list[float]:
        """The rate at each of the first `length` positions; where there are few tries, that of the one before."""
        rate = self.pooled(prior_rate)
        rates = []
        for position in range(length):
            tries, hits = (self.tries[position], self.hits[position]) if position < len(self.tries) else (0.0, 0.0)
            rate = (hits + _PRIOR_WEIGHT * rate) / (tries + _PRIOR_WEIGHT)
            rates.append(rate)
        return rates


@dataclass(frozen=True, slots=True)
class Yield:
    """What a chunk of at most some length brings on average: tokens committed, and tokens drafted for it."""

    tokens: float
    drafted: float


class YieldModel:
    """Expected yields of one request, or of all.

    `memory_rounds` is how many rounds count, fading; `prior` says what to believe before there are any (without one,
    an acceptance of 0.7 and no early stop).
    """

    def __init__(self, memory_rounds: int, prior: "YieldModel | None" = None) -> None:
        self._fading = 1.0 - 1.0 / memory_rounds
        self._prior = prior
        self._accept = _Hazards()
        self._reach = _Hazards()
        self.rounds = 0.0

    def observe(self, planned_len: int, drafted_len: int, accepted_len: int) -> None:
        """Takes a round that was allowed `planned_len` > 0 tokens."""
        self.rounds = self.rounds * self._fading + 1.0
        for hazards, reached in ((self._accept, accepted_len), (self._reach, drafted_len)):
            hazards.fade(self._fading)
            hazards.add(min(reached + 1, planned_len), min(reached, planned_len))

    def acceptance(self) -> float:
        """Chance that the next position is drafted and accepted, over all positions."""
        return self._accept.pooled(_PRIOR_RATE if self._prior is None else self._prior.acceptance())

    def reach(self) -> float:
        """Chance that drafting goes on to the next position, over all positions."""
        return self._reach.pooled(1.0 if self._prior is None else self._prior.reach())

    def table(self, max_length: int) -> list[Yield]:
        """Yields of chunks of at most 0, 1, ..., `max_length` tokens."""
        accept_prior = _PRIOR_RATE if self._prior is None else self._prior.acceptance()
        reach_prior = 1.0 if self._prior is None else self._prior.reach()
        accept_rates = self._accept.rates(max_length, accept_prior)
        reach_rates = self._reach.rates(max_length, reach_prior)
        tokens, drafted, survival, reached = 1.0, 0.0, 1.0, 1.0
        table = [Yield(tokens, drafted)]
        for accept_rate, reach_rate in zip(accept_rates, reach_rates, strict=True):
            survival *= accept_rate
            reached *= reach_rate
            tokens += survival
            drafted += reached
            table.append(Yield(tokens, drafted))
        return table
