"""Settings: flags, then the environment, then a TOML file, then defaults; frozen once read.

An unknown name or a bad value anywhere stops the start with exit code 2 and one line that says where it was set. This
is the only module that looks at the environment. A service's settings are a subclass of `Settings` with its own
section: section "draft" reads `--max-sessions`, `OUTRIDER_DRAFT_MAX_SESSIONS` and `max_sessions` below `[draft]`, so
that one file and one environment can serve all processes of a host.
"""

import os
import sys
import tomllib
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn, Self, TypeVar

from pydantic import Field, ValidationError, model_validator
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    CliSettingsSource,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

SECTIONS = ("draft", "verifier", "controller")
"""The sections that a settings file may have."""
EXIT_CODE = 2
"""Of a process that was given a setting it cannot use."""

SettingsT = TypeVar("SettingsT", bound="Settings")


class Settings(BaseSettings):
    """Base of all settings. Constructed directly it takes exactly what it is given; `load` reads all sources."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", validate_default=True)

    section: ClassVar[str]
    """Names the flags' process, the variables' prefix and the file's table; one of SECTIONS."""

    config: Path | None = Field(
        default=None, description="TOML file with settings below [draft], [verifier] or [controller]."
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003  # the signature is pydantic's
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what the constructor is given, so that a test or an embedding program is not surprised."""
        return (init_settings,)

    @classmethod
    def env_prefix(cls) -> str:
        """What the names of this service's environment variables begin with."""
        return f"OUTRIDER_{cls.section.upper()}_"

    def resolved(self) -> dict[str, Any]:
        """All values for the log, secrets masked."""
        return self.model_dump(mode="json")


class ServerSettings(Settings):
    """What every process that serves gRPC needs to know."""

    listen: str = Field(default="127.0.0.1:0", description="Address to listen on, host:port; port 0 takes a free one.")
    ready_file: Path | None = Field(
        default=None,
        description="File that holds the bound address, the state and the pid as JSON, while the process runs.",
    )
    max_message_bytes: int = Field(
        default=64 * 2**20, ge=2**16, lt=2**31, description="Largest gRPC message, both ways."
    )
    drain_grace_s: float = Field(
        default=30.0, ge=0, allow_inf_nan=False, description="How long open streams may go on after SIGTERM."
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO", description="Least severe level logged."
    )
    log_format: Literal["auto", "json", "text"] = Field(
        default="auto", description="Log lines as JSON or as text; auto is text on a terminal, else JSON."
    )


class ModelServerSettings(ServerSettings):
    """What every process that serves a model needs to know besides."""

    model: str = Field(description="Local directory, hub id, 'demo', or emulated:PROFILE.")
    device: str = Field(
        default="auto", description="Where the model runs, as torch names it; auto: a GPU if there is one."
    )
    dtype: str = Field(
        default="auto", description="Numeric type of the weights, as torch names it; auto: float32 on a CPU."
    )
    threads: int = Field(default=0, ge=0, description="CPU threads of the model; 0 leaves the choice to torch.")
    attention: str = Field(default="auto", description="Attention kernel: bucketed, flash, or auto.")
    pack_weights: bool = Field(
        default=True, description="On a CPU, keep the weights in a second, faster order too, where memory allows."
    )
    cache_tokens: int = Field(
        default=0, ge=0, description="Tokens in the key-value cache, of all sessions; 0: automatic."
    )
    block_tokens: int = Field(default=32, ge=1, description="Tokens in a block of the cache.")
    max_batch_tokens: int = Field(default=512, ge=1, description="Most tokens in one forward pass.")
    max_prompt_tokens: int = Field(
        default=128, ge=1, description="Most tokens of prompts in a forward pass that also serves open streams."
    )
    max_sessions: int = Field(default=256, ge=1, description="Most open streams; one more gets RESOURCE_EXHAUSTED.")
    max_queue_len: int = Field(default=1024, ge=1, description="Most pieces of work that wait for the model.")
    max_chunk_tokens: int = Field(default=16, ge=1, description="Most draft tokens in one chunk.")

    @model_validator(mode="after")
    def _chunk_fits_a_batch(self) -> Self:
        """A verdict's rows all come from one forward pass: a chunk and the token before it must fit."""
        if self.max_chunk_tokens >= self.max_batch_tokens:
            raise ValueError("max_batch_tokens must be greater than max_chunk_tokens")
        return self


def load(settings_class: type[SettingsT], arguments: Sequence[str], program: str) -> SettingsT:
    """Reads all sources. Exits with code 2 and a message on standard error if one of them is wrong.

    `arguments` are the command line without the program's name; `program` is that name, for messages.
    """
    flags = _flags(settings_class, arguments, program)
    environment = _environment(settings_class, program)
    path = flags.get("config") or environment.get("config")
    file = _file(settings_class, Path(path), program) if path else {}
    try:
        return settings_class(**(file | environment | flags))
    except ValidationError as error:
        problems = [_problem(settings_class, item, flags, environment) for item in error.errors()]
        _stop(program, problems)


def _flags(settings_class: type[Settings], arguments: Sequence[str], program: str) -> dict[str, Any]:
    """What the command line sets. Prints help and unknown flags itself, and exits."""
    source: CliSettingsSource[ArgumentParser] = CliSettingsSource(
        settings_class,
        cli_prog_name=program,
        cli_parse_args=list(arguments),
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_avoid_json=True,
        cli_hide_none_type=True,
        cli_enforce_required=False,
    )
    return dict(source())


def _environment(settings_class: type[Settings], program: str) -> dict[str, Any]:
    """What the environment sets; a name with our prefix that means nothing is an error."""
    prefix = settings_class.env_prefix()
    names = {prefix + name.upper() for name in settings_class.model_fields}
    unknown = sorted(name for name in os.environ if name.upper().startswith(prefix) and name.upper() not in names)
    if unknown:
        _stop(program, [f"{name}: no such setting" for name in unknown])
    try:
        return dict(EnvSettingsSource(settings_class, env_prefix=prefix)())
    except SettingsError as error:
        _stop(program, [f"environment: {error}"])


def _file(settings_class: type[Settings], path: Path, program: str) -> dict[str, Any]:
    """What the service's table in the file sets."""
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        _stop(program, [f"{path}: {error}"])
    if unknown := sorted(set(content) - set(SECTIONS)):
        _stop(program, [f"{path}: no such table: {name}" for name in unknown])
    table = content.get(settings_class.section, {})
    if not isinstance(table, dict):
        _stop(program, [f"{path}: {settings_class.section} must be a table"])
    return table


def _problem(
    settings_class: type[Settings], item: ErrorDetails, flags: dict[str, Any], environment: dict[str, Any]
) -> str:
    """One line for one bad value: where it was set and what is wrong with it; never the value, it may be a secret."""
    name = str(item["loc"][0]) if item["loc"] else "settings"
    flag, variable = "--" + name.replace("_", "-"), settings_class.env_prefix() + name.upper()
    if item["type"] == "missing":
        return f"{flag} (or {variable}) is required"
    if item["type"] == "extra_forbidden":
        return f"[{settings_class.section}] {name}: no such setting"
    if name in flags:
        where = flag
    elif name in environment:
        where = variable
    else:
        where = f"[{settings_class.section}] {name}"
    return f"{where}: {item['msg']}"


def _stop(program: str, problems: Sequence[str]) -> NoReturn:
    for problem in problems:
        sys.stderr.write(f"{program}: {problem}\n")
    raise SystemExit(EXIT_CODE)


def cache_directory() -> Path:
    """Where downloaded and converted models lie: $OUTRIDER_CACHE, else outrider below the user's cache directory."""
    if chosen := os.environ.get("OUTRIDER_CACHE"):
        return Path(chosen).absolute()
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The base directory specification says to ignore a relative path.
    return (base if base.is_absolute() else Path.home() / ".cache") / "outrider"


def environment_with(**changes: str) -> dict[str, str]:
    """The environment of this process with some variables changed, for a child."""
    return os.environ | changes
