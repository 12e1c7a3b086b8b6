"""The gRPC face of the draft service."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio

from draft_service.config import DraftConfig
from draft_service.drafter import Drafter
from draft_service.lookup_drafter import LOOKUP, LookupDrafter
from speculative.engine.hosting import hosted
from speculative.errors import NotReadyError
from speculative.messages import ServiceLimits
from speculative.rpc import codec
from speculative.rpc.translate import Context
from speculative.v1 import draft_service_pb2, draft_service_pb2_grpc

NAME: str = draft_service_pb2.DESCRIPTOR.services_by_name["DraftService"].full_name
"""Full name of the service, as health checks and reflection know it."""


class DraftServicer(draft_service_pb2_grpc.DraftServiceServicer):
    """Answers DraftService; UNAVAILABLE until it has a drafter."""

    def __init__(self, limits: ServiceLimits) -> None:
        self._limits = limits
        self.drafter: Drafter | LookupDrafter | None = None

    async def GetInfo(  # noqa: N802  # the RPC's name
        self,
        request: draft_service_pb2.DraftServiceGetInfoRequest,  # noqa: ARG002  # it has no fields
        context: Context,  # noqa: ARG002
    ) -> draft_service_pb2.DraftServiceGetInfoResponse:
        """The model and the limits."""
        return draft_service_pb2.DraftServiceGetInfoResponse(
            model=codec.encode_model_info(self._ready().info), limits=codec.encode_limits(self._limits)
        )

    async def Draft(  # noqa: N802
        self,
        request_iterator: AsyncIterator[draft_service_pb2.DraftRequest],
        context: Context,  # noqa: ARG002
    ) -> AsyncIterator[draft_service_pb2.DraftResponse]:
        """One session, from Open to the end of the stream."""
        drafter = self._ready()
        vocab_size, max_chunk = drafter.info.vocab_size, self._limits.max_chunk_tokens
        opening = codec.decode_draft_open(await anext(request_iterator, None), vocab_size)
        async with drafter.session(opening) as session:
            async for request in request_iterator:
                drafted = await session.advance(codec.decode_advance(request, vocab_size, max_chunk))
                yield codec.encode_drafted(drafted)

    def _ready(self) -> Drafter | LookupDrafter:
        if self.drafter is None:
            raise NotReadyError("the draft model is not loaded yet")
        return self.drafter


class DraftProcess:
    """What the draft service's process serves (rpc/lifecycle.py)."""

    names = (NAME,)

    def __init__(self, config: DraftConfig) -> None:
        self._config = config
        self._servicer = DraftServicer(
            ServiceLimits(config.max_chunk_tokens, config.max_sessions, config.max_message_bytes)
        )

    def register(self, server: grpc.aio.Server) -> None:
        """Adds the servicer."""
        draft_service_pb2_grpc.add_DraftServiceServicer_to_server(self._servicer, server)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Loads and warms up the model, if there is to be one; raises ModelLoadError."""
        if self._config.model == LOOKUP:
            self._servicer.drafter = LookupDrafter(self._config.max_sessions)
            yield
            return
        async with hosted(self._config, "draft") as model:
            drafter = Drafter(model.engine, lookup_alone_tokens=self._config.lookup_alone_tokens)
            await drafter.warm_up()
            self._servicer.drafter = drafter
            yield
