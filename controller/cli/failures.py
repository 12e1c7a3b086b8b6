"""What the command line says when something fails: the status, the reason, what to do; and the exit code.

Exit codes: 0 done; 1 failed; 2 wrong usage or a wrong request; 3 a service cannot be reached, is full or too slow (the
same command may work later); 130 interrupted; 141 nobody reads the output any more, as of `head`, which is not told. An
expected failure never shows a traceback.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeVar

import typer
from rich.console import Console

from speculative.errors import (
    CapacityError,
    ContextLengthError,
    IncompatibleModelError,
    InvalidRequestError,
    ModelLoadError,
    NotReadyError,
    OutriderError,
    RemoteError,
    UnauthenticatedError,
)
from speculative.rpc.status import to_status

FAILED, WRONG_REQUEST, UNAVAILABLE, INTERRUPTED, CLOSED_PIPE = 1, 2, 3, 130, 141

Result = TypeVar("Result")


class CommandError(Exception):
    """A failure of the command's own, with what to do about it."""

    def __init__(self, problem: str, advice: str = "", exit_code: int = FAILED) -> None:
        super().__init__(problem)
        self.advice = advice
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True)
class Explanation:
    """What is told of a failure."""

    problem: str
    advice: str
    exit_code: int


_ADVICE: dict[type[OutriderError], tuple[str, int]] = {
    InvalidRequestError: ("change the option that sets this field", WRONG_REQUEST),
    ContextLengthError: ("shorten the prompt, or use a model with a longer context", WRONG_REQUEST),
    IncompatibleModelError: ("use a draft and a target of one vocabulary; outrider doctor compares them", FAILED),
    CapacityError: ("try again soon, or start more replicas", UNAVAILABLE),
    NotReadyError: ("start the services with: outrider up; if they should be running: outrider doctor", UNAVAILABLE),
    UnauthenticatedError: ("present a credential", FAILED),
    RemoteError: ("look into the service's log", FAILED),
}


def explain(error: Exception) -> Explanation:
    """What to tell of an expected error: one of ours, a time-out, or the operating system's."""
    match error:
        case CommandError():
            return Explanation(str(error), error.advice, error.exit_code)
        case ModelLoadError():
            return Explanation(str(error), "", FAILED)
        case TimeoutError():
            problem = str(error) or "no answer in time"
            return Explanation(f"DEADLINE_EXCEEDED: {problem}", "allow more time with --timeout", UNAVAILABLE)
        case OutriderError():
            advice, exit_code = next(_ADVICE[kind] for kind in type(error).__mro__ if kind in _ADVICE)
            return Explanation(f"{to_status(error).code.name}: {error}", advice, exit_code)
        case _:
            return Explanation(str(error), "", FAILED)


def run(work: Coroutine[Any, Any, Result], *, interrupted: int = INTERRUPTED) -> Result:
    """Runs a command's coroutine; ends the process with a message and an exit code if it fails or is interrupted.

    SIGTERM and SIGHUP cancel it like Ctrl-C, so that its children are stopped; `interrupted` is the exit code then.
    """
    with reported(interrupted=interrupted), interrupting_signals():
        return asyncio.run(work)


@contextlib.contextmanager
def reported(*, interrupted: int = INTERRUPTED) -> Iterator[None]:
    """Turns expected failures inside the block into a message and an exit code."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(interrupted) from None
    except BrokenPipeError:
        raise typer.Exit(CLOSED_PIPE) from None
    except (CommandError, OutriderError, OSError) as error:
        explanation = explain(error)
        show(explanation)
        raise typer.Exit(explanation.exit_code) from None


def show(explanation: Explanation) -> None:
    """Writes it to standard error."""
    console = Console(stderr=True)
    console.print("[bold red]error:[/]", end=" ")
    console.print(explanation.problem, markup=False, highlight=False, soft_wrap=True)
    if explanation.advice:
        console.print("[bold]what to do:[/]", end=" ")
        console.print(explanation.advice, markup=False, highlight=False, soft_wrap=True)


@contextlib.contextmanager
def silent_closed_pipe() -> Iterator[None]:
    """Writes out at the end of the block what is still buffered; exits without a message if nobody reads it."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python's own flush at exit fails again
        sys.exit(CLOSED_PIPE)


@contextlib.contextmanager
def interrupting_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP act like Ctrl-C inside the block."""
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, _interrupt) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  # the signature is Python's
    signal.raise_signal(signal.SIGINT)
