"""Client channels to the services: the same options as the servers', and waiting with a deadline."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from speculative.errors import NotReadyError
from speculative.rpc.options import TransportOptions

_HEALTH_POLL_S = 0.05


def open_channel(address: str, options: TransportOptions | None = None) -> grpc.aio.Channel:
    """A channel to `address` (host:port); connects on first use, reconnects by itself. TLS is not supported yet."""
    return grpc.aio.insecure_channel(address, options=(options or TransportOptions()).for_client())


@asynccontextmanager
async def channel_to(address: str, options: TransportOptions | None = None) -> AsyncIterator[grpc.aio.Channel]:
    """A channel that is closed at the end of the block."""
    async with open_channel(address, options) as channel:
        yield channel


async def wait_connected(channel: grpc.aio.Channel, timeout_s: float, peer: str) -> None:
    """Waits for the connection. Raises NotReadyError, naming `peer`, after `timeout_s`."""
    try:
        async with asyncio.timeout(timeout_s):
            await channel.channel_ready()
    except TimeoutError:
        raise NotReadyError(f"{peer} cannot be reached within {timeout_s:g} s") from None


async def wait_serving(channel: grpc.aio.Channel, service: str, timeout_s: float, peer: str) -> None:
    """Waits until `service` (full name, or "" for the whole process) reports SERVING.

    Raises NotReadyError, naming `peer` and what it last said, after `timeout_s`.
    """
    health = health_pb2_grpc.HealthStub(channel)
    state = "cannot be reached"
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                state = await _state(health, service, timeout_s)
                if state == "SERVING":
                    return
                await asyncio.sleep(_HEALTH_POLL_S)
    except TimeoutError:
        raise NotReadyError(f"{peer} is not ready after {timeout_s:g} s: {state}") from None


async def _state(health: health_pb2_grpc.HealthStub, service: str, timeout_s: float) -> str:
    request = health_pb2.HealthCheckRequest(service=service)
    try:
        response = await health.Check(request, timeout=timeout_s, wait_for_ready=False)
    except grpc.aio.AioRpcError as error:
        return error.details() or error.code().name
    name: str = health_pb2.HealthCheckResponse.ServingStatus.Name(response.status)
    return name
