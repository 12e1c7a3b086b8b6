"""The gRPC face of the verifier service."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio

from speculative.engine.hosting import hosted
from speculative.errors import NotReadyError
from speculative.messages import ServiceLimits
from speculative.rpc import codec
from speculative.rpc.translate import Context
from speculative.v1 import verifier_service_pb2, verifier_service_pb2_grpc
from verifier_service.config import VerifierConfig
from verifier_service.verifier import Verifier

NAME: str = verifier_service_pb2.DESCRIPTOR.services_by_name["VerifierService"].full_name
"""Full name of the service, as health checks and reflection know it."""


class VerifierServicer(verifier_service_pb2_grpc.VerifierServiceServicer):
    """Answers VerifierService; UNAVAILABLE until it has a verifier."""

    def __init__(self, limits: ServiceLimits) -> None:
        self._limits = limits
        self.verifier: Verifier | None = None

    async def GetInfo(  # noqa: N802  # the RPC's name
        self,
        request: verifier_service_pb2.VerifierServiceGetInfoRequest,  # noqa: ARG002  # it has no fields
        context: Context,  # noqa: ARG002
    ) -> verifier_service_pb2.VerifierServiceGetInfoResponse:
        """The model and the limits."""
        return verifier_service_pb2.VerifierServiceGetInfoResponse(
            model=codec.encode_model_info(self._ready().info), limits=codec.encode_limits(self._limits)
        )

    async def GetTokenizer(  # noqa: N802
        self,
        request: verifier_service_pb2.GetTokenizerRequest,  # noqa: ARG002  # it has no fields
        context: Context,  # noqa: ARG002
    ) -> AsyncIterator[verifier_service_pb2.GetTokenizerResponse]:
        """The tokenizer's files, in pieces."""
        for piece in codec.encode_tokenizer(self._ready().tokenizer_files):
            yield piece

    async def Verify(  # noqa: N802
        self,
        request_iterator: AsyncIterator[verifier_service_pb2.VerifyRequest],
        context: Context,  # noqa: ARG002
    ) -> AsyncIterator[verifier_service_pb2.VerifyResponse]:
        """One session, from Open to the end of the stream."""
        verifier = self._ready()
        vocab_size, max_chunk = verifier.info.vocab_size, self._limits.max_chunk_tokens
        opening = codec.decode_verify_open(await anext(request_iterator, None), vocab_size)
        async with verifier.session(opening) as session:
            async for request in request_iterator:
                verdict = await session.check(codec.decode_check(request, vocab_size, max_chunk))
                yield codec.encode_verdict(verdict)

    def _ready(self) -> Verifier:
        if self.verifier is None:
            raise NotReadyError("the target model is not loaded yet")
        return self.verifier


class VerifierProcess:
    """What the verifier service's process serves (rpc/lifecycle.py)."""

    names = (NAME,)

    def __init__(self, config: VerifierConfig) -> None:
        self._config = config
        self._servicer = VerifierServicer(
            ServiceLimits(config.max_chunk_tokens, config.max_sessions, config.max_message_bytes)
        )

    def register(self, server: grpc.aio.Server) -> None:
        """Adds the servicer."""
        verifier_service_pb2_grpc.add_VerifierServiceServicer_to_server(self._servicer, server)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Loads and warms up the model; raises ModelLoadError."""
        async with hosted(self._config, "target") as model:
            verifier = Verifier(model.engine, model.tokenizer_files)
            await verifier.warm_up()
            self._servicer.verifier = verifier
            yield
