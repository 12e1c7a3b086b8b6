"""All three services in this process, with a client that does what tests do often."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc.aio

from controller.clients import GenerationClient
from controller.config import ControllerConfig
from controller.servicer import ControllerProcess
from speculative.errors import NotReadyError, OutriderError
from speculative.generation import Delta, Finished, GenerationRequest, ServiceInfo, Started
from speculative.rpc.channel import open_channel
from speculative.v1.generation_service_pb2_grpc import GenerationServiceStub
from tests.support.engines import sessions_become
from tests.support.servers import draft_server, serving, verifier_server

TARGET = "emulated:target?eos_rate=0.0"


@dataclass(frozen=True)
class Answer:
    """All that a client was told."""

    started: Started
    deltas: list[Delta]
    finished: Finished

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def token_ids(self) -> list[int]:
        return [token_id for delta in self.deltas for token_id in delta.token_ids]


class Client(GenerationClient):
    """A client with what tests do often."""

    def __init__(self, address: str, channel: grpc.aio.Channel) -> None:
        super().__init__(address, channel)
        self.stub = GenerationServiceStub(channel)

    async def answer(self, request: GenerationRequest, timeout_s: float | None = 20) -> Answer:
        events = [event async for event in self.generate(request, timeout_s)]
        started, finished = events[0], events[-1]
        assert isinstance(started, Started)
        assert isinstance(finished, Finished)
        deltas = [event for event in events[1:-1] if isinstance(event, Delta)]
        assert len(deltas) == len(events) - 2
        return Answer(started, deltas, finished)

    async def knows(self, holds: Callable[[ServiceInfo], bool], within_s: float = 5) -> ServiceInfo:
        """Waits until the controller says so of itself."""
        async with asyncio.timeout(within_s):
            while not holds(info := await self.info(5)):
                await asyncio.sleep(0.01)
        return info

    async def is_without_verifier(self, within_s: float = 2) -> None:
        """Waits until requests are refused at once."""
        async with asyncio.timeout(within_s):
            while not isinstance(await self._problem(), NotReadyError):
                await asyncio.sleep(0.01)

    async def _problem(self) -> OutriderError | None:
        try:
            await self.info(5)
        except OutriderError as error:
            return error
        return None

    async def has_draft(self) -> ServiceInfo:
        return await self.knows(lambda info: info.draft is not None)


def config(**settings: Any) -> ControllerConfig:
    return ControllerConfig(**{"draft_retry_s": 0.05, **settings})


@asynccontextmanager
async def controller(verifier: str, draft: str | None = None, **settings: Any) -> AsyncIterator[Client]:
    """A controller, ready, and a client of it."""
    process = ControllerProcess(config(verifier=verifier, draft=draft, **settings))
    async with (
        serving(process.names, process.register) as (_, address),
        process.running(),
        open_channel(address) as channel,
    ):
        yield Client(address, channel)


@asynccontextmanager
async def trio(target: str = TARGET, draft: str = "emulated:draft", **settings: Any) -> AsyncIterator[Client]:
    """All three services, the draft in use; at the end nothing may be left in the two engines."""
    async with (
        verifier_server(target) as verifier_,
        draft_server(draft) as draft_,
        controller(verifier_.address, draft_.address, **settings) as client,
    ):
        await client.has_draft()
        yield client
        await sessions_become(verifier_.engine, 0)
        await sessions_become(draft_.engine, 0)
