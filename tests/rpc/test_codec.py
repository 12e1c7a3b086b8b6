"""Promises of the codec: nothing changes on the wire, and what is wrong is refused by name."""

import dataclasses
import itertools
import math
import random
import struct
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from speculative.rpc import codec
from speculative.sampling.types import (
    NO_SIGNALS,
    AcceptanceRule,
    AdasdLabels,
    AdasdOptions,
    AdasdVariant,
    SamplingParams,
    Signal,
    Signals,
    SparseLaw,
)
from speculative.v1 import draft_service_pb2, sampling_pb2, verifier_service_pb2

VOCAB = 100
VERIFIER_SIGNALS = frozenset(Signal) - {Signal.DRAFT_PROB}
CHUNK = 4
PARAMS = SamplingParams(temperature=0.5, top_k=7, top_p=0.75, min_p=0.125)
LAW = SparseLaw((0, 99, 5), (1.0, 0.5, 2.0**-24), 0.25)


def carried(message: Any) -> Any:
    """The message after a journey."""
    return type(message).FromString(message.SerializeToString())


def test_sampling_parameters_survive_the_wire() -> None:
    assert codec.decode_sampling(carried(codec.encode_sampling(PARAMS)), "sampling") == PARAMS


def test_absent_sampling_parameters_are_neutral() -> None:
    assert codec.decode_sampling(sampling_pb2.SamplingParams(), "sampling") == SamplingParams()


def test_temperature_zero_is_greedy_and_not_absent() -> None:
    params = codec.decode_sampling(carried(codec.encode_sampling(SamplingParams(temperature=0))), "sampling")
    assert params.greedy


def params_with(field: str, value: float) -> sampling_pb2.SamplingParams:
    message = sampling_pb2.SamplingParams()
    setattr(message, field, value)
    return message


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", [-0.1, math.nan, math.inf, -math.inf]),
        ("top_p", [0.0, -1.0, 1.5, math.nan]),
        ("min_p", [-0.1, 1.1, math.nan]),
    ],
)
def test_a_bad_sampling_parameter_is_named(field: str, values: list[float]) -> None:
    for value in values:
        with pytest.raises(InvalidRequestError) as error:
            codec.decode_sampling(params_with(field, value), "open.sampling")
        assert error.value.field == f"open.sampling.{field}", value


@pytest.mark.parametrize(
    "params", [SamplingParams(temperature=1e-6), SamplingParams(temperature=1e30, top_k=2**32 - 1)]
)
def test_extreme_but_valid_parameters_pass(params: SamplingParams) -> None:
    decoded = codec.decode_sampling(carried(codec.encode_sampling(params)), "sampling")
    assert decoded.temperature == pytest.approx(params.temperature)
    assert decoded.top_k == params.top_k


def test_an_unset_acceptance_rule_is_coupled_and_an_unknown_one_is_refused() -> None:
    assert codec.decode_acceptance(0, "open.acceptance") is AcceptanceRule.COUPLED
    with pytest.raises(InvalidRequestError) as error:
        codec.decode_acceptance(77, "open.acceptance")
    assert error.value.field == "open.acceptance"


weights = st.floats(0, 60000, width=16).map(abs)  # no minus zero: it has no meaning of its own
laws = st.lists(st.tuples(st.integers(0, VOCAB - 1), weights), min_size=1, unique_by=lambda pair: pair[0]).flatmap(
    lambda pairs: st.builds(
        SparseLaw,
        st.just(tuple(token_id for token_id, _ in pairs)),
        st.just((1.0, *(weight for _, weight in pairs[1:]))),
        st.floats(0, 1, width=32),
    )
)


@settings(max_examples=50)
@given(laws)
def test_a_law_survives_the_wire_bit_for_bit(law: SparseLaw) -> None:
    received = codec.decode_law(carried(codec.encode_law(law)), "law", VOCAB)
    assert received.token_ids == law.token_ids
    assert [struct.pack("<d", weight) for weight in received.weights] == [
        struct.pack("<d", weight) for weight in law.weights
    ]
    assert received.tail_mass == law.tail_mass


def test_weights_travel_as_little_endian_fp16() -> None:
    assert codec.encode_law(SparseLaw((1, 2), (1.0, 0.5))).weights_fp16 == b"\x00\x3c\x00\x38"


def test_a_weight_that_fp16_cannot_hold_is_not_sent() -> None:
    with pytest.raises(ValueError, match="fp16"):
        codec.encode_law(SparseLaw((1,), (0.1,)))


def law_message(**changes: Any) -> sampling_pb2.SparseDistribution:
    fields: dict[str, Any] = {"token_ids": [1, 2], "weights_fp16": struct.pack("<2e", 1.0, 0.5), "tail_mass": 0.0}
    return sampling_pb2.SparseDistribution(**(fields | changes))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"token_ids": [1, 1]}, "token_ids"),
        ({"token_ids": [1, VOCAB]}, "token_ids"),
        ({"weights_fp16": b"\x00"}, "weights_fp16"),
        ({"weights_fp16": struct.pack("<3e", 1, 1, 1)}, "weights_fp16"),
        ({"weights_fp16": struct.pack("<2e", 1, math.nan)}, "weights_fp16"),
        ({"weights_fp16": struct.pack("<2e", 1, math.inf)}, "weights_fp16"),
        ({"weights_fp16": struct.pack("<2e", 1, -1)}, "weights_fp16"),
        ({"weights_fp16": struct.pack("<2e", 0, 0)}, "weights_fp16"),
        ({"token_ids": [], "weights_fp16": b""}, "weights_fp16"),
        ({"tail_mass": -0.5}, "tail_mass"),
        ({"tail_mass": 1.5}, "tail_mass"),
        ({"tail_mass": math.nan}, "tail_mass"),
    ],
)
def test_a_bad_law_is_named(changes: dict[str, Any], field: str) -> None:
    codec.decode_law(law_message(), "check.distributions[3]", VOCAB)
    with pytest.raises(InvalidRequestError) as error:
        codec.decode_law(law_message(**changes), "check.distributions[3]", VOCAB)
    assert error.value.field == f"check.distributions[3].{field}"


def test_descriptions_of_models_and_services_survive_the_wire() -> None:
    info = ModelInfo("name", "revision", 49152, "abc", 8192, (0, 2), "float32", "cpu")
    limits = ServiceLimits(8, 100, 2**40)
    assert codec.decode_model_info(carried(codec.encode_model_info(info))) == info
    assert codec.decode_limits(carried(codec.encode_limits(limits))) == limits


def test_draft_messages_survive_the_wire() -> None:
    for rule, distribution, draft_probs in itertools.product(AcceptanceRule, (False, True), (False, True)):
        opening = DraftOpen((0, 99, 0), PARAMS, 2**64 - 1, distribution, rule, draft_probs, lookup=draft_probs)
        assert codec.decode_draft_open(carried(codec.encode_draft_open(opening)), VOCAB) == opening
    for advance in (
        Advance(3, (0, 1), 4, 0.5),
        Advance(3, (), 0),
        Advance(3, (0,), 4, 0.0),
        Advance(3, (), 1, math.inf),
        Advance(3, (), 1, None, 0.0, 0.25),
        Advance(3, (), 1, max_lookup_tokens=0),
        Advance(3, (), 1, max_lookup_tokens=4),
    ):
        assert codec.decode_advance(carried(codec.encode_advance(advance)), VOCAB, CHUNK) == advance
    for reason in StopReason:
        drafted = Drafted(5, (0, 99), (0.5, 0.25), (LAW, LAW), reason, 1, 2**40, looked_up=2)
        assert codec.decode_drafted(carried(codec.encode_drafted(drafted)), VOCAB) == drafted
        with_probs = dataclasses.replace(drafted, draft_probs=(0.0, 1.0))
        assert codec.decode_drafted(carried(codec.encode_drafted(with_probs)), VOCAB) == with_probs


def test_verifier_messages_survive_the_wire() -> None:
    for rule in AcceptanceRule:
        opening = VerifyOpen((0, 99), PARAMS, 0, rule)
        assert codec.decode_verify_open(carried(codec.encode_verify_open(opening)), VOCAB) == opening
    for variant, labels in itertools.product(AdasdVariant, AdasdLabels):
        signals = frozenset({Signal.KL, Signal.TARGET_ENTROPY} if variant is AdasdVariant.BAYES else VERIFIER_SIGNALS)
        opening = VerifyOpen((1,), PARAMS, 0, AcceptanceRule.ADASD, signals, AdasdOptions(variant, labels))
        assert codec.decode_verify_open(carried(codec.encode_verify_open(opening)), VOCAB) == opening
    for check in (Check(2, ()), Check(2, (0, 99)), Check(2, (0, 99), (LAW, LAW))):
        assert codec.decode_check(carried(codec.encode_check(check)), VOCAB, CHUNK) == check
    for told in (NO_SIGNALS, Signals((0.5, 0.25), (1.0, 0.0), (2.0, 0.125)), Signals(js_distance=(0.5,))):
        verdict = Verdict(2, 1, 0, 2**40, 2**41, 3, 4, told)
        assert codec.decode_verdict(carried(codec.encode_verdict(verdict))) == verdict


def test_laws_without_a_rule_are_those_of_rejection() -> None:
    opening = codec.decode_draft_open(DRAFT(open=DRAFT.Open(prompt_token_ids=[1], distribution=True)), VOCAB)
    assert opening.acceptance is AcceptanceRule.REJECTION
    assert codec.decode_draft_open(OPEN_DRAFT, VOCAB).acceptance is AcceptanceRule.COUPLED


DRAFT = draft_service_pb2.DraftRequest
VERIFY = verifier_service_pb2.VerifyRequest
ADASD = sampling_pb2.AdasdOptions
LOSSY = sampling_pb2.ACCEPTANCE_RULE_ADASD
OPEN_DRAFT = DRAFT(open=DRAFT.Open(prompt_token_ids=[1]))
OPEN_VERIFY = VERIFY(open=VERIFY.Open(prompt_token_ids=[1]))


def draft_open(request: DRAFT | None) -> object:
    return codec.decode_draft_open(request, VOCAB)


def advance(request: DRAFT) -> object:
    return codec.decode_advance(request, VOCAB, CHUNK)


def verify_open(request: VERIFY | None) -> object:
    return codec.decode_verify_open(request, VOCAB)


def check(request: VERIFY) -> object:
    return codec.decode_check(request, VOCAB, CHUNK)


@pytest.mark.parametrize(
    ("decode", "request_", "field"),
    [
        (draft_open, None, "open"),
        (draft_open, DRAFT(), "open"),
        (draft_open, DRAFT(advance=DRAFT.Advance()), "open"),
        (draft_open, DRAFT(open=DRAFT.Open()), "open.prompt_token_ids"),
        (draft_open, DRAFT(open=DRAFT.Open(prompt_token_ids=[1, VOCAB])), "open.prompt_token_ids"),
        (
            draft_open,
            DRAFT(open=DRAFT.Open(prompt_token_ids=[1], sampling=sampling_pb2.SamplingParams(top_p=2))),
            "open.sampling.top_p",
        ),
        (advance, OPEN_DRAFT, "advance"),
        (advance, DRAFT(), "advance"),
        (advance, DRAFT(advance=DRAFT.Advance(max_tokens=CHUNK + 1)), "advance.max_tokens"),
        (advance, DRAFT(advance=DRAFT.Advance(max_lookup_tokens=CHUNK + 1)), "advance.max_lookup_tokens"),
        (advance, DRAFT(advance=DRAFT.Advance(stop_entropy=-1)), "advance.stop_entropy"),
        (advance, DRAFT(advance=DRAFT.Advance(stop_entropy=math.nan)), "advance.stop_entropy"),
        (advance, DRAFT(advance=DRAFT.Advance(committed_token_ids=[VOCAB])), "advance.committed_token_ids"),
        (verify_open, None, "open"),
        (verify_open, VERIFY(check=VERIFY.Check()), "open"),
        (verify_open, VERIFY(open=VERIFY.Open()), "open.prompt_token_ids"),
        (verify_open, VERIFY(open=VERIFY.Open(prompt_token_ids=[VOCAB])), "open.prompt_token_ids"),
        (verify_open, VERIFY(open=VERIFY.Open(prompt_token_ids=[1], acceptance=9)), "open.acceptance"),  # type: ignore[arg-type]
        (verify_open, VERIFY(open=VERIFY.Open(prompt_token_ids=[1], wanted_signals=[9])), "open.wanted_signals"),  # type: ignore[list-item]
        (verify_open, VERIFY(open=VERIFY.Open(prompt_token_ids=[1], wanted_signals=[0])), "open.wanted_signals"),  # type: ignore[list-item]
        (verify_open, VERIFY(open=VERIFY.Open(prompt_token_ids=[1], adasd=ADASD())), "open.adasd"),
        (
            verify_open,
            VERIFY(open=VERIFY.Open(prompt_token_ids=[1], acceptance=LOSSY, adasd=ADASD(variant=7))),  # type: ignore[arg-type]
            "open.adasd.variant",
        ),
        (
            verify_open,
            VERIFY(open=VERIFY.Open(prompt_token_ids=[1], acceptance=LOSSY, adasd=ADASD(labels=7))),  # type: ignore[arg-type]
            "open.adasd.labels",
        ),
        (draft_open, DRAFT(open=DRAFT.Open(prompt_token_ids=[1], acceptance=9)), "open.acceptance"),  # type: ignore[arg-type]
        (advance, DRAFT(advance=DRAFT.Advance(stop_prob=-0.1)), "advance.stop_prob"),
        (advance, DRAFT(advance=DRAFT.Advance(stop_survival=math.nan)), "advance.stop_survival"),
        (check, OPEN_VERIFY, "check"),
        (check, VERIFY(check=VERIFY.Check(draft_token_ids=[1] * (CHUNK + 1))), "check.draft_token_ids"),
        (check, VERIFY(check=VERIFY.Check(draft_token_ids=[VOCAB])), "check.draft_token_ids"),
        (
            check,
            VERIFY(check=VERIFY.Check(draft_token_ids=[1, 1], distributions=[law_message()])),
            "check.distributions",
        ),
        (
            check,
            VERIFY(check=VERIFY.Check(draft_token_ids=[1], distributions=[law_message(tail_mass=2)])),
            "check.distributions[0].tail_mass",
        ),
    ],
)
def test_a_bad_field_is_named(decode: Callable[[Any], object], request_: Any, field: str) -> None:
    with pytest.raises(InvalidRequestError) as error:
        decode(request_)
    assert error.value.field == field


DRAFTED = draft_service_pb2.DraftResponse.Drafted


@pytest.mark.parametrize(
    "drafted",
    [
        DRAFTED(
            token_ids=[1],
            entropies=[0.5],
            draft_probs=[0.5, 0.5],
            stop_reason=draft_service_pb2.STOP_REASON_MAX_TOKENS,
        ),
        DRAFTED(token_ids=[1], entropies=[], stop_reason=draft_service_pb2.STOP_REASON_MAX_TOKENS),
        DRAFTED(token_ids=[1], entropies=[0.5]),
        DRAFTED(token_ids=[1], entropies=[0.5], looked_up=2, stop_reason=draft_service_pb2.STOP_REASON_MAX_TOKENS),
        DRAFTED(token_ids=[VOCAB], entropies=[0.5], stop_reason=draft_service_pb2.STOP_REASON_MAX_TOKENS),
        DRAFTED(
            token_ids=[1, 2],
            entropies=[0.5, 0.5],
            distributions=[law_message()],
            stop_reason=draft_service_pb2.STOP_REASON_MAX_TOKENS,
        ),
    ],
)
def test_a_draft_that_answers_nonsense_is_a_remote_error(drafted: DRAFTED) -> None:
    with pytest.raises(RemoteError):
        codec.decode_drafted(draft_service_pb2.DraftResponse(drafted=drafted), VOCAB)


def test_an_answer_that_is_no_verdict_is_a_remote_error() -> None:
    with pytest.raises(RemoteError):
        codec.decode_verdict(verifier_service_pb2.VerifyResponse())


async def stream(items: Iterable[Any]) -> AsyncIterator[Any]:
    for item in items:
        yield item


FILES = {"tokenizer.json": random.Random(1).randbytes(2_500_000), "empty.json": b"", "chat_template.jinja": b"{{ x }}"}


@pytest.mark.parametrize("files", [FILES, {}, {"only.json": b""}])
async def test_tokenizer_files_arrive_as_they_were(files: dict[str, bytes]) -> None:
    pieces = [carried(piece) for piece in codec.encode_tokenizer(files)]
    assert all(len(piece.content) <= codec.TOKENIZER_PIECE_BYTES for piece in pieces)
    assert [bool(piece.sha256) for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert await codec.decode_tokenizer(stream(pieces)) == files


@pytest.mark.parametrize("damage", ["lost first", "lost last", "changed", "swapped", "nothing"])
async def test_damaged_tokenizer_files_are_refused(damage: str) -> None:
    pieces = list(codec.encode_tokenizer(FILES))
    match damage:
        case "lost first":
            del pieces[0]
        case "lost last":
            del pieces[-1]
        case "changed":
            pieces[0].content = b"x" + pieces[0].content[1:]
        case "swapped":
            pieces[0], pieces[2] = pieces[2], pieces[0]
        case "nothing":
            pieces.clear()
    with pytest.raises(RemoteError):
        await codec.decode_tokenizer(stream(pieces))


@pytest.mark.parametrize("name", ["../evil", "/etc/passwd", "a\\b", "..", "."])
async def test_a_tokenizer_file_cannot_be_named_out_of_its_directory(name: str) -> None:
    with pytest.raises(RemoteError):
        await codec.decode_tokenizer(stream(codec.encode_tokenizer({name: b"x"})))
