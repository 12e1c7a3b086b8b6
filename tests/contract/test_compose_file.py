"""What can be promised of docker-compose.yml and the images without a docker engine."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
COMPOSE = Path(sys.executable).with_name("docker-compose")
DOCKERFILE = (ROOT / "deploy/docker/Dockerfile").read_text(encoding="utf-8")

# Top-level and service keys that Compose 1.29 refuses or cannot read.
NEWER_THAN_1_29 = {"name", "include", "gpus", "develop", "models", "provider", "post_start", "pre_stop"}


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    document: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    assert not NEWER_THAN_1_29 & document.keys()
    services: dict[str, dict[str, Any]] = document["services"]
    return services


def test_current_compose_accepts_the_file() -> None:
    checked = subprocess.run(
        [COMPOSE, "--file", ROOT / "docker-compose.yml", "config", "--quiet"],
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (checked.returncode, checked.stderr) == (0, "")


def test_file_uses_nothing_that_compose_1_29_refuses(services: dict[str, dict[str, Any]]) -> None:
    for service in services.values():
        assert not NEWER_THAN_1_29 & service.keys()
        assert not {"secrets", "additional_contexts"} & service["build"].keys()
        for condition in service.get("depends_on", {}).values():
            assert condition.keys() == {"condition"}


def test_every_service_is_a_target_of_the_one_dockerfile(services: dict[str, dict[str, Any]]) -> None:
    targets = set(re.findall(r"^FROM \S+ AS (\S+)$", DOCKERFILE, flags=re.MULTILINE))
    assert {service["build"]["target"] for service in services.values()} <= targets
    assert services.keys() == {"draft", "verifier", "controller"}


def test_services_are_read_only_and_without_privileges(services: dict[str, dict[str, Any]]) -> None:
    for service in services.values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]


def test_images_run_as_another_user_than_root_and_check_their_health() -> None:
    stages = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]
    by_name = {stage.split()[2]: stage for stage in stages}
    modules = {"controller": "controller", "draft": "draft_service", "verifier": "verifier_service"}
    for target, module in modules.items():
        stage = by_name[target]
        parent = by_name.get(stage.split()[0], "")
        assert "\nUSER outrider\n" in stage + parent
        assert "\nHEALTHCHECK " in stage
        assert f'ENTRYPOINT ["python", "-m", "{module}"]' in stage


def test_dockerfile_needs_nothing_beyond_the_classic_builder() -> None:
    assert "--mount" not in DOCKERFILE
    assert "<<" not in DOCKERFILE
    assert not DOCKERFILE.startswith("# syntax")


def test_image_requirements_are_those_of_the_package() -> None:
    printed = subprocess.run(
        [sys.executable, ROOT / "deploy/docker/requirements.py", ROOT / "pyproject.toml", "model"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    ).stdout.splitlines()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert printed == project["dependencies"] + project["optional-dependencies"]["model"]
    assert not any(line.startswith("torch") for line in project["dependencies"])
