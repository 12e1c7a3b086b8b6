"""An answer as it streams in: coloured text for people, plain text for pipes, JSON for programs."""

import dataclasses
import enum
import json
import unicodedata
from collections.abc import AsyncIterator, Iterator
from typing import Any, Protocol

from rich.console import Console
from rich.text import Text

from speculative.generation import Delta, Finished, GenerationEvent, Started, Statistics, TokenOrigin

ACCEPTED_STYLE = "green"
OWN_STYLE = "cyan"
_NS_PER_S = 1e9


class AnswerView(Protocol):
    """Shows the events of one answer."""

    def show(self, event: GenerationEvent) -> None:
        """Shows the next event."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Completed:
    """A whole answer."""

    started: Started
    text: str
    token_ids: tuple[int, ...]
    finished: Finished


async def collect(events: AsyncIterator[GenerationEvent], view: AnswerView) -> Completed:
    """Shows every event as it comes and returns them together."""
    started: Started | None = None
    finished: Finished | None = None
    texts: list[str] = []
    token_ids: list[int] = []
    async for event in events:
        view.show(event)
        match event:
            case Started():
                started = event
            case Delta():
                texts.append(event.text)
                token_ids.extend(event.token_ids)
            case Finished():
                finished = event
    assert started is not None
    assert finished is not None
    return Completed(started, "".join(texts), tuple(token_ids), finished)


class TextView:
    """Writes the text to `out`; on a terminal, accepted draft tokens and the target's own in different colours."""

    def __init__(self, out: Console, notes: Console) -> None:
        """`notes` gets the last line, so that a pipe behind `out` gets the answer and nothing else."""
        self._out = out
        self._notes = notes

    def show(self, event: GenerationEvent) -> None:
        match event:
            case Delta():
                self._write(event)
            case Finished():
                self._out.file.write("\n")
                self._out.file.flush()
                if self._out.is_terminal:
                    legend = f"[{ACCEPTED_STYLE}]accepted draft tokens[/], [{OWN_STYLE}]the target's own[/]"
                    self._notes.print(legend, highlight=False)
                self._notes.print(summary(event), style="dim", highlight=False, soft_wrap=True)

    def note(self, text: str) -> None:
        """A remark that is not part of the answer."""
        self._notes.print(f"\n{text}", style="dim", highlight=False)

    def _write(self, delta: Delta) -> None:
        if not self._out.is_terminal:
            self._out.file.write(delta.text)
            self._out.file.flush()
            return
        for text, origin in segments(delta):
            style = ACCEPTED_STYLE if origin is TokenOrigin.ACCEPTED else OWN_STYLE
            self._out.print(Text(printable(text), style), end="", soft_wrap=True)


class JsonView:
    """Writes one JSON object a line: one for each delta, and one at the end."""

    def __init__(self, out: Console) -> None:
        self._file = out.file
        self._started: dict[str, Any] = {}

    def show(self, event: GenerationEvent) -> None:
        match event:
            case Started():
                self._started = _plain(event)
            case Delta():
                self._write({"type": "delta", **_plain(event)})
            case Finished():
                rates = dataclasses.asdict(Rates.of(event))
                self._write({"type": "finished", **self._started, **_plain(event), "rates": rates})

    def _write(self, message: dict[str, Any]) -> None:
        self._file.write(json.dumps(message, ensure_ascii=False) + "\n")
        self._file.flush()


class Silent:
    """Shows nothing."""

    def show(self, event: GenerationEvent) -> None:
        """Nothing to do."""


@dataclasses.dataclass(frozen=True, slots=True)
class Rates:
    """What the counters of an answer come to; None where nothing was counted."""

    tokens_per_s: float | None
    mean_accepted_len: float | None
    """Draft tokens accepted in a round."""
    acceptance: float | None
    """Share of the verified draft tokens that was accepted."""

    @classmethod
    def of(cls, finished: Finished) -> "Rates":
        """Accepted tokens are counted as verified, delivered or not, on both sides of the share."""
        statistics = finished.statistics
        accepted = sum(length * rounds for length, rounds in enumerate(statistics.accepted_histogram))
        return cls(
            _ratio(finished.usage.completion_tokens * _NS_PER_S, statistics.total_ns),
            _ratio(accepted, statistics.rounds),
            _ratio(accepted, statistics.drafted),
        )


def summary(finished: Finished) -> str:
    """One line: how the answer was made."""
    rates, statistics = Rates.of(finished), finished.statistics
    parts = [
        f"{finished.usage.completion_tokens} tokens",
        f"{_number(rates.tokens_per_s)} tokens/s",
        f"first token after {statistics.first_token_ns / 1e6:.0f} ms",
        f"{statistics.rounds} rounds",
        f"mean accepted length {_number(rates.mean_accepted_len, 2)}",
        _acceptance(rates, statistics),
        f"finished: {finished.reason.value}",
    ]
    return " · ".join(parts)


def _acceptance(rates: Rates, statistics: Statistics) -> str:
    if rates.acceptance is None:
        return "nothing drafted"
    return f"acceptance {100 * rates.acceptance:.0f} % of {statistics.drafted} drafted"


def segments(delta: Delta) -> Iterator[tuple[str, TokenOrigin]]:
    """The pieces of a delta's text and the origin of the token that finished each; empty pieces are left out."""
    content, start = delta.text.encode(), 0
    for end, origin in zip(delta.text_ends, delta.token_origins, strict=True):
        if end > start:
            yield content[start:end].decode(), origin
        start = end
    if start < len(content):
        yield content[start:].decode(), TokenOrigin.BONUS


def printable(text: str) -> str:
    """The text with control characters (a terminal would obey them) shown as a replacement character."""
    return "".join("\ufffd" if unicodedata.category(one) == "Cc" and one not in "\n\t" else one for one in text)


def _plain(event: GenerationEvent) -> dict[str, Any]:
    """The event as JSON can hold it; what is absent is left out."""

    def fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return {name: _value(value) for name, value in pairs if value is not None}

    return dataclasses.asdict(event, dict_factory=fields)


def _value(value: Any) -> Any:  # noqa: ANN401  # whatever a field holds
    if isinstance(value, enum.Enum):
        return value.value
    return [_value(one) for one in value] if isinstance(value, tuple) else value


def _ratio(numerator: float, denominator: float) -> float | None:
    return numerator / denominator if denominator else None


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
