"""Requests to answers: checks a request against the model, fills in the defaults, and runs the loop.

Invariant: whatever is wrong with a request is said before any work, and a request that is right is answered with the
target's own output whether there is a draft or not.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from controller.answer import StopRules
from controller.decoder import Decoder, DecodeTask, Record
from controller.drafting import DraftPatience
from controller.policies.base import ChunkPolicy
from controller.policies.guard import GuardSettings
from controller.policies.registry import GUARD, PolicyFactory, policy_names, policy_parameters
from controller.pool import Fleet, Target
from controller.prompt import check_ids
from controller.recording import TraceFolder, settings_of
from controller.text import Detokenizer
from controller.transport import Clock, Deadline
from speculative.errors import ContextLengthError
from speculative.generation import (
    ChatPrompt,
    GenerationEvent,
    GenerationRequest,
    Prompt,
    ServiceInfo,
    SpeculationOptions,
    Started,
)

_log = logging.getLogger(__name__)

Send = Callable[[GenerationEvent], Awaitable[None]]
"""Sends an event to the client; may wait for it."""

OFF = "off"
"""Name of the policy that never speculates."""


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """What holds where a request says nothing, and the limit of what it may say."""

    policy: str
    max_tokens: int
    max_draft_tokens: int
    """Most draft tokens in a chunk; 0 switches speculation off for all requests."""
    policy_parameters: Mapping[str, float] = field(default_factory=dict)
    """Parameters of policies, where a request sets no other value; a policy takes those it has."""
    guard: bool = True
    """Whether the goodput guard is around every policy, where neither request nor parameters say otherwise."""
    prompt_lookup: bool = True
    """Whether drafts look repetitions up first."""

    def parameters(self, policy: str, given: Mapping[str, float]) -> dict[str, float]:
        """The parameters of a policy for a request that gave some; InvalidRequestError for an unknown policy."""
        known = {GUARD.name, *(parameter.name for parameter in policy_parameters(policy))}
        own = {name: value for name, value in self.policy_parameters.items() if name in known}
        return own | dict(given)


@dataclass(frozen=True, slots=True)
class _Plan:
    """A request that has been checked, with everything filled in."""

    task: DecodeTask
    policy_name: str
    policy: ChunkPolicy
    target: Target
    continues_text: bool


class Generator:
    """Answers requests with a fleet. `draw_seed` gives 64 random bits for requests without a seed."""

    def __init__(
        self,
        fleet: Fleet,
        defaults: GenerationDefaults,
        patience: DraftPatience,
        clock: Clock,
        draw_seed: Callable[[], int],
        traces: TraceFolder | None = None,
    ) -> None:
        self._fleet = fleet
        self._defaults = defaults
        self._patience = patience
        self._clock = clock
        self._draw_seed = draw_seed
        self._traces = traces
        self._policies = PolicyFactory(GuardSettings() if defaults.guard else None)

    async def generate(self, request: GenerationRequest, timeout_s: float, send: Send) -> None:
        """Sends Started, Deltas, Finished within `timeout_s`. Raises what rpc/status.py has a status for."""
        deadline = Deadline(self._clock, self._clock() + int(timeout_s * 1e9))
        plan = await self._plan(request)
        task, replica = plan.task, plan.target.replica
        await send(Started(len(task.prompt_token_ids), task.seed, replica.info.name, plan.policy_name))
        with self._recording(plan, request) as record:
            decoder = Decoder(
                task,
                plan.policy,
                replica,
                self._fleet,
                Detokenizer(plan.target.tokenizer, continues_text=plan.continues_text),
                self._patience,
                deadline,
                self._clock,
                record,
            )
            finished = await decoder.run(send)
        await send(finished)

    def _recording(self, plan: _Plan, request: GenerationRequest) -> AbstractContextManager[Record | None]:
        if self._traces is None:
            return nullcontext()
        given = self._defaults.parameters(plan.policy_name, request.speculation.policy_parameters)
        parameters = {GUARD.name: float(self._defaults.guard), **given}
        speculation = dataclasses.replace(
            request.speculation, policy_parameters=parameters, max_draft_tokens=plan.task.max_draft_tokens
        )
        settings = settings_of(plan.target.info.name, request.sampling, speculation)
        return self._traces.recording(plan.policy_name, settings)

    async def tokenize(self, prompt: Prompt) -> tuple[int, ...]:
        """The ids that `generate` would begin with."""
        return await asyncio.to_thread(self._fleet.target().prompts.encode, prompt)

    async def detokenize(self, token_ids: tuple[int, ...], *, skip_special_tokens: bool) -> str:
        """The text of ids; InvalidRequestError for ids that the model does not have."""
        target = self._fleet.target()
        check_ids("token_ids", token_ids, target.info.vocab_size)
        return await asyncio.to_thread(target.tokenizer.decode, token_ids, skip_special_tokens=skip_special_tokens)

    def info(self) -> ServiceInfo:
        """Models, defaults and limits; NotReadyError while there is no target."""
        target = self._fleet.target()
        draft = self._fleet.pick() if self._defaults.max_draft_tokens else None
        reason = self._fleet.speculation_off_reason
        return ServiceInfo(
            target=target.info,
            draft=draft.info if draft else None,
            speculation_off_reason=reason if self._defaults.max_draft_tokens else "switched off in the settings",
            default_policy=self._defaults.policy,
            policies=policy_names(),
            max_draft_tokens=self._defaults.max_draft_tokens,
            default_max_tokens=self._defaults.max_tokens,
        )

    async def _plan(self, request: GenerationRequest) -> _Plan:
        target = self._fleet.target()
        options = request.speculation
        name = self._defaults.policy if options.policy is None else options.policy
        policy = self._policies.make(name, self._defaults.parameters(name, options.policy_parameters))
        check_ids("stop.stop_token_ids", request.stop.stop_token_ids, target.info.vocab_size)
        prompt = await asyncio.to_thread(target.prompts.encode, request.prompt)
        max_draft_tokens = self._max_draft_tokens(options.max_draft_tokens, name)
        task = DecodeTask(
            prompt_token_ids=prompt,
            sampling=request.sampling,
            seed=self._draw_seed() if request.seed is None else request.seed,
            acceptance=options.acceptance,
            rules=self._rules(request, len(prompt), target),
            max_draft_tokens=max_draft_tokens,
            round_trace=request.round_trace,
            round_signals=(request.round_trace and request.round_signals) or self._records_signals,
            adasd=options.adasd,
            lookup=self._looks_up(options),
        )
        speculates = max_draft_tokens > 0 and self._fleet.pick() is not None
        if options.acceptance.lossy and speculates:
            _log.warning("lossy acceptance", extra={"rule": options.acceptance.value, "policy": name})
        continues_text = not isinstance(request.prompt, ChatPrompt)
        return _Plan(task, name if speculates else OFF, policy, target, continues_text)

    @property
    def _records_signals(self) -> bool:
        return self._traces is not None and self._traces.settings.signals

    def _looks_up(self, options: SpeculationOptions) -> bool:
        """Not by default under AdaSD: it learns from the laws of tokens that were drawn, and a one-hot law is none."""
        default = self._defaults.prompt_lookup and not options.acceptance.lossy
        return default if options.prompt_lookup is None else options.prompt_lookup

    def _max_draft_tokens(self, asked: int | None, policy_name: str) -> int:
        most = self._defaults.max_draft_tokens
        if policy_name == OFF:
            return 0
        return most if asked is None else min(asked, most)

    def _rules(self, request: GenerationRequest, prompt_len: int, target: Target) -> StopRules:
        """When to stop; ContextLengthError if not even one token fits behind the prompt."""
        room = target.info.context_length - prompt_len
        if room < 1:
            raise ContextLengthError(prompt_len + 1, target.info.context_length)
        max_tokens = self._defaults.max_tokens if request.stop.max_tokens is None else request.stop.max_tokens
        return StopRules(
            max_tokens=min(max_tokens, room),
            token_ids=frozenset(target.info.eos_token_ids) | frozenset(request.stop.stop_token_ids),
            strings=request.stop.stop,
        )
