"""Names and options of emulated models: `PROFILE` or `PROFILE?option=value&option=value`.

A profile says what a forward costs and how often the model's laws are the target's. Absolute times of the `a6000`
profiles are those that arXiv 2512.11280 (section 5, tokens/s alone) reports; the `h100` profiles keep its ratio of
20.6 : 1 between a 70B target and a 1B draft, at 25 ms for the target.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from urllib.parse import parse_qsl

from speculative.errors import ModelLoadError

VOCABULARIES = ("bytes", "rotated")

_Value = float | str | tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class EmulatedProfile:
    """Everything that defines an emulated model; each field is an option of the same name."""

    forward_ms: float = 0.0
    """Time of every forward."""
    token_ms: float = 0.0
    """Time for each token fed, on top."""
    context_us: float = 0.0
    """Time for each token of context read (held and fed, over all sequences of the step), on top; microseconds."""
    table_ms: tuple[tuple[int, float], ...] = ()
    """Points (tokens fed, time) of a piecewise linear cost, instead of `forward_ms` and `token_ms`."""
    agree: float = 1.0
    """Share of contexts at which the law is the target's; 1 is the target itself."""
    seed: int = 0
    """What all laws are derived from; draft and target have the same."""
    eos_rate: float = 0.002
    """Share of contexts at which the likeliest token ends the sequence."""
    context: int = 4096
    """Most tokens of a sequence."""
    vocab: str = "bytes"
    """Which vocabulary: `rotated` has as many ids as `bytes`, with other meanings."""
    padding: int = 0
    """Rows beyond the vocabulary, as real models have them; their probability is real too, and must be masked."""
    order: int = 8
    """How many of the last tokens a law depends on."""
    blocks: int = 16384
    """Blocks of memory."""
    block_tokens: int = 16
    """Tokens in a block."""

    @property
    def revision(self) -> str:
        """Hash over all options."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:16]

    def cost_s(self, tokens: int, context_tokens: int) -> float:
        """Time of a forward that feeds `tokens` and reads `context_tokens` of context, in seconds."""
        batch_ms = _interpolate(self.table_ms, tokens) if self.table_ms else self.forward_ms + self.token_ms * tokens
        return (batch_ms + self.context_us * context_tokens / 1e3) / 1e3


PROFILES = {
    "target": EmulatedProfile(),
    "draft": EmulatedProfile(agree=0.8),
    "verify20ms": EmulatedProfile(forward_ms=20.0),
    "h100-70b": EmulatedProfile(forward_ms=25.0, token_ms=0.02, context_us=0.02),
    "h100-1b": EmulatedProfile(forward_ms=25.0 / 20.6, token_ms=0.001, context_us=0.002, agree=0.8),
    "a6000-70b": EmulatedProfile(forward_ms=1e3 / 4.84, token_ms=0.2, context_us=0.1),
    "a6000-8b": EmulatedProfile(forward_ms=1e3 / 36.4, token_ms=0.02, context_us=0.04, agree=0.85),
    "a6000-1b": EmulatedProfile(forward_ms=1e3 / 99.9, token_ms=0.003, context_us=0.01, agree=0.8),
}


def parse_profile(text: str) -> EmulatedProfile:
    """The profile that `text` names, with its options.

    Raises ModelLoadError, which says what is allowed, for an unknown profile or option, or a bad value.
    """
    name, _, query = text.partition("?")
    if name not in PROFILES:
        raise ModelLoadError(f"no emulated profile {name!r}; there are: {', '.join(PROFILES)}")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query), separator="&")
    except ValueError as error:
        raise ModelLoadError(f"options of an emulated profile read option=value&option=value, not {query!r}") from error
    if len(dict(pairs)) != len(pairs):
        raise ModelLoadError(f"an option is given twice in {query!r}")
    return replace(PROFILES[name], **{option: _read_option(option, value) for option, value in pairs})  # type: ignore[arg-type]


def _read_option(option: str, value: str) -> _Value:
    if option not in _OPTIONS:
        raise ModelLoadError(f"no option {option!r} of an emulated profile; there are: {', '.join(_OPTIONS)}")
    read, allowed = _OPTIONS[option]
    try:
        return read(value)
    except ValueError as error:
        raise ModelLoadError(f"option {option}={value!r} of an emulated profile: must be {allowed}") from error


def _number(low: float, high: float) -> Callable[[str], float]:
    def read(value: str) -> float:
        number = float(value)
        if not low <= number <= high:
            raise ValueError(value)
        return number

    return read


def _integer(low: int, high: int) -> Callable[[str], int]:
    def read(value: str) -> int:
        number = int(value)
        if not low <= number <= high:
            raise ValueError(value)
        return number

    return read


def _one_of(value: str) -> str:
    if value not in VOCABULARIES:
        raise ValueError(value)
    return value


def _points(value: str) -> tuple[tuple[int, float], ...]:
    points = tuple(_point(text) for text in value.split(","))
    tokens = [point[0] for point in points]
    if tokens != sorted(set(tokens)):
        raise ValueError(value)
    return points


def _point(text: str) -> tuple[int, float]:
    tokens, _, time_ms = text.partition(":")
    return _integer(1, 1 << 24)(tokens), _number(0, _MAX_MS)(time_ms)


def _interpolate(points: tuple[tuple[int, float], ...], tokens: int) -> float:
    """The time at `tokens`: constant before the first point, and beyond the last one with its slope."""
    before = after = points[0]
    for point in points:
        before, after = after, point
        if tokens <= point[0]:
            break
    if tokens <= points[0][0] or before == after:
        return points[0][1]
    slope = (after[1] - before[1]) / (after[0] - before[0])
    return max(0.0, after[1] + slope * (tokens - after[0]))


_MAX_MS = 1e6
_ANY_MS = (_number(0, _MAX_MS), f"a number from 0 to {_MAX_MS:.0f}")
_RATE = (_number(0, 1), "a number from 0 to 1")

_OPTIONS: dict[str, tuple[Callable[[str], _Value], str]] = {
    "forward_ms": _ANY_MS,
    "token_ms": _ANY_MS,
    "context_us": _ANY_MS,
    "table_ms": (_points, "points tokens:ms with rising tokens, for example 1:20,64:24,512:60"),
    "agree": _RATE,
    "seed": (_integer(0, (1 << 64) - 1), "an integer from 0 to 2^64 - 1"),
    "eos_rate": _RATE,
    "context": (_integer(2, 1 << 24), "an integer from 2 to 2^24"),
    "vocab": (_one_of, f"one of {', '.join(VOCABULARIES)}"),
    "padding": (_integer(0, 1 << 16), "an integer from 0 to 65536"),
    "order": (_integer(3, 1024), "an integer from 3 to 1024"),
    "blocks": (_integer(1, 1 << 24), "an integer from 1 to 2^24"),
    "block_tokens": (_integer(1, 4096), "an integer from 1 to 4096"),
}
