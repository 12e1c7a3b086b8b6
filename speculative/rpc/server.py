"""A gRPC server with what all three processes need: options, health, reflection, error statuses, a drain.

Admission is ours: grpc.aio's `maximum_concurrent_rpcs` lets calls wait instead of refusing them. During a drain health
checks still answer (NOT_SERVING), new calls are refused with UNAVAILABLE, and open ones may end within the grace.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from speculative.errors import NotReadyError
from speculative.rpc.options import TransportOptions
from speculative.rpc.translate import Context, Continuation, ErrorTranslator, MaybeHandler, wrapped

_UNCOUNTED = ("/grpc.health.", "/grpc.reflection.")
_FAREWELL_S = 0.1
"""What is left to health watches when all calls are done; with none at all, cutting them looks like a failure."""
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


def _bind_problem(listen: str) -> str:
    """Why host:port cannot be bound, which gRPC tells only its debug log; empty if it can be, or is no host:port."""
    host, _, port = listen.rpartition(":")
    if not port.isdecimal():
        return ""
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM):
            with socket.socket(family, kind, protocol) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind(address)
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""


class OpenCalls(grpc.aio.ServerInterceptor):
    """Counts open calls and refuses new ones once a drain has begun; health and reflection are left alone."""

    def __init__(self) -> None:
        self._count = 0
        self._draining = False
        self._none = asyncio.Event()
        self._none.set()

    @property
    def count(self) -> int:
        """Calls that are open now."""
        return self._count

    async def drained(self, grace_s: float) -> bool:
        """Refuses new calls from now on; True when the open ones ended within `grace_s`."""
        self._draining = True
        try:
            async with asyncio.timeout(grace_s):
                await self._none.wait()
        except TimeoutError:
            return False
        return True

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> MaybeHandler:
        handler = await continuation(handler_call_details)
        if handler is None or handler_call_details.method.startswith(_UNCOUNTED):
            return handler
        return wrapped(handler, self._counting)

    async def _counting(self, run: Callable[[], Awaitable[Any]], context: Context) -> Any:  # noqa: ANN401, ARG002
        if self._draining:
            raise NotReadyError("the service is draining")
        self._count += 1
        self._none.clear()
        try:
            return await run()
        finally:
            self._count -= 1
            if not self._count:
                self._none.set()


class RpcServer:
    """One grpc.aio server on one address. Register servicers on `grpc`, then start."""

    def __init__(self, services: Sequence[str], options: TransportOptions | None = None) -> None:
        """`services` are the full names of the services that will be registered."""
        self._services = ("", *services)
        self._health = health.aio.HealthServicer()
        self.calls = OpenCalls()
        self.grpc = grpc.aio.server(
            interceptors=[ErrorTranslator(), self.calls], options=(options or TransportOptions()).for_server()
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc)
        names = (*services, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self.grpc)

    async def start(self, listen: str) -> str:
        """Binds and starts, not serving yet; returns the bound address. Raises OSError if it cannot be bound."""
        await self._set_health(_NOT_SERVING)
        try:
            port = self.grpc.add_insecure_port(listen)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {listen}: {_bind_problem(listen) or error}") from error
        await self.grpc.start()
        return listen if listen.startswith("unix:") else f"{listen.rpartition(':')[0]}:{port}"

    async def set_serving(self) -> None:
        """Health becomes SERVING, for every service and for the process."""
        await self._set_health(_SERVING)

    async def set_health(self, service: str, *, serving: bool) -> None:
        """Changes the health under one name; "" is the process."""
        await self._health.set(service, _SERVING if serving else _NOT_SERVING)

    async def drain(self, grace_s: float) -> bool:
        """Refuses new calls, lets open ones end within `grace_s`, cuts the rest, stops; True if none was cut."""
        await self._set_health(_NOT_SERVING)
        clean = await self.calls.drained(grace_s)
        await self.grpc.stop(_FAREWELL_S)
        return clean

    async def _set_health(self, status: health_pb2.HealthCheckResponse.ServingStatus.ValueType) -> None:
        for service in self._services:
            await self._health.set(service, status)
