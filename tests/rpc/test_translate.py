"""Promises of the wrapping around every handler."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import pytest

from speculative.rpc.translate import Context, wrapped


class BrokenContext:
    """A client that goes away while an answer is being written to it."""

    async def write(self, message: object) -> None:
        raise asyncio.CancelledError


async def bare(run: Callable[[], Awaitable[Any]], context: Context) -> Any:
    return await run()


@pytest.mark.parametrize("kind", ["unary_stream", "stream_stream"])
async def test_a_generator_is_closed_before_a_cancelled_call_returns(kind: str) -> None:
    events = []

    async def answers(request: object, context: object) -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await asyncio.sleep(0)  # freeing may take a turn of the event loop
            events.append("freed")

    handler = wrapped(getattr(grpc, f"{kind}_rpc_method_handler")(answers), bare)
    try:
        await getattr(handler, kind)(object(), BrokenContext())
    except asyncio.CancelledError as cancelled:  # its traceback keeps the generator alive
        events.append(type(cancelled).__name__)
    assert events == ["freed", "CancelledError"]


async def test_serializers_stay_with_their_handlers() -> None:
    async def answer(request: int, context: object) -> int:
        return request + 1

    made = grpc.unary_unary_rpc_method_handler(answer, request_deserializer=int, response_serializer=bytes)
    handler = wrapped(made, bare)
    assert handler.response_serializer is bytes
    behavior: Any = handler.unary_unary
    assert await behavior(b"41", object()) == 42  # parsed inside, where errors become statuses
