"""How many tokens to look up next, for one request whose draft has a model besides.

The policy's length says how far the *model* is worth following. A copied passage goes on for much longer, a chance
match for nothing, and which of the two it is shows in the last verdicts: so the length doubles while everything stands,
and falls to what stood when something falls. Matches that bring nothing also cost the model's turn, so after one the
model drafts for a round, after another one for two, up to `_LONGEST_PAUSE`.
"""

_FIRST = 4
_SHORTEST = 2
_LONGEST_PAUSE = 8


class LookupLength:
    """The length for the next round, learnt from the rounds before."""

    def __init__(self) -> None:
        self._length = _FIRST
        self._failures = 0
        self._pause_rounds = 0

    def next(self, limit: int) -> int:
        """Most tokens to look up, at most `limit`; 0 leaves the round to the model."""
        return 0 if self._pause_rounds else min(self._length, limit)

    def observe(self, looked_up_len: int, accepted_len: int) -> None:
        """Takes a verdict on a chunk whose first `looked_up_len` tokens were looked up."""
        if not looked_up_len:
            self._pause_rounds = max(0, self._pause_rounds - 1)
            return
        stood = min(accepted_len, looked_up_len)
        self._length = max(self._length, 2 * stood) if stood == looked_up_len else max(_SHORTEST, stood + 1)
        self._failures = 0 if stood else self._failures + 1
        self._pause_rounds = 0 if stood else min(_LONGEST_PAUSE, 2 ** (self._failures - 1))
