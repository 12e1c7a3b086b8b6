"""Conversions between the wire and the domain (generation.py) that only GenerationService needs, both directions.

Requests are checked here, before any work: what is wrong raises InvalidRequestError with the path of the field. What
depends on the model (ids, lengths, policies) is checked by the controller.
"""

import math
from collections.abc import Mapping

from speculative.errors import InvalidRequestError, RemoteError
from speculative.generation import (
    ChatMessage,
    ChatPrompt,
    Delta,
    Finished,
    FinishReason,
    GenerationEvent,
    GenerationRequest,
    Prompt,
    RoundTrace,
    ServiceInfo,
    SpeculationOptions,
    Started,
    Statistics,
    StopConditions,
    TextPrompt,
    TokenOrigin,
    TokenPrompt,
    Usage,
)
from speculative.rpc.codec import (
    decode_acceptance,
    decode_adasd,
    decode_model_info,
    decode_sampling,
    encode_acceptance,
    encode_adasd,
    encode_model_info,
    encode_sampling,
)
from speculative.sampling.types import AcceptanceRule, Signals
from speculative.v1 import generation_service_pb2 as pb
from speculative.v1 import sampling_pb2

MAX_STOP_STRINGS = 64
"""Most stop strings of a request."""
MAX_STOP_CHARS = 1024
"""Longest stop string; text is held back while it may begin one."""


_ORIGINS = {
    TokenOrigin.ACCEPTED: pb.TOKEN_ORIGIN_ACCEPTED,
    TokenOrigin.RECOVERED: pb.TOKEN_ORIGIN_RECOVERED,
    TokenOrigin.BONUS: pb.TOKEN_ORIGIN_BONUS,
}
_ORIGINS_BY_NUMBER: Mapping[int, TokenOrigin] = {int(number): origin for origin, number in _ORIGINS.items()}
_REASONS = {FinishReason.STOP: pb.FINISH_REASON_STOP, FinishReason.LENGTH: pb.FINISH_REASON_LENGTH}
_REASONS_BY_NUMBER: Mapping[int, FinishReason] = {int(number): reason for reason, number in _REASONS.items()}


# Requests.


def encode_request(request: GenerationRequest) -> pb.GenerateRequest:
    """A request; what is None or neutral is left out."""
    message = pb.GenerateRequest(
        sampling=encode_sampling(request.sampling),
        seed=request.seed,
        stop=pb.StopConditions(
            max_tokens=request.stop.max_tokens, stop=request.stop.stop, stop_token_ids=request.stop.stop_token_ids
        ),
        speculation=pb.SpeculationOptions(
            policy=request.speculation.policy,
            policy_parameters=request.speculation.policy_parameters,
            max_draft_tokens=request.speculation.max_draft_tokens,
            acceptance=encode_acceptance(request.speculation.acceptance),
            adasd=_adasd(request.speculation),
            prompt_lookup=request.speculation.prompt_lookup,
        ),
        output=pb.OutputOptions(round_trace=request.round_trace, round_signals=request.round_signals),
    )
    _set_prompt(message, request.prompt)
    return message


def _adasd(speculation: SpeculationOptions) -> sampling_pb2.AdasdOptions | None:
    return encode_adasd(speculation.adasd) if speculation.acceptance is AcceptanceRule.ADASD else None


def decode_request(message: pb.GenerateRequest) -> GenerationRequest:
    """A request whose every field is well formed."""
    return GenerationRequest(
        prompt=_decode_prompt(message),
        sampling=decode_sampling(message.sampling, "sampling"),
        seed=message.seed if message.HasField("seed") else None,
        stop=_decode_stop(message.stop),
        speculation=_decode_speculation(message.speculation),
        round_trace=message.output.round_trace,
        round_signals=message.output.round_signals,
    )


def encode_tokenize(prompt: Prompt) -> pb.TokenizeRequest:
    """A request to tokenize text or a chat; ValueError for token ids."""
    if isinstance(prompt, TokenPrompt):
        raise ValueError("token ids are tokenized already")
    message = pb.TokenizeRequest()
    _set_prompt(message, prompt)
    return message


def decode_tokenize(message: pb.TokenizeRequest) -> Prompt:
    """What to tokenize."""
    return _decode_prompt(message)


def _set_prompt(message: pb.GenerateRequest | pb.TokenizeRequest, prompt: Prompt) -> None:
    match prompt:
        case TextPrompt(text):
            message.text = text
        case ChatPrompt(messages):
            message.chat.SetInParent()
            message.chat.messages.extend(pb.ChatMessage(role=one.role, content=one.content) for one in messages)
        case TokenPrompt(token_ids):
            assert isinstance(message, pb.GenerateRequest)
            message.tokens.SetInParent()
            message.tokens.token_ids.extend(token_ids)


def _decode_prompt(message: pb.GenerateRequest | pb.TokenizeRequest) -> Prompt:
    match message.WhichOneof("prompt"):
        case "text":
            return TextPrompt(message.text)
        case "chat":
            return _decode_chat(message.chat)
        case "tokens":
            assert isinstance(message, pb.GenerateRequest)
            _require(len(message.tokens.token_ids) > 0, "tokens.token_ids", "at least one id")
            return TokenPrompt(tuple(message.tokens.token_ids))
        case _:
            raise InvalidRequestError("prompt", "must be set")


def _decode_chat(chat: pb.ChatPrompt) -> ChatPrompt:
    _require(len(chat.messages) > 0, "chat.messages", "at least one message")
    for index, message in enumerate(chat.messages):
        _require(message.role != "", f"chat.messages[{index}].role", "set")
    return ChatPrompt(tuple(ChatMessage(message.role, message.content) for message in chat.messages))


def _decode_stop(message: pb.StopConditions) -> StopConditions:
    max_tokens = message.max_tokens if message.HasField("max_tokens") else None
    _require(max_tokens is None or max_tokens >= 1, "stop.max_tokens", "at least 1")
    _require(len(message.stop) <= MAX_STOP_STRINGS, "stop.stop", f"at most {MAX_STOP_STRINGS} strings")
    for index, stop in enumerate(message.stop):
        _require(0 < len(stop) <= MAX_STOP_CHARS, f"stop.stop[{index}]", f"1 to {MAX_STOP_CHARS} characters")
    return StopConditions(max_tokens, tuple(message.stop), tuple(message.stop_token_ids))


def _decode_speculation(message: pb.SpeculationOptions) -> SpeculationOptions:
    for name, value in message.policy_parameters.items():
        _require(math.isfinite(value), f"speculation.policy_parameters[{name}]", "finite")
    acceptance = decode_acceptance(message.acceptance, "speculation.acceptance")
    adasd = message.adasd if message.HasField("adasd") else None
    return SpeculationOptions(
        policy=message.policy if message.HasField("policy") else None,
        policy_parameters=dict(message.policy_parameters),
        max_draft_tokens=message.max_draft_tokens if message.HasField("max_draft_tokens") else None,
        acceptance=acceptance,
        adasd=decode_adasd(adasd, acceptance, "speculation.adasd"),
        prompt_lookup=message.prompt_lookup if message.HasField("prompt_lookup") else None,
    )


def _require(holds: bool, path: str, what: str) -> None:
    if not holds:
        raise InvalidRequestError(path, f"must be {what}")


# Answers.


def encode_event(event: GenerationEvent) -> pb.GenerateResponse:
    """One message of an answer."""
    match event:
        case Started():
            return pb.GenerateResponse(started=_encode_started(event))
        case Delta():
            return pb.GenerateResponse(delta=_encode_delta(event))
        case Finished():
            return pb.GenerateResponse(finished=_encode_finished(event))


def decode_event(message: pb.GenerateResponse) -> GenerationEvent:
    """One message of an answer; RemoteError if it is none that this version knows."""
    try:
        match message.WhichOneof("message"):
            case "started":
                started = message.started
                return Started(started.prompt_tokens, started.seed, started.model, started.policy)
            case "delta":
                return _decode_delta(message.delta)
            case "finished":
                return _decode_finished(message.finished)
    except (KeyError, InvalidRequestError) as error:
        raise RemoteError(f"the controller sent an enum value that is not known here: {error}") from error
    raise RemoteError("the controller sent a message that is not known here")


def _encode_started(started: Started) -> pb.GenerateResponse.Started:
    return pb.GenerateResponse.Started(
        prompt_tokens=started.prompt_tokens, seed=started.seed, model=started.model, policy=started.policy
    )


def _encode_delta(delta: Delta) -> pb.GenerateResponse.Delta:
    return pb.GenerateResponse.Delta(
        text=delta.text,
        token_ids=delta.token_ids,
        token_origins=[_ORIGINS[origin] for origin in delta.token_origins],
        text_ends=delta.text_ends,
        round=_encode_trace(delta.round) if delta.round else None,
    )


def _decode_delta(message: pb.GenerateResponse.Delta) -> Delta:
    return Delta(
        text=message.text,
        token_ids=tuple(message.token_ids),
        token_origins=tuple(_ORIGINS_BY_NUMBER[number] for number in message.token_origins),
        text_ends=tuple(message.text_ends),
        round=_decode_trace(message.round) if message.HasField("round") else None,
    )


def _encode_trace(trace: RoundTrace) -> pb.RoundTrace:
    return pb.RoundTrace(
        base_len=trace.base_len,
        draft_token_ids=trace.draft_token_ids,
        draft_entropies=trace.draft_entropies_nats,
        max_tokens=trace.max_tokens,
        stop_entropy=trace.stop_entropy_nats,
        accepted_len=trace.accepted_len,
        draft_ns=trace.draft_ns,
        queue_ns=trace.queue_ns,
        forward_ns=trace.forward_ns,
        round_ns=trace.round_ns,
        batch_size=trace.batch_size,
        next_token_id=trace.next_token_id,
        draft_probs=trace.draft_probs,
        kl=trace.signals.kl_nats,
        js_distance=trace.signals.js_distance,
        target_entropy=trace.signals.target_entropies_nats,
        stop_prob=trace.stop_prob,
        stop_survival=trace.stop_survival,
        policy_state=trace.policy_state,
        looked_up=trace.looked_up,
    )


def _decode_trace(message: pb.RoundTrace) -> RoundTrace:
    return RoundTrace(
        base_len=message.base_len,
        draft_token_ids=tuple(message.draft_token_ids),
        draft_entropies_nats=tuple(message.draft_entropies),
        max_tokens=message.max_tokens,
        stop_entropy_nats=message.stop_entropy if message.HasField("stop_entropy") else None,
        accepted_len=message.accepted_len,
        draft_ns=message.draft_ns,
        queue_ns=message.queue_ns,
        forward_ns=message.forward_ns,
        round_ns=message.round_ns,
        batch_size=message.batch_size,
        next_token_id=message.next_token_id,
        draft_probs=tuple(message.draft_probs),
        signals=Signals(tuple(message.kl), tuple(message.js_distance), tuple(message.target_entropy)),
        stop_prob=message.stop_prob if message.HasField("stop_prob") else None,
        stop_survival=message.stop_survival if message.HasField("stop_survival") else None,
        policy_state=dict(message.policy_state),
        looked_up=message.looked_up,
    )


def _encode_finished(finished: Finished) -> pb.GenerateResponse.Finished:
    statistics = finished.statistics
    return pb.GenerateResponse.Finished(
        reason=_REASONS[finished.reason],
        matched_stop=finished.matched_stop,
        matched_token_id=finished.matched_token_id,
        usage=pb.Usage(prompt_tokens=finished.usage.prompt_tokens, completion_tokens=finished.usage.completion_tokens),
        statistics=pb.Statistics(
            rounds=statistics.rounds,
            drafted=statistics.drafted,
            accepted=statistics.accepted,
            recovered=statistics.recovered,
            bonus=statistics.bonus,
            accepted_histogram=statistics.accepted_histogram,
            first_token_ns=statistics.first_token_ns,
            total_ns=statistics.total_ns,
            draft_wait_ns=statistics.draft_wait_ns,
            verify_wait_ns=statistics.verify_wait_ns,
            acceptance=encode_acceptance(statistics.acceptance),
            lossy=statistics.lossy,
            looked_up=statistics.looked_up,
            looked_up_accepted=statistics.looked_up_accepted,
        ),
    )


def _decode_finished(message: pb.GenerateResponse.Finished) -> Finished:
    statistics = message.statistics
    return Finished(
        reason=_REASONS_BY_NUMBER[message.reason],
        matched_stop=message.matched_stop if message.HasField("matched_stop") else None,
        matched_token_id=message.matched_token_id if message.HasField("matched_token_id") else None,
        usage=Usage(message.usage.prompt_tokens, message.usage.completion_tokens),
        statistics=Statistics(
            rounds=statistics.rounds,
            drafted=statistics.drafted,
            accepted=statistics.accepted,
            recovered=statistics.recovered,
            bonus=statistics.bonus,
            accepted_histogram=tuple(statistics.accepted_histogram),
            first_token_ns=statistics.first_token_ns,
            total_ns=statistics.total_ns,
            draft_wait_ns=statistics.draft_wait_ns,
            verify_wait_ns=statistics.verify_wait_ns,
            acceptance=decode_acceptance(statistics.acceptance, "finished.statistics.acceptance"),
            lossy=statistics.lossy,
            looked_up=statistics.looked_up,
            looked_up_accepted=statistics.looked_up_accepted,
        ),
    )


# What the controller says of itself.


def encode_service_info(info: ServiceInfo) -> pb.GenerationServiceGetInfoResponse:
    """Models, defaults and limits."""
    return pb.GenerationServiceGetInfoResponse(
        target=encode_model_info(info.target),
        draft=encode_model_info(info.draft) if info.draft else None,
        speculation_off_reason=info.speculation_off_reason,
        default_policy=info.default_policy,
        policies=info.policies,
        max_draft_tokens=info.max_draft_tokens,
        default_max_tokens=info.default_max_tokens,
    )


def decode_service_info(message: pb.GenerationServiceGetInfoResponse) -> ServiceInfo:
    """Models, defaults and limits."""
    return ServiceInfo(
        target=decode_model_info(message.target),
        draft=decode_model_info(message.draft) if message.HasField("draft") else None,
        speculation_off_reason=message.speculation_off_reason,
        default_policy=message.default_policy,
        policies=tuple(message.policies),
        max_draft_tokens=message.max_draft_tokens,
        default_max_tokens=message.default_max_tokens,
    )
