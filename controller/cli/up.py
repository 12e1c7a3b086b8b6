"""`outrider up`: a local trio that runs until it is told to stop."""

import asyncio
import json
import signal

from rich.console import Console

from controller.cli.children import Child
from controller.cli.connection import started
from controller.cli.failures import CommandError
from controller.cli.trio import Trio, TrioPlan

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def serve(plan: TrioPlan, out: Console, notes: Console, *, as_json: bool) -> None:
    """Runs the trio until SIGINT, SIGTERM or SIGHUP.

    A child that dies is reported and not restarted. Without its draft the trio goes on (target only); without its
    verifier or controller it is of no use: CommandError.
    """
    stop = asyncio.Event()
    async with started(plan, notes) as trio:
        # Only now: until everything runs, a signal cancels the start instead.
        for number in _STOP_SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        _show(trio, plan, out, as_json=as_json)
        await _watch(trio, stop, notes)
        notes.print("stopping")
        # A second Ctrl-C does not wait for open streams.
        asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)


def _show(trio: Trio, plan: TrioPlan, out: Console, *, as_json: bool) -> None:
    if as_json:
        pids = {one.name: one.pid for one in trio.children}
        out.file.write(json.dumps({"addresses": trio.addresses, "pids": pids}) + "\n")
        out.file.flush()
        return
    about = {
        "verifier": f"target {plan.target}, threads: {plan.threads.verifier}",
        "draft": f"draft {plan.draft}, threads: {plan.threads.draft}",
        "controller": f'outrider generate --address {trio.address} "..."',
    }
    for name, address in trio.addresses.items():
        out.print(f"{name:<10} {address:<21} {about[name]}", soft_wrap=True)
    out.print("ready; Ctrl-C stops")


async def _watch(trio: Trio, stop: asyncio.Event, notes: Console) -> None:
    """Returns when told to stop; raises CommandError when a child dies that the others need."""
    dead: asyncio.Queue[Child] = asyncio.Queue()

    async def watch(child: Child) -> None:
        await child.process.wait()
        await dead.put(child)

    async def report() -> None:
        while (child := await dead.get()).name == "draft":
            notes.print(f"{child.obituary()}; going on with the target only", style="yellow", highlight=False)
        fatal.append(child)
        stop.set()

    fatal: list[Child] = []
    async with asyncio.TaskGroup() as tasks:
        watching = [tasks.create_task(watch(child)) for child in trio.children]
        watching.append(tasks.create_task(report()))
        await stop.wait()
        for task in watching:
            task.cancel()
    for child in fatal:
        raise CommandError(
            f"{child.obituary()}; the others were stopped", f"see what it said last: {child.last_words()}"
        )
