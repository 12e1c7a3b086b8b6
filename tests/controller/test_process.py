"""The controller's start: what it needs to be installed, and what it can be told."""

import subprocess
import sys
from pathlib import Path

import pytest

from controller.config import ControllerConfig
from speculative import settings

ROOT = Path(__file__).parents[2]
ADDRESSES = ["--verifier", "127.0.0.1:1"]


def load(*arguments: str) -> ControllerConfig:
    return settings.load(ControllerConfig, [*ADDRESSES, *arguments], "controller")


def test_the_controller_runs_without_torch_and_transformers() -> None:
    absent = ("torch", "transformers", "numpy", "accelerate", "gguf", "safetensors")
    script = (
        f"import sys\nfor name in {absent}: sys.modules[name] = None\nimport controller.__main__, controller.decoder"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT, timeout=50)


def test_the_loop_knows_neither_grpc_nor_the_wire() -> None:
    script = (
        "import sys, controller.decoder, controller.draft_buffer\n"
        "assert not [name for name in sys.modules if name.split('.')[0] == 'grpc' or name.endswith('_pb2')]"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=ROOT, timeout=50)


def test_flags_become_settings() -> None:
    config = load("--policy", "fixed", "--max-draft-tokens", "3", "--chunk-timeout-floor-s", "4", "--listen", "h:1")
    assert config.defaults.policy == "fixed"
    assert config.defaults.max_draft_tokens == 3
    assert config.patience.chunk_floor_s == 4
    assert config.defaults.guard
    assert not load("--no-guard").defaults.guard
    assert config.draft is None
    assert load("--draft", "127.0.0.1:2").draft == "127.0.0.1:2"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--policy-parameters", "depth=3"],
        ["--policy-parameters", "length=2.5"],
        ["--policy-parameters", "batch_cap=many"],
        ["--policy", "best"],
        ["--max-draft-tokens", "-1"],
        ["--default-max-tokens", "0"],
        ["--draft-retry-s", "0"],
    ],
)
def test_a_wrong_setting_stops_the_start_and_is_named(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        load(*arguments)
    assert caught.value.code == settings.EXIT_CODE
    assert arguments[0] in capsys.readouterr().err


def test_policy_parameters_go_to_the_policies_that_have_them() -> None:
    defaults = load("--policy-parameters", "batch_cap=0", "--policy-parameters", "length=3").defaults
    assert defaults.parameters("fixed", {}) == {"length": 3.0}
    assert defaults.parameters("fixed", {"length": 5.0, "unknown": 1.0}) == {"length": 5.0, "unknown": 1.0}
    assert defaults.parameters("dsde", {}) == {"batch_cap": 0.0}
    assert defaults.parameters("off", {}) == {}
    assert load("--policy-parameters", "guard=0").defaults.parameters("off", {}) == {"guard": 0.0}


def test_patience_with_a_draft_is_bounded_on_both_sides() -> None:
    patience = load().patience
    assert patience.for_chunk(None) == patience.first_chunk_s
    assert patience.for_chunk(0) == patience.chunk_floor_s
    assert patience.for_chunk(200_000_000) == pytest.approx(0.2 * patience.chunk_multiple)
    assert patience.for_chunk(10**12) == patience.chunk_ceiling_s
