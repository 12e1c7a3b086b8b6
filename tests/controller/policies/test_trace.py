import dataclasses
import json
import math

import pytest

from controller.policies.base import ChunkPlan, RoundOutcome
from controller.policies.trace import RoundRecord, read_records, record_line
from speculative.errors import InvalidRequestError

RECORD = RoundRecord(
    request="r1",
    base_len=57,
    plan=ChunkPlan(9, stop_entropy_nats=1.25),
    outcome=RoundOutcome(
        drafted_len=2,
        accepted_len=1,
        entropies_nats=(0.5, 2.0),
        draft_ns=3,
        queue_ns=4,
        forward_ns=5,
        round_ns=20,
        batch_size=6,
        draft_probs=(0.75, 0.125),
        kl_nats=(0.25, 3.0),
        js_distance=(0.125, 0.75),
        target_entropies_nats=(0.5, 1.0),
    ),
    draft_token_ids=(0, 198),
    next_token_id=0,
    policy="adasd+dsde",
    looked_up_len=1,
    state={"wvir": 0.5},
)


def test_a_record_is_one_line_and_comes_back_the_same() -> None:
    line = record_line(RECORD)
    assert "\n" not in line
    assert list(read_records([line, "", "  "])) == [RECORD]


def test_what_is_absent_is_left_out() -> None:
    plain = RoundRecord("r", 1, ChunkPlan(0), RoundOutcome(0, 0, (), 0, 0, 5, 6, 1), next_token_id=3)
    values = json.loads(record_line(plain))
    assert "kl_nats" not in values
    assert "stop_entropy_nats" not in values
    assert values["next_token_id"] == 3
    assert list(read_records([json.dumps(values)])) == [plain]


def test_the_least_record_has_request_place_lengths_and_entropies() -> None:
    line = '{"request": "r", "base_len": 5, "drafted_len": 2, "accepted_len": 1, "entropies_nats": [1, 2], "extra": 1}'
    record = next(read_records([line]))
    assert record.outcome.entropies_nats == (1.0, 2.0)
    assert record.plan.max_tokens == 2
    assert (record.outcome.round_ns, record.outcome.batch_size, record.outcome.kl_nats) == (0, 1, ())


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"accepted_len": 3}, "3 accepted of 2"),
        ({"accepted_len": -1}, "-1 accepted"),
        ({"draft_token_ids": [1, 2, 3]}, "3 ids"),
        ({"kl_nats": [0.5]}, "kl_nats has 1 entries for 2"),
        ({"entropies_nats": []}, "missing 'entropies_nats'"),
        ({"base_len": None}, "None"),
        ({"state": {"wvir": "x"}}, "x"),
        ({"state": [1]}, "items"),
        ({"kl_nats": [0.5, float("nan")]}, "nan"),
        ({"stop_prob": float("inf")}, "inf"),
        ({"base_len": 1e999}, "infinity"),
    ],
)
def test_a_bad_line_is_named(change: dict[str, object], problem: str) -> None:
    good = record_line(RECORD)
    bad = json.dumps({**json.loads(good), **change})
    with pytest.raises(InvalidRequestError, match="trace line 2") as refusal:
        list(read_records([good, bad]))
    assert problem in str(refusal.value)


def test_what_is_not_finite_is_left_out_so_that_any_program_reads_the_rest() -> None:
    outcome = dataclasses.replace(RECORD.outcome, kl_nats=(0.5, math.inf))
    plan = ChunkPlan(9, stop_entropy_nats=math.inf)
    record = dataclasses.replace(RECORD, outcome=outcome, plan=plan, state={"a": math.nan, "b": 1.0})
    values = json.loads(record_line(record))
    assert "stop_entropy_nats" not in values
    assert "kl_nats" not in values
    assert values["state"] == {"b": 1.0}


@pytest.mark.parametrize("line", ["{", "[]", "3", '{"request": "r", "base_len": 5}'])
def test_what_is_no_record_is_refused(line: str) -> None:
    with pytest.raises(InvalidRequestError, match="trace line 1"):
        list(read_records([line]))
