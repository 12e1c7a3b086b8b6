"""Errors of ours to gRPC statuses on the server, and back on the client.

On the server one interceptor wraps every handler, so servicers just raise. It also closes asynchronous generators at
once when a call ends for any reason (their `finally` blocks free the session), and lets CancelledError through.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, NoReturn, TypeAlias, cast

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from speculative.errors import InvalidRequestError, NotReadyError, OutriderError, RemoteError
from speculative.rpc.status import from_status, to_status

_log = logging.getLogger(__name__)

DETAILS_KEY = "grpc-status-details-bin"
"""Trailing metadata key of the google.rpc.Status, fixed by gRPC."""
_GONE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)

# Quoted: the classes take parameters in their stubs only.
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
MaybeHandler: TypeAlias = "grpc.RpcMethodHandler[Any, Any] | None"  # an unknown method has none
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
Continuation: TypeAlias = "Callable[[grpc.HandlerCallDetails], Awaitable[MaybeHandler]]"


class ErrorTranslator(grpc.aio.ServerInterceptor):
    """Answers whatever a handler raises with the status of rpc/status.py."""

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> MaybeHandler:
        handler = await continuation(handler_call_details)
        return handler and wrapped(handler, _translating(handler_call_details.method))


Around = Callable[[Callable[[], Awaitable[Any]], Context], Awaitable[Any]]
"""Runs a call to its end with something around it."""


def wrapped(handler: Handler, around: Around) -> Handler:
    """The handler with `around` around each call; any of the four kinds, coroutine or asynchronous generator.

    A single request is parsed inside of `around`, so that a malformed one is answered like any other wrong one.
    """
    kind = (
        ("stream" if handler.request_streaming else "unary")
        + "_"
        + ("stream" if handler.response_streaming else "unary")
    )
    behavior = getattr(handler, kind)
    parse = None if handler.request_streaming else handler.request_deserializer

    async def call(request: Any, context: Context) -> Any:  # noqa: ANN401  # any message
        async def run() -> Any:  # noqa: ANN401
            answer = behavior(parse(request) if parse else request, context)
            return await (_write_all(answer, context) if hasattr(answer, "__aiter__") else answer)

        return await around(run, context)

    make = getattr(grpc, f"{kind}_rpc_method_handler")
    deserializer = handler.request_deserializer if handler.request_streaming else None
    made: Handler = make(call, request_deserializer=deserializer, response_serializer=handler.response_serializer)
    return made


async def _write_all(responses: Any, context: Context) -> None:  # noqa: ANN401
    async with aclosing(responses):
        async for response in responses:
            await context.write(response)


def _translating(method: str) -> Around:
    async def around(run: Callable[[], Awaitable[Any]], context: Context) -> Any:  # noqa: ANN401
        try:
            return await run()
        except grpc.aio.BaseError:
            raise  # gRPC's own: answered already, or the client is gone
        except Exception as error:  # noqa: BLE001  # whatever it is, the caller gets a status
            await abort(context, method, error)

    return around


async def abort(context: Context, method: str, error: Exception) -> NoReturn:
    """Ends the call with the error's status; the full text of an unexpected error goes to the log."""
    error = _first(error)
    if isinstance(error, DecodeError):
        error = InvalidRequestError("message", "is not a valid message of this method")
    status = to_status(error)
    if status.code is grpc.StatusCode.INTERNAL:
        _log.error("a call failed", exc_info=error, extra={"method": method})
    else:
        _log.info("a call was refused", extra={"method": method, "code": status.code.name, "reason": status.text})
    await context.abort(status.code, status.text, ((DETAILS_KEY, status.serialized()),))


def _first(error: Exception) -> Exception:
    """The first error of a (nested) group, as a TaskGroup raises it."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


@contextmanager
def peer_errors(peer: str) -> Iterator[None]:
    """Client side: turns failures of calls made inside into errors of ours; `peer` is named in their text."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error, peer) from error


def from_rpc_error(error: grpc.aio.AioRpcError, peer: str) -> OutriderError | TimeoutError:
    """The error of ours that a failed call stands for.

    Without details of ours: unreachable or stopped is NotReadyError (go elsewhere), out of time is TimeoutError, and
    everything else (a message too large, an unknown method) is RemoteError, because retrying will not help.
    """
    code, text = error.code(), f"{peer}: {error.details() or error.code().name}"
    metadata = cast(Iterable[tuple[str, str | bytes]], error.trailing_metadata() or ())
    for key, value in metadata:
        if key == DETAILS_KEY and isinstance(value, bytes) and (ours := from_status(value)):
            return ours
    if code in _GONE:
        return NotReadyError(text)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return TimeoutError(text)
    return RemoteError(f"{code.name}: {text}")
