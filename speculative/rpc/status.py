"""One table: which gRPC status each error of errors.py becomes, and which error a status becomes again.

Every status carries google.rpc details: always an ErrorInfo (domain "outrider", a reason that names the class), and a
BadRequest or RetryInfo where the caller can act on it. Whatever has no row is INTERNAL with one fixed public text; its
own text goes to the log only.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError, Message
from google.rpc import status_pb2
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RetryInfo

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

DOMAIN = "outrider"
"""Domain of every ErrorInfo."""
INTERNAL_TEXT = "internal error; the service's log has the details"
"""All that callers are told of an error that has no row."""
_LATE = "DEADLINE_EXCEEDED"  # the reason without a class of ours: the code itself says everything
_NOT_READY_RETRY_S = 1.0
_MAX_TEXT_CHARS = 1000  # a status travels in HTTP/2 headers, which both ends bound


@dataclass(frozen=True, slots=True)
class _Received:
    """A status taken apart: its text and its details."""

    text: str
    info: ErrorInfo
    bad_request: BadRequest
    retry_info: RetryInfo

    def number(self, name: str) -> int:
        """A number of the ErrorInfo's metadata."""
        return int(self.info.metadata[name])


@dataclass(frozen=True, slots=True)
class Row:
    """How one error class travels."""

    code: grpc.StatusCode
    reason: str
    rebuild: Callable[[_Received], OutriderError]
    metadata: Callable[[Any], Mapping[str, str]] = lambda _: {}
    details: Callable[[Any], tuple[Message, ...]] = lambda _: ()
    public: bool = True
    """Whether the error's own text may leave the process."""


def _invalid_request_details(error: InvalidRequestError) -> tuple[Message, ...]:
    violation = BadRequest.FieldViolation(field=error.field, description=error.problem[:_MAX_TEXT_CHARS])
    return (BadRequest(field_violations=[violation]),)


def _rebuild_invalid_request(received: _Received) -> OutriderError:
    violation = received.bad_request.field_violations[0]
    return InvalidRequestError(violation.field, violation.description)


def _retry_details(retry_after_s: float) -> tuple[Message, ...]:
    delay = Duration()
    delay.FromNanoseconds(int(retry_after_s * 1e9))
    return (RetryInfo(retry_delay=delay),)


def _rebuild_capacity(received: _Received) -> OutriderError:
    return CapacityError(received.text, received.retry_info.retry_delay.ToNanoseconds() / 1e9)


_INTERNAL = Row(grpc.StatusCode.INTERNAL, "INTERNAL", lambda received: RemoteError(received.text), public=False)

TABLE: Mapping[type[OutriderError], Row] = {
    InvalidRequestError: Row(
        grpc.StatusCode.INVALID_ARGUMENT,
        "INVALID_REQUEST",
        _rebuild_invalid_request,
        details=_invalid_request_details,
    ),
    SessionNotFoundError: Row(
        grpc.StatusCode.NOT_FOUND,
        "SESSION_NOT_FOUND",
        lambda received: SessionNotFoundError(received.text),
    ),
    StalePrefixError: Row(
        grpc.StatusCode.ABORTED,
        "STALE_PREFIX",
        lambda received: StalePrefixError(received.number("assumed_len"), received.number("true_len")),
        metadata=lambda error: {"assumed_len": str(error.assumed_len), "true_len": str(error.true_len)},
    ),
    IncompatibleModelError: Row(
        grpc.StatusCode.FAILED_PRECONDITION,
        "INCOMPATIBLE_MODEL",
        lambda received: IncompatibleModelError(received.text),
    ),
    ContextLengthError: Row(
        grpc.StatusCode.OUT_OF_RANGE,
        "CONTEXT_LENGTH",
        lambda received: ContextLengthError(received.number("needed_len"), received.number("context_len")),
        metadata=lambda error: {"needed_len": str(error.needed_len), "context_len": str(error.context_len)},
    ),
    CapacityError: Row(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "CAPACITY",
        _rebuild_capacity,
        details=lambda error: _retry_details(error.retry_after_s),
    ),
    NotReadyError: Row(
        grpc.StatusCode.UNAVAILABLE,
        "NOT_READY",
        lambda received: NotReadyError(received.text),
        details=lambda _: _retry_details(_NOT_READY_RETRY_S),
    ),
    UnauthenticatedError: Row(
        grpc.StatusCode.UNAUTHENTICATED,
        "UNAUTHENTICATED",
        lambda received: UnauthenticatedError(received.text),
    ),
    RemoteError: _INTERNAL,
    ModelLoadError: _INTERNAL,
}
_ROWS_BY_REASON = {row.reason: row for row in TABLE.values()}


@dataclass(frozen=True, slots=True)
class WireStatus:
    """A status ready to be sent."""

    code: grpc.StatusCode
    text: str
    details: tuple[Message, ...] = field(default=())

    def serialized(self) -> bytes:
        """The google.rpc.Status for the trailing metadata."""
        number: int = self.code.value[0]
        status = status_pb2.Status(code=number, message=self.text)
        for detail in self.details:
            status.details.add().Pack(detail)
        serialized: bytes = status.SerializeToString()
        return serialized


def row_of(error: BaseException) -> Row:
    """The row of the error's class, or of the nearest class above it; the INTERNAL row for everything else."""
    return next((TABLE[kind] for kind in type(error).__mro__ if kind in TABLE), _INTERNAL)


def to_status(error: BaseException) -> WireStatus:
    """What is told to the caller. A TimeoutError of ours (an outgoing call ran out of time) is DEADLINE_EXCEEDED."""
    if isinstance(error, TimeoutError):
        late = ErrorInfo(reason=_LATE, domain=DOMAIN)
        return WireStatus(grpc.StatusCode.DEADLINE_EXCEEDED, "the request ran out of time", (late,))
    row = row_of(error)
    text = str(error)[:_MAX_TEXT_CHARS] if row.public else INTERNAL_TEXT
    info = ErrorInfo(reason=row.reason, domain=DOMAIN, metadata=row.metadata(error))
    return WireStatus(row.code, text, (info, *row.details(error)))


def from_status(serialized: bytes) -> OutriderError | None:
    """The error that a google.rpc.Status of this project stands for; None if it is not one of ours."""
    try:
        received = _take_apart(status_pb2.Status.FromString(serialized))
        row = _ROWS_BY_REASON.get(received.info.reason) if received.info.domain == DOMAIN else None
        return row.rebuild(received) if row else None
    except (DecodeError, KeyError, IndexError, ValueError):  # a peer of another version, or a broken one
        return None


def _take_apart(status: status_pb2.Status) -> _Received:
    received = _Received(status.message, ErrorInfo(), BadRequest(), RetryInfo())
    for packed in status.details:
        for message in (received.info, received.bad_request, received.retry_info):
            packed.Unpack(message)  # does nothing unless the types agree
    return received
