"""Profiles of emulated models: what their names mean, what they cost, and what is refused."""

from dataclasses import fields

import pytest

from speculative.engine.emulated_profile import PROFILES, EmulatedProfile, parse_profile
from speculative.errors import ModelLoadError

VALUES = {
    "forward_ms": "20.5",
    "token_ms": "0.25",
    "context_us": "3",
    "table_ms": "1:20,64:24",
    "agree": "0.5",
    "seed": "7",
    "eos_rate": "0",
    "context": "128",
    "vocab": "rotated",
    "padding": "64",
    "order": "4",
    "blocks": "100",
    "block_tokens": "8",
}


def test_options_replace_the_profile_s_own_values() -> None:
    profile = parse_profile("draft?forward_ms=20&agree=0.5&context=128&table_ms=1:20,64:24.5&vocab=rotated&seed=7")
    assert profile == EmulatedProfile(
        forward_ms=20.0, agree=0.5, context=128, table_ms=((1, 20.0), (64, 24.5)), vocab="rotated", seed=7
    )
    assert parse_profile("draft") == PROFILES["draft"]


def test_every_field_is_an_option_and_changes_the_revision() -> None:
    assert VALUES.keys() == {field.name for field in fields(EmulatedProfile)}
    revisions = {parse_profile(f"target?{option}={value}").revision for option, value in VALUES.items()}
    assert len(revisions | {parse_profile("target").revision}) == len(VALUES) + 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there are: target, draft"),
        ("nonsense", "there are: target, draft"),
        ("Target", "there are: target, draft"),
        ("target?speed=3", "there are: forward_ms, token_ms"),
        ("target?agree", "option=value"),
        ("target?agree=0.5&", "option=value"),
        ("target?agree=0.5&agree=0.6", "twice"),
        ("target?agree=1.5", "number from 0 to 1"),
        ("target?agree=-0.1", "number from 0 to 1"),
        ("target?agree=nan", "number from 0 to 1"),
        ("target?agree=", "number from 0 to 1"),
        ("target?eos_rate=much", "number from 0 to 1"),
        ("target?forward_ms=-1", "number from 0"),
        ("target?forward_ms=inf", "number from 0"),
        ("target?seed=-1", "integer from 0"),
        ("target?seed=0.5", "integer from 0"),
        ("target?context=1", "integer from 2"),
        ("target?vocab=other", "one of bytes, rotated"),
        ("target?padding=-1", "integer from 0"),
        ("target?order=2", "integer from 3"),
        ("target?blocks=0", "integer from 1"),
        ("target?block_tokens=0", "integer from 1"),
        ("target?table_ms=20", "tokens:ms"),
        ("target?table_ms=0:20", "tokens:ms"),
        ("target?table_ms=8:20,8:30", "rising tokens"),
        ("target?table_ms=8:20,4:30", "rising tokens"),
    ],
)
def test_a_wrong_profile_is_refused_with_what_is_allowed(text: str, said: str) -> None:
    with pytest.raises(ModelLoadError, match=said):
        parse_profile(text)


def test_cost_is_fixed_plus_fed_tokens_plus_context_read() -> None:
    profile = parse_profile("target?forward_ms=20&token_ms=0.5&context_us=10")
    assert profile.cost_s(0, 0) == pytest.approx(0.020)
    assert profile.cost_s(9, 100) == pytest.approx(0.020 + 9 * 0.0005 + 100 * 0.00001)


@pytest.mark.parametrize(
    ("tokens", "batch_ms"), [(1, 20.0), (10, 20.0), (20, 25.0), (30, 30.0), (40, 32.0), (50, 34.0), (100, 44.0)]
)
def test_a_table_is_interpolated_and_goes_on_with_its_last_slope(tokens: int, batch_ms: float) -> None:
    profile = parse_profile("target?forward_ms=1000&table_ms=10:20,30:30,50:34&context_us=10")
    assert profile.cost_s(tokens, 200) == pytest.approx((batch_ms + 2.0) / 1e3)


def test_a_table_of_one_point_is_a_constant() -> None:
    assert {parse_profile("target?table_ms=8:5").cost_s(tokens, 0) for tokens in (1, 8, 500)} == {0.005}


def test_named_pairs_keep_the_papers_cost_ratio() -> None:
    """70B to 1B: 99.9 to 4.84 tokens/s alone, one token a step at a short context (arXiv 2512.11280)."""
    for hardware in ("h100", "a6000"):
        target, draft = PROFILES[f"{hardware}-70b"], PROFILES[f"{hardware}-1b"]
        assert target.cost_s(1, 100) / draft.cost_s(1, 100) == pytest.approx(99.9 / 4.84, rel=0.02)
