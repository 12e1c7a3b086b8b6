from speculative.v1 import model_info_pb2 as _model_info_pb2
from speculative.v1 import sampling_pb2 as _sampling_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TokenOrigin(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TOKEN_ORIGIN_UNSPECIFIED: _ClassVar[TokenOrigin]
    TOKEN_ORIGIN_ACCEPTED: _ClassVar[TokenOrigin]
    TOKEN_ORIGIN_RECOVERED: _ClassVar[TokenOrigin]
    TOKEN_ORIGIN_BONUS: _ClassVar[TokenOrigin]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
TOKEN_ORIGIN_UNSPECIFIED: TokenOrigin
TOKEN_ORIGIN_ACCEPTED: TokenOrigin
TOKEN_ORIGIN_RECOVERED: TokenOrigin
TOKEN_ORIGIN_BONUS: TokenOrigin
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason

class GenerationServiceGetInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GenerationServiceGetInfoResponse(_message.Message):
    __slots__ = ("target", "draft", "speculation_off_reason", "default_policy", "policies", "max_draft_tokens", "default_max_tokens")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_OFF_REASON_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_POLICY_FIELD_NUMBER: _ClassVar[int]
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    target: _model_info_pb2.ModelInfo
    draft: _model_info_pb2.ModelInfo
    speculation_off_reason: str
    default_policy: str
    policies: _containers.RepeatedScalarFieldContainer[str]
    max_draft_tokens: int
    default_max_tokens: int
    def __init__(self, target: _Optional[_Union[_model_info_pb2.ModelInfo, _Mapping]] = ..., draft: _Optional[_Union[_model_info_pb2.ModelInfo, _Mapping]] = ..., speculation_off_reason: _Optional[str] = ..., default_policy: _Optional[str] = ..., policies: _Optional[_Iterable[str]] = ..., max_draft_tokens: _Optional[int] = ..., default_max_tokens: _Optional[int] = ...) -> None: ...

class ChatMessage(_message.Message):
    __slots__ = ("role", "content")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ...) -> None: ...

class ChatPrompt(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ...) -> None: ...

class TokenPrompt(_message.Message):
    __slots__ = ("token_ids",)
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class StopConditions(_message.Message):
    __slots__ = ("max_tokens", "stop", "stop_token_ids")
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    max_tokens: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, max_tokens: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., stop_token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class SpeculationOptions(_message.Message):
    __slots__ = ("policy", "policy_parameters", "max_draft_tokens", "acceptance", "adasd", "prompt_lookup")
    class PolicyParametersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    POLICY_FIELD_NUMBER: _ClassVar[int]
    POLICY_PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_FIELD_NUMBER: _ClassVar[int]
    ADASD_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOOKUP_FIELD_NUMBER: _ClassVar[int]
    policy: str
    policy_parameters: _containers.ScalarMap[str, float]
    max_draft_tokens: int
    acceptance: _sampling_pb2.AcceptanceRule
    adasd: _sampling_pb2.AdasdOptions
    prompt_lookup: bool
    def __init__(self, policy: _Optional[str] = ..., policy_parameters: _Optional[_Mapping[str, float]] = ..., max_draft_tokens: _Optional[int] = ..., acceptance: _Optional[_Union[_sampling_pb2.AcceptanceRule, str]] = ..., adasd: _Optional[_Union[_sampling_pb2.AdasdOptions, _Mapping]] = ..., prompt_lookup: _Optional[bool] = ...) -> None: ...

class OutputOptions(_message.Message):
    __slots__ = ("round_trace", "round_signals")
    ROUND_TRACE_FIELD_NUMBER: _ClassVar[int]
    ROUND_SIGNALS_FIELD_NUMBER: _ClassVar[int]
    round_trace: bool
    round_signals: bool
    def __init__(self, round_trace: _Optional[bool] = ..., round_signals: _Optional[bool] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("text", "chat", "tokens", "sampling", "seed", "stop", "speculation", "output")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    text: str
    chat: ChatPrompt
    tokens: TokenPrompt
    sampling: _sampling_pb2.SamplingParams
    seed: int
    stop: StopConditions
    speculation: SpeculationOptions
    output: OutputOptions
    def __init__(self, text: _Optional[str] = ..., chat: _Optional[_Union[ChatPrompt, _Mapping]] = ..., tokens: _Optional[_Union[TokenPrompt, _Mapping]] = ..., sampling: _Optional[_Union[_sampling_pb2.SamplingParams, _Mapping]] = ..., seed: _Optional[int] = ..., stop: _Optional[_Union[StopConditions, _Mapping]] = ..., speculation: _Optional[_Union[SpeculationOptions, _Mapping]] = ..., output: _Optional[_Union[OutputOptions, _Mapping]] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("started", "delta", "finished")
    class Started(_message.Message):
        __slots__ = ("prompt_tokens", "seed", "model", "policy")
        PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
        SEED_FIELD_NUMBER: _ClassVar[int]
        MODEL_FIELD_NUMBER: _ClassVar[int]
        POLICY_FIELD_NUMBER: _ClassVar[int]
        prompt_tokens: int
        seed: int
        model: str
        policy: str
        def __init__(self, prompt_tokens: _Optional[int] = ..., seed: _Optional[int] = ..., model: _Optional[str] = ..., policy: _Optional[str] = ...) -> None: ...
    class Delta(_message.Message):
        __slots__ = ("text", "token_ids", "token_origins", "text_ends", "round")
        TEXT_FIELD_NUMBER: _ClassVar[int]
        TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
        TOKEN_ORIGINS_FIELD_NUMBER: _ClassVar[int]
        TEXT_ENDS_FIELD_NUMBER: _ClassVar[int]
        ROUND_FIELD_NUMBER: _ClassVar[int]
        text: str
        token_ids: _containers.RepeatedScalarFieldContainer[int]
        token_origins: _containers.RepeatedScalarFieldContainer[TokenOrigin]
        text_ends: _containers.RepeatedScalarFieldContainer[int]
        round: RoundTrace
        def __init__(self, text: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., token_origins: _Optional[_Iterable[_Union[TokenOrigin, str]]] = ..., text_ends: _Optional[_Iterable[int]] = ..., round: _Optional[_Union[RoundTrace, _Mapping]] = ...) -> None: ...
    class Finished(_message.Message):
        __slots__ = ("reason", "matched_stop", "matched_token_id", "usage", "statistics")
        REASON_FIELD_NUMBER: _ClassVar[int]
        MATCHED_STOP_FIELD_NUMBER: _ClassVar[int]
        MATCHED_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
        USAGE_FIELD_NUMBER: _ClassVar[int]
        STATISTICS_FIELD_NUMBER: _ClassVar[int]
        reason: FinishReason
        matched_stop: str
        matched_token_id: int
        usage: Usage
        statistics: Statistics
        def __init__(self, reason: _Optional[_Union[FinishReason, str]] = ..., matched_stop: _Optional[str] = ..., matched_token_id: _Optional[int] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., statistics: _Optional[_Union[Statistics, _Mapping]] = ...) -> None: ...
    STARTED_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    started: GenerateResponse.Started
    delta: GenerateResponse.Delta
    finished: GenerateResponse.Finished
    def __init__(self, started: _Optional[_Union[GenerateResponse.Started, _Mapping]] = ..., delta: _Optional[_Union[GenerateResponse.Delta, _Mapping]] = ..., finished: _Optional[_Union[GenerateResponse.Finished, _Mapping]] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "completion_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    completion_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ...) -> None: ...

class Statistics(_message.Message):
    __slots__ = ("rounds", "drafted", "accepted", "recovered", "bonus", "accepted_histogram", "first_token_ns", "total_ns", "draft_wait_ns", "verify_wait_ns", "acceptance", "lossy", "looked_up", "looked_up_accepted")
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    RECOVERED_FIELD_NUMBER: _ClassVar[int]
    BONUS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_HISTOGRAM_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_NS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_NS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_WAIT_NS_FIELD_NUMBER: _ClassVar[int]
    VERIFY_WAIT_NS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_FIELD_NUMBER: _ClassVar[int]
    LOSSY_FIELD_NUMBER: _ClassVar[int]
    LOOKED_UP_FIELD_NUMBER: _ClassVar[int]
    LOOKED_UP_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    rounds: int
    drafted: int
    accepted: int
    recovered: int
    bonus: int
    accepted_histogram: _containers.RepeatedScalarFieldContainer[int]
    first_token_ns: int
    total_ns: int
    draft_wait_ns: int
    verify_wait_ns: int
    acceptance: _sampling_pb2.AcceptanceRule
    lossy: bool
    looked_up: int
    looked_up_accepted: int
    def __init__(self, rounds: _Optional[int] = ..., drafted: _Optional[int] = ..., accepted: _Optional[int] = ..., recovered: _Optional[int] = ..., bonus: _Optional[int] = ..., accepted_histogram: _Optional[_Iterable[int]] = ..., first_token_ns: _Optional[int] = ..., total_ns: _Optional[int] = ..., draft_wait_ns: _Optional[int] = ..., verify_wait_ns: _Optional[int] = ..., acceptance: _Optional[_Union[_sampling_pb2.AcceptanceRule, str]] = ..., lossy: _Optional[bool] = ..., looked_up: _Optional[int] = ..., looked_up_accepted: _Optional[int] = ...) -> None: ...

class RoundTrace(_message.Message):
    __slots__ = ("base_len", "draft_token_ids", "draft_entropies", "max_tokens", "stop_entropy", "accepted_len", "draft_ns", "queue_ns", "forward_ns", "round_ns", "batch_size", "next_token_id", "draft_probs", "kl", "js_distance", "target_entropy", "stop_prob", "stop_survival", "policy_state", "looked_up")
    class PolicyStateEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    BASE_LEN_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_ENTROPIES_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_ENTROPY_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_LEN_FIELD_NUMBER: _ClassVar[int]
    DRAFT_NS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_NS_FIELD_NUMBER: _ClassVar[int]
    FORWARD_NS_FIELD_NUMBER: _ClassVar[int]
    ROUND_NS_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    NEXT_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    DRAFT_PROBS_FIELD_NUMBER: _ClassVar[int]
    KL_FIELD_NUMBER: _ClassVar[int]
    JS_DISTANCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_ENTROPY_FIELD_NUMBER: _ClassVar[int]
    STOP_PROB_FIELD_NUMBER: _ClassVar[int]
    STOP_SURVIVAL_FIELD_NUMBER: _ClassVar[int]
    POLICY_STATE_FIELD_NUMBER: _ClassVar[int]
    LOOKED_UP_FIELD_NUMBER: _ClassVar[int]
    base_len: int
    draft_token_ids: _containers.RepeatedScalarFieldContainer[int]
    draft_entropies: _containers.RepeatedScalarFieldContainer[float]
    max_tokens: int
    stop_entropy: float
    accepted_len: int
    draft_ns: int
    queue_ns: int
    forward_ns: int
    round_ns: int
    batch_size: int
    next_token_id: int
    draft_probs: _containers.RepeatedScalarFieldContainer[float]
    kl: _containers.RepeatedScalarFieldContainer[float]
    js_distance: _containers.RepeatedScalarFieldContainer[float]
    target_entropy: _containers.RepeatedScalarFieldContainer[float]
    stop_prob: float
    stop_survival: float
    policy_state: _containers.ScalarMap[str, float]
    looked_up: int
    def __init__(self, base_len: _Optional[int] = ..., draft_token_ids: _Optional[_Iterable[int]] = ..., draft_entropies: _Optional[_Iterable[float]] = ..., max_tokens: _Optional[int] = ..., stop_entropy: _Optional[float] = ..., accepted_len: _Optional[int] = ..., draft_ns: _Optional[int] = ..., queue_ns: _Optional[int] = ..., forward_ns: _Optional[int] = ..., round_ns: _Optional[int] = ..., batch_size: _Optional[int] = ..., next_token_id: _Optional[int] = ..., draft_probs: _Optional[_Iterable[float]] = ..., kl: _Optional[_Iterable[float]] = ..., js_distance: _Optional[_Iterable[float]] = ..., target_entropy: _Optional[_Iterable[float]] = ..., stop_prob: _Optional[float] = ..., stop_survival: _Optional[float] = ..., policy_state: _Optional[_Mapping[str, float]] = ..., looked_up: _Optional[int] = ...) -> None: ...

class TokenizeRequest(_message.Message):
    __slots__ = ("text", "chat")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    text: str
    chat: ChatPrompt
    def __init__(self, text: _Optional[str] = ..., chat: _Optional[_Union[ChatPrompt, _Mapping]] = ...) -> None: ...

class TokenizeResponse(_message.Message):
    __slots__ = ("token_ids",)
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class DetokenizeRequest(_message.Message):
    __slots__ = ("token_ids", "skip_special_tokens")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SKIP_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    skip_special_tokens: bool
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., skip_special_tokens: _Optional[bool] = ...) -> None: ...

class DetokenizeResponse(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...
