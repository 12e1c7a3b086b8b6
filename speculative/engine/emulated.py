"""A model without weights or torch: laws that are a pure function of the context, forwards that take a set time.

It serves tests of everything above the engine, benchmarks at the costs of large GPUs, and anyone who wants to try the
services without weights. Invariant: its answers depend on the profile and the tokens only, never on how the tokens were
cut into steps, on other sequences, or on time.
"""

import time
from collections.abc import Callable, Sequence

from speculative.engine.emulated_blocks import CountedBlocks
from speculative.engine.emulated_laws import EmulatedLaws, RawLaw
from speculative.engine.emulated_profile import EmulatedProfile, parse_profile
from speculative.engine.emulated_rows import EmulatedRows
from speculative.engine.emulated_tokenizer import ALL_BYTES, ByteVocabulary, tokenizer_files
from speculative.engine.fingerprint import vocab_fingerprint
from speculative.engine.interface import Slice
from speculative.messages import ModelInfo

_VOCABULARIES = {"bytes": ByteVocabulary(ALL_BYTES), "rotated": ByteVocabulary(ALL_BYTES[1:] + ALL_BYTES[:1])}


def make_emulated(profile: str, name: str) -> tuple["EmulatedRunner", dict[str, bytes]]:
    """The emulated model that `profile` describes (emulated_profile.py), and its tokenizer's files by file name.

    `name` is what the service says the model is called. Raises ModelLoadError if the profile is wrong.
    """
    parsed = parse_profile(profile)
    vocabulary = _VOCABULARIES[parsed.vocab]
    files = tokenizer_files(vocabulary)
    info = ModelInfo(
        name=name,
        revision=parsed.revision,
        vocab_size=vocabulary.size,
        vocab_fingerprint=vocab_fingerprint(files["tokenizer.json"]),
        context_length=min(parsed.context, parsed.blocks * parsed.block_tokens),
        eos_token_ids=vocabulary.eos_token_ids,
        dtype="emulated",
        device="cpu",
    )
    return EmulatedRunner(parsed, info, EmulatedLaws(parsed, vocabulary)), files


class EmulatedRunner:
    """A Runner (interface.py) over emulated laws. `clock` and `sleep` are in seconds."""

    def __init__(
        self,
        profile: EmulatedProfile,
        info: ModelInfo,
        laws: EmulatedLaws,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._profile = profile
        self._info = info
        self._laws = laws
        self._blocks = CountedBlocks(profile.blocks, profile.block_tokens)
        self._clock = clock
        self._sleep = sleep
        self._overslept_s = 0.0

    @property
    def info(self) -> ModelInfo:
        """What the model is."""
        return self._info

    @property
    def blocks(self) -> CountedBlocks:
        """Its memory."""
        return self._blocks

    def forward(self, slices: Sequence[Slice]) -> EmulatedRows:
        """One step; takes the time the profile gives it. Raises ValueError if a slice breaks the interface's rules."""
        started_s = self._clock()
        for piece in slices:
            self._write(piece)
        laws = [law for piece in slices for law in self._laws_of(piece)]
        fed = sum(len(piece.token_ids) for piece in slices)
        read = fed + sum(piece.cached_len for piece in slices)
        self._wait_until(started_s, self._profile.cost_s(fed, read))
        return EmulatedRows(laws, self._info.vocab_size)

    def _write(self, piece: Slice) -> None:
        end = piece.cached_len + len(piece.token_ids)
        if not 0 <= piece.num_rows <= len(piece.token_ids) or end > self._profile.context:
            raise ValueError(f"{piece.num_rows} rows of {len(piece.token_ids)} tokens at {piece.cached_len}")
        self._blocks.write(piece.sequence_id, piece.cached_len, piece.prefix_token_ids, piece.token_ids)

    def _laws_of(self, piece: Slice) -> list[RawLaw]:
        """The laws behind the last `num_rows` tokens."""
        order, fed = self._profile.order, len(piece.token_ids)
        start = max(0, piece.cached_len - order)
        tokens = (*piece.prefix_token_ids[start:], *piece.token_ids)  # the first is at position `start`
        ends = range(piece.cached_len + fed - piece.num_rows + 1, piece.cached_len + fed + 1)
        return [self._laws.law_at(tokens[max(0, end - order - start) : end - start], end) for end in ends]

    def _wait_until(self, started_s: float, cost_s: float) -> None:
        """Sleeps until the forward has lasted `cost_s`; what the last sleep was too long is taken off this one.

        So the times of many forwards add up to their costs, while work between them is never hidden.
        """
        deadline_s = started_s + cost_s - self._overslept_s
        while (left_s := deadline_s - self._clock()) > 0:
            self._sleep(left_s)
        self._overslept_s = min(-left_s, cost_s)
