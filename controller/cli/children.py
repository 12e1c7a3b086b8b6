"""Services as child processes: started, waited for, and stopped by their process ids.

Each child is a process group of its own, so that Ctrl-C in a terminal reaches only the parent, which then stops the
children in order; if the parent is killed, they end too (attached.py). Their logs go to files; what a child that failed
said last is part of the error.
"""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from controller.cli.failures import CommandError
from speculative.settings import environment_with

DRAIN_GRACE_S = 5.0
_KILL_AFTER_S = DRAIN_GRACE_S + 3.0
_POLL_S = 0.05
_TAIL_LINES = 15

State = Literal["LISTENING", "SERVING"]


@dataclass(frozen=True, slots=True)
class ServicePlan:
    """How to start one service: `python -m module arguments...`."""

    name: str
    module: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


class Child:
    """A running service."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, directory: Path) -> None:
        self.name = name
        self.process = process
        self._directory = directory

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    async def reach(self, state: State) -> str:
        """Waits until it listens, or serves; returns its address. Raises CommandError if it ends before."""
        while True:
            report = self._report()
            if report is not None and state in (report["state"], "LISTENING"):
                return report["address"]
            if self.process.returncode is not None:
                raise CommandError(f"the {self.name} service could not start: {self.last_words()}")
            await asyncio.sleep(_POLL_S)

    def obituary(self) -> str:
        """How it ended."""
        code = self.process.returncode or 0
        ended = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return f"the {self.name} service (process {self.pid}) {ended}"

    def last_words(self) -> str:
        """The reason in its last error event, else the end of its log."""
        log = self._directory / f"{self.name}.log"
        lines = log.read_text("utf-8", "replace").splitlines() if log.exists() else []
        for line in reversed(lines):
            with contextlib.suppress(ValueError, KeyError, TypeError):
                event = json.loads(line)
                if event["level"] == "ERROR":
                    return str(event["reason"])
        return "\n".join(lines[-_TAIL_LINES:]) or f"it ended with exit code {self.process.returncode}"

    def _report(self) -> dict[str, str] | None:
        """The content of the ready file (rpc/lifecycle.py)."""
        try:
            report: dict[str, str] = json.loads((self._directory / f"{self.name}.ready").read_text("utf-8"))
        except FileNotFoundError:
            return None
        return report


@asynccontextmanager
async def child(plan: ServicePlan, directory: Path) -> AsyncIterator[Child]:
    """Runs a service for as long as the block lasts. `directory` gets its log and its ready file."""
    attached = ("-m", "controller.cli.attached", str(os.getpid()))
    command = [sys.executable, *attached, plan.module, *plan.arguments]
    command += ["--ready-file", str(directory / f"{plan.name}.ready")]
    command += ["--log-format", "json", "--drain-grace-s", str(DRAIN_GRACE_S)]
    with (directory / f"{plan.name}.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment_with(**plan.environment),
            process_group=0,
        )
    try:
        yield Child(plan.name, process, directory)
    finally:
        await _stop(process)


async def _stop(process: asyncio.subprocess.Process) -> None:
    """SIGTERM, which lets it drain; SIGKILL if that takes too long, or if this is interrupted in turn."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(_KILL_AFTER_S):
            await process.wait()
    except (TimeoutError, asyncio.CancelledError) as error:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        if isinstance(error, asyncio.CancelledError):
            raise
        await process.wait()
