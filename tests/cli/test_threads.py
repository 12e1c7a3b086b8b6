"""How cores are divided."""

from pathlib import Path

import pytest

from controller.cli.threads import ThreadSplit, environment, split, usable_cores


@pytest.mark.parametrize(
    ("cores", "expected"),
    [(1, (1, 1)), (2, (2, 1)), (3, (2, 1)), (4, (3, 1)), (8, (6, 2)), (64, (48, 16))],
)
def test_models_have_no_more_threads_than_cores_except_on_one_or_two(cores: int, expected: tuple[int, int]) -> None:
    assert split(cores) == ThreadSplit(*expected)
    assert cores <= 2 or sum(expected) == cores


def test_without_a_draft_the_verifier_has_all_cores() -> None:
    assert split(2, with_draft=False) == ThreadSplit(verifier=2, draft=0)


def test_a_container_quota_counts(tmp_path: Path) -> None:
    limit = tmp_path / "cpu.max"
    limit.write_text("100000 100000\n")
    assert usable_cores(limit) == 1
    limit.write_text("50000 100000\n")
    assert usable_cores(limit) == 1
    limit.write_text("max 100000\n")
    assert usable_cores(limit) == usable_cores(tmp_path / "absent") >= 1


def test_waiting_threads_do_not_spin() -> None:
    assert environment(3) == {"OMP_NUM_THREADS": "3", "OMP_WAIT_POLICY": "passive"}
