"""A controller for command-line tests: real server, scripted answers, in a thread of its own."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from controller.servicer import NAME, GenerationServicer
from speculative.generation import (
    Delta,
    Finished,
    FinishReason,
    GenerationEvent,
    GenerationRequest,
    ServiceInfo,
    Started,
    Statistics,
    TokenOrigin,
    Usage,
)
from speculative.messages import ModelInfo
from speculative.v1.generation_service_pb2_grpc import add_GenerationServiceServicer_to_server
from tests.support.servers import serving

TARGET = ModelInfo("big", "r1", 100, "a" * 64, 512, (2,), "float32", "cpu")
DRAFT = ModelInfo("small", "r2", 100, "a" * 64, 512, (2,), "float32", "cpu")
INFO = ServiceInfo(TARGET, DRAFT, "", "adasd", ("adasd", "off"), 16, 1024)
ANSWER: tuple[GenerationEvent, ...] = (
    Started(prompt_tokens=3, seed=7, model="big", policy="adasd"),
    Delta("naïve ", (10, 11), (TokenOrigin.ACCEPTED, TokenOrigin.RECOVERED), (4, 7)),
    Delta("horse", (12,), (TokenOrigin.BONUS,), (5,)),
    Finished(
        FinishReason.STOP,
        None,
        2,
        Usage(3, 3),
        Statistics(
            rounds=2,
            drafted=4,
            accepted=1,
            recovered=1,
            bonus=1,
            accepted_histogram=(1, 1),
            first_token_ns=5_000_000,
            total_ns=1_500_000_000,
        ),
    ),
)


@dataclass
class ScriptedGenerator:
    """Answers every request alike, and remembers it."""

    events: tuple[GenerationEvent, ...] = ANSWER
    error: Exception | None = None
    events_alone: tuple[GenerationEvent, ...] | None = None
    """What to answer instead where the request switches speculation off."""
    stall: bool = False
    """Whether to send all but the last event and then nothing more."""
    service_info: ServiceInfo = INFO
    requests: list[GenerationRequest] = field(default_factory=list)
    cancelled: threading.Event = field(default_factory=threading.Event)

    def info(self) -> ServiceInfo:
        return self.service_info

    async def generate(
        self, request: GenerationRequest, timeout_s: float, send: Callable[[GenerationEvent], Awaitable[None]]
    ) -> None:
        self.requests.append(request)
        if self.error is not None:
            raise self.error
        alone = request.speculation.max_draft_tokens == 0
        events = self.events_alone if alone and self.events_alone is not None else self.events
        for event in events[:-1] if self.stall else events:
            await send(event)
        if self.stall:
            try:
                await asyncio.sleep(60)
            finally:
                self.cancelled.set()


@contextmanager
def served(generator: ScriptedGenerator) -> Iterator[str]:
    """Serves it in a thread; gives the address."""
    ready, address = threading.Event(), ""
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        nonlocal address
        servicer = GenerationServicer(max_request_s=60)
        servicer.generator = generator  # type: ignore[assignment]  # as much of one as the servicer uses
        async with serving([NAME], lambda server: add_GenerationServiceServicer_to_server(servicer, server)) as running:
            address = running[1]
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert ready.wait(10)
        yield address
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()
