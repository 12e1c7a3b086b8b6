"""The services over gRPC: the only place of the controller, besides its servicer, that knows gRPC and the wire.

Whatever a call fails with comes out as an OutriderError or TimeoutError (rpc/translate.py), named after the peer.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar, cast

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from speculative.errors import NotReadyError, OutriderError
from speculative.generation import GenerationEvent, GenerationRequest, Prompt, ServiceInfo
from speculative.messages import (
    Advance,
    Check,
    Drafted,
    DraftOpen,
    ModelInfo,
    ServiceLimits,
    Verdict,
    VerifyOpen,
)
from speculative.rpc import codec, generation_codec
from speculative.rpc.translate import from_rpc_error, peer_errors
from speculative.v1 import (
    draft_service_pb2,
    draft_service_pb2_grpc,
    generation_service_pb2,
    generation_service_pb2_grpc,
    verifier_service_pb2,
    verifier_service_pb2_grpc,
)

Request = TypeVar("Request")
Response = TypeVar("Response")


class ServiceClient(Protocol):
    """What a pool needs of a draft or verifier client."""

    @property
    def address(self) -> str:
        """Where the service listens, host:port."""
        ...

    async def describe(self, timeout_s: float) -> tuple[ModelInfo, ServiceLimits]:
        """GetInfo; NotReadyError until the model is loaded."""
        ...

    def watch(self) -> AsyncIterator[bool]:
        """Whether the service is ready, now and at every change; ends or raises when it cannot be watched any more."""
        ...


class _Stream(Generic[Request, Response]):
    """A bidirectional call used in turns: one message out, one in."""

    def __init__(self, call: grpc.aio.StreamStreamCall[Request, Response], peer: str) -> None:
        self._call = call
        self._peer = peer

    async def write(self, message: Request) -> None:
        """Sends a message; raises what the peer ended the call with, if it has."""
        try:
            await self._call.write(message)
        except (asyncio.InvalidStateError, grpc.aio.AioRpcError) as error:
            raise await self._ending() from error

    async def _ending(self) -> OutriderError | TimeoutError:
        """Why the call ended. A failed write tells only that it has; the status is with the call."""
        code, details = await self._call.code(), await self._call.details()
        metadata = await self._call.trailing_metadata()
        made_here = code is grpc.StatusCode.INTERNAL and not metadata  # gRPC's word for a write that came too late
        if code is grpc.StatusCode.OK or made_here:
            return NotReadyError(self._ended())
        status = grpc.aio.AioRpcError(code, await self._call.initial_metadata(), metadata, details)
        return from_rpc_error(status, self._peer)

    def _ended(self) -> str:
        return f"{self._peer}: ended the session"

    async def read(self) -> Response:
        """Waits for a message; NotReadyError if the peer ended the call instead."""
        with peer_errors(self._peer):
            response = await self._call.read()
        if response is grpc.aio.EOF:
            raise NotReadyError(self._ended())
        return cast(Response, response)

    def close(self) -> None:
        """Cancels the call: the peer frees the session at once."""
        self._call.cancel()


class GrpcDraftStream:
    """A `DraftStream` (transport.py)."""

    def __init__(
        self, stream: _Stream[draft_service_pb2.DraftRequest, draft_service_pb2.DraftResponse], vocab_size: int
    ) -> None:
        self._stream = stream
        self._vocab_size = vocab_size

    async def advance(self, message: Advance) -> None:
        await self._stream.write(codec.encode_advance(message))

    async def drafted(self) -> Drafted:
        return codec.decode_drafted(await self._stream.read(), self._vocab_size)

    def close(self) -> None:
        self._stream.close()


class GrpcVerifyStream:
    """A `VerifyStream` (transport.py)."""

    def __init__(
        self, stream: _Stream[verifier_service_pb2.VerifyRequest, verifier_service_pb2.VerifyResponse]
    ) -> None:
        self._stream = stream

    async def check(self, message: Check) -> None:
        await self._stream.write(codec.encode_check(message))

    async def verdict(self) -> Verdict:
        return codec.decode_verdict(await self._stream.read())

    def close(self) -> None:
        self._stream.close()


class DraftClient:
    """One draft service."""

    def __init__(self, address: str, channel: grpc.aio.Channel) -> None:
        self.address = address
        self._peer = f"draft service at {address}"
        self._stub = draft_service_pb2_grpc.DraftServiceStub(channel)
        self._health = health_pb2_grpc.HealthStub(channel)

    async def describe(self, timeout_s: float) -> tuple[ModelInfo, ServiceLimits]:
        """The model and the limits."""
        with peer_errors(self._peer):
            response = await self._stub.GetInfo(draft_service_pb2.DraftServiceGetInfoRequest(), timeout=timeout_s)
        return codec.decode_model_info(response.model), codec.decode_limits(response.limits)

    def watch(self) -> AsyncIterator[bool]:
        """Whether it is ready, at every change."""
        return _watch(self._health, self._peer)

    async def open(self, message: DraftOpen, timeout_s: float, vocab_size: int) -> GrpcDraftStream:
        """Starts a session; answers with ids that are not below `vocab_size` are refused."""
        stream = _Stream(self._stub.Draft(timeout=timeout_s), self._peer)
        with _closed_on_failure(stream):
            await stream.write(codec.encode_draft_open(message))
        return GrpcDraftStream(stream, vocab_size)


class VerifierClient:
    """One verifier service."""

    def __init__(self, address: str, channel: grpc.aio.Channel) -> None:
        self.address = address
        self._peer = f"verifier service at {address}"
        self._stub = verifier_service_pb2_grpc.VerifierServiceStub(channel)
        self._health = health_pb2_grpc.HealthStub(channel)

    async def describe(self, timeout_s: float) -> tuple[ModelInfo, ServiceLimits]:
        """The model and the limits."""
        with peer_errors(self._peer):
            response = await self._stub.GetInfo(verifier_service_pb2.VerifierServiceGetInfoRequest(), timeout=timeout_s)
        return codec.decode_model_info(response.model), codec.decode_limits(response.limits)

    async def tokenizer_files(self, timeout_s: float) -> dict[str, bytes]:
        """The target's tokenizer files by name; RemoteError if they arrive damaged."""
        with peer_errors(self._peer):
            return await codec.decode_tokenizer(
                self._stub.GetTokenizer(verifier_service_pb2.GetTokenizerRequest(), timeout=timeout_s)
            )

    def watch(self) -> AsyncIterator[bool]:
        """Whether it is ready, at every change."""
        return _watch(self._health, self._peer)

    async def open(self, message: VerifyOpen, timeout_s: float) -> GrpcVerifyStream:
        """Starts a session."""
        stream = _Stream(self._stub.Verify(timeout=timeout_s), self._peer)
        with _closed_on_failure(stream):
            await stream.write(codec.encode_verify_open(message))
        return GrpcVerifyStream(stream)


class GenerationClient:
    """A controller, as a client sees it."""

    def __init__(self, address: str, channel: grpc.aio.Channel) -> None:
        self.address = address
        self._peer = f"controller at {address}"
        self._stub = generation_service_pb2_grpc.GenerationServiceStub(channel)

    async def info(self, timeout_s: float) -> ServiceInfo:
        """Models, defaults and limits."""
        with peer_errors(self._peer):
            response = await self._stub.GetInfo(
                generation_service_pb2.GenerationServiceGetInfoRequest(), timeout=timeout_s
            )
        return generation_codec.decode_service_info(response)

    async def generate(
        self, request: GenerationRequest, timeout_s: float | None
    ) -> AsyncGenerator[GenerationEvent, None]:
        """The events of one answer. Closing the iterator cancels the request."""
        call = self._stub.Generate(generation_codec.encode_request(request), timeout=timeout_s)
        try:
            with peer_errors(self._peer):
                async for response in call:
                    yield generation_codec.decode_event(response)
        finally:
            call.cancel()

    async def tokenize(self, prompt: Prompt, timeout_s: float) -> tuple[int, ...]:
        """The token ids of text or a chat."""
        with peer_errors(self._peer):
            response = await self._stub.Tokenize(generation_codec.encode_tokenize(prompt), timeout=timeout_s)
        return tuple(response.token_ids)

    async def detokenize(
        self, token_ids: tuple[int, ...], timeout_s: float, *, skip_special_tokens: bool = False
    ) -> str:
        """The text of token ids."""
        request = generation_service_pb2.DetokenizeRequest(token_ids=token_ids, skip_special_tokens=skip_special_tokens)
        with peer_errors(self._peer):
            response = await self._stub.Detokenize(request, timeout=timeout_s)
        return cast(str, response.text)


@contextmanager
def _closed_on_failure(stream: _Stream[Request, Response]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        stream.close()
        raise


async def _watch(health: health_pb2_grpc.HealthStub, peer: str) -> AsyncIterator[bool]:
    """Health of the whole process. It lasts as long as the connection, which keepalive watches over."""
    call = health.Watch(health_pb2.HealthCheckRequest(service=""))
    try:
        with peer_errors(peer):
            async for response in call:
                yield response.status == health_pb2.HealthCheckResponse.SERVING
    finally:
        call.cancel()
