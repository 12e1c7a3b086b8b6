"""Settings of the verifier service: flags, OUTRIDER_VERIFIER_... variables, or [verifier] in a TOML file."""

from typing import ClassVar

from pydantic import Field

from speculative.settings import ModelServerSettings


class VerifierConfig(ModelServerSettings):
    """Everything the verifier service can be told."""

    section: ClassVar[str] = "verifier"

    listen: str = Field(
        default="127.0.0.1:50052", description="Address to listen on, host:port; port 0 takes a free one."
    )
