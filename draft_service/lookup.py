"""Prompt lookup: what followed the last time the text ended like this (arXiv 2304.04487, "copying").

Text that quotes, edits or repeats itself says its next tokens itself, and finding them costs no forward pass. The
index holds committed tokens only, so nothing in it is ever rolled back, and what it proposes is a function of the
committed prefix alone: its law is one-hot, which every lossless acceptance rule may judge by.
"""

from collections.abc import Sequence

MAX_MATCH = 4
"""Longest suffix that is looked for: a longer one hardly tells more, and every length costs an entry a token."""
MIN_MATCH = 2
"""Shortest suffix that counts: a single token recurs by chance, and its continuation is mostly wrong."""


class LookupIndex:
    """The tokens of one sequence, and where each run of 2 to 4 of them ended last.

    Invariant: `_ends` knows exactly the runs that end before the last token, each by its latest end; the suffix of the
    sequence itself is thus never its own match, and every match has a token behind it. Adding a token costs one entry
    for each length, a proposal one look-up for each length, however long the sequence is.
    """

    def __init__(
        self, token_ids: Sequence[int] = (), *, min_match: int = MIN_MATCH, max_match: int = MAX_MATCH
    ) -> None:
        if not 1 <= min_match <= max_match:
            raise ValueError("matches must have at least one token, and the longest at least as many as the shortest")
        self.token_ids: list[int] = []
        self._lengths = range(max_match, min_match - 1, -1)
        self._ends: dict[tuple[int, ...], int] = {}
        self.extend(token_ids)

    def extend(self, token_ids: Sequence[int]) -> None:
        """Commits tokens behind the others."""
        first = len(self.token_ids)
        self.token_ids += token_ids
        last = len(self.token_ids) - 1
        for length in self._lengths:
            ends = range(max(first, length), last + 1)
            # Column i has the i-th token of every run.
            columns = (self.token_ids[ends.start - length + i : last + 1 - length + i] for i in range(length))
            if ends:
                self._ends.update(zip(zip(*columns, strict=True), ends, strict=True))

    def propose(self, max_tokens: int) -> tuple[int, ...]:
        """What followed the latest earlier occurrence of the longest suffix that has one; nothing without any.

        At most `max_tokens`. It ends where the tokens end, unless the match reaches up to the suffix or into it: then
        the sequence repeats itself with a period that is known, and the proposal goes on repeating.
        """
        count, tokens = len(self.token_ids), self.token_ids
        for length in self._lengths:
            end = self._ends.get(tuple(tokens[count - length :])) if length <= count else None
            if end is None:
                continue
            period = count - end
            if length < period:
                return tuple(tokens[end : end + max_tokens])
            return tuple(tokens[end + index % period] for index in range(max_tokens))
        return ()
