"""Promises of controller/answer.py: where an answer ends, and that texts, ids and counts agree."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.answer import Answer, Ending, StopRules
from controller.text import Detokenizer
from controller.tokenizer import Tokenizer
from speculative.generation import Delta, FinishReason, TokenOrigin
from tests.controller import small_tokenizers

TOKENIZER = Tokenizer(small_tokenizers.files(small_tokenizers.byte_level()))
FALLBACK = Tokenizer(small_tokenizers.files(small_tokenizers.byte_fallback()))
EOS_ID = small_tokenizers.byte_level().get_vocab()[small_tokenizers.EOS]
BOS_ID = small_tokenizers.byte_level().get_vocab()[small_tokenizers.BOS]
BONUS = TokenOrigin.BONUS


def ids_of(text: str, tokenizer: Tokenizer = TOKENIZER) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def answer_with(rules: StopRules, tokenizer: Tokenizer = TOKENIZER) -> Answer:
    return Answer(Detokenizer(tokenizer, continues_text=True), rules)


def rules(*strings: str, max_tokens: int = 1000, token_ids: Sequence[int] = (EOS_ID,)) -> StopRules:
    return StopRules(max_tokens, frozenset(token_ids), strings)


def collect(answer: Answer, ids: Sequence[int], chunk: int = 1) -> list[Delta]:
    """Pushes all, taking what is ready after every `chunk` tokens; checks each delta."""
    deltas = []
    for start in range(0, len(ids), chunk):
        for token_id in ids[start : start + chunk]:
            answer.push(token_id, BONUS)
        deltas.append(answer.take())
    for delta in deltas:
        assert len(delta.token_ids) == len(delta.token_origins) == len(delta.text_ends)
        assert list(delta.text_ends) == sorted(delta.text_ends)
        assert (delta.text_ends[-1] if delta.text_ends else 0) == len(delta.text.encode())
    return deltas


def total(deltas: Sequence[Delta]) -> tuple[str, list[int]]:
    return "".join(delta.text for delta in deltas), [token_id for delta in deltas for token_id in delta.token_ids]


@pytest.mark.parametrize("chunk", range(1, 9))
@pytest.mark.parametrize("place", range(8))
def test_a_stop_id_ends_the_answer_before_it_at_every_place_of_a_chunk(chunk: int, place: int) -> None:
    ids = ids_of("abcdefgh")
    answer = answer_with(rules())
    deltas = collect(answer, [*ids[:place], EOS_ID, *ids[place:]], chunk)
    assert total(deltas) == ("abcdefgh"[:place], ids[:place])
    assert answer.ending == Ending(FinishReason.STOP, matched_token_id=EOS_ID)


@pytest.mark.parametrize("chunk", range(1, 9))
@pytest.mark.parametrize("max_tokens", range(1, 9))
def test_the_cap_ends_the_answer_at_it_at_every_place_of_a_chunk(chunk: int, max_tokens: int) -> None:
    ids = ids_of("abcdefgh")
    answer = answer_with(rules(max_tokens=max_tokens))
    assert total(collect(answer, ids, chunk)) == ("abcdefgh"[:max_tokens], ids[:max_tokens])
    assert answer.ending == Ending(FinishReason.LENGTH)
    assert answer.remaining_tokens == 0


@pytest.mark.parametrize("chunk", range(1, 9))
@pytest.mark.parametrize("place", range(6))
def test_a_stop_string_ends_the_answer_before_it_at_every_place_of_a_chunk(chunk: int, place: int) -> None:
    text = "abcdef"[:place] + "XYZ" + "abcdef"[place:]
    answer = answer_with(rules("XYZ"))
    assert total(collect(answer, ids_of(text), chunk)) == ("abcdef"[:place], ids_of("abcdef"[:place]))
    assert answer.ending == Ending(FinishReason.STOP, matched_stop="XYZ")


def test_stop_before_the_cap_in_one_chunk_is_a_stop() -> None:
    ids = ids_of("abcdef")
    answer = answer_with(rules(max_tokens=5, token_ids=[ids[3]]))
    text, delivered = total(collect(answer, ids, chunk=6))
    assert (text, delivered) == ("abc", ids[:3])
    assert answer.ending is not None
    assert answer.ending.reason is FinishReason.STOP


def test_stop_beyond_the_cap_in_one_chunk_is_the_cap() -> None:
    ids = ids_of("abcdef")
    for stopping in (rules(max_tokens=3, token_ids=[ids[3]]), rules("d", max_tokens=3)):
        answer = answer_with(stopping)
        assert total(collect(answer, ids, chunk=6)) == ("abc", ids[:3])
        assert answer.ending == Ending(FinishReason.LENGTH)


def test_a_stop_string_that_the_last_token_completes_beats_the_cap() -> None:
    answer = answer_with(rules("bc", max_tokens=3))
    assert total(collect(answer, ids_of("abcd"), chunk=4)) == ("a", ids_of("a"))
    assert answer.ending == Ending(FinishReason.STOP, matched_stop="bc")


def test_the_cap_and_a_stop_id_let_out_what_was_held_back() -> None:
    for stopping, ids in (
        (rules("bcd", max_tokens=3), ids_of("abcd")),
        (rules("bcd"), [*ids_of("abc"), EOS_ID]),
    ):
        deltas = collect(answer_with(stopping), ids)
        assert total(deltas) == ("abc", ids_of("abc"))
        assert [delta.text for delta in deltas[:3]] in (["a", "", "bc"], ["a", "", ""])


def test_text_that_may_begin_a_stop_string_is_held_back_and_no_more() -> None:
    deltas = collect(answer_with(rules("xyz")), ids_of("axyaxb"))
    assert [delta.text for delta in deltas] == ["a", "", "", "xya", "", "xb"]
    assert [len(delta.token_ids) for delta in deltas] == [1, 0, 0, 3, 0, 2]


def test_a_token_across_the_cut_is_delivered_with_its_text_trimmed() -> None:
    ids = ids_of("a stop hello")
    across = next(token_id for token_id in ids if TOKENIZER.decode([token_id]) == "stop")
    answer = answer_with(rules("top"))
    text, delivered = total(collect(answer, ids))
    assert text == "a s"
    assert delivered == ids[: ids.index(across) + 1]


def test_a_token_wholly_inside_the_stop_string_is_neither_delivered_nor_counted() -> None:
    answer = answer_with(rules("b😎c"))
    assert total(collect(answer, ids_of("ab😎cd"), chunk=9)) == ("a", ids_of("a"))


def test_a_stop_string_of_part_of_a_run_of_bytes_cuts_at_its_bytes() -> None:
    ids = ids_of("x你好y", FALLBACK)
    answer = answer_with(rules("好"), FALLBACK)
    text, delivered = total(collect(answer, ids))
    assert FALLBACK.decode(delivered).strip() == text.strip() == "x你"
    assert answer.ending == Ending(FinishReason.STOP, matched_stop="好")


def test_a_stop_string_in_text_that_the_end_flushes_is_found() -> None:
    ids = ids_of("x好", FALLBACK)
    answer = answer_with(rules("好", token_ids=[EOS_ID]), FALLBACK)
    assert total(collect(answer, [*ids, EOS_ID]))[0].strip() == "x"
    assert answer.ending == Ending(FinishReason.STOP, matched_stop="好")


def test_special_tokens_are_delivered_without_text() -> None:
    ids = [*ids_of("a"), BOS_ID, *ids_of("b")]
    deltas = collect(answer_with(rules()), ids)
    assert total(deltas) == ("ab", ids)
    assert [delta.text for delta in deltas] == ["a", "", "b"]


def test_token_id_zero_is_a_token_like_any_other() -> None:
    zero = TOKENIZER.decode([0])
    assert total(collect(answer_with(rules(max_tokens=2)), [0, 0, 0])) == (2 * zero, [0, 0])
    answer = answer_with(rules(token_ids=[0]))
    assert total(collect(answer, [*ids_of("a"), 0])) == ("a", ids_of("a"))
    assert answer.ending == Ending(FinishReason.STOP, matched_token_id=0)


some_ids = st.lists(st.one_of(st.sampled_from(ids_of("abab😎é hello stop")), st.integers(0, 300)), max_size=30)


@given(
    ids=some_ids,
    strings=st.lists(st.sampled_from(["ab", "ba", "a", "😎", "hello", "lo st", "bab", "é "]), max_size=3),
    max_tokens=st.integers(1, 30),
    stop_ids=st.lists(st.integers(60, 70), max_size=2),
    chunk=st.integers(1, 9),
)
@settings(max_examples=150, deadline=None)
def test_the_answer_depends_on_tokens_not_on_chunks(
    ids: list[int], strings: list[str], max_tokens: int, stop_ids: list[int], chunk: int
) -> None:
    stopping = rules(*strings, max_tokens=max_tokens, token_ids=stop_ids)
    together, one_by_one = answer_with(stopping), answer_with(stopping)
    deltas = collect(together, ids, chunk)
    assert total(deltas) == total(collect(one_by_one, ids))
    assert together.ending == one_by_one.ending
    text, delivered = total(deltas)
    assert delivered == ids[: len(delivered)]
    assert len(delivered) <= max_tokens
    assert not any(token_id in stop_ids for token_id in delivered)
    assert not any(string in text for string in strings)
    anchor = list(TOKENIZER.anchor_ids)
    whole = TOKENIZER.decode(anchor + delivered)[len(TOKENIZER.decode(anchor)) :]
    assert whole.startswith(text)
    if together.ending is not None and together.ending.matched_stop is None:
        assert whole == text
