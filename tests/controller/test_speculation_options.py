"""What a request says about speculation reaches all three services, over gRPC, and comes back in its answer."""

import logging

import pytest

from controller.policies.registry import DEFAULT_POLICY
from speculative.generation import GenerationRequest, RoundTrace, SpeculationOptions, StopConditions, TextPrompt
from speculative.sampling.types import AcceptanceRule, AdasdLabels, AdasdOptions, AdasdVariant, SamplingParams
from tests.support.trio import Answer, trio

UNGUARDED = {"guard": 0.0}
ADASD = AdasdOptions(AdasdVariant.MIDPOINT, AdasdLabels.SELF)


def ask(speculation: SpeculationOptions, temperature: float = 0.8, *, signals: bool = True) -> GenerationRequest:
    return GenerationRequest(
        TextPrompt("A horse ran"),
        SamplingParams(temperature),
        seed=5,
        stop=StopConditions(60),
        speculation=speculation,
        round_trace=True,
        round_signals=signals,
    )


def rounds(answer: Answer) -> list[RoundTrace]:
    found = [delta.round for delta in answer.deltas if delta.round is not None and delta.round.draft_token_ids]
    assert found
    return found


@pytest.mark.parametrize("temperature", [0.0, 0.8])
async def test_signals_cross_the_wire_and_change_nothing(temperature: float) -> None:
    async with trio() as client:
        plain = await client.answer(ask(SpeculationOptions("off"), temperature))
        told = await client.answer(ask(SpeculationOptions("fixed", UNGUARDED), temperature))
        untold = await client.answer(ask(SpeculationOptions("fixed", UNGUARDED), temperature, signals=False))
    assert told.token_ids == untold.token_ids == plain.token_ids
    for trace in rounds(told):
        length, signals = len(trace.draft_token_ids), trace.signals
        assert len(trace.draft_probs) == len(signals.kl_nats) == len(signals.js_distance) == length
        assert len(signals.target_entropies_nats) == length
    assert max(max(trace.signals.js_distance) for trace in rounds(told)) > 0.1
    for trace in rounds(untold):
        assert trace.draft_probs == trace.signals.kl_nats == trace.signals.js_distance == ()


async def test_the_servers_policy_is_used_where_a_request_names_none() -> None:
    async with trio() as client:
        default = (await client.info(5)).default_policy
        answer = await client.answer(ask(SpeculationOptions(None, UNGUARDED), signals=False))
    assert default == answer.started.policy == DEFAULT_POLICY
    for trace in rounds(answer):
        assert trace.signals.kl_nats == ()


async def test_a_policy_gets_the_divergences_it_wants_and_nothing_else() -> None:
    async with trio() as client:
        answer = await client.answer(ask(SpeculationOptions("adasd+dsde", UNGUARDED), signals=False))
    for trace in rounds(answer):
        assert len(trace.signals.kl_nats) == len(trace.draft_token_ids)
        assert trace.signals.js_distance == trace.signals.target_entropies_nats == trace.draft_probs == ()
    assert rounds(answer)[-1].policy_state["calibrating"] == 0.0
    assert "wvir" in rounds(answer)[-1].policy_state


@pytest.mark.parametrize(("policy", "stop"), [("hf_dynamic", "stop_prob"), ("goodput", "stop_survival")])
async def test_stop_rules_reach_the_draft_and_probabilities_come_back(policy: str, stop: str) -> None:
    async with trio() as client:
        answer = await client.answer(ask(SpeculationOptions(policy, UNGUARDED), signals=False))
    ruled = [trace for trace in rounds(answer) if getattr(trace, stop) is not None]
    for trace in ruled:
        assert len(trace.draft_probs) == len(trace.draft_token_ids)
        if trace.stop_prob is not None:
            assert all(prob >= trace.stop_prob for prob in trace.draft_probs[:-1])
    assert ruled or policy == "goodput"  # which may find that drafting never loses


async def test_the_guard_is_on_unless_told_otherwise() -> None:
    async with trio() as client:
        guarded = await client.answer(ask(SpeculationOptions("fixed")))
        free = await client.answer(ask(SpeculationOptions("fixed", UNGUARDED)))
    assert "guard_on" in rounds_of_any_length(guarded)[-1].policy_state
    assert "guard_on" not in rounds(free)[-1].policy_state
    assert guarded.token_ids == free.token_ids
    async with trio(guard=False) as client:
        answer = await client.answer(ask(SpeculationOptions("fixed")))
    assert "guard_on" not in rounds(answer)[-1].policy_state


def rounds_of_any_length(answer: Answer) -> list[RoundTrace]:
    return [delta.round for delta in answer.deltas if delta.round is not None]


async def test_a_servers_policy_parameters_hold_where_the_request_has_none() -> None:
    async with trio(policy_parameters={"length": 2, "guard": 0, "batch_cap": 0}) as client:
        server = await client.answer(ask(SpeculationOptions("fixed")))
        own = await client.answer(ask(SpeculationOptions("fixed", {"length": 3})))
        other = await client.answer(ask(SpeculationOptions("heuristic")))
    assert {trace.max_tokens for trace in rounds(server)[:-2]} == {2}
    assert {trace.max_tokens for trace in rounds(own)[:-2]} == {3}
    assert max(trace.max_tokens for trace in rounds(other)) > 3


async def test_a_lossy_rule_is_named_in_the_log_and_in_the_statistics(caplog: pytest.LogCaptureFixture) -> None:
    speculation = SpeculationOptions("fixed", UNGUARDED, acceptance=AcceptanceRule.ADASD, adasd=ADASD)
    async with trio() as client:
        answer = await client.answer(ask(speculation))
    assert (answer.finished.statistics.acceptance, answer.finished.statistics.lossy) == (AcceptanceRule.ADASD, True)
    warnings = [record for record in caplog.records if record.getMessage() == "lossy acceptance"]
    assert [record.levelno for record in warnings] == [logging.WARNING]


async def test_a_lossless_rule_is_not_called_lossy(caplog: pytest.LogCaptureFixture) -> None:
    async with trio() as client:
        answer = await client.answer(ask(SpeculationOptions("fixed", acceptance=AcceptanceRule.REJECTION)))
    assert answer.finished.statistics.acceptance is AcceptanceRule.REJECTION
    assert not answer.finished.statistics.lossy
    assert "lossy acceptance" not in caplog.text
