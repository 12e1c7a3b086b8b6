"""Every conversion between the wire (docs/protocol.md) and the domain (messages.py, sampling/types.py).

Requests are checked here, before any work: what is wrong raises InvalidRequestError with the path of the field, as
google.rpc.BadRequest wants it. Answers of another service that break the protocol raise RemoteError. The conversions
that only GenerationService needs are in generation_codec.py.
"""

import hashlib
import math
import struct
from collections.abc import AsyncIterable, Iterator, Mapping, Sequence

from speculative.errors import InvalidRequestError, RemoteError
from speculative.messages import (
    Advance,
    Check,
    Drafted,
    DraftOpen,
    ModelInfo,
    ServiceLimits,
    StopReason,
    Verdict,
    VerifyOpen,
)
from speculative.sampling.types import (
    AcceptanceRule,
    AdasdLabels,
    AdasdOptions,
    AdasdVariant,
    SamplingParams,
    Signal,
    Signals,
    SparseLaw,
)
from speculative.v1 import draft_service_pb2, model_info_pb2, sampling_pb2, verifier_service_pb2

TOKENIZER_PIECE_BYTES = 2**20
"""Largest piece of a tokenizer file in one message."""
_FP16_BYTES = 2

_RULES = {
    AcceptanceRule.COUPLED: sampling_pb2.ACCEPTANCE_RULE_COUPLED,
    AcceptanceRule.REJECTION: sampling_pb2.ACCEPTANCE_RULE_REJECTION,
    AcceptanceRule.ADASD: sampling_pb2.ACCEPTANCE_RULE_ADASD,
}
_RULES_BY_NUMBER: Mapping[int, AcceptanceRule] = {int(number): rule for rule, number in _RULES.items()} | {
    int(sampling_pb2.ACCEPTANCE_RULE_UNSPECIFIED): AcceptanceRule.COUPLED
}
_VARIANTS = {
    AdasdVariant.BAYES: sampling_pb2.ADASD_VARIANT_BAYES,
    AdasdVariant.MIDPOINT: sampling_pb2.ADASD_VARIANT_MIDPOINT,
}
_VARIANTS_BY_NUMBER: Mapping[int, AdasdVariant] = {int(number): one for one, number in _VARIANTS.items()} | {
    int(sampling_pb2.ADASD_VARIANT_UNSPECIFIED): AdasdVariant.BAYES
}
_LABELS = {
    AdasdLabels.EXACT: sampling_pb2.ADASD_LABELS_EXACT,
    AdasdLabels.SELF: sampling_pb2.ADASD_LABELS_SELF,
}
_LABELS_BY_NUMBER: Mapping[int, AdasdLabels] = {int(number): one for one, number in _LABELS.items()} | {
    int(sampling_pb2.ADASD_LABELS_UNSPECIFIED): AdasdLabels.EXACT
}
_SIGNALS = {
    Signal.KL: verifier_service_pb2.SIGNAL_KL,
    Signal.JS_DISTANCE: verifier_service_pb2.SIGNAL_JS_DISTANCE,
    Signal.TARGET_ENTROPY: verifier_service_pb2.SIGNAL_TARGET_ENTROPY,
}
_SIGNALS_BY_NUMBER: Mapping[int, Signal] = {int(number): signal for signal, number in _SIGNALS.items()}
_STOP_REASONS = {
    StopReason.MAX_TOKENS: draft_service_pb2.STOP_REASON_MAX_TOKENS,
    StopReason.ENTROPY: draft_service_pb2.STOP_REASON_ENTROPY,
    StopReason.END_OF_SEQUENCE: draft_service_pb2.STOP_REASON_END_OF_SEQUENCE,
    StopReason.CONTEXT: draft_service_pb2.STOP_REASON_CONTEXT,
    StopReason.PROBABILITY: draft_service_pb2.STOP_REASON_PROBABILITY,
    StopReason.SURVIVAL: draft_service_pb2.STOP_REASON_SURVIVAL,
    StopReason.NO_MATCH: draft_service_pb2.STOP_REASON_NO_MATCH,
}
_STOP_REASONS_BY_NUMBER = {number: reason for reason, number in _STOP_REASONS.items()}


# Sampling: shared by all services.


def encode_sampling(params: SamplingParams) -> sampling_pb2.SamplingParams:
    """Sampling parameters, every field set."""
    return sampling_pb2.SamplingParams(
        temperature=params.temperature, top_k=params.top_k, top_p=params.top_p, min_p=params.min_p
    )


def decode_sampling(message: sampling_pb2.SamplingParams, path: str) -> SamplingParams:
    """Sampling parameters at `path` of the request; absent fields are neutral."""
    neutral = SamplingParams()
    params = SamplingParams(
        temperature=message.temperature if message.HasField("temperature") else neutral.temperature,
        top_k=message.top_k,
        top_p=message.top_p if message.HasField("top_p") else neutral.top_p,
        min_p=message.min_p,
    )
    _require(math.isfinite(params.temperature) and params.temperature >= 0, f"{path}.temperature", "finite, at least 0")
    _require(0 < params.top_p <= 1, f"{path}.top_p", "in (0, 1]")
    _require(0 <= params.min_p <= 1, f"{path}.min_p", "in [0, 1]")
    return params


def encode_acceptance(rule: AcceptanceRule) -> sampling_pb2.AcceptanceRule:
    """An acceptance rule."""
    return _RULES[rule]


def decode_acceptance(number: int, path: str) -> AcceptanceRule:
    """The acceptance rule at `path`; unset is COUPLED."""
    _require(number in _RULES_BY_NUMBER, path, "an acceptance rule that this service knows")
    return _RULES_BY_NUMBER[number]


def encode_adasd(options: AdasdOptions) -> sampling_pb2.AdasdOptions:
    """How AdaSD accepts."""
    return sampling_pb2.AdasdOptions(variant=_VARIANTS[options.variant], labels=_LABELS[options.labels])


def decode_adasd(message: sampling_pb2.AdasdOptions | None, acceptance: AcceptanceRule, path: str) -> AdasdOptions:
    """How AdaSD accepts, at `path`; None where the request says nothing. Refused with another acceptance rule."""
    if message is None:
        return AdasdOptions()
    _require(acceptance is AcceptanceRule.ADASD, path, "absent unless the acceptance rule is ADASD")
    _require(message.variant in _VARIANTS_BY_NUMBER, f"{path}.variant", "a variant that this service knows")
    _require(message.labels in _LABELS_BY_NUMBER, f"{path}.labels", "labels that this service knows")
    return AdasdOptions(_VARIANTS_BY_NUMBER[message.variant], _LABELS_BY_NUMBER[message.labels])


def decode_token_ids(token_ids: Sequence[int], path: str, vocab_size: int) -> tuple[int, ...]:
    """The token ids at `path`, all below `vocab_size`."""
    ids = tuple(token_ids)
    if ids and max(ids) >= vocab_size:
        index = next(index for index, token_id in enumerate(ids) if token_id >= vocab_size)
        raise InvalidRequestError(
            path, f"token id {ids[index]} at index {index} is outside the vocabulary of {vocab_size}"
        )
    return ids


def encode_law(law: SparseLaw) -> sampling_pb2.SparseDistribution:
    """A law. Raises ValueError if a weight is no fp16 number: the receiver would judge by another law."""
    packed = struct.pack(f"<{len(law.weights)}e", *law.weights)
    if _unpack_fp16(packed) != law.weights:
        raise ValueError("a law's weights must be rounded to fp16 before a token is drawn from it")
    return sampling_pb2.SparseDistribution(token_ids=law.token_ids, weights_fp16=packed, tail_mass=law.tail_mass)


def decode_law(message: sampling_pb2.SparseDistribution, path: str, vocab_size: int) -> SparseLaw:
    """The law at `path`: distinct ids, one finite weight of at least 0 for each, a positive sum."""
    ids, packed, tail_mass = tuple(message.token_ids), message.weights_fp16, message.tail_mass
    if len(packed) == _FP16_BYTES * len(ids) > 0 and max(ids) < vocab_size and len(set(ids)) == len(ids):
        weights = _unpack_fp16(packed)
        # A sum that is a finite number has no part that is not.
        if min(weights) >= 0.0 < sum(weights) < math.inf and 0.0 <= tail_mass <= 1.0:
            return SparseLaw(ids, weights, tail_mass)
    raise _law_error(message, path, vocab_size)


def _law_error(message: sampling_pb2.SparseDistribution, path: str, vocab_size: int) -> InvalidRequestError:
    """What is wrong with a law at `path`; laws come in every round, so this is worked out only where something is."""
    try:
        ids = decode_token_ids(message.token_ids, f"{path}.token_ids", vocab_size)
    except InvalidRequestError as error:
        return error
    if len(set(ids)) < len(ids):
        return InvalidRequestError(f"{path}.token_ids", "must be distinct")
    if len(message.weights_fp16) != _FP16_BYTES * len(ids):
        return InvalidRequestError(f"{path}.weights_fp16", "must be 2 bytes for each token id")
    if not 0 <= message.tail_mass <= 1:
        return InvalidRequestError(f"{path}.tail_mass", "must be in [0, 1]")
    return InvalidRequestError(f"{path}.weights_fp16", "must be finite weights of at least 0 with a positive sum")


def _unpack_fp16(packed: bytes) -> tuple[float, ...]:
    return struct.unpack(f"<{len(packed) // _FP16_BYTES}e", packed)


def _require(holds: bool, path: str, what: str) -> None:
    if not holds:
        raise InvalidRequestError(path, f"must be {what}")


# What services say of themselves.


def encode_model_info(info: ModelInfo) -> model_info_pb2.ModelInfo:
    """A model's description."""
    return model_info_pb2.ModelInfo(
        name=info.name,
        revision=info.revision,
        vocab_size=info.vocab_size,
        vocab_fingerprint=info.vocab_fingerprint,
        context_length=info.context_length,
        eos_token_ids=info.eos_token_ids,
        dtype=info.dtype,
        device=info.device,
    )


def decode_model_info(message: model_info_pb2.ModelInfo) -> ModelInfo:
    """A model's description."""
    return ModelInfo(
        name=message.name,
        revision=message.revision,
        vocab_size=message.vocab_size,
        vocab_fingerprint=message.vocab_fingerprint,
        context_length=message.context_length,
        eos_token_ids=tuple(message.eos_token_ids),
        dtype=message.dtype,
        device=message.device,
    )


def encode_limits(limits: ServiceLimits) -> model_info_pb2.ServiceLimits:
    """A service's limits."""
    return model_info_pb2.ServiceLimits(
        max_chunk_tokens=limits.max_chunk_tokens,
        max_sessions=limits.max_sessions,
        max_message_bytes=limits.max_message_bytes,
    )


def decode_limits(message: model_info_pb2.ServiceLimits) -> ServiceLimits:
    """A service's limits."""
    return ServiceLimits(message.max_chunk_tokens, message.max_sessions, message.max_message_bytes)


# Drafting.


def encode_draft_open(opening: DraftOpen) -> draft_service_pb2.DraftRequest:
    """The first message of a Draft stream."""
    return draft_service_pb2.DraftRequest(
        open=draft_service_pb2.DraftRequest.Open(
            prompt_token_ids=opening.prompt_token_ids,
            sampling=encode_sampling(opening.sampling),
            seed=opening.seed,
            distribution=opening.distribution,
            acceptance=encode_acceptance(opening.acceptance),
            draft_probs=opening.draft_probs,
            lookup=opening.lookup,
        )
    )


def decode_draft_open(request: draft_service_pb2.DraftRequest | None, vocab_size: int) -> DraftOpen:
    """The first message of a Draft stream; None stands for a stream that ended before it."""
    _require(request is not None and request.WhichOneof("message") == "open", "open", "the first message of a stream")
    assert request is not None
    message = request.open
    acceptance = decode_acceptance(message.acceptance, "open.acceptance")
    if message.distribution and message.acceptance == sampling_pb2.ACCEPTANCE_RULE_UNSPECIFIED:
        acceptance = AcceptanceRule.REJECTION
    return DraftOpen(
        prompt_token_ids=_decode_prompt(message.prompt_token_ids, vocab_size),
        sampling=decode_sampling(message.sampling, "open.sampling"),
        seed=message.seed,
        distribution=message.distribution,
        acceptance=acceptance,
        draft_probs=message.draft_probs,
        lookup=message.lookup,
    )


def encode_advance(advance: Advance) -> draft_service_pb2.DraftRequest:
    """A request for a chunk."""
    return draft_service_pb2.DraftRequest(
        advance=draft_service_pb2.DraftRequest.Advance(
            base_len=advance.base_len,
            committed_token_ids=advance.committed_token_ids,
            max_tokens=advance.max_tokens,
            stop_entropy=advance.stop_entropy_nats,
            stop_prob=advance.stop_prob,
            stop_survival=advance.stop_survival,
            max_lookup_tokens=advance.max_lookup_tokens,
        )
    )


def decode_advance(request: draft_service_pb2.DraftRequest, vocab_size: int, max_chunk_tokens: int) -> Advance:
    """A request for a chunk of at most `max_chunk_tokens`."""
    _require(request.WhichOneof("message") == "advance", "advance", "every message behind the first")
    message = request.advance
    for name in ("max_tokens", "max_lookup_tokens"):
        _require(getattr(message, name) <= max_chunk_tokens, f"advance.{name}", f"at most {max_chunk_tokens}")
    committed = decode_token_ids(message.committed_token_ids, "advance.committed_token_ids", vocab_size)
    max_lookup_tokens = message.max_lookup_tokens if message.HasField("max_lookup_tokens") else None
    return Advance(
        message.base_len,
        committed,
        message.max_tokens,
        _stop(message, "stop_entropy"),
        _stop(message, "stop_prob"),
        _stop(message, "stop_survival"),
        max_lookup_tokens,
    )


def _stop(message: draft_service_pb2.DraftRequest.Advance, name: str) -> float | None:
    """A threshold; None where it is absent."""
    value: float | None = getattr(message, name) if message.HasField(name) else None
    _require(value is None or value >= 0, f"advance.{name}", "at least 0")
    return value


def encode_drafted(drafted: Drafted) -> draft_service_pb2.DraftResponse:
    """A chunk."""
    return draft_service_pb2.DraftResponse(
        drafted=draft_service_pb2.DraftResponse.Drafted(
            base_len=drafted.base_len,
            token_ids=drafted.token_ids,
            entropies=drafted.entropies_nats,
            distributions=[encode_law(law) for law in drafted.laws],
            stop_reason=_STOP_REASONS[drafted.stop_reason],
            drafted_ahead=drafted.drafted_ahead,
            draft_ns=drafted.draft_ns,
            draft_probs=drafted.draft_probs,
            looked_up=drafted.looked_up,
        )
    )


def decode_drafted(response: draft_service_pb2.DraftResponse, vocab_size: int) -> Drafted:
    """A chunk whose laws and probabilities, if any, are one for each token. RemoteError if it makes no sense."""
    message = response.drafted
    count = len(message.token_ids)
    if (
        len(message.entropies) != count
        or len(message.distributions) not in (0, count)
        or len(message.draft_probs) not in (0, count)
        or message.looked_up > count
        or message.stop_reason not in _STOP_REASONS_BY_NUMBER
    ):
        raise RemoteError(f"the draft service answered {count} tokens that do not agree with the fields beside them")
    try:
        return Drafted(
            base_len=message.base_len,
            token_ids=decode_token_ids(message.token_ids, "drafted.token_ids", vocab_size),
            entropies_nats=tuple(message.entropies),
            laws=_decode_laws(message.distributions, "drafted.distributions", vocab_size),
            stop_reason=_STOP_REASONS_BY_NUMBER[message.stop_reason],
            drafted_ahead=message.drafted_ahead,
            draft_ns=message.draft_ns,
            draft_probs=tuple(message.draft_probs),
            looked_up=message.looked_up,
        )
    except InvalidRequestError as error:
        raise RemoteError(f"the draft service's answer is malformed: {error}") from error


# Verifying.


def encode_verify_open(opening: VerifyOpen) -> verifier_service_pb2.VerifyRequest:
    """The first message of a Verify stream."""
    return verifier_service_pb2.VerifyRequest(
        open=verifier_service_pb2.VerifyRequest.Open(
            prompt_token_ids=opening.prompt_token_ids,
            sampling=encode_sampling(opening.sampling),
            seed=opening.seed,
            acceptance=encode_acceptance(opening.acceptance),
            wanted_signals=sorted(_SIGNALS[signal] for signal in opening.wanted_signals),
            adasd=encode_adasd(opening.adasd) if opening.acceptance is AcceptanceRule.ADASD else None,
        )
    )


def decode_verify_open(request: verifier_service_pb2.VerifyRequest | None, vocab_size: int) -> VerifyOpen:
    """The first message of a Verify stream; None stands for a stream that ended before it."""
    _require(request is not None and request.WhichOneof("message") == "open", "open", "the first message of a stream")
    assert request is not None
    message = request.open
    acceptance = decode_acceptance(message.acceptance, "open.acceptance")
    for number in message.wanted_signals:
        _require(number in _SIGNALS_BY_NUMBER, "open.wanted_signals", "signals that this service knows")
    adasd = message.adasd if message.HasField("adasd") else None
    return VerifyOpen(
        prompt_token_ids=_decode_prompt(message.prompt_token_ids, vocab_size),
        sampling=decode_sampling(message.sampling, "open.sampling"),
        seed=message.seed,
        acceptance=acceptance,
        wanted_signals=frozenset(_SIGNALS_BY_NUMBER[number] for number in message.wanted_signals),
        adasd=decode_adasd(adasd, acceptance, "open.adasd"),
    )


def encode_check(check: Check) -> verifier_service_pb2.VerifyRequest:
    """A request for a verdict."""
    return verifier_service_pb2.VerifyRequest(
        check=verifier_service_pb2.VerifyRequest.Check(
            base_len=check.base_len,
            draft_token_ids=check.draft_token_ids,
            distributions=[encode_law(law) for law in check.laws],
        )
    )


def decode_check(request: verifier_service_pb2.VerifyRequest, vocab_size: int, max_chunk_tokens: int) -> Check:
    """A request for a verdict on at most `max_chunk_tokens` tokens. Laws, if any, are one for each token."""
    _require(request.WhichOneof("message") == "check", "check", "every message behind the first")
    message = request.check
    count = len(message.draft_token_ids)
    _require(count <= max_chunk_tokens, "check.draft_token_ids", f"at most {max_chunk_tokens} tokens")
    token_ids = decode_token_ids(message.draft_token_ids, "check.draft_token_ids", vocab_size)
    _require(len(message.distributions) in (0, count), "check.distributions", "one for each draft token, or none")
    laws = _decode_laws(message.distributions, "check.distributions", vocab_size)
    return Check(message.base_len, token_ids, laws)


def encode_verdict(verdict: Verdict) -> verifier_service_pb2.VerifyResponse:
    """A verdict."""
    return verifier_service_pb2.VerifyResponse(
        verdict=verifier_service_pb2.VerifyResponse.Verdict(
            base_len=verdict.base_len,
            accepted_len=verdict.accepted_len,
            next_token_id=verdict.next_token_id,
            queue_ns=verdict.queue_ns,
            forward_ns=verdict.forward_ns,
            batch_size=verdict.batch_size,
            queue_len=verdict.queue_len,
            kl=verdict.signals.kl_nats,
            js_distance=verdict.signals.js_distance,
            target_entropy=verdict.signals.target_entropies_nats,
        )
    )


def decode_verdict(response: verifier_service_pb2.VerifyResponse) -> Verdict:
    """A verdict. Raises RemoteError if the answer is something else."""
    if response.WhichOneof("message") != "verdict":
        raise RemoteError("the verifier service answered something that is no verdict")
    message = response.verdict
    return Verdict(
        base_len=message.base_len,
        accepted_len=message.accepted_len,
        next_token_id=message.next_token_id,
        queue_ns=message.queue_ns,
        forward_ns=message.forward_ns,
        batch_size=message.batch_size,
        queue_len=message.queue_len,
        signals=Signals(tuple(message.kl), tuple(message.js_distance), tuple(message.target_entropy)),
    )


def _decode_prompt(token_ids: Sequence[int], vocab_size: int) -> tuple[int, ...]:
    _require(len(token_ids) > 0, "open.prompt_token_ids", "at least one token")
    return decode_token_ids(token_ids, "open.prompt_token_ids", vocab_size)


def _decode_laws(
    messages: Sequence[sampling_pb2.SparseDistribution], path: str, vocab_size: int
) -> tuple[SparseLaw, ...]:
    return tuple(decode_law(message, f"{path}[{index}]", vocab_size) for index, message in enumerate(messages))


# The tokenizer's files.


def encode_tokenizer(files: Mapping[str, bytes]) -> Iterator[verifier_service_pb2.GetTokenizerResponse]:
    """The files by name, in pieces of TOKENIZER_PIECE_BYTES; the last message carries the SHA-256 over everything.

    Without files that is one message with no name, no content and the hash of nothing.
    """
    digest = hashlib.sha256()
    pieces = [
        (name, content[start : start + TOKENIZER_PIECE_BYTES])
        for name, content in files.items()
        for start in range(0, max(len(content), 1), TOKENIZER_PIECE_BYTES)
    ] or [("", b"")]
    for index, (name, content) in enumerate(pieces):
        digest.update(content)
        last = index == len(pieces) - 1
        yield verifier_service_pb2.GetTokenizerResponse(
            file_name=name, content=content, sha256=digest.hexdigest() if last else ""
        )


async def decode_tokenizer(
    responses: AsyncIterable[verifier_service_pb2.GetTokenizerResponse],
) -> dict[str, bytes]:
    """The files by name. Raises RemoteError unless all have arrived, unchanged, under plain file names."""
    digest, announced = hashlib.sha256(), ""
    files: dict[str, bytearray] = {}
    async for response in responses:
        name, announced = response.file_name, response.sha256
        digest.update(response.content)
        if "/" in name or "\\" in name or name in (".", ".."):
            raise RemoteError("the verifier service names a tokenizer file with a path")
        if name:
            files.setdefault(name, bytearray()).extend(response.content)
    if announced != digest.hexdigest():
        raise RemoteError("the tokenizer's files arrived incomplete or damaged")
    return {name: bytes(content) for name, content in files.items()}
