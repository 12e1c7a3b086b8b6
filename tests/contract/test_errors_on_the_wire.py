"""What a client in any language can rely on when a call fails."""

import inspect
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc import status_pb2
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo

from speculative import errors
from speculative.errors import (
    CapacityError,
    ContextLengthError,
    IncompatibleModelError,
    InvalidRequestError,
    ModelLoadError,
    NotReadyError,
    OutriderError,
    RemoteError,
    SessionNotFoundError,
    StalePrefixError,
    UnauthenticatedError,
)
from speculative.rpc.channel import open_channel
from speculative.rpc.status import INTERNAL_TEXT, TABLE, to_status
from speculative.rpc.translate import DETAILS_KEY, from_rpc_error, peer_errors
from speculative.v1 import verifier_service_pb2, verifier_service_pb2_grpc
from tests.support.servers import serving

NAME = "speculative.v1.VerifierService"

ON_THE_WIRE = [
    (InvalidRequestError("open.sampling.top_p", "must be in (0, 1]"), "INVALID_ARGUMENT"),
    (SessionNotFoundError("the session is gone"), "NOT_FOUND"),
    (StalePrefixError(assumed_len=7, true_len=9), "ABORTED"),
    (IncompatibleModelError("draft A and target B"), "FAILED_PRECONDITION"),
    (ContextLengthError(needed_len=100, context_len=64), "OUT_OF_RANGE"),
    (CapacityError("full", retry_after_s=2.5), "RESOURCE_EXHAUSTED"),
    (NotReadyError("loading"), "UNAVAILABLE"),
    (UnauthenticatedError("who are you?"), "UNAUTHENTICATED"),
]
HIDDEN = [RemoteError("10.0.0.3 said x"), ModelLoadError("/secret/path"), KeyError("secret"), ZeroDivisionError()]


class Failing(verifier_service_pb2_grpc.VerifierServiceServicer):
    """Raises what it is told, from each kind of handler: coroutine, generator, generator over a stream."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def GetInfo(self, request: Any, context: Any) -> Any:  # noqa: N802
        raise self.error

    async def GetTokenizer(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        yield verifier_service_pb2.GetTokenizerResponse(file_name="first")
        raise self.error

    async def Verify(self, request_iterator: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        async for _ in request_iterator:
            yield verifier_service_pb2.VerifyResponse()
            raise self.error


class Failure:
    """The status of a failed call, taken apart."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        self.error = error
        metadata: dict[str, Any] = dict(error.trailing_metadata() or ())
        self.status = status_pb2.Status.FromString(metadata[DETAILS_KEY])
        self.info = self._detail(ErrorInfo())

    def _detail(self, message: Any) -> Any:
        found = [packed for packed in self.status.details if packed.Unpack(message)]
        assert len(found) == 1, f"{len(found)} details {type(message).__name__}"
        return message

    @property
    def bad_request(self) -> BadRequest:
        return self._detail(BadRequest())

    @property
    def retry_info(self) -> RetryInfo:
        return self._detail(RetryInfo())


async def fail(error: Exception, method: str = "GetInfo") -> Failure:
    """What a client sees when the handler of `method` raises `error`."""
    register = lambda server: verifier_service_pb2_grpc.add_VerifierServiceServicer_to_server(Failing(error), server)  # noqa: E731
    async with serving([NAME], register) as (_, address), open_channel(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await call(verifier_service_pb2_grpc.VerifierServiceStub(channel), method)
    return Failure(failure.value)


async def call(stub: verifier_service_pb2_grpc.VerifierServiceStub, method: str) -> list[Any]:
    """Everything that a method answers."""
    match method:
        case "GetInfo":
            return [await stub.GetInfo(verifier_service_pb2.VerifierServiceGetInfoRequest(), timeout=5)]
        case "GetTokenizer":
            return [piece async for piece in stub.GetTokenizer(verifier_service_pb2.GetTokenizerRequest(), timeout=5)]
    request = verifier_service_pb2.VerifyRequest()
    return [answer async for answer in stub.Verify(iter([request]), timeout=5)]


def test_every_error_class_has_a_status() -> None:
    classes = {item for _, item in inspect.getmembers(errors, inspect.isclass) if issubclass(item, OutriderError)}
    assert set(TABLE) == classes - {OutriderError}


def test_a_class_derived_from_one_of_ours_has_its_status() -> None:
    class OutOfBlocksError(CapacityError):
        pass

    assert to_status(OutOfBlocksError("full")).code is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(("error", "code"), ON_THE_WIRE, ids=lambda value: getattr(type(value), "__name__", value))
async def test_every_public_error_arrives_with_its_status_and_details(error: OutriderError, code: str) -> None:
    failure = await fail(error)
    assert failure.error.code().name == code
    assert failure.error.details() == str(error) == failure.status.message
    assert failure.status.code == failure.error.code().value[0]
    assert failure.info.domain == "outrider"
    assert failure.info.reason == TABLE[type(error)].reason

    received = from_rpc_error(failure.error, "peer")
    assert type(received) is type(error)
    assert vars(received) == vars(error)


@pytest.mark.parametrize("method", ["GetInfo", "GetTokenizer", "Verify"])
async def test_every_kind_of_call_ends_with_the_status(method: str) -> None:
    failure = await fail(InvalidRequestError("seed", "wrong"), method)
    assert failure.error.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_an_invalid_request_names_its_field() -> None:
    violations = (await fail(InvalidRequestError("open.sampling.top_p", "must be in (0, 1]"))).bad_request
    assert [(one.field, one.description) for one in violations.field_violations] == [
        ("open.sampling.top_p", "must be in (0, 1]")
    ]


async def test_a_stale_prefix_tells_the_true_length() -> None:
    assert dict((await fail(StalePrefixError(7, 9))).info.metadata) == {"assumed_len": "7", "true_len": "9"}


async def test_a_full_service_says_when_to_come_back() -> None:
    assert (await fail(CapacityError("full", 2.5))).retry_info.retry_delay.ToMilliseconds() == 2500
    assert (await fail(NotReadyError("loading"))).retry_info.retry_delay.ToMilliseconds() > 0


@pytest.mark.parametrize("error", HIDDEN, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("method", ["GetInfo", "Verify"])
async def test_an_unexpected_error_is_told_in_the_log_and_not_to_the_caller(
    error: Exception, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        failure = await fail(error, method)
    assert failure.error.code() is grpc.StatusCode.INTERNAL
    assert failure.error.details() == failure.status.message == INTERNAL_TEXT
    assert [record.exc_info[1] for record in caplog.records if record.exc_info] == [error]
    assert isinstance(from_rpc_error(failure.error, "peer"), RemoteError)


async def test_the_first_error_of_a_task_group_is_the_one_that_is_told() -> None:
    group = ExceptionGroup("tasks", [ExceptionGroup("inner", [StalePrefixError(1, 2)]), KeyError("x")])
    assert (await fail(group)).info.reason == "STALE_PREFIX"


async def test_an_outgoing_call_out_of_time_is_deadline_exceeded() -> None:
    failure = await fail(TimeoutError("verifier"))
    assert failure.error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert isinstance(from_rpc_error(failure.error, "peer"), TimeoutError)


async def test_a_long_text_does_not_break_the_headers() -> None:
    failure = await fail(InvalidRequestError("field", "x" * 100_000))
    assert failure.error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert failure.bad_request.field_violations[0].field == "field"


async def test_bytes_that_are_no_message_are_an_invalid_argument() -> None:
    register = lambda server: verifier_service_pb2_grpc.add_VerifierServiceServicer_to_server(  # noqa: E731
        Failing(KeyError("reached")), server
    )
    async with serving([NAME], register) as (_, address), open_channel(address) as channel:
        single = channel.unary_unary(f"/{NAME}/GetInfo", bytes, bytes)
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await single(b"\xff\xff", timeout=5)
        assert failure.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        stream = channel.stream_stream(f"/{NAME}/Verify", bytes, bytes)(iter([b"\xff\xff"]), timeout=5)
        assert await stream.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_peer_that_cannot_be_reached_is_not_ready() -> None:
    async with open_channel("127.0.0.1:1") as channel:
        stub = verifier_service_pb2_grpc.VerifierServiceStub(channel)
        with pytest.raises(NotReadyError, match="verifier v1"), peer_errors("verifier v1"):
            await stub.GetInfo(verifier_service_pb2.VerifierServiceGetInfoRequest(), timeout=5)


async def test_an_unknown_method_is_a_remote_error() -> None:
    async with serving([], lambda server: None) as (_, address), open_channel(address) as channel:
        stub = verifier_service_pb2_grpc.VerifierServiceStub(channel)
        with pytest.raises(RemoteError, match="UNIMPLEMENTED"), peer_errors("peer"):
            await stub.GetInfo(verifier_service_pb2.VerifierServiceGetInfoRequest(), timeout=5)


@pytest.mark.parametrize(
    "details",
    [
        b"\xff\xff",
        status_pb2.Status(code=10).SerializeToString(),
        b"",
    ],
)
def test_details_of_another_make_are_no_error_of_ours(details: bytes) -> None:
    metadata = grpc.aio.Metadata((DETAILS_KEY, details))
    error = grpc.aio.AioRpcError(grpc.StatusCode.ABORTED, grpc.aio.Metadata(), metadata, "text", None)
    assert isinstance(from_rpc_error(error, "peer"), RemoteError)
