"""Promises of the settings: flags, then environment, then file; anything wrong stops the start and says where."""

from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import Field, SecretStr, ValidationError

from draft_service.config import DraftConfig
from speculative import settings
from speculative.settings import ServerSettings
from verifier_service.config import VerifierConfig

PROGRAM = "python -m draft_service"


def load(*arguments: str) -> DraftConfig:
    return settings.load(DraftConfig, arguments, PROGRAM)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "outrider.toml"
    path.write_text('[draft]\nmodel = "from file"\nthreads = 1\nmax_sessions = 11\n[verifier]\nmodel = "other"\n')
    return path


def test_flags_come_before_the_environment_before_the_file_before_defaults(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_DRAFT_THREADS", "2")
    monkeypatch.setenv("OUTRIDER_DRAFT_MODEL", "from environment")
    config = load("--config", str(file), "--threads", "3")
    assert config.threads == 3
    assert config.model == "from environment"
    assert config.max_sessions == 11
    assert config.block_tokens == DraftConfig.model_fields["block_tokens"].default


def test_the_environment_can_name_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_DRAFT_CONFIG", str(file))
    assert load().model == "from file"


def test_one_file_serves_all_services(file: Path) -> None:
    config = settings.load(VerifierConfig, ["--config", str(file)], "python -m verifier_service")
    assert config.model == "other"


def stopped(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The message of a start that is stopped."""
    with pytest.raises(SystemExit) as stop:
        load(*arguments)
    assert stop.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--model (or OUTRIDER_DRAFT_MODEL) is required"),
        (["--model", "m", "--threads", "-1"], "--threads: Input should be greater than or equal to 0"),
        (["--model", "m", "--threads", "many"], "--threads: Input should be a valid integer"),
        (["--model", "m", "--thread", "1"], "unrecognized arguments: --thread"),
        (["--model", "m", "--drain-grace-s", "inf"], "--drain-grace-s: Input should be a finite number"),
        (["--model", "m", "--log-format", "xml"], "--log-format"),
        (["--model", "m", "--config", "/no/such/file"], "/no/such/file"),
        (["--model", "m", "--max-batch-tokens", "8", "--max-chunk-tokens", "8"], "max_batch_tokens must be greater"),
    ],
)
def test_a_bad_flag_stops_the_start(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in stopped(capsys, *arguments)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("OUTRIDER_DRAFT_THREADS", "-1", "OUTRIDER_DRAFT_THREADS: Input should be greater"),
        ("OUTRIDER_DRAFT_MODLE", "m", "OUTRIDER_DRAFT_MODLE: no such setting"),
    ],
)
def test_a_bad_variable_stops_the_start(
    name: str, value: str, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    assert message in stopped(capsys, "--model", "m")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[draft]\nmodel = "m"\nthreads = -1', "[draft] threads: Input should be greater"),
        ('[draft]\nmodel = "m"\nmodle = "m"', "[draft] modle: no such setting"),
        ('[drafts]\nmodel = "m"', "no such table: drafts"),
        ("draft = 1", "draft must be a table"),
        ("[draft", "outrider.toml"),
    ],
)
def test_a_bad_file_stops_the_start(content: str, message: str, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(content)
    assert message in stopped(capsys, "--config", str(file))


def test_settings_are_frozen() -> None:
    config = DraftConfig(model="m")
    with pytest.raises(ValidationError):
        config.threads = 3


def test_settings_given_in_code_ignore_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_DRAFT_THREADS", "7")
    monkeypatch.setenv("THREADS", "7")
    assert DraftConfig(model="m").threads == 0


@pytest.mark.parametrize("kind", [DraftConfig, VerifierConfig])
def test_every_setting_is_described(kind: type[ServerSettings]) -> None:
    assert [name for name, field in kind.model_fields.items() if not field.description] == []


class Guarded(ServerSettings):
    section: ClassVar[str] = "controller"
    token: SecretStr = Field(default=SecretStr(""), description="A secret.")
    number: int = Field(default=0, description="A number.")


def test_secrets_are_not_logged() -> None:
    config = settings.load(Guarded, ["--token", "hunter2"], "program")
    assert config.token.get_secret_value() == "hunter2"
    assert "hunter2" not in str(config.resolved())


def test_a_wrong_value_is_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        settings.load(Guarded, ["--number", "hunter2"], "program")
    assert "hunter2" not in capsys.readouterr().err
