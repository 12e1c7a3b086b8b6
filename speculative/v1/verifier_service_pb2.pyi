from speculative.v1 import model_info_pb2 as _model_info_pb2
from speculative.v1 import sampling_pb2 as _sampling_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Signal(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SIGNAL_UNSPECIFIED: _ClassVar[Signal]
    SIGNAL_KL: _ClassVar[Signal]
    SIGNAL_JS_DISTANCE: _ClassVar[Signal]
    SIGNAL_TARGET_ENTROPY: _ClassVar[Signal]
SIGNAL_UNSPECIFIED: Signal
SIGNAL_KL: Signal
SIGNAL_JS_DISTANCE: Signal
SIGNAL_TARGET_ENTROPY: Signal

class VerifierServiceGetInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class VerifierServiceGetInfoResponse(_message.Message):
    __slots__ = ("model", "limits")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    model: _model_info_pb2.ModelInfo
    limits: _model_info_pb2.ServiceLimits
    def __init__(self, model: _Optional[_Union[_model_info_pb2.ModelInfo, _Mapping]] = ..., limits: _Optional[_Union[_model_info_pb2.ServiceLimits, _Mapping]] = ...) -> None: ...

class GetTokenizerRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetTokenizerResponse(_message.Message):
    __slots__ = ("file_name", "content", "sha256")
    FILE_NAME_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    file_name: str
    content: bytes
    sha256: str
    def __init__(self, file_name: _Optional[str] = ..., content: _Optional[bytes] = ..., sha256: _Optional[str] = ...) -> None: ...

class VerifyRequest(_message.Message):
    __slots__ = ("open", "check")
    class Open(_message.Message):
        __slots__ = ("prompt_token_ids", "sampling", "seed", "acceptance", "wanted_signals", "adasd")
        PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
        SAMPLING_FIELD_NUMBER: _ClassVar[int]
        SEED_FIELD_NUMBER: _ClassVar[int]
        ACCEPTANCE_FIELD_NUMBER: _ClassVar[int]
        WANTED_SIGNALS_FIELD_NUMBER: _ClassVar[int]
        ADASD_FIELD_NUMBER: _ClassVar[int]
        prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
        sampling: _sampling_pb2.SamplingParams
        seed: int
        acceptance: _sampling_pb2.AcceptanceRule
        wanted_signals: _containers.RepeatedScalarFieldContainer[Signal]
        adasd: _sampling_pb2.AdasdOptions
        def __init__(self, prompt_token_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[_sampling_pb2.SamplingParams, _Mapping]] = ..., seed: _Optional[int] = ..., acceptance: _Optional[_Union[_sampling_pb2.AcceptanceRule, str]] = ..., wanted_signals: _Optional[_Iterable[_Union[Signal, str]]] = ..., adasd: _Optional[_Union[_sampling_pb2.AdasdOptions, _Mapping]] = ...) -> None: ...
    class Check(_message.Message):
        __slots__ = ("base_len", "draft_token_ids", "distributions")
        BASE_LEN_FIELD_NUMBER: _ClassVar[int]
        DRAFT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
        DISTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
        base_len: int
        draft_token_ids: _containers.RepeatedScalarFieldContainer[int]
        distributions: _containers.RepeatedCompositeFieldContainer[_sampling_pb2.SparseDistribution]
        def __init__(self, base_len: _Optional[int] = ..., draft_token_ids: _Optional[_Iterable[int]] = ..., distributions: _Optional[_Iterable[_Union[_sampling_pb2.SparseDistribution, _Mapping]]] = ...) -> None: ...
    OPEN_FIELD_NUMBER: _ClassVar[int]
    CHECK_FIELD_NUMBER: _ClassVar[int]
    open: VerifyRequest.Open
    check: VerifyRequest.Check
    def __init__(self, open: _Optional[_Union[VerifyRequest.Open, _Mapping]] = ..., check: _Optional[_Union[VerifyRequest.Check, _Mapping]] = ...) -> None: ...

class VerifyResponse(_message.Message):
    __slots__ = ("verdict",)
    class Verdict(_message.Message):
        __slots__ = ("base_len", "accepted_len", "next_token_id", "queue_ns", "forward_ns", "batch_size", "queue_len", "kl", "js_distance", "target_entropy")
        BASE_LEN_FIELD_NUMBER: _ClassVar[int]
        ACCEPTED_LEN_FIELD_NUMBER: _ClassVar[int]
        NEXT_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
        QUEUE_NS_FIELD_NUMBER: _ClassVar[int]
        FORWARD_NS_FIELD_NUMBER: _ClassVar[int]
        BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
        QUEUE_LEN_FIELD_NUMBER: _ClassVar[int]
        KL_FIELD_NUMBER: _ClassVar[int]
        JS_DISTANCE_FIELD_NUMBER: _ClassVar[int]
        TARGET_ENTROPY_FIELD_NUMBER: _ClassVar[int]
        base_len: int
        accepted_len: int
        next_token_id: int
        queue_ns: int
        forward_ns: int
        batch_size: int
        queue_len: int
        kl: _containers.RepeatedScalarFieldContainer[float]
        js_distance: _containers.RepeatedScalarFieldContainer[float]
        target_entropy: _containers.RepeatedScalarFieldContainer[float]
        def __init__(self, base_len: _Optional[int] = ..., accepted_len: _Optional[int] = ..., next_token_id: _Optional[int] = ..., queue_ns: _Optional[int] = ..., forward_ns: _Optional[int] = ..., batch_size: _Optional[int] = ..., queue_len: _Optional[int] = ..., kl: _Optional[_Iterable[float]] = ..., js_distance: _Optional[_Iterable[float]] = ..., target_entropy: _Optional[_Iterable[float]] = ...) -> None: ...
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    verdict: VerifyResponse.Verdict
    def __init__(self, verdict: _Optional[_Union[VerifyResponse.Verdict, _Mapping]] = ...) -> None: ...
