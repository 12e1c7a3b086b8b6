"""What is kept of the rounds of requests, and what is not."""

import json
import logging
from pathlib import Path

import pytest

from controller.policies.trace import read_records
from controller.recording import RoundRecorder, TraceFolder, TraceSettings, settings_of
from speculative.generation import RoundTrace, SpeculationOptions
from speculative.sampling.types import AcceptanceRule, SamplingParams, Signals

ROUND = RoundTrace(
    base_len=57,
    draft_token_ids=(70_001, 70_002),
    draft_entropies_nats=(0.5, 2.0),
    max_tokens=9,
    stop_entropy_nats=1.25,
    accepted_len=1,
    draft_ns=3,
    queue_ns=4,
    forward_ns=5,
    round_ns=20,
    batch_size=6,
    next_token_id=70_003,
    draft_probs=(0.75, 0.125),
    signals=Signals((0.25, 3.0), (0.125, 0.75), (0.5, 1.0)),
    stop_prob=0.25,
    stop_survival=0.125,
    policy_state={"wvir": 0.5},
    looked_up=1,
)


def folder(directory: Path, max_files: int = 10, max_file_bytes: int = 10_000) -> TraceFolder:
    return TraceFolder(TraceSettings(directory, max_files, max_file_bytes, signals=False))


def test_a_recorded_round_has_every_number_of_the_round() -> None:
    (record,) = read_records([RoundRecorder("r", "adasd", {"target": "big"}).line(ROUND)])

    assert (record.request, record.policy, record.base_len) == ("r", "adasd", 57)
    plan, outcome = record.plan, record.outcome
    assert (plan.max_tokens, plan.stop_entropy_nats, plan.stop_prob, plan.stop_survival) == (9, 1.25, 0.25, 0.125)
    assert (outcome.drafted_len, outcome.accepted_len, outcome.batch_size) == (2, 1, 6)
    assert (outcome.draft_ns, outcome.queue_ns, outcome.forward_ns, outcome.round_ns) == (3, 4, 5, 20)
    assert (outcome.entropies_nats, outcome.draft_probs) == ((0.5, 2.0), (0.75, 0.125))
    assert (outcome.kl_nats, outcome.js_distance) == ((0.25, 3.0), (0.125, 0.75))
    assert outcome.target_entropies_nats == (0.5, 1.0)
    assert (record.state, record.looked_up_len) == ({"wvir": 0.5}, 1)


def test_no_token_is_recorded() -> None:
    assert "7000" not in RoundRecorder("r", "adasd", {}).line(ROUND)


def test_the_first_round_alone_tells_how_the_request_was_made() -> None:
    settings = settings_of(
        "big",
        SamplingParams(0.5, top_k=3),
        SpeculationOptions("fixed", {"length": 4.0}, acceptance=AcceptanceRule.REJECTION),
    )
    recorder = RoundRecorder("r", "fixed", settings)
    first, second = (json.loads(recorder.line(ROUND)) for _ in range(2))

    assert first["settings"] == {
        "target": "big",
        "temperature": 0.5,
        "acceptance": "rejection",
        "top_k": 3.0,
        "policy.length": 4.0,
    }
    assert "settings" not in second


def test_each_request_has_a_file_of_its_own_that_only_its_owner_reads(tmp_path: Path) -> None:
    traces = folder(tmp_path / "new" / "traces")
    for _ in range(2):
        with traces.recording("adasd", {}) as record:
            record(ROUND)
            record(ROUND)
    traces.close()

    files = list((tmp_path / "new" / "traces").iterdir())
    assert len(files) == 2
    for file in files:
        records = list(read_records(file.read_text().splitlines()))
        assert [f"rounds-{record.request}.jsonl" for record in records] == [file.name] * 2
        assert file.stat().st_mode & 0o777 == 0o600


def test_a_request_that_fails_leaves_the_rounds_it_had(tmp_path: Path) -> None:
    traces = folder(tmp_path)

    def fail() -> None:
        with traces.recording("adasd", {}) as record:
            record(ROUND)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    traces.close()
    assert len(list(tmp_path.iterdir())) == 1


def test_a_request_without_rounds_leaves_no_file(tmp_path: Path) -> None:
    traces = folder(tmp_path)
    with traces.recording("adasd", {}):
        pass
    traces.close()
    assert not list(tmp_path.iterdir())


def test_the_oldest_traces_go_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "rounds-of-mine.jsonl").write_text("keep")
    traces = folder(tmp_path, max_files=2)
    for policy in ("first", "second", "third"):
        with traces.recording(policy, {}) as record:
            record(ROUND)
    traces.close()

    kept = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert kept.pop("rounds-of-mine.jsonl") == "keep"
    assert sorted(json.loads(line)["policy"] for line in kept.values()) == ["second", "third"]


def test_a_long_request_is_cut_at_a_line(tmp_path: Path) -> None:
    length = len(RoundRecorder("0" * 16, "adasd", {}).line(ROUND))
    traces = folder(tmp_path, max_file_bytes=2 * length + 10)
    with traces.recording("adasd", {}) as record:
        for _ in range(5):
            record(ROUND)
    traces.close()

    (file,) = tmp_path.iterdir()
    assert len(list(read_records(file.read_text().splitlines()))) == 2


def test_a_directory_that_cannot_be_written_is_told_once_and_hurts_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    traces = folder(tmp_path / "file" / "traces")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            with traces.recording("adasd", {}) as record:
                record(ROUND)
        traces.close()
    assert [entry.getMessage() for entry in caplog.records] == ["traces are lost"]
