"""Nothing leaks: whatever ends a stream, its session and memory are free within a second, also in mid-work."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import pytest

from speculative.messages import Advance, Check, DraftOpen, VerifyOpen
from speculative.rpc import codec
from speculative.sampling.types import SamplingParams
from tests.support.engines import sessions_become
from tests.support.servers import Served, draft_server, verifier_server

PROMPT = (0, 1, 2)
PARAMS = SamplingParams()
SLOW = "eos_rate=0&forward_ms=50"


class Draft:
    """How to talk to a draft service."""

    method = "Draft"
    opening = codec.encode_draft_open(DraftOpen(PROMPT, PARAMS, 7))
    question = codec.encode_advance(Advance(3, (), 16))  # sixteen forwards

    @staticmethod
    def server() -> AbstractAsyncContextManager[Served[Any]]:
        return draft_server(f"emulated:draft?{SLOW}")


class Verify:
    """How to talk to a verifier service; a prompt in many pieces keeps it busy."""

    method = "Verify"
    opening = codec.encode_verify_open(VerifyOpen(tuple(range(100)) * 3, PARAMS, 7))
    question = codec.encode_check(Check(300, ()))

    @staticmethod
    def server() -> AbstractAsyncContextManager[Served[Any]]:
        return verifier_server(f"emulated:target?{SLOW}", max_batch_tokens=20)


Kind = type[Draft] | type[Verify]
KINDS = pytest.mark.parametrize("kind", [Draft, Verify])


@asynccontextmanager
async def busy(kind: Kind, timeout_s: float = 30) -> AsyncIterator[tuple[Served[Any], Any]]:
    """A service in the middle of a session's work, and the session's call."""
    async with kind.server() as served:
        call = getattr(served.stub, kind.method)(timeout=timeout_s)
        await call.write(kind.opening)
        await call.write(kind.question)
        await sessions_become(served.engine, 1)
        await asyncio.sleep(0.1)
        yield served, call


@KINDS
async def test_a_cancelled_call_frees_its_session(kind: Kind) -> None:
    async with busy(kind) as (served, call):
        call.cancel()
        await sessions_become(served.engine, 0)
        steps = served.engine.stats().steps
        await asyncio.sleep(0.2)
        assert served.engine.stats().steps <= steps + 1  # the step that ran, no further one


@KINDS
async def test_a_call_out_of_time_frees_its_session(kind: Kind) -> None:
    async with busy(kind, timeout_s=0.3) as (served, call):
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call.read()
        assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await sessions_become(served.engine, 0)


@KINDS
async def test_a_client_that_closes_its_channel_frees_its_session(kind: Kind) -> None:
    async with busy(kind) as (served, _):
        await served.channel.close()
        await sessions_become(served.engine, 0)


@KINDS
async def test_a_cancelled_idle_session_is_freed(kind: Kind) -> None:
    async with kind.server() as served:
        call = getattr(served.stub, kind.method)()
        await call.write(kind.opening)
        await sessions_become(served.engine, 1)
        call.cancel()
        await sessions_become(served.engine, 0)


CLIENT = """
import asyncio, sys
from speculative.rpc.channel import open_channel

async def main(address, method, *messages):
    async with open_channel(address) as channel:
        call = channel.stream_stream(method, bytes, bytes)()
        for message in messages:
            await call.write(bytes.fromhex(message))
        await call.read()

asyncio.run(main(*sys.argv[1:]))
"""


@KINDS
async def test_a_client_that_is_killed_frees_its_session(kind: Kind) -> None:
    async with kind.server() as served:
        method = f"/speculative.v1.{'Draft' if kind is Draft else 'Verifier'}Service/{kind.method}"
        messages = [kind.opening.SerializeToString().hex(), kind.question.SerializeToString().hex()]
        client = await asyncio.create_subprocess_exec(sys.executable, "-c", CLIENT, served.address, method, *messages)
        await sessions_become(served.engine, 1, within_s=10)
        client.send_signal(signal.SIGKILL)
        await sessions_become(served.engine, 0)
        assert await client.wait() == -signal.SIGKILL


@KINDS
async def test_the_end_of_the_requests_ends_the_session_with_ok(kind: Kind) -> None:
    async with kind.server() as served:
        call = getattr(served.stub, kind.method)(timeout=10)
        await call.write(kind.opening)
        await call.done_writing()
        assert await call.code() is grpc.StatusCode.OK
        await sessions_become(served.engine, 0)


async def test_a_client_that_does_not_read_its_answers_frees_its_session_when_cancelled() -> None:
    async with draft_server("emulated:draft?eos_rate=0") as served:
        call = served.stub.Draft()
        await call.write(Draft.opening)
        for _ in range(200):
            await call.write(codec.encode_advance(Advance(3, (), 16)))
        call.cancel()
        await sessions_become(served.engine, 0)


async def test_hundreds_of_sessions_leave_nothing_behind() -> None:
    async with verifier_server() as served:
        free = served.engine.stats().free_blocks

        async def one(number: int) -> None:
            call = served.stub.Verify(timeout=20)
            await call.write(codec.encode_verify_open(VerifyOpen((number % 256, 1), PARAMS, number)))
            await call.write(codec.encode_check(Check(2, (0, 1, 2))))
            await call.read()
            if number % 2:
                call.cancel()
            else:
                await call.done_writing()
                await call.code()

        for start in range(0, 200, 50):
            async with asyncio.TaskGroup() as tasks:
                for number in range(start, start + 50):
                    tasks.create_task(one(number))
        await sessions_become(served.engine, 0)
        assert served.engine.stats().free_blocks == free
