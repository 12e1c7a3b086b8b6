"""The services a controller works with: their health, and whether they fit together.

Every service is watched in the background: described when it can be reached, then followed through its health, and
described anew after every lost connection, because another model may have come back. Invariant: a draft is offered
only while it is well and its vocabulary is the target's; ids mean nothing across vocabularies, and a draft of another
one would silently waste its work.

There is one verifier and at most one draft now. The loop asks `target` and `pick` for a replica each time it opens a
session, so that choosing among several later changes nothing there.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from controller.clients import DraftClient, ServiceClient, VerifierClient
from controller.prompt import PromptEncoder, prompt_encoder
from controller.tokenizer import Tokenizer
from controller.transport import DraftStream, VerifyReplica, VerifyStream
from speculative.errors import IncompatibleModelError, NotReadyError, OutriderError
from speculative.generation import DIFFERENT_VOCABULARIES
from speculative.messages import DraftOpen, ModelInfo, ServiceLimits, VerifyOpen

_log = logging.getLogger(__name__)

_FAILURES = (OutriderError, TimeoutError)

Client = TypeVar("Client", bound=ServiceClient)


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """How services are watched, in seconds."""

    describe_timeout_s: float = 5.0
    """For GetInfo."""
    tokenizer_timeout_s: float = 60.0
    """For GetTokenizer."""
    retry_s: float = 0.5
    """Between tries to reach a service."""


@dataclass(frozen=True, slots=True)
class Description:
    """What a service says of itself."""

    info: ModelInfo
    limits: ServiceLimits


class Watched(Generic[Client]):
    """One service: `description` is None until it has been reached, `problem` is empty while it is well."""

    def __init__(
        self,
        client: Client,
        settings: WatchSettings,
        described: Callable[[Description], Awaitable[None]],
        changed: Callable[[], None],
    ) -> None:
        """`described` is awaited with every new description before the service counts as well."""
        self.client = client
        self.description: Description | None = None
        self.problem = "has not been reached yet"
        self._settings = settings
        self._described = described
        self._changed = changed

    @property
    def well(self) -> bool:
        """Whether sessions can be opened."""
        return not self.problem

    async def run(self) -> None:
        """Watches for good."""
        while True:
            try:
                await self._follow()
                problem = "ended the connection"
            except _FAILURES as error:
                problem = str(error) or type(error).__name__
            except Exception as error:  # noqa: BLE001  # whatever it is, one service must not end the controller
                _log.exception("a watcher failed", extra={"address": self.client.address})
                problem = f"cannot be watched: {type(error).__name__}"
            self._set(problem)
            await asyncio.sleep(self._settings.retry_s)

    async def _follow(self) -> None:
        self.description = Description(*await self.client.describe(self._settings.describe_timeout_s))
        await self._described(self.description)
        async for ready in self.client.watch():
            self._set("" if ready else "is not serving")

    def _set(self, problem: str) -> None:
        if problem == self.problem:
            return
        self.problem = problem
        level = logging.WARNING if problem else logging.INFO
        _log.log(level, "service state", extra={"address": self.client.address, "problem": problem or "none"})
        self._changed()


@dataclass(frozen=True, slots=True)
class Verifier:
    """A `VerifyReplica` (transport.py)."""

    client: VerifierClient
    info: ModelInfo
    limits: ServiceLimits

    async def open(self, message: VerifyOpen, timeout_s: float) -> VerifyStream:
        return await self.client.open(message, timeout_s)


@dataclass(slots=True)
class Draft:
    """A `DraftReplica` (transport.py)."""

    client: DraftClient
    info: ModelInfo
    limits: ServiceLimits
    trusted: bool = True

    def report(self, *, well: bool) -> None:
        self.trusted = well

    async def open(self, message: DraftOpen, timeout_s: float) -> DraftStream:
        return await self.client.open(message, timeout_s, self.info.vocab_size)


@dataclass(frozen=True, slots=True)
class Target:
    """The target model: a verifier that serves it, and its tokenizer."""

    replica: VerifyReplica
    tokenizer: Tokenizer
    prompts: PromptEncoder

    @property
    def info(self) -> ModelInfo:
        """The target model."""
        return self.replica.info


class Fleet:
    """One verifier, and a draft or none; a `DraftSource` (transport.py)."""

    def __init__(self, verifier: VerifierClient, draft: DraftClient | None, settings: WatchSettings) -> None:
        self._settings = settings
        self._verifier = Watched(verifier, settings, self._verifier_described, self._review)
        self._draft = Watched(draft, settings, self._draft_described, self._review) if draft else None
        self._target: Target | None = None
        self._offered: Draft | None = None
        self._off_reason = self._find_off_reason()
        self.next_change = asyncio.Event()
        """Set at the next change of `ready` or `speculation_off_reason`; then another one takes its place."""

    async def run(self) -> None:
        """Watches all services for good."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._verifier.run())
            if self._draft is not None:
                tasks.create_task(self._draft.run())

    async def wait_ready(self) -> None:
        """Waits until the verifier is well and its tokenizer loaded."""
        while not self.ready:
            await self.next_change.wait()

    @property
    def ready(self) -> bool:
        """Whether requests can be answered."""
        return self._target is not None and self._verifier.well

    def target(self) -> Target:
        """The target; NotReadyError while its verifier is not well."""
        if self._target is None or not self._verifier.well:
            raise NotReadyError(_complaint("verifier", self._verifier))
        return self._target

    def pick(self) -> Draft | None:
        """The draft, while it is well and fits the target."""
        return self._offered if not self._off_reason else None

    @property
    def speculation_off_reason(self) -> str:
        """Why there is no draft at the moment; empty when there is one."""
        return self._off_reason

    async def _verifier_described(self, description: Description) -> None:
        """Loads the tokenizer, unless the model is the one that was there before; ModelLoadError if it is unusable."""
        client = self._verifier.client
        replica = Verifier(client, description.info, description.limits)
        if self._target is not None and self._target.info == description.info:
            self._target = Target(replica, self._target.tokenizer, self._target.prompts)
            return
        files = await client.tokenizer_files(self._settings.tokenizer_timeout_s)
        tokenizer = await asyncio.to_thread(Tokenizer, files)
        prompts = prompt_encoder(tokenizer, files, description.info.vocab_size, description.info.context_length)
        self._target = Target(replica, tokenizer, prompts)
        _log.info("target", extra={"model": description.info.name, "revision": description.info.revision})

    async def _draft_described(self, description: Description) -> None:
        assert self._draft is not None
        self._offered = Draft(self._draft.client, description.info, description.limits)
        _log.info("draft", extra={"model": description.info.name, "revision": description.info.revision})

    def _review(self) -> None:
        """Looks at the pair again after a change."""
        reason = self._find_off_reason()
        if reason != self._off_reason:
            self._off_reason = reason
            _log.info("speculation", extra={"off_reason": reason or "none"})
        changed, self.next_change = self.next_change, asyncio.Event()
        changed.set()

    def _find_off_reason(self) -> str:
        draft = self._draft
        if draft is None:
            return "no draft service is configured"
        if not draft.well:
            return _complaint("draft", draft)
        if self._target is None or self._offered is None:
            return _complaint("verifier", self._verifier)
        try:
            check_pair(self._offered.info, self._target.info)
        except IncompatibleModelError as error:
            if str(error) != self._off_reason:
                _log.error("draft refused", extra={"reason": str(error)})
            return str(error)
        return ""


def _complaint(role: str, service: Watched[Client]) -> str:
    """What is wrong with a service, named once: the errors of most calls name their peer themselves (clients.py)."""
    peer = f"{role} service at {service.client.address}"
    return service.problem if service.problem.startswith(peer) else f"{peer}: {service.problem}"


def check_pair(draft: ModelInfo, target: ModelInfo) -> None:
    """Raises IncompatibleModelError, naming both, unless ids mean the same to both. Padding rows do not matter.

    A draft without a model, which proposes only ids that it was sent, fits every target.
    """
    if draft.fits_any_vocabulary:
        return
    if draft.vocab_fingerprint != target.vocab_fingerprint:
        raise IncompatibleModelError(
            f"draft {draft.name!r} ({draft.vocab_size} ids, fingerprint {draft.vocab_fingerprint[:12]}) and target "
            f"{target.name!r} ({target.vocab_size} ids, fingerprint {target.vocab_fingerprint[:12]}) "
            f"{DIFFERENT_VOCABULARIES}; start a draft with the target's vocabulary"
        )
