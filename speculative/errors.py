"""Every error that may cross a service boundary; rpc/status.py maps each class to one gRPC status.

OutriderError
├── InvalidRequestError      a field is wrong; names it
├── SessionNotFoundError     the session is gone (restart); reopen with the committed prefix
├── StalePrefixError         the message assumes another prefix length; carries the true one
├── IncompatibleModelError   the pair cannot work together; an operator must act
├── ContextLengthError       the sequence does not fit the model's context
├── CapacityError            full at the moment; carries when to retry
├── NotReadyError            loading or draining
├── UnauthenticatedError     no or a wrong credential
├── RemoteError              the other service failed, or broke the protocol, in a way no other class describes
└── ModelLoadError           the model cannot be served; ends the start-up
"""


class OutriderError(Exception):
    """Base of all errors raised on purpose."""


class InvalidRequestError(OutriderError):
    """A field of the request is wrong; `field` is its path, for example "sampling.top_p"."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class SessionNotFoundError(OutriderError):
    """The service no longer holds the session."""


class StalePrefixError(OutriderError):
    """The message assumed `assumed_len` committed tokens where the session holds `true_len`."""

    def __init__(self, assumed_len: int, true_len: int) -> None:
        super().__init__(f"message assumes a prefix of {assumed_len} tokens, the session holds {true_len}")
        self.assumed_len = assumed_len
        self.true_len = true_len


class IncompatibleModelError(OutriderError):
    """Draft and target cannot work together."""


class ContextLengthError(OutriderError):
    """The sequence needs `needed_len` tokens where the context has `context_len`."""

    def __init__(self, needed_len: int, context_len: int) -> None:
        super().__init__(f"the sequence needs {needed_len} tokens, the context has {context_len}")
        self.needed_len = needed_len
        self.context_len = context_len


class CapacityError(OutriderError):
    """A limit is reached for now; try again after `retry_after_s`."""

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NotReadyError(OutriderError):
    """The service is loading or draining."""


class UnauthenticatedError(OutriderError):
    """No credential, or a wrong one."""


class RemoteError(OutriderError):
    """The other service failed, or broke the protocol, in a way no other class describes; the text is for the log."""


class ModelLoadError(OutriderError):
    """The model cannot be loaded or cannot be served by this engine; the text says why and what to do."""
