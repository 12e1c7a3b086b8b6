"""The clients against servicers that misbehave: whatever happens becomes one clear error."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from controller.clients import DraftClient, VerifierClient
from speculative.errors import CapacityError, NotReadyError, RemoteError
from speculative.messages import Advance, Check, DraftOpen, VerifyOpen
from speculative.rpc import codec
from speculative.rpc.channel import open_channel
from speculative.sampling.types import SamplingParams
from speculative.v1 import draft_service_pb2 as draft_pb
from speculative.v1 import verifier_service_pb2 as verifier_pb
from speculative.v1.draft_service_pb2_grpc import DraftServiceServicer, add_DraftServiceServicer_to_server
from speculative.v1.verifier_service_pb2_grpc import VerifierServiceServicer, add_VerifierServiceServicer_to_server
from tests.support.servers import serving

VERIFY_OPEN = VerifyOpen((1, 2), SamplingParams(), 3)
DRAFT_OPEN = DraftOpen((1, 2), SamplingParams(), 3)
CHECK = Check(2, ())


class Misbehaving(VerifierServiceServicer, DraftServiceServicer):
    """Both services; each stream runs `script` behind its first message."""

    def __init__(self, script: Any) -> None:
        self._script = script
        self.remaining_s = 0.0
        self.ended = asyncio.Event()

    async def Verify(  # noqa: N802
        self, request_iterator: AsyncIterator[Any], context: Any
    ) -> AsyncIterator[Any]:
        self.remaining_s = context.time_remaining()
        try:
            async for request in request_iterator:
                if request.WhichOneof("message") != "open":
                    async for answer in self._script(context):
                        yield answer
                    return
        finally:
            self.ended.set()

    Draft = Verify

    async def GetTokenizer(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        async for answer in self._script(context):
            yield answer


@asynccontextmanager
async def clients(script: Any) -> AsyncIterator[tuple[VerifierClient, DraftClient, Misbehaving]]:
    servicer = Misbehaving(script)

    def register(server: grpc.aio.Server) -> None:
        add_VerifierServiceServicer_to_server(servicer, server)
        add_DraftServiceServicer_to_server(servicer, server)

    async with serving([], register) as (_, address), open_channel(address) as channel:
        yield VerifierClient(address, channel), DraftClient(address, channel), servicer


async def nothing(context: Any) -> AsyncIterator[Any]:
    for _ in ():
        yield


async def cancelled(context: Any) -> AsyncIterator[Any]:
    await context.abort(grpc.StatusCode.CANCELLED, "the server cancelled it")
    yield


async def unknown(context: Any) -> AsyncIterator[Any]:
    await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no such thing")
    yield


async def full(context: Any) -> AsyncIterator[Any]:
    if context:
        raise CapacityError("too many sessions", 2.5)
    yield


async def empty_answer(context: Any) -> AsyncIterator[Any]:
    yield verifier_pb.VerifyResponse()


async def silence(context: Any) -> AsyncIterator[Any]:
    await asyncio.Event().wait()
    yield


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (nothing, NotReadyError),
        (cancelled, NotReadyError),
        (unknown, RemoteError),
        (full, CapacityError),
        (empty_answer, RemoteError),
        (silence, TimeoutError),
    ],
)
async def test_whatever_ends_a_session_is_one_clear_error(script: Any, error: type[Exception]) -> None:
    async with clients(script) as (verifier, _, _):
        stream = await verifier.open(VERIFY_OPEN, timeout_s=0.5)
        await stream.check(CHECK)
        with pytest.raises(error):
            await stream.verdict()
        await asyncio.sleep(0.02)
        with pytest.raises(NotReadyError if script is empty_answer else error):
            await stream.check(CHECK)


async def test_sessions_carry_the_remaining_deadline() -> None:
    async with clients(nothing) as (verifier, draft, servicer):
        for opened in (verifier.open(VERIFY_OPEN, timeout_s=90), draft.open(DRAFT_OPEN, timeout_s=90, vocab_size=9)):
            servicer.remaining_s = 0.0
            stream = await opened
            async with asyncio.timeout(20):
                while not servicer.remaining_s:
                    await asyncio.sleep(0.01)
            assert 60 < servicer.remaining_s < 91  # gRPC rounds deadlines up
            stream.close()


async def test_closing_a_session_ends_it_at_the_service_at_once() -> None:
    async with clients(silence) as (verifier, _, servicer):
        stream = await verifier.open(VERIFY_OPEN, timeout_s=60)
        await stream.check(CHECK)
        await asyncio.sleep(0.05)
        assert not servicer.ended.is_set()
        stream.close()
        stream.close()
        await asyncio.wait_for(servicer.ended.wait(), 1)


async def test_a_draft_that_answers_unknown_ids_is_an_error() -> None:
    async def script(context: Any) -> AsyncIterator[Any]:
        drafted = draft_pb.DraftResponse.Drafted(
            base_len=2, token_ids=[9], entropies=[0.0], stop_reason=draft_pb.STOP_REASON_MAX_TOKENS
        )
        yield draft_pb.DraftResponse(drafted=drafted)

    async with clients(script) as (_, draft, _):
        stream = await draft.open(DRAFT_OPEN, timeout_s=5, vocab_size=9)
        await stream.advance(Advance(2, (), 1))
        with pytest.raises(RemoteError):
            await stream.drafted()


async def test_an_unreachable_service_is_not_ready_at_once() -> None:
    async with open_channel("127.0.0.1:1") as channel:
        client = VerifierClient("127.0.0.1:1", channel)
        with pytest.raises(NotReadyError, match=r"verifier service at 127\.0\.0\.1:1"):
            await client.describe(timeout_s=5)


async def test_tokenizer_files_arrive_whole_or_not_at_all() -> None:
    files = {"tokenizer.json": b"x" * 3_000_000, "tokenizer_config.json": b""}

    async def whole(context: Any) -> AsyncIterator[Any]:
        for message in codec.encode_tokenizer(files):
            yield message

    async def cut(context: Any) -> AsyncIterator[Any]:
        for message in list(codec.encode_tokenizer(files))[1:]:
            yield message

    async with clients(whole) as (verifier, _, _):
        assert await verifier.tokenizer_files(timeout_s=5) == files
    async with clients(cut) as (verifier, _, _):
        with pytest.raises(RemoteError):
            await verifier.tokenizer_files(timeout_s=5)
