"""Versions of what is installed, read from the installation's metadata: nothing is imported for it."""

import platform
from importlib import metadata

NOT_INSTALLED = "not installed"
BASE = ("outrider", "grpcio", "protobuf", "pydantic", "tokenizers", "typer")
"""What every installation has."""
MODEL = ("torch", "transformers", "safetensors", "gguf")
"""What the extra `model` adds."""


def version_of(package: str) -> str:
    """The installed version, or NOT_INSTALLED."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return NOT_INSTALLED


def versions() -> dict[str, str]:
    """Versions by name: outrider first, then Python, then what it stands on."""
    outrider, *others = BASE
    names = (*others, *MODEL)
    python = f"{platform.python_version()} ({platform.system()} {platform.machine()})"
    return {outrider: version_of(outrider), "python": python} | {name: version_of(name) for name in names}
