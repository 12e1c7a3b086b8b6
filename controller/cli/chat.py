"""`outrider chat`: a conversation with the model, turn by turn."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass

from rich.console import Console

from controller.cli.answers import TextView, collect
from controller.cli.connection import Where, connected
from controller.cli.failures import explain, interrupting_signals, reported, show
from controller.cli.options import typed
from controller.cli.traces import TraceFile, traced
from controller.clients import GenerationClient
from speculative.errors import OutriderError
from speculative.generation import ChatMessage, ChatPrompt, GenerationRequest, SpeculationOptions, StopConditions
from speculative.sampling.types import SamplingParams


@dataclass(frozen=True, slots=True)
class ChatStyle:
    """How every turn is answered."""

    sampling: SamplingParams
    seed: int | None
    stop: StopConditions
    speculation: SpeculationOptions

    def request(self, messages: Sequence[ChatMessage]) -> GenerationRequest:
        """The request of the next turn."""
        return GenerationRequest(ChatPrompt(tuple(messages)), self.sampling, self.seed, self.stop, self.speculation)


def talk(
    where: Where,
    opening: tuple[ChatMessage, ...],
    style: ChatStyle,
    out: Console,
    notes: Console,
    trace: TraceFile | None = None,
) -> None:
    """Reads lines and answers them, until an empty one, the end of the input, or Ctrl-C at the prompt."""
    with reported(), interrupting_signals(), asyncio.Runner() as runner, _Connection(runner, where, notes) as client:
        messages = list(opening)
        while line := _read_line(notes):
            messages.append(ChatMessage("user", line))
            answer = _answer(runner, client, style.request(messages), TextView(out, notes), trace)
            if answer is None:
                messages.pop()  # the turn never happened
            else:
                messages.append(ChatMessage("assistant", answer))


class _Connection:
    """`connected` for code outside of the event loop."""

    def __init__(self, runner: asyncio.Runner, where: Where, notes: Console) -> None:
        self._runner = runner
        self._stack = AsyncExitStack()
        self._connecting = connected(where, notes)

    def __enter__(self) -> GenerationClient:
        return self._runner.run(self._stack.enter_async_context(self._connecting))

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._stack.aclose())


def _read_line(notes: Console) -> str:
    notes.print("[bold]you>[/]", end=" ")
    try:
        return typed(input)
    except (EOFError, KeyboardInterrupt):
        notes.print()
        return ""


def _answer(
    runner: asyncio.Runner,
    client: GenerationClient,
    request: GenerationRequest,
    view: TextView,
    trace: TraceFile | None,
) -> str | None:
    """The answer's text; None if it failed or was interrupted (which is said)."""
    asked = request if trace is None else traced(request)
    shown = view if trace is None else trace.view(request, view)

    async def stream() -> str:
        async with aclosing(client.generate(asked, None)) as events:
            return (await collect(events, shown)).text

    try:
        return runner.run(stream())
    except KeyboardInterrupt:
        view.note("interrupted; this turn is forgotten")
    except (OutriderError, TimeoutError) as error:
        show(explain(error))
    return None
