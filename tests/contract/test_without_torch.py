"""The base installation has no torch; what is promised to run without it does."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "safetensors", "gguf", "numpy", "psutil")

SCRIPTS = {
    "controller": "import controller.servicer, controller.__main__",
    "command line": "import controller.cli.app",
    "rpc": "import speculative.rpc.lifecycle, speculative.rpc.codec, speculative.rpc.generation_codec",
    "draft service with an emulated model": (
        "import draft_service.servicer\n"
        "from speculative.engine.loading import LoadSettings, load\n"
        "assert load('emulated:draft', LoadSettings(), 'draft').runner.info.vocab_size > 0"
    ),
    "draft service without a model": (
        "import asyncio\n"
        "from draft_service.config import DraftConfig\n"
        "from draft_service.servicer import DraftProcess\n"
        "async def serve():\n"
        "    async with DraftProcess(DraftConfig(model='lookup')).running():\n"
        "        pass\n"
        "asyncio.run(serve())"
    ),
    "verifier service with an emulated model": (
        "import verifier_service.servicer\n"
        "from speculative.engine.loading import LoadSettings, load\n"
        "assert load('emulated:target', LoadSettings(), 'target').tokenizer_files"
    ),
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS.keys())
def test_runs_without_torch(script: str) -> None:
    hidden = f"import sys\nsys.modules.update(dict.fromkeys({HEAVY!r}))\n"
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", hidden + script], capture_output=True, text=True, timeout=50, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
