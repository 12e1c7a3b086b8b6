"""The life of a serving process: listen, load, serve, drain on SIGTERM or SIGINT, exit 0.

Invariant: the process answers health checks (NOT_SERVING) from the moment its port is bound, and reports SERVING only
while the service is ready. Under `asyncio.run` a SIGTERM would skip every `finally`, hence the signal handlers.

How a parent process learns the address of a child started on port 0: the child logs one line with event "listening"
and field "address", and, given `--ready-file PATH`, writes {"address", "state", "pid"} there as one JSON object, first
with state "LISTENING", again with "SERVING" when it is ready. Every write replaces the file as a whole.
"""

import asyncio
import enum
import json
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import NoReturn, Protocol, runtime_checkable

import grpc.aio
import uvloop

from speculative.errors import ModelLoadError
from speculative.rpc.options import TransportOptions
from speculative.rpc.server import RpcServer
from speculative.settings import ServerSettings
from speculative.telemetry import logging as telemetry

_log = logging.getLogger(__name__)

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Service(Protocol):
    """What a process serves."""

    @property
    def names(self) -> tuple[str, ...]:
        """Full names of its gRPC services."""
        ...

    def register(self, server: grpc.aio.Server) -> None:
        """Adds its servicers; they answer UNAVAILABLE until `running` has been entered."""
        ...

    def running(self) -> AbstractAsyncContextManager[None]:
        """Entering makes the service ready (loads and warms up the model); leaving ends it."""
        ...


@runtime_checkable
class DependentService(Protocol):
    """A service that is ready only while another one is."""

    async def report_health(self, server: RpcServer) -> None:
        """Sets the health at every change; runs while the process serves."""
        ...


def run(settings: ServerSettings, service: Callable[[], Service]) -> NoReturn:
    """Serves until SIGTERM or SIGINT, then exits 0; 1 if the service cannot start. Never returns."""
    telemetry.configure(settings.log_level, settings.log_format)
    _log.info("settings", extra={"section": settings.section, **settings.resolved()})
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        end = runner.run(_serve_until_signal(settings, service))
    if end is _End.WHILE_LOADING:
        # A thread may still be loading a model: it cannot be stopped, and dies with the process.
        logging.shutdown()
        os._exit(0)
    sys.exit(1 if end is _End.FAILED else 0)


class _End(enum.Enum):
    """How a process ended."""

    SERVED = enum.auto()
    WHILE_LOADING = enum.auto()
    FAILED = enum.auto()


async def _serve_until_signal(settings: ServerSettings, service: Callable[[], Service]) -> _End:
    stop = Stop()
    loop = asyncio.get_running_loop()
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, stop.set)
    try:
        return _End.SERVED if await serve(settings, service(), stop) else _End.WHILE_LOADING
    except (ModelLoadError, OSError) as error:
        _log.error("the service cannot start", extra={"reason": str(error)})
        return _End.FAILED


class Stop:
    """Says that the process is to stop, and cuts short what must not delay it."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._scope: asyncio.Timeout | None = None

    def set(self) -> None:
        """Asks for the stop; harmless if repeated."""
        self._event.set()
        if self._scope is not None:
            self._scope.reschedule(asyncio.get_running_loop().time())

    async def wait(self) -> None:
        """Waits for `set`."""
        await self._event.wait()

    async def cut_short(self, awaitable: Awaitable[object]) -> bool:
        """Awaits in this task; False if `set` came first (what was awaited is cancelled). Errors pass through."""
        try:
            async with asyncio.timeout(None) as self._scope:
                if self._event.is_set():
                    self._scope.reschedule(asyncio.get_running_loop().time())
                await awaitable
        except TimeoutError:
            if not self._event.is_set():
                raise  # a time-out of the awaitable's own
            return False
        finally:
            self._scope = None
        return True


async def serve(settings: ServerSettings, service: Service, stop: Stop) -> bool:
    """Serves until `stop` is set, then drains; False if the service had not become ready by then.

    Raises ModelLoadError when the service cannot become ready, OSError when the address cannot be bound.
    """
    server = RpcServer(service.names, TransportOptions(max_message_bytes=settings.max_message_bytes))
    service.register(server.grpc)
    report = _Report(settings.ready_file, await server.start(settings.listen))
    report.state("LISTENING")
    async with AsyncExitStack() as running:
        try:
            ready = await stop.cut_short(running.enter_async_context(service.running()))
            if ready:
                await server.set_serving()
                report.state("SERVING")
                await _until(stop, service, server)
        finally:
            report.state("DRAINING")
            clean = await server.drain(settings.drain_grace_s)
            _log.info("stopped", extra={"clean": clean})
            report.remove()
    return ready


async def _until(stop: Stop, service: Service, server: RpcServer) -> None:
    async with asyncio.TaskGroup() as tasks:
        if isinstance(service, DependentService):
            reporting = tasks.create_task(service.report_health(server))
            await stop.wait()
            reporting.cancel()
        await stop.wait()


class _Report:
    """Tells log and ready file what state the process is in."""

    def __init__(self, path: Path | None, address: str) -> None:
        self._path = path
        self._address = address

    def state(self, state: str) -> None:
        """Reports a state; the file is replaced as a whole, so that nobody reads half of one."""
        _log.info(state.lower(), extra={"address": self._address})
        if self._path is None:
            return
        partial = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        partial.write_text(json.dumps({"address": self._address, "state": state, "pid": os.getpid()}), "utf-8")
        partial.replace(self._path)

    def remove(self) -> None:
        """Removes the file: nothing listens any more."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
