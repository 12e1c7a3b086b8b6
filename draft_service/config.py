"""Settings of the draft service: flags, OUTRIDER_DRAFT_... variables, or [draft] in a TOML file."""

from typing import ClassVar

from pydantic import Field

from draft_service.drafter import LOOKUP_ALONE_TOKENS
from speculative.settings import ModelServerSettings


class DraftConfig(ModelServerSettings):
    """Everything the draft service can be told."""

    section: ClassVar[str] = "draft"

    model: str = Field(
        description="Local directory, hub id, 'demo', emulated:PROFILE, or 'lookup': no model, only repetitions."
    )
    lookup_alone_tokens: int = Field(
        default=LOOKUP_ALONE_TOKENS, ge=1, description="From how many looked-up tokens on no model drafts behind them."
    )
    listen: str = Field(
        default="127.0.0.1:50051", description="Address to listen on, host:port; port 0 takes a free one."
    )
