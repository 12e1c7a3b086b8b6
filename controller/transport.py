"""What the loop needs of the two services; clients.py speaks gRPC behind it, tests put fakes there.

A stream is a session: closing it frees the session's state at once. Everything here that is awaited raises an
OutriderError or TimeoutError when the call behind it fails.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from speculative.messages import (
    Advance,
    Check,
    Drafted,
    DraftOpen,
    ModelInfo,
    ServiceLimits,
    Verdict,
    VerifyOpen,
)

Clock = Callable[[], int]
"""Monotonic time in nanoseconds."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """When the caller stops waiting; all outgoing calls of a request end with it."""

    clock: Clock
    at_ns: int

    def remaining_s(self) -> float:
        """What is left, at least 0."""
        return max(0, self.at_ns - self.clock()) / 1e9


class DraftStream(Protocol):
    """A session at a draft. Each `advance` is answered by one `drafted`."""

    async def advance(self, message: Advance) -> None:
        """Sends an Advance."""
        ...

    async def drafted(self) -> Drafted:
        """Waits for the answer to the last Advance."""
        ...

    def close(self) -> None:
        """Ends the session at once; harmless if repeated."""
        ...


class VerifyStream(Protocol):
    """A session at a verifier. Each `check` is answered by one `verdict`."""

    async def check(self, message: Check) -> None:
        """Sends a Check."""
        ...

    async def verdict(self) -> Verdict:
        """Waits for the answer to the last Check."""
        ...

    def close(self) -> None:
        """Ends the session at once; harmless if repeated."""
        ...


class DraftReplica(Protocol):
    """A draft service that was well when last heard of."""

    @property
    def info(self) -> ModelInfo:
        """Its model."""
        ...

    @property
    def limits(self) -> ServiceLimits:
        """What it accepts."""
        ...

    @property
    def trusted(self) -> bool:
        """False from the first failure of a session until the next success: no request waits for it meanwhile."""
        ...

    def report(self, *, well: bool) -> None:
        """Says how a session went."""
        ...

    async def open(self, message: DraftOpen, timeout_s: float) -> DraftStream:
        """Starts a session that may last `timeout_s`; does not wait for the prompt to be processed."""
        ...


class VerifyReplica(Protocol):
    """A verifier service that was well when last heard of."""

    @property
    def info(self) -> ModelInfo:
        """Its model."""
        ...

    @property
    def limits(self) -> ServiceLimits:
        """What it accepts."""
        ...

    async def open(self, message: VerifyOpen, timeout_s: float) -> VerifyStream:
        """Starts a session that may last `timeout_s`; does not wait for the prompt to be processed."""
        ...


class DraftSource(Protocol):
    """Where a request gets its draft from."""

    def pick(self) -> DraftReplica | None:
        """A draft that is well and fits the target; None while there is none."""
        ...
