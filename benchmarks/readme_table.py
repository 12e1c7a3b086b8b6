"""Writes the table of README.md from benchmarks/results, so that the README never says what was not measured.

`make readme-table` runs it; a test fails while README.md and the results disagree.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.report import RESULTS

README = Path(__file__).parents[1] / "README.md"
BEGIN = "<!-- numbers: written by `make readme-table` -->"
END = "<!-- /numbers -->"

SHOWN: Mapping[str, tuple[str, ...]] = {
    "end_to_end": (
        "transformers generate",
        "outrider, speculation off",
        "outrider, fixed 4",
        "outrider, adasd",
        "outrider, default policy",
        "answers equal to generate's",
    ),
    "rpc_overhead": ("overhead of a round", "overhead of a plain step", "bare gRPC, two round trips"),
}
"""By benchmark, the figures that the README shows."""


def render(results: Path) -> str:
    """The table and where its numbers come from, in Markdown; benchmarks without a result are left out."""
    reports = [json.loads(path.read_text("utf-8")) for name in SHOWN if (path := results / f"{name}.json").exists()]
    rows = [row for report in reports for row in _rows(report)]
    sources = [_source(report) for report in reports]
    return "\n".join(["| | measured | |", "|---|---:|---|", *rows, "", *sources])


def update(text: str, table: str) -> str:
    """The README `text` with `table` between its two marks. Raises ValueError if a mark is missing."""
    head, _, rest = text.partition(BEGIN)
    old, _, tail = rest.partition(END)
    if not tail:
        raise ValueError(f"README.md needs the marks {BEGIN} and {END}")
    return text if old.strip() == table else f"{head}{BEGIN}\n{table}\n{END}{tail}"


def _rows(report: Mapping[str, Any]) -> Iterator[str]:
    figures = {figure["name"]: figure for figure in report["figures"]}
    for name in SHOWN[report["name"]]:
        figure = figures[name]
        yield f"| {name} | {_number(figure['value'])} {figure['unit']} | {figure['note']} |"


def _number(value: float) -> str:
    """Three digits: more would be noise."""
    return f"{value:.0f}" if value == int(value) else f"{value:.3g}"


def _source(report: Mapping[str, Any]) -> str:
    where = report["environment"]
    versions = ", ".join(f"{name} {version}" for name, version in where["versions"].items())
    cores = f"{where['cores']} cores" if where["cores"] > 1 else "1 core"
    threads = f"{where['threads']} threads" if where["threads"] > 1 else "1 thread"
    return (
        f"- `{report['command']}`, {report['measured_at'][:10]}: {where['cpu']}, {cores}, {threads} a model, "
        f"Python {where['python']}, {versions}."
    )


def main() -> None:
    """Rewrites README.md in place."""
    text = README.read_text("utf-8")
    README.write_text(update(text, render(RESULTS)), "utf-8")


if __name__ == "__main__":
    main()
