"""The gRPC face of the controller."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import cast

import grpc.aio

from controller.clients import DraftClient, VerifierClient
from controller.config import ControllerConfig
from controller.generator import Generator
from controller.pool import Fleet
from controller.recording import TraceFolder
from speculative.errors import NotReadyError
from speculative.generation import GenerationEvent
from speculative.rpc import generation_codec
from speculative.rpc.channel import channel_to
from speculative.rpc.options import TransportOptions
from speculative.rpc.server import RpcServer
from speculative.rpc.translate import Context
from speculative.v1 import generation_service_pb2 as pb
from speculative.v1 import generation_service_pb2_grpc

NAME: str = pb.DESCRIPTOR.services_by_name["GenerationService"].full_name
"""Full name of the service, as health checks and reflection know it."""
SPECULATION = "speculation"
"""Health under this name says whether there is a draft that fits the target. Without one, answers are only slower."""


class GenerationServicer(generation_service_pb2_grpc.GenerationServiceServicer):
    """Answers GenerationService; UNAVAILABLE until it has a generator."""

    def __init__(self, max_request_s: float) -> None:
        """`max_request_s`: deadline of requests that have none."""
        self._max_request_s = max_request_s
        self.generator: Generator | None = None

    async def GetInfo(  # noqa: N802  # the RPC's name
        self,
        request: pb.GenerationServiceGetInfoRequest,  # noqa: ARG002  # it has no fields
        context: Context,  # noqa: ARG002
    ) -> pb.GenerationServiceGetInfoResponse:
        """Models, defaults and limits."""
        return generation_codec.encode_service_info(self._ready().info())

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> None:  # noqa: N802
        """One answer. A client that reads slowly slows it down: nothing is written before the last write is taken."""
        generator = self._ready()
        remaining_s = cast("float | None", context.time_remaining())  # the stubs leave None out
        timeout_s = self._max_request_s if remaining_s is None else remaining_s

        async def send(event: GenerationEvent) -> None:
            await context.write(generation_codec.encode_event(event))

        await generator.generate(generation_codec.decode_request(request), timeout_s, send)

    async def Tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeResponse:  # noqa: ARG002, N802
        """Token ids, exactly as Generate would begin with."""
        prompt = generation_codec.decode_tokenize(request)
        return pb.TokenizeResponse(token_ids=await self._ready().tokenize(prompt))

    async def Detokenize(self, request: pb.DetokenizeRequest, context: Context) -> pb.DetokenizeResponse:  # noqa: ARG002, N802
        """The text of token ids."""
        text = await self._ready().detokenize(tuple(request.token_ids), skip_special_tokens=request.skip_special_tokens)
        return pb.DetokenizeResponse(text=text)

    def _ready(self) -> Generator:
        if self.generator is None:
            raise NotReadyError("the verifier has not been reached yet")
        return self.generator


class ControllerProcess:
    """What the controller's process serves (rpc/lifecycle.py)."""

    names = (NAME,)

    def __init__(self, config: ControllerConfig) -> None:
        self._config = config
        self._servicer = GenerationServicer(config.max_request_s)
        self._fleet: Fleet | None = None

    def register(self, server: grpc.aio.Server) -> None:
        """Adds the servicer."""
        generation_service_pb2_grpc.add_GenerationServiceServicer_to_server(self._servicer, server)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Ready once the verifier has been reached and its tokenizer loaded; waits for it as long as it takes."""
        config = self._config
        async with AsyncExitStack() as stack:
            options = TransportOptions(max_message_bytes=config.max_message_bytes)
            verifier = VerifierClient(
                config.verifier, await stack.enter_async_context(channel_to(config.verifier, options))
            )
            draft = None
            if config.draft is not None:
                draft = DraftClient(config.draft, await stack.enter_async_context(channel_to(config.draft, options)))
            fleet = self._fleet = Fleet(verifier, draft, config.watch)
            watching = await stack.enter_async_context(asyncio.TaskGroup())
            task = watching.create_task(fleet.run())
            stack.callback(task.cancel)
            await fleet.wait_ready()
            traces = TraceFolder(config.traces) if config.traces else None
            if traces is not None:
                stack.push_async_callback(asyncio.to_thread, traces.close)
            self._servicer.generator = Generator(
                fleet, config.defaults, config.patience, time.monotonic_ns, lambda: secrets.randbits(64), traces
            )
            yield

    async def report_health(self, server: RpcServer) -> None:
        """Ready while the verifier is; speculation has a name of its own."""
        fleet = self._fleet
        assert fleet is not None
        while True:
            change = fleet.next_change
            for name in ("", *self.names):
                await server.set_health(name, serving=fleet.ready)
            await server.set_health(SPECULATION, serving=not fleet.speculation_off_reason)
            await change.wait()
