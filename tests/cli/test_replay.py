"""`outrider replay`: policies over recorded rounds, with the numbers worked out by hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from controller.policies.base import ChunkPlan, RoundOutcome
from controller.policies.registry import DEFAULT_POLICY
from controller.policies.trace import RoundRecord, record_line
from tests.cli.conftest import CommandLine

# One answer of 8 tokens behind a prompt of 10: chunks of 3 of which 2, 3 and 0 are accepted.
ROUNDS = ((10, 3, 2), (13, 3, 3), (17, 3, 0))
COSTS = ("--draft-ms", "1", "--verify-ms", "20,0.5", "--network-ms", "2")
FIXED = ("--policy", "fixed", "--policy-param", "length=3", "--policy-param", "guard=0")


def write(path: Path, rounds: tuple[tuple[int, int, int], ...] = ROUNDS, **fields: Any) -> Path:
    lines = []
    for base_len, drafted_len, accepted_len in rounds:
        outcome = RoundOutcome(drafted_len, accepted_len, (0.5,) * drafted_len, 0, 0, 0, 0, 1)
        lines.append(record_line(RoundRecord("r", base_len, ChunkPlan(drafted_len), outcome, **fields)) + "\n")
    path.write_text("".join(lines))
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write(tmp_path / "t.jsonl")


def replayed(outrider: CommandLine, *arguments: str) -> dict[str, Any]:
    result = outrider.run("replay", *arguments, "--json")
    assert result.exit_code == 0, result.stderr
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def test_numbers_are_those_worked_out_by_hand(outrider: CommandLine, trace: Path) -> None:
    answer = replayed(outrider, str(trace), *FIXED, *COSTS)

    # The recorded chunks again, but for the last: with 1 token left, none is drafted. 3 + 3 + 0 drafted, 5 accepted.
    # 6 ms drafting; 3 forwards of 20 and 6 more positions at 0.5: 63 ms; 5 round trips of 2 ms: 79 ms in all.
    fixed, _, off = answer["policies"]
    assert (fixed["policy"], fixed["rounds"], fixed["drafted"], fixed["accepted"]) == ("fixed", 3, 6, 5)
    assert fixed["tokens_per_s"] == pytest.approx(8 / 0.079)
    assert fixed["tokens_per_round"] == pytest.approx(8 / 3)
    assert fixed["drafted_per_round"] == 2.0
    assert fixed["acceptance"] == pytest.approx(5 / 6)
    assert fixed["assumed"] == 0.0
    # Off: 8 rounds of 22 ms.
    assert off["tokens_per_s"] == pytest.approx(8 / 0.176)
    assert fixed["ratio_to_off"] == pytest.approx(176 / 79)
    assert (answer["requests"], answer["tokens"]) == (1, 8)


def test_the_best_fixed_length_is_found_among_all(outrider: CommandLine, trace: Path) -> None:
    answer = replayed(outrider, str(trace), *FIXED, *COSTS, "--max-draft-tokens", "4")
    # A chunk of 2 ends before the rejection, so that its bonus token is the rejected position: 2 + 1, 2 + 1, 0 + 1 ...
    speeds = {
        length: replayed(outrider, str(trace), *COSTS, *FIXED[:2], "--policy-param", f"length={length}",
                         "--policy-param", "guard=0")["policies"][0]["tokens_per_s"]
        for length in (1, 2, 3, 4)
    }  # fmt: skip
    best = max(speeds, key=lambda length: speeds[length])
    assert answer["best_fixed"] == f"fixed {best}"
    assert answer["policies"][1]["tokens_per_s"] == speeds[best]
    assert answer["policies"][1]["ratio_to_best_fixed"] == 1.0


def test_a_policy_that_looks_beyond_the_trace_is_named(outrider: CommandLine, tmp_path: Path) -> None:
    trace = write(tmp_path / "short", ((10, 1, 1), (12, 1, 1), (14, 1, 1)))
    answer = replayed(outrider, str(trace), *FIXED, *COSTS)
    # A chunk of 3 takes in each second round's bonus token, of which nothing is recorded: one in 3, then 1 of 1.
    assert answer["policies"][0]["assumed"] == pytest.approx(1 / 4)
    assert any("fixed: looked beyond" in remark or "fixed, " in remark for remark in answer["remarks"])


def test_a_trace_of_long_chunks_needs_no_remark(outrider: CommandLine, trace: Path) -> None:
    assert replayed(outrider, str(trace), *FIXED, *COSTS, "--max-draft-tokens", "3")["remarks"] == []


def test_a_trace_without_divergences_blinds_dsde_and_says_so(outrider: CommandLine, trace: Path) -> None:
    answer = replayed(outrider, str(trace), "--policy", "dsde", "--policy-param", "guard=0", *COSTS)
    assert any("no KL" in remark for remark in answer["remarks"])


def test_several_policies_make_a_table_with_off_and_the_best_fixed_length(outrider: CommandLine, trace: Path) -> None:
    result = outrider.run("replay", str(trace), "--policy", "adasd", "--policy", "svip", *COSTS)

    assert result.exit_code == 0
    names = [line.split()[0] for line in result.stdout.splitlines() if line.strip()]
    assert names == ["policy", "adasd", "svip", "fixed", "off"]
    assert "(best)" in result.stdout
    assert "draft 1 ms a token · verify 20 ms + 0.5 ms a position more · network 2 ms" in result.stderr


def test_without_a_policy_the_default_one_is_replayed(outrider: CommandLine, trace: Path) -> None:
    assert replayed(outrider, str(trace), *COSTS)["policies"][0]["policy"] == DEFAULT_POLICY


def test_a_batch_shares_its_forwards(outrider: CommandLine, tmp_path: Path) -> None:
    paths = [write(tmp_path / name) for name in "ab"]
    paths[1].write_text(paths[1].read_text().replace('"r"', '"other"'))
    files = [str(path) for path in paths]
    # Two requests in lockstep: 8 rounds of a forward of 2 positions.
    off = replayed(outrider, *files, *COSTS, "--batch", "2")["policies"][-1]
    assert off["tokens_per_s"] == pytest.approx(16 / (8 * 0.0225))


def test_times_that_are_not_given_are_the_recorded_ones(outrider: CommandLine, tmp_path: Path) -> None:
    outcome = RoundOutcome(2, 1, (0.5, 0.5), 4_000_000, 0, 20_000_000, 30_000_000, 1)
    lines = [record_line(RoundRecord("r", base_len, ChunkPlan(2), outcome)) + "\n" for base_len in (10, 12, 14)]
    (tmp_path / "t").write_text("".join(lines))

    costs = replayed(outrider, str(tmp_path / "t"))["costs"]
    assert costs == {"draft_ms": 2.0, "verify_ms": 20.0, "verify_token_ms": 0.0, "network_ms": 3.0}
    given = replayed(outrider, str(tmp_path / "t"), "--draft-ms", "5")["costs"]
    assert given == {**costs, "draft_ms": 5.0}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--policy", "nonsense", *COSTS), "nonsense"),
        (("--policy", "adasd", "--policy-param", "length=3", *COSTS), "length"),
        (("--policy", "fixed", "--policy-param", "length=-3", *COSTS), "length"),
        (("--policy", "fixed"), "--draft-ms"),
        (("--draft-ms", "1", "--verify-ms", "soon"), "soon"),
        (("--draft-ms", "1", "--verify-ms", "1,2,3"), "1,2,3"),
        (("--draft-ms", "1", "--verify-ms", "0"), "--verify-ms"),
        (("--draft-ms", "1", "--verify-ms", "nan"), "nan"),
    ],
)
def test_wrong_usage_says_what_to_change(
    outrider: CommandLine, trace: Path, arguments: tuple[str, ...], said: str
) -> None:
    result = outrider.run("replay", str(trace), *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(("content", "said"), [("", "no rounds"), ("{}\n", "line 1"), ("\xff", "t.jsonl")])
def test_a_file_that_is_no_trace_is_refused(outrider: CommandLine, tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(content, encoding="latin-1")
    result = outrider.run("replay", str(path), *COSTS)
    assert result.exit_code == 2
    assert said in result.stderr
