"""What the documents say about the repository is true."""

import json
import re
from pathlib import Path

import pytest

from benchmarks import readme_table
from benchmarks.report import RESULTS

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8"))
    local = [link for link in links if not re.match(r"[a-z]+:", link)]
    assert [link for link in local if not (document.parent / link).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_lines_fit_a_review(document: Path) -> None:
    prose = [line for line in document.read_text(encoding="utf-8").splitlines() if not line.startswith(("|", "- `"))]
    assert [line for line in prose if len(line) > 140] == []


def test_make_targets_of_the_readme_exist() -> None:
    named = set(re.findall(r"\bmake ([a-z][a-z_-]*)", README))
    defined = set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, flags=re.MULTILINE))
    benchmarks = {f"bench-{path.stem}" for path in (ROOT / "benchmarks").glob("*.py")}
    assert {"demo", "test", "lint"} <= named <= defined | benchmarks


def test_table_of_the_readme_is_what_was_measured() -> None:
    assert readme_table.update(README, readme_table.render(RESULTS)) == README


def test_table_shows_the_figures_and_their_source(tmp_path: Path) -> None:
    figures = [
        {"name": name, "value": 1.23456, "unit": "ms", "note": "n"} for name in readme_table.SHOWN["rpc_overhead"]
    ]
    environment = {"cpu": "Some CPU", "cores": 2, "threads": 1, "python": "3.11.0", "versions": {"grpcio": "1.85.3"}}
    report = {
        "name": "rpc_overhead",
        "command": "python -m benchmarks.rpc_overhead",
        "measured_at": "2026-01-02T03:04:05+00:00",
        "environment": environment,
        "figures": figures,
    }
    (tmp_path / "rpc_overhead.json").write_text(json.dumps(report), encoding="utf-8")
    table = readme_table.render(tmp_path)
    assert "| overhead of a round | 1.23 ms | n |" in table
    assert "`python -m benchmarks.rpc_overhead`, 2026-01-02: Some CPU, 2 cores, 1 thread a model" in table


def test_readme_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="marks"):
        readme_table.update("# Outrider\n", "| |")


def test_ci_runs_nothing_that_the_readme_does_not_name() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    commands = re.findall(r"^make .*$", script, flags=re.MULTILINE)
    assert commands == ["make lint", "make test"]
    assert all(command in README for command in commands)
