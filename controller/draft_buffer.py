r"""The tokens of one request by absolute position: committed, then drafted, then in verification.

Pure state machine of docs/protocol.md. Invariant: both services hold the same committed prefix, and every message
names the prefix length it assumes. In one round a chunk is drafted, sent for verification and committed:

    IDLE --advance--> ASKED --take--> DRAFTED --check--> CHECKED --commit--> IDLE
      \------------------------------check----------------^   (no draft: a chunk of zero)
    ASKED, DRAFTED --drop--> IDLE                               (the draft is lost)

Methods called out of turn raise ValueError; messages of a peer that break the protocol raise
StalePrefixError or RemoteError.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from speculative.errors import RemoteError, StalePrefixError
from speculative.generation import TokenOrigin
from speculative.messages import Advance, Check, Drafted, Verdict
from speculative.sampling.types import Signals, SparseLaw


class Stage(enum.Enum):
    """Where the round stands."""

    IDLE = "idle"
    ASKED = "asked"
    DRAFTED = "drafted"
    CHECKED = "checked"


@dataclass(frozen=True, slots=True)
class Committed:
    """What a verdict committed: tokens from position `base_len`, and where each came from."""

    base_len: int
    token_ids: tuple[int, ...]
    origins: tuple[TokenOrigin, ...]


class DraftBuffer:
    """Positions of one request. `vocab_size` is the number of the target's real ids."""

    def __init__(
        self, prompt_token_ids: Sequence[int], vocab_size: int, *, with_laws: bool, judged_by_laws: bool = False
    ) -> None:
        """`with_laws`: each draft token comes with its law; `judged_by_laws`: each was drawn from that very law."""
        self._committed = list(prompt_token_ids)
        self._vocab_size = vocab_size
        self._with_laws = with_laws
        self._judged_by_laws = judged_by_laws
        self._stage = Stage.IDLE
        self._asked_tokens = 0
        self._chunk: tuple[int, ...] = ()
        self._laws: tuple[SparseLaw, ...] = ()

    @property
    def stage(self) -> Stage:
        """Where the round stands."""
        return self._stage

    @property
    def committed_len(self) -> int:
        """Committed tokens, prompt included: the position of the next token."""
        return len(self._committed)

    @property
    def committed_token_ids(self) -> tuple[int, ...]:
        """The committed prefix, prompt included."""
        return tuple(self._committed)

    @property
    def chunk(self) -> tuple[int, ...]:
        """The drafted tokens of the round, which begin at `committed_len`."""
        return self._chunk

    def advance(
        self,
        told_len: int,
        max_tokens: int,
        stop_entropy_nats: float | None,
        stop_prob: float | None = None,
        stop_survival: float | None = None,
        max_lookup_tokens: int | None = None,
    ) -> Advance:
        """Asks a draft that knows the first `told_len` committed tokens for a chunk."""
        self._expect(Stage.IDLE)
        if not 0 < told_len <= self.committed_len:
            raise ValueError(f"the draft cannot know {told_len} of {self.committed_len} tokens")
        self._stage = Stage.ASKED
        committed = tuple(self._committed[told_len:])
        message = Advance(
            told_len, committed, max_tokens, stop_entropy_nats, stop_prob, stop_survival, max_lookup_tokens
        )
        self._asked_tokens = message.longest_chunk
        return message

    def take(self, drafted: Drafted) -> None:
        """Takes the chunk that was asked for."""
        self._expect(Stage.ASKED)
        if drafted.base_len != self.committed_len:
            raise StalePrefixError(drafted.base_len, self.committed_len)
        self._check_chunk(drafted)
        self._stage = Stage.DRAFTED
        self._chunk = drafted.token_ids
        self._laws = drafted.laws if self._with_laws else ()

    def drop(self) -> None:
        """Forgets what the draft was asked for or has drafted: it is lost."""
        self._expect(Stage.IDLE, Stage.ASKED, Stage.DRAFTED)
        self._clear()

    def check(self) -> Check:
        """Sends the chunk, or none, for verification."""
        self._expect(Stage.IDLE, Stage.DRAFTED)
        self._stage = Stage.CHECKED
        return Check(self.committed_len, self._chunk, self._laws)

    def commit(self, verdict: Verdict) -> Committed:
        """Commits what the verifier accepted and its own token behind."""
        self._expect(Stage.CHECKED)
        if verdict.base_len != self.committed_len:
            raise StalePrefixError(verdict.base_len, self.committed_len)
        if verdict.accepted_len > len(self._chunk):
            raise RemoteError(f"the verifier accepted {verdict.accepted_len} of {len(self._chunk)} draft tokens")
        self._check_ids((verdict.next_token_id,), "verifier")
        self._check_signals(verdict.signals)
        rejected = verdict.accepted_len < len(self._chunk)
        own = TokenOrigin.RECOVERED if rejected else TokenOrigin.BONUS
        committed = Committed(
            self.committed_len,
            (*self._chunk[: verdict.accepted_len], verdict.next_token_id),
            (TokenOrigin.ACCEPTED,) * verdict.accepted_len + (own,),
        )
        self._committed += committed.token_ids
        self._clear()
        return committed

    def _check_chunk(self, drafted: Drafted) -> None:
        length = len(drafted.token_ids)
        if length > self._asked_tokens:
            raise RemoteError(f"the draft was asked for {self._asked_tokens} tokens and drafted {length}")
        if len(drafted.entropies_nats) != length:
            raise RemoteError(f"the draft sent {len(drafted.entropies_nats)} entropies for {length} tokens")
        if self._with_laws and len(drafted.laws) != length:
            raise RemoteError(f"the draft sent {len(drafted.laws)} laws for {length} tokens")
        if len(drafted.draft_probs) not in (0, length):
            raise RemoteError(f"the draft sent {len(drafted.draft_probs)} probabilities for {length} tokens")
        if self._judged_by_laws and not all(map(_can_produce, drafted.laws, drafted.token_ids)):
            raise RemoteError("the draft sent a law that cannot have produced its token")
        self._check_ids(drafted.token_ids, "draft")

    def _check_signals(self, signals: Signals) -> None:
        length = len(self._chunk)
        for values in (signals.kl_nats, signals.js_distance, signals.target_entropies_nats):
            if len(values) not in (0, length):
                raise RemoteError(f"the verifier sent {len(values)} values of a signal for {length} draft tokens")

    def _check_ids(self, token_ids: tuple[int, ...], peer: str) -> None:
        for token_id in token_ids:
            if token_id >= self._vocab_size:
                raise RemoteError(f"the {peer} sent id {token_id}; the target has {self._vocab_size}")

    def _expect(self, *stages: Stage) -> None:
        if self._stage not in stages:
            raise ValueError(f"out of turn: the round is {self._stage.value}")

    def _clear(self) -> None:
        self._stage = Stage.IDLE
        self._asked_tokens = 0
        self._chunk = ()
        self._laws = ()


def _can_produce(law: SparseLaw, token_id: int) -> bool:
    return any(one == token_id and weight > 0 for one, weight in zip(law.token_ids, law.weights, strict=True))
