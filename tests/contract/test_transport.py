"""What both ends of a connection are configured to: message sizes, pings, health, reflection, drain."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from speculative.errors import NotReadyError, RemoteError
from speculative.messages import Check, VerifyOpen
from speculative.rpc import codec
from speculative.rpc.channel import channel_to, open_channel, wait_connected, wait_serving
from speculative.rpc.options import TransportOptions
from speculative.rpc.server import RpcServer
from speculative.rpc.translate import peer_errors
from speculative.sampling.types import SamplingParams
from speculative.v1 import verifier_service_pb2, verifier_service_pb2_grpc
from tests.support.engines import sessions_become
from tests.support.servers import verifier_server

VERIFIER = "speculative.v1.VerifierService"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
MIB = 2**20
EAGER = TransportOptions(keepalive_interval_s=0.05)
"""A client that pings every second (gRPC sends no more); by default, servers end a connection at the third ping."""


class Echo(verifier_service_pb2_grpc.VerifierServiceServicer):
    """Answers each Check with as many bytes as it got, on the stream, as the call's one message would."""

    async def GetTokenizer(  # noqa: N802
        self, request: object, context: object
    ) -> AsyncIterator[verifier_service_pb2.GetTokenizerResponse]:
        yield verifier_service_pb2.GetTokenizerResponse(content=bytes(6 * MIB))

    async def Verify(  # noqa: N802
        self, request_iterator: AsyncIterator[verifier_service_pb2.VerifyRequest], context: object
    ) -> AsyncIterator[verifier_service_pb2.VerifyResponse]:
        async for request in request_iterator:
            count = len(request.open.prompt_token_ids)
            yield verifier_service_pb2.VerifyResponse(verdict={"base_len": count})


@asynccontextmanager
async def echo(options: TransportOptions | None = None) -> AsyncIterator[tuple[RpcServer, str]]:
    server = RpcServer([VERIFIER], options)
    verifier_service_pb2_grpc.add_VerifierServiceServicer_to_server(Echo(), server.grpc)
    address = await server.start("127.0.0.1:0")
    try:
        yield server, address
    finally:
        await server.drain(0)


def long_prompt(tokens: int) -> verifier_service_pb2.VerifyRequest:
    """About three bytes a token."""
    return codec.encode_verify_open(VerifyOpen((2**20,) * tokens, SamplingParams(), 7))


async def test_a_message_of_more_than_4_mib_passes_both_ways() -> None:
    request = long_prompt(2 * MIB)
    assert request.ByteSize() > 4 * MIB
    async with echo() as (_, address), open_channel(address) as channel:
        stub = verifier_service_pb2_grpc.VerifierServiceStub(channel)
        answers = [answer async for answer in stub.Verify(iter([request]), timeout=10)]
        assert answers[0].verdict.base_len == 2 * MIB
        pieces = [piece async for piece in stub.GetTokenizer(verifier_service_pb2.GetTokenizerRequest(), timeout=10)]
        assert len(pieces[0].content) == 6 * MIB


@pytest.mark.parametrize("narrow_end", ["client", "server"])
async def test_a_message_beyond_the_limit_is_refused_and_the_connection_lives(narrow_end: str) -> None:
    narrow, wide = TransportOptions(max_message_bytes=MIB), TransportOptions()
    server_options, client_options = (wide, narrow) if narrow_end == "client" else (narrow, wide)
    async with echo(server_options) as (_, address), open_channel(address, client_options) as channel:
        stub = verifier_service_pb2_grpc.VerifierServiceStub(channel)
        with pytest.raises(RemoteError, match="RESOURCE_EXHAUSTED"), peer_errors("peer"):
            _ = [answer async for answer in stub.Verify(iter([long_prompt(MIB)]), timeout=10)]
        with pytest.raises(RemoteError, match="RESOURCE_EXHAUSTED"), peer_errors("peer"):
            _ = [p async for p in stub.GetTokenizer(verifier_service_pb2.GetTokenizerRequest(), timeout=10)]
        answers = [answer async for answer in stub.Verify(iter([long_prompt(5)]), timeout=10)]
        assert answers[0].verdict.base_len == 5


async def test_pings_of_a_quiet_client_do_not_end_the_connection() -> None:
    """With a stream and without: two servers, so that the two channels do not share a connection."""
    async with (
        verifier_server() as served,
        open_channel(served.address, EAGER) as channel,
        echo() as (_, idle_address),
        open_channel(idle_address, EAGER) as idle_channel,
    ):
        call = verifier_service_pb2_grpc.VerifierServiceStub(channel).Verify(timeout=20)
        await call.write(codec.encode_verify_open(VerifyOpen((0, 1), SamplingParams(), 7)))
        await sessions_become(served.engine, 1)
        await wait_connected(idle_channel, 5, "echo")
        for _ in range(45):
            await asyncio.sleep(0.1)
            assert channel.get_state() is idle_channel.get_state() is grpc.ChannelConnectivity.READY
        await call.write(codec.encode_check(Check(2, ())))
        assert (await call.read()).verdict.base_len == 2


async def health(channel: grpc.aio.Channel, service: str) -> int:
    response = await health_pb2_grpc.HealthStub(channel).Check(
        health_pb2.HealthCheckRequest(service=service), timeout=5
    )
    return int(response.status)


async def test_health_follows_the_service_from_loading_to_draining() -> None:
    async with echo() as (server, address), open_channel(address) as channel, open_channel(address) as watching:
        watch = health_pb2_grpc.HealthStub(watching).Watch(health_pb2.HealthCheckRequest(service=VERIFIER))
        stub = verifier_service_pb2_grpc.VerifierServiceStub(channel)
        assert await health(channel, "") == await health(channel, VERIFIER) == NOT_SERVING
        assert (await watch.read()).status == NOT_SERVING

        await server.set_serving()
        assert await health(channel, "") == await health(channel, VERIFIER) == SERVING
        assert (await watch.read()).status == SERVING

        call = stub.Verify(timeout=20)
        await call.write(long_prompt(3))
        await call.read()
        async with asyncio.TaskGroup() as tasks:
            drain = tasks.create_task(server.drain(10))
            assert (await watch.read()).status == NOT_SERVING
            assert await health(channel, "") == await health(channel, VERIFIER) == NOT_SERVING
            with pytest.raises(NotReadyError, match="draining"), peer_errors("peer"):
                _ = [answer async for answer in stub.Verify(iter([long_prompt(3)]), timeout=5)]
            await call.write(long_prompt(4))  # the open stream goes on
            assert (await call.read()).verdict.base_len == 4
            assert not drain.done()
            await call.done_writing()
            assert await call.code() is grpc.StatusCode.OK
        assert drain.result() is True


async def test_a_stream_that_outlives_the_grace_is_cut_and_its_client_told_to_go_elsewhere() -> None:
    async with echo() as (server, address), open_channel(address) as channel:
        call = verifier_service_pb2_grpc.VerifierServiceStub(channel).Verify(timeout=20)
        await call.write(long_prompt(3))
        await call.read()
        assert await server.drain(0.1) is False
        with pytest.raises(NotReadyError), peer_errors("peer"):
            await call.read()


async def test_the_health_of_an_unknown_service_is_not_found() -> None:
    async with echo() as (_, address), open_channel(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await health(channel, "speculative.v1.Nonsense")
        assert error.value.code() is grpc.StatusCode.NOT_FOUND


async def test_reflection_lists_the_services_and_their_messages() -> None:
    async with verifier_server() as served:
        stub = reflection_pb2_grpc.ServerReflectionStub(served.channel)
        requests = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol=VERIFIER),
        ]
        listed, described = [one async for one in stub.ServerReflectionInfo(iter(requests), timeout=5)]
    assert {service.name for service in listed.list_services_response.service} == {
        VERIFIER,
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }
    assert described.file_descriptor_response.file_descriptor_proto


async def test_waiting_for_a_service_ends_when_it_serves() -> None:
    async with echo() as (server, address), channel_to(address) as channel, asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(wait_serving(channel, VERIFIER, 5, "verifier"))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await server.set_serving()


async def test_waiting_for_a_service_ends_with_the_reason_when_time_is_up() -> None:
    async with echo() as (_, address), open_channel(address) as channel:
        with pytest.raises(NotReadyError, match=r"verifier 1 is not ready after 0\.2 s: NOT_SERVING"):
            await wait_serving(channel, VERIFIER, 0.2, "verifier 1")
    async with open_channel("127.0.0.1:1") as channel:
        with pytest.raises(NotReadyError, match="verifier 1 is not ready"):
            await wait_serving(channel, VERIFIER, 0.2, "verifier 1")
        with pytest.raises(NotReadyError, match=r"verifier 1 cannot be reached within 0\.2 s"):
            await wait_connected(channel, 0.2, "verifier 1")


async def test_a_port_that_is_taken_is_an_error_and_not_shared() -> None:
    async with echo() as (_, address):
        second = RpcServer([VERIFIER])
        with pytest.raises(OSError, match=address):
            await second.start(address)
        await second.drain(0)


async def test_a_web_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as proxy:
        proxy.bind(("127.0.0.1", 0))
        for name in ("http_proxy", "https_proxy", "grpc_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        async with echo() as (_, address), open_channel(address.replace("127.0.0.1", "localhost")) as channel:
            await wait_connected(channel, 5, "echo")
