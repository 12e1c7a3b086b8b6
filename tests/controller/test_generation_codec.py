"""GenerationService on the wire: nothing is lost, and what is wrong is named."""

import dataclasses
from collections.abc import Callable

import pytest

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
from speculative.messages import ModelInfo
from speculative.rpc import generation_codec as codec
from speculative.sampling.types import (
    AcceptanceRule,
    AdasdLabels,
    AdasdOptions,
    AdasdVariant,
    SamplingParams,
    Signals,
)
from speculative.v1 import generation_service_pb2 as pb
from tests.controller.fakes import INFO

PROMPTS: list[Prompt] = [
    TextPrompt("hello 😀"),
    TextPrompt(""),
    ChatPrompt((ChatMessage("user", "a"), ChatMessage("assistant", ""))),
    TokenPrompt((0, 2**32 - 1)),
]
FULL = GenerationRequest(
    prompt=PROMPTS[0],
    sampling=SamplingParams(0.0, 40, 0.5, 0.25),
    seed=2**64 - 1,
    stop=StopConditions(7, ("x", "y" * 1024), (0, 5)),
    speculation=SpeculationOptions(
        "adasd",
        {"start": 0.0},
        0,
        AcceptanceRule.ADASD,
        AdasdOptions(AdasdVariant.MIDPOINT, AdasdLabels.SELF),
        prompt_lookup=False,
    ),
    round_trace=True,
    round_signals=True,
)
TRACE = RoundTrace(5, (1, 0), (0.5, 0.25), 8, 1.5, 1, 2, 3, 4, 5, 6)
EVENTS: list[GenerationEvent] = [
    Started(3, 2**64 - 1, "model", "adasd"),
    Delta("é", (0, 7), (TokenOrigin.ACCEPTED, TokenOrigin.RECOVERED), (0, 2), TRACE),
    Delta("", (), (), (), dataclasses.replace(TRACE, stop_entropy_nats=None)),
    Delta("", (), (), (), dataclasses.replace(TRACE, next_token_id=7, signals=Signals((0.5,), (0.25,), (2.0,)))),
    Delta("", (), (), (), dataclasses.replace(TRACE, draft_probs=(0.5,), stop_prob=0.0, policy_state={"wvir": 0.1})),
    Delta("", (), (), (), dataclasses.replace(TRACE, stop_survival=0.5, looked_up=2)),
    Delta("x", (1,), (TokenOrigin.BONUS,), (1,)),
    Finished(FinishReason.STOP, None, 0, Usage(3, 2), Statistics(1, 2, 3, 4, 5, (0, 1), 6, 7, 8, 9)),
    Finished(FinishReason.LENGTH, "", None, Usage(0, 0), Statistics(looked_up=5, looked_up_accepted=3)),
    Finished(FinishReason.STOP, None, None, Usage(0, 0), Statistics(acceptance=AcceptanceRule.ADASD, lossy=True)),
]


@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_request_survives_the_wire(prompt: Prompt) -> None:
    for request in (dataclasses.replace(FULL, prompt=prompt), GenerationRequest(prompt)):
        wire = pb.GenerateRequest.FromString(codec.encode_request(request).SerializeToString())
        assert codec.decode_request(wire) == request


@pytest.mark.parametrize("prompt", PROMPTS[:3])
def test_a_prompt_to_tokenize_survives_the_wire(prompt: Prompt) -> None:
    assert codec.decode_tokenize(codec.encode_tokenize(prompt)) == prompt


@pytest.mark.parametrize("event", EVENTS)
def test_an_event_survives_the_wire(event: GenerationEvent) -> None:
    wire = pb.GenerateResponse.FromString(codec.encode_event(event).SerializeToString())
    assert codec.decode_event(wire) == event


@pytest.mark.parametrize("draft", [None, dataclasses.replace(INFO, name="draft")])
def test_what_the_controller_says_of_itself_survives_the_wire(draft: ModelInfo | None) -> None:
    info = ServiceInfo(INFO, draft, "reason", "adasd", ("off", "adasd"), 8, 100)
    assert codec.decode_service_info(codec.encode_service_info(info)) == info


def test_what_is_absent_is_neutral() -> None:
    assert codec.decode_request(pb.GenerateRequest(text="a")) == GenerationRequest(TextPrompt("a"))


def text(**fields: object) -> pb.GenerateRequest:
    return pb.GenerateRequest(text="a", **fields)  # type: ignore[arg-type]


WRONG: list[tuple[str, Callable[[], pb.GenerateRequest]]] = [
    ("prompt", pb.GenerateRequest),
    ("chat.messages", lambda: pb.GenerateRequest(chat=pb.ChatPrompt())),
    ("chat.messages[1].role", lambda: codec.encode_request(GenerationRequest(chat_of("user", "")))),
    ("tokens.token_ids", lambda: pb.GenerateRequest(tokens=pb.TokenPrompt())),
    ("sampling.temperature", lambda: text(sampling={"temperature": -0.5})),
    ("sampling.temperature", lambda: text(sampling={"temperature": float("nan")})),
    ("sampling.top_p", lambda: text(sampling={"top_p": 0.0})),
    ("sampling.top_p", lambda: text(sampling={"top_p": 1.5})),
    ("sampling.min_p", lambda: text(sampling={"min_p": 2.0})),
    ("stop.max_tokens", lambda: text(stop={"max_tokens": 0})),
    ("stop.stop[1]", lambda: text(stop={"stop": ["a", ""]})),
    ("stop.stop[0]", lambda: text(stop={"stop": ["a" * 1025]})),
    ("stop.stop", lambda: text(stop={"stop": ["a"] * 65})),
    ("speculation.policy_parameters[x]", lambda: text(speculation={"policy_parameters": {"x": float("inf")}})),
    ("speculation.acceptance", lambda: text(speculation={"acceptance": 99})),
    ("speculation.adasd", lambda: text(speculation={"adasd": {}})),
    ("speculation.adasd.variant", lambda: text(speculation={"acceptance": 3, "adasd": {"variant": 9}})),
    ("speculation.adasd.labels", lambda: text(speculation={"acceptance": 3, "adasd": {"labels": 9}})),
]


def chat_of(*roles: str) -> ChatPrompt:
    return ChatPrompt(tuple(ChatMessage(role, "a") for role in roles))


@pytest.mark.parametrize(("field", "request_with"), WRONG, ids=[field for field, _ in WRONG])
def test_a_wrong_field_is_named(field: str, request_with: Callable[[], pb.GenerateRequest]) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        codec.decode_request(request_with())
    assert caught.value.field == field


def test_an_answer_of_another_version_is_a_clear_error() -> None:
    for message in (pb.GenerateResponse(), pb.GenerateResponse(finished=pb.GenerateResponse.Finished(reason=99))):  # type: ignore[arg-type]
        with pytest.raises(RemoteError):
            codec.decode_event(message)
