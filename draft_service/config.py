"""Settings of the draft service: flags, OUTRIDER_DRAFT_... variables, or [draft] in a TOML file."""

from typing import ClassVar

from pydantic import Field

from speculative.settings import ModelServerSettings


class DraftConfig(ModelServerSettings):
    """Everything the draft service can be told."""

    section: ClassVar[str] = "draft"

    listen: str = Field(
        default="127.0.0.1:50051", description="Address to listen on, host:port; port 0 takes a free one."
    )
