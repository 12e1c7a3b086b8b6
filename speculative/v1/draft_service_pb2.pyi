from speculative.v1 import model_info_pb2 as _model_info_pb2
from speculative.v1 import sampling_pb2 as _sampling_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StopReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STOP_REASON_UNSPECIFIED: _ClassVar[StopReason]
    STOP_REASON_MAX_TOKENS: _ClassVar[StopReason]
    STOP_REASON_ENTROPY: _ClassVar[StopReason]
    STOP_REASON_END_OF_SEQUENCE: _ClassVar[StopReason]
    STOP_REASON_CONTEXT: _ClassVar[StopReason]
    STOP_REASON_PROBABILITY: _ClassVar[StopReason]
    STOP_REASON_SURVIVAL: _ClassVar[StopReason]
    STOP_REASON_NO_MATCH: _ClassVar[StopReason]
STOP_REASON_UNSPECIFIED: StopReason
STOP_REASON_MAX_TOKENS: StopReason
STOP_REASON_ENTROPY: StopReason
STOP_REASON_END_OF_SEQUENCE: StopReason
STOP_REASON_CONTEXT: StopReason
STOP_REASON_PROBABILITY: StopReason
STOP_REASON_SURVIVAL: StopReason
STOP_REASON_NO_MATCH: StopReason

class DraftServiceGetInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DraftServiceGetInfoResponse(_message.Message):
    __slots__ = ("model", "limits")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    model: _model_info_pb2.ModelInfo
    limits: _model_info_pb2.ServiceLimits
    def __init__(self, model: _Optional[_Union[_model_info_pb2.ModelInfo, _Mapping]] = ..., limits: _Optional[_Union[_model_info_pb2.ServiceLimits, _Mapping]] = ...) -> None: ...

class DraftRequest(_message.Message):
    __slots__ = ("open", "advance")
    class Open(_message.Message):
        __slots__ = ("prompt_token_ids", "sampling", "seed", "distribution", "acceptance", "draft_probs", "lookup")
        PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
        SAMPLING_FIELD_NUMBER: _ClassVar[int]
        SEED_FIELD_NUMBER: _ClassVar[int]
        DISTRIBUTION_FIELD_NUMBER: _ClassVar[int]
        ACCEPTANCE_FIELD_NUMBER: _ClassVar[int]
        DRAFT_PROBS_FIELD_NUMBER: _ClassVar[int]
        LOOKUP_FIELD_NUMBER: _ClassVar[int]
        prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
        sampling: _sampling_pb2.SamplingParams
        seed: int
        distribution: bool
        acceptance: _sampling_pb2.AcceptanceRule
        draft_probs: bool
        lookup: bool
        def __init__(self, prompt_token_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[_sampling_pb2.SamplingParams, _Mapping]] = ..., seed: _Optional[int] = ..., distribution: _Optional[bool] = ..., acceptance: _Optional[_Union[_sampling_pb2.AcceptanceRule, str]] = ..., draft_probs: _Optional[bool] = ..., lookup: _Optional[bool] = ...) -> None: ...
    class Advance(_message.Message):
        __slots__ = ("base_len", "committed_token_ids", "max_tokens", "stop_entropy", "stop_prob", "stop_survival", "max_lookup_tokens")
        BASE_LEN_FIELD_NUMBER: _ClassVar[int]
        COMMITTED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
        MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
        STOP_ENTROPY_FIELD_NUMBER: _ClassVar[int]
        STOP_PROB_FIELD_NUMBER: _ClassVar[int]
        STOP_SURVIVAL_FIELD_NUMBER: _ClassVar[int]
        MAX_LOOKUP_TOKENS_FIELD_NUMBER: _ClassVar[int]
        base_len: int
        committed_token_ids: _containers.RepeatedScalarFieldContainer[int]
        max_tokens: int
        stop_entropy: float
        stop_prob: float
        stop_survival: float
        max_lookup_tokens: int
        def __init__(self, base_len: _Optional[int] = ..., committed_token_ids: _Optional[_Iterable[int]] = ..., max_tokens: _Optional[int] = ..., stop_entropy: _Optional[float] = ..., stop_prob: _Optional[float] = ..., stop_survival: _Optional[float] = ..., max_lookup_tokens: _Optional[int] = ...) -> None: ...
    OPEN_FIELD_NUMBER: _ClassVar[int]
    ADVANCE_FIELD_NUMBER: _ClassVar[int]
    open: DraftRequest.Open
    advance: DraftRequest.Advance
    def __init__(self, open: _Optional[_Union[DraftRequest.Open, _Mapping]] = ..., advance: _Optional[_Union[DraftRequest.Advance, _Mapping]] = ...) -> None: ...

class DraftResponse(_message.Message):
    __slots__ = ("drafted",)
    class Drafted(_message.Message):
        __slots__ = ("base_len", "token_ids", "entropies", "distributions", "stop_reason", "drafted_ahead", "draft_ns", "draft_probs", "looked_up")
        BASE_LEN_FIELD_NUMBER: _ClassVar[int]
        TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
        ENTROPIES_FIELD_NUMBER: _ClassVar[int]
        DISTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
        STOP_REASON_FIELD_NUMBER: _ClassVar[int]
        DRAFTED_AHEAD_FIELD_NUMBER: _ClassVar[int]
        DRAFT_NS_FIELD_NUMBER: _ClassVar[int]
        DRAFT_PROBS_FIELD_NUMBER: _ClassVar[int]
        LOOKED_UP_FIELD_NUMBER: _ClassVar[int]
        base_len: int
        token_ids: _containers.RepeatedScalarFieldContainer[int]
        entropies: _containers.RepeatedScalarFieldContainer[float]
        distributions: _containers.RepeatedCompositeFieldContainer[_sampling_pb2.SparseDistribution]
        stop_reason: StopReason
        drafted_ahead: int
        draft_ns: int
        draft_probs: _containers.RepeatedScalarFieldContainer[float]
        looked_up: int
        def __init__(self, base_len: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., entropies: _Optional[_Iterable[float]] = ..., distributions: _Optional[_Iterable[_Union[_sampling_pb2.SparseDistribution, _Mapping]]] = ..., stop_reason: _Optional[_Union[StopReason, str]] = ..., drafted_ahead: _Optional[int] = ..., draft_ns: _Optional[int] = ..., draft_probs: _Optional[_Iterable[float]] = ..., looked_up: _Optional[int] = ...) -> None: ...
    DRAFTED_FIELD_NUMBER: _ClassVar[int]
    drafted: DraftResponse.Drafted
    def __init__(self, drafted: _Optional[_Union[DraftResponse.Drafted, _Mapping]] = ...) -> None: ...
