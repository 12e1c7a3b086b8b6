"""A draft, a verifier and a controller on this machine, for as long as somebody needs them."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from controller.cli.children import Child, ServicePlan, child
from controller.cli.failures import CommandError
from controller.cli.threads import ThreadSplit, environment
from controller.clients import GenerationClient
from speculative.rpc.channel import channel_to

EMULATED = "emulated:"
"""What the names of models without weights begin with."""
_ANY_PORT = "127.0.0.1:0"
_PAIRING_S = 3.0
_PAIRING_POLL_S = 0.05
_INFO_TIMEOUT_S = 5.0

Result = TypeVar("Result")
Announce = Callable[[str, str], None]
"""Told a service's name and what is new about it: "starting", or its address once it serves."""


@dataclass(frozen=True, slots=True)
class TrioPlan:
    """What to start. Models as `--model` of the services takes them; no draft: target-only."""

    target: str
    draft: str | None
    threads: ThreadSplit
    listen: str = _ANY_PORT
    policy: str | None = None


@dataclass(frozen=True, slots=True)
class Trio:
    """What runs: the children, and their addresses by name ("verifier", "draft", "controller")."""

    children: tuple[Child, ...]
    addresses: dict[str, str]

    @property
    def address(self) -> str:
        """Where clients go."""
        return self.addresses["controller"]


@asynccontextmanager
async def running_trio(plan: TrioPlan, announce: Announce) -> AsyncIterator[Trio]:
    """Starts everything, ready for requests; stops the controller, then the models, at the end of the block.

    Raises CommandError, with the service's own reason, if one of them cannot start.
    """
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="outrider-")))

        async def start(service: ServicePlan) -> Child:
            announce(service.name, "starting")
            return await stack.enter_async_context(child(service, directory))

        async def serve(one: Child) -> tuple[str, str]:
            address = await one.reach("SERVING")
            announce(one.name, address)
            return one.name, address

        models = [await start(service) for service in _model_plans(plan)]
        listening = await _all_of(one.reach("LISTENING") for one in models)
        controller = await start(_controller_plan(plan, *listening))
        children = (*models, controller)
        yield Trio(children, dict(await _all_of(serve(one) for one in children)))


async def speculation_off_reason(address: str) -> str:
    """Why the controller at `address` does not speculate; empty if it does. It is given a moment to find its draft."""
    async with channel_to(address) as channel:
        client = GenerationClient(address, channel)
        deadline = asyncio.get_running_loop().time() + _PAIRING_S
        while True:
            reason = (await client.info(_INFO_TIMEOUT_S)).speculation_off_reason
            if not reason or asyncio.get_running_loop().time() > deadline:
                return reason
            await asyncio.sleep(_PAIRING_POLL_S)


def _model_plans(plan: TrioPlan) -> list[ServicePlan]:
    """The verifier, and the draft if there is to be one."""
    models = [("verifier", plan.target, plan.threads.verifier)]
    models += [("draft", plan.draft, plan.threads.draft)] if plan.draft else []
    return [
        ServicePlan(
            name,
            f"{name}_service",
            ("--model", model, "--listen", _ANY_PORT, "--threads", str(threads)),
            environment(threads),
        )
        for name, model, threads in models
    ]


def _controller_plan(plan: TrioPlan, verifier: str, draft: str | None = None) -> ServicePlan:
    arguments = ["--listen", plan.listen, "--verifier", verifier]
    arguments += ["--draft", draft] if draft else []
    arguments += ["--policy", plan.policy] if plan.policy else []
    return ServicePlan("controller", "controller", tuple(arguments))


async def _all_of(work: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Awaits all together; the first failure cancels the rest and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(one) for one in work]
    except* CommandError as failures:
        raise failures.exceptions[0] from None
    return [one.result() for one in running]
