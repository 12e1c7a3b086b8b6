"""The three services as processes of their own on loopback, started and stopped as an operator would."""

import asyncio
import json
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from controller.clients import GenerationClient
from speculative.rpc.channel import channel_to

_POLL_S = 0.02
_PAIRING_TIMEOUT_S = 10.0
_STOP_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Flags:
    """Command line flags of each service, besides where to listen and where to find the others."""

    draft: Sequence[str]
    verifier: Sequence[str]
    controller: Sequence[str] = ()


@asynccontextmanager
async def trio(flags: Flags, start_timeout_s: float = 600.0) -> AsyncIterator[GenerationClient]:
    """Starts a draft, a verifier and a controller; yields a client once there is a target and a draft.

    Raises RuntimeError, which says why, if a service does not become ready or the pair does not fit.
    """
    _end_on_sigterm()
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        async with asyncio.timeout(start_timeout_s), asyncio.TaskGroup() as tasks:
            draft = tasks.create_task(stack.enter_async_context(_service("draft_service", flags.draft, folder)))
            verifier = tasks.create_task(
                stack.enter_async_context(_service("verifier_service", flags.verifier, folder))
            )
        addresses = ["--draft", draft.result(), "--verifier", verifier.result()]
        address = await stack.enter_async_context(_service("controller", [*addresses, *flags.controller], folder))
        client = GenerationClient(address, await stack.enter_async_context(channel_to(address)))
        await _wait_for_draft(client)
        yield client


def _end_on_sigterm() -> None:
    """A benchmark that is told to end must not leave its services behind."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


async def _wait_for_draft(client: GenerationClient) -> None:
    deadline_s = time.monotonic() + _PAIRING_TIMEOUT_S
    while (info := await client.info(timeout_s=10)).draft is None:
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"the controller uses no draft: {info.speculation_off_reason}")
        await asyncio.sleep(_POLL_S)


@asynccontextmanager
async def _service(module: str, flags: Sequence[str], folder: Path) -> AsyncIterator[str]:
    """Runs one service; yields its address when it is serving."""
    ready_file, log_file = folder / f"{module}.json", folder / f"{module}.log"
    arguments = ["--listen", "127.0.0.1:0", "--ready-file", str(ready_file), "--log-format", "text", *flags]
    with log_file.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", module, *arguments, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        while (state := _state(ready_file)).get("state") != "SERVING":
            if process.returncode is not None:
                raise RuntimeError(f"{module} ended before it was ready:\n{log_file.read_text('utf-8')[-4000:]}")
            await asyncio.sleep(_POLL_S)
        yield state["address"]
    finally:
        await _stop(process)


def _state(ready_file: Path) -> Mapping[str, str]:
    try:
        state: Mapping[str, str] = json.loads(ready_file.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    return state


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
    try:
        async with asyncio.timeout(_STOP_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
