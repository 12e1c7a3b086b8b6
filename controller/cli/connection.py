"""Where a command's requests go: to a controller that runs, or to a trio started for the command."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from controller.cli.failures import CommandError
from controller.cli.models import pull_if_missing
from controller.cli.trio import EMULATED, Announce, Trio, TrioPlan, running_trio, speculation_off_reason
from controller.cli.versions import MODEL, NOT_INSTALLED, version_of
from controller.clients import GenerationClient
from speculative.rpc.channel import channel_to


@dataclass(frozen=True, slots=True)
class Remote:
    """A controller that runs."""

    address: str


Where = Remote | TrioPlan


@asynccontextmanager
async def connected(where: Where, notes: Console) -> AsyncIterator[GenerationClient]:
    """A client of the controller; a trio, if one is to be started, runs for as long as the block lasts."""
    if isinstance(where, Remote):
        async with client_of(where.address) as client:
            yield client
        return
    async with started(where, notes) as trio, client_of(trio.address) as client:
        yield client


@asynccontextmanager
async def client_of(address: str) -> AsyncIterator[GenerationClient]:
    """A client of the controller at `address`."""
    async with channel_to(address) as channel:
        yield GenerationClient(address, channel)


@asynccontextmanager
async def started(plan: TrioPlan, notes: Console) -> AsyncIterator[Trio]:
    """A running trio. Pulls the demo models first if it needs them; says so if it does not speculate."""
    _require_packages((plan.target, plan.draft))
    await pull_if_missing((plan.target, plan.draft), notes)
    async with AsyncExitStack() as stack:
        with _loading(notes) as announce:
            trio = await stack.enter_async_context(running_trio(plan, announce))
            reason = await speculation_off_reason(trio.address) if plan.draft else ""
        if reason:
            notes.print(f"speculation is off: {reason}", style="yellow", markup=False, highlight=False)
        yield trio


def _require_packages(models: tuple[str | None, ...]) -> None:
    """Raises CommandError if a model needs packages that are not installed."""
    missing = [name for name in MODEL if version_of(name) == NOT_INSTALLED]
    real = [model for model in models if model and not model.startswith(EMULATED)]
    if missing and real:
        advice = "pip install 'outrider[model]'; without it: --target emulated:target"
        raise CommandError(f"model {real[0]} needs packages that are not installed: {', '.join(missing)}", advice)


@contextmanager
def _loading(notes: Console) -> Iterator[Announce]:
    """Shows what each service is about until it is ready."""
    columns = (SpinnerColumn(finished_text="✓"), TextColumn("{task.description}"), TimeElapsedColumn())
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=notes, transient=True, disable=not notes.is_terminal) as progress:

        def announce(name: str, news: str) -> None:
            if name not in tasks:
                tasks[name] = progress.add_task(f"{name:<10} {news}", total=1)
            else:
                progress.update(tasks[name], description=f"{name:<10} ready at {news}", completed=1)

        yield announce
