"""Fixtures of the command-line tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from controller.cli.app import app
from tests.cli.service import ScriptedGenerator, served


class CommandLine:
    """Runs `outrider` in this process."""

    def run(self, *arguments: str, typed: str | bytes | None = None) -> Result:
        return CliRunner().invoke(app, arguments, input=typed)


@pytest.fixture
def outrider() -> CommandLine:
    return CommandLine()


@pytest.fixture
def generator() -> ScriptedGenerator:
    return ScriptedGenerator()


@pytest.fixture
def address(generator: ScriptedGenerator) -> Iterator[str]:
    with served(generator) as bound:
        yield bound


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of the user's, and lines long enough to look for a text in them."""
    monkeypatch.delenv("OUTRIDER_ADDRESS", raising=False)
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "300")
