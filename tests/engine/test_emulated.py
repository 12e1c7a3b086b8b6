"""The emulated model: its text, how often a draft agrees, what a forward costs, and what it refuses.

Statistical checks have a false-alarm rate of 1e-6 each.
"""

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from speculative.engine.emulated import EmulatedRunner, make_emulated
from speculative.engine.emulated_laws import EmulatedLaws, RawLaw, dissent_by_level, likeliest
from speculative.engine.emulated_profile import parse_profile
from speculative.engine.emulated_rows import entropy_nats, warp
from speculative.engine.emulated_tokenizer import ALL_BYTES, ByteVocabulary
from speculative.engine.fingerprint import read_vocabulary
from speculative.engine.interface import PickRequest, Picks, Slice
from speculative.errors import ModelLoadError
from speculative.sampling.acceptance import coupled_accepted_len
from speculative.sampling.types import SamplingParams
from tests.support.statistics import assert_rate

VOCABULARY = ByteVocabulary(ALL_BYTES)
PROMPT = [VOCABULARY.bos_id, *(ALL_BYTES.index(byte) for byte in b"Ride ahead")]
GREEDY = SamplingParams(temperature=0.0)
SAMPLED = SamplingParams(temperature=0.9, top_p=0.95)


def runner(profile: str) -> EmulatedRunner:
    return make_emulated(profile, f"emulated:{profile}")[0]


def laws(profile: str) -> EmulatedLaws:
    return EmulatedLaws(parse_profile(profile), VOCABULARY)


def entropy(law: RawLaw) -> float:
    return entropy_nats(warp(dict(zip(law.token_ids, law.weights, strict=True)), SamplingParams()))


def greedy_text(profile: str, length: int) -> list[int]:
    """The prompt and its greedy continuation, `length` tokens in all."""
    model, tokens = laws(profile), list(PROMPT)
    while len(tokens) < length:
        tokens.append(likeliest(model.law(tokens)))
    return tokens


@dataclass
class Hand:
    """Drives one sequence by hand: `tokens` are its own, `cached_len` of them are held."""

    runner: EmulatedRunner
    params: SamplingParams = GREEDY
    seed: int = 3
    tokens: list[int] = field(default_factory=lambda: list(PROMPT))
    cached_len: int = 0

    def __post_init__(self) -> None:
        self.runner.blocks.attach("hand", self.tokens)

    def feed(self, fed: Sequence[int], num_rows: int) -> tuple[int, ...]:
        """Feeds tokens behind those that are held; the picks behind the last `num_rows` of them."""
        assert self.runner.blocks.reserve("hand", self.cached_len, len(fed))
        rows = self.runner.forward([Slice("hand", fed, self.cached_len, num_rows, self.tokens[: self.cached_len])])
        self.cached_len += len(fed)
        [outcome] = rows.answer(
            [PickRequest(0, num_rows, self.cached_len - num_rows + 1, self.params, self.seed)] if num_rows else []
        ) or [Picks((), ())]
        assert isinstance(outcome, Picks)
        return outcome.token_ids

    def verify(self, chunk: Sequence[int]) -> int:
        """One round: judges the chunk, commits what stands and the target's own token; the accepted length."""
        fed = [*self.tokens[self.cached_len :], *chunk]
        picks = self.feed(fed, len(chunk) + 1)
        accepted_len = coupled_accepted_len(chunk, picks)
        self.tokens += [*chunk[:accepted_len], picks[accepted_len]]
        self.cached_len = len(self.tokens) - 1
        return accepted_len


def sampled_text(target: str, draft: str, chunk_len: int, length: int, params: SamplingParams) -> list[int]:
    """Text of `length` tokens, by rounds of `chunk_len` draft tokens."""
    verifier = Hand(runner(target), params)
    while len(verifier.tokens) < length:
        drafter = Hand(runner(draft), params, tokens=list(verifier.tokens))
        chunk = []
        for _ in range(chunk_len):
            [token_id] = drafter.feed(drafter.tokens[drafter.cached_len :], 1)
            drafter.tokens.append(token_id)
            chunk.append(token_id)
        verifier.verify(chunk)
    return verifier.tokens[:length]


# The laws are a pure function.


def test_equal_contexts_have_equal_laws() -> None:
    """Whatever came before the last `order` tokens, in any instance; another position or token gives another law."""
    one, other = laws("draft"), laws("draft")
    tail = greedy_text("target", 40)
    assert [one.law(tail[:n]) for n in range(11, 40)] == [other.law(tail[:n]) for n in range(11, 40)]
    changed = [tail[0] + 1, *tail[1:]]
    assert one.law(changed) == one.law(tail)
    assert laws("draft?order=40").law(changed) != laws("draft?order=40").law(tail)
    assert len({one.law([*tail[:n], *tail[-8:]]) for n in range(20)}) > 10


def test_the_seed_gives_another_text() -> None:
    texts = {tuple(greedy_text(f"target?seed={seed}", 60)) for seed in range(5)}
    assert len(texts) == 5


@pytest.mark.parametrize("cut", [1, 2, 3, 7, 16])
def test_answers_do_not_depend_on_how_tokens_are_cut_into_steps(cut: int) -> None:
    text = greedy_text("target", 60)
    whole = Hand(runner("target"), SAMPLED, tokens=text).feed(text, len(text))
    pieces: list[int] = []
    hand = Hand(runner("target"), SAMPLED, tokens=text)
    while hand.cached_len < len(text):
        piece = text[hand.cached_len : hand.cached_len + cut]
        pieces += hand.feed(piece, len(piece))
    assert tuple(pieces) == whole


def test_answers_do_not_depend_on_other_sequences() -> None:
    model, texts = runner("target"), [greedy_text(f"target?seed={seed}", 20 + seed) for seed in range(4)]
    pieces = []
    for number, text in enumerate(texts):
        model.blocks.attach(f"s{number}", text)
        assert model.blocks.reserve(f"s{number}", 0, len(text))
        pieces.append(Slice(f"s{number}", text, 0, number, []))
    rows = model.forward(pieces)
    requests = [PickRequest(first, n, len(texts[n]) - n + 1, SAMPLED, 3) for n, first in ((1, 0), (2, 1), (3, 3))]
    alone = [Hand(runner("target"), SAMPLED, tokens=texts[n]).feed(texts[n], n) for n in (1, 2, 3)]
    assert [outcome.token_ids for outcome in rows.answer(requests) if isinstance(outcome, Picks)] == alone


@pytest.mark.parametrize("params", [GREEDY, SAMPLED])
@pytest.mark.parametrize("agree", [0.0, 0.6, 1.0])
def test_coupled_text_is_the_same_for_every_draft_and_chunk_length(params: SamplingParams, agree: float) -> None:
    alone = sampled_text("target", "target", 0, 50, params)
    for chunk_len in (1, 3, 8):
        assert sampled_text("target", f"draft?agree={agree}", chunk_len, 50, params) == alone


# The text.


def test_text_is_valid_and_mostly_plain() -> None:
    text = bytes(ALL_BYTES[token_id] for token_id in greedy_text("target?eos_rate=0", 3000)[1:]).decode()
    plain = sum(character.isascii() and (character.isprintable() or character == "\n") for character in text)
    assert 0.9 < plain / len(text) < 1.0
    assert {len(character.encode()) for character in text} == {1, 2, 3, 4}
    assert text.count(" ") > len(text) / 20


def test_easy_and_hard_positions_occur() -> None:
    text, model = greedy_text("target", 1000), laws("target")
    found = [model.law(text[:n]) for n in range(11, 1000)]
    entropies = [entropy(law) for law in found]
    assert min(entropies) == 0.0
    assert sum(e < 0.2 for e in entropies) > 300
    assert sum(e > 1.0 for e in entropies) > 100
    assert max(entropies) > 1.8
    assert {len(law.token_ids) for law in found} >= {1, 2, 3, 5, 8}


def test_ties_for_the_likeliest_token_occur() -> None:
    text, model = greedy_text("target", 1000), laws("target")
    weights = [sorted(model.law(text[:n]).weights)[-2:] for n in range(11, 1000)]
    assert 5 < sum(len(pair) == 2 and pair[0] == pair[1] for pair in weights) < 40


@pytest.mark.parametrize("rate", [0.0, 0.01, 0.2, 1.0])
def test_texts_end_at_the_chosen_rate(rate: float) -> None:
    """At 3,000 contexts; none is inside a character, where a text cannot end."""
    model = laws(f"target?eos_rate={rate}")
    ends = sum(likeliest(model.law_at((*PROMPT[-7:], 2), n)) in VOCABULARY.eos_token_ids for n in range(3000))
    if rate in (0.0, 1.0):
        assert ends == 3000 * rate
    else:
        assert_rate(ends, 3000, rate)


def test_every_end_token_occurs() -> None:
    model = laws("target?eos_rate=1")
    assert {likeliest(model.law_at((*PROMPT[-7:], 2), n)) for n in range(50)} == set(VOCABULARY.eos_token_ids)


# The draft.


@pytest.mark.parametrize("agree", [0.0, 0.3, 0.6, 0.8, 0.95, 1.0])
def test_a_draft_agrees_at_the_chosen_rate(agree: float) -> None:
    """The likeliest tokens of draft and target, at 3,000 contexts of a text."""
    text, target, draft = greedy_text("target", 3011), laws("target"), laws(f"draft?agree={agree}")
    agreed = sum(likeliest(draft.law(text[:n])) == likeliest(target.law(text[:n])) for n in range(11, 3011))
    if agree in (0.0, 1.0):
        assert agreed == 3000 * agree
    else:
        assert_rate(agreed, 3000, agree)


def test_a_draft_has_the_target_s_law_wherever_they_agree() -> None:
    text, target, draft = greedy_text("target", 500), laws("target"), laws("draft")
    for n in range(11, 500):
        one, other = target.law(text[:n]), draft.law(text[:n])
        assert (one == other) == (likeliest(one) == likeliest(other))


def test_entropy_foretells_disagreement() -> None:
    """The draft's own mean entropy where it differs is at least twice that where it agrees."""
    text, target, draft = greedy_text("target", 1500), laws("target"), laws("draft")
    agreed: list[float] = []
    differed: list[float] = []
    for n in range(11, 1500):
        law = draft.law(text[:n])
        (agreed if law == target.law(text[:n]) else differed).append(entropy(law))
    assert math.fsum(differed) / len(differed) > 2 * math.fsum(agreed) / len(agreed)


@pytest.mark.parametrize("dissent", [0.0, 0.05, 0.3, 0.7, 0.99, 1.0])
def test_dissent_grows_with_difficulty_and_has_the_chosen_mean(dissent: float) -> None:
    rates = dissent_by_level(dissent)
    assert list(rates) == sorted(rates)
    assert all(0.0 <= rate <= 1.0 for rate in rates)
    assert math.isclose(
        sum(share * rate for share, rate in zip((0.45, 0.30, 0.17, 0.08), rates, strict=True)), dissent, abs_tol=1e-12
    )


def test_a_draft_with_another_seed_agrees_by_chance_only() -> None:
    text, target, draft = greedy_text("target", 500), laws("target"), laws("draft?seed=1&agree=1")
    assert sum(likeliest(draft.law(text[:n])) == likeliest(target.law(text[:n])) for n in range(11, 500)) < 200


# The vocabulary.


def test_draft_and_target_have_one_vocabulary() -> None:
    assert runner("target").info.vocab_fingerprint == runner("draft?seed=9").info.vocab_fingerprint


def test_the_rotated_vocabulary_differs_in_content_only() -> None:
    plain, rotated = runner("target").info, runner("target?vocab=rotated").info
    assert rotated.vocab_size == plain.vocab_size == 260
    assert rotated.eos_token_ids == plain.eos_token_ids
    assert rotated.vocab_fingerprint != plain.vocab_fingerprint


def test_padding_rows_change_neither_vocabulary_nor_text() -> None:
    plain, padded = runner("target").info, runner("target?padding=64").info
    assert replace(padded, name=plain.name, revision=plain.revision) == plain
    for params in (GREEDY, SAMPLED):
        assert sampled_text("target?padding=64", "draft?padding=7", 4, 40, params) == sampled_text(
            "target", "target", 0, 40, params
        )


def test_padding_rows_have_probability_in_the_raw_law() -> None:
    model = laws("target?padding=64")
    assert any(likeliest(model.law_at(tuple(PROMPT[-8:]), n)) >= VOCABULARY.size for n in range(50))


def test_info_says_what_the_model_is() -> None:
    info = make_emulated("draft?context=100", "my draft")[0].info
    assert (info.name, info.context_length, info.dtype, info.device) == ("my draft", 100, "emulated", "cpu")
    assert runner("target").info.revision != runner("target?seed=1").info.revision


def test_the_context_is_no_longer_than_the_memory() -> None:
    assert runner("target?blocks=4&block_tokens=16").info.context_length == 64


@pytest.mark.parametrize("vocab", ["bytes", "rotated"])
def test_the_tokenizer_s_files_are_a_real_tokenizer(vocab: str) -> None:
    model, files = make_emulated(f"target?vocab={vocab}", "emulated")
    tokenizer = Tokenizer.from_buffer(files["tokenizer.json"])
    text = "Ride ahead – naïve 😀\n\t\x00<|im_end|>"
    encoded = tokenizer.encode(text)
    assert encoded.tokens[0] == "<|bos|>"
    assert encoded.ids[-1] == model.info.eos_token_ids[1]
    assert len(encoded.ids) == 1 + len(text.encode()) - len("<|im_end|>") + 1
    assert tokenizer.decode(encoded.ids, skip_special_tokens=False) == "<|bos|>" + text
    vocabulary = read_vocabulary(files["tokenizer.json"])
    assert tokenizer.get_vocab_size() == vocabulary.size == model.info.vocab_size
    assert vocabulary.fingerprint() == model.info.vocab_fingerprint
    assert [tokenizer.id_to_token(token_id) for token_id in model.info.eos_token_ids] == ["<|eos|>", "<|im_end|>"]


def test_the_chat_template_names_every_turn() -> None:
    config = json.loads(make_emulated("target", "emulated")[1]["tokenizer_config.json"])
    template = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(config["chat_template"])
    messages = [{"role": "user", "content": "Ride!"}]
    assert template.render(messages=messages, add_generation_prompt=True, bos_token=config["bos_token"]) == (
        "<|bos|><|im_start|>user\nRide!<|im_end|>\n<|im_start|>assistant\n"
    )


# Time.


@dataclass
class FakeTime:
    """A clock that only moves while somebody sleeps, and always sleeps `late_s` too long."""

    now_s: float = 100.0
    late_s: float = 0.0
    naps_s: list[float] = field(default_factory=list)

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.naps_s.append(seconds)
        self.now_s += seconds + self.late_s


def timed(profile: str, time: FakeTime) -> Hand:
    """A hand on a model with such a clock, and 200 tokens that are all 1."""
    model, parsed = runner(profile), parse_profile(profile)
    return Hand(EmulatedRunner(parsed, model.info, laws(profile), clock=time.clock, sleep=time.sleep), tokens=[1] * 200)


def test_a_forward_takes_the_time_of_its_profile() -> None:
    time = FakeTime()
    hand = timed("target?forward_ms=20&token_ms=1&context_us=100", time)
    hand.feed([1] * 11, 1)
    assert time.now_s - 100.0 == pytest.approx(0.020 + 11 * 0.001 + 11 * 0.0001)
    hand.feed([1, 1], 2)
    assert time.naps_s[1] == pytest.approx(0.020 + 2 * 0.001 + 13 * 0.0001)


def test_sleeping_too_long_does_not_add_up() -> None:
    time = FakeTime(late_s=0.003)
    hand = timed("target?forward_ms=20", time)
    for _ in range(100):
        hand.feed([1], 1)
    assert time.now_s - 100.0 == pytest.approx(100 * 0.020 + 0.003)


def test_time_between_forwards_is_not_hidden() -> None:
    time = FakeTime()
    hand = timed("target?forward_ms=20", time)
    for _ in range(10):
        hand.feed([1], 1)
        time.now_s += 0.005
    assert time.now_s - 100.0 == pytest.approx(10 * 0.025)


def test_a_profile_without_cost_never_sleeps() -> None:
    time = FakeTime(late_s=1.0)
    timed("target", time).feed([1], 1)
    assert time.naps_s == []


def test_waiting_sleeps_and_does_not_spin() -> None:
    time = FakeTime()
    timed("target?forward_ms=500", time).feed([1], 1)
    assert len(time.naps_s) == 1


# What it refuses.


def test_a_wrong_profile_does_not_load() -> None:
    with pytest.raises(ModelLoadError, match="there are: target"):
        make_emulated("h200-70b", "emulated:h200-70b")


@pytest.mark.parametrize(
    ("piece", "said"),
    [
        (Slice("hand", [1, 2], 0, 3, []), "3 rows of 2 tokens"),
        (Slice("hand", [1] * 33, 0, 1, []), "33 tokens at 0"),
        (Slice("hand", [1] * 17, 0, 1, []), "no room"),
        (Slice("hand", [1], 1, 1, [5]), "does not hold"),
        (Slice("other", [1], 0, 1, []), "not attached"),
    ],
)
def test_a_slice_that_breaks_the_rules_is_refused(piece: Slice, said: str) -> None:
    model = runner("target?context=32&block_tokens=16")
    model.blocks.attach("hand", [1])
    assert model.blocks.reserve("hand", 0, 16)
    with pytest.raises(ValueError, match=said):
        model.forward([piece])


def test_it_needs_neither_torch_nor_numpy() -> None:
    program = (
        "import sys; from speculative.engine.loading import LoadSettings, load\n"
        "load('emulated:target', LoadSettings(), 'target')\n"
        "print({'torch', 'numpy', 'transformers', 'tokenizers'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"
