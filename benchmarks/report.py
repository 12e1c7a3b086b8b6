"""What every benchmark leaves behind: a table for people, and benchmarks/results/NAME.json for everything else.

The file says on what machine and with what versions the numbers were measured, what they are, and which goals they had
to meet:

    {"name", "command", "measured_at", "environment": {...}, "figures": [{"name", "value", "unit", "note"}],
     "goals": [{"name", "value", "goal", "holds"}], "details": {...}}
"""

import json
import operator
import platform
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).with_name("results")
"""Where the files go."""

_PACKAGES = ("torch", "transformers", "grpcio", "protobuf", "uvloop", "tokenizers")
_COMPARE: Mapping[str, Callable[[float, float], bool]] = {"<=": operator.le, ">=": operator.ge, "==": operator.eq}


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured number."""

    name: str
    value: float
    unit: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Goal:
    """A number that a figure had to reach."""

    name: str
    value: float
    relation: Literal["<=", ">=", "=="]
    bound: float

    @property
    def holds(self) -> bool:
        """Whether it was reached."""
        return _COMPARE[self.relation](self.value, self.bound)

    def as_json(self) -> dict[str, Any]:
        """The goal as it stands in the file."""
        return {
            "name": self.name,
            "value": self.value,
            "goal": f"{self.relation} {self.bound:g}",
            "holds": self.holds,
        }


@dataclass(frozen=True, slots=True)
class Report:
    """The result of one benchmark; `threads` are those of each model."""

    name: str
    threads: int
    figures: Sequence[Figure]
    goals: Sequence[Goal] = ()
    details: Mapping[str, Any] = field(default_factory=dict)

    def publish(self, results: Path = RESULTS) -> Path:
        """Prints the table and writes the file; returns its path."""
        _print(self)
        results.mkdir(exist_ok=True)
        path = results / f"{self.name}.json"
        path.write_text(json.dumps(self.as_json(), indent=2, ensure_ascii=False) + "\n", "utf-8")
        return path

    def as_json(self) -> dict[str, Any]:
        """The report as it stands in the file."""
        return {
            "name": self.name,
            "command": shlex.join(["python", "-m", f"benchmarks.{self.name}", *sys.argv[1:]]),
            "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "environment": environment(self.threads),
            "figures": [asdict(figure) for figure in self.figures],
            "goals": [goal.as_json() for goal in self.goals],
            "details": dict(self.details),
        }


def environment(threads: int) -> dict[str, Any]:
    """What the numbers depend on besides the code; no name of a host or a path."""
    return {
        "cpu": _cpu_name(),
        "cores": len(_cpu_lines("processor")) or 1,
        "threads": threads,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: version for name in _PACKAGES if (version := _version(name))},
    }


def _cpu_name() -> str:
    names = _cpu_lines("model name")
    return names[0] if names else platform.processor() or platform.machine()


def _cpu_lines(key: str) -> list[str]:
    """The values of `key` in Linux' description of the processors; none elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return []
    return [line.partition(":")[2].strip() for line in lines if line.startswith(key)]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _print(report: Report) -> None:
    console = Console()
    table = Table("figure", "value", "unit", "", title=report.name, title_justify="left")
    for figure in report.figures:
        table.add_row(figure.name, f"{figure.value:.4g}", figure.unit, figure.note)
    console.print(table)
    for goal in report.goals:
        mark = "[green]holds[/]" if goal.holds else "[red]missed[/]"
        console.print(f"{mark}: {goal.name}: {goal.value:.4g}, goal {goal.relation} {goal.bound:g}", highlight=False)
