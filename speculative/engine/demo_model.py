"""Where the demo models lie, and whether they are whole. No torch here: the command line uses it too.

Invariant: a model directory in the cache appears by one rename, complete and with a manifest of its content, or not at
all (pull.py). The demo *target* is SmolLM2-135M-Instruct. The demo *draft* is the trained one that the repository ships
(`models/smollm2-draft`); where that folder is missing, the target's first layers (pull.py) stand in.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from speculative.errors import ModelLoadError
from speculative.settings import cache_directory

Role = Literal["target", "draft"]

DEMO = "demo"
"""What `--model` calls these models."""
NAME = "SmolLM2-135M-Instruct"
"""What the demo target is, for people."""
MANIFEST = "manifest.json"
WEIGHTS = "model.safetensors"
# Part of the directories' name: a new number makes old conversions invisible instead of wrong.
_CONVERSION = 1
_SHIPPED_DRAFT = Path(__file__).parents[2] / "models" / "smollm2-draft"
_BLOCK_BYTES = 2**20

Advance = Callable[[int], None]
"""Told of progress: how many bytes were dealt with since the last call."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a model directory was made from, and the size (bytes) and SHA-256 of each of its files."""

    source: str
    sizes: Mapping[str, int]
    sha256: Mapping[str, str]

    @classmethod
    def of(cls, directory: Path, source: str, advance: Advance) -> "Manifest":
        """Reads every file of `directory`."""
        files = sorted(path for path in directory.iterdir() if path.name != MANIFEST)
        sizes = {path.name: path.stat().st_size for path in files}
        return cls(source, sizes, {path.name: sha256(path, advance) for path in files})

    @classmethod
    def read(cls, directory: Path) -> "Manifest":
        """Raises ModelLoadError if there is none or it cannot be read."""
        path = directory / MANIFEST
        try:
            document: dict[str, Any] = json.loads(path.read_text("utf-8"))
            files = document["files"]
            sizes = {name: int(entry["bytes"]) for name, entry in files.items()}
            return cls(document["source"], sizes, {name: str(entry["sha256"]) for name, entry in files.items()})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelLoadError(f"{path} cannot be read ({type(error).__name__}); {_REMEDY}") from error

    def text(self) -> str:
        """The file's content."""
        files = {name: {"bytes": self.sizes[name], "sha256": self.sha256[name]} for name in self.sizes}
        return json.dumps({"source": self.source, "files": files}, indent=2) + "\n"


_REMEDY = "run: outrider models pull"


def shipped_draft() -> Path | None:
    """The trained draft of the repository; None where this installation has none."""
    whole = all((_SHIPPED_DRAFT / name).is_file() for name in ("config.json", WEIGHTS, "tokenizer.json"))
    return _SHIPPED_DRAFT if whole else None


def cached_path(role: Role, cache: Path) -> Path:
    """Where `outrider models pull` puts the model below the cache directory."""
    return cache / "models" / f"smollm2-135m-instruct-{_CONVERSION}" / role


def demo_path(role: Role, cache: Path | None = None) -> Path:
    """Where the demo model of that role lies, or would lie. `cache`: the cache directory (None: the user's)."""
    shipped = shipped_draft() if role == "draft" else None
    return shipped or cached_path(role, cache or cache_directory())


def demo_directory(role: Role) -> Path:
    """The directory to load. Raises ModelLoadError, which says what to do, if it is missing or not whole."""
    directory = demo_path(role)
    if not directory.is_dir():
        raise ModelLoadError(f"the demo {role} is not on this machine ({directory}); {_REMEDY}")
    if directory != shipped_draft():
        check_sizes(directory)
    return directory


def check_sizes(directory: Path) -> None:
    """Raises ModelLoadError unless every file of the manifest is there with its size; reads no weights."""
    for name, size in Manifest.read(directory).sizes.items():
        path = directory / name
        found = path.stat().st_size if path.is_file() else None
        if found != size:
            raise ModelLoadError(f"{path} should have {size} bytes, has {found or 'none'}; {_REMEDY}")


def check_content(directory: Path, advance: Advance) -> None:
    """Raises ModelLoadError unless every file of the manifest has its SHA-256."""
    check_sizes(directory)
    for name, expected in Manifest.read(directory).sha256.items():
        if sha256(directory / name, advance) != expected:
            raise ModelLoadError(f"{directory / name} is damaged (its SHA-256 is not the recorded one); {_REMEDY}")


def total_bytes(directory: Path) -> int:
    """Bytes of the files in `directory`."""
    return sum(path.stat().st_size for path in directory.iterdir())


def sha256(path: Path, advance: Advance) -> str:
    """The file's SHA-256 (hex)."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            advance(len(block))
    return digest.hexdigest()
