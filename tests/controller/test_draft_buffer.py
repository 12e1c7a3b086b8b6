"""Promises of controller/draft_buffer.py: one round by absolute position."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.draft_buffer import DraftBuffer, Stage
from speculative.errors import RemoteError, StalePrefixError
from speculative.generation import TokenOrigin
from speculative.messages import Advance, Check, Drafted, StopReason, Verdict
from speculative.sampling.types import SparseLaw

PROMPT = (5, 6, 7)
VOCAB_SIZE = 100


def buffer(*, with_laws: bool = False) -> DraftBuffer:
    return DraftBuffer(PROMPT, VOCAB_SIZE, with_laws=with_laws, judged_by_laws=with_laws)


def drafted(base_len: int, *token_ids: int, laws: tuple[SparseLaw, ...] = ()) -> Drafted:
    return Drafted(base_len, token_ids, (0.0,) * len(token_ids), laws, StopReason.MAX_TOKENS, 0, 1)


def verdict(base_len: int, accepted_len: int, next_token_id: int) -> Verdict:
    return Verdict(base_len, accepted_len, next_token_id, 0, 0, 1, 0)


def test_all_accepted_yields_the_bonus_token() -> None:
    held = buffer()
    assert held.advance(3, 4, 0.5) == Advance(3, (), 4, 0.5)
    held.take(drafted(3, 10, 11))
    assert held.check() == Check(3, (10, 11))
    committed = held.commit(verdict(3, 2, 12))
    assert committed.token_ids == (10, 11, 12)
    assert committed.origins == (TokenOrigin.ACCEPTED, TokenOrigin.ACCEPTED, TokenOrigin.BONUS)
    assert held.committed_token_ids == (*PROMPT, 10, 11, 12)


def test_a_rejection_yields_the_recovered_token() -> None:
    held = buffer()
    held.advance(3, 4, None)
    held.take(drafted(3, 10, 11))
    held.check()
    committed = held.commit(verdict(3, 1, 0))
    assert committed.token_ids == (10, 0)
    assert committed.origins == (TokenOrigin.ACCEPTED, TokenOrigin.RECOVERED)


def test_a_round_without_a_draft_is_one_plain_step() -> None:
    held = buffer()
    assert held.check() == Check(3, ())
    assert held.commit(verdict(3, 0, 9)).origins == (TokenOrigin.BONUS,)
    assert held.committed_len == 4


def test_an_advance_tells_all_that_the_draft_does_not_know() -> None:
    held = buffer()
    for base_len in (3, 4, 5):
        held.check()
        held.commit(verdict(base_len, 0, base_len))
    assert held.advance(3, 2, None) == Advance(3, (3, 4, 5), 2)
    held.drop()
    assert held.advance(6, 2, None) == Advance(6, (), 2)


def test_a_dropped_chunk_is_never_verified() -> None:
    held = buffer()
    held.advance(3, 4, None)
    held.take(drafted(3, 10))
    held.drop()
    assert held.check() == Check(3, ())


def test_a_chunk_or_verdict_for_another_prefix_is_stale() -> None:
    held = buffer()
    held.advance(3, 4, None)
    with pytest.raises(StalePrefixError) as caught:
        held.take(drafted(2, 10))
    assert (caught.value.assumed_len, caught.value.true_len) == (2, 3)
    held.drop()
    held.check()
    with pytest.raises(StalePrefixError):
        held.commit(verdict(4, 0, 1))


@pytest.mark.parametrize(
    "chunk",
    [
        drafted(3, 10, 11, 12),
        drafted(3, VOCAB_SIZE),
        Drafted(3, (1, 2), (0.0,), (), StopReason.MAX_TOKENS, 0, 1),
    ],
    ids=["too long", "unknown id", "an entropy missing"],
)
def test_a_chunk_that_breaks_the_protocol_is_refused(chunk: Drafted) -> None:
    held = buffer()
    held.advance(3, 2, None)
    with pytest.raises(RemoteError):
        held.take(chunk)
    assert held.stage is Stage.ASKED


@pytest.mark.parametrize(
    "laws",
    [(), (SparseLaw((11,), (1.0,)),), (SparseLaw((10, 11), (0.0, 1.0)),)],
    ids=["missing", "of other tokens", "with no weight for the token"],
)
def test_laws_that_cannot_have_produced_the_chunk_are_refused(laws: tuple[SparseLaw, ...]) -> None:
    held = buffer(with_laws=True)
    held.advance(3, 2, None)
    with pytest.raises(RemoteError):
        held.take(drafted(3, 10, laws=laws))


def test_laws_are_passed_on_with_the_chunk() -> None:
    law = SparseLaw((10, 3), (0.5, 0.25), 0.25)
    held = buffer(with_laws=True)
    held.advance(3, 1, None)
    held.take(drafted(3, 10, laws=(law,)))
    assert held.check() == Check(3, (10,), (law,))
    held.commit(verdict(3, 1, 1))
    assert held.check().laws == ()


@pytest.mark.parametrize("answer", [verdict(3, 2, 1), verdict(3, 0, VOCAB_SIZE)], ids=["too long", "unknown id"])
def test_a_verdict_that_breaks_the_protocol_is_refused(answer: Verdict) -> None:
    held = buffer()
    held.advance(3, 4, None)
    held.take(drafted(3, 10))
    held.check()
    with pytest.raises(RemoteError):
        held.commit(answer)


def test_steps_out_of_turn_are_errors() -> None:
    held = buffer()
    with pytest.raises(ValueError, match="out of turn"):
        held.take(drafted(3, 1))
    with pytest.raises(ValueError, match="out of turn"):
        held.commit(verdict(3, 0, 1))
    held.advance(3, 1, None)
    with pytest.raises(ValueError, match="out of turn"):
        held.advance(3, 1, None)
    with pytest.raises(ValueError, match="out of turn"):
        held.check()
    held.drop()
    held.check()
    with pytest.raises(ValueError, match="out of turn"):
        held.drop()
    with pytest.raises(ValueError, match="cannot know"):
        buffer().advance(4, 1, None)


@given(st.lists(st.tuples(st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=4), st.integers(0, 4), st.booleans())))
def test_both_sides_hold_the_same_prefix_after_every_round(rounds: list[tuple[list[int], int, bool]]) -> None:
    held = buffer()
    draft, verifier = list(PROMPT), list(PROMPT)
    for chunk, accepted, asked in rounds:
        if asked:
            advance = held.advance(len(draft), 4, None)
            assert advance.base_len == len(draft)
            draft += advance.committed_token_ids
            assert draft == verifier
            held.take(drafted(len(draft), *chunk))
        check = held.check()
        assert check.base_len == len(verifier)
        accepted_len = min(accepted, len(check.draft_token_ids))
        committed = held.commit(verdict(check.base_len, accepted_len, 42))
        verifier += [*check.draft_token_ids[:accepted_len], 42]
        assert committed.base_len == check.base_len
        assert held.committed_token_ids == tuple(verifier)
