"""Promises of controller/text.py, on every kind of tokenizer."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.text import REPLACEMENT, Detokenizer, StopMatch, StopMatcher
from controller.tokenizer import Tokenizer
from tests.controller import small_tokenizers

KINDS = {name: Tokenizer(small_tokenizers.files(make())) for name, make in small_tokenizers.ALL.items()}
VOCAB_SIZES = {name: make().get_vocab_size() for name, make in small_tokenizers.ALL.items()}
TEXTS = ("hello the end", "  a\n  b", "naïve café", "你好、日本語", "😀👩‍👩‍👧‍👦 hello", "e\u0301 a\u0308", "हिन्दी")

kinds = st.sampled_from(sorted(KINDS))


@st.composite
def tokens(draw: st.DrawFn) -> tuple[str, list[int]]:
    """A kind of tokenizer and any ids of it, one beyond its vocabulary included."""
    kind = draw(kinds)
    return kind, draw(st.lists(st.integers(0, VOCAB_SIZES[kind]), max_size=60))


def pieces(tokenizer: Tokenizer, ids: Sequence[int], *, continues_text: bool = False) -> list[str]:
    detokenizer = Detokenizer(tokenizer, continues_text=continues_text)
    return [text for token_id in ids for text in detokenizer.push(token_id)] + detokenizer.flush()


@given(tokens())
@settings(max_examples=150, deadline=None)
def test_streamed_texts_joined_are_the_full_decode(case: tuple[str, list[int]]) -> None:
    kind, ids = case
    texts = pieces(KINDS[kind], ids)
    assert "".join(texts) == KINDS[kind].decode(ids)
    assert len(texts) == len(ids)


@given(tokens())
@settings(max_examples=150, deadline=None)
def test_an_answer_that_continues_a_text_keeps_the_space_between(case: tuple[str, list[int]]) -> None:
    kind, ids = case
    tokenizer = KINDS[kind]
    anchor = list(tokenizer.anchor_ids)
    joined = tokenizer.decode(anchor + ids)
    assert "".join(pieces(tokenizer, ids, continues_text=True)) == joined[len(tokenizer.decode(anchor)) :]


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
@pytest.mark.parametrize("text", TEXTS)
def test_no_text_holds_half_a_character(kind: str, text: str) -> None:
    ids = KINDS[kind].encode(text, add_special_tokens=False)
    texts = pieces(KINDS[kind], ids)
    assert "".join(texts).strip() == text.strip()
    assert not any(REPLACEMENT in piece for piece in texts)


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
def test_a_character_that_is_cut_off_comes_out_at_the_end(kind: str) -> None:
    ids = KINDS[kind].encode("a日😎", add_special_tokens=False)[:-1]
    detokenizer = Detokenizer(KINDS[kind], continues_text=False)
    early = "".join(text for token_id in ids for text in detokenizer.push(token_id))
    assert early == "a日"
    late = detokenizer.flush()
    assert REPLACEMENT in "".join(late)
    assert early + "".join(late) == KINDS[kind].decode(ids)


def test_a_characters_text_belongs_to_the_token_that_completes_it() -> None:
    tokenizer = KINDS["byte_level"]
    ids = tokenizer.encode("a😎b", add_special_tokens=False)
    assert len(ids) == 4
    assert pieces(tokenizer, ids) == ["a", *[""] * (len(ids) - 3), "😎", "b"]


def test_bytes_that_are_no_character_belong_to_their_own_tokens() -> None:
    tokenizer = KINDS["byte_fallback"]
    lone, letter = tokenizer.encode("日é", add_special_tokens=False)[-2:]
    start_byte = 0xE4 + 1
    assert tokenizer.byte_of(start_byte) == 0xE4
    assert pieces(tokenizer, [start_byte, letter]) == [REPLACEMENT, "é"]
    assert pieces(tokenizer, [lone, start_byte, lone]) == ["日", REPLACEMENT, "日"]


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_text_is_not_held_back_without_need(kind: str) -> None:
    tokenizer = KINDS[kind]
    detokenizer = Detokenizer(tokenizer, continues_text=True)
    letters = [
        token_id
        for token_id in range(VOCAB_SIZES[kind])
        if tokenizer.decode([token_id]).strip() in ("x", "y") and tokenizer.byte_of(token_id) is None
    ]
    assert len(letters) >= 2
    for token_id in letters:
        settled = detokenizer.push(token_id)
        assert [text.strip() for text in settled] == [tokenizer.decode([token_id]).strip()]


class Counting:
    """A tokenizer that counts the ids it decodes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.splits_characters = tokenizer.splits_characters
        self.anchor_ids = tokenizer.anchor_ids
        self.has_text = tokenizer.has_text
        self.byte_of = tokenizer.byte_of
        self.decoded = 0

    def decode(self, token_ids: list[int]) -> str:
        self.decoded += len(token_ids)
        return self._tokenizer.decode(token_ids)


@pytest.mark.parametrize(
    ("kind", "hard"), [("byte_level", "\N{EURO SIGN}"), ("byte_fallback", "😎"), ("metaspace", "😀")]
)
def test_work_is_linear_in_the_number_of_tokens(kind: str, hard: str) -> None:
    some = KINDS[kind].encode(f"hello {hard}", add_special_tokens=False)
    for ids in (some * 500, [some[-1]] * 3000):  # ordinary text, and bytes that never become a character
        counting = Counting(KINDS[kind])
        detokenizer = Detokenizer(counting, continues_text=True)
        for token_id in ids:
            detokenizer.push(token_id)
        detokenizer.flush()
        assert counting.decoded <= 30 * len(ids)


stop_lists = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)


@given(text=st.text("ab", max_size=40), stops=stop_lists, cuts=st.lists(st.integers(0, 40)))
@settings(max_examples=200, deadline=None)
def test_stop_strings_are_found_wherever_the_text_is_cut(text: str, stops: list[str], cuts: list[int]) -> None:
    matcher = StopMatcher(stops)
    found, pushed = None, 0
    for end in [*sorted({cut for cut in cuts if cut < len(text)}), len(text)]:
        found = matcher.push(text[pushed:end])
        pushed = end
        if found:
            break
        assert not any(stop in text[:end] for stop in stops)
        assert matcher.held_len == longest_beginning(text[:end], stops)
    assert found == first_match(text, stops)


def first_match(text: str, stops: list[str]) -> StopMatch | None:
    for end in range(1, len(text) + 1):
        ended = [stop for stop in stops if text[:end].endswith(stop)]
        if ended:
            stop = max(ended, key=len)
            return StopMatch(stop, end - len(stop))
    return None


def longest_beginning(text: str, stops: list[str]) -> int:
    lengths = [n for stop in stops for n in range(len(stop)) if text.endswith(stop[:n])]
    return max(lengths, default=0)


def test_no_stop_strings_hold_nothing_back() -> None:
    matcher = StopMatcher([])
    assert matcher.push("anything") is None
    assert matcher.held_len == 0
