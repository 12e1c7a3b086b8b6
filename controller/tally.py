"""Counters of one request. Identity: delivered = accepted + recovered + bonus, counted on delivered tokens only."""

from collections import Counter

from controller.transport import Clock
from speculative.generation import Delta, Statistics, TokenOrigin, Usage
from speculative.sampling.types import AcceptanceRule


class Tally:
    """Counts rounds as they are verified and tokens as they are delivered."""

    def __init__(self, clock: Clock, acceptance: AcceptanceRule = AcceptanceRule.COUPLED) -> None:
        self._acceptance = acceptance
        self._clock = clock
        self._begun_ns = clock()
        self._first_token_ns: int | None = None
        self._rounds = 0
        self._drafted = 0
        self._looked_up = 0
        self._looked_up_accepted = 0
        self._histogram: Counter[int] = Counter()
        self._origins: Counter[TokenOrigin] = Counter()
        self._draft_wait_ns = 0
        self._verify_wait_ns = 0

    def verified(self, drafted_len: int, accepted_len: int, looked_up_len: int = 0) -> None:
        """A chunk of `drafted_len` has its verdict; its first `looked_up_len` tokens were looked up."""
        self._rounds += 1
        self._drafted += drafted_len
        self._looked_up += looked_up_len
        self._looked_up_accepted += min(accepted_len, looked_up_len)
        self._histogram[accepted_len] += 1

    def waited(self, *, draft_ns: int = 0, verify_ns: int = 0) -> None:
        """Time was spent waiting."""
        self._draft_wait_ns += draft_ns
        self._verify_wait_ns += verify_ns

    def delivered(self, delta: Delta) -> None:
        """A delta goes out now."""
        if delta.token_ids and self._first_token_ns is None:
            self._first_token_ns = self._clock() - self._begun_ns
        self._origins.update(delta.token_origins)

    def usage(self, prompt_tokens: int) -> Usage:
        """Tokens of the prompt and tokens delivered."""
        return Usage(prompt_tokens, self._origins.total())

    def statistics(self) -> Statistics:
        """All counters, as of now."""
        longest = max(self._histogram, default=-1)
        return Statistics(
            rounds=self._rounds,
            drafted=self._drafted,
            accepted=self._origins[TokenOrigin.ACCEPTED],
            recovered=self._origins[TokenOrigin.RECOVERED],
            bonus=self._origins[TokenOrigin.BONUS],
            accepted_histogram=tuple(self._histogram[length] for length in range(longest + 1)),
            first_token_ns=self._first_token_ns or 0,
            total_ns=self._clock() - self._begun_ns,
            draft_wait_ns=self._draft_wait_ns,
            verify_wait_ns=self._verify_wait_ns,
            acceptance=self._acceptance,
            lossy=self._acceptance.lossy and self._drafted > 0,
            looked_up=self._looked_up,
            looked_up_accepted=self._looked_up_accepted,
        )
