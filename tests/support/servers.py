"""Real services in this process, on loopback ports of their own, with the engine at hand for a look inside."""

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import grpc.aio

from draft_service.config import DraftConfig
from draft_service.drafter import Drafter
from draft_service.servicer import NAME as DRAFT_NAME
from draft_service.servicer import DraftServicer
from speculative.engine.hosting import hosted
from speculative.engine.worker import Engine
from speculative.messages import ServiceLimits
from speculative.rpc.channel import open_channel
from speculative.rpc.options import TransportOptions
from speculative.rpc.server import RpcServer
from speculative.v1.draft_service_pb2_grpc import DraftServiceStub, add_DraftServiceServicer_to_server
from speculative.v1.verifier_service_pb2_grpc import VerifierServiceStub, add_VerifierServiceServicer_to_server
from verifier_service.config import VerifierConfig
from verifier_service.servicer import NAME as VERIFIER_NAME
from verifier_service.servicer import VerifierServicer
from verifier_service.verifier import Verifier

Stub = TypeVar("Stub")
Register = Callable[[grpc.aio.Server], None]


@dataclass(frozen=True)
class Served(Generic[Stub]):
    """A running service, a stub to call it with, and its engine."""

    address: str
    channel: grpc.aio.Channel
    stub: Stub
    engine: Engine


@asynccontextmanager
async def serving(
    names: Iterable[str], register: Register, options: TransportOptions | None = None
) -> AsyncIterator[tuple[RpcServer, str]]:
    """A server with any servicers, and its address; cut off at the end of the block."""
    server = RpcServer(tuple(names), options)
    register(server.grpc)
    address = await server.start("127.0.0.1:0")
    await server.set_serving()
    try:
        yield server, address
    finally:
        await server.drain(0)


@asynccontextmanager
async def draft_server(
    model: str = "emulated:draft", options: TransportOptions | None = None, **settings: Any
) -> AsyncIterator[Served[DraftServiceStub]]:
    """A draft service; `settings` are fields of DraftConfig."""
    config = DraftConfig(model=model, **settings)
    servicer = DraftServicer(ServiceLimits(config.max_chunk_tokens, config.max_sessions, config.max_message_bytes))
    async with hosted(config, "draft") as hosting:
        servicer.drafter = Drafter(hosting.engine)
        register: Register = lambda server: add_DraftServiceServicer_to_server(servicer, server)  # noqa: E731
        async with serving([DRAFT_NAME], register, options) as (_, address), open_channel(address, options) as channel:
            yield Served(address, channel, DraftServiceStub(channel), hosting.engine)


@asynccontextmanager
async def verifier_server(
    model: str = "emulated:target", options: TransportOptions | None = None, **settings: Any
) -> AsyncIterator[Served[VerifierServiceStub]]:
    """A verifier service; `settings` are fields of VerifierConfig."""
    config = VerifierConfig(model=model, **settings)
    servicer = VerifierServicer(ServiceLimits(config.max_chunk_tokens, config.max_sessions, config.max_message_bytes))
    async with hosted(config, "target") as hosting:
        servicer.verifier = Verifier(hosting.engine, hosting.tokenizer_files)
        register: Register = lambda server: add_VerifierServiceServicer_to_server(servicer, server)  # noqa: E731
        async with (
            serving([VERIFIER_NAME], register, options) as (_, address),
            open_channel(address, options) as channel,
        ):
            yield Served(address, channel, VerifierServiceStub(channel), hosting.engine)
