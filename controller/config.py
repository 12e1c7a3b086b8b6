"""Settings of the controller: flags, OUTRIDER_CONTROLLER_... variables, or [controller] in a TOML file."""

from pathlib import Path
from typing import ClassVar

from pydantic import Field, field_validator

from controller.drafting import DraftPatience
from controller.generator import GenerationDefaults
from controller.policies.registry import DEFAULT_POLICY, GUARD, make_policy, policy_names, policy_parameters
from controller.pool import WatchSettings
from controller.recording import TraceSettings
from speculative.errors import InvalidRequestError
from speculative.settings import ServerSettings


class ControllerConfig(ServerSettings):
    """Everything the controller can be told."""

    section: ClassVar[str] = "controller"

    listen: str = Field("127.0.0.1:50050", description="Address to listen on, host:port; port 0 takes a free one.")
    verifier: str = Field(description="Address of the verifier service, host:port.")
    draft: str | None = Field(None, description="Address of the draft service, host:port; without one: target-only.")
    policy: str = Field(DEFAULT_POLICY, description="Chunk policy of requests that name none.")
    policy_parameters: dict[str, float] = Field(
        {}, description="Parameters of policies where a request sets none, NAME=VALUE; a policy takes those it has."
    )
    guard: bool = Field(
        True, description="Goodput guard around every policy: shorter chunks, or none, where speculation does not pay."
    )
    prompt_lookup: bool = Field(True, description="Whether drafts look repetitions up first, unless a request says so.")
    max_draft_tokens: int = Field(16, ge=0, description="Most draft tokens in a chunk; 0 switches speculation off.")
    default_max_tokens: int = Field(1024, ge=1, description="Most tokens of an answer whose request names no limit.")
    max_request_s: float = Field(
        3600.0, gt=0, allow_inf_nan=False, description="Deadline of requests that come without one."
    )
    first_chunk_timeout_s: float = Field(
        10.0, gt=0, allow_inf_nan=False, description="Patience with a draft's first chunk, which reads the prompt."
    )
    chunk_timeout_floor_s: float = Field(
        2.0, gt=0, allow_inf_nan=False, description="Patience with any later chunk, at least."
    )
    chunk_timeout_ceiling_s: float = Field(
        10.0, gt=0, allow_inf_nan=False, description="Patience with any later chunk, at most."
    )
    chunk_timeout_multiple: float = Field(
        20.0, gt=1, allow_inf_nan=False, description="Patience with a later chunk, in longest waits of the request."
    )
    draft_retry_s: float = Field(
        0.5, gt=0, allow_inf_nan=False, description="Wait before a lost draft is tried again; doubles up to 60 s."
    )
    trace_dir: Path | None = Field(
        None, description="Directory for traces of rounds, one file a request, without text or tokens; none: no traces."
    )
    trace_max_files: int = Field(1000, ge=1, description="Most trace files kept; the oldest go.")
    trace_max_file_bytes: int = Field(4 * 2**20, ge=1, description="Where the trace of one request is cut.")
    trace_signals: bool = Field(
        False, description="Whether traces have all signals, also those a policy has no use for; costs time."
    )

    @field_validator("policy")
    @classmethod
    def _policy_exists(cls, name: str) -> str:
        if name not in policy_names():
            raise ValueError(f"no such policy; there are: {', '.join(policy_names())}")
        return name

    @field_validator("policy_parameters")
    @classmethod
    def _parameters_exist(cls, parameters: dict[str, float]) -> dict[str, float]:
        for name, value in parameters.items():
            owners = [policy for policy in policy_names() if name in _parameter_names(policy)]
            if not owners:
                raise ValueError(f"no policy has a parameter {name!r}")
            for policy in owners:
                try:
                    make_policy(policy, {name: value})
                except InvalidRequestError as error:
                    raise ValueError(f"{name} of {policy}: {error.problem}") from error
        return parameters

    @property
    def defaults(self) -> GenerationDefaults:
        """What holds where a request says nothing."""
        return GenerationDefaults(
            self.policy,
            self.default_max_tokens,
            self.max_draft_tokens,
            self.policy_parameters,
            self.guard,
            self.prompt_lookup,
        )

    @property
    def patience(self) -> DraftPatience:
        """How long to wait for a draft."""
        return DraftPatience(
            first_chunk_s=self.first_chunk_timeout_s,
            chunk_floor_s=self.chunk_timeout_floor_s,
            chunk_multiple=self.chunk_timeout_multiple,
            chunk_ceiling_s=self.chunk_timeout_ceiling_s,
            retry_s=self.draft_retry_s,
        )

    @property
    def traces(self) -> TraceSettings | None:
        """What is kept of the rounds of requests."""
        if self.trace_dir is None:
            return None
        return TraceSettings(self.trace_dir, self.trace_max_files, self.trace_max_file_bytes, self.trace_signals)

    @property
    def watch(self) -> WatchSettings:
        """How services are watched."""
        return WatchSettings()


def _parameter_names(policy: str) -> set[str]:
    return {GUARD.name, *(parameter.name for parameter in policy_parameters(policy))}
