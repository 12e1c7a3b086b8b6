"""Next-token laws of an emulated model: a pure function of the context, the position and the seed.

Contexts are easy or hard (`_LEVELS`), as in text: most have one likely token, a few have many. The text is
pronounceable and always valid UTF-8, with a character of several bytes now and then. A draft computes the target's law
and, at the contexts where a hash says so, puts another in its place; those are mostly hard ones, so that entropy
foretells rejection as it does with real models, while their share of all contexts is `1 - agree`.
"""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from speculative.engine.emulated_profile import EmulatedProfile
from speculative.engine.emulated_tokenizer import ByteVocabulary


@dataclass(frozen=True, slots=True)
class RawLaw:
    """Weights (positive, not normalised) of the tokens that can follow; all other ids have probability zero."""

    token_ids: tuple[int, ...]
    weights: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Level:
    """How hard a context is: its share of all contexts, the shape of its law, and how eager drafts are to differ."""

    share: float
    candidates: int
    ratio: float
    """Weight of each candidate relative to the one before."""
    dissent: float
    """Probability of another law in a draft, relative to other levels."""


# Entropies of about 0.1, 0.6, 1.3 and 2.0 nats.
_LEVELS = (
    _Level(share=0.45, candidates=2, ratio=0.02, dissent=0.25),
    _Level(share=0.30, candidates=3, ratio=0.25, dissent=1.0),
    _Level(share=0.17, candidates=5, ratio=0.55, dissent=2.0),
    _Level(share=0.08, candidates=8, ratio=0.85, dissent=3.0),
)
_JITTER = 0.12  # weights vary by this share: less than the step between candidates, so their order stands
_ONE_HOT_SHARE = 0.25  # of easy contexts: only one token can follow
_TIE_SHARE = 0.02  # of the others: the two likeliest are equally likely
_PADDING_SHARE = 0.25  # of contexts, where there is padding: a padding row is likeliest
_KEEP_SHARE = 0.5  # of the laws that differ: the target's choice comes second

# What can follow, by the last byte; repeated where likelier. 0xC3, 0xE2, 0xF0 begin characters of 2, 3 and 4 bytes.
_WORD_START = b"tttaaaoossswwbcdfhilmnprehguyTAIS" * 2 + b"\xc3\xe2"
_AFTER_VOWEL = b"nnnrrrsssttlldmmcvgpbk      ,.!\n" * 2 + b"\xc3\xf0"
_AFTER_CONSONANT = b"eeeaaaiioouuhrlty     s,." * 2 + b"\xc3"
_AFTER_STOP = b"      \n"
_FOLLOWERS = (
    *((vowel, _AFTER_VOWEL) for vowel in (b"a", b"e", b"i", b"o", b"u", b"y")),
    *((bytes([consonant]), _AFTER_CONSONANT) for consonant in b"bcdfghjklmnpqrstvwxz"),
    *((stop, _AFTER_STOP) for stop in (b".", b",", b"!")),
)
# Inside a character of several bytes, by the bytes of it so far; a longer match wins.
_CONTINUATIONS = {
    b"\xc3": bytes(range(0xA0, 0xC0)),
    b"\xe2": b"\x82",
    b"\xe2\x82": b"\xac",
    b"\xf0": b"\x9f",
    b"\xf0\x9f": b"\x98",
    b"\xf0\x9f\x98": bytes(range(0x80, 0x90)),
}
_LONGEST_CONTINUATION = 3

_DECISIONS = struct.Struct("<4I")
# Which further coin decides what: one for each candidate from 0, one for each weight, and single ones.
_WEIGHT_COINS, _PADDING_ID_COIN, _PADDING_COIN, _EOS_COIN = 16, 45, 46, 47
_TWO_32 = float(1 << 32)


class _Coins:
    """Numbers that decide about one law: a hash of the context, so always the same ones."""

    __slots__ = ("byte", "dissent", "eos", "level", "rare")

    def __init__(self, digest: bytes) -> None:
        level, eos, dissent, rare = _DECISIONS.unpack_from(digest)
        self.level = level / _TWO_32
        self.eos = eos / _TWO_32
        self.dissent = dissent / _TWO_32
        self.rare = rare / _TWO_32
        self.byte = digest[_DECISIONS.size :]
        """48 further numbers from 0 to 255."""


class _CoinHash:
    """Hashes contexts for one purpose (and seed): different purposes give independent coins."""

    def __init__(self, purpose: bytes, seed: int) -> None:
        salt = seed.to_bytes(8, "little")
        self._start = hashlib.blake2b(digest_size=64, salt=salt, person=purpose)

    def coins(self, tokens: tuple[int, ...], position: int) -> _Coins:
        state = self._start.copy()
        state.update(struct.pack(f"<{len(tokens) + 1}Q", position, *tokens))
        return _Coins(state.digest())


class EmulatedLaws:
    """The laws of one profile over one vocabulary."""

    def __init__(self, profile: EmulatedProfile, vocabulary: ByteVocabulary) -> None:
        self._profile = profile
        self._vocabulary = vocabulary
        self._target_hash = _CoinHash(b"target", profile.seed)
        self._draft_hash = _CoinHash(b"draft", profile.seed)
        self._id_of = {byte: token_id for token_id, byte in enumerate(vocabulary.byte_of)}
        self._followers = {self._id_of[last[0]]: self._ids(after) for last, after in _FOLLOWERS}
        self._word_start = self._ids(_WORD_START)
        self._continuations = {self._ids(last): self._ids(after) for last, after in _CONTINUATIONS.items()}
        self._dissent = dissent_by_level(1.0 - profile.agree)

    def law(self, context: Sequence[int]) -> RawLaw:
        """The law behind `context` (at least one token; only the last `order` and the length count).

        Padding rows may be among its ids.
        """
        tokens = tuple(context[-self._profile.order :])
        return self.law_at(tokens, len(context))

    def law_at(self, tokens: tuple[int, ...], position: int) -> RawLaw:
        """The law at absolute `position`, where `tokens` are the last `order` tokens before it, or all there are."""
        coins = self._target_hash.coins(tokens, position)
        level = _pick_level(coins.level)
        following, inside = self._following(tokens)
        law = self._build(coins, level, following, inside)
        if coins.dissent < self._dissent[level]:
            law = self._differ(law, level, tokens, position)
        return self._pad(law, coins)

    def _build(self, coins: _Coins, level: int, following: tuple[int, ...], inside: bool) -> RawLaw:
        shape = _LEVELS[level]
        one_hot = level == 0 and coins.rare < _ONE_HOT_SHARE
        token_ids = _choose(coins, following, 1 if one_hot else shape.candidates)
        ends = not inside and coins.eos < self._profile.eos_rate
        if ends:
            ending = self._vocabulary.eos_token_ids
            token_ids = [ending[coins.byte[_EOS_COIN] % len(ending)], *token_ids[1:]]
        weights = _weights(coins, shape.ratio, len(token_ids))
        if len(weights) > 1 and coins.rare > 1.0 - _TIE_SHARE and not ends:
            weights[1] = weights[0]
        return RawLaw(tuple(token_ids), tuple(weights))

    def _differ(self, target: RawLaw, level: int, tokens: tuple[int, ...], position: int) -> RawLaw:
        """Another law than the target's, a level harder, with another likeliest token."""
        coins = self._draft_hash.coins(tokens, position)
        level = min(level + 1, len(_LEVELS) - 1)
        avoided = likeliest(target)
        following, inside = self._following(tokens)
        others = tuple(token_id for token_id in following if token_id != avoided)
        law = self._build(coins, level, others or self._word_start, inside)
        token_ids = [token_id for token_id in law.token_ids if token_id != avoided] or list(self._word_start[:1])
        if coins.rare < _KEEP_SHARE:
            token_ids.insert(1, avoided)
        return RawLaw(tuple(token_ids), tuple(_weights(coins, _LEVELS[level].ratio, len(token_ids))))

    def _pad(self, law: RawLaw, coins: _Coins) -> RawLaw:
        if not self._profile.padding or coins.byte[_PADDING_COIN] >= 256 * _PADDING_SHARE:
            return law
        padding_id = self._vocabulary.size + coins.byte[_PADDING_ID_COIN] % self._profile.padding
        return RawLaw((padding_id, *law.token_ids), (2.0 * max(law.weights), *law.weights))

    def _following(self, tokens: tuple[int, ...]) -> tuple[tuple[int, ...], bool]:
        """The ids that can follow, and whether they continue a character of several bytes."""
        for length in range(_LONGEST_CONTINUATION, 0, -1):
            if following := self._continuations.get(tokens[-length:]):
                return following, True
        return self._followers.get(tokens[-1], self._word_start), False

    def _ids(self, text: bytes) -> tuple[int, ...]:
        return tuple(self._id_of[byte] for byte in text)


def likeliest(law: RawLaw) -> int:
    """The likeliest token, the lowest id on a tie."""
    return min(zip(law.weights, law.token_ids, strict=True), key=lambda entry: (-entry[0], entry[1]))[1]


def dissent_by_level(dissent: float) -> tuple[float, ...]:
    """How often a draft differs at each level, so that it differs at `dissent` of all contexts.

    In proportion to the levels' own `dissent`, as far as probabilities go; what exceeds 1 is spread over the others.
    """
    rates = [0.0] * len(_LEVELS)
    left, free = dissent, sorted(range(len(_LEVELS)), key=lambda i: -_LEVELS[i].dissent)
    while free:
        scale = left / sum(_LEVELS[i].share * _LEVELS[i].dissent for i in free)
        if scale * _LEVELS[free[0]].dissent < 1.0:
            for i in free:
                rates[i] = scale * _LEVELS[i].dissent
            break
        rates[free[0]] = 1.0
        left -= _LEVELS[free[0]].share
        del free[0]
    return tuple(rates)


def _pick_level(number: float) -> int:
    for level, shape in enumerate(_LEVELS):
        number -= shape.share
        if number < 0:
            return level
    return len(_LEVELS) - 1


def _choose(coins: _Coins, following: tuple[int, ...], count: int) -> list[int]:
    """Up to `count` different ids out of `following`, where an id that is there twice is twice as likely."""
    chosen: list[int] = []
    for index in range(count):
        start = coins.byte[index]
        for step in range(len(following)):
            token_id = following[(start + step) % len(following)]
            if token_id not in chosen:
                chosen.append(token_id)
                break
    return chosen


def _weights(coins: _Coins, ratio: float, count: int) -> list[float]:
    """Falling weights, the first 1."""
    weights = [ratio**index * (1.0 - _JITTER * coins.byte[_WEIGHT_COINS + index] / 255.0) for index in range(count)]
    weights[0] = 1.0
    return weights
