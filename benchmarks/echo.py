"""What gRPC itself costs on this machine: one message there and back between two processes, and nothing done with it.

`python -m benchmarks.echo` is the server; it writes its address to standard output.
"""

import asyncio
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio
import uvloop

_METHOD = "/outrider.benchmarks.Echo/Echo"
_MESSAGE = b"\0" * 64
"""About as long as the messages of a round."""


@asynccontextmanager
async def echo_server() -> AsyncIterator[str]:
    """A process that sends every message back; yields its address."""
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.echo", stdout=asyncio.subprocess.PIPE, stdin=asyncio.subprocess.DEVNULL
    )
    assert server.stdout is not None
    try:
        yield (await server.stdout.readline()).decode().strip()
    finally:
        server.terminate()
        await server.wait()


async def round_trip_ms(address: str, count: int, pause_s: float) -> float:
    """Median time of a round trip on one stream, each after a pause, as a verification makes one."""
    async with grpc.aio.insecure_channel(address) as channel:
        call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(_METHOD)()
        times = [await _once(call, pause_s) for _ in range(count)]
        call.cancel()
    return statistics.median(times[count // 10 :])


async def _once(call: "grpc.aio.StreamStreamCall[bytes, bytes]", pause_s: float) -> float:
    await asyncio.sleep(pause_s)
    begun_ns = time.perf_counter_ns()
    await call.write(_MESSAGE)
    await call.read()
    return (time.perf_counter_ns() - begun_ns) / 1e6


async def _echo(requests: AsyncIterator[bytes], _: object) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


class _Handler(grpc.GenericRpcHandler):
    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes]":
        """The same for every method."""
        del handler_call_details
        return grpc.stream_stream_rpc_method_handler(_echo)


async def _serve() -> None:
    server = grpc.aio.server(handlers=[_Handler()])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    sys.stdout.write(f"127.0.0.1:{port}\n")
    sys.stdout.flush()
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(_serve())
