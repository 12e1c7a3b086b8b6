"""The controller between real clients and real services, over an emulated model, all in this process."""

import asyncio
import dataclasses
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc.error_details_pb2 import BadRequest
from grpc_status import rpc_status

from controller.servicer import ControllerProcess
from speculative.errors import (
    CapacityError,
    ContextLengthError,
    InvalidRequestError,
    NotReadyError,
    OutriderError,
    RemoteError,
)
from speculative.generation import (
    ChatMessage,
    ChatPrompt,
    Delta,
    FinishReason,
    GenerationRequest,
    Prompt,
    SpeculationOptions,
    StopConditions,
    TextPrompt,
    TokenPrompt,
)
from speculative.rpc.channel import open_channel, wait_serving
from speculative.rpc.lifecycle import Stop, serve
from speculative.sampling.types import AcceptanceRule, SamplingParams
from speculative.v1 import generation_service_pb2 as pb
from tests.support.engines import sessions_become
from tests.support.servers import draft_server, verifier_server
from tests.support.trio import TARGET, Client, config, controller, trio
from verifier_service.config import VerifierConfig
from verifier_service.servicer import VerifierProcess

PROMPT = TextPrompt("A horse ran")


def ask(
    prompt: Prompt = PROMPT,
    *,
    max_tokens: int = 60,
    seed: int | None = 5,
    temperature: float = 0.8,
    policy: str = "fixed",
    max_draft_tokens: int | None = None,
    acceptance: AcceptanceRule = AcceptanceRule.COUPLED,
    stop: tuple[str, ...] = (),
) -> GenerationRequest:
    return GenerationRequest(
        prompt=prompt,
        sampling=SamplingParams(temperature),
        seed=seed,
        stop=StopConditions(max_tokens, stop),
        speculation=SpeculationOptions(policy, {"guard": 0}, max_draft_tokens, acceptance),  # times decide nothing
    )


@pytest.mark.parametrize("agree", [1.0, 0.7, 0.0])
async def test_equal_seeds_give_equal_answers_whatever_the_draft_chunk_and_policy(agree: float) -> None:
    async with trio(draft=f"emulated:draft?agree={agree}") as client:
        for temperature in (0.0, 0.8):
            expected = await client.answer(ask(policy="off", temperature=temperature, max_tokens=25))
            assert len(expected.token_ids) == 25
            assert expected.finished.statistics.drafted == 0
            for chunk in range(9):
                answer = await client.answer(ask(max_draft_tokens=chunk, temperature=temperature, max_tokens=25))
                assert (answer.token_ids, answer.text) == (expected.token_ids, expected.text)
                assert (answer.finished.statistics.drafted > 0) == (chunk > 0)
            for policy in (await client.info(5)).policies:
                answer = await client.answer(ask(policy=policy, temperature=temperature, max_tokens=25))
                assert (answer.token_ids, answer.text) == (expected.token_ids, expected.text)


async def test_a_draft_that_is_the_target_is_always_right() -> None:
    async with trio(draft=TARGET, prompt_lookup=False) as client:
        for temperature in (0.0, 1.0):
            statistics = (await client.answer(ask(temperature=temperature, max_tokens=400))).finished.statistics
            assert statistics.recovered == 0
            assert statistics.accepted > 300


async def test_many_requests_at_once_are_answered_as_one_at_a_time() -> None:
    async with trio() as client:
        requests = [
            ask(TextPrompt("x" * (7 * number + 1)), seed=number, max_tokens=20 + number) for number in range(12)
        ]
        alone = [await client.answer(request) for request in requests]
        async with asyncio.TaskGroup() as tasks:
            together = [tasks.create_task(client.answer(request)) for request in requests]
        assert [task.result().token_ids for task in together] == [answer.token_ids for answer in alone]


async def test_rejection_sampling_works_end_to_end() -> None:
    async with trio() as client:
        answer = await client.answer(ask(acceptance=AcceptanceRule.REJECTION, max_tokens=100))
        assert len(answer.token_ids) == 100
        statistics = answer.finished.statistics
        assert statistics.accepted > 0
        assert statistics.recovered > 0


async def test_what_clients_are_told_agrees() -> None:
    async with trio() as client:
        answer = await client.answer(ask(max_tokens=200))
        assert answer.started.policy == "fixed"
        assert answer.started.model == TARGET
        assert answer.started.seed == 5
        assert answer.started.prompt_tokens == len(await client.tokenize(PROMPT, 5))
        assert answer.finished.reason is FinishReason.LENGTH
        assert answer.finished.usage.completion_tokens == len(answer.token_ids) == 200
        assert await client.detokenize(tuple(answer.token_ids), 5) == answer.text
        statistics = answer.finished.statistics
        assert statistics.accepted + statistics.recovered + statistics.bonus == 200
        assert sum(statistics.accepted_histogram) == statistics.rounds
        for delta in answer.deltas:
            assert len(delta.token_ids) == len(delta.token_origins) == len(delta.text_ends)
            assert delta.text_ends[-1] == len(delta.text.encode())


async def test_a_stop_string_ends_an_answer_wherever_it_falls() -> None:
    async with trio(draft=TARGET) as client:
        whole = (await client.answer(ask())).text
        for begin in range(10, 20):
            stop = whole[begin : begin + 4]
            answer = await client.answer(ask(stop=(stop,)))
            assert answer.text == whole[: whole.index(stop)]
            assert answer.finished.matched_stop == stop
            assert await client.detokenize(tuple(answer.token_ids), 5) == answer.text


async def test_unseeded_requests_differ_and_their_seed_repeats_them() -> None:
    async with trio() as client:
        first, second = [await client.answer(ask(seed=None)) for _ in range(2)]
        assert first.started.seed != second.started.seed
        assert first.token_ids != second.token_ids
        again = await client.answer(ask(seed=first.started.seed))
        assert again.token_ids == first.token_ids


async def test_a_chat_is_answered_like_its_tokens() -> None:
    chat = ChatPrompt((ChatMessage("user", "hello"),))
    async with trio() as client:
        ids = await client.tokenize(chat, 5)
        assert await client.detokenize(ids, 5) == "<|bos|><|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
        assert await client.detokenize(ids, 5, skip_special_tokens=True) == "user\nhello\nassistant\n"
        expected = await client.answer(ask(TokenPrompt(ids)))
        assert (await client.answer(ask(chat))).token_ids == expected.token_ids


async def test_without_a_draft_the_answer_is_the_same() -> None:
    async with trio() as client:
        expected = await client.answer(ask())
        assert (await client.info(5)).speculation_off_reason == ""
    async with verifier_server(TARGET) as verifier, controller(verifier.address) as client:
        info = await client.info(5)
        assert info.draft is None
        assert info.speculation_off_reason == "no draft service is configured"
        answer = await client.answer(ask())
        assert answer.token_ids == expected.token_ids
        assert answer.started.policy == "off"
    async with (
        verifier_server(TARGET) as verifier,
        controller(verifier.address, "127.0.0.1:1") as client,
    ):
        assert "127.0.0.1:1" in (await client.info(5)).speculation_off_reason
        assert (await client.answer(ask())).token_ids == expected.token_ids


async def test_a_draft_of_another_vocabulary_is_refused_and_both_are_named() -> None:
    draft = "emulated:draft?vocab=rotated"
    async with (
        verifier_server(TARGET) as verifier_,
        draft_server(draft) as draft_,
        controller(verifier_.address, draft_.address) as client,
    ):
        info = await client.knows(lambda info: "vocabularies" in info.speculation_off_reason)
        assert info.draft is None
        assert draft in info.speculation_off_reason
        assert TARGET in info.speculation_off_reason
        answer = await client.answer(ask())
        assert answer.started.policy == "off"
        assert answer.finished.statistics.drafted == 0
        assert len(answer.token_ids) == 60


async def test_a_padded_vocabulary_is_fine() -> None:
    async with trio(target=f"{TARGET}&padding=64", draft=f"{TARGET}&padding=128") as client:
        answer = await client.answer(ask(max_tokens=200))
        assert answer.finished.statistics.accepted > 100


async def test_a_draft_with_a_shorter_context_leaves_the_rest_to_the_target() -> None:
    async with trio(draft=f"{TARGET}&context=64") as client:
        expected = await client.answer(ask(policy="off", max_tokens=100))
        answer = await client.answer(ask(max_tokens=100))
        assert answer.token_ids == expected.token_ids
        assert 0 < answer.finished.statistics.accepted < 64
        long = await client.answer(ask(TextPrompt("x" * 100)))
        assert long.finished.statistics.drafted == 0


async def test_an_answer_ends_with_the_context() -> None:
    async with trio(target=f"{TARGET}&context=40", draft=TARGET) as client:
        for length in (1, 20, 37, 38):
            answer = await client.answer(ask(TextPrompt("x" * length), max_tokens=1000))
            assert answer.finished.reason is FinishReason.LENGTH
            assert answer.started.prompt_tokens + len(answer.token_ids) == 40


def wrong_requests() -> dict[str, pb.GenerateRequest]:
    def text(**fields: Any) -> pb.GenerateRequest:
        return pb.GenerateRequest(text="a", **fields)

    return {
        "prompt": pb.GenerateRequest(),
        "tokens.token_ids[1]": pb.GenerateRequest(tokens={"token_ids": [1, 260]}),
        "chat.messages[0].role": pb.GenerateRequest(chat={"messages": [{"content": "a"}]}),
        "sampling.top_p": text(sampling={"top_p": 2.0}),
        "stop.max_tokens": text(stop={"max_tokens": 0}),
        "stop.stop_token_ids[0]": text(stop={"stop_token_ids": [2**31]}),
        "speculation.policy": text(speculation={"policy": "best"}),
        "speculation.policy_parameters[depth]": text(speculation={"policy_parameters": {"depth": 1.0}}),
        "speculation.acceptance": text(speculation={"acceptance": 77}),
    }


@pytest.mark.parametrize("field", wrong_requests())
async def test_a_wrong_field_is_invalid_argument_and_names_it_before_any_work(field: str) -> None:
    async with verifier_server(TARGET) as verifier, controller(verifier.address) as client:
        call = client.stub.Generate(wrong_requests()[field], timeout=5)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        status = rpc_status.from_call(caught.value)
        details = [detail for detail in status.details if detail.Is(BadRequest.DESCRIPTOR)]
        bad_request = BadRequest()
        assert details[0].Unpack(bad_request)
        assert [violation.field for violation in bad_request.field_violations] == [field]
        assert verifier.engine.stats().sessions == 0


@pytest.mark.parametrize("length", [40, 41, 2_000_000], ids=["full", "over", "over 4 MiB"])
async def test_a_prompt_that_is_too_long_is_out_of_range_before_any_work(length: int) -> None:
    async with verifier_server(f"{TARGET}&context=40") as verifier, controller(verifier.address) as client:
        with pytest.raises(ContextLengthError) as caught:
            await client.answer(ask(TokenPrompt((200,) * length)))
        assert (caught.value.needed_len, caught.value.context_len) == (length + 1, 40)
        assert verifier.engine.stats().sessions == 0


async def test_wrong_ids_to_detokenize_are_named() -> None:
    async with verifier_server(TARGET) as verifier, controller(verifier.address) as client:
        with pytest.raises(InvalidRequestError) as caught:
            await client.detokenize((1, 260), 5)
        assert caught.value.field == "token_ids[1]"


@pytest.mark.parametrize("way", ["cancel", "deadline", "client death"])
async def test_a_client_that_leaves_frees_both_services_within_a_second(way: str) -> None:
    async with (
        verifier_server("emulated:verify20ms?eos_rate=0.0") as verifier,
        draft_server() as draft,
        controller(verifier.address, draft.address) as client,
    ):
        await client.has_draft()
        async with open_channel(client.address) as channel:
            other = Client(client.address, channel)
            deadline_s = 0.5 if way == "deadline" else None
            leaving = asyncio.ensure_future(other.answer(ask(max_tokens=4000), deadline_s))
            await sessions_become(verifier.engine, 1, within_s=5)
            await sessions_become(draft.engine, 1, within_s=5)
            if way == "deadline":
                with pytest.raises(TimeoutError):
                    await leaving
            elif way == "cancel":
                leaving.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await leaving
        if way == "client death":
            with pytest.raises((OutriderError, asyncio.CancelledError)):
                await leaving
        await sessions_become(verifier.engine, 0)
        await sessions_become(draft.engine, 0)


async def test_a_killed_draft_does_not_end_or_change_a_stream() -> None:
    request = dataclasses.replace(ask(max_tokens=150), round_trace=True)
    async with (
        verifier_server("emulated:target?eos_rate=0.0&forward_ms=8") as verifier,
        AsyncExitStack() as life,
    ):
        draft = await life.enter_async_context(draft_server())
        async with controller(verifier.address, draft.address) as client:
            await client.has_draft()
            expected = await client.answer(ask(max_tokens=150, policy="off"))
            stream = client.generate(request, 20)
            events = [await anext(stream) for _ in range(4)]
            await life.aclose()
            events += [event async for event in stream]
            deltas = [event for event in events if isinstance(event, Delta)]
            assert [token_id for delta in deltas for token_id in delta.token_ids] == expected.token_ids
            drafted = [delta.round is not None and delta.round.draft_token_ids != () for delta in deltas]
            assert drafted[0]
            assert not drafted[-2]  # the last round of all needs no draft anyway
            await client.knows(lambda info: draft.address in info.speculation_off_reason)
            after = await client.answer(request)
            assert after.token_ids == expected.token_ids
            assert after.started.policy == "off"


async def test_a_verifier_that_dies_ends_the_stream_with_unavailable() -> None:
    async with AsyncExitStack() as life:
        verifier = await life.enter_async_context(verifier_server("emulated:verify20ms?eos_rate=0.0"))
        async with controller(verifier.address) as client:
            stream = client.generate(ask(max_tokens=4000), 20)
            for _ in range(3):
                await anext(stream)
            begun = time.monotonic()
            await life.aclose()
            with pytest.raises(NotReadyError):
                async for _ in stream:
                    pass
            assert time.monotonic() - begun < 2
            await client.is_without_verifier()
            with pytest.raises(NotReadyError):
                await client.answer(ask())


@pytest.mark.parametrize("with_draft", [True, False])
async def test_a_full_verifier_says_when_to_come_back(with_draft: bool) -> None:
    async with (
        verifier_server("emulated:verify20ms?eos_rate=0.0", max_sessions=1) as verifier,
        draft_server("emulated:draft?forward_ms=20") as draft,
        controller(verifier.address, draft.address if with_draft else None) as client,
    ):
        await client.knows(lambda info: (info.draft is not None) == with_draft)
        leaving = asyncio.ensure_future(client.answer(ask(max_tokens=4000)))
        await sessions_become(verifier.engine, 1)
        with pytest.raises(CapacityError) as caught:
            await client.answer(ask())
        assert caught.value.retry_after_s > 0
        leaving.cancel()
        await sessions_become(verifier.engine, 0)


async def test_the_controller_is_ready_when_its_verifier_is(tmp_path: Path) -> None:
    address, verifier_address = (f"unix:{tmp_path / name}" for name in ("controller", "verifier"))
    settings = config(listen=address, verifier=verifier_address, drain_grace_s=0)
    stop = Stop()
    async with asyncio.TaskGroup() as tasks, open_channel(address) as channel:
        serving_task = tasks.create_task(serve(settings, ControllerProcess(settings), stop))
        with pytest.raises(NotReadyError, match="NOT_SERVING"):
            await wait_serving(channel, "", 0.3, "controller")
        with pytest.raises(NotReadyError):
            await Client(address, channel).info(5)
        verifier_settings: dict[str, Any] = {"model": TARGET, "listen": verifier_address, "drain_grace_s": 0}
        verifier_config = VerifierConfig(**verifier_settings)
        tasks.create_task(serve(verifier_config, VerifierProcess(verifier_config), stop))
        await wait_serving(channel, "speculative.v1.GenerationService", 10, "controller")
        assert len((await Client(address, channel).answer(ask())).token_ids) == 60
        stop.set()
        assert await serving_task


async def test_an_internal_error_is_not_told_to_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    async with verifier_server(TARGET) as verifier, controller(verifier.address) as client:
        monkeypatch.setattr("controller.generator.Decoder", None)
        with pytest.raises(RemoteError, match="internal error"):
            await client.answer(ask())
