"""`--trace`: the rounds of an answer as a file, and what a replay makes of it."""

import asyncio
import dataclasses
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from controller.policies.trace import RoundRecord, read_records
from speculative.generation import Delta, RoundTrace
from tests.cli.conftest import CommandLine
from tests.cli.service import ANSWER, ScriptedGenerator
from tests.support.trio import trio

ROUND = RoundTrace(3, (10, 12), (0.5, 1.0), 4, None, 1, 5, 6, 7, 30, 1, 11)


@pytest.fixture
def generator() -> ScriptedGenerator:
    """Its deltas carry rounds; a round behind the last token has a delta of its own."""
    started, first, second, finished = ANSWER
    assert isinstance(first, Delta)
    assert isinstance(second, Delta)
    deltas = [
        dataclasses.replace(first, round=ROUND),
        dataclasses.replace(second, round=dataclasses.replace(ROUND, base_len=5)),
        Delta("", round=dataclasses.replace(ROUND, base_len=7)),
    ]
    return ScriptedGenerator((started, *deltas, finished))


def records(path: Path) -> list[RoundRecord]:
    return list(read_records(path.read_text().splitlines()))


def test_every_round_is_a_line_and_the_answer_looks_as_without(
    outrider: CommandLine, address: str, generator: ScriptedGenerator, tmp_path: Path
) -> None:
    path = tmp_path / "rounds.jsonl"
    result = outrider.run("generate", "--address", address, "--trace", str(path), "hi")

    assert (result.exit_code, result.stdout) == (0, "naïve horse\n")
    assert [record.base_len for record in records(path)] == [3, 5, 7]
    assert {record.policy for record in records(path)} == {"adasd"}
    assert records(path)[0].settings == {"target": "big", "temperature": 0.0, "acceptance": "coupled"}
    assert (generator.requests[0].round_trace, generator.requests[0].round_signals) == (True, True)


def test_json_output_is_the_same_with_a_trace(
    outrider: CommandLine, address: str, generator: ScriptedGenerator, tmp_path: Path
) -> None:
    traced = outrider.run("generate", "--address", address, "--json", "--trace", str(tmp_path / "t"), "hi")
    generator.events = ANSWER
    assert traced.stdout == outrider.run("generate", "--address", address, "--json", "hi").stdout


def test_without_a_trace_no_rounds_are_asked_for(
    outrider: CommandLine, address: str, generator: ScriptedGenerator
) -> None:
    outrider.run("generate", "--address", address, "hi")
    assert not generator.requests[0].round_trace


def test_a_trace_goes_on_where_it_ended(outrider: CommandLine, address: str, tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    for _ in range(2):
        outrider.run("generate", "--address", address, "--trace", str(path), "hi")
    assert [record.base_len for record in records(path)] == [3, 5, 7] * 2
    assert len({record.request for record in records(path)}) == 2


def test_the_turns_of_a_chat_are_traced(outrider: CommandLine, address: str, tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    result = outrider.run("chat", "--address", address, "--trace", str(path), typed="one\ntwo\n")
    assert result.stdout == "naïve horse\n" * 2
    assert len({record.request for record in records(path)}) == 2


def test_a_trace_that_cannot_be_opened_is_refused_before_any_call(
    outrider: CommandLine, address: str, generator: ScriptedGenerator, tmp_path: Path
) -> None:
    result = outrider.run("generate", "--address", address, "--trace", str(tmp_path / "no" / "t"), "hi")
    assert result.exit_code == 1
    assert "No such file" in result.stderr
    assert not generator.requests


def test_a_disk_that_is_full_is_told_once_and_the_answer_goes_on(outrider: CommandLine, address: str) -> None:
    result = outrider.run("generate", "--address", address, "--trace", "/dev/full", "hi")
    assert (result.exit_code, result.stdout) == (0, "naïve horse\n")
    assert result.stderr.count("the trace is not written") == 1


@contextmanager
def emulated(**settings: Any) -> Iterator[str]:
    """The three services over an emulated model, in a thread; gives the controller's address."""
    ready, bound = threading.Event(), ""
    loop, stop = asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        nonlocal bound
        async with trio(draft="emulated:draft?agree=0.8&eos_rate=0", **settings) as client:
            bound = client.address
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert ready.wait(20)
        yield bound
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(20)
        loop.close()


def ask(outrider: CommandLine, address: str, *options: str) -> None:
    fixed = ("--policy", "fixed", "--policy-param", "length=5", "--policy-param", "guard=0")
    command = ("generate", "--address", address, "--raw", "--max-tokens", "60", "--no-prompt-lookup", *fixed, *options)
    assert outrider.run(*command, "A horse ran").exit_code == 0


def test_replaying_the_recorded_policy_at_the_recorded_costs_gives_the_recorded_rounds(
    outrider: CommandLine, tmp_path: Path
) -> None:
    client_side, server_side = tmp_path / "client.jsonl", tmp_path / "server"
    with emulated(trace_dir=server_side, trace_signals=True) as address:
        ask(outrider, address, "--trace", str(client_side))
    recorded = records(client_side)
    (server_file,) = server_side.iterdir()

    def replayed(path: Path) -> dict[str, object]:
        policy = ("--policy", "fixed", "--policy-param", "length=5", "--policy-param", "guard=0")
        result = outrider.run("replay", str(path), *policy, "--json")
        assert result.exit_code == 0
        row: dict[str, object] = json.loads(result.stdout)["policies"][0]
        return row

    outcomes = [record.outcome for record in recorded]
    for path in (client_side, server_file):
        row = replayed(path)
        assert row["rounds"] == len(outcomes)
        assert row["drafted"] == sum(outcome.drafted_len for outcome in outcomes)
        assert row["accepted"] == sum(outcome.accepted_len for outcome in outcomes)
        assert row["assumed"] == 0.0
    drafting = [outcome for outcome in outcomes if outcome.drafted_len]
    assert len(drafting) > 8
    assert all(len(outcome.kl_nats) == outcome.drafted_len for outcome in drafting)

    # Server and client tell the same rounds, and neither tells a token or a word.
    served = records(server_file)
    assert [(one.base_len, one.outcome) for one in served] == [(one.base_len, one.outcome) for one in recorded]
    assert served[0].settings["policy.length"] == 5.0
    for path in (client_side, server_file):
        assert "horse" not in path.read_text()
        assert "token_id" not in path.read_text()


def test_a_server_that_cannot_write_traces_answers_all_the_same(outrider: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with emulated(trace_dir=tmp_path / "file" / "traces") as address:
        ask(outrider, address)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
