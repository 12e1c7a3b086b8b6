"""The answer of one request as it grows: where it ends, and what of it can be delivered.

Pure. Tokens go in one by one, in order, so that the end does not depend on how they came in chunks: the first stop
condition that holds, by position, decides. Invariant: the texts, ids and counts of what comes out agree; text that
may yet turn out to begin a stop string stays in, and so do the tokens it came from.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from controller.text import Detokenizer, StopMatcher
from speculative.generation import Delta, FinishReason, TokenOrigin


@dataclass(frozen=True, slots=True)
class StopRules:
    """What ends an answer. `max_tokens` at least 1; `token_ids` are stop ids and the model's end-of-sequence ids."""

    max_tokens: int
    token_ids: frozenset[int]
    strings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ending:
    """Why an answer ended, and what matched."""

    reason: FinishReason
    matched_stop: str | None = None
    matched_token_id: int | None = None


@dataclass(slots=True)
class _Token:
    """A token whose text is known; `begin` and `end` count characters from the beginning of the answer."""

    token_id: int
    origin: TokenOrigin
    begin: int
    end: int


class Answer:
    """Collects tokens until the answer ends. Tokens behind the end are dropped."""

    def __init__(self, detokenizer: Detokenizer, rules: StopRules) -> None:
        self._detokenizer = detokenizer
        self._rules = rules
        self._matcher = StopMatcher(rules.strings)
        self._untold: deque[tuple[int, TokenOrigin]] = deque()
        """Tokens whose text is not known yet."""
        self._held: deque[_Token] = deque()
        self._text = ""
        """The text of the held tokens."""
        self._text_len = 0
        """Characters of the answer so far, delivered ones included."""
        self._pushed = 0
        self._ending: Ending | None = None

    @property
    def ending(self) -> Ending | None:
        """Why the answer ended; None while it goes on."""
        return self._ending

    @property
    def remaining_tokens(self) -> int:
        """How many more tokens fit."""
        return self._rules.max_tokens - self._pushed

    def push(self, token_id: int, origin: TokenOrigin) -> None:
        """Adds the next token; does nothing once the answer has ended."""
        if self._ending is not None:
            return
        if token_id in self._rules.token_ids:
            self._settle(self._detokenizer.flush())
            self._end(Ending(FinishReason.STOP, matched_token_id=token_id))
            return
        self._pushed += 1
        self._untold.append((token_id, origin))
        self._settle(self._detokenizer.push(token_id))
        if self._pushed == self._rules.max_tokens:
            self._settle(self._detokenizer.flush())
            self._end(Ending(FinishReason.LENGTH))

    def take(self) -> Delta:
        """What can be delivered and has not been; may be empty."""
        tokens = []
        while self._held and self._is_safe(self._held[0]):
            tokens.append(self._held.popleft())
        begin = self._text_len - len(self._text)
        text = self._text[: tokens[-1].end - begin] if tokens else ""
        self._text = self._text[len(text) :]
        return Delta(
            text,
            tuple(token.token_id for token in tokens),
            tuple(token.origin for token in tokens),
            tuple(_byte_ends(text, begin, tokens)),
        )

    def _settle(self, texts: Iterable[str]) -> None:
        """Takes the texts of the next tokens in line, up to the first stop string."""
        for text in texts:
            if self._ending is not None:
                return
            token_id, origin = self._untold.popleft()
            self._held.append(_Token(token_id, origin, self._text_len, self._text_len + len(text)))
            self._text += text
            self._text_len += len(text)
            if match := self._matcher.push(text):
                self._cut(match.begin)
                self._end(Ending(FinishReason.STOP, matched_stop=match.stop))

    def _cut(self, end: int) -> None:
        """Drops the text behind `end` and the tokens whose text begins there or later."""
        while self._held and self._held[-1].begin >= end:
            self._held.pop()
        for token in self._held:
            token.end = min(token.end, end)
        self._text = self._text[: len(self._text) - (self._text_len - end)]
        self._text_len = end

    def _end(self, ending: Ending) -> None:
        """Ends the answer, unless text that was flushed for it has brought an earlier end."""
        self._ending = self._ending or ending

    def _is_safe(self, token: _Token) -> bool:
        if self._ending is not None or not self._rules.strings:
            return True
        safe_len = self._text_len - self._matcher.held_len
        return token.begin < safe_len and token.end <= safe_len


def _byte_ends(text: str, begin: int, tokens: Iterable[_Token]) -> Iterable[int]:
    """Where each token ends in UTF-8 bytes of `text`, whose first character is the answer's at `begin`."""
    length = 0
    done = begin
    for token in tokens:
        length += len(text[done - begin : token.end - begin].encode())
        done = token.end
        yield length
