"""`outrider report`: the page lands where it was asked for."""

from pathlib import Path

from controller.policies.base import ChunkPlan, RoundOutcome
from controller.policies.trace import RoundRecord, record_line
from tests.cli.conftest import CommandLine


def trace(path: Path) -> Path:
    outcome = RoundOutcome(2, 1, (0.5, 0.5), 4_000_000, 0, 20_000_000, 30_000_000, 1)
    rounds = [RoundRecord(name, 10, ChunkPlan(2), outcome, policy=name) for name in ("first", "second")]
    path.write_text("".join(record_line(one) + "\n" for one in rounds))
    return path


def test_the_page_is_written_and_its_place_told(outrider: CommandLine, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = outrider.run("report", str(trace(tmp_path / "t.jsonl")), "-o", str(page))

    assert (result.exit_code, result.stdout) == (0, f"{page}\n")
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert "t.jsonl · 2 rounds of 2 requests" in page.read_text()


def test_one_request_may_be_chosen(outrider: CommandLine, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    outrider.run("report", str(trace(tmp_path / "t")), "-o", str(page), "--request", "second")
    assert "<h1>Rounds of second</h1>" in page.read_text()


def test_a_request_that_is_not_there_is_refused_with_those_that_are(outrider: CommandLine, tmp_path: Path) -> None:
    result = outrider.run("report", str(trace(tmp_path / "t")), "-o", str(tmp_path / "page"), "--request", "third")
    assert result.exit_code == 2
    assert "first, second" in result.stderr
    assert not (tmp_path / "page").exists()


def test_a_page_that_cannot_be_written_is_told(outrider: CommandLine, tmp_path: Path) -> None:
    result = outrider.run("report", str(trace(tmp_path / "t")), "-o", str(tmp_path / "no" / "page"))
    assert result.exit_code == 1
    assert "No such file" in result.stderr
