"""A target and a draft in this process: the whole loop over real engines, without gRPC in between."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from controller.answer import StopRules
from controller.decoder import Decoder, DecodeTask
from controller.drafting import DraftPatience
from controller.policies.registry import make_policy
from controller.text import Detokenizer
from controller.tokenizer import Tokenizer
from controller.transport import Deadline
from draft_service.drafter import LOOKUP_ALONE_TOKENS, Drafter, DraftSession
from draft_service.lookup_drafter import LookupDrafter, LookupSession
from speculative.engine.emulated_tokenizer import tokenizer_files
from speculative.engine.interface import Runner
from speculative.engine.worker import Engine, EngineSettings
from speculative.generation import Delta, Finished, RoundTrace
from speculative.messages import Advance, Check, Drafted, DraftOpen, ModelInfo, ServiceLimits, Verdict, VerifyOpen
from speculative.sampling.types import PAPERS_ADASD, AcceptanceRule, AdasdOptions, SamplingParams
from tests.support.tiny_models import VOCABULARY
from verifier_service.verifier import Verifier, VerifySession

Session = TypeVar("Session")
Request = TypeVar("Request")
Response = TypeVar("Response")

GREEDY = SamplingParams(temperature=0.0)
MAX_SESSIONS = 64
LIMITS = ServiceLimits(max_chunk_tokens=16, max_sessions=1000, max_message_bytes=1 << 20)


class LocalStream(Generic[Session, Request, Response]):
    """A session in a task of its own: what a stream is, without a network."""

    def __init__(
        self,
        session: AbstractAsyncContextManager[Session],
        answer: Callable[[Session, Request], Awaitable[Response]],
    ) -> None:
        self._session = session
        self._answer = answer
        self._requests: asyncio.Queue[Request] = asyncio.Queue()
        self._responses: asyncio.Queue[Response | Exception] = asyncio.Queue()
        self._task = asyncio.create_task(self._serve())

    async def _serve(self) -> None:
        try:
            async with self._session as session:
                while True:
                    self._responses.put_nowait(await self._answer(session, await self._requests.get()))
        except Exception as error:  # noqa: BLE001 - the one who waits gets it
            self._responses.put_nowait(error)

    async def send(self, request: Request) -> None:
        self._requests.put_nowait(request)

    async def receive(self) -> Response:
        response = await self._responses.get()
        if isinstance(response, Exception):
            raise response
        return response

    def close(self) -> None:
        self._task.cancel()


class LocalVerifyStream(LocalStream[VerifySession, Check, Verdict]):
    check = LocalStream.send
    verdict = LocalStream.receive


class LocalDraftStream(LocalStream[DraftSession | LookupSession, Advance, Drafted]):
    advance = LocalStream.send
    drafted = LocalStream.receive


@dataclass
class LocalVerifier:
    """A VerifyReplica."""

    verifier: Verifier
    limits: ServiceLimits = LIMITS

    @property
    def info(self) -> ModelInfo:
        return self.verifier.info

    async def open(self, message: VerifyOpen, timeout_s: float) -> LocalVerifyStream:
        return LocalVerifyStream(self.verifier.session(message), VerifySession.check)


@dataclass
class LocalDraft:
    """A DraftReplica, and the source that always picks it."""

    drafter: Drafter | LookupDrafter
    limits: ServiceLimits = LIMITS
    trusted: bool = True

    @property
    def info(self) -> ModelInfo:
        return self.drafter.info

    def report(self, *, well: bool) -> None:
        assert well, "the draft failed"

    async def open(self, message: DraftOpen, timeout_s: float) -> LocalDraftStream:
        return LocalDraftStream(self.drafter.session(message), lambda session, advance: session.advance(advance))

    def pick(self) -> "LocalDraft":
        return self


class NoDraft:
    """A DraftSource with nothing in it."""

    def pick(self) -> None:
        return None


@dataclass(frozen=True)
class Ask:
    """One request of a test. `policy_parameters` are the policy's."""

    prompt: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParams = GREEDY
    seed: int = 0
    policy: str = "fixed"
    policy_parameters: dict[str, float] = field(default_factory=dict)
    max_draft_tokens: int = 8
    acceptance: AcceptanceRule = AcceptanceRule.COUPLED
    adasd: AdasdOptions = PAPERS_ADASD
    round_signals: bool = False
    lookup: bool = False
    round_trace: bool = False


@dataclass(frozen=True)
class Answered:
    """What came back; rounds only where they or their signals were asked for."""

    token_ids: tuple[int, ...]
    text: str
    finished: Finished
    rounds: tuple[RoundTrace, ...] = ()


@dataclass(frozen=True)
class Pair:
    """A running target and, perhaps, a draft."""

    target: Engine
    draft: Engine | None
    lookup_alone_tokens: int = LOOKUP_ALONE_TOKENS
    without_model: bool = False
    """Whether the draft, instead of the model, is one that only looks up."""

    def _source(self) -> LocalDraft | NoDraft:
        if self.without_model:
            return LocalDraft(LookupDrafter(MAX_SESSIONS))
        if self.draft is None:
            return NoDraft()
        return LocalDraft(Drafter(self.draft, lookup_alone_tokens=self.lookup_alone_tokens))

    async def generate(self, ask: Ask) -> Answered:
        """Answers one request."""
        deltas: list[Delta] = []

        async def deliver(delta: Delta) -> None:
            deltas.append(delta)

        target = LocalVerifier(Verifier(self.target, {}))
        info = target.info
        room = info.context_length - len(ask.prompt)
        task = DecodeTask(
            prompt_token_ids=ask.prompt,
            sampling=ask.sampling,
            seed=ask.seed,
            acceptance=ask.acceptance,
            rules=StopRules(min(ask.max_tokens, room), frozenset(info.eos_token_ids)),
            max_draft_tokens=ask.max_draft_tokens,
            round_trace=ask.round_signals or ask.round_trace,
            round_signals=ask.round_signals,
            adasd=ask.adasd,
            lookup=ask.lookup,
        )
        decoder = Decoder(
            task,
            make_policy(ask.policy, ask.policy_parameters),
            target,
            self._source(),
            Detokenizer(Tokenizer(tokenizer_files(VOCABULARY)), continues_text=True),
            DraftPatience(first_chunk_s=60, chunk_floor_s=60, chunk_ceiling_s=60),
            Deadline(time.monotonic_ns, time.monotonic_ns() + 120 * 10**9),
            time.monotonic_ns,
        )
        finished = await decoder.run(deliver)
        token_ids = tuple(token for delta in deltas for token in delta.token_ids)
        rounds = tuple(delta.round for delta in deltas if delta.round is not None)
        return Answered(token_ids, "".join(delta.text for delta in deltas), finished, rounds)

    async def generate_all(self, asks: list[Ask]) -> list[Answered]:
        """Answers many requests at once, as many as the engines have sessions for."""
        places = asyncio.Semaphore(MAX_SESSIONS)

        async def answer(ask: Ask) -> Answered:
            async with places:
                return await self.generate(ask)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(answer(ask)) for ask in asks]
        return [task.result() for task in tasks]


@asynccontextmanager
async def pair(target: Runner, draft: Runner | None, **settings: Any) -> AsyncIterator[Pair]:
    """Runs both engines; at the end nothing may be left in them."""
    engines = [
        Engine(runner, EngineSettings(integrity_every_steps=10, **settings)) for runner in (target, draft) if runner
    ]
    for engine in engines:
        await engine.start()
    try:
        yield Pair(engines[0], engines[1] if draft else None)
        async with asyncio.timeout(2):
            for engine in engines:
                while engine.stats().sessions or engine.stats().free_blocks != engine.stats().num_blocks:
                    await asyncio.sleep(0.005)
    finally:
        for engine in engines:
            await engine.stop()
        for engine in engines:
            engine.check_integrity()
