"""Tokens to text, one token at a time, and stop strings in it (docs/decisions/0006).

Invariants: all texts, joined, are what the tokenizer gives for all tokens at once; no text ends inside a character;
and work is linear in the number of tokens.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"

# The window is cut back to _WINDOW_KEPT tokens when it exceeds _WINDOW_TOKENS. An unfinished character has at most
# three bytes, hence fewer tokens than are kept.
_WINDOW_TOKENS = 24
_WINDOW_KEPT = 8


class TextDecoder(Protocol):
    """What a `Detokenizer` needs of a tokenizer."""

    @property
    def splits_characters(self) -> bool:
        """Whether a token other than a byte-fallback one may hold only part of a character (byte-level decoders)."""
        ...

    @property
    def anchor_ids(self) -> tuple[int, ...]:
        """Tokens with text, put before others so that a decoder does not take these for the start of a text."""
        ...

    def decode(self, token_ids: list[int]) -> str:
        """The text of tokens; REPLACEMENT stands for bytes that are no character."""
        ...

    def has_text(self, token_id: int) -> bool:
        """False for special tokens and unknown ids: they are left out of the text."""
        ...

    def byte_of(self, token_id: int) -> int | None:
        """The byte that a byte-fallback token stands for; None for every other token.

        A run of such tokens is text only if it is valid as a whole (ByteFallback of the tokenizers library), so it
        has no text before it ends.
        """
        ...


class Detokenizer:
    """Gives each token its text as soon as no later token can change it.

    Texts come out in the order of the tokens, one for each. A character's text belongs to the token that completes
    it; the tokens with its other bytes have none. With `continues_text` the answer continues a text, so that a space
    at its beginning stays, which some decoders drop at the start of one.
    """

    def __init__(self, decoder: TextDecoder, *, continues_text: bool) -> None:
        self._decoder = decoder
        self._window: list[int] = list(decoder.anchor_ids) if continues_text else []
        self._sent_len = len(decoder.decode(self._window))
        self._waiting: list[str] = []
        """What is known of the texts of the tokens in line."""
        self._run: list[tuple[int, int]] = []
        """Byte-fallback tokens at the end: index in the line, byte."""

    def push(self, token_id: int) -> list[str]:
        """The texts of the next tokens in line, this one at most; none while a character is unfinished."""
        if not self._decoder.has_text(token_id):
            self._waiting.append("")
            return [] if len(self._waiting) > 1 else self._take()
        byte = self._decoder.byte_of(token_id)
        if byte is not None:
            self._window.append(token_id)
            self._run.append((len(self._waiting), byte))
            self._waiting.append("")
            return []
        settled = self._end_run()
        self._window.append(token_id)
        text, complete = self._new_text()
        return settled + self._settle(text, complete)

    def flush(self) -> list[str]:
        """The texts of all tokens in line; what there is of an unfinished character becomes REPLACEMENT."""
        settled = self._end_run()
        if self._waiting:
            self._waiting[-1] += self._decoder.decode(self._window)[self._sent_len :]
        return settled + self._take()

    def _new_text(self) -> tuple[str, bool]:
        """The text that has become final, and whether that is all there is."""
        text = self._decoder.decode(self._window)
        complete = not (self._decoder.splits_characters and text.endswith(REPLACEMENT))
        stable_len = len(text) if complete else len(text) - 1
        new, self._sent_len = text[self._sent_len : stable_len], stable_len
        self._trim(unsent_len=len(text) - stable_len)
        return new, complete

    def _settle(self, text: str, complete: bool) -> list[str]:
        """Adds the newest token, which brought `text`, to the line and takes the settled ones out."""
        if self._waiting and text.startswith(REPLACEMENT):
            self._waiting[-1] += REPLACEMENT
            text = text[1:]
            settled = self._take()
        else:
            settled = self._take() if text or complete else []
        self._waiting.append(text)
        return settled + self._take() if complete else settled

    def _end_run(self) -> list[str]:
        """Settles a run of byte-fallback tokens: what follows is none."""
        if not self._run:
            return []
        text = self._decoder.decode(self._window)
        new, self._sent_len = text[self._sent_len :], len(text)
        texts = _texts_of_bytes(bytes(byte for _, byte in self._run))
        if "".join(texts) != new:  # the decoder dropped a leading space
            texts = [*[""] * (len(texts) - 1), new]
        for (index, _), own in zip(self._run, texts, strict=True):
            self._waiting[index] = own
        self._run = []
        self._trim(unsent_len=0)
        return self._take()

    def _take(self) -> list[str]:
        taken, self._waiting = self._waiting, []
        return taken

    def _trim(self, unsent_len: int) -> None:
        """Forgets tokens that can no longer touch the text to come; `unsent_len` characters at the end are not sent."""
        if len(self._window) <= _WINDOW_TOKENS:
            return
        self._window = [*self._decoder.anchor_ids, *self._window[-_WINDOW_KEPT:]]
        self._sent_len = len(self._decoder.decode(self._window)) - unsent_len


def _texts_of_bytes(run: bytes) -> list[str]:
    """The text of each byte of a run: characters at their last bytes, or, if the run is invalid, REPLACEMENT each."""
    try:
        characters = run.decode()
    except UnicodeDecodeError:
        return [REPLACEMENT] * len(run)
    return [text for character in characters for text in [*[""] * (len(character.encode()) - 1), character]]


@dataclass(frozen=True, slots=True)
class StopMatch:
    """The stop string found, and where it begins: characters from the beginning of the answer."""

    stop: str
    begin: int


class StopMatcher:
    """Finds the first stop string to be complete in a growing text; of two that end together, the longer.

    The result does not depend on how the text is cut into pieces. Work is linear in the text (Knuth-Morris-Pratt).
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self._patterns = [_Pattern(stop) for stop in sorted(set(stops), key=len, reverse=True)]
        self._text_len = 0

    def push(self, text: str) -> StopMatch | None:
        """The match that `text` completes, if it does; nothing may be pushed behind one."""
        for character in text:
            self._text_len += 1
            for pattern in self._patterns:
                pattern.push(character)
            for pattern in self._patterns:
                if pattern.complete:
                    return StopMatch(pattern.text, self._text_len - len(pattern.text))
        return None

    @property
    def held_len(self) -> int:
        """How many characters at the end of the text may yet turn out to begin a stop string."""
        return max((pattern.matched_len for pattern in self._patterns), default=0)


class _Pattern:
    """One stop string and how much of its beginning the text ends with."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched_len = 0
        self._borders = _borders(text)

    @property
    def complete(self) -> bool:
        return self.matched_len == len(self.text)

    def push(self, character: str) -> None:
        while self.matched_len and self.text[self.matched_len] != character:
            self.matched_len = self._borders[self.matched_len - 1]
        if self.text[self.matched_len] == character:
            self.matched_len += 1


def _borders(text: str) -> list[int]:
    """For each beginning of `text`, the length of the longest shorter beginning that it also ends with."""
    borders = [0]
    length = 0
    for character in text[1:]:
        while length and text[length] != character:
            length = borders[length - 1]
        length += text[length] == character
        borders.append(length)
    return borders
