"""Both services over real connections: sessions, refusals by field, and what they say of themselves."""

from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio
import pytest

from speculative.errors import (
    CapacityError,
    ContextLengthError,
    InvalidRequestError,
    StalePrefixError,
)
from speculative.messages import Advance, Check, DraftOpen, ServiceLimits, StopReason, VerifyOpen
from speculative.rpc import codec
from speculative.rpc.translate import peer_errors
from speculative.sampling.types import AcceptanceRule, SamplingParams, SparseLaw
from speculative.v1 import draft_service_pb2, sampling_pb2, verifier_service_pb2
from tests.support.engines import sessions_become
from tests.support.servers import Served, draft_server, verifier_server

SAMPLED = SamplingParams(temperature=1.5)
TIMEOUT_S = 10
DRAFT = draft_service_pb2.DraftRequest
VERIFY = verifier_service_pb2.VerifyRequest


async def draft(served: Served[Any], requests: Sequence[Any]) -> list[Any]:
    """All answers to a stream of requests; a failure as an error of ours."""
    with peer_errors("draft"):
        return [one.drafted async for one in served.stub.Draft(iter(requests), timeout=TIMEOUT_S)]


async def verify(served: Served[Any], requests: Sequence[Any]) -> list[Any]:
    with peer_errors("verifier"):
        return [one.verdict async for one in served.stub.Verify(iter(requests), timeout=TIMEOUT_S)]


def draft_open(prompt: tuple[int, ...] = (0, 1), **options: Any) -> Any:
    return codec.encode_draft_open(DraftOpen(prompt, SAMPLED, 7, **options))


def verify_open(prompt: tuple[int, ...] = (0, 1), **options: Any) -> Any:
    return codec.encode_verify_open(VerifyOpen(prompt, SAMPLED, 7, **options))


async def test_a_session_drafts_and_verifies_over_the_wire() -> None:
    async with draft_server("emulated:target") as drafting, verifier_server() as verifying:
        (drafted,) = await draft(drafting, [draft_open(), codec.encode_advance(Advance(2, (), 5))])
        assert drafted.base_len == 2
        assert 1 <= len(drafted.token_ids) <= 5
        assert len(drafted.entropies) == len(drafted.token_ids)
        (verdict,) = await verify(verifying, [verify_open(), codec.encode_check(Check(2, tuple(drafted.token_ids)))])
        assert verdict.base_len == 2
        assert verdict.accepted_len == len(drafted.token_ids)  # the same model, seed and parameters


async def test_laws_arrive_bit_for_bit_and_are_judged() -> None:
    async with draft_server("emulated:target") as drafting, verifier_server() as verifying:
        opened = draft_open(acceptance=AcceptanceRule.REJECTION)
        (message,) = await draft(drafting, [opened, codec.encode_advance(Advance(2, (), 5))])
        response = draft_service_pb2.DraftResponse(drafted=message)
        drafted = codec.decode_drafted(response, 1000)
        assert len(drafted.laws) == len(drafted.token_ids) > 0
        check = codec.encode_check(Check(2, drafted.token_ids, drafted.laws))
        assert [law.weights_fp16 for law in check.check.distributions] == [
            law.weights_fp16 for law in message.distributions
        ]
        (verdict,) = await verify(verifying, [verify_open(acceptance=AcceptanceRule.REJECTION), check])
        assert 0 <= verdict.accepted_len <= len(drafted.token_ids)


async def test_the_services_describe_themselves() -> None:
    async with draft_server(max_chunk_tokens=9, max_sessions=3) as drafting, verifier_server() as verifying:
        drafts = await drafting.stub.GetInfo(draft_service_pb2.DraftServiceGetInfoRequest(), timeout=TIMEOUT_S)
        targets = await verifying.stub.GetInfo(verifier_service_pb2.VerifierServiceGetInfoRequest(), timeout=TIMEOUT_S)
    assert codec.decode_model_info(drafts.model) == drafting.engine.info
    assert codec.decode_model_info(targets.model) == verifying.engine.info
    assert drafts.model.vocab_fingerprint == targets.model.vocab_fingerprint
    assert codec.decode_limits(drafts.limits) == ServiceLimits(9, 3, 64 * 2**20)


async def test_the_tokenizers_files_can_be_fetched() -> None:
    async with verifier_server() as served:
        call = served.stub.GetTokenizer(verifier_service_pb2.GetTokenizerRequest(), timeout=TIMEOUT_S)
        files = await codec.decode_tokenizer(call)
    assert "tokenizer.json" in files


@pytest.mark.parametrize(
    ("requests", "field"),
    [
        ([], "open"),
        ([DRAFT()], "open"),
        ([codec.encode_advance(Advance(2, (), 1))], "open"),
        ([DRAFT(open=DRAFT.Open())], "open.prompt_token_ids"),
        ([draft_open((0, 10**6))], "open.prompt_token_ids"),
        (
            [DRAFT(open=DRAFT.Open(prompt_token_ids=[0], sampling=sampling_pb2.SamplingParams(temperature=-1)))],
            "open.sampling.temperature",
        ),
        ([draft_open(), draft_open()], "advance"),
        ([draft_open(), codec.encode_advance(Advance(2, (), 17))], "advance.max_tokens"),
        ([draft_open(), codec.encode_advance(Advance(2, (), 1, -1.0))], "advance.stop_entropy"),
        ([draft_open(), codec.encode_advance(Advance(2, (10**6,), 1))], "advance.committed_token_ids"),
    ],
)
async def test_the_draft_service_names_the_field_that_is_wrong(requests: list[Any], field: str) -> None:
    async with draft_server() as served:
        with pytest.raises(InvalidRequestError) as error:
            await draft(served, requests)
        assert error.value.field == field
        await sessions_become(served.engine, 0)


@pytest.mark.parametrize(
    ("requests", "field"),
    [
        ([], "open"),
        ([codec.encode_check(Check(2, ()))], "open"),
        ([VERIFY(open=VERIFY.Open())], "open.prompt_token_ids"),
        ([verify_open((10**6,))], "open.prompt_token_ids"),
        ([verify_open(), verify_open()], "check"),
        ([verify_open(), codec.encode_check(Check(2, (0,) * 17))], "check.draft_token_ids"),
        ([verify_open(), codec.encode_check(Check(2, (10**6,)))], "check.draft_token_ids"),
        ([verify_open(acceptance=AcceptanceRule.REJECTION), codec.encode_check(Check(2, (0,)))], "check.distributions"),
        (
            [
                verify_open(acceptance=AcceptanceRule.REJECTION),
                codec.encode_check(Check(2, (0,), (SparseLaw((1,), (1.0,)),))),
            ],
            "check.distributions[0]",
        ),
    ],
)
async def test_the_verifier_service_names_the_field_that_is_wrong(requests: list[Any], field: str) -> None:
    async with verifier_server() as served:
        with pytest.raises(InvalidRequestError) as error:
            await verify(served, requests)
        assert error.value.field == field
        await sessions_become(served.engine, 0)


async def test_a_chunk_at_the_limit_passes() -> None:
    async with draft_server("emulated:target?eos_rate=0") as drafting, verifier_server() as verifying:
        (drafted,) = await draft(drafting, [draft_open(), codec.encode_advance(Advance(2, (), 16))])
        assert len(drafted.token_ids) == 16
        await verify(verifying, [verify_open(), codec.encode_check(Check(2, tuple(drafted.token_ids)))])


async def test_a_stale_message_is_aborted_with_the_true_length() -> None:
    async with draft_server() as drafting, verifier_server() as verifying:
        with pytest.raises(StalePrefixError) as error:
            await draft(drafting, [draft_open(), codec.encode_advance(Advance(5, (), 1))])
        assert error.value.true_len == 2
        with pytest.raises(StalePrefixError) as error:
            await verify(verifying, [verify_open(), codec.encode_check(Check(5, ()))])
        assert error.value.true_len == 2


async def test_a_repeated_message_is_harmless() -> None:
    async with draft_server() as drafting, verifier_server() as verifying:
        advance, check = codec.encode_advance(Advance(2, (0,), 3)), codec.encode_check(Check(2, (0, 1)))
        first, second = await draft(drafting, [draft_open(), advance, advance])
        assert (first.base_len, first.token_ids) == (second.base_len, second.token_ids)
        once, again = await verify(verifying, [verify_open(), check, check])
        assert once == again


async def test_a_prompt_too_long_is_out_of_range_at_the_verifier_and_no_error_at_the_draft() -> None:
    async with (
        draft_server("emulated:draft?context=8") as drafting,
        verifier_server("emulated:target?context=8") as served,
    ):
        with pytest.raises(ContextLengthError) as error:
            await verify(served, [verify_open((0,) * 8)])
        assert (error.value.needed_len, error.value.context_len) == (9, 8)
        opened, advance = draft_open((0,) * 8), codec.encode_advance(Advance(8, (), 4))
        (drafted,) = await draft(drafting, [opened, advance])
        assert list(drafted.token_ids) == []
        assert drafted.stop_reason == draft_service_pb2.STOP_REASON_CONTEXT
        assert codec.decode_drafted(draft_service_pb2.DraftResponse(drafted=drafted), 1000).stop_reason is (
            StopReason.CONTEXT
        )


async def test_one_stream_too_many_is_refused_at_once_and_hurts_nobody() -> None:
    async with verifier_server(max_sessions=1) as served:
        first = served.stub.Verify(timeout=TIMEOUT_S)
        await first.write(verify_open())
        await sessions_become(served.engine, 1)
        with pytest.raises(CapacityError) as error:
            await verify(served, [verify_open(), codec.encode_check(Check(2, ()))])
        assert error.value.retry_after_s > 0
        await first.write(codec.encode_check(Check(2, ())))
        assert (await first.read()).verdict.base_len == 2
        await first.done_writing()
        assert await first.code() is grpc.StatusCode.OK
        await sessions_become(served.engine, 0)
