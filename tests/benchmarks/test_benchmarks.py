"""The benchmarks run and count right; how fast things are is no test's business."""

import json
from pathlib import Path

import pytest

from benchmarks import end_to_end, rpc_overhead
from benchmarks.end_to_end import OFF, PLAIN, Answered
from benchmarks.report import Figure, Goal, Report
from benchmarks.trio import Flags, trio
from speculative.generation import Statistics


@pytest.mark.slow
async def test_overhead_is_measured_on_real_processes() -> None:
    report = await rpc_overhead.run(runs=1, rounds=2 * rpc_overhead.SKIPPED_ROUNDS)
    figures = {figure.name: figure.value for figure in report.figures}
    assert figures["overhead of a plain step"] > 0
    assert figures["gRPC and the loop"] > 0
    assert report.details["rounds"] == [rpc_overhead.SKIPPED_ROUNDS]


@pytest.mark.slow
async def test_pair_that_does_not_fit_ends_the_benchmark_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.trio._PAIRING_TIMEOUT_S", 0.0)
    flags = Flags(draft=["--model", "emulated:draft?vocab=rotated"], verifier=["--model", "emulated:target"])
    with pytest.raises(RuntimeError, match="different vocabularies"):
        async with trio(flags):
            pass


async def test_service_that_cannot_start_ends_the_benchmark_with_its_log() -> None:
    flags = Flags(draft=["--model", "emulated:nothing"], verifier=["--model", "emulated:target"])
    with pytest.raises(ExceptionGroup) as caught:
        async with trio(flags):
            pass
    assert caught.group_contains(RuntimeError, match="no emulated profile 'nothing'")


def test_speed_counts_long_answers_as_much_as_they_take() -> None:
    answers = [Answered((1,) * 10, 1.0), Answered((1,) * 90, 4.0)]
    assert end_to_end.tokens_per_s(answers) == 20.0


def test_answer_counts_as_equal_only_if_it_is_in_every_repeat() -> None:
    def answers(*ids: int) -> list[Answered]:
        return [Answered((one,), 1.0) for one in ids]

    answered = {PLAIN: [answers(1, 2), answers(1, 2)], OFF: [answers(1, 2), answers(1, 3)]}
    assert end_to_end.equal_answers(answered) == {OFF: 1}


def test_note_divides_sums() -> None:
    answers = [
        Answered((7,) * 5, 1.0, Statistics(rounds=1, drafted=4, accepted=4, bonus=1)),
        Answered((7,) * 3, 1.0, Statistics(rounds=3, drafted=12, accepted=0, recovered=3)),
    ]
    report = end_to_end.report({PLAIN: [answers], OFF: [answers]}, threads=1, model="m", max_tokens=5)
    notes = {figure.name: figure.note for figure in report.figures}
    assert notes[OFF] == "2.00 tokens a round, 25% of drafted tokens accepted"


def test_report_tells_environment_figures_and_goals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    goals = [Goal("fast", 2.0, "<=", 1.0), Goal("right", 3.0, "==", 3.0)]
    path = Report("some", 2, [Figure("time", 2.0, "ms")], goals).publish(tmp_path)
    written = json.loads(path.read_text("utf-8"))
    assert path == tmp_path / "some.json"
    assert {"cpu", "cores", "threads", "python", "versions"} <= written["environment"].keys()
    assert [goal["holds"] for goal in written["goals"]] == [False, True]
    assert "missed: fast" in capsys.readouterr().out
